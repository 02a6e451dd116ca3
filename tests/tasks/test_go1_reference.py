"""The reference motion of the Go1: physically possible, in its gait, and what its script writes."""

from dataclasses import replace

import numpy as np
import pytest

from surefoot.extensions.amp.loaders import load_clip
from surefoot.tasks.go1.amp import robot_states
from surefoot.tasks.go1.reference import CLIPS, FRAME_DT, GAITS, RECIPES, SWING_HEIGHT, generate, write_clips
from surefoot.tasks.go1.robot import (
    JOINT_LOWER,
    JOINT_UPPER,
    JOINTS,
    STAND,
    foot_kinematics,
    leg_inverse_kinematics,
    mirror_of,
)
from surefoot.tasks.go1.state import CONTACT_MARGIN

FASTEST_JOINT = 25.0
"""rad/s."""


def foot_places(clip):
    """[F, 4, 3] m, foot centres in the world; the trunk of the reference only turns about the vertical."""
    (x, y, z), _ = foot_kinematics(clip.joint_positions.numpy(), np.zeros((clip.num_frames, 12)))
    w, qz = clip.root_orientation[:, 0].numpy(), clip.root_orientation[:, 3].numpy()
    heading = 2 * np.arctan2(qz, w)[:, None]
    px, py, pz = (clip.root_position[:, i : i + 1].numpy() for i in range(3))
    return np.stack(
        [
            px + np.cos(heading) * x - np.sin(heading) * y,
            py + np.sin(heading) * x + np.cos(heading) * y,
            pz + z,
        ],
        -1,
    )


def leg_phase(clip, gait):
    time = np.arange(clip.num_frames)[:, None] * clip.dt
    return (gait.frequency * time + np.array(gait.offset)) % 1.0


clips = pytest.mark.parametrize("name", RECIPES)


@pytest.fixture
def clip(name):
    return load_clip(CLIPS / f"{name}.npz", JOINTS)


def test_inverse_kinematics_undoes_forward_kinematics():
    rng = np.random.default_rng(0)
    joints = rng.uniform(np.maximum(JOINT_LOWER, -1.2), np.minimum(JOINT_UPPER, 1.5), (200, 12))
    feet, _ = foot_kinematics(joints, np.zeros_like(joints))
    assert np.allclose(leg_inverse_kinematics(np.stack(feet, -1)), joints, atol=1e-5)


def test_the_shipped_clips_are_what_the_script_writes(tmp_path):
    write_clips(tmp_path)
    assert {p.name for p in CLIPS.glob("*.npz")} == {f"{name}.npz" for name in RECIPES}
    for shipped in CLIPS.glob("*.npz"):
        with np.load(shipped) as old, np.load(tmp_path / shipped.name) as new:
            assert old.files == new.files
            for field in old.files:
                if old[field].dtype.kind == "f":
                    assert np.allclose(old[field], new[field], atol=1e-5), (shipped.name, field)
                else:
                    assert np.array_equal(old[field], new[field])


@clips
def test_joints_stay_within_their_limits_and_speeds(clip):
    assert clip.dt == FRAME_DT
    q = clip.joint_positions.numpy()
    assert (q > JOINT_LOWER + 0.1).all()
    assert (q < JOINT_UPPER - 0.1).all()
    assert clip.joint_velocities.abs().max() < FASTEST_JOINT


@clips
def test_motion_is_continuous(clip):
    feet = foot_places(clip)
    assert np.abs(np.diff(feet, axis=0)).max() < 0.12  # m a frame: 6 m/s
    jump = (clip.joint_velocities[1:] - clip.joint_velocities[:-1]).abs().max()
    assert jump < 0.7 * FASTEST_JOINT


@clips
def test_stance_feet_are_on_the_floor_and_swing_feet_above(name, clip):
    gait = GAITS[RECIPES[name][0]]
    phase, height = leg_phase(clip, gait), robot_states(clip).foot_height
    is_standing = phase >= 1 - gait.duty
    assert np.abs(height[is_standing]).max() < CONTACT_MARGIN
    assert height.min() > -CONTACT_MARGIN
    if name != "stand":
        middle = np.abs(phase - 0.5 * (1 - gait.duty)) < 0.03
        assert np.median(height[middle]) == pytest.approx(SWING_HEIGHT, abs=0.01)


@clips
def test_stance_feet_do_not_slip(name, clip):
    gait = GAITS[RECIPES[name][0]]
    is_standing = leg_phase(clip, gait) >= 1 - gait.duty
    stays = is_standing[1:] & is_standing[:-1]
    moved = np.linalg.norm(np.diff(foot_places(clip)[..., :2], axis=0), axis=-1)
    assert moved[stays].max() < 1e-5
    # and so say the velocities that the discriminator sees, away from the ends of a stance
    inside = is_standing[2:] & is_standing[1:-1] & is_standing[:-2]
    assert (
        robot_states(clip).foot_slip[1:-1][inside].max() < 0.1
    )  # central differences are good to second order


@clips
def test_feet_meet_in_the_pairs_of_the_gait(name, clip):
    if name == "stand":
        pytest.skip("it does not move")
    contact = robot_states(clip).contact
    pairs = {"trot": ((0, 3), (1, 2)), "pace": ((0, 2), (1, 3)), "bound": ((0, 1), (2, 3))}
    for gait, ((a, b), (c, d)) in pairs.items():
        together = 0.5 * ((contact[:, a] == contact[:, b]).mean() + (contact[:, c] == contact[:, d]).mean())
        if gait == RECIPES[name][0]:
            assert together > 0.98
        elif name != "trot_course":  # which stands now and then
            assert together < 0.2


@clips
def test_the_trunk_follows_the_commands(name, clip):
    _, commands = RECIPES[name]
    state = robot_states(clip)
    start = 0
    for seconds, *velocity in commands:
        end = start + round(seconds / FRAME_DT)
        middle = slice((start + end) // 2, end - 1)  # after the blend from the command before
        measured = np.column_stack([state.linear_velocity_yaw[:, :2], state.yaw_rate])[middle]
        assert np.abs(measured - velocity).max() < 0.01
        start = end
    assert np.ptp(state.height) < 1e-6


def test_the_course_covers_the_commands_of_the_task():
    _, commands = RECIPES["trot_course"]
    velocity = np.array([command[1:] for command in commands])
    assert (velocity.min(0) < [-0.8, -0.3, -0.8]).all()
    assert (velocity.max(0) > [1.3, 0.4, 0.8]).all()  # and its mirror image beyond -0.4 to the right
    assert (velocity == 0).all(1).sum() == 4


def test_standing_is_the_stand_pose_up_to_the_trunks_height():
    clip = load_clip(CLIPS / "stand.npz")
    assert np.abs(clip.joint_positions.numpy() - STAND).max() < 0.06
    assert (clip.joint_velocities == 0).all()


def test_a_mirrored_command_gives_the_mirrored_gait_half_a_cycle_later():
    trot = replace(GAITS["trot"], frequency=2.5)  # half a cycle is ten frames
    left = generate(trot, [(2.0, 0.5, 0.2, 0.6)])["joint_pos"]
    right = generate(trot, [(2.0, 0.5, -0.2, -0.6)])["joint_pos"]
    order, sign = mirror_of(JOINTS)
    assert np.allclose(left[:-10, order] * sign, right[10:], atol=1e-4)
