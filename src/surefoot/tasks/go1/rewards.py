"""Reward terms of go1-walk: pure functions Motion -> [N], and the table that weighs them.

The reward of a step is `max(0, Σ weight · term) · step_dt + Σ event · happened`. The floor keeps a clumsy
beginner from learning that a quick fall is cheapest; events stand outside it, so that a fall always costs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from surefoot.tasks.go1.motion import Motion
from surefoot.tasks.go1.robot import JOINT_LOWER, JOINT_UPPER, STAND, Array

SWING_HEIGHT = 0.07
"""m, how high a swinging foot should be lifted."""
TRACKING_WIDTH = 0.25
"""(m/s)² or (rad/s)²: squared tracking error at which the reward has fallen to 1/e."""
LOWEST_HEIGHT = 0.26
"""m, trunk height below which `crouching` counts."""


def linear_velocity(m: Motion) -> Array:
    """exp(-|error|²/width) of the planar velocity in the yaw frame."""
    error = m.command[:, :2] - m.state.linear_velocity_yaw[:, :2]
    return np.exp(-np.square(error).sum(1) / TRACKING_WIDTH)


def yaw_rate(m: Motion) -> Array:
    """exp(-error²/width) of the turning rate about the vertical."""
    return np.exp(-np.square(m.command[:, 2] - m.state.yaw_rate) / TRACKING_WIDTH)


def trot(m: Motion) -> Array:
    """How well the feet follow the trot clock, in [0, 1]: a swinging foot is in the air and up to 7 cm high,
    a standing foot is on the floor and does not slip. When the command is zero, all four should stand.
    """
    contact = m.state.contact
    lift = np.clip(m.state.foot_height / SWING_HEIGHT, 0, 1) * (1 - contact)
    hold = contact * np.exp(-np.square(m.state.foot_slip) / 0.1)
    swings = (m.leg_phase < 0.5) & m.is_moving[:, None]
    return np.where(swings, lift, hold).mean(1)


def pose(m: Motion) -> Array:
    """exp(-|distance from the stand pose|²) in rad²."""
    return np.exp(-np.square(m.state.joint_pos - STAND).sum(1))


def tilt(m: Motion) -> Array:
    """Squared sine of the angle between trunk and vertical."""
    return np.square(m.state.gravity_b[:, :2]).sum(1)


def bounce(m: Motion) -> Array:
    """Squared vertical velocity, (m/s)²."""
    return np.square(m.state.linear_velocity_yaw[:, 2])


def wobble(m: Motion) -> Array:
    """Squared roll and pitch rate, (rad/s)²."""
    return np.square(m.state.angular_velocity_b[:, :2]).sum(1)


def action_rate(m: Motion) -> Array:
    """Squared change of the action."""
    return np.square(m.action - m.previous_action).sum(1)


def torque(m: Motion) -> Array:
    """Sum of squared torques, (N m)²."""
    return np.square(m.torque).sum(1)


def joint_limits(m: Motion) -> Array:
    """Sum of the angles by which joints exceed their range, rad."""
    q = m.state.joint_pos
    return (np.maximum(JOINT_LOWER - q, 0) + np.maximum(q - JOINT_UPPER, 0)).sum(1)


def crouching(m: Motion) -> Array:
    """How far the trunk is below its lowest wanted height, m."""
    return np.maximum(LOWEST_HEIGHT - m.state.height, 0)


Term = Callable[[Motion], Array]

TERMS: dict[str, tuple[float, Term]] = {
    "linear_velocity": (1.5, linear_velocity),
    "yaw_rate": (0.75, yaw_rate),
    "trot": (2.0, trot),
    "pose": (0.5, pose),
    "tilt": (-3.0, tilt),
    "bounce": (-0.5, bounce),
    "wobble": (-0.02, wobble),
    "action_rate": (-0.01, action_rate),
    "torque": (-2e-5, torque),
    "joint_limits": (-1.0, joint_limits),
    "crouching": (-10.0, crouching),
}
"""Weight per second and function of every term."""
FALL = -1.0
"""Reward at the step of a fall, on top of the lost future."""
