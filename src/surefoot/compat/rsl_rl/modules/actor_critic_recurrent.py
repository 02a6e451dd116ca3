"""`ActorCriticRecurrent` of RSL-RL 1 to 3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from surefoot.compat.rsl_rl.models.mlp_model import Observations
from surefoot.compat.rsl_rl.models.rnn_model import RNNModel
from surefoot.compat.rsl_rl.modules.actor_critic import ActorCriticPair
from surefoot.compat.rsl_rl.modules.policy_pair import (
    Groups,
    memory,
    noise,
    observations,
    warn_of_unknown,
)


class ActorCriticRecurrent(ActorCriticPair):
    """A memory and a perceptron each, `memory_a` and `memory_c`; arguments as for `ActorCritic`.

    Args:
        rnn_type: `lstm` or `gru`.
        rnn_hidden_dim: Size of the memories, once called `rnn_hidden_size`.
        rnn_num_layers: Layers of the memories.
    """

    is_recurrent = True

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
        rnn_type: str = "lstm",
        rnn_hidden_dim: int = 256,
        rnn_num_layers: int = 1,
        **unknown: Any,
    ) -> None:
        rows, groups = observations(obs, obs_groups, num_actions, unknown, self.names)
        rnn = memory(rnn_type, rnn_hidden_dim, rnn_num_layers, unknown)
        warn_of_unknown(ActorCriticRecurrent, unknown)
        actor = RNNModel(
            rows,
            groups,
            "actor",
            num_actions,
            actor_hidden_dims,
            activation,
            actor_obs_normalization,
            noise(init_noise_std, noise_std_type, state_dependent_std),
            **rnn,
        )
        critic = RNNModel(
            rows, groups, "critic", 1, critic_hidden_dims, activation, critic_obs_normalization, **rnn
        )
        super().__init__(actor, critic)
