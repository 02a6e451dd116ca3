"""Reference motion of the Go1, made from a gait pattern and leg inverse kinematics; no recordings.

    python -m surefoot.tasks.go1.reference FOLDER

writes the clips that lie in `clips/`. The trunk glides along the path that the velocity commands describe,
upright and at constant height. Each stance foot stays where it was put down: under its hip half-way through
its stance. Each swing foot moves to its next footprint, at rest where it leaves and meets the floor.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surefoot.tasks.go1.robot import (
    FOOT_RADIUS,
    JOINTS,
    STAND,
    TROT_OFFSET,
    foot_kinematics,
    leg_inverse_kinematics,
)

Array = NDArray[np.floating[Any]]

CLIPS = Path(__file__).with_name("clips")
FRAME_DT = 0.02
"""s between the frames of a clip: the task's control step."""
TRUNK_HEIGHT = 0.27
"""m."""
SWING_HEIGHT = 0.07
"""m, of the foot's underside at the middle of its swing."""
BLEND = 0.3
"""s in which one commanded velocity turns into the next."""
SHORTEST_STEP = 0.005
"""m. A foot that is this close to its next footprint is not lifted: the robot stands when it has stopped."""
_PATH_DT = 0.001
"""s, of the integration of the trunk's path."""

Command = tuple[float, float, float, float]
"""s, then forward m/s, left m/s, turn left rad/s for that long."""


@dataclass(frozen=True)
class Gait:
    """When each foot swings. Leg i is at phase `frequency · t + offset_i`; a cycle begins with its swing."""

    offset: tuple[float, ...]
    """[4] cycles, in the order of `robot.LEGS`."""
    frequency: float = 2.0
    """Hz, as the trot clock of go1-walk."""
    duty: float = 0.5
    """Share of a cycle that a foot stands."""


GAITS = {
    "trot": Gait(tuple(TROT_OFFSET.tolist())),
    "pace": Gait((0.0, 0.5, 0.0, 0.5)),
    "bound": Gait((0.0, 0.0, 0.5, 0.5)),
}


def _course(count: int, seconds: float) -> list[Command]:
    """Velocities spread evenly over the commands of go1-walk, without randomness (the R3 sequence, Roberts
    2018), with a stop after every seventh.
    """
    ratio = 1.2207440846057596  # the root of x⁴ = x + 1
    unit = (0.5 + np.arange(count)[:, None] * ratio ** -np.arange(1.0, 4.0)) % 1.0
    velocity = np.array([-1.0, -0.5, -1.0]) + unit * np.array([2.5, 1.0, 2.0])
    velocity = np.insert(velocity, range(7, count + 1, 7), 0.0, axis=0)
    return [(seconds, float(x), float(y), float(turn)) for x, y, turn in velocity]


RECIPES: dict[str, tuple[str, list[Command]]] = {
    "stand": ("trot", [(1.0, 0.0, 0.0, 0.0)]),
    "trot_backward_1.0": ("trot", [(2.0, -1.0, 0.0, 0.0)]),
    "trot_backward_0.5": ("trot", [(2.0, -0.5, 0.0, 0.0)]),
    "trot_forward_0.5": ("trot", [(2.0, 0.5, 0.0, 0.0)]),
    "trot_forward_1.0": ("trot", [(2.0, 1.0, 0.0, 0.0)]),
    "trot_forward_1.5": ("trot", [(2.0, 1.5, 0.0, 0.0)]),
    "trot_left_0.4": ("trot", [(2.0, 0.0, 0.4, 0.0)]),
    "trot_turn_left_1.0": ("trot", [(2.0, 0.0, 0.0, 1.0)]),
    "trot_curve_left": ("trot", [(2.0, 0.8, 0.0, 0.8)]),
    "trot_course": ("trot", _course(28, 1.5)),
    "pace_forward_0.5": ("pace", [(2.0, 0.5, 0.0, 0.0)]),
    "pace_forward_1.0": ("pace", [(2.0, 1.0, 0.0, 0.0)]),
    "bound_forward_0.5": ("bound", [(2.0, 0.5, 0.0, 0.0)]),
    "bound_forward_1.0": ("bound", [(2.0, 1.0, 0.0, 0.0)]),
}
"""Gait and commands of every clip shipped. Those to the right are the mirror images of those to the left."""


@dataclass(frozen=True)
class _Path:
    """Where the trunk is on the floor, on a fine grid that reaches a second beyond the clip on both sides."""

    time: Array
    """[G] s."""
    pose: Array
    """[G, 3] x and y in m, heading in rad (not wrapped)."""

    @staticmethod
    def along(commands: Sequence[Command]) -> _Path:
        ends = np.cumsum([seconds for seconds, *_ in commands])
        time = np.arange(-1.0, ends[-1] + 1.0 + _PATH_DT, _PATH_DT)
        knots, velocity = [-1.0], [commands[0][1:]]
        for end, before, after in zip(ends[:-1], commands[:-1], commands[1:], strict=True):
            knots += [end, end + BLEND]
            velocity += [before[1:], after[1:]]
        forward, left, turn = (np.interp(time, knots, v) for v in np.array(velocity).T)
        heading = _integral(turn)
        cos, sin = np.cos(heading), np.sin(heading)
        x, y = _integral(cos * forward - sin * left), _integral(sin * forward + cos * left)
        return _Path(time, np.stack([x, y, heading], 1))

    def at(self, time: Array | float) -> Array:
        """[..., 3]."""
        return np.stack([np.interp(time, self.time, column) for column in self.pose.T], -1)


