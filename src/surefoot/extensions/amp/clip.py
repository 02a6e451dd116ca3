"""A motion clip: the poses of a robot at equal time steps, checked, and the features made of them.

Velocities are always derived from the poses. Those that some files carry are in different frames, and would
no longer belong to the poses after resampling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from surefoot.errors import ConfigError, did_you_mean
from surefoot.extensions.amp.rotations import (
    conjugate,
    continuous,
    multiply,
    rotate_inverse,
    rotation_vector,
    slerp,
)

UNIT_TOLERANCE = 1e-2
"""How far the norm of a quaternion may be from 1; within it, it is normalised (files keep few digits)."""
DOWN = (0.0, 0.0, -1.0)
"""Gravity's direction in the world."""


@dataclass(frozen=True, eq=False)
class MotionClip:
    """F frames, `dt` seconds apart, of a robot with J joints and E feet. Tensors become float64.

    Raises:
        ConfigError: naming the clip, the frame (from 0) and the field: a NaN, a wrong width, a quaternion
            that is not of length 1, fewer than two frames, a root that is upside down most of the time.
    """

    name: str
    """Where it comes from, for error messages: the file."""
    dt: float
    """s."""
    root_position: Tensor
    """[F, 3] m, in the world, z up."""
    root_orientation: Tensor
    """[F, 4] unit quaternions, scalar first, from the root's frame (x forward, z up) to the world."""
    joint_positions: Tensor
    """[F, J] rad."""
    joint_names: tuple[str, ...]
    foot_positions: Tensor | None = None
    """[F, 3E] m, (x, y, z) of each foot in the root's frame, where the file has them."""

    def __post_init__(self) -> None:
        if not self.dt > 0:
            raise ConfigError(f"{self.name}: the time between frames is {self.dt} s; expected more than 0.")
        if len(set(self.joint_names)) < len(self.joint_names):
            raise ConfigError(f"{self.name}: joint_names has a name twice: {', '.join(self.joint_names)}.")
        frames = len(self.root_position)
        widths = {"root_position": 3, "root_orientation": 4, "joint_positions": len(self.joint_names)}
        if self.foot_positions is not None:
            widths["foot_positions"] = self.foot_positions.shape[-1]
        for field, width in widths.items():
            value = torch.as_tensor(getattr(self, field), dtype=torch.float64)
            if value.shape != (frames, width):
                raise ConfigError(
                    f"{self.name}: {field} has shape {tuple(value.shape)}; expected {(frames, width)}, "
                    "one row per frame."
                )
            self._refuse(field, ~value.isfinite().all(-1), "is not finite")
            object.__setattr__(self, field, value)
        if frames < 2:
            raise ConfigError(f"{self.name}: {frames} frame; a motion needs at least 2.")
        self._check_orientation()

    def _check_orientation(self) -> None:
        norm = torch.linalg.vector_norm(self.root_orientation, dim=-1, keepdim=True)
        is_wrong = (norm[:, 0] - 1.0).abs() > UNIT_TOLERANCE
        self._refuse("root_orientation", is_wrong, "is not a quaternion of length 1")
        object.__setattr__(self, "root_orientation", continuous(self.root_orientation / norm))
        is_upside_down = self.projected_gravity[:, 2] > 0
        if is_upside_down.sum() * 2 > len(is_upside_down):
            raise ConfigError(
                f"{self.name}: frame {int(is_upside_down.nonzero()[0])}, root_orientation: the robot is "
                "upside down, as in most frames. Is the quaternion's order another one? Pass "
                "quaternion_order='wxyz' or 'xyzw'."
            )

    def _refuse(self, field: str, is_bad: Tensor, fault: str) -> None:
        """ConfigError naming the first bad frame of [F], if there is one."""
        if is_bad.any():
            frame = int(is_bad.nonzero()[0])
            row = ", ".join(f"{x:.4g}" for x in torch.as_tensor(getattr(self, field))[frame].tolist())
            raise ConfigError(f"{self.name}: frame {frame}, {field}: ({row}) {fault}.")

    @property
    def num_frames(self) -> int:
        return len(self.root_position)

    @property
    def duration(self) -> float:
        """s, from the first frame to the last."""
        return (self.num_frames - 1) * self.dt

    @cached_property
    def root_linear_velocity(self) -> Tensor:
        """[F, 3] m/s, in the world: central differences, one-sided at the ends."""
        return self._differences(self.root_position)

    @cached_property
    def root_angular_velocity(self) -> Tensor:
        """[F, 3] rad/s, in the root's frame: the mean of the turns from the last and to the next frame."""
        q = self.root_orientation
        between = rotation_vector(multiply(conjugate(q[:-1]), q[1:])) / self.dt
        return torch.cat([between[:1], 0.5 * (between[1:] + between[:-1]), between[-1:]])

    @cached_property
    def joint_velocities(self) -> Tensor:
        """[F, J] rad/s: central differences, one-sided at the ends."""
        return self._differences(self.joint_positions)

    @cached_property
    def projected_gravity(self) -> Tensor:
        """[F, 3] direction of gravity in the root's frame; (0, 0, -1) when upright."""
        down = torch.tensor(DOWN, dtype=torch.float64).expand(self.num_frames, 3)
        return rotate_inverse(self.root_orientation, down)

    def _differences(self, x: Tensor) -> Tensor:
        return torch.gradient(x, spacing=self.dt, dim=0)[0]

    def select_joints(self, joint_names: Sequence[str]) -> MotionClip:
        """The clip with these joints in this order.

        Raises:
            ConfigError: the clip has no joint of that name.
        """
        for name in joint_names:
            if name not in self.joint_names:
                raise ConfigError(
                    f"{self.name}: joint_names: there is no joint '{name}'; the clip has "
                    f"{', '.join(self.joint_names)}.{did_you_mean(name, self.joint_names)}"
                )
        order = [self.joint_names.index(name) for name in joint_names]
        return replace(self, joint_positions=self.joint_positions[:, order], joint_names=tuple(joint_names))

    def features(self, names: Sequence[str], joint_names: Sequence[str] | None = None) -> Tensor:
        """The named features side by side, float32 [F, D].

        Args:
            names: Of `FEATURES`, in the order of the environment's observation group.
            joint_names: The joints in the environment's order; None: the clip's own.
        """
        clip = self if joint_names is None else self.select_joints(joint_names)
        for name in names:
            if name not in FEATURES:
                raise ConfigError(
                    f"features: unknown name '{name}'; the names are {', '.join(FEATURES)}."
                    + did_you_mean(name, FEATURES)
                )
        return torch.cat([FEATURES[name](clip) for name in names], -1).float()


