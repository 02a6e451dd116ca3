"""go1-amp: what the discriminator compares is the same on both sides, and ends of episodes are real."""

import numpy as np
import pytest
import torch

from surefoot.extensions.amp.loaders import load_clip
from surefoot.tasks.go1 import make_env as make_walk
from surefoot.tasks.go1.amp import REWARD_WEIGHTS, STYLE, TROT_CLIPS, make_env, motion_of, reference_motion
from surefoot.tasks.go1.env import STEP_DT
from surefoot.tasks.go1.reference import CLIPS
from surefoot.tasks.go1.robot import JOINTS
from surefoot.tasks.resolve import make, preset
from surefoot.training.on_policy_runner import OnPolicyRunner


def test_the_task_is_bundled_and_its_group_is_as_wide_as_the_reference():
    env = make("go1-amp", 4, kwargs={"num_threads": 1})
    width = reference_motion(env.step_dt)[0][0].shape[1]
    assert env.observation_spaces["amp"].shape == (width,)
    assert env.reset()["amp"].shape == env.step(torch.zeros(4, 12)).observations["amp"].shape == (4, width)
    env.close()


def test_robots_placed_on_the_clips_frames_observe_the_reference():
    clip = load_clip(CLIPS / "trot_curve_left.npz", JOINTS, STEP_DT)
    features = reference_motion(STEP_DT)[2 * list(TROT_CLIPS).index("trot_curve_left")][0]
    env = make_env(clip.num_frames, num_threads=1)
    env.reset()
    env._physics.qpos[:] = np.column_stack([clip.root_position, clip.root_orientation, clip.joint_positions])
    env._physics.qvel[:] = np.column_stack(
        [clip.root_linear_velocity, clip.root_angular_velocity, clip.joint_velocities]
    )
    assert np.array_equal(env._observe(env._motion())["amp"], features.numpy())  # noise is for sensors only


def test_the_reference_agrees_with_the_features_by_name():
    clip = load_clip(CLIPS / "trot_forward_1.0.npz", JOINTS, STEP_DT)
    features = reference_motion(STEP_DT)[2 * list(TROT_CLIPS).index("trot_forward_1.0")][0]
    assert torch.allclose(features[:, 12:24] / 0.05, clip.features(["joint_velocities"]), atol=1e-4)
    assert torch.allclose(features[:, 24:26], clip.features(["root_linear_velocity_b"])[:, :2], atol=1e-4)


def test_every_clip_comes_with_its_mirror_image():
    env = make_env(2, num_threads=1)
    motions = reference_motion(STEP_DT)
    assert len(motions) == 2 * len(TROT_CLIPS)
    for (x, weight), (mirrored, same_weight) in zip(motions[::2], motions[1::2], strict=True):
        assert weight == same_weight
        assert torch.equal(env.mirror.mirror_observations({"amp": x})["amp"], mirrored)
    turn = [float(x[:, 26].mean()) for x, _ in motions]
    assert max(turn) == pytest.approx(1.0, abs=1e-3)
    assert min(turn) == pytest.approx(-1.0, abs=1e-3)


def test_another_gait_can_be_chosen():
    pace = motion_of({"pace_forward_1.0": 0.7}, STEP_DT)
    assert [weight for _, weight in pace] == [0.7, 0.7]
    trot = reference_motion(STEP_DT)[2 * list(TROT_CLIPS).index("trot_forward_1.0")][0]
    assert pace[0][0].shape == trot.shape
    assert not torch.allclose(pace[0][0], trot, atol=0.1)


@pytest.mark.parametrize("step_dt", [0.02, 0.01, 1 / 60])
def test_p03_the_reference_has_the_control_steps_frames(step_dt):
    names = list(TROT_CLIPS)
    features = reference_motion(step_dt)[2 * names.index("trot_forward_1.0")][0]
    hip, speed = features[:, 0:12], features[:, 12:24] / 0.05
    # positions advance by velocity times the control step
    middle = 0.5 * (speed[1:] + speed[:-1]) * step_dt
    assert (hip[1:] - hip[:-1] - middle).abs().max() < 0.1 * (hip[1:] - hip[:-1]).abs().max()
    assert len(features) == int(1.98 / step_dt + 1e-6) + 1


def test_p05_a_fall_and_the_clock_report_the_style_before_the_reset():
    env = make_env(3, evaluation=True, num_threads=1)
    env.reset()
    for _ in range(5):
        env.step(torch.full((3, 12), 0.4))
    env._physics.qpos[0, 3:7] = [0.0, 1.0, 0.0, 0.0]  # on its back
    env._episode_step[1] = env.max_episode_length - 1
    step = env.step(torch.full((3, 12), 0.4))
    assert step.terminated.tolist() == [True, False, False]
    assert step.truncated.tolist() == [False, True, False]
    assert step.final_known.all()
    final, now = step.final_observations["amp"], step.observations["amp"]
    assert torch.equal(final[2], now[2])
    for row in (0, 1):
        assert now[row].abs().max() < 0.02  # stands again, at rest
        assert final[row, :12].abs().max() > 0.1  # the pose that the action had led to


def test_no_reward_speaks_of_gait_or_posture():
    env = make_env(2, num_threads=1)
    env.reset()
    log = env.step(torch.zeros(2, 12)).log
    assert set(REWARD_WEIGHTS) == {
        n for n in env._weights if log[f"Episode/{n}"] == 0 and env._weights[n] == 0
    }
    kept = {name for name, weight in env._weights.items() if weight}
    assert kept == {"linear_velocity", "yaw_rate", "action_rate", "torque", "joint_limits"}
    assert make_env(1, num_threads=1, reward_weights={"tilt": -1.0})._weights["tilt"] == -1.0


def test_the_robot_and_the_policys_observations_are_those_of_go1_walk():
    walk, amp = make_walk(4, num_threads=1), make_env(4, num_threads=1)
    assert torch.equal(walk.reset()["policy"], amp.reset()["policy"])
    for _ in range(3):
        a, b = walk.step(torch.full((4, 12), 0.2)), amp.step(torch.full((4, 12), 0.2))
        assert torch.equal(a.observations["policy"], b.observations["policy"])
    assert "amp" not in walk.observation_spaces


def test_style_leaves_out_what_the_reference_holds_constant():
    stacked = torch.cat([x for x, weight in reference_motion(STEP_DT)])
    assert stacked.std(0).min() > 0.02
    assert sum(len(e.names) for e in STYLE.values()) == stacked.shape[1]


def test_the_preset_trains_policy_and_discriminator(tmp_path):
    config = {**preset("go1-amp"), "logger": "none", "num_envs": 16, "num_steps_per_env": 40}
    runner = OnPolicyRunner(make_env(16, num_threads=1), config, tmp_path, device="cpu", quiet=True)
    before = [p.clone() for p in runner.alg.extensions[0].discriminator.parameters()]
    runner.learn(2)
    for name in (
        "Amp/accuracy_demo",
        "Amp/accuracy_policy",
        "Amp/grad_penalty",
        "Reward/style",
        "Reward/task",
    ):
        assert np.isfinite(runner.metrics[name]), name
    after = runner.alg.extensions[0].discriminator.parameters()
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
