"""Weights between Surefoot's own checkpoints and those of RSL-RL 5.5.1, for MLP, GRU and LSTM policies."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import torch
from torch import Tensor, nn

from surefoot.algorithm.optimizer import FlatOptimizer
from surefoot.config import SurefootWarning, TrainConfig
from surefoot.errors import ConfigError, MisfitError
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.heads import BetaHead, GaussianHead, StateDependentHead
from surefoot.networks.normalizers import RunningNormalizer
from surefoot.training.evaluation import saved_policy
from surefoot.types import EnvSpec

Sources = dict[str, list[Tensor]]
"""The parameters of ours, one below the other, that make up each of RSL-RL's."""

MODELS = ("actor", "critic")


def from_native(state: Mapping[str, Any]) -> dict[str, Any]:
    """A checkpoint of Surefoot's as rsl-rl-lib 5.5.1 loads it: weights, normalisers, optimiser, iteration.

    Args:
        state: Of `surefoot.training.checkpoint.load_checkpoint`.

    Raises:
        ConfigError: The policy has a part that RSL-RL has not.
    """
    policy, config, spec = saved_policy(state)
    _check_counterparts(policy, config)
    _warn_of_differences(config, spec, state)
    sources = {name: _sources(policy, name) for name in MODELS}
    result: dict[str, Any] = {
        f"{name}_state_dict": {
            **_statistics(policy, name),
            **{key: torch.cat([p.detach() for p in parts]) for key, parts in sources[name].items()},
        }
        for name in MODELS
    }
    saved = state["algorithm"]["optimizers"]["optimizer.optimizer"]
    parameters = [parts for name in MODELS for parts in sources[name].values()]
    result["optimizer_state_dict"] = _optimizer_state(saved, parameters, policy, config)
    return {**result, "iter": state["iteration"], "infos": None}


def to_native(checkpoint: Mapping[str, Any], policy: ActorCritic) -> None:
    """Put an RSL-RL checkpoint's weights and normalisers into a policy of Surefoot's, to train on from there.

        runner = OnPolicyRunner(env, from_rsl_rl(config)[0])
        to_native(load_checkpoint("model_1500.pt"), runner.policy)

    Args:
        checkpoint: In the keys of 5.5.1, as `load_checkpoint` gives it.
        policy: Of the same configuration; changed in place.

    Raises:
        MisfitError: Naming the layer, with both shapes; nothing has been changed then.
    """
    pairs: list[tuple[Tensor, Tensor]] = []
    for name in MODELS:
        model = checkpoint[f"{name}_state_dict"]
        sources = _sources(policy, name)
        expected = sources.keys() | _statistics(policy, name).keys()
        if differing := sorted(expected ^ model.keys()):
            has = "holds" if differing[0] in model else "lacks"
            raise MisfitError(
                f"{name}: the checkpoint {has} the layer '{differing[0]}', which the policy "
                f"{'has not' if has == 'holds' else 'has'}; use the configuration it was made with."
            )
        for key, parts in sources.items():
            shape = (sum(len(p) for p in parts), *parts[0].shape[1:])
            if model[key].shape != shape:
                raise MisfitError(
                    f"{name}: the layer '{key}' has the shape {tuple(model[key].shape)} in the checkpoint "
                    f"and {shape} here; use the configuration it was made with."
                )
            pairs.extend(zip(parts, model[key].split([len(p) for p in parts]), strict=True))
    with torch.no_grad():
        for parameter, value in pairs:
            parameter.copy_(value)
        for name, normalizer in policy.inputs.normalizers.items():
            assert isinstance(normalizer, RunningNormalizer)
            _set_statistics(normalizer, checkpoint[f"{name}_state_dict"])


# ------------------------------------------------------------------ parts of a model


def _sources(policy: ActorCritic, name: str) -> Sources:
    """In the order of RSL-RL's parameters."""
    body, head = policy.actor, policy.action_head
    last = [head.linear]
    sources: Sources = {}
    if name == "critic":
        assert policy.critic is not None
        body, last = policy.critic, [policy.value_head]
    elif isinstance(head, GaussianHead):
        sources["distribution.log_std_param" if head.is_log else "distribution.std_param"] = [head.std_param]
    elif isinstance(head, StateDependentHead):
        assert isinstance(head.log_std, nn.Linear)
        last.append(head.log_std)
    assert isinstance(body.layers, nn.Sequential)
    for i, layer in enumerate(body.layers):
        if isinstance(layer, nn.Linear):
            sources |= {f"mlp.{i}.weight": [layer.weight], f"mlp.{i}.bias": [layer.bias]}
    end = f"mlp.{len(body.layers)}"
    sources |= {f"{end}.weight": [x.weight for x in last], f"{end}.bias": [x.bias for x in last]}
    if body.memory is not None:
        sources |= {f"rnn.rnn.{key}": [p] for key, p in body.memory.rnn.named_parameters()}
    return sources


def _normalizer(policy: ActorCritic, name: str) -> RunningNormalizer | None:
    """Networks that read the same share one."""
    normalizers = dict(policy.inputs.normalizers.items())
    found = normalizers.get(policy.inputs.critic_name if name == "critic" else name)
    assert found is None or isinstance(found, RunningNormalizer)
    return found


