"""What one control step did: the argument of every reward and termination term."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surefoot.tasks.go1.robot import TROT_OFFSET, Array
from surefoot.tasks.go1.state import RobotState

STANDING_SPEED = 0.05
"""A command smaller than this (norm of m/s, m/s, rad/s) asks the robot to stand still."""


@dataclass(frozen=True)
class Motion:
    """A control step of N robots, seen from its end."""

    state: RobotState
    command: Array
    """[N, 3] forward m/s, left m/s, turn left rad/s."""
    phase: Array
    """[N] of the gait clock, in cycles, in [0, 1)."""
    action: Array
    """[N, 12] as the policy gave it."""
    previous_action: Array
    """[N, 12]."""
    torque: Array
    """[N, 12] N m."""

    @property
    def is_moving(self) -> NDArray[np.bool_]:
        return is_moving(self.command)

    @property
    def leg_phase(self) -> Array:
        """[N, 4] in [0, 1): the first half is swing, the second stance."""
        return (self.phase[:, None] + TROT_OFFSET) % 1.0


def is_moving(command: Array) -> NDArray[np.bool_]:
    """[N] bool: False where the command [N, 3] asks the robot to stand still."""
    return np.square(command).sum(1) > STANDING_SPEED**2
