"""Warnings about time limits, outlier rewards and a learning rate that does not move."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from surefoot.algorithm.config import PPOConfig
from surefoot.training.guards import MAX_ITERATIONS_AT_BOUND, LearningRateWatch, RewardWatch, TimeLimitWatch

MATCH = "ended exactly at max_episode_length"


def test_a_time_limit_that_is_never_reported_is_warned_of_once() -> None:
    watch = TimeLimitWatch(10, 2)
    with pytest.warns(UserWarning, match=MATCH):
        watch.look([(0, 10), (1, 10), (0, 10)], truncations=0)
    watch.look([(0, 10)] * 5, truncations=0)


def test_limits_may_differ_per_environment() -> None:
    watch = TimeLimitWatch(torch.tensor([5, 7]), 2)
    with pytest.warns(UserWarning, match=MATCH):
        watch.look([(0, 5), (1, 7), (1, 7)], truncations=0)


@pytest.mark.parametrize(
    ("episodes", "truncations"),
    [
        ([(0, 10)] * 5, 1),  # a time limit was reported
        ([(0, 9), (1, 7)] * 20, 0),  # episodes end early
        ([(0, 10)] * 3 + [(1, 9)] * 30, 0),  # three reach it by chance
        ([(0, 10)] * 2, 0),  # too few to tell
        ([], 0),
    ],
)
def test_an_honest_environment_gets_no_warning(episodes: list[tuple[int, int]], truncations: int) -> None:
    TimeLimitWatch(10, 2).look(episodes, truncations)
    TimeLimitWatch(None, 2).look(episodes, truncations)


def test_bandits_get_no_warning() -> None:
    TimeLimitWatch(1, 2).look([(0, 1)] * 10, truncations=0)


def test_an_outlier_reward_is_reported_with_size_and_environment() -> None:
    watch = RewardWatch()
    watch.look(np.full((4, 3), 0.5))
    rewards = np.full((4, 3), 0.5)
    rewards[2, 1] = -1e8
    with pytest.warns(UserWarning, match=r"environment 1 gave a reward of -1e\+08"):
        watch.look(rewards)


def test_an_outlier_in_the_first_rollout_is_seen_and_sparse_rewards_are_not_outliers() -> None:
    rewards = np.full((100, 10), -0.01)
    rewards[50, 3] = 1e6
    with pytest.warns(UserWarning, match="environment 3"):
        RewardWatch().look(rewards)
    sparse = np.zeros((100, 10))
    sparse[3, 3] = 100.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RewardWatch().look(sparse)


@pytest.mark.parametrize(("rate", "advice"), [(1e-5, "every update is too large"), (1e-2, "hardly changes")])
def test_a_learning_rate_at_its_bound_is_warned_of_once(rate: float, advice: str) -> None:
    watch = LearningRateWatch(PPOConfig())
    for _ in range(MAX_ITERATIONS_AT_BOUND - 1):
        watch.look(rate, 0.01)
    with pytest.warns(UserWarning, match=f"{MAX_ITERATIONS_AT_BOUND} iterations: .*{advice}"):
        watch.look(rate, 0.01)
    for _ in range(2 * MAX_ITERATIONS_AT_BOUND):
        watch.look(rate, 0.01)


def test_a_visit_to_the_bound_and_a_fixed_rate_are_fine() -> None:
    visiting, fixed = LearningRateWatch(PPOConfig()), LearningRateWatch(PPOConfig(schedule="fixed"))
    for i in range(3 * MAX_ITERATIONS_AT_BOUND):
        visiting.look(1e-3 if i % 20 == 0 else 1e-2, 0.01)
        fixed.look(1e-2, 0.01)


def test_a_kl_that_is_no_number_is_flagged() -> None:
    with pytest.warns(UserWarning, match="Loss/kl is not finite"):
        LearningRateWatch(PPOConfig()).look(1e-3, None)