def _statistics(policy: ActorCritic, name: str) -> dict[str, Tensor]:
    normalizer = _normalizer(policy, name)
    if normalizer is None:
        return {}
    mean, std = normalizer.mean, normalizer.std
    if not normalizer.count:  # before the first update the statistics are provisional, and not in the sums
        mean, std = normalizer.shift, 1 / normalizer.scale - normalizer.eps
    rows = {"_mean": mean, "_var": std.square(), "_std": std}
    dtype = normalizer.shift.dtype
    statistics = {f"obs_normalizer.{key}": x.to(dtype).unsqueeze(0) for key, x in rows.items()}
    return {**statistics, "obs_normalizer.count": normalizer.count.clone()}


def _set_statistics(normalizer: RunningNormalizer, model: Mapping[str, Tensor]) -> None:
    mean, std, count = (model[f"obs_normalizer.{key}"] for key in ("_mean", "_std", "count"))
    normalizer.count.copy_(count)
    normalizer.mean.copy_(mean[0])
    normalizer.m2.copy_(std[0].double().square() * count)
    normalizer.shift.copy_(mean[0])
    normalizer.scale.copy_(1 / (std[0] + normalizer.eps))


# ------------------------------------------------------------------ the optimiser


def _optimizer_state(
    saved: Mapping[str, Any], parameters: list[list[Tensor]], policy: ActorCritic, config: TrainConfig
) -> dict[str, Any]:
    """That of the flat optimiser, for one parameter after the other."""
    group = {k: v for k, v in saved["param_groups"][0].items() if k != "ratio"}
    group |= {
        "lr": float(group["lr"]),
        "params": list(range(len(parameters))),
        "foreach": None,
        "fused": None,
    }
    state: dict[int, dict[str, Tensor]] = {}
    if saved["state"]:
        order = FlatOptimizer(policy.segments(), config.algorithm).flat_parameters
        moments: dict[str, dict[int, Tensor]] = {}
        for name, first in saved["state"][0].items():
            if first.dim():
                flat = torch.cat([part[name] for _, part in sorted(saved["state"].items())])
                # behind them stand those of extensions
                pieces = flat[: sum(p.numel() for p in order)].split([p.numel() for p in order])
                moments[name] = {id(p): x.view_as(p) for p, x in zip(order, pieces, strict=True)}
        counters = {name: x for name, x in saved["state"][0].items() if not x.dim()}
        for i, parts in enumerate(parameters):
            own = {name: torch.cat([of[id(p)] for p in parts]) for name, of in moments.items()}
            state[i] = {**{name: x.clone() for name, x in counters.items()}, **own}
    return {"state": state, "param_groups": [group]}


# ------------------------------------------------------------------ what RSL-RL has not


def _check_counterparts(policy: ActorCritic, config: TrainConfig) -> None:
    fault = next(_without_counterpart(policy, config), None)
    if fault is not None:
        raise ConfigError(f"RSL-RL has no counterpart of {fault}; export the policy as onnx or torchscript.")


def _without_counterpart(policy: ActorCritic, config: TrainConfig) -> Iterator[str]:
    head = policy.action_head
    if config.network == "shared":
        yield "network 'shared'"
    if not isinstance(head, GaussianHead | StateDependentHead | BetaHead):
        yield "counted actions"
    elif not isinstance(head, BetaHead) and (head.squashed or head.bound_mean):
        yield "squashed actions (SquashedGaussian, last_activation)"
    if config.actor.distribution.std_type == "gsde":
        yield "std_type 'gsde'"
    for name, network in (("actor", config.actor), ("critic", config.critic)):
        if network.class_name is not None:
            yield f"{name}.class_name {network.class_name}"
        if network.layer_norm:
            yield f"{name}.layer_norm"
        if not network.hidden_dims:
            yield f"{name} without hidden layers"
        if policy.inputs.images[name]:
            yield f"{name}'s image encoder"
    if config.actor.mirror:
        yield "actor.mirror"
    if config.actor.estimator is not None:
        yield "actor.estimator"
    if config.critic.value_normalization:
        yield "critic.value_normalization"
    for group in policy.inputs.read():
        space = policy.inputs.spaces[group]
        if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
            yield f"the observation group '{group}' of {space}"


def _warn_of_differences(config: TrainConfig, spec: EnvSpec, state: Mapping[str, Any]) -> None:
    texts = []
    space = spec.action_space
    assert isinstance(space, gymnasium.spaces.Box)
    if bool((torch.as_tensor(space.low).isfinite() | torch.as_tensor(space.high).isfinite()).any()):
        texts.append(
            "its actions were clipped to [-1, 1] and mapped to the bounds of the action space; in RSL-RL the "
            "environment has to do that"
        )
    if any(network.obs_normalization and network.obs_clip for network in (config.actor, config.critic)):
        texts.append("its normalised observations were clipped to obs_clip; RSL-RL does not clip them")
    if any(key.startswith("extensions.") for key in state["algorithm"]["tensors"]):
        texts.append("what its extensions learned is left out")
    for text in texts:
        warnings.warn(f"checkpoint for RSL-RL: {text}.", SurefootWarning, stacklevel=3)
