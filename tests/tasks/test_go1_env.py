"""The batched environment of go1-walk keeps the environment contract."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch

from surefoot.errors import ConfigError
from surefoot.tasks.go1 import make_env
from surefoot.tasks.physics import default_num_threads


def actions(env, generator=None, size=0.3):
    generator = generator or torch.Generator().manual_seed(7)
    return size * torch.randn(env.num_envs, 12, generator=generator)


def rollout(env, num_steps, generator):
    steps = []
    for _ in range(num_steps):
        step = env.step(actions(env, generator))
        steps.append(
            (step.observations["policy"], step.observations["privileged"], step.rewards, step.terminated)
        )
    return steps


def assert_same(first, second):
    for a, b in zip(first, second, strict=True):
        for x, y in zip(a, b, strict=True):
            assert torch.equal(x, y)


def test_shapes_and_types_are_those_of_the_spaces():
    env = make_env(5, num_threads=1)
    obs = env.reset()
    step = env.step(actions(env))
    for group, space in env.observation_spaces.items():
        for o in (obs[group], step.observations[group]):
            assert o.shape == (5, *space.shape)
            assert o.dtype == torch.float32
    assert step.rewards.shape == (5,)
    assert step.rewards.dtype == torch.float32
    assert step.terminated.dtype == step.truncated.dtype == torch.bool
    assert env.step_dt == 0.02
    assert env.max_episode_length == 1000
    assert env.action_space.shape == (12,)


def test_step_leaves_the_callers_actions_alone_and_does_not_depend_on_them_later():
    env, twin = make_env(4, num_threads=1), make_env(4, num_threads=1)
    env.reset()
    twin.reset()
    env._episode_step[:] = twin._episode_step[:] = env.max_episode_length - 1
    given = actions(env)
    kept = given.clone()
    env.step(given)
    assert torch.equal(given, kept)
    twin.step(kept)
    given.zero_()
    assert torch.equal(env.step(kept).observations["policy"], twin.step(kept).observations["policy"])


def test_same_seed_same_stream_and_another_seed_another_one():
    streams = []
    for seed in (1, 1, 2):
        env = make_env(4, seed=seed, num_threads=1)
        env.reset()
        streams.append(rollout(env, 5, torch.Generator().manual_seed(0)))
    assert_same(streams[0], streams[1])
    assert not torch.equal(streams[0][-1][0], streams[2][-1][0])


def test_reset_with_a_seed_starts_the_same_stream_again():
    env = make_env(4, num_threads=1)
    first = env.reset(seed=5)["policy"].clone()
    env.step(actions(env))
    assert torch.equal(env.reset(seed=5)["policy"], first)


def test_number_of_threads_does_not_change_the_result():
    streams = []
    for num_threads in (1, 3):
        env = make_env(16, num_threads=num_threads)
        env.reset()
        streams.append(rollout(env, 10, torch.Generator().manual_seed(0)))
        env.close()
    assert_same(*streams)


def test_a_restored_environment_continues_bit_for_bit():
    env = make_env(32, num_threads=1, episode_length_s=0.5)
    env.reset()
    generator = torch.Generator().manual_seed(0)
    rollout(env, 30, generator)
    file = io.BytesIO()
    torch.save(env.state_dict(), file)
    file.seek(0)
    noise = generator.get_state()
    expected = rollout(env, 30, generator)

    restored = make_env(32, seed=99, num_threads=1, episode_length_s=0.5)
    restored.load_state_dict(torch.load(file, weights_only=True))
    generator.set_state(noise)
    assert_same(rollout(restored, 30, generator), expected)


def test_a_restored_environment_can_be_reset_in_part():
    env = make_env(4, num_threads=1)
    env.reset()
    env.step(actions(env))
    restored = make_env(4, num_threads=1)
    restored.load_state_dict(env.state_dict())
    mask = torch.tensor([True, False, False, True])
    assert torch.equal(restored.reset(mask=mask)["policy"], env.reset(mask=mask)["policy"])


def test_state_of_another_size_is_refused_with_both_numbers():
    with pytest.raises(ConfigError, match="holds 4 robots and this environment has 8"):
        make_env(8, num_threads=1).load_state_dict(make_env(4, num_threads=1).state_dict())


def test_the_clock_truncates_and_the_final_observation_is_the_one_before_the_reset():
    env = make_env(3, evaluation=True, num_threads=1)
    env.reset()
    for _ in range(10):
        env.step(actions(env))
    env._episode_step[1] = env.max_episode_length - 1
    step = env.step(actions(env))
    assert step.truncated.tolist() == [False, True, False]
    assert not step.terminated.any()
    assert step.final_known.tolist() == [True, True, True]
    assert torch.equal(step.final_observations["policy"][0], step.observations["policy"][0])
    start = step.observations["policy"][1]
    assert torch.equal(start[9:33], torch.zeros(24))  # joints in the stand pose, at rest
    assert not torch.equal(step.final_observations["policy"][1], start)
    assert step.final_observations["policy"][1, 9:33].abs().max() > 0.01
    assert env.step(actions(env)).final_observations is None  # nothing ended


def test_a_fall_terminates_and_costs_outside_the_floor_of_the_reward():
    env = make_env(3, evaluation=True, num_threads=1)
    env.reset()
    env._physics.qpos[1, 3:7] = [0.0, 1.0, 0.0, 0.0]  # on its back
    env._episode_step[1] = env.max_episode_length - 1
    step = env.step(torch.zeros(3, 12))
    assert step.terminated.tolist() == [False, True, False]
    assert not step.truncated.any()  # terminated wins
    assert step.rewards[1] < -0.9 * abs(env.config.fall_reward)
    assert step.rewards[0] > 0
    assert env.step(torch.zeros(3, 12)).terminated.tolist() == [False, False, False]


def test_a_diverged_simulation_ends_that_robots_episode_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env, twin = make_env(4, num_threads=2), make_env(4, num_threads=2)
    env.reset()
    twin.reset()
    env._physics.qvel[2, 7] = float("nan")
    step, reference = env.step(actions(env)), twin.step(actions(twin))
    assert step.terminated.tolist() == [False, False, True, False]
    assert step.final_known.tolist() == [True, True, False, True]
    for x in (
        *step.observations.values(),
        *step.final_observations.values(),
        step.rewards,
        *step.log.values(),
    ):
        assert torch.isfinite(torch.as_tensor(x)).all()
    others = [0, 1, 3]
    assert torch.equal(step.rewards[others], reference.rewards[others])
    assert np.array_equal(env._physics.state[others], twin._physics.state[others])
    for _ in range(5):
        assert torch.isfinite(env.step(actions(env)).observations["policy"]).all()
    assert not list(Path().iterdir())  # MuJoCo's default handler would have left a log file


def test_a_masked_reset_touches_the_masked_robots_only():
    env = make_env(4, num_threads=1)
    env.reset()
    before = env.step(actions(env)).observations["policy"].clone()
    physics = env._physics.state.copy()
    after = env.reset(mask=torch.tensor([False, True, False, False]))["policy"]
    kept = [0, 2, 3]
    assert torch.equal(after[kept], before[kept])
    assert np.array_equal(env._physics.state[kept], physics[kept])
    assert not torch.equal(after[1], before[1])
    assert env._episode_step[1] == 0


def test_training_spreads_the_time_limits_and_evaluation_aligns_them():
    training, evaluation = make_env(64, num_threads=1), make_env(64, evaluation=True, num_threads=1)
    training.reset()
    evaluation.reset()
    assert len(np.unique(training._episode_step)) > 32
    assert (evaluation._episode_step == 0).all()


def test_evaluation_has_no_noise_no_pushes_and_one_robot():
    env, twin = (
        make_env(2, seed=1, evaluation=True, num_threads=1),
        make_env(2, seed=2, evaluation=True, num_threads=1),
    )
    env.reset()
    twin.reset()
    twin._command = env._command.copy()
    for _ in range(100):
        first, second = env.step(torch.zeros(2, 12)), twin.step(torch.zeros(2, 12))
        assert torch.equal(first.observations["policy"], second.observations["policy"])


def test_evaluation_asks_for_a_new_velocity_every_five_seconds_and_ends_after_twenty():
    env = make_env(2, evaluation=True, num_threads=1)
    command = env.reset()["policy"][:, 6:9].clone()
    env._episode_step[:] = 740  # nothing but the clock depends on it
    changes = []
    for t in range(741, 1001):
        step = env.step(torch.zeros(2, 12))
        if not torch.equal(step.observations["policy"][:, 6:9], command):
            changes.append(t)
        command = step.observations["policy"][:, 6:9].clone()
        assert step.truncated.all() == (t == 1000)
    assert changes == [990, 1000]  # 250 steps after the start, and with the new episode


def test_pushes_change_the_horizontal_velocity_in_training():
    calm = make_env(64, push_speed=0.0, num_threads=1)
    pushed = make_env(64, push_interval_s=0.02, push_speed=0.5, num_threads=1)
    calm.reset()
    pushed.reset()
    pushed._push()
    difference = pushed._physics.qvel - calm._physics.qvel
    assert (difference[:, :2] != 0).all()
    assert np.abs(difference[:, :2]).max() <= 0.5
    assert (difference[:, 2:] == 0).all()


def test_logged_errors_are_those_of_the_command_that_was_followed():
    env = make_env(3, evaluation=True, num_threads=1)
    env.reset()
    env._command[:] = [[1.0, 0.0, 0.5], [0.0, 0.0, 0.0], [0.3, 0.4, 0.0]]
    env._command_steps[:] = 1  # replaced within the step, after it was judged
    log = env.step(torch.zeros(3, 12)).log
    assert log["Eval/linear_velocity_error"].shape == (3,)
    assert log["Eval/linear_velocity_error"].tolist() == pytest.approx([1.0, 0.0, 0.5], abs=0.1)
    assert log["Eval/yaw_rate_error"].tolist() == pytest.approx([0.5, 0.0, 0.0], abs=0.1)
    assert {"Episode/trot", "Episode/linear_velocity", "Episode/torque"} <= log.keys()


def test_unknown_settings_are_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match="Did you mean 'push_speed'"):
        make_env(1, push_sped=0.1)
    with pytest.raises(ConfigError, match="Did you mean 'trot'"):
        make_env(1, reward_weights={"trott": 1.0})
    with pytest.raises(ConfigError, match="Did you mean 'forward'"):
        make_env(1, commands={"forwards": [0, 1]})
    with pytest.raises(ConfigError, match="expected 'fast' or 'accurate'"):
        make_env(1, physics="exact")
    with pytest.raises(ConfigError, match="num_threads is 0"):
        make_env(1, num_threads=0)


def test_reward_weights_can_be_replaced_by_name():
    env, plain = make_env(1, reward_weights={"trot": 0.0}, num_threads=1), make_env(1, num_threads=1)
    env.reset()
    plain.reset()
    zero = torch.zeros(1, 12)
    assert env.step(zero).log["Episode/trot"] == 0
    assert plain.step(zero).log["Episode/trot"] > 0


def test_processes_of_one_machine_share_its_cores(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    alone = default_num_threads()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(alone))
    assert default_num_threads() == 1


def test_accurate_physics_runs_the_same_task():
    env = make_env(2, evaluation=True, physics="accurate", num_threads=1)
    env.reset()
    assert env._physics.substeps == 10
    for _ in range(25):
        step = env.step(torch.zeros(2, 12))
    assert not step.terminated.any()
    assert step.observations["privileged"][:, 4:8].eq(1).all()  # stands on four feet
