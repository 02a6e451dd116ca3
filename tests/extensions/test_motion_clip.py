"""Motion clips: velocities, resampling to the control step, joints by name, features."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.errors import ConfigError
from surefoot.extensions.amp.clip import FEATURES, MotionClip, resample
from surefoot.extensions.amp.rotations import multiply, rotation_vector, slerp

JOINTS = ("hip", "knee")


def about(axis, angle):
    """Unit quaternions [F, 4] of rotations by `angle` [F] about a unit `axis`."""
    half = 0.5 * torch.as_tensor(angle, dtype=torch.float64)[:, None]
    return torch.cat([half.cos(), half.sin() * torch.tensor(axis, dtype=torch.float64)], -1)


def clip_of(frames=5, dt=0.02, speed=1.0, turn=0.5, **changes):
    """Along the world's x at `speed`, turning left at `turn`, joints moving at 1 and -2 rad/s."""
    t = torch.arange(frames, dtype=torch.float64) * dt
    fields = {
        "name": "made.npz",
        "dt": dt,
        "root_position": torch.stack([speed * t, 0 * t, 0 * t + 0.3], 1),
        "root_orientation": about((0.0, 0.0, 1.0), turn * t),
        "joint_positions": torch.stack([t, -2 * t], 1),
        "joint_names": JOINTS,
    }
    return MotionClip(**{**fields, **changes})


def test_velocities_of_a_steady_motion_are_exact():
    clip = clip_of()
    assert torch.allclose(clip.root_linear_velocity, torch.tensor([1.0, 0.0, 0.0]).double().expand(5, 3))
    assert torch.allclose(clip.root_angular_velocity, torch.tensor([0.0, 0.0, 0.5]).double().expand(5, 3))
    assert torch.allclose(clip.joint_velocities, torch.tensor([1.0, -2.0]).double().expand(5, 2))


def test_angular_velocity_is_in_the_roots_frame():
    # heading left by 90 degrees, then pitching: the world's axis is -x, the root's is y
    heading = about((0.0, 0.0, 1.0), [math.pi / 2] * 5)
    clip = clip_of(root_orientation=multiply(heading, about((0.0, 1.0, 0.0), torch.arange(5) * 0.02)))
    assert torch.allclose(clip.root_angular_velocity, torch.tensor([0.0, 1.0, 0.0]).double().expand(5, 3))


def test_the_sign_of_a_quaternion_does_not_matter():
    clip = clip_of()
    flipped = clip.root_orientation.clone()
    flipped[[0, 2, 3]] *= -1
    twin = clip_of(root_orientation=flipped)
    assert torch.allclose(twin.root_angular_velocity, clip.root_angular_velocity)
    assert torch.allclose(resample(twin, 0.03).projected_gravity, resample(clip, 0.03).projected_gravity)


def test_features_are_those_named_in_that_order():
    clip = clip_of(foot_positions=torch.arange(5.0)[:, None].repeat(1, 3))
    x = clip.features(
        ["root_height", "joint_velocities", "foot_positions", "projected_gravity"], ["knee", "hip"]
    )
    assert x.dtype == torch.float32
    assert torch.allclose(x[3], torch.tensor([0.3, -2.0, 1.0, 3.0, 3.0, 3.0, 0.0, 0.0, -1.0]))
    assert clip.features(list(FEATURES)).shape == (5, 2 + 2 + 1 + 3 + 3 + 3 + 3)


def test_linear_velocity_of_the_features_is_in_the_roots_frame():
    clip = clip_of(turn=0.0, root_orientation=about((0.0, 0.0, 1.0), [math.pi / 2] * 5))
    velocity = clip.features(["root_linear_velocity_b"])
    assert torch.allclose(velocity, torch.tensor([0.0, -1.0, 0.0]).expand(5, 3), atol=1e-6)  # it slides right


def test_unknown_features_and_joints_are_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown name 'root_hight'.*Did you mean 'root_height'"):
        clip_of().features(["root_hight"])
    with pytest.raises(
        ConfigError, match=r"made\.npz: joint_names: there is no joint 'kneee'.*Did you mean 'knee'"
    ):
        clip_of().features(["joint_positions"], ["kneee"])
    with pytest.raises(ConfigError, match=r"made\.npz: foot_positions: the file has none"):
        clip_of().features(["foot_positions"])


# --- P03: frames of another rate than the control step


def test_p03_pairs_of_resampled_frames_are_one_control_step_apart():
    clip = resample(clip_of(frames=31, dt=1 / 60), 0.02)
    assert clip.num_frames == 26  # 0.5 s
    x = clip.root_position[:, 0]
    assert torch.allclose(x[1:] - x[:-1], torch.tensor(0.02).double(), atol=1e-9)
    assert torch.allclose(clip.root_linear_velocity[:, 0], torch.tensor(1.0).double(), atol=1e-9)
    assert torch.allclose(clip.root_angular_velocity[:, 2], torch.tensor(0.5).double(), atol=1e-9)


