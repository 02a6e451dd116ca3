"""ActorCritic: raw observations → inputs (concatenate, normalise) → encode → head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from surefoot.errors import ConfigError
from surefoot.networks.config import ActorConfig, CriticConfig
from surefoot.networks.distributions import ActionMap, GaussianHead, at_least_float32, make_head
from surefoot.networks.encoders import init_linear, make_mlp
from surefoot.networks.inputs import InputPipeline, Inputs
from surefoot.networks.normalizers import ValueNormalizer
from surefoot.types import Distribution, EnvSpec, Observations, PolicyOutput


class ActorCritic(nn.Module):
    """A policy and a value function.

    Args:
        spec: Spaces of the environment.
        actor, critic: Configurations of the two networks.
        obs_groups: Which observation groups feed `actor` and `critic`; default as in `InputPipeline`.
        network: `separate` networks, or `shared`: one trunk (the actor's configuration) with two heads.

    Raises:
        ConfigError: a group that does not exist, a space that does not fit, a combination that has no
        meaning.
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
        self.is_shared = network == "shared"
        configs = {"actor": actor, "critic": critic}
        self.inputs = InputPipeline(spec, configs, obs_groups or {}, self.is_shared, actor.mirror)
        self.mirror, sizes = self.inputs.mirror, self.inputs.sizes

        self.actor_encoder = make_mlp(sizes["actor"], actor)
        self.critic_encoder = None if self.is_shared else make_mlp(sizes["critic"], critic)
        num_features = [actor.hidden_dims, actor.hidden_dims if self.is_shared else critic.hidden_dims]
        widths = [dims[-1] if dims else sizes[n] for dims, n in zip(num_features, sizes, strict=True)]
        self.num_actor_features, self.num_critic_features = widths
        self.action_head = make_head(spec.action_space, widths[0], actor.distribution, actor.last_activation)
        if self.mirror and not isinstance(self.action_head, GaussianHead):
            raise ConfigError(f"actor.mirror needs a Box action space, not {spec.action_space}.")
        self.value_head = nn.Linear(widths[1], 1)
        init_linear(self.action_head.linear, actor, actor.last_layer_gain)
        init_linear(self.value_head, critic, critic.last_layer_gain)
        self.value_normalizer = ValueNormalizer() if critic.value_normalization else None
        self.to_env = ActionMap(spec.action_space, actor.distribution.class_name == "SquashedGaussian")

    @property
    def groups(self) -> dict[str, list[str]]:
        """Observation groups that actor and critic read."""
        return self.inputs.groups

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

    def action_distribution(self, inputs: Inputs) -> Distribution:
        return self._act_on(inputs)[0]

    def value_of(self, inputs: Inputs) -> Tensor:
        encoder = self.actor_encoder if self.critic_encoder is None else self.critic_encoder
        return self._value_on(encoder(inputs[self.inputs.critic_name]))

    def evaluate(
        self, inputs: Inputs, actions: Tensor, generator: torch.Generator | None = None
    ) -> PolicyOutput:
        """One forward pass for policy and value; `generator` serves entropies that need a sample."""
        distribution, features = self._act_on(inputs)
        if self.critic_encoder is None:
            critic_features = features
        else:
            critic_features = self.critic_encoder(inputs[self.inputs.critic_name])
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

    # ------------------------------------------------------------------ parts

    def _value_on(self, features: Tensor) -> Tensor:
        value = at_least_float32(self.value_head(features)).squeeze(-1)
        return value if self.value_normalizer is None else self.value_normalizer.denormalize(value)

    def _act_on(self, inputs: Inputs) -> tuple[Distribution, Tensor]:
        if self.mirror is None:
            features = self.actor_encoder(inputs["actor"])
            return self.action_head(features), features
        # two calls: rounding depends on a row's place in the batch, and the symmetry is to be exact
        features = self.actor_encoder(inputs["actor"])
        mean = self.action_head(features).params["mean"]
        mirrored = self.action_head(self.actor_encoder(inputs["actor_mirror"])).params["mean"]
        mean = 0.5 * (mean + self.mirror.mirror_actions(mirrored))
        assert isinstance(self.action_head, GaussianHead)
        std = self.action_head.std
        std = 0.5 * (std + std[self.mirror.actions[0]])
        return self.action_head.rebuild({"mean": mean, "std": std}), features
