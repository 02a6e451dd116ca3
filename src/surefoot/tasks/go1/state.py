"""The physical state of N robots in the quantities that rewards and observations speak of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from surefoot.tasks.go1.robot import FOOT_RADIUS, Array, Vector, foot_kinematics

CONTACT_MARGIN = 0.001
"""m. A foot this close to the floor counts as touching it."""


@dataclass(frozen=True)
class RobotState:
    """All float32. `_b`: in the trunk's frame; `_yaw`: in a level frame that turns with the heading."""

    height: Array
    """[N] m, trunk above the floor."""
    gravity_b: Array
    """[N, 3] unit vector of gravity; (0, 0, -1) when upright."""
    linear_velocity_b: Array
    """[N, 3] m/s."""
    linear_velocity_yaw: Array
    """[N, 3] m/s: forward, left, up."""
    angular_velocity_b: Array
    """[N, 3] rad/s."""
    yaw_rate: Array
    """[N] rad/s about the vertical."""
    joint_pos: Array
    """[N, 12] rad."""
    joint_vel: Array
    """[N, 12] rad/s."""
    foot_height: Array
    """[N, 4] m, underside of the foot above the floor."""
    foot_slip: Array
    """[N, 4] m/s, horizontal speed of the foot."""
    contact: Array
    """[N, 4] 1.0 where the foot touches the floor."""

    @staticmethod
    def from_physics(qpos: np.ndarray, qvel: np.ndarray) -> RobotState:
        """From MuJoCo's `qpos` [N, 19] and `qvel` [N, 18], float64.

        Args:
            qpos: position in m, orientation quaternion wxyz, joint angles in rad.
            qvel: linear velocity in the world, angular velocity in the trunk's frame, joint velocities.
        """
        qpos, qvel = component_major(qpos), component_major(qvel)
        w, x, y, z = qpos[:, 3:7].T
        up_b = (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y))
        forward_x, forward_y = 1 - 2 * (y * y + z * z), 2 * (x * y + w * z)
        norm = np.maximum(np.hypot(forward_x, forward_y), 1e-6)
        cos_yaw, sin_yaw = forward_x / norm, forward_y / norm
        v_x, v_y, v_z, turn_x, turn_y, turn_z = qvel[:, :6].T
        turn_b = (turn_x, turn_y, turn_z)
        velocity_b = _rotate_inverse(w, (x, y, z), (v_x, v_y, v_z))

        joint_pos, joint_vel = qpos[:, 7:], qvel[:, 6:]
        foot_b, foot_velocity_b = foot_kinematics(joint_pos, joint_vel)
        up, turn = _for_each_leg(up_b), _for_each_leg(turn_b)
        foot_velocity_b = _add(_for_each_leg(velocity_b), _add(_cross(turn, foot_b), foot_velocity_b))
        speed_up = _dot(foot_velocity_b, up)
        slip = np.sqrt(np.maximum(_dot(foot_velocity_b, foot_velocity_b) - speed_up * speed_up, 0))
        foot_height = qpos[:, 2:3] + _dot(foot_b, up) - FOOT_RADIUS
        return RobotState(
            height=qpos[:, 2],
            gravity_b=-_columns(up_b),
            linear_velocity_b=_columns(velocity_b),
            linear_velocity_yaw=_columns((cos_yaw * v_x + sin_yaw * v_y, cos_yaw * v_y - sin_yaw * v_x, v_z)),
            angular_velocity_b=qvel[:, 3:6],
            yaw_rate=_dot(turn_b, up_b),
            joint_pos=joint_pos,
            joint_vel=joint_vel,
            foot_height=foot_height,
            foot_slip=slip,
            contact=(foot_height < CONTACT_MARGIN).astype(np.float32),
        )


def component_major(x: np.ndarray) -> Array:
    """A float32 copy of x [N, D] in which each component of all robots lies together in memory."""
    return x.T.astype(np.float32, order="C").T


def _columns(v: Vector) -> Array:
    """[N, 3], component-major."""
    return np.stack(v).T


def _for_each_leg(v: Vector) -> Vector:
    """[N] -> [N, 1], to meet [N, 4]."""
    return v[0][:, None], v[1][:, None], v[2][:, None]


def _add(a: Vector, b: Vector) -> Vector:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def _dot(a: Vector, b: Vector) -> Array:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def _cross(a: Vector, b: Vector) -> Vector:
    return a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]


def _rotate_inverse(w: Array, u: Vector, v: Vector) -> Vector:
    """The world vector v in the frame of the unit quaternion (w, u)."""
    c = _cross(u, v)
    t = (2 * c[0], 2 * c[1], 2 * c[2])
    return _add(v, _add((-w * t[0], -w * t[1], -w * t[2]), _cross(u, t)))
