"""The environment contract: what a batch of environments offers to the trainer."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import gymnasium
import torch
from torch import Tensor

from surefoot.types import MirrorMap, Observations, Step


@runtime_checkable
class VecEnv(Protocol):
    """N environments stepped together, on one device.

    Optional beside these: `state_dict()` / `load_state_dict(state)` for exact resume,
    `render() -> uint8 [height, width, 3]` of environment 0, and `action_names` (a name per action) and
    `observation_names` (by group) for messages.
    """

    num_envs: int
    device: torch.device
    observation_spaces: dict[str, gymnasium.Space[Any]]
    """One entry per observation group."""
    action_space: gymnasium.Space[Any]
    """Of a single environment."""
    max_episode_length: int | Tensor | None
    """Steps; None where there is no limit or it is not known."""
    step_dt: float | None
    """Seconds per step, where that has a meaning."""
    mirror: MirrorMap | None

    def reset(self, seed: int | None = None, mask: Tensor | None = None) -> Observations:
        """Start new episodes (where `mask` [N] is set; everywhere without it)."""
        ...

    def step(self, actions: Tensor) -> Step:
        """Advance by one step. `actions` is [N, ...] inside `action_space`; buffers may be reused later."""
        ...

    def close(self) -> None: ...
