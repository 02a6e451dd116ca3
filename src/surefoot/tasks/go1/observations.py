"""Observation groups of go1-walk: what each entry is, its scale, its sensor noise and its mirror image.

`policy` is what the robot senses (with noise in training); `privileged` is what only a simulator knows, for
the critic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from surefoot.tasks.go1.motion import Motion
from surefoot.tasks.go1.robot import JOINTS, LEGS, STAND, Array, mirror_of


@dataclass(frozen=True)
class Entry:
    """Some numbers of an observation group."""

    names: tuple[str, ...]
    read: Callable[[Motion], Array]
    """[N, len(names)], in physical units."""
    signs: tuple[float, ...] | None = None
    """Of the mirror image, where the names do not tell (see `robot.mirror_of`)."""
    scale: float | tuple[float, ...] = 1.0
    """Multiplied in, so that typical values are near 1."""
    noise: float = 0.0
    """Half-width of the uniform sensor noise, in physical units."""


def clock(m: Motion) -> Array:
    """Sine and cosine of the gait clock; zero while standing is asked for."""
    angle = 2 * np.pi * m.phase
    return np.stack([np.sin(angle), np.cos(angle)], 1) * m.is_moving[:, None]


_XYZ = ("x", "y", "z")
_VECTOR, _ROTATION = (1.0, -1.0, 1.0), (-1.0, 1.0, -1.0)  # mirrored in the x-z plane
_HALF_CYCLE = (-1.0, -1.0)  # mirroring a trot shifts its clock by half a cycle

GROUPS: dict[str, dict[str, Entry]] = {
    "policy": {
        "gyro": Entry(_XYZ, lambda m: m.state.angular_velocity_b, _ROTATION, scale=0.25, noise=0.2),
        "gravity": Entry(_XYZ, lambda m: m.state.gravity_b, _VECTOR, noise=0.05),
        "command": Entry(("x", "y", "turn"), lambda m: m.command, (1.0, -1.0, -1.0), scale=(2.0, 2.0, 1.0)),
        "joint_position": Entry(JOINTS, lambda m: m.state.joint_pos - STAND, noise=0.02),
        "joint_velocity": Entry(JOINTS, lambda m: m.state.joint_vel, scale=0.05, noise=1.0),
        "last_action": Entry(JOINTS, lambda m: m.action),
        "linear_velocity": Entry(_XYZ, lambda m: m.state.linear_velocity_b, _VECTOR, scale=2.0, noise=0.1),
        "clock": Entry(("sin", "cos"), clock, _HALF_CYCLE),
    },
    "privileged": {
        "linear_velocity": Entry(_XYZ, lambda m: m.state.linear_velocity_yaw, _VECTOR, scale=2.0),
        "height": Entry(("z",), lambda m: m.state.height[:, None] - 0.25, (1.0,), scale=10.0),
        "contact": Entry(LEGS, lambda m: m.state.contact),
        "foot_height": Entry(LEGS, lambda m: m.state.foot_height, scale=10.0),
    },
}


class ObservationGroup:
    """A group assembled from its entries."""

    def __init__(self, entries: dict[str, Entry]) -> None:
        self.entries = entries
        self.names = [f"{entry}.{name}" for entry, e in entries.items() for name in e.names]
        self.size = len(self.names)
        sizes = [len(e.names) for e in entries.values()]
        scales = [np.broadcast_to(e.scale, size) for e, size in zip(entries.values(), sizes, strict=True)]
        self.scale: Array = np.concatenate(scales).astype(np.float32)
        self.noise: Array = self.scale * np.repeat([e.noise for e in entries.values()], sizes).astype(
            np.float32
        )
        """[D], half-widths after scaling."""

    def assemble(self, m: Motion) -> Array:
        """[N, D], without noise."""
        obs = np.concatenate([e.read(m) for e in self.entries.values()], 1)
        obs *= self.scale
        return obs

    def mirror(self) -> tuple[list[int], list[float]]:
        """Permutation and signs of the left-right mirror image."""
        permutation: list[int] = []
        signs: list[float] = []
        for e in self.entries.values():
            order, sign = mirror_of(e.names, dict(zip(e.names, e.signs or (), strict=False)))
            permutation += [len(signs) + i for i in order]
            signs += sign
        return permutation, signs