def _integral(rate: Array) -> Array:
    """By the trapezoidal rule, from zero."""
    return np.concatenate([[0.0], np.cumsum(0.5 * (rate[1:] + rate[:-1]) * _PATH_DT)])


def generate(gait: Gait, commands: Sequence[Command]) -> dict[str, NDArray[Any]]:
    """A clip in mjlab's layout with one body, the trunk: the fields of an `.npz` file.

    Args:
        gait: When the feet swing.
        commands: The velocities to follow, one after another.
    """
    path = _Path.along(commands)
    duration = sum(seconds for seconds, *_ in commands)
    time = np.arange(round(duration / FRAME_DT)) * FRAME_DT
    trunk = path.at(time)
    feet = np.stack([_foot_track(i, gait, path, time) for i in range(4)], 1)
    joints = leg_inverse_kinematics(_in_trunk_frame(feet, trunk))
    half = 0.5 * trunk[:, 2]
    position = np.column_stack([trunk[:, :2], np.full(len(time), TRUNK_HEIGHT)])
    quaternion = np.column_stack([np.cos(half), 0 * half, 0 * half, np.sin(half)])
    return {
        "fps": np.array(1.0 / FRAME_DT),
        "joint_names": np.array(JOINTS),
        "joint_pos": joints.astype(np.float32),
        "body_names": np.array(["trunk"]),
        "body_pos_w": position[:, None].astype(np.float32),
        "body_quat_w": quaternion[:, None].astype(np.float32),
    }


def _foot_track(leg: int, gait: Gait, path: _Path, time: Array) -> Array:
    """[F, 3] m, the foot's centre in the world."""
    phase = gait.frequency * time + gait.offset[leg]
    cycle = np.floor(phase).astype(np.int64)
    prints = _footprints(leg, gait, path, int(cycle[-1]))
    progress = np.minimum((phase - cycle) / (1.0 - gait.duty), 1.0)  # 1: it stands
    start, end = prints[cycle], prints[cycle + 1]
    # at rest at both ends; a cycloid would be a third faster between
    blend = 0.5 - 0.5 * np.cos(np.pi * progress)
    lift = SWING_HEIGHT * np.sin(np.pi * progress) ** 2 * (start != end).any(1)
    return np.column_stack([start + blend[:, None] * (end - start), FOOT_RADIUS + lift])


def _footprints(leg: int, gait: Gait, path: _Path, last_cycle: int) -> Array:
    """[last_cycle + 2, 2] m: where the foot stands in each cycle, from the cycle before the first."""
    neutral = _neutral_foot(leg)
    prints: list[Array] = []
    for cycle in range(-1, last_cycle + 1):
        middle = (cycle + 1.0 - 0.5 * gait.duty - gait.offset[leg]) / gait.frequency
        x, y, heading = path.at(middle)
        cos, sin = np.cos(heading), np.sin(heading)
        wanted = np.array([x + cos * neutral[0] - sin * neutral[1], y + sin * neutral[0] + cos * neutral[1]])
        is_there = bool(prints) and np.linalg.norm(wanted - prints[-1]) < SHORTEST_STEP
        prints.append(prints[-1] if is_there else wanted)
    return np.stack(prints)


def _neutral_foot(leg: int) -> Array:
    """[2] m: x and y of the foot in the trunk's frame in the stand pose."""
    (x, y, _), _ = foot_kinematics(STAND[None], np.zeros((1, 12), np.float32))
    return np.array([x[0, leg], y[0, leg]], np.float64)


def _in_trunk_frame(feet: Array, trunk: Array) -> Array:
    """World positions [F, 4, 3] seen from the trunk [F, 3] at its height."""
    offset = feet - np.insert(trunk[:, :2], 2, TRUNK_HEIGHT, axis=1)[:, None]
    cos, sin = np.cos(trunk[:, 2:]), np.sin(trunk[:, 2:])
    x, y = offset[..., 0], offset[..., 1]
    return np.stack([cos * x + sin * y, cos * y - sin * x, offset[..., 2]], -1)


def write_clips(folder: Path) -> None:
    """Every clip of `RECIPES` as `NAME.npz`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (gait, commands) in RECIPES.items():
        fields: dict[str, Any] = generate(GAITS[gait], commands)
        np.savez_compressed(folder / f"{name}.npz", **fields)


if __name__ == "__main__":
    write_clips(Path(sys.argv[1]) if len(sys.argv) > 1 else CLIPS)
