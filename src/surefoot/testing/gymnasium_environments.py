"""Tiny `gymnasium.Env` classes, where a test is about Gymnasium's own conventions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from surefoot.envs.gymnasium import GymnasiumVecEnv
from surefoot.networks.inputs import MASK_GROUP


class GymTarget(gymnasium.Env[np.ndarray[Any, Any], np.ndarray[Any, Any]]):
    """The continuous target task, with exact state; `step` scales its action array in place."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012 - as Gymnasium does

    def __init__(self, episode_length: int = 10, render_mode: str | None = None) -> None:
        self.episode_length = episode_length
        self.render_mode = render_mode
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), dtype=np.float64)
        self.action_space = spaces.Box(-2.0, 2.0, (1,))
        self.goal, self.elapsed = 0.0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.goal, self.elapsed = float(self.np_random.uniform(-1.5, 1.5)), 0
        return self._observation(), {}

    def step(
        self, action: np.ndarray[Any, Any]
    ) -> tuple[np.ndarray[Any, Any], float, bool, bool, dict[str, Any]]:
        reward = -abs(float(action[0]) - self.goal)
        action *= 2
        self.elapsed += 1
        return self._observation(), reward, False, self.elapsed >= self.episode_length, {}

    def render(self) -> np.ndarray[Any, Any]:
        return np.full((16, 16, 3), int(100 + 50 * self.goal), dtype=np.uint8)

    def state_dict(self) -> dict[str, Any]:
        return {"goal": self.goal, "elapsed": self.elapsed, "rng": self.np_random}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.goal, self.elapsed, self.np_random = state["goal"], state["elapsed"], state["rng"]

    def _observation(self) -> np.ndarray[Any, Any]:
        return np.array([self.goal, self.elapsed / self.episode_length])


