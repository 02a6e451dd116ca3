"""Beta, several Categoricals and Bernoulli against torch.distributions, and their hard cases."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from surefoot.networks.distributions import Bernoulli, Beta, Categorical

law = settings(max_examples=30, deadline=None)
torchs = torch.distributions


def normal(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ---------------------------------------------------------------------- Beta


def beta(seed: int, rows: int = 5, actions: int = 3) -> Beta:
    alpha, other = (1 + normal(rows, actions, seed=seed + i).exp() for i in range(2))
    return Beta(alpha, other)


def reference_beta(d: Beta) -> torchs.Independent:
    return torchs.Independent(torchs.Beta(d.alpha, d.beta), 1)


@law
@given(seed=st.integers(0, 2**31), actions=st.integers(1, 4))
def test_a_beta_equals_torchs_stretched_to_twice_its_width(seed: int, actions: int) -> None:
    mine, other = beta(seed, actions=actions), beta(seed + 7, actions=actions)
    action = mine.sample(seeded(seed))
    stretched = torchs.TransformedDistribution(
        reference_beta(mine), torchs.AffineTransform(-1.0, 2.0, event_dim=1)
    )
    torch.testing.assert_close(mine.log_prob(action), stretched.log_prob(action))
    # twice as wide in each dimension: log 2 more entropy, and the same KL
    torch.testing.assert_close(mine.entropy(), reference_beta(mine).entropy() + actions * math.log(2))
    expected = torchs.kl_divergence(reference_beta(mine), reference_beta(other))
    torch.testing.assert_close(mine.kl(other), expected)


def test_a_beta_by_hand() -> None:
    # alpha = beta = 1 is uniform: density ½ in each dimension, entropy log 2
    flat = Beta(torch.ones(1, 2), torch.ones(1, 2))
    assert flat.log_prob(torch.tensor([[0.3, -0.9]])).item() == pytest.approx(-2 * math.log(2))
    assert flat.entropy().item() == pytest.approx(2 * math.log(2))
    # alpha = beta = 2: 6·x(1 - x) / 2 at x = ½ is ¾
    round_one = Beta(torch.full((1, 1), 2.0), torch.full((1, 1), 2.0))
    assert round_one.log_prob(torch.zeros(1, 1)).item() == pytest.approx(math.log(0.75))


def test_the_density_of_a_beta_integrates_to_one() -> None:
    a = torch.linspace(-1, 1, 20_003, dtype=torch.float64)[1:-1]
    d = Beta(torch.full((1,), 1.7, dtype=torch.float64), torch.full((1,), 4.2, dtype=torch.float64))
    assert torch.trapezoid(d.log_prob(a.unsqueeze(-1)).exp(), a).item() == pytest.approx(1.0, abs=1e-4)


def test_beta_samples_have_the_mean_and_the_deviation_and_stay_inside() -> None:
    alpha, other = torch.tensor([1.0, 2.0, 30.0]), torch.tensor([1.0, 6.0, 1.5])
    x = Beta(alpha.expand(100_000, 3), other.expand(100_000, 3)).sample(seeded(0))
    assert x.abs().max() <= 1
    expected = torchs.Beta(alpha, other)
    torch.testing.assert_close(x.mean(0), 2 * expected.mean - 1, rtol=0, atol=0.01)
    torch.testing.assert_close(x.std(0), 2 * expected.stddev, rtol=0.02, atol=0)


def test_beta_samples_follow_their_generator_alone() -> None:
    d = beta(0)
    one = d.sample(seeded(5))
    torch.manual_seed(1)
    assert torch.equal(one, d.sample(seeded(5)))
    assert not torch.equal(one, d.sample(seeded(6)))


@pytest.mark.parametrize("alpha", [1.0, 1.0 + 1e-6, 50.0, 1e4, 1e6])
@pytest.mark.parametrize("other", [1.0, 50.0, 1e6])
def test_a_beta_with_extreme_parameters_stays_finite(alpha: float, other: float) -> None:
    parameters = [torch.full((2000, 1), x, requires_grad=True) for x in (alpha, other)]
    d = Beta(*parameters)
    action = d.sample(seeded(0)).detach()
    assert action.abs().max() < 1
    values = (d.log_prob(action), d.entropy(), d.kl(Beta(torch.tensor([2.0]), torch.tensor([3.0]))))
    gradients = torch.autograd.grad(sum(v.sum() for v in values), parameters)
    assert all(x.isfinite().all() for x in (*values, *gradients))


def test_samples_beyond_single_precision_are_kept_off_the_edge() -> None:
    d = Beta(torch.full((1000, 1), 1e6), torch.ones(1000, 1))
    x = d.sample(seeded(0))
    assert x.min() > 0.99
    assert x.max() < 1


def test_the_mode_of_a_beta_is_the_peak_of_its_density() -> None:
    d = beta(3, rows=1, actions=2)
    grid = torch.linspace(-1, 1, 4001, dtype=torch.float64)[1:-1]
    for i in range(2):
        single = Beta(d.alpha[:, i], d.beta[:, i])
        peak = grid[single.log_prob(grid.unsqueeze(-1)).argmax()]
        assert d.mode()[0, i].item() == pytest.approx(peak.item(), abs=1e-3)


# ---------------------------------------------------------------------- several Categoricals


@law
@given(seed=st.integers(0, 2**31), actions=st.integers(1, 4), scale=st.floats(0.1, 20))
def test_several_categoricals_equal_the_sum_of_torchs(seed: int, actions: int, scale: float) -> None:
    mine, other = (Categorical(scale * normal(6, actions, 4, seed=seed + i)) for i in range(2))
    a, b = (torchs.Independent(torchs.Categorical(logits=d.logits), 1) for d in (mine, other))
    action = mine.sample(seeded(seed))
    assert action.shape == (6, actions)
    torch.testing.assert_close(mine.log_prob(action), a.log_prob(action))
    torch.testing.assert_close(mine.entropy(), a.entropy())
    torch.testing.assert_close(mine.kl(other), torchs.kl_divergence(a, b))


def test_each_of_several_categoricals_has_its_own_shares() -> None:
    shares = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    x = Categorical(shares.log().expand(100_000, 2, 3)).sample(seeded(0))
    counted = torch.stack([column.bincount(minlength=3) for column in x.unbind(1)]) / len(x)
    torch.testing.assert_close(counted, shares, rtol=0, atol=0.01)
    # drawn independently of each other: P(0, 2) = ½ · 0.8
    both = ((x[:, 0] == 0) & (x[:, 1] == 2)).float().mean().item()
    assert both == pytest.approx(0.4, abs=0.01)


def test_choices_are_made_over_any_leading_shape() -> None:
    logits = normal(3, 4, 2, 5)
    d, flat = Categorical(logits), Categorical(logits.flatten(0, 1))
    action = d.sample(seeded(0))
    assert action.shape == (3, 4, 2)
    torch.testing.assert_close(d.log_prob(action).flatten(), flat.log_prob(action.flatten(0, 1)))
    torch.testing.assert_close(d.entropy().flatten(), flat.entropy())


# ---------------------------------------------------------------------- Bernoulli


@law
# torch's KL needs probabilities that are not rounded to 1
@given(seed=st.integers(0, 2**31), bits=st.integers(1, 6), scale=st.floats(0.1, 5))
def test_a_bernoulli_equals_torchs(seed: int, bits: int, scale: float) -> None:
    mine, other = (Bernoulli(scale * normal(5, bits, seed=seed + i)) for i in range(2))
    a, b = (torchs.Independent(torchs.Bernoulli(logits=d.logits), 1) for d in (mine, other))
    action = mine.sample(seeded(seed))
    torch.testing.assert_close(mine.log_prob(action), a.log_prob(action.double()))
    torch.testing.assert_close(mine.entropy(), a.entropy(), atol=1e-7, rtol=1e-6)
    torch.testing.assert_close(mine.kl(other), torchs.kl_divergence(a, b), atol=1e-7, rtol=1e-6)


def test_a_bernoulli_by_hand() -> None:
    # log-odds of 3 to 1
    d = Bernoulli(torch.tensor([[math.log(3.0), 0.0]]))
    assert d.log_prob(torch.tensor([[1, 0]])).item() == pytest.approx(math.log(0.75 * 0.5))
    assert d.log_prob(torch.tensor([[0, 1]])).item() == pytest.approx(math.log(0.25 * 0.5))
    assert Bernoulli(torch.tensor([[0.1, -0.1]])).mode().tolist() == [[1, 0]]


def test_bernoulli_samples_are_bits_with_the_right_shares() -> None:
    share = torch.tensor([0.1, 0.5, 0.9])
    x = Bernoulli(share.logit().expand(100_000, 3)).sample(seeded(0))
    assert x.dtype == torch.int64
    assert set(x.flatten().tolist()) == {0, 1}
    torch.testing.assert_close(x.float().mean(0), share, rtol=0, atol=0.01)


def test_bernoulli_samples_follow_their_generator_alone() -> None:
    d = Bernoulli(normal(50, 3))
    one = d.sample(seeded(5))
    torch.manual_seed(1)
    assert torch.equal(one, d.sample(seeded(5)))
    assert not torch.equal(one, d.sample(seeded(6)))


def test_a_bit_without_probability_stays_zero() -> None:
    d = Bernoulli(torch.tensor([-math.inf, 2.0]).expand(20_000, 2))
    assert not d.sample(seeded(0))[:, 0].any()
    assert d.mode()[0].tolist() == [0, 1]


HARD_BITS: list[Any] = [[0.0, -200.0], [-math.inf, 0.0], [-math.inf, -math.inf], [90.0, -math.inf]]


@pytest.mark.parametrize("first", HARD_BITS)
@pytest.mark.parametrize("other", HARD_BITS)
def test_bits_without_probability_leave_everything_finite(first: list[float], other: list[float]) -> None:
    mine, theirs = (Bernoulli(torch.tensor([x], requires_grad=True)) for x in (first, other))
    values = (mine.entropy(), mine.kl(theirs), mine.log_prob(torch.zeros(1, 2)))
    assert all(v.isfinite().all() for v in values)
    assert mine.entropy().item() >= 0
    assert mine.kl(theirs).item() >= 0
    gradients = torch.autograd.grad(sum(v.sum() for v in values), [mine.logits, theirs.logits])
    assert all(g.isfinite().all() for g in gradients)


def test_a_bit_without_probability_adds_nothing() -> None:
    masked, free = Bernoulli(torch.tensor([[-math.inf, 1.2]])), Bernoulli(torch.tensor([[1.2]]))
    assert masked.entropy().item() == pytest.approx(free.entropy().item())
    assert masked.log_prob(torch.tensor([[0, 1]])).item() == pytest.approx(
        free.log_prob(torch.tensor([[1]])).item()
    )
    assert masked.kl(masked).item() == 0.0


def test_the_mode_of_a_flat_beta_is_the_middle() -> None:
    assert Beta(torch.ones(1, 2), torch.ones(1, 2)).mode().tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("size", [2.0, 20.0, 200.0])
def test_a_beta_that_hardly_moved_is_told_apart_from_rounding(size: float) -> None:
    """Large terms cancel: in float32 alone the log-probabilities would differ by far more."""
    alpha = torch.full((200, 2), size)
    mine, moved = Beta(alpha, alpha), Beta(alpha * (1 + 1e-7), alpha)
    x = mine.sample(torch.Generator().manual_seed(0))
    assert (mine.log_prob(x) - moved.log_prob(x)).abs().max() <= 1e-4
    assert mine.kl(mine).abs().max() == 0
    assert mine.kl(moved).abs().mean() <= 1e-6
    assert mine.log_prob(x).dtype == torch.float32
