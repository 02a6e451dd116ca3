"""Surefoot's PPO, fed by RSL-RL's storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.extension import Extension
from surefoot.algorithm.ppo import PPO
from surefoot.algorithm.state import collect_state
from surefoot.compat.rsl_rl.algorithms.policy import ModelPair
from surefoot.compat.rsl_rl.models.mlp_model import MLPModel
from surefoot.compat.rsl_rl.storage import RolloutStorage
from surefoot.compat.rsl_rl.storage.rollout import Rollout
from surefoot.types import EnvSpec


class Engine(PPO):
    """PPO whose rollout brings its values along, from a critic that ran while acting."""

    storage: Rollout

    def __init__(
        self,
        actor: MLPModel,
        critic: MLPModel,
        storage: RolloutStorage,
        config: PPOConfig,
        extensions: Sequence[Extension] = (),
        step_dt: float | None = None,
        seed: int = 1,
    ) -> None:
        spec = spec_of(storage, config.gamma, step_dt)
        super().__init__(
            ModelPair(actor, critic, spec),  # pyright: ignore[reportArgumentType] - what PPO calls of it
            spec,
            config,
            num_steps_per_env=storage.num_transitions_per_env,
            extensions=extensions,
            seed=seed,
            storage=storage.rollout,
        )
        self.storage.keep_terminal = any(e.observation_groups() for e in self._each_extension())

    def _values(self) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        return self.storage.values, self.storage.bootstrap, {}

    def set_config(self, config: PPOConfig) -> None:
        """Take other numbers than those it was made with."""
        self.config = self.optimizer.config = config
        self.num_batches = num_batches(config, self.storage)

    def state_beside_models(self) -> dict[str, Any]:
        """What RSL-RL's checkpoints do not hold: generators, counters, extensions."""
        state = collect_state(self)
        own = ("policy.", "optimizer.")
        return {
            "iteration": self.iteration,
            "tensors": {k: x for k, x in state["tensors"].items() if not k.startswith(own)},
            "optimizers": {k: x for k, x in state["optimizers"].items() if not k.startswith(own)},
            "generators": state["generators"],
        }


def num_batches(config: PPOConfig, rollout: Rollout) -> int:
    """Mini-batches per epoch: no more than there are rows."""
    num_rows = rollout.num_envs * rollout.num_transitions_per_env
    return min(config.num_batches(num_rows), num_rows)


def spec_of(storage: RolloutStorage, gamma: float, step_dt: float | None) -> EnvSpec:
    """What the storage says of the environment: RSL-RL's spaces have no bounds."""
    spaces: dict[str, gymnasium.Space[Any]] = {
        group: gymnasium.spaces.Box(-np.inf, np.inf, tuple(x.shape[2:]))
        for group, x in storage.rollout.observations.items()
    }
    return EnvSpec(
        observation_spaces=spaces,
        action_space=gymnasium.spaces.Box(-np.inf, np.inf, tuple(storage.actions_shape)),
        num_envs=storage.num_envs,
        gamma=gamma,
        step_dt=step_dt,
        device=torch.device(storage.device),
    )
