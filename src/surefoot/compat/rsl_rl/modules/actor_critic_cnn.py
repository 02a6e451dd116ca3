"""`ActorCriticCNN` of RSL-RL 3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from surefoot.compat.rsl_rl.models.cnn_model import CNNModel
from surefoot.compat.rsl_rl.models.mlp_model import MLPModel, Observations, group_shapes
from surefoot.compat.rsl_rl.modules.actor_critic import ActorCriticPair
from surefoot.compat.rsl_rl.modules.policy_pair import Groups, noise, observations, warn_of_unknown
from surefoot.errors import ConfigError


class ActorCriticCNN(ActorCriticPair):
    """Convolutions before the perceptron of the model that reads images; arguments as for `ActorCritic`.

    Args:
        actor_cnn_cfg, critic_cnn_cfg: `cnn_cfg` of the models.

    Raises:
        ConfigError: neither model reads an image.
    """

    def __init__(
        self,
        obs: Observations,
        obs_groups: Groups,
        num_actions: int,
        *,
        actor_obs_normalization: bool = False,
        critic_obs_normalization: bool = False,
        actor_hidden_dims: Sequence[int] = (256, 256, 256),
        critic_hidden_dims: Sequence[int] = (256, 256, 256),
        actor_cnn_cfg: Mapping[str, Any] | None = None,
        critic_cnn_cfg: Mapping[str, Any] | None = None,
        activation: str = "elu",
        init_noise_std: float = 1.0,
        noise_std_type: str = "scalar",
        state_dependent_std: bool = False,
        **unknown: Any,
    ) -> None:
        rows, groups = observations(obs, obs_groups, num_actions, unknown, self.names)
        warn_of_unknown(ActorCriticCNN, unknown)
        sees = {
            name: any(len(shape) == 4 for shape in group_shapes(rows, groups, name).values())
            for name in self.names
        }
        if not any(sees.values()):
            raise ConfigError("no observation group is an image [N, C, H, W]; use ActorCritic.")

        def model(name: str, output_dim: int, cnn_cfg: Mapping[str, Any] | None, **kwargs: Any) -> MLPModel:
            if sees[name]:
                return CNNModel(
                    rows, groups, name, output_dim, activation=activation, cnn_cfg=cnn_cfg, **kwargs
                )
            return MLPModel(rows, groups, name, output_dim, activation=activation, **kwargs)

        actor = model(
            "actor",
            num_actions,
            actor_cnn_cfg,
            hidden_dims=actor_hidden_dims,
            obs_normalization=actor_obs_normalization,
            distribution_cfg=noise(init_noise_std, noise_std_type, state_dependent_std),
        )
        critic = model(
            "critic",
            1,
            critic_cnn_cfg,
            hidden_dims=critic_hidden_dims,
            obs_normalization=critic_obs_normalization,
        )
        super().__init__(actor, critic)