def test_p03_a_clip_shorter_than_the_control_step_is_refused():
    with pytest.raises(ConfigError, match=r"made\.npz: lasts 0\.015 s.*shorter than one step of 0\.02 s"):
        resample(clip_of(frames=4, dt=0.005), 0.02)


def test_frames_at_the_control_step_stay_bit_for_bit():
    clip = clip_of()
    assert resample(clip, 0.02) is clip


@settings(max_examples=40, deadline=None)
@given(frames=st.integers(2, 60), dt=st.floats(0.005, 0.1), new_dt=st.floats(0.005, 0.1))
def test_resampling_a_steady_motion_keeps_its_velocities_and_stays_inside(frames, dt, new_dt):
    clip = clip_of(frames, dt)
    if clip.duration < new_dt:
        return
    new = resample(clip, new_dt)
    assert new.duration <= clip.duration + 1e-6
    assert clip.duration - new.duration < new_dt + 1e-6  # nothing whole is lost
    for name in ("root_linear_velocity", "root_angular_velocity", "joint_velocities"):
        expected = getattr(clip, name)[0].expand_as(getattr(new, name))
        assert torch.allclose(getattr(new, name), expected, atol=1e-4)
    assert torch.allclose(torch.linalg.vector_norm(new.root_orientation, dim=-1), torch.ones(1).double())


@settings(max_examples=40, deadline=None)
@given(
    angle=st.floats(-3.1, 3.1),
    fraction=st.floats(0.0, 1.0),
    axis=st.sampled_from([(1.0, 0.0, 0.0), (0.0, 0.6, 0.8), (0.0, 0.0, -1.0)]),
    sign=st.sampled_from([1.0, -1.0]),
)
def test_slerp_turns_by_the_same_share_of_the_angle(angle, fraction, axis, sign):
    start, end = about(axis, [0.0]), sign * about(axis, [angle])
    middle = slerp(start, end, torch.tensor([[fraction]]).double())
    expected = fraction * angle * torch.tensor(axis).double()
    assert torch.allclose(rotation_vector(middle)[0], expected, atol=1e-7)


# --- P04: faults that a clip refuses whatever file it comes from


def with_value(field, frame, value):
    x = getattr(clip_of(), field).clone()
    x[frame] = value
    return {field: x}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (with_value("root_position", 3, float("nan")), r"frame 3, root_position: .*not finite"),
        (with_value("joint_positions", 4, float("inf")), r"frame 4, joint_positions: .*not finite"),
        (
            with_value("root_orientation", 1, 0.0),
            r"frame 1, root_orientation: .*not a quaternion of length 1",
        ),
        ({"joint_names": ("hip",)}, r"joint_positions has shape \(5, 2\); expected \(5, 1\)"),
        ({"joint_names": ("hip", "hip")}, r"joint_names has a name twice"),
        ({"root_position": torch.zeros(5, 2)}, r"root_position has shape \(5, 2\); expected \(5, 3\)"),
        ({"root_orientation": torch.ones(4, 4)}, r"root_orientation has shape \(4, 4\); expected \(5, 4\)"),
        ({"dt": 0.0}, r"the time between frames is 0\.0 s"),
        (
            {"root_orientation": about((1.0, 0.0, 0.0), [math.pi] * 5)},
            r"frame 0, root_orientation: the robot is upside down.*quaternion_order",
        ),
    ],
)
def test_p04_each_fault_of_a_clip_is_named_with_frame_and_field(changes, text):
    with pytest.raises(ConfigError, match=rf"^made\.npz: {text}"):
        clip_of(**changes)


def test_p04_a_clip_of_one_frame_is_refused():
    with pytest.raises(ConfigError, match=r"made\.npz: 1 frame; a motion needs at least 2"):
        clip_of(frames=1)


def test_p04_a_tumbling_robot_is_not_taken_for_a_wrong_quaternion_order():
    clip_of(root_orientation=about((1.0, 0.0, 0.0), [0.0, 1.0, 3.0, 1.0, 0.0]))


def test_p04_quaternions_of_few_digits_are_normalised():
    rough = (about((0.0, 0.0, 1.0), torch.arange(5) * 0.3) * 1e3).round() / 1e3
    norm = torch.linalg.vector_norm(clip_of(root_orientation=rough).root_orientation, dim=-1)
    assert torch.allclose(norm, torch.ones(5).double(), atol=1e-12)