class GymConstant(gymnasium.Env[np.ndarray[Any, Any], Any]):
    """Reward 1 until step `episode_length`; observes [episode since seeding, step]."""

    def __init__(self, episode_length: int = 5, ends: str = "truncated", reuse_buffer: bool = False) -> None:
        self.episode_length, self.ends, self.reuse_buffer = episode_length, ends, reuse_buffer
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,))
        self.action_space = spaces.Discrete(2)
        self.position = np.array([-1.0, 0.0], dtype=np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.position[0] = 0 if seed is not None else self.position[0] + 1
        self.position[1] = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[np.ndarray[Any, Any], float, bool, bool, dict[str, Any]]:
        self.position[1] += 1
        is_last = bool(self.position[1] >= self.episode_length)
        return (
            self._observation(),
            1.0,
            is_last and self.ends == "terminated",
            is_last and self.ends == "truncated",
            {},
        )

    def _observation(self) -> np.ndarray[Any, Any]:
        return self.position if self.reuse_buffer else self.position.copy()


class GymMasked(gymnasium.Env[np.ndarray[Any, Any], Any]):
    """Discrete actions of which `info["action_mask"]` allows some; another one is an error."""

    def __init__(self, num_actions: int = 4, episode_length: int = 6) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,))
        self.action_space = spaces.Discrete(num_actions)
        self.episode_length, self.elapsed = episode_length, 0
        self.mask = np.ones(num_actions, dtype=np.int8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.elapsed = 0
        return np.zeros(2, dtype=np.float32), self._allow()

    def step(self, action: Any) -> tuple[np.ndarray[Any, Any], float, bool, bool, dict[str, Any]]:
        if not self.mask[int(action)]:
            raise ValueError(f"action {action} is not allowed by {self.mask}")
        self.elapsed += 1
        return np.zeros(2, dtype=np.float32), 1.0, False, self.elapsed >= self.episode_length, self._allow()

    def _allow(self) -> dict[str, Any]:
        self.mask = self.np_random.integers(0, 2, len(self.mask), dtype=np.int8)
        self.mask[self.np_random.integers(len(self.mask))] = 1
        return {MASK_GROUP: self.mask.copy()}


def constant_gymnasium(
    mode: AutoresetMode | str, num_envs: int = 4, episode_length: int = 5
) -> GymnasiumVecEnv:
    """N `GymConstant` in one of Gymnasium's autoreset conventions; environment i ends i steps later."""

    def maker(index: int) -> Callable[[], gymnasium.Env[Any, Any]]:
        return lambda: GymConstant(episode_length + index)

    mode = AutoresetMode(mode) if isinstance(mode, str) else mode
    return GymnasiumVecEnv(SyncVectorEnv([maker(i) for i in range(num_envs)], autoreset_mode=mode))


class GymShapes(gymnasium.Env[np.ndarray[Any, Any], Any]):
    """Say whether a picture holds a plus or a cross, wherever it stands among noise: reward 1 if right.

    Easy for convolutions, which know a shape at any place once they know it at one; hard for a network that
    reads each pixel for itself.
    """

    SHAPES = (
        np.array([[0, 0, 1, 0, 0], [0, 0, 1, 0, 0], [1, 1, 1, 1, 1], [0, 0, 1, 0, 0], [0, 0, 1, 0, 0]]),
        np.array([[1, 0, 0, 0, 1], [0, 1, 0, 1, 0], [0, 0, 1, 0, 0], [0, 1, 0, 1, 0], [1, 0, 0, 0, 1]]),
    )

    def __init__(self, size: int = 24, episode_length: int = 16) -> None:
        self.size, self.episode_length = size, episode_length
        self.observation_space = spaces.Box(0, 255, (size, size, 1), dtype=np.uint8)
        self.action_space = spaces.Discrete(2)
        self.shape, self.elapsed = 0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.elapsed = 0
        return self._picture(), {}

    def step(self, action: Any) -> tuple[np.ndarray[Any, Any], float, bool, bool, dict[str, Any]]:
        reward = float(int(action) == self.shape)
        self.elapsed += 1
        return self._picture(), reward, False, self.elapsed >= self.episode_length, {}

    def _picture(self) -> np.ndarray[Any, Any]:
        self.shape = int(self.np_random.integers(2))
        picture = self.np_random.integers(0, 100, (self.size, self.size, 1), dtype=np.uint8)
        row, column = self.np_random.integers(0, self.size - 4, 2)
        part = picture[row : row + 5, column : column + 5, 0]
        part[self.SHAPES[self.shape] == 1] = 255
        return picture


class GymForbidden(gymnasium.Env[np.ndarray[Any, Any], Any]):
    """Follow the number shown, among actions of which `info["action_mask"]` allows some.

    A forbidden action ends the episode with reward -1, and `info["log"]` counts it. The number shown is
    always allowed and pays 1.
    """

    def __init__(self, num_actions: int = 6, episode_length: int = 20) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (num_actions,))
        self.action_space = spaces.Discrete(num_actions)
        self.episode_length, self.elapsed = episode_length, 0
        self.goal, self.mask = 0, np.ones(num_actions, dtype=np.int8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.elapsed = 0
        return self._next(), {MASK_GROUP: self.mask.copy()}

    def step(self, action: Any) -> tuple[np.ndarray[Any, Any], float, bool, bool, dict[str, Any]]:
        is_forbidden = not self.mask[int(action)]
        reward = -1.0 if is_forbidden else float(int(action) == self.goal)
        self.elapsed += 1
        observation = self._next()
        info = {MASK_GROUP: self.mask.copy(), "log": {"Actions/forbidden": float(is_forbidden)}}
        return observation, reward, bool(is_forbidden), self.elapsed >= self.episode_length, info

    def _next(self) -> np.ndarray[Any, Any]:
        number = len(self.mask)
        self.goal = int(self.np_random.integers(number))
        self.mask = self.np_random.integers(0, 2, number, dtype=np.int8)
        self.mask[self.goal] = 1
        return np.eye(number, dtype=np.float32)[self.goal]


class GymStart(gymnasium.Env[np.ndarray[Any, Any], Any]):
    """Discrete actions 5, 6 and 7, of which 7 pays."""

    def __init__(self, episode_length: int = 10) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (1,))
        self.action_space = spaces.Discrete(3, start=5)
        self.episode_length, self.elapsed = episode_length, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.elapsed = 0
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray[Any, Any], float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(np.int64(action)):
            raise ValueError(f"action {action} is not one of 5, 6, 7")
        self.elapsed += 1
        return (
            np.zeros(1, dtype=np.float32),
            float(action == 7),
            False,
            self.elapsed >= self.episode_length,
            {},
        )
