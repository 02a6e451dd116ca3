"""RewardScaling: by a constant, or by the deviation of the running discounted return."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from surefoot.algorithm.rollout_storage import RolloutStorage
from surefoot.errors import ConfigError
from surefoot.extensions.reward_scaling import RewardScaling
from surefoot.testing.extension_suite import _train, make_ppo
from surefoot.types import EnvSpec, Step

GAMMA = 0.99


class Rollouts:
    """Rollouts of given rewards, ends and valid rows [T, N]."""

    def __init__(self, num_envs: int, num_steps: int) -> None:
        space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
        self.storage = RolloutStorage(num_envs, num_steps, {"policy": space})
        self.extension = RewardScaling()
        self.extension.setup(EnvSpec({"policy": space}, space, num_envs, gamma=GAMMA), None)  # type: ignore[arg-type]

    def play(
        self, rewards: Tensor, terminated: Any = None, truncated: Any = None, valid: Any = None
    ) -> tuple[Tensor, Tensor]:
        """Scaled rewards and the running returns [T, N]."""
        no = torch.zeros(rewards.shape, dtype=torch.bool)
        terminated, truncated = (
            no if x is None else torch.as_tensor(x).bool() for x in (terminated, truncated)
        )
        n = rewards.shape[1]
        obs = {"policy": torch.zeros(n, 1)}
        for t in range(len(rewards)):
            ok = None if valid is None else torch.as_tensor(valid[t]).bool()
            self.storage.add_action(obs, torch.zeros(n, 1), {"mean": torch.zeros(n, 1)})
            self.storage.add_transition(Step(obs, rewards[t], terminated[t], truncated[t], valid=ok))
        self.storage.end(obs)
        scaled = self.extension.reward(self.storage, self.storage.rewards.clone())
        returns = self.extension.returns.reshape(rewards.shape).clone()
        self.extension.learn(self.storage)
        self.storage.begin()
        return scaled, returns


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers).unsqueeze(-1)


def test_the_running_return_is_discounted_over_the_steps_so_far() -> None:
    _, returns = Rollouts(1, 3).play(column(1, 1, 1))
    # 1, 1 + γ, 1 + γ + γ²
    assert returns.flatten().tolist() == pytest.approx([1.0, 1.99, 2.9701])


def test_it_goes_on_over_the_border_of_two_rollouts() -> None:
    rollouts = Rollouts(1, 2)
    rollouts.play(column(1, 1))
    _, returns = rollouts.play(column(1, 0))
    # 1 + γ·1.99, γ times that
    assert returns.flatten().tolist() == pytest.approx([2.9701, 2.940399])


@pytest.mark.parametrize("ends", ["terminated", "truncated"])
def test_it_starts_anew_after_an_episode_ends_in_either_way(ends: str) -> None:
    rollouts = Rollouts(1, 3)
    _, returns = rollouts.play(column(1, 1, 1), **{ends: [[0], [1], [0]]})
    assert returns.flatten().tolist() == pytest.approx([1.0, 1.99, 1.0])
    assert rollouts.extension.carry.tolist() == [1.0]
    _, returns = rollouts.play(column(1, 1, 1), **{ends: [[0], [0], [1]]})
    assert returns.flatten().tolist() == pytest.approx([1.99, 2.9701, 3.940399])
    # the end of the rollout is the end of the episode: nothing is carried
    assert rollouts.extension.carry.tolist() == [0.0]
    _, returns = rollouts.play(column(1, 1, 1))
    assert returns[0].item() == 1.0


def test_rows_that_are_only_an_autoreset_are_ignored() -> None:
    # episodes of three steps, truncated; in NEXT_STEP mode a fourth row resets
    same = Rollouts(1, 6)
    same.play(torch.ones(6, 1), truncated=[[0], [0], [1]] * 2)
    following = Rollouts(1, 8)
    rewards = torch.tensor([1.0, 1, 1, 0] * 2).unsqueeze(-1)
    _, returns = following.play(rewards, truncated=[[0], [0], [1], [0]] * 2, valid=[[1], [1], [1], [0]] * 2)
    assert returns.flatten().tolist()[4:7] == pytest.approx([1.0, 1.99, 2.9701])
    first, second = same.extension.statistics, following.extension.statistics
    assert first.count.item() == second.count.item() == 6
    assert first.mean.item() == pytest.approx(second.mean.item())
    assert first.std.item() == pytest.approx(second.std.item())


@pytest.mark.parametrize("junk", [1e9, float("nan"), float("inf")])
def test_the_reward_of_an_invalid_row_has_no_effect(junk: float) -> None:
    rollouts = Rollouts(1, 4)
    scaled, _ = rollouts.play(
        column(1, 2, junk, 3), terminated=[[0], [1], [0], [0]], valid=[[1], [1], [0], [1]]
    )
    assert rollouts.extension.statistics.count.item() == 3
    assert rollouts.extension.carry.tolist() == [3.0]
    assert scaled[[0, 1, 3]].isfinite().all()


def test_rewards_are_divided_by_the_deviation_of_the_returns() -> None:
    rollouts = Rollouts(64, 8)
    rewards = 100 * torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    scaled, returns = rollouts.play(rewards)
    # the first rollout is scaled by its own deviation
    torch.testing.assert_close(scaled, rewards / (returns.std(unbiased=False) + 1e-4), rtol=1e-4, atol=1e-5)
    deviation = rollouts.extension.statistics.std.item()
    # the next one by that of the rollouts before it, which it does not change until it was learned from
    scaled, _ = rollouts.play(torch.full((8, 64), 50.0))
    assert scaled.unique().item() == pytest.approx(50 / deviation, rel=1e-4)


def test_scaled_rewards_are_clipped() -> None:
    rollouts = Rollouts(1, 4)
    rollouts.play(column(1, -1, 1, -1))
    scaled, _ = rollouts.play(column(1e6, -1e6, 0, 0))
    assert scaled.flatten().tolist() == [10.0, -10.0, 0.0, 0.0]


def test_rewards_of_zero_stay_zero() -> None:
    scaled, _ = Rollouts(2, 3).play(torch.zeros(3, 2))
    assert scaled.abs().max().item() == 0.0


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), splits=st.integers(1, 4))
def test_the_statistics_do_not_depend_on_how_a_run_is_cut_into_rollouts(seed: int, splits: int) -> None:
    g = torch.Generator().manual_seed(seed)
    rewards = torch.randn(12, 3, generator=g)
    ends = torch.rand(12, 3, generator=g) < 0.2
    whole, parts = Rollouts(3, 12), Rollouts(3, 12 // splits)
    whole.play(rewards, terminated=ends)
    for r, e in zip(rewards.chunk(splits), ends.chunk(splits), strict=True):
        parts.play(r, truncated=e)
    torch.testing.assert_close(
        whole.extension.statistics.mean, parts.extension.statistics.mean, rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(
        whole.extension.statistics.std, parts.extension.statistics.std, rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(whole.extension.carry, parts.extension.carry, rtol=1e-4, atol=1e-5)


def test_a_constant_scale_multiplies_and_keeps_no_statistics() -> None:
    extension = RewardScaling(scale=0.01)
    ppo = make_ppo(extension)
    _train(ppo, 1)
    torch.testing.assert_close(ppo.reward, 0.01 * ppo.storage.rewards)
    assert extension.statistics.count.item() == 0


@pytest.mark.parametrize("arguments", [{"scale": 0.0}, {"scale": -1.0}, {"clip": 0.0}])
def test_impossible_arguments_are_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="above 0"):
        RewardScaling(**arguments)


def test_the_scale_is_logged_and_training_uses_it() -> None:
    extension = RewardScaling()
    ppo = make_ppo(extension)
    seen: list[dict[str, Tensor]] = []
    update = ppo.update
    ppo.update = lambda: seen.append(update()) or seen[-1]  # type: ignore[method-assign,func-returns-value]
    _train(ppo, 2)
    assert seen[-1]["Reward/scale"].item() == pytest.approx(
        1 / (extension.statistics.std.item() + 1e-4), rel=1e-5
    )
    assert extension.statistics.count.item() == 2 * 48
    assert "extensions.0.carry" in ppo.state()["tensors"]
