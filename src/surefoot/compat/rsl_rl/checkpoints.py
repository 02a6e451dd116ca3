"""Checkpoints of every generation of RSL-RL, in the keys of 5.5.1, read without executing anything.

| generation | holds |
|---|---|
| 1.x to 3.x | `model_state_dict`: actor, critic, memories (and, from 3.0, normalisers) in one |
| 2.x | and `obs_norm_state_dict`, with `critic_` or `privileged_` before it for the other network |
| 4.x | `actor_state_dict`, `critic_state_dict` (or student and teacher), with `std` or `log_std` |
| 5.x | `distribution.std_param`, `distribution.log_std_param` |

A checkpoint of Surefoot's own runs is taken too.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from surefoot.compat.rsl_rl.native_checkpoints import from_native, to_native
from surefoot.config import SurefootWarning
from surefoot.errors import CheckpointError, MisfitError, MissingPartError, did_you_mean
from surefoot.extensions.amp.safe_pickle import STAND_INS, Array
from surefoot.training.checkpoint import complete, read_file

__all__ = ["check_fits", "from_native", "load_checkpoint", "migrate", "part", "to_native"]

Model = dict[str, Tensor]

_NOISE = {"std": "distribution.std_param", "log_std": "distribution.log_std_param"}
_NORMALIZERS = {
    "obs_norm_state_dict": 0,
    "critic_obs_norm_state_dict": 1,
    "privileged_obs_norm_state_dict": 1,
}
"""Entries of 2.x that became a part of the first or second model."""
_MODELS = ("actor", "critic", "student", "teacher")
_PARTS = (
    "model_state_dict",
    *_NORMALIZERS,
    *(f"{name}_state_dict" for name in _MODELS),
    "optimizer_state_dict",
)
_USUAL_SAMPLES = 4096 * 24
"""Observations per iteration, for normalisers of early 2.x, which did not save how many they have seen."""
_STATISTICS = ("_mean", "_var", "_std", "count", "running_mean", "running_var", "num_batches_tracked")
"""Last parts of the names of what no optimiser trains."""


def load_checkpoint(
    path: Path | str | Mapping[str, Any], map_location: Any = None, splits_policy: bool = True
) -> dict[str, Any]:
    """A checkpoint of any generation, or one of Surefoot's own, in the keys of RSL-RL 5.5.1.

    Args:
        path: The file, or what it holds.
        map_location: As for `torch.load`; None: where each tensor was, or the CPU where there is no GPU.
        splits_policy: Whether one policy becomes two models, as `migrate` says.

    Raises:
        CheckpointError: no such file; cut off or damaged; it holds more than tensors and plain data, of which
            nothing was executed; it is no checkpoint of a policy.
    """
    if isinstance(path, Mapping):
        return migrate(path, splits_policy)
    if map_location is None and not torch.cuda.is_available():
        map_location = "cpu"
    data = _resolved(read_file(Path(path), _safe_globals(), map_location))
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} holds a {type(data).__name__}; expected a checkpoint's mapping.")
    if "format" in data and "algorithm" in data:
        return from_native(complete(data, str(path)))
    try:
        return migrate(data, splits_policy)
    except CheckpointError as error:
        raise type(error)(f"{path}: {error}") from error


def migrate(checkpoint: Mapping[str, Any], splits_policy: bool = True) -> dict[str, Any]:
    """What a checkpoint file holds, in the keys of RSL-RL 5.5.1; the argument stays as it is.

    The order of an optimiser's parameters follows: models of 5.5.1 have their own. Entries that are not known
    stay, as those of forks and of one's own algorithms do; so does, without `splits_policy`, the state of a
    policy, which then is of a class of the client's own.

    Raises:
        CheckpointError: `model_state_dict` holds a part of a network that no policy class had, or such an
            entry is no mapping; None counts as not there.
    """
    result = {key: value for key, value in checkpoint.items() if key not in _PARTS or value is not None}
    for key in _PARTS:
        if not isinstance(value := result.get(key, {}), Mapping):
            raise CheckpointError(f"its {key} is a {type(value).__name__}; expected a mapping.")
    for key in _NORMALIZERS:
        if statistics := result.get(key):
            seen = torch.tensor(_USUAL_SAMPLES * max(1, result.get("iter", 0)))
            result[key] = {**statistics, "count": statistics.get("count", seen)}
    if "model_state_dict" in result and splits_policy:
        _split_policy(result)
    for name in _MODELS:
        key = f"{name}_state_dict"
        if key in result:
            result[key] = {_NOISE.get(k, k): value for k, value in result[key].items()}
    if any(f"{name}_state_dict" in result for name in ("actor", "student")):
        result.setdefault("iter", 0)
        result.setdefault("infos", None)
    return result


# ------------------------------------------------------------------ reading


def _safe_globals() -> list[tuple[Any, str]]:
    """NumPy's numbers and arrays, which clients put into `infos`, by stand-ins that run nothing of NumPy."""
    names = {f"{module}.{name}": found for (module, name), found in STAND_INS.items() if "numpy" in module}
    names |= {name.replace("numpy.core", "numpy._core"): found for name, found in names.items()}
    return [(found, name) for name, found in names.items()]


