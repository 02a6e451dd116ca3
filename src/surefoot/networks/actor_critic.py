"""ActorCritic: raw observations → inputs (concatenate, normalise) → encode → head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from surefoot.errors import ConfigError, did_you_mean
from surefoot.networks.config import ActorConfig, CriticConfig, NetworkConfig
from surefoot.networks.distributions import ActionMap, at_least_float32, make_head
from surefoot.networks.encoders import as_vector, init_linear, make_mlp, vector_size
from surefoot.networks.normalizers import RunningNormalizer, ValueNormalizer
from surefoot.types import Distribution, EnvSpec, MirrorMap, Observations, PolicyOutput

Inputs = dict[str, Tensor]
"""Network inputs by name, [..., D]: `actor`, `critic` (absent where it equals `actor`), `actor_mirror`."""


class ActorCritic(nn.Module):
    """A policy and a value function.

    Args:
        spec: Spaces of the environment.
        actor, critic: Configurations of the two networks.
        obs_groups: Which observation groups feed `actor` and `critic`; default: the group of that name, else
            `policy`, else all groups.
        network: `separate` networks, or `shared`: one trunk (the actor's configuration) with two heads.

    Raises:
        ConfigError: a group that does not exist, a space that does not fit, a combination that has no meaning.
    """

    def __init__(
        self,
        spec: EnvSpec,
        actor: ActorConfig | None = None,
        critic: CriticConfig | None = None,
        obs_groups: Mapping[str, Sequence[str]] | None = None,
        network: Literal["separate", "shared"] = "separate",
    ) -> None:
        super().__init__()
        actor, critic = actor or ActorConfig(), critic or CriticConfig()
        self.spaces = dict(spec.observation_spaces)
        self.groups = resolve_groups(self.spaces, obs_groups or {})
        self.is_shared = network == "shared"
        if self.is_shared and self.groups["critic"] != self.groups["actor"]:
            raise ConfigError(
                f"network 'shared' needs the same observation groups for actor {self.groups['actor']} and critic "
                f"{self.groups['critic']}; use network 'separate'."
            )
        sizes = {name: self._input_size(name) for name in ("actor", "critic")}
        self.normalizers = nn.ModuleDict()
        self._add_normalizer("actor", actor, sizes["actor"])
        self.critic_input = "critic"
        if self.is_shared or (
            self.groups["critic"] == self.groups["actor"]
            and (critic.obs_normalization, critic.obs_clip) == (actor.obs_normalization, actor.obs_clip)
        ):
            self.critic_input = "actor"
        else:
            self._add_normalizer("critic", critic, sizes["critic"])
        self.mirror = _mirror_of(spec, actor, self.groups["actor"]) if actor.mirror else None

        self.actor_encoder = make_mlp(sizes["actor"], actor)
        self.critic_encoder = None if self.is_shared else make_mlp(sizes["critic"], critic)
        num_features = [actor.hidden_dims, actor.hidden_dims if self.is_shared else critic.hidden_dims]
        widths = [dims[-1] if dims else sizes[n] for dims, n in zip(num_features, sizes, strict=True)]
        self.num_actor_features, self.num_critic_features = widths
        self.action_head = make_head(spec.action_space, widths[0], actor.distribution, actor.last_activation)
        if self.mirror and not hasattr(self.action_head, "std_param"):
            raise ConfigError(f"actor.mirror needs a Box action space, not {spec.action_space}.")
        self.value_head = nn.Linear(widths[1], 1)
        init_linear(self.action_head.linear, actor, actor.last_layer_gain)
        init_linear(self.value_head, critic, critic.last_layer_gain)
        self.value_normalizer = ValueNormalizer() if critic.value_normalization else None
        self.to_env = ActionMap(spec.action_space, actor.distribution.class_name == "SquashedGaussian")

    # ------------------------------------------------------------------ for users: raw observations in

    @torch.no_grad()
    def act(
        self, observations: Observations, deterministic: bool = True, generator: torch.Generator | None = None
    ) -> Tensor:
        """Actions for the environment [N, ...]; changes no state."""
        distribution = self.action_distribution(self.inputs(observations, ("actor",)))
        raw = distribution.mode() if deterministic else distribution.sample(generator)
        return self.to_env(raw)

    def forward(self, observations: Observations, actions: Tensor) -> PolicyOutput:
        """Everything about raw actions [..., A] taken at raw observations."""
        return self.evaluate(self.inputs(observations), actions)

    def value(self, observations: Observations) -> Tensor:
        """V [...] at raw observations."""
        return self.value_of(self.inputs(observations, ("critic",)))

    def reset(self, dones: Tensor | None = None) -> None:
        """Forget the memory of the environments where `dones` [N] is set; a feed-forward policy has none."""

    # ------------------------------------------------------------------ for PPO: normalised inputs in

    def inputs(self, observations: Observations, sets: Sequence[str] = ("actor", "critic")) -> Inputs:
        """Concatenate and normalise the groups that the named networks read."""
        inputs: Inputs = {}
        for name in dict.fromkeys(self.critic_input if s == "critic" else s for s in sets):
            inputs[name] = self._normalize(name, self.concatenate(name, observations))
        if self.mirror and "actor" in sets:
            mirrored = self.mirror.mirror_observations({g: observations[g] for g in self.groups["actor"]})
            inputs["actor_mirror"] = self._normalize("actor", self.concatenate("actor", mirrored))
        return inputs

    def concatenate(self, name: str, observations: Observations) -> Tensor:
        """The groups of one network as a vector [..., D], not normalised."""
        vectors = [as_vector(self.spaces[g], observations[g]) for g in self.groups[name]]
        return vectors[0] if len(vectors) == 1 else torch.cat(vectors, -1)

    def action_distribution(self, inputs: Inputs) -> Distribution:
        return self._act_on(inputs)[0]

    def value_of(self, inputs: Inputs) -> Tensor:
        encoder = self.actor_encoder if self.critic_encoder is None else self.critic_encoder
        return self._value_on(encoder(inputs[self.critic_input]))

    def evaluate(self, inputs: Inputs, actions: Tensor, generator: torch.Generator | None = None) -> PolicyOutput:
        """One forward pass for policy and value; `generator` serves entropies that need a sample."""
        distribution, features = self._act_on(inputs)
        if self.critic_encoder is None:
            critic_features = features
        else:
            critic_features = self.critic_encoder(inputs[self.critic_input])
        return PolicyOutput(
            distribution=distribution,
            log_prob=distribution.log_prob(actions),
            entropy=distribution.entropy(generator),
            value=self._value_on(critic_features),
            actor_features=features,
            critic_features=critic_features,
        )

    def segments(self) -> dict[str, list[nn.Parameter]]:
        """Parameters by network: `actor` and `critic`, or all under `actor` when a trunk is shared."""
        critic = [*self.value_head.parameters()]
        if self.critic_encoder is None:
            return {"actor": [*self.parameters()]}
        critic = [*self.critic_encoder.parameters(), *critic]
        ids = {id(p) for p in critic}
        return {"actor": [p for p in self.parameters() if id(p) not in ids], "critic": critic}

    def project(self) -> None:
        """Bring bounded parameters back into their range; after each optimiser step."""
        self.action_head.project()

    def update_normalizers(self, observations: Observations, mask: Tensor | None = None) -> None:
        """Count raw observations [R, ...] where `mask` [R] is True."""
        for name, normalizer in self._each_normalizer():
            normalizer.update(self.concatenate(name, observations), mask)

    def warm_up_normalizers(self, batches: Sequence[Observations]) -> None:
        """Provisional statistics, in use until the first `update_normalizers`."""
        for name, normalizer in self._each_normalizer():
            normalizer.warm_up([self.concatenate(name, b) for b in batches])

    # ------------------------------------------------------------------ parts

    def _each_normalizer(self) -> Iterator[tuple[str, RunningNormalizer]]:
        for name, normalizer in self.normalizers.items():
            assert isinstance(normalizer, RunningNormalizer)
            yield name, normalizer

    def _add_normalizer(self, name: str, config: NetworkConfig, size: int) -> None:
        if config.obs_normalization:
            self.normalizers[name] = RunningNormalizer(size, config.obs_clip)

    def _normalize(self, name: str, x: Tensor) -> Tensor:
        return self.normalizers[name](x) if name in self.normalizers else x

    def _input_size(self, name: str) -> int:
        return sum(vector_size(self.spaces[g], g) for g in self.groups[name])

    def _value_on(self, features: Tensor) -> Tensor:
        value = at_least_float32(self.value_head(features)).squeeze(-1)
        return value if self.value_normalizer is None else self.value_normalizer.denormalize(value)

    def _act_on(self, inputs: Inputs) -> tuple[Distribution, Tensor]:
        if self.mirror is None:
            features = self.actor_encoder(inputs["actor"])
            return self.action_head(features), features
        both = self.actor_encoder(torch.cat([inputs["actor"], inputs["actor_mirror"]]))
        features = both.chunk(2)[0]
        mean, mirrored = self.action_head(both).params["mean"].chunk(2)
        mean = 0.5 * (mean + self.mirror.mirror_actions(mirrored))
        std = self.action_head.std
        std = 0.5 * (std + std[self.mirror.actions[0]])
        return self.action_head.rebuild({"mean": mean, "std": std}), features


def resolve_groups(spaces: Mapping[str, object], wanted: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Observation groups of actor and critic, as asked for or by the default rule."""
    for name in wanted:
        if name not in ("actor", "critic"):
            raise ConfigError(f"obs_groups.{name}: the sets are 'actor' and 'critic'.{did_you_mean(name, ('actor', 'critic'))}")
    groups = {}
    for name in ("actor", "critic"):
        if name in wanted:
            groups[name] = list(wanted[name])
        elif name in spaces:
            groups[name] = [name]
        elif "policy" in spaces:
            groups[name] = ["policy"]
        else:
            groups[name] = [g for g in spaces if g != "action_mask"]
        if not groups[name]:
            raise ConfigError(f"obs_groups.{name} is empty; the environment has the groups {sorted(spaces)}.")
        for group in groups[name]:
            if group not in spaces:
                raise ConfigError(
                    f"obs_groups.{name} wants the observation group '{group}', which the environment does not give; "
                    f"it has {sorted(spaces)}.{did_you_mean(group, spaces)}"
                )
    return groups


def _mirror_of(spec: EnvSpec, actor: ActorConfig, groups: Sequence[str]) -> MirrorMap:
    if spec.mirror is None:
        raise ConfigError("actor.mirror is true, but the environment declares no mirror map (VecEnv.mirror).")
    if missing := [g for g in groups if g not in spec.mirror.observations]:
        raise ConfigError(f"actor.mirror: the environment's mirror map lacks the observation groups {missing}.")
    return spec.mirror


