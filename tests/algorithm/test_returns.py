"""Advantages and returns against numbers by hand, a plain loop, and their limits λ = 0 and λ = 1."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from surefoot.algorithm.discounted import SCAN_STEPS, discounted_sum
from surefoot.algorithm.returns import (
    explained_variance,
    gae,
    normalize_advantage,
)

law = settings(max_examples=40, deadline=None)


def column(*numbers: float) -> Tensor:
    """[T, 1]."""
    return torch.tensor(numbers, dtype=torch.float64).unsqueeze(-1)


def flags(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.bool).unsqueeze(-1)


def advantages(
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    bootstrap: Tensor,
    gamma: float,
    lam: float,
) -> list[float]:
    return gae(reward, value, terminated, truncated, bootstrap, gamma, lam)[0].squeeze(-1).tolist()


def loop(
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    bootstrap: Tensor,
    gamma: float,
    lam: float,
) -> Tensor:
    """GAE as the paper writes it, one number at a time."""
    steps, envs = reward.shape
    result = torch.zeros(steps, envs, dtype=torch.float64)
    for n in range(envs):
        tail = 0.0
        for t in reversed(range(steps)):
            if terminated[t, n]:
                after, tail = 0.0, 0.0
            elif truncated[t, n]:
                after, tail = float(bootstrap[t, n]), 0.0
            else:
                after = float(value[t + 1, n])
            delta = float(reward[t, n]) + gamma * after - float(value[t, n])
            tail = delta + gamma * lam * tail
            result[t, n] = tail
    return result


def random_rollout(seed: int, steps: int, envs: int, ends: float = 0.2) -> tuple[Tensor, ...]:
    """Reward, value, terminated, truncated, bootstrap in float64; some rows both terminate and truncate."""
    g = torch.Generator().manual_seed(seed)

    def normal(rows: int) -> Tensor:
        return torch.randn(rows, envs, generator=g, dtype=torch.float64)

    terminated, truncated = (torch.rand(steps, envs, generator=g) < ends for _ in range(2))
    return normal(steps), normal(steps + 1), terminated, truncated, normal(steps)


# ---------------------------------------------------------------------- numbers by hand


def test_terminated_wins_over_truncated() -> None:
    both = gae(column(1), column(2, 3), flags(1), flags(1), column(100), 0.9, 0.8)[0]
    assert both.item() == -1.0  # 1 - 2: neither 3 nor 100


def test_returns_are_the_advantage_plus_the_value() -> None:
    reward, value, *ends, bootstrap = random_rollout(3, 10, 4)
    advantage, returns = gae(reward, value, *ends, bootstrap, 0.9, 0.8)
    assert torch.equal(returns, advantage + value[:-1])


# ---------------------------------------------------------------------- NaN at ended rows


@pytest.mark.parametrize("steps", [4, SCAN_STEPS + 1])
def test_nan_in_a_value_that_is_not_read_has_no_effect(steps: int) -> None:
    reward, value, _, _, bootstrap = random_rollout(5, steps, 2, ends=0.0)
    terminated, truncated = torch.zeros(2, steps, 2, dtype=torch.bool)
    terminated[1, 0] = truncated[1, 1] = True
    expected = gae(reward, value, terminated, truncated, bootstrap, 0.9, 0.8)[0]
    bootstrap = torch.where(truncated, bootstrap, math.nan)
    assert torch.equal(gae(reward, value, terminated, truncated, bootstrap, 0.9, 0.8)[0], expected)


@pytest.mark.parametrize("steps", [4, SCAN_STEPS + 1])
def test_nan_in_the_value_after_an_ended_row_stays_out_of_the_episode_that_ended(steps: int) -> None:
    reward, value, _, _, bootstrap = random_rollout(5, steps, 2, ends=0.0)
    terminated, truncated = torch.zeros(2, steps, 2, dtype=torch.bool)
    terminated[1, 0] = truncated[1, 1] = True
    expected = gae(reward, value, terminated, truncated, bootstrap, 0.9, 0.8)[0]
    value[2] = math.nan
    result = gae(reward, value, terminated, truncated, bootstrap, 0.9, 0.8)[0]
    assert torch.equal(result[:2], expected[:2])


# ---------------------------------------------------------------------- laws


@law
@given(seed=st.integers(0, 2**31), steps=st.integers(1, 40), gamma=st.floats(0, 1))
def test_lambda_one_is_monte_carlo(seed: int, steps: int, gamma: float) -> None:
    reward, value, terminated, truncated, bootstrap = random_rollout(seed, steps, 3)
    _, returns = gae(reward, value, terminated, truncated, bootstrap, gamma, 1.0)
    for n in range(3):
        tail = float(value[-1, n])
        for t in reversed(range(steps)):
            tail = float(bootstrap[t, n]) if truncated[t, n] else tail
            tail = float(reward[t, n]) + gamma * (0.0 if terminated[t, n] else tail)
            assert returns[t, n].item() == pytest.approx(tail, abs=1e-9)


@law
@given(seed=st.integers(0, 2**31), steps=st.integers(1, 200), gamma=st.floats(0, 1))
def test_lambda_zero_is_the_td_error(seed: int, steps: int, gamma: float) -> None:
    reward, value, terminated, truncated, bootstrap = random_rollout(seed, steps, 3)
    after = torch.where(terminated, 0.0, torch.where(truncated, bootstrap, value[1:]))
    td_error = reward + gamma * after - value[:-1]
    torch.testing.assert_close(gae(reward, value, terminated, truncated, bootstrap, gamma, 0.0)[0], td_error)


@law
@given(
    seed=st.integers(0, 2**31),
    steps=st.one_of(st.integers(1, 40), st.integers(SCAN_STEPS - 1, 2 * SCAN_STEPS + 1)),
    ends=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    gamma=st.floats(0, 1),
    lam=st.floats(0, 1),
)
def test_loop_and_scan_equal_the_plain_float64_loop(
    seed: int, steps: int, ends: float, gamma: float, lam: float
) -> None:
    rollout = random_rollout(seed, steps, 2, ends)
    expected = loop(*rollout, gamma, lam)
    torch.testing.assert_close(gae(*rollout, gamma, lam)[0], expected, rtol=0, atol=1e-9)
    single = [x.float() if x.is_floating_point() else x for x in rollout]
    torch.testing.assert_close(gae(*single, gamma, lam)[0].double(), expected, rtol=1e-4, atol=1e-4)


def test_discounted_sum_of_ones_is_a_geometric_series() -> None:
    # 1 + .5 + .25, 1 + .5, 1
    assert discounted_sum(torch.ones(3, 1), torch.full((3, 1), 0.5)).squeeze(-1).tolist() == [1.75, 1.5, 1.0]


def test_discounted_sum_leaves_its_arguments_as_they_are() -> None:
    for steps in (3, SCAN_STEPS + 5):
        x, decay = torch.ones(steps, 2), torch.full((steps, 2), 0.5)
        discounted_sum(x, decay)
        assert torch.equal(x, torch.ones(steps, 2))
        assert torch.equal(decay, torch.full((steps, 2), 0.5))


# ---------------------------------------------------------------------- normalisation


def test_advantages_are_normalised_with_the_unbiased_deviation() -> None:
    # mean 2, deviations -1, 0, 1: unbiased variance 2 / 2 = 1
    normalized, std = normalize_advantage(torch.tensor([1.0, 2.0, 3.0]))
    assert normalized.tolist() == pytest.approx([-1.0, 0.0, 1.0])
    assert std.item() == pytest.approx(1.0)


def test_only_valid_entries_set_the_mean_and_the_deviation() -> None:
    advantage = torch.tensor([1.0, 1e9, 2.0, 3.0, math.nan])
    mask = torch.tensor([True, False, True, True, False])
    normalized, std = normalize_advantage(advantage, mask)
    assert normalized[mask].tolist() == pytest.approx([-1.0, 0.0, 1.0])
    assert std.item() == pytest.approx(1.0)


@pytest.mark.parametrize("rows", [1, 7])
def test_equal_advantages_normalise_to_zero(rows: int) -> None:
    assert normalize_advantage(torch.full((rows,), 0.1))[0].tolist() == [0.0] * rows


def test_a_spread_below_the_rounding_of_its_origin_normalises_to_zero() -> None:
    # float32 numbers near 1e6 are 0.0625 apart
    noise = 1e6 + 1e-3 * torch.randn(1000, generator=torch.Generator().manual_seed(0))
    advantage = noise - 1e6
    assert normalize_advantage(advantage, scale=noise.abs().max())[0].abs().max() < 1e-3


def test_small_advantages_of_small_origin_are_normalised() -> None:
    advantage = 1e-5 * torch.randn(1000, generator=torch.Generator().manual_seed(0))
    assert normalize_advantage(advantage, scale=torch.tensor(1.0))[0].std().item() == pytest.approx(
        1.0, abs=1e-2
    )


@law
@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(2, 50),
    scale=st.floats(1e-3, 1e3),
    shift=st.floats(-100, 100),
)
def test_normalised_advantages_do_not_depend_on_units(
    seed: int, rows: int, scale: float, shift: float
) -> None:
    advantage = torch.randn(rows, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected, _ = normalize_advantage(advantage)
    result, _ = normalize_advantage(scale * advantage + shift)
    torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-3)


# ---------------------------------------------------------------------- explained variance


def test_explained_variance_of_a_perfect_and_of_a_constant_critic() -> None:
    returns = torch.tensor([1.0, 2.0, 3.0])
    assert explained_variance(returns, returns).item() == 1.0
    assert explained_variance(torch.zeros(3), returns).item() == 0.0
    # residuals 1, 0, 1 have squared deviations 4/9 + 1/9 + 1/9 = 2/3 around 2/3, returns 1 + 0 + 1 = 2
    assert explained_variance(torch.tensor([0.0, 2.0, 2.0]), returns).item() == pytest.approx(1 - (2 / 3) / 2)


def test_explained_variance_is_zero_where_returns_do_not_vary() -> None:
    assert explained_variance(torch.tensor([1.0, 2.0]), torch.ones(2)).item() == 0.0


def test_explained_variance_reads_valid_rows_only() -> None:
    value, returns = torch.tensor([1.0, 2.0, 1e9]), torch.tensor([1.0, 2.0, math.nan])
    assert explained_variance(value, returns, torch.tensor([True, True, False])).item() == 1.0
