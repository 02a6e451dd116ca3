"""A task whose environment fails after a while."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Failing(gymnasium.Env[np.ndarray, np.int64]):
    """Raises at its 40th step."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.count = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        """Start at the lower corner."""
        super().reset(seed=seed)
        return np.full(2, -1.0, np.float32), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Count, and fail in the end."""
        self.count += 1
        if self.count == 40:
            raise ValueError("boom at step 40")
        return np.full(2, -1.0, np.float32), 1.0, self.count % 20 == 0, False, {}


def make() -> gymnasium.Env:
    """The factory."""
    return Failing()