def _foot_positions(clip: MotionClip) -> Tensor:
    if clip.foot_positions is None:
        raise ConfigError(f"{clip.name}: foot_positions: the file has none; drop that name from `features`.")
    return clip.foot_positions


FEATURES: dict[str, Callable[[MotionClip], Tensor]] = {
    "joint_positions": lambda clip: clip.joint_positions,
    "joint_velocities": lambda clip: clip.joint_velocities,
    "root_height": lambda clip: clip.root_position[:, 2:],
    "projected_gravity": lambda clip: clip.projected_gravity,
    "root_linear_velocity_b": lambda clip: rotate_inverse(clip.root_orientation, clip.root_linear_velocity),
    "root_angular_velocity_b": lambda clip: clip.root_angular_velocity,
    "foot_positions": _foot_positions,
}
"""Features by name: [F, D] in physical units, of anything but place and heading; `_b`: in the root's
frame."""


def resample(clip: MotionClip, dt: float) -> MotionClip:
    """The same motion with frames `dt` seconds apart, from its first frame on: positions on straight lines
    between frames, orientations by slerp, velocities by differences of the new frames.

    A discriminator compares changes over one control step, so its clips must have the control step's frames.

    Raises:
        ConfigError: the clip is shorter than one step of `dt`.
    """
    if abs(dt - clip.dt) < 1e-6 * dt:
        return clip
    frames = int(clip.duration / dt + 1e-6) + 1
    if frames < 2:
        raise ConfigError(
            f"{clip.name}: lasts {clip.duration:.4g} s, from its first frame to its last; that is shorter "
            f"than one step of {dt:.4g} s, so it holds no motion to learn from."
        )
    at = torch.arange(frames, dtype=torch.float64)[:, None] * (dt / clip.dt)
    low = at[:, 0].long().clamp(max=clip.num_frames - 2)
    fraction = (at - low[:, None]).clamp(max=1.0)

    def between(x: Tensor) -> Tensor:
        return torch.lerp(x[low], x[low + 1], fraction)

    return replace(
        clip,
        dt=dt,
        root_position=between(clip.root_position),
        root_orientation=slerp(clip.root_orientation[low], clip.root_orientation[low + 1], fraction),
        joint_positions=between(clip.joint_positions),
        foot_positions=None if clip.foot_positions is None else between(clip.foot_positions),
    )
