"""The Unitree Go1 in figures: names, stand pose, limits, leg kinematics, and its left-right symmetry.

Frames: x forward, y left, z up. Units: m, rad, s, N m. Masses and inertias are in `go1.xml`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]
"""float32 at run time; numpy's stubs lose that in arithmetic with plain floats."""
Vector = tuple[Array, Array, Array]
"""x, y and z apart: components that lie together in memory are several times faster than rows of three."""

LEGS = ("FR", "FL", "RR", "RL")
JOINTS = tuple(f"{leg}_{joint}" for leg in LEGS for joint in ("hip", "thigh", "calf"))
STAND_HEIGHT = 0.278
"""m, trunk above the floor in the stand pose with the feet just touching."""
LINK_LENGTH = 0.213
"""m, of thigh and of calf."""
FOOT_RADIUS = 0.023
KP, KD = 35.0, 0.5
"""Gains of the joint controllers, N m/rad and N m s/rad."""
TROT_OFFSET = np.array([0.0, 0.5, 0.5, 0.0], np.float32)
"""Phase of each leg in a trot: diagonal legs move together."""

_STAND = {"hip": 0.1, "thigh": 0.9, "calf": -1.8}
_RANGE = {"hip": (-0.863, 0.863), "thigh": (-0.686, 4.501), "calf": (-2.818, -0.888)}
_EFFORT = {"hip": 23.7, "thigh": 23.7, "calf": 35.55}


def _side(name: str) -> float:
    """+1 on the left, -1 on the right; names begin with the leg."""
    return 1.0 if name[1] == "L" else -1.0


def _kind(joint: str) -> str:
    return joint.split("_")[1]


STAND = np.array([_STAND[_kind(j)] * (_side(j) if _kind(j) == "hip" else 1.0) for j in JOINTS], np.float32)
JOINT_LOWER = np.array([_RANGE[_kind(j)][0] for j in JOINTS], np.float32)
JOINT_UPPER = np.array([_RANGE[_kind(j)][1] for j in JOINTS], np.float32)
EFFORT_LIMIT = np.array([_EFFORT[_kind(j)] for j in JOINTS], np.float32)
HIP_X = np.array([0.1881 if leg[0] == "F" else -0.1881 for leg in LEGS], np.float32)
HIP_Y = np.array([0.04675 * _side(leg) for leg in LEGS], np.float32)
"""[4], in the trunk's frame; z is 0."""
THIGH_OFFSET = np.array([0.08 * _side(leg) for leg in LEGS], np.float32)
"""[4], along y in the hip's frame."""


def foot_kinematics(joint_pos: Array, joint_vel: Array) -> tuple[Vector, Vector]:
    """Where the foot centres are in the trunk's frame and how they move there, in closed form.

    Args:
        joint_pos: [N, 12] rad.
        joint_vel: [N, 12] rad/s.

    Returns:
        position in m and velocity in m/s relative to the trunk; each (x, y, z) of [N, 4].
    """
    hip, thigh, calf = np.moveaxis(joint_pos.reshape(-1, 4, 3), -1, 0)
    hip_vel, thigh_vel, calf_vel = np.moveaxis(joint_vel.reshape(-1, 4, 3), -1, 0)
    knee, knee_vel = thigh + calf, thigh_vel + calf_vel
    # the leg's plane first (x forward, h along the leg), then its rotation about the hip's x axis
    sin_thigh, cos_thigh, sin_knee, cos_knee = np.sin(thigh), np.cos(thigh), np.sin(knee), np.cos(knee)
    x = -LINK_LENGTH * (sin_thigh + sin_knee)
    h = -LINK_LENGTH * (cos_thigh + cos_knee)
    x_vel = -LINK_LENGTH * (cos_thigh * thigh_vel + cos_knee * knee_vel)
    h_vel = LINK_LENGTH * (sin_thigh * thigh_vel + sin_knee * knee_vel)
    sin_hip, cos_hip = np.sin(hip), np.cos(hip)
    y = THIGH_OFFSET * cos_hip - h * sin_hip
    z = THIGH_OFFSET * sin_hip + h * cos_hip
    velocity = (x_vel, -z * hip_vel - h_vel * sin_hip, y * hip_vel + h_vel * cos_hip)
    return (x + HIP_X, y + HIP_Y, z), velocity


def leg_inverse_kinematics(foot_b: Array) -> Array:
    """The joint angles that put the feet where they should be: the inverse of `foot_kinematics`, knees bent
    backwards.

    Args:
        foot_b: [N, 4, 3] m, foot centres in the trunk's frame. One out of reach gives NaN.

    Returns:
        [N, 12] rad.
    """
    x, y, z = np.moveaxis(foot_b, -1, 0)
    x, y = x - HIP_X, y - HIP_Y
    # seen along x, the foot is at (THIGH_OFFSET, h) turned by the hip; h < 0 lies in the leg's plane
    h = -np.sqrt(y * y + z * z - THIGH_OFFSET**2)
    hip = np.arctan2(z, y) - np.arctan2(h, THIGH_OFFSET)
    hip = (hip + np.pi) % (2 * np.pi) - np.pi
    calf = -np.arccos((x * x + h * h) / (2 * LINK_LENGTH**2) - 1.0)
    thigh = np.arctan2(-x, -h) - 0.5 * calf
    return np.stack([hip, thigh, calf], -1).reshape(-1, 12)


def mirrored_name(name: str) -> str:
    """`FR_hip` -> `FL_hip`: the same part on the other side."""
    return name[0] + ("L" if name[1] == "R" else "R") + name[2:]


def mirror_of(
    names: Sequence[str], signs: Mapping[str, float] | None = None
) -> tuple[list[int], list[float]]:
    """Permutation and signs that mirror a vector with the named entries left to right.

    `*_hip` joints turn about the forward axis, so their angles change sign; thighs, calves and whole legs
    only change side. Any other name stays in place with its sign from `signs`.
    """
    signs = signs or {}
    is_sided = [name[:2] in LEGS for name in names]
    partner = [mirrored_name(n) if sided else n for n, sided in zip(names, is_sided, strict=True)]
    permutation = [list(names).index(n) for n in partner]
    sign = [
        (-1.0 if n.endswith("_hip") else 1.0) if sided else signs[n]
        for n, sided in zip(names, is_sided, strict=True)
    ]
    return permutation, sign
