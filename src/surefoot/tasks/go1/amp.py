"""`go1-amp`: a Go1 follows velocity commands in the style of reference motion; no reward speaks of gaits.

The observation group `amp` is what the discriminator compares. The clips in `clips/` pass through the same
functions as the simulation, so both sides have one layout, with the same scales and signs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.extensions.amp.clip import MotionClip
from surefoot.extensions.amp.loaders import load_clip
from surefoot.tasks.go1.config import Go1Config
from surefoot.tasks.go1.env import Go1Env
from surefoot.tasks.go1.motion import Motion
from surefoot.tasks.go1.observations import GROUPS, Entry, ObservationGroup
from surefoot.tasks.go1.reference import CLIPS
from surefoot.tasks.go1.robot import JOINTS, LEGS, STAND
from surefoot.tasks.go1.state import RobotState

STYLE: dict[str, Entry] = {
    "joint_position": Entry(JOINTS, lambda m: m.state.joint_pos - STAND),
    "joint_velocity": Entry(JOINTS, lambda m: m.state.joint_vel, scale=0.05),
    "linear_velocity": Entry(("x", "y"), lambda m: m.state.linear_velocity_yaw[:, :2], (1.0, -1.0)),
    "yaw_rate": Entry(("turn",), lambda m: m.state.yaw_rate[:, None], (-1.0,)),
    "foot_height": Entry(LEGS, lambda m: m.state.foot_height, scale=10.0),
}
"""Entries of the group `amp`. What the reference holds exactly constant (height, tilt, vertical speed) is not
among them: any robot with a mass would be told apart by it alone."""

REWARD_WEIGHTS = {"trot": 0.0, "pose": 0.0, "tilt": 0.0, "bounce": 0.0, "wobble": 0.0, "crouching": 0.0}
"""Of go1-walk's terms, those that shape how it moves. Tracking and the costs of hardware stay: change of
action, torque, joint limits, falls."""

TROT_CLIPS: dict[str, float] = {
    "stand": 0.1,
    "trot_backward_1.0": 0.05,
    "trot_backward_0.5": 0.05,
    "trot_forward_0.5": 0.05,
    "trot_forward_1.0": 0.05,
    "trot_forward_1.5": 0.05,
    "trot_left_0.4": 0.05,
    "trot_turn_left_1.0": 0.05,
    "trot_curve_left": 0.05,
    "trot_course": 0.5,
}
"""How often each clip is drawn: about as the task's commands are."""


def make_env(
    num_envs: int,
    *,
    seed: int = 1,
    evaluation: bool = False,
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> Go1Env:
    """As `go1.make_env`, with the group `amp` and without rewards for a gait."""
    kwargs["reward_weights"] = {**REWARD_WEIGHTS, **kwargs.get("reward_weights", {})}
    return Go1Env(
        num_envs,
        Go1Config.from_kwargs(kwargs),
        seed=seed,
        evaluation=evaluation,
        device=device,
        groups={**GROUPS, "amp": STYLE},
    )


def reference_motion(step_dt: float) -> list[tuple[Tensor, float]]:
    """The trot clips: what the preset names as `amp_cfg.dataset`."""
    return motion_of(TROT_CLIPS, step_dt)


def motion_of(clips: Mapping[str, float], step_dt: float) -> list[tuple[Tensor, float]]:
    """Clips and their mirror images, in the layout of the group `amp`.

    Args:
        clips: Weights of clips in `clips/`, by name.
        step_dt: s, the control step, to which the clips are resampled.

    Returns:
        ([F, D], weight) of each; F differs.
    """
    group = ObservationGroup(STYLE)
    order, sign = group.mirror()
    motions: list[tuple[Tensor, float]] = []
    for name, weight in clips.items():
        clip = load_clip(CLIPS / f"{name}.npz", JOINTS, step_dt)
        features = torch.from_numpy(group.assemble(_without_actions(robot_states(clip))))
        motions += [(features, weight), (features[:, order] * torch.tensor(sign), weight)]
    return motions


def robot_states(clip: MotionClip) -> RobotState:
    """The F frames of a clip as if they were so many robots."""
    return RobotState.from_physics(
        torch.cat([clip.root_position, clip.root_orientation, clip.joint_positions], 1).numpy(),
        torch.cat([clip.root_linear_velocity, clip.root_angular_velocity, clip.joint_velocities], 1).numpy(),
    )


def _without_actions(state: RobotState) -> Motion:
    """A clip has no command, clock, action or torque."""
    zeros = np.zeros_like(state.joint_pos)
    return Motion(state, zeros[:, :3], zeros[:, 0], zeros, zeros, zeros)
