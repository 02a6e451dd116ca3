"""The tiny environments do what their docstrings promise."""

import pytest
import torch

from surefoot.envs.vec_env import VecEnv
from surefoot.errors import EnvContractError
from surefoot.testing import (
    ConstantEnv,
    DiscreteTargetEnv,
    ReusedBufferEnv,
    TargetEnv,
    check_env,
    constant_gymnasium,
)

ENVS = [TargetEnv, DiscreteTargetEnv, ConstantEnv, ReusedBufferEnv]


@pytest.mark.parametrize("kind", ENVS)
def test_every_tiny_environment_is_a_vec_env_and_passes_the_check(kind):
    env = kind(num_envs=3, episode_length=7)
    assert isinstance(env, VecEnv)
    assert check_env(env).truncated >= 3
    assert check_env(kind).is_ok


def test_check_env_raises_with_every_problem_in_the_text():
    env = TargetEnv()
    env.num_envs = 0
    env.observation_spaces = {}
    with pytest.raises(EnvContractError, match=r"num_envs is 0.*observation_spaces is empty"):
        check_env(env)


def test_the_best_action_of_the_target_tasks_is_what_they_observe():
    env = TargetEnv(num_actions=2)
    step = env.step(env.reset(seed=0)["policy"][:, :2])
    assert step.rewards.tolist() == [0.0] * 4
    assert env.step(step.observations["policy"][:, :2] + 0.25).rewards.tolist() == pytest.approx([-0.5] * 4)
    discrete = DiscreteTargetEnv(start=2)
    best = discrete.reset(seed=0)["policy"].argmax(-1)
    assert discrete.step(best + 2).rewards.tolist() == [1.0] * 4
    assert discrete.step(best + 3).rewards.sum() < 4


def test_episodes_end_at_the_time_limit_with_the_observation_before_the_reset():
    env = TargetEnv(episode_length=3)
    goal = env.reset(seed=0)["policy"][:, 0]
    steps = [env.step(torch.zeros(4, 1)) for _ in range(3)]
    assert [s.truncated.all().item() for s in steps] == [False, False, True]
    assert torch.equal(steps[2].final_observations["policy"][:, 0], goal)
    assert steps[2].final_observations["policy"][:, 1].tolist() == [1.0] * 4
    assert steps[2].observations["policy"][:, 1].tolist() == [0.0] * 4


def test_groups_may_have_sizes_of_their_own():
    env = TargetEnv(groups={"policy": 4, "privileged": 2})
    assert {g: x.shape for g, x in env.reset().items()} == {"policy": (4, 4), "privileged": (4, 2)}
    assert set(TargetEnv(groups=("a", "b"), dim=5).observation_spaces) == {"a", "b"}


def test_the_reused_buffers_are_the_same_tensors_at_each_step():
    env = ReusedBufferEnv()
    first = env.reset(seed=0)["policy"]
    actions = torch.ones(4, 1)
    step = env.step(actions)
    assert step.observations["policy"] is first
    assert env.step(actions).rewards is step.rewards
    assert actions.sum() == 0


def test_the_constant_task_ends_as_asked():
    for ends in ("terminated", "truncated"):
        env = ConstantEnv(num_envs=2, episode_length=2, ends=ends)
        env.reset()
        env.step(torch.zeros(2, 1))
        assert getattr(env.step(torch.zeros(2, 1)), ends).all()
    assert constant_gymnasium("Disabled", num_envs=2).num_envs == 2
