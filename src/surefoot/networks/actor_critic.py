"""ActorCritic: raw observations → inputs (concatenate, normalise) → encode → remember → think → head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from surefoot.errors import ConfigError, EnvContractError
from surefoot.networks.action_map import ActionMap
from surefoot.networks.body import Body, BodyOutput, MakeNetwork, make_bodies
from surefoot.networks.config import ActorConfig, CriticConfig
from surefoot.networks.encoders import at_least_float32, init_linear
from surefoot.networks.heads import GaussianHead, make_head
from surefoot.networks.inputs import MASK_GROUP, InputPipeline, Inputs
from surefoot.networks.memory import forget
from surefoot.networks.mirror import even
from surefoot.networks.normalizers import ValueNormalizer
from surefoot.types import Distribution, EnvSpec, Hidden, Observations, PolicyOutput


class ActorCritic(nn.Module):
    """A policy and a value function.

    Args:
        spec: Spaces of the environment.
        actor, critic: Configurations of the two networks.
        obs_groups: Which observation groups feed `actor` and `critic`; default as in `InputPipeline`.
        network: `separate` networks, or `shared`: one trunk (the actor's configuration) with two heads.
        own_networks: The classes behind `actor.class_name` and `critic.class_name`.

    Attributes:
        actor, critic: Bodies; `critic` is None where the trunk is shared.

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
        own_networks: Mapping[str, MakeNetwork] | None = None,
    ) -> None:
        super().__init__()
        actor, critic = actor or ActorConfig(), critic or CriticConfig()
        configs = {"actor": actor, "critic": critic}
        is_shared, is_masked = network == "shared", MASK_GROUP in spec.observation_spaces
        self.inputs = InputPipeline(spec, configs, obs_groups or {}, is_shared, actor.mirror, is_masked)
        self.mirror = self.inputs.mirror
        self.estimator = actor.estimator
        self.actor, self.critic = make_bodies(spec, self.inputs, actor, critic, is_shared, own_networks or {})
        self.shares_images = bool(self.inputs.images["actor"]) and critic.cnn == "shared"
        self.num_actor_features = self.actor.num_features
        self.action_head = make_head(
            spec.action_space, self.num_actor_features, actor.distribution, actor.last_activation
        )
        if is_masked:
            self.action_head.check_mask(spec.observation_spaces[MASK_GROUP])
        if self.mirror and not isinstance(self.action_head, GaussianHead):
            raise ConfigError(
                "actor.mirror needs a Box action space and a Gaussian with one deviation per action."
            )
        self.value_head = nn.Linear(self.value_body.num_features, 1)
        init_linear(self.action_head.linear, actor, actor.last_layer_gain)
        init_linear(self.value_head, critic, critic.last_layer_gain)
        self.value_normalizer = ValueNormalizer() if critic.value_normalization else None
        self.to_env = ActionMap(spec.action_space, actor.distribution.class_name)
        self._hidden: Hidden = {}

    @property
    def groups(self) -> dict[str, list[str]]:
        """Observation groups that actor and critic read."""
        return self.inputs.groups

    @property
    def value_body(self) -> Body:
        """The network under the value head."""
        return self.actor if self.critic is None else self.critic

    @property
    def is_recurrent(self) -> bool:
        return bool(self.actor.state_size or self.value_body.state_size)

    def initial_hidden(self, num_envs: int) -> dict[str, Tensor]:
        """The memory of episodes that begin, [N, K] by network; empty for a feed-forward policy."""
        bodies = {"actor": self.actor, "critic": self.critic}
        sizes = {name: body.state_size for name, body in bodies.items() if body is not None}
        return {name: self.inputs.like.new_zeros(num_envs, k) for name, k in sizes.items() if k}

    def set_mixed_precision(self, enabled: bool) -> None:
        """Run the bodies in bfloat16; heads, losses and everything else stay float32."""
        self.actor.mixed_precision = self.value_body.mixed_precision = enabled

    # ------------------------------------------------------------------ for users: raw observations in

    @torch.no_grad()
    def act(
        self, observations: Observations, deterministic: bool = True, generator: torch.Generator | None = None
    ) -> Tensor:
        """Actions for the environment [N, ...]. Only the memory of a recurrent policy changes; `reset` it
        where episodes end.
        """
        inputs = self.inputs(observations, ("actor",))
        num_envs = inputs["actor"].shape[0]
        if self.actor.state_size and not self._hidden:
            self._hidden = self.initial_hidden(num_envs)
        if self._hidden and self._hidden["actor"].shape[0] != num_envs:
            raise EnvContractError(
                f"the policy remembers {self._hidden['actor'].shape[0]} environments and is asked to act in "
                f"{num_envs}; call reset() first."
            )
        distribution, self._hidden = self.advance(inputs, self._hidden)
        raw = distribution.mode() if deterministic else distribution.sample(generator)
        return self.to_env(raw)

    def reset(self, dones: Tensor | None = None) -> None:
        """Forget the memory of the environments where `dones` [N] is set; of all without it."""
        self._hidden = {} if dones is None else forget(self._hidden, dones)

    def forward(
        self, observations: Observations, actions: Tensor, hidden: Hidden | None = None
    ) -> PolicyOutput:
        """Everything about raw actions [..., A] taken at raw observations [M | L, B, ...]."""
        return self.evaluate(self.inputs(observations), actions, hidden=hidden)

    def value(self, observations: Observations, hidden: Hidden | None = None) -> Tensor:
        """V [...] at raw observations."""
        return self.value_of(self.inputs(observations, ("critic",)), hidden)

    # ------------------------------------------------------------------ for PPO: normalised inputs in

    def advance(self, inputs: Inputs, hidden: Hidden) -> tuple[Distribution, Hidden]:
        """One step of the actor: the distribution over actions, and all memory after it."""
        distribution, out = self._act_on(inputs, hidden)
        return distribution, hidden if out.state is None else {**hidden, "actor": out.state}

    def action_distribution(self, inputs: Inputs, hidden: Hidden | None = None) -> Distribution:
        return self._act_on(inputs, hidden)[0]

    def value_of(self, inputs: Inputs, hidden: Hidden | None = None) -> Tensor:
        name = "actor" if self.critic is None else "critic"
        return self.value_on(self.value_body(inputs, (hidden or {}).get(name)).features)

    def evaluate(
        self,
        inputs: Inputs,
        actions: Tensor,
        generator: torch.Generator | None = None,
        hidden: Hidden | None = None,
    ) -> PolicyOutput:
        """One forward pass for policy and value; `generator` serves entropies that need a sample."""
        distribution, out = self._act_on(inputs, hidden)
        critic_features = out.features
        if self.critic is not None:
            critic_features = self.critic(inputs, (hidden or {}).get("critic")).features
        return PolicyOutput(
            distribution=distribution,
            log_prob=distribution.log_prob(actions),
            entropy=distribution.entropy(generator),
            value=self.value_on(critic_features),
            actor_features=out.features,
            critic_features=critic_features,
            estimate=out.estimate,
        )

    def value_on(self, features: Tensor) -> Tensor:
        """V [...] from the critic's features [..., F]."""
        value = at_least_float32(self.value_head(features)).squeeze(-1)
        return value if self.value_normalizer is None else self.value_normalizer.denormalize(value)

    def segments(self) -> dict[str, list[nn.Parameter]]:
        """Parameters by network: `actor` and `critic`, or all under `actor` where they share some."""
        if self.critic is None or self.shares_images:
            return {"actor": [*self.parameters()]}
        critic = [*self.critic.parameters(), *self.value_head.parameters()]
        ids = {id(p) for p in critic}
        return {"actor": [p for p in self.parameters() if id(p) not in ids], "critic": critic}

    def project(self) -> None:
        """Bring bounded parameters back into their range; after each optimiser step."""
        self.action_head.project()

    # ------------------------------------------------------------------ parts

    def _act_on(self, inputs: Inputs, hidden: Hidden | None) -> tuple[Distribution, BodyOutput]:
        out = self.actor(inputs, (hidden or {}).get("actor"))
        if self.mirror is None:
            return self.action_head(out.features, inputs.get(MASK_GROUP)), out
        # two calls: rounding depends on a row's place in the batch, and the symmetry is to be exact
        mirrored = self.actor({**inputs, "actor": inputs["actor_mirror"]})
        means = [self.action_head(o.features).params["mean"] for o in (out, mirrored)]
        mean = 0.5 * (means[0] + self.mirror.mirror_actions(means[1]))
        assert isinstance(self.action_head, GaussianHead)
        return self.action_head.rebuild({"mean": mean, "std": even(self.action_head.std, self.mirror)}), out
