"""Loss terms by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hand_made import Task, Watcher, make_ppo
from hypothesis import given
from hypothesis import strategies as st

from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.losses import (
    clip_fraction,
    clipped_surrogate,
    clipped_value_loss,
    huber_value_loss,
    kl_k3,
    masked_mean,
    mse_value_loss,
    penalty_surrogate,
)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.1, 2.0, -2.2),  # inside the range: -A·ratio
        (1.5, 2.0, -2.4),  # a gain is cut: -2·1.2
        (0.5, 2.0, -1.0),  # a loss is not: -2·.5
        (1.5, -2.0, 3.0),  # nor here: 2·1.5
        (0.5, -2.0, 1.6),  # a gain is cut: 2·.8
        (0.9, -2.0, 1.8),
    ],
)
def test_the_surrogate_cuts_gains_and_never_losses(ratio: float, advantage: float, expected: float) -> None:
    result = clipped_surrogate(torch.tensor([ratio]), torch.tensor([advantage]), 0.2)
    assert result.item() == pytest.approx(expected)


@given(ratio=st.floats(0.01, 10), advantage=st.floats(-10, 10), clip=st.floats(0.01, 0.9))
def test_the_clipped_surrogate_is_a_pessimistic_bound(ratio: float, advantage: float, clip: float) -> None:
    result = clipped_surrogate(*(torch.tensor([x], dtype=torch.float64) for x in (ratio, advantage)), clip)
    assert result.item() >= -advantage * ratio


def test_the_gradient_of_a_clipped_row_is_zero() -> None:
    ratio = torch.tensor([1.5, 1.1, 0.5, 0.5], requires_grad=True)
    clipped_surrogate(ratio, torch.tensor([2.0, 2.0, -2.0, 2.0]), 0.2).sum().backward()
    assert ratio.grad is not None
    assert ratio.grad.tolist() == [0.0, -2.0, 0.0, -2.0]


def test_the_penalty_is_the_unclipped_ratio_and_beta_times_the_kl() -> None:
    # -2·1.5 + 3·.1
    result = penalty_surrogate(torch.tensor([1.5]), torch.tensor([2.0]), torch.tensor([0.1]), 3.0)
    assert result.item() == pytest.approx(-2.7)


def test_the_value_loss_is_the_squared_error_without_a_half() -> None:
    assert mse_value_loss(torch.tensor([1.0]), torch.tensor([4.0])).item() == 9.0


@pytest.mark.parametrize(
    ("value", "old_value", "returns", "expected"),
    [
        (1.5, 1.0, 2.0, 0.64),  # clipped to 1.2: (.8)² is more than (.5)²
        (1.1, 1.0, 2.0, 0.81),  # not clipped: (.9)²
        (0.0, 1.0, 2.0, 4.0),  # away from the target: the unclipped error is the larger
        (3.0, 1.0, 2.0, 1.0),  # overshoot: 1² is more than (.8)²
    ],
)
def test_the_clipped_value_loss_is_the_larger_of_both_errors(
    value: float, old_value: float, returns: float, expected: float
) -> None:
    result = clipped_value_loss(*(torch.tensor([x]) for x in (value, old_value, returns)), 0.2)
    assert result.item() == pytest.approx(expected)


@pytest.mark.parametrize(("error", "expected"), [(0.5, 0.25), (1.0, 1.0), (3.0, 5.0), (-3.0, 5.0)])
def test_the_huber_loss_is_square_near_the_target_and_linear_beyond(error: float, expected: float) -> None:
    # twice Huber with δ = 1: e² within, 2·|e| - 1 beyond
    result = huber_value_loss(torch.tensor([error]), torch.tensor([0.0]), 1.0)
    assert result.item() == pytest.approx(expected)


def test_huber_delta_sets_where_the_loss_turns_linear() -> None:
    # δ = 2: 2·δ·|e| - δ² = 2·2·5 - 4
    assert huber_value_loss(torch.tensor([5.0]), torch.tensor([0.0]), 2.0).item() == pytest.approx(16.0)


@given(log_ratio=st.floats(-20, 20))
def test_k3_is_never_negative(log_ratio: float) -> None:
    assert kl_k3(torch.tensor(log_ratio)).item() >= 0.0


def test_k3_by_hand_and_near_zero() -> None:
    assert kl_k3(torch.tensor(math.log(2.0))).item() == pytest.approx(1 - math.log(2.0))  # (2 - 1) - log 2
    # x²/2 for small x, which a plain exp(x) - 1 - x would lose in float32
    assert kl_k3(torch.tensor(1e-3)).item() == pytest.approx(5e-7, rel=0.1)
    assert kl_k3(torch.tensor(0.0)).item() == 0.0


def test_k3_estimates_the_kl_from_samples_of_the_old_policy() -> None:
    g = torch.Generator().manual_seed(0)
    old, new = torch.distributions.Normal(0.0, 1.0), torch.distributions.Normal(0.3, 1.2)
    x = torch.randn(200_000, generator=g, dtype=torch.float64)
    estimate = kl_k3(new.log_prob(x) - old.log_prob(x)).mean()
    assert estimate.item() == pytest.approx(torch.distributions.kl_divergence(old, new).item(), rel=0.02)


def test_the_clip_fraction_counts_ratios_outside_the_range() -> None:
    assert clip_fraction(torch.tensor([0.7, 0.9, 1.1, 1.3]), 0.2).tolist() == [1.0, 0.0, 0.0, 1.0]


def test_a_masked_mean_ignores_what_is_masked_even_nan() -> None:
    x, mask = torch.tensor([1.0, math.nan, 3.0]), torch.tensor([True, False, True])
    assert masked_mean(x, mask).item() == 2.0
    assert masked_mean(x, torch.zeros(3, dtype=torch.bool)).item() == 0.0
    assert masked_mean(torch.tensor([1.0, 3.0])).item() == 2.0


@pytest.mark.parametrize("kind", ["clipped", "mse", "huber"])
def test_the_logged_losses_are_those_of_the_formulas(kind: str) -> None:
    watcher = Watcher()
    config = PPOConfig(
        num_mini_batches=1,
        num_learning_epochs=3,
        value_loss=kind,
        huber_delta=0.5,
        schedule="fixed",  # pyright: ignore[reportArgumentType]
    )
    ppo = make_ppo(config, extensions=[watcher])
    (metrics,) = Task().run(ppo)
    expected: dict[str, list[float]] = {
        "surrogate": [],
        "value": [],
        "entropy": [],
        "kl": [],
        "clip_fraction": [],
    }
    for seen in watcher.seen:
        ratio, advantage, value, old, returns = (
            seen[k] for k in ("ratio", "advantage", "value", "old_value", "returns")
        )
        surrogate = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))
        error = value - returns
        kept = old + (value - old).clamp(-0.2, 0.2) - returns
        forms = {
            "mse": error**2,
            "clipped": torch.maximum(error**2, kept**2),
            "huber": torch.where(error.abs() < 0.5, error**2, 2 * 0.5 * error.abs() - 0.25),
        }
        outside = ((ratio - 1).abs() > 0.2).float()
        terms = [surrogate, forms[kind], seen["entropy"], seen["kl"], outside]
        for name, term in zip(expected, terms, strict=True):
            expected[name].append(term.mean().item())
    for name, values in expected.items():
        assert metrics[f"Loss/{name}"].item() == pytest.approx(sum(values) / 3, rel=1e-4, abs=1e-7)


def test_use_clipped_value_loss_chooses_the_form_where_value_loss_is_null() -> None:
    def loss(**choice: object) -> float:
        config = PPOConfig(
            num_mini_batches=1, num_learning_epochs=4, learning_rate=0.01, schedule="fixed", **choice
        )  # type: ignore[arg-type]
        return Task().run(make_ppo(config))[0]["Loss/value"].item()

    assert loss(use_clipped_value_loss=True) == loss(value_loss="clipped")
    assert loss(use_clipped_value_loss=False) == loss(value_loss="mse")
    assert loss(use_clipped_value_loss=True) != loss(use_clipped_value_loss=False)
