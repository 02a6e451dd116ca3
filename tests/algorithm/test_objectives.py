"""The policy objective: penalty, its β, and an objective of one's own."""

from __future__ import annotations

import math

import pytest
import torch
from hand_made import Task, Watcher, assert_same_weights, make_ppo, weights_of
from torch import Tensor

from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.losses import adapt_beta
from surefoot.algorithm.objectives import Clip, Objective, Penalty
from surefoot.errors import ConfigError

PENALTY = PPOConfig(policy_objective="penalty", schedule="fixed", num_mini_batches=2, num_learning_epochs=2)


@pytest.mark.parametrize(
    ("kl", "expected"),
    [
        (0.016, 2.0),  # above 1.5·.01: doubled
        (0.014, 1.0),
        (0.007, 1.0),  # not below .01/1.5 = .00667
        (0.006, 0.5),  # halved
        (0.0, 0.5),
        (math.nan, 1.0),  # nothing is known
    ],
)
def test_beta_doubles_above_and_halves_below_the_target(kl: float, expected: float) -> None:
    assert adapt_beta(torch.tensor(1.0), torch.tensor(kl), 0.01).item() == expected


def test_beta_stays_within_its_bounds() -> None:
    high, low = torch.tensor(8e3), torch.tensor(1.5e-4)
    assert adapt_beta(high, torch.tensor(1.0), 0.01).item() == 1e4
    assert adapt_beta(low, torch.tensor(1e-9), 0.01).item() == pytest.approx(1e-4)
    penalty = Penalty()
    for _ in range(100):
        penalty.end_iteration(torch.tensor(float("inf")))
    assert penalty.beta.item() == 1e4


class CountedKL(Penalty):
    """A Penalty that is told a made-up KL."""

    def __init__(self, kl: float) -> None:
        super().__init__(kl_target=0.01)
        self.made_up = kl

    def end_iteration(self, kl: Tensor) -> None:
        super().end_iteration(torch.full_like(kl, self.made_up))


@pytest.mark.parametrize(("kl", "expected"), [(0.1, 8.0), (0.001, 0.125), (0.01, 1.0)])
def test_beta_follows_the_kl_of_each_iteration(kl: float, expected: float) -> None:
    ppo = make_ppo(PENALTY, objective=CountedKL(kl))
    Task().run(ppo, 3)
    assert ppo.objective.beta.item() == expected  # 2³ or ½³


def test_beta_is_led_by_the_mean_kl_of_the_last_epoch() -> None:
    told: list[float] = []

    class Told(Clip):
        def end_iteration(self, kl: Tensor) -> None:
            told.append(kl.item())

    watcher = Watcher()
    ppo = make_ppo(PENALTY, objective=Told(), extensions=[watcher])
    Task().run(ppo)
    last_epoch = [seen["kl"].mean().item() for seen in watcher.seen[2:]]
    assert told == [pytest.approx(sum(last_epoch) / 2, rel=1e-3)]


def test_the_penalty_holds_the_policy_back() -> None:
    def moved(beta: float) -> float:
        ppo = make_ppo(
            PPOConfig(policy_objective="penalty", schedule="fixed", learning_rate=0.01, kl_beta=beta)
        )
        return Task().run(ppo)[0]["Loss/kl"].item()

    assert moved(1000.0) < 0.5 * moved(1e-4)


def test_the_penalty_starts_from_the_configured_beta() -> None:
    ppo = make_ppo(PPOConfig(policy_objective="penalty", schedule="fixed", kl_beta=3.0))
    assert ppo.objective.beta.item() == 3.0


class Unclipped(Objective):
    """The plain policy gradient through the ratio."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, log_ratio: Tensor, advantage: Tensor, kl: Tensor) -> Tensor:
        self.calls += 1
        assert log_ratio.shape == advantage.shape == kl.shape
        assert not kl.requires_grad
        return -advantage * log_ratio.exp()


def test_an_objective_of_ones_own_replaces_the_clip() -> None:
    ppo = make_ppo(PPOConfig(num_mini_batches=2, num_learning_epochs=3), objective=Unclipped())
    Task().run(ppo)
    assert ppo.objective.calls.item() == 6
    assert "objective.calls" in ppo.state()["tensors"]


def test_an_objective_equal_to_the_clip_gives_the_same_weights() -> None:
    first, second = make_ppo(), make_ppo(objective=Clip())
    for ppo in (first, second):
        Task().run(ppo, 2)
    assert_same_weights(weights_of(first), weights_of(second))


def test_penalty_and_the_adaptive_schedule_are_two_owners_of_one_quantity() -> None:
    with pytest.raises(ConfigError, match=r"penalty.*adaptive"):
        PPOConfig(policy_objective="penalty", schedule="adaptive")


def test_an_unknown_objective_is_refused() -> None:
    with pytest.raises(ConfigError, match="clipp"):
        make_ppo(PPOConfig(policy_objective="clipp"))
