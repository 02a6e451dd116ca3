"""Velocity commands of go1-walk and when they change."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from surefoot.tasks.go1.robot import Array


@dataclass(frozen=True)
class CommandConfig:
    """How commands are drawn: uniformly over the ranges; some stand still, some walk straight ahead."""

    forward: tuple[float, float] = (-1.0, 1.5)
    """m/s."""
    left: tuple[float, float] = (-0.5, 0.5)
    """m/s."""
    turn: tuple[float, float] = (-1.0, 1.0)
    """rad/s."""
    hold_s: tuple[float, float] = (3.0, 8.0)
    """A command lasts a time drawn from this range, then switches at once."""
    stand_fraction: float = 0.1
    """Share of commands that are zero."""
    straight_fraction: float = 0.25
    """Share of commands without sideways and turning parts."""


EVALUATION = CommandConfig(hold_s=(5.0, 5.0), stand_fraction=0.0, straight_fraction=0.0)
"""A new command from the whole range every 5 s."""


def draw(
    count: int, config: CommandConfig, step_dt: float, generator: torch.Generator
) -> tuple[Array, NDArray[np.int64]]:
    """Commands [count, 3] and how many steps each lasts [count] (int64)."""
    unit = torch.rand(count, 5, generator=generator).numpy()
    ranges = np.array([config.forward, config.left, config.turn], np.float32)
    command = ranges[:, 0] + unit[:, :3] * (ranges[:, 1] - ranges[:, 0])
    kind = unit[:, 3]
    command[kind < config.stand_fraction] = 0.0
    command[kind > 1.0 - config.straight_fraction, 1:] = 0.0
    shortest, longest = config.hold_s
    hold = (shortest + unit[:, 4] * (longest - shortest)) / step_dt
    return command, hold.round().astype(np.int64)