def _resolved(value: Any) -> Any:
    """The same with the stand-ins replaced by their arrays."""
    if isinstance(value, Array):
        return value.value
    if isinstance(value, Mapping):
        return {key: _resolved(part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_resolved(part) for part in value)
    return value


# ------------------------------------------------------------------ before 4.0


def _split_policy(checkpoint: dict[str, Any]) -> None:
    """`model_state_dict` as the models that it consists of, in place."""
    policy: Mapping[str, Tensor] = checkpoint.pop("model_state_dict")
    heads = {key.partition(".")[0] for key in policy}
    parts = {
        name: _parts(name) for name in (("student", "teacher") if "student" in heads else ("actor", "critic"))
    }
    owners = {old: name for name, names in parts.items() for old in names}
    if unknown := sorted(heads - owners.keys()):
        raise CheckpointError(
            f"its model_state_dict holds '{unknown[0]}', which no policy class of RSL-RL has; known: "
            f"{', '.join(owners)}.{did_you_mean(unknown[0], owners)}"
        )
    new_names: dict[str, tuple[str, str]] = {}
    models: dict[str, Model] = {}
    for name, names in parts.items():
        models[name] = {}
        for old, new in names.items():
            for key in policy:
                head, dot, rest = key.partition(".")
                if head == old:
                    models[name][new + dot + rest] = policy[key]
                    new_names[key] = (name, new + dot + rest)
    for key, position in _NORMALIZERS.items():
        statistics = checkpoint.pop(key, None)
        if statistics:
            name = list(parts)[position]
            own = {f"obs_normalizer.{k}": value for k, value in statistics.items()}
            models[name] = {**own, **models[name]}
    for name, model in models.items():
        if model:
            checkpoint[f"{name}_state_dict"] = model
    if checkpoint.get("optimizer_state_dict"):
        trained = ["student"] if "student" in parts else list(parts)
        wanted = [(name, key) for name in trained for key in models[name] if _is_parameter(key)]
        before = [new_names[key] for key in policy if _is_parameter(key)]
        _reorder_optimizer(checkpoint, before, wanted)


def _parts(name: str) -> dict[str, str]:
    """Parts of a policy, and of the model `name` that replaced them, in the order of its parameters."""
    noise = _NOISE if name in ("actor", "student") else {}
    parts = {f"{name}_obs_normalizer": "obs_normalizer", **noise, name: "mlp"}
    return {**parts, f"memory_{name[0]}": "rnn", f"{name}_cnns": "cnns"}


def _is_parameter(key: str) -> bool:
    return key.rpartition(".")[2] not in _STATISTICS


def _reorder_optimizer(checkpoint: dict[str, Any], before: list[Any], wanted: list[Any]) -> None:
    """The optimiser's state for parameters in the order `wanted`, where it was in the order `before`."""
    state = checkpoint["optimizer_state_dict"]
    groups = state["param_groups"]
    places = [place for group in groups for place in group["params"]]
    moments: dict[int, Any] = {}
    if len(groups) == 1 and len(places) == len(before):
        place = dict(zip(before, places, strict=True))
        found = ((i, state["state"].get(place[name])) for i, name in enumerate(wanted))
        moments = {i: own for i, own in found if own is not None}
    else:
        warnings.warn(
            f"the checkpoint's optimiser has {len(places)} parameters and its networks {len(before)}: its "
            "moments are left out and begin anew.",
            SurefootWarning,
            stacklevel=4,
        )
    group = {**groups[0], "params": list(range(len(wanted)))}
    checkpoint["optimizer_state_dict"] = {"state": moments, "param_groups": [group]}


# ------------------------------------------------------------------ whether it fits


def part(checkpoint: Mapping[str, Any], key: str) -> Any:
    """An entry of a checkpoint in the keys of 5.5.1.

    Raises:
        MissingPartError: There is none (a KeyError, as in RSL-RL).
    """
    if key not in checkpoint:
        raise MissingPartError(
            f"the checkpoint lacks '{key}'; it has {', '.join(map(str, checkpoint))}. load_cfg says which "
            "parts are loaded."
        )
    return checkpoint[key]


def check_fits(state: Mapping[str, Tensor], module: nn.Module, what: str, strict: bool = True) -> Model:
    """`state` as `module.load_state_dict` can take it.

    A deviation of the actions is left out where the module does not sample, as a teacher made from an actor.

    Args:
        state: In the keys of 5.5.1.
        module: That it is for.
        what: Its name, for errors.
        strict: Refuse names that are only on one side.

    Raises:
        MisfitError: Naming the layer, with both shapes (a RuntimeError, as in PyTorch); nothing has been
            loaded then.
    """
    own = module.state_dict()
    samples = any(key.startswith("distribution.") for key in own)
    state = {key: x for key, x in state.items() if samples or not key.startswith("distribution.")}
    if strict:
        for key in own:
            if key not in state:
                raise MisfitError(f"{what}: the checkpoint lacks the layer '{key}'.{_hint(key, state)}")
        for key in state:
            if key not in own:
                raise MisfitError(
                    f"{what}: the checkpoint holds the layer '{key}', which is not built here."
                    f"{_hint(key, own)}"
                )
    for key, value in own.items():
        if key not in state:
            continue
        if not isinstance(state[key], Tensor):
            raise MisfitError(f"{what}: the layer '{key}' is a {type(state[key]).__name__}, no tensor.")
        if state[key].shape != value.shape:
            raise MisfitError(
                f"{what}: the layer '{key}' has the shape {tuple(state[key].shape)} in the checkpoint and "
                f"{tuple(value.shape)} here; use the configuration and the observations it was made with."
            )
    return {key: x for key, x in state.items() if strict or key in own}


def _hint(key: str, others: Mapping[str, Any]) -> str:
    part = key.partition(".")[0]
    settings = {"obs_normalizer": "obs_normalization", "rnn": "class_name RNNModel and rnn_type"}
    if part in settings and not any(other.startswith(part) for other in others):
        return f" The two differ in {settings[part]}."
    if part == "distribution":
        return " The two differ in distribution_cfg."
    return " The two differ in their configuration."
