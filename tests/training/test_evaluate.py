"""Evaluation counts every episode once, and policies live without their environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from surefoot.errors import CheckpointError, ConfigError, EnvContractError
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import ActorConfig
from surefoot.testing import ConstantEnv, DiscreteTargetEnv, TargetEnv
from surefoot.training.env_spec import space_from_data, space_to_data, spec_of
from surefoot.training.evaluation import InferencePolicy, evaluate, load_policy
from surefoot.training.on_policy_runner import OnPolicyRunner
from surefoot.types import Observations, Step

CPU = torch.device("cpu")
CONFIG: dict[str, Any] = {
    "num_steps_per_env": 32,
    "actor": {"hidden_dims": [16], "obs_normalization": True},
    "critic": {"hidden_dims": [16]},
    "algorithm": {"num_learning_epochs": 2, "num_mini_batches": 2},
    "logger": "none",
}


class UnevenEnv(ConstantEnv):
    """Environment i has episodes of 1 + 3i steps; odd ones fall; a row that only resets may follow."""

    def __init__(self, num_envs: int = 4, has_reset_rows: bool = False) -> None:
        super().__init__(num_envs, 1000)
        self.lengths = 1 + 3 * torch.arange(num_envs)
        self.has_reset_rows = has_reset_rows
        self.resetting = torch.zeros(num_envs, dtype=torch.bool)

    def reset(self, seed: int | None = None, mask: Tensor | None = None) -> dict[str, Tensor]:
        self.resetting[:] = False
        return super().reset(seed, mask)

    def step(self, actions: Tensor) -> Step:
        valid = ~self.resetting
        self.elapsed += valid
        ended = (self.elapsed >= self.lengths) & valid
        falls = torch.arange(self.num_envs) % 2 == 1
        self.elapsed[ended] = 0
        self.resetting = ended if self.has_reset_rows else torch.zeros_like(ended)
        return Step(
            observations=self.observe(),
            rewards=torch.where(valid, 1.0, 1e6),
            terminated=ended & falls,
            truncated=ended & ~falls,
            valid=valid if self.has_reset_rows else None,
            log={"Eval/height": torch.arange(self.num_envs).float(), "Eval/level": 3.0, "other": 1.0},
        )


def zeros(observations: Observations) -> Tensor:
    return torch.zeros(len(observations["policy"]), 1)


@pytest.mark.parametrize("has_reset_rows", [False, True])
def test_short_episodes_are_not_over_counted(has_reset_rows: bool) -> None:
    result = evaluate(zeros, UnevenEnv(4, has_reset_rows), episodes=8)
    # two episodes of each of the lengths 1, 4, 7, 10; counted as they end, most would be short
    assert result["mean_episode_length"] == 5.5
    assert result["mean_reward"] == 5.5
    assert result["std_reward"] == pytest.approx(np.std([1, 4, 7, 10]))
    assert result["episodes"] == 8
    assert result["fall_rate"] == 0.5


def test_logged_values_are_averaged_over_the_counted_steps() -> None:
    result = evaluate(zeros, UnevenEnv(4), episodes=4)
    # environment i counts 1 + 3i of 22 steps and logs i
    assert result["height"] == pytest.approx((0 * 1 + 1 * 4 + 2 * 7 + 3 * 10) / 22)
    assert result["level"] == 3.0
    assert "other" not in result


def test_an_uneven_share_and_fewer_episodes_than_environments() -> None:
    # environments 0 and 1 have one more: 1+1, 4+4, 7, 10
    assert evaluate(zeros, UnevenEnv(4), episodes=6)["mean_episode_length"] == pytest.approx(27 / 6)
    assert evaluate(zeros, UnevenEnv(4), episodes=2)["mean_episode_length"] == 2.5


def test_it_can_be_asked_to_stop() -> None:
    steps = iter(range(100))
    result = evaluate(zeros, UnevenEnv(4), episodes=400, should_stop=lambda: next(steps) >= 8)
    assert result["episodes"] == 8 + 2 + 1
    assert evaluate(zeros, UnevenEnv(4), should_stop=lambda: True) == {"episodes": 0}


def test_at_least_one_episode_is_needed() -> None:
    with pytest.raises(ConfigError, match="episodes is 0"):
        evaluate(zeros, UnevenEnv(4), episodes=0)


def test_an_endless_environment_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surefoot.training.evaluation.MAX_STEPS_WITHOUT_END", 20)
    with pytest.raises(EnvContractError, match="no episode ended within 20 steps"):
        evaluate(zeros, TargetEnv(2, episode_length=1000), episodes=1)


def policy_for(env: Any) -> ActorCritic:
    torch.manual_seed(0)
    actor = ActorConfig(hidden_dims=[8], obs_normalization=True)
    return ActorCritic(spec_of(env, 0.99, CPU), actor)


def test_deterministic_by_default_and_samples_are_seedable() -> None:
    env = TargetEnv(4)
    policy = policy_for(env)

    def score(**kwargs: Any) -> float:
        return evaluate(policy, env, episodes=8, **kwargs)["mean_reward"]

    assert score(seed=1) == score(seed=1)
    sampled = score(seed=1, deterministic=False)
    assert sampled != score(seed=1)
    assert sampled == score(seed=1, deterministic=False)
    assert sampled != score(seed=2, deterministic=False)


def test_the_mode_of_a_discrete_policy_is_its_largest_logit() -> None:
    env = DiscreteTargetEnv(4, num_actions=3, start=2)
    policy = policy_for(env)
    with torch.no_grad():
        policy.action_head.linear.weight.zero_()
        policy.action_head.linear.bias.copy_(torch.tensor([0.0, 1.0, 0.5]))
    assert InferencePolicy(policy)(env.reset(seed=0)).tolist() == [3, 3, 3, 3]


def test_evaluation_changes_neither_policy_nor_random_streams() -> None:
    env = TargetEnv(4)
    policy = policy_for(env)
    before = {k: v.clone() for k, v in policy.state_dict().items()}
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    evaluate(policy, env, episodes=4, deterministic=False, seed=3)
    assert torch.equal(torch.rand(1), expected)
    assert policy.training
    for name, value in policy.state_dict().items():
        assert torch.equal(value, before[name])


def trained(run_dir: Path, env: Any = None, config: dict[str, Any] | None = None) -> OnPolicyRunner:
    runner = OnPolicyRunner(
        env or TargetEnv(64), CONFIG | (config or {}), run_dir, task="test:Target", quiet=True
    )
    runner.learn(1)
    return runner


def test_a_loaded_policy_acts_as_the_trained_one(tmp_path: Path) -> None:
    env = TargetEnv(64)
    runner = trained(tmp_path, env)
    policy = load_policy(tmp_path, "last")
    observations = env.reset(seed=5)
    assert torch.equal(policy(observations), runner.get_inference_policy()(observations))
    assert torch.equal(policy(observations["policy"].numpy()), policy(observations))
    assert (policy.task, policy.iteration) == ("test:Target", 0)
    assert policy.config.actor.hidden_dims == [16]
    assert evaluate(policy, env, episodes=4)["episodes"] == 4


def test_a_loaded_policy_names_the_groups_that_it_misses(tmp_path: Path) -> None:
    trained(
        tmp_path,
        TargetEnv(64, groups={"policy": 3, "extra": 2}),
        {"obs_groups": {"actor": ["policy", "extra"]}},
    )
    policy = load_policy(tmp_path)
    with pytest.raises(EnvContractError, match=r"\['policy', 'extra'\].*without \['extra'\]"):
        policy({"policy": torch.zeros(1, 3)})
    with pytest.raises(EnvContractError, match="give a mapping"):
        policy(torch.zeros(1, 3))


def test_no_run_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no run"):
        load_policy(tmp_path / "absent")


@pytest.mark.parametrize(
    "space",
    [
        gymnasium.spaces.Box(-np.inf, np.array([1.0, 2.0], dtype=np.float32), dtype=np.float32),
        gymnasium.spaces.Box(0, 255, (4, 4, 3), np.uint8),
        gymnasium.spaces.Discrete(5, start=-2),
        gymnasium.spaces.MultiDiscrete([[2, 3], [4, 5]]),
        gymnasium.spaces.MultiBinary((2, 3)),
        gymnasium.spaces.MultiBinary(4),
    ],
    ids=str,
)
def test_spaces_survive_as_plain_data(space: gymnasium.Space[Any]) -> None:
    assert space_from_data(space_to_data(space)) == space


def test_asking_for_an_inference_policy_does_not_disturb_training() -> None:
    weights = []
    for asks in (False, True):
        runner = OnPolicyRunner(TargetEnv(64), CONFIG, quiet=True)
        runner.learn(1)
        if asks:
            policy = runner.get_inference_policy()
            policy(TargetEnv(8).reset())
            evaluate(policy, TargetEnv(8), episodes=2, deterministic=False)
            assert runner.policy.training
        runner.learn(1)
        weights.append({k: v.clone() for k, v in runner.alg.state_dict().items()})
    assert all(torch.equal(weights[0][k], weights[1][k]) for k in weights[0])


def test_an_inference_policy_is_a_snapshot() -> None:
    env = TargetEnv(64)
    runner = OnPolicyRunner(env, CONFIG, quiet=True)
    policy = runner.get_inference_policy()
    observations = {g: x.clone() for g, x in env.reset(seed=1).items()}
    before = policy(observations)
    runner.learn(1)
    assert torch.equal(policy(observations), before)
    assert not torch.equal(runner.get_inference_policy()(observations), before)
