"""`ActorCritic` of RSL-RL 1 to 3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from surefoot.compat.rsl_rl.models.mlp_model import MLPModel, Observations
from surefoot.compat.rsl_rl.modules.policy_pair import (
    Groups,
    PolicyPair,
    noise,
    observations,
    warn_of_unknown,
)


class ActorCriticPair(PolicyPair):
    """A policy and its value function."""

    names = ("actor", "critic")

    @property
    def actor_model(self) -> MLPModel:
        return self._models[0]

    @property
    def critic_model(self) -> MLPModel:
        return self._models[1]

    def get_actor_obs(self, obs: Observations) -> Tensor:
        """The vectors that the actor reads [..., D]."""
        return self.actor_model.vectors(obs)

    def get_critic_obs(self, obs: Observations) -> Tensor:
        """The vectors that the critic reads [..., D]."""
        return self.critic_model.vectors(obs)


class ActorCritic(ActorCriticPair):
    """Two multi-layer perceptrons.

    Args:
        obs: Observations of some environments, or the number of the actor's.
        obs_groups: Groups of the sets `policy` (or `actor`) and `critic`, or the number of the critic's
            observations.
        num_actions: A.
        actor_obs_normalization, critic_obs_normalization: Whether observations are normalised.
        actor_hidden_dims, critic_hidden_dims, activation: Of the perceptrons.
        init_noise_std, noise_std_type: `init_std` and `std_type` of the actions' distribution.
        state_dependent_std: Whether the actor's network gives the deviation too.
        **unknown: `num_actor_obs` and `num_critic_obs`; all else has no effect, and a warning says so.
    """

    def __init__(
        self,
        obs: Observations | int | None = None,
        obs_groups: Groups | int | None = None,
        num_actions: int = 0,
        *,
        actor_obs_normalization: bool = False,
        critic_obs_normalization: bool = False,
        actor_hidden_dims: Sequence[int] = (256, 256, 256),
        critic_hidden_dims: Sequence[int] = (256, 256, 256),
        activation: str = "elu",
        init_noise_std: float = 1.0,
        noise_std_type: str = "scalar",
        state_dependent_std: bool = False,
        **unknown: Any,
    ) -> None:
        rows, groups = observations(obs, obs_groups, num_actions, unknown, self.names)
        warn_of_unknown(ActorCritic, unknown)
        actor = MLPModel(
            rows,
            groups,
            "actor",
            num_actions,
            actor_hidden_dims,
            activation,
            actor_obs_normalization,
            noise(init_noise_std, noise_std_type, state_dependent_std),
        )
        critic = MLPModel(rows, groups, "critic", 1, critic_hidden_dims, activation, critic_obs_normalization)
        super().__init__(actor, critic)
