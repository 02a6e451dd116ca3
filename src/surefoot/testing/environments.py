"""Tiny environments with known answers.

Each VecEnv here is honest about time limits, has its own buffers unless that is its point, and has state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from surefoot.types import MirrorMap, Step

Groups = Mapping[str, int] | tuple[str, ...]


class TinyEnv(ABC):
    """The episode's frame: a goal drawn at each reset, a time limit, final observations, state.

    Args:
        num_envs: N.
        episode_length: Steps until the time limit.
        groups: Observation groups and their dimensions; names alone have `dim` dimensions each.
        dim: Dimensions of each group: the goal, then the elapsed share of the episode, then zeros.
        num_goals: Numbers in the goal.
        seed: Of the first `reset()`.
    """

    step_dt: float | None = None
    mirror: MirrorMap | None = None

    def __init__(
        self,
        num_envs: int = 4,
        episode_length: int = 10,
        groups: Groups = ("policy",),
        dim: int = 3,
        num_goals: int = 1,
        seed: int = 0,
    ) -> None:
        self.num_envs = num_envs
        self.device = torch.device("cpu")
        self.max_episode_length: int | Tensor | None = episode_length
        dims = groups if isinstance(groups, Mapping) else dict.fromkeys(groups, dim)
        self.dims = {name: max(int(size), num_goals) for name, size in dims.items()}
        self.observation_spaces: dict[str, gymnasium.Space[Any]] = {
            name: spaces.Box(-np.inf, np.inf, (size,)) for name, size in self.dims.items()
        }
        self.action_space: gymnasium.Space[Any] = spaces.Box(-1.0, 1.0, (1,))
        self.goal = torch.zeros(num_envs, num_goals)
        self.elapsed = torch.zeros(num_envs, dtype=torch.int64)
        self.generator = torch.Generator().manual_seed(seed)

    def reset(self, seed: int | None = None, mask: Tensor | None = None) -> dict[str, Tensor]:
        if seed is not None:
            self.generator.manual_seed(seed)
        self._restart(torch.ones(self.num_envs, dtype=torch.bool) if mask is None else mask.bool())
        return self.observe()

    def step(self, actions: Tensor) -> Step:
        rewards, terminated = self.judge(actions)
        self.elapsed += 1
        truncated = self.elapsed >= torch.as_tensor(self.max_episode_length)
        final = self.observe()
        self._restart(terminated | truncated)
        return Step(self.observe(), rewards, terminated, truncated, final_observations=final)

    def close(self) -> None:
        self.goal.zero_()

    def state_dict(self) -> dict[str, Any]:
        return {
            "goal": self.goal.clone(),
            "elapsed": self.elapsed.clone(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.goal, self.elapsed = state["goal"].clone(), state["elapsed"].clone()
        self.generator.set_state(state["generator"])

    def observe(self) -> dict[str, Tensor]:
        """Each group [N, D]: the goal, the elapsed share of the episode, zeros."""
        share = (self.elapsed / torch.as_tensor(self.max_episode_length)).unsqueeze(-1)
        return {
            name: torch.cat([self.goal, share, torch.zeros(self.num_envs, size)], -1)[:, :size]
            for name, size in self.dims.items()
        }

    @abstractmethod
    def judge(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Rewards [N] and terminations [N] of the actions."""

    @abstractmethod
    def draw_goals(self) -> Tensor:
        """New goals for all environments, [N, G]."""

    def _restart(self, rows: Tensor) -> None:
        # Drawn for all rows, so that the sequence does not depend on which ones ended.
        if rows.any():
            self.goal = torch.where(rows.unsqueeze(-1), self.draw_goals(), self.goal)
            self.elapsed = torch.where(rows, 0, self.elapsed)


class ConstantEnv(TinyEnv):
    """Reward 1 at every step. V is 1/(1-γ) with a time limit; with `ends="terminated"` it counts down."""

    def __init__(
        self, num_envs: int = 4, episode_length: int = 10, ends: str = "truncated", **kwargs: Any
    ) -> None:
        super().__init__(num_envs, episode_length, **kwargs)
        self.ends = ends

    def judge(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        is_last = self.elapsed + 1 >= torch.as_tensor(self.max_episode_length)
        return torch.ones(self.num_envs), is_last & torch.tensor(self.ends == "terminated")

    def draw_goals(self) -> Tensor:
        return torch.zeros_like(self.goal)


class TargetEnv(TinyEnv):
    """Continuous: reward -|action - goal| summed over `num_actions`; the goal is observed; best 0."""

    def __init__(
        self, num_envs: int = 4, episode_length: int = 10, num_actions: int = 1, **kwargs: Any
    ) -> None:
        super().__init__(num_envs, episode_length, num_goals=num_actions, **kwargs)
        self.action_space = spaces.Box(-1.0, 1.0, (num_actions,))

    def judge(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        return -(actions - self.goal).abs().sum(-1), torch.zeros(self.num_envs, dtype=torch.bool)

    def draw_goals(self) -> Tensor:
        return torch.rand(self.goal.shape, generator=self.generator) * 1.6 - 0.8


class DiscreteTargetEnv(TinyEnv):
    """Discrete: reward 1 for the one action that the observation marks (one-hot), 0 for the others."""

    def __init__(
        self, num_envs: int = 4, episode_length: int = 10, num_actions: int = 3, start: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(num_envs, episode_length, num_goals=num_actions, **kwargs)
        self.action_space = spaces.Discrete(num_actions, start=start)
        self.start = start

    def judge(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        hit = self.goal.argmax(-1) == actions - self.start
        return hit.float(), torch.zeros(self.num_envs, dtype=torch.bool)

    def draw_goals(self) -> Tensor:
        n = self.goal.shape[-1]
        choice = torch.randint(n, (self.num_envs,), generator=self.generator)
        return torch.nn.functional.one_hot(choice, n).float()


class ReusedBufferEnv:
    """A TargetEnv that hands out the same tensors at every step, as simulators do, and zeroes its actions."""

    def __init__(self, num_envs: int = 4, episode_length: int = 10, **kwargs: Any) -> None:
        self._env = TargetEnv(num_envs, episode_length, **kwargs)
        self.num_envs, self.device = num_envs, self._env.device
        self.observation_spaces, self.action_space = self._env.observation_spaces, self._env.action_space
        self.max_episode_length = self._env.max_episode_length
        self.step_dt: float | None = None
        self.mirror: MirrorMap | None = None
        self._buffers: dict[str, Tensor] = {}

    def reset(self, seed: int | None = None, mask: Tensor | None = None) -> dict[str, Tensor]:
        return self._reuse("obs", self._env.reset(seed, mask))

    def step(self, actions: Tensor) -> Step:
        step = self._env.step(actions)
        actions.mul_(0.0)
        assert step.final_observations is not None
        flags = {"rewards": step.rewards, "terminated": step.terminated, "truncated": step.truncated}
        return Step(
            self._reuse("obs", step.observations),
            *self._reuse("flags", flags).values(),
            final_observations=self._reuse("final", step.final_observations),
        )

    def close(self) -> None:
        """Nothing to release."""

    def _reuse(self, kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        for name, x in tensors.items():
            self._buffers.setdefault(f"{kind}.{name}", x.clone()).copy_(x)
        return {name: self._buffers[f"{kind}.{name}"] for name in tensors}
