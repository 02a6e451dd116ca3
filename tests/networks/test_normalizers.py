"""Running statistics: exact merging, hard numbers, PopArt."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from surefoot.networks.normalizers import RunningNormalizer, ValueNormalizer

law = settings(max_examples=30, deadline=None)


def normal(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def test_it_subtracts_the_mean_and_divides_by_the_deviation_plus_a_hundredth() -> None:
    n = RunningNormalizer(1)
    n.update(torch.tensor([[1.0], [3.0]]))
    # mean 2, deviation 1: (4 - 2) / 1.01
    assert n(torch.tensor([[4.0]])).item() == pytest.approx(2 / 1.01)


def test_it_clips() -> None:
    x = torch.tensor([[1e6], [-1e6]])
    for clip, expected in ((10.0, [10.0, -10.0]), (3.0, [3.0, -3.0])):
        assert RunningNormalizer(1, clip)(x).flatten().tolist() == expected
    assert RunningNormalizer(1, None)(x).flatten().tolist() == [1e6, -1e6]


def test_before_any_row_it_changes_nothing() -> None:
    x = normal(5, 3)
    assert torch.equal(RunningNormalizer(3)(x), x)


def test_it_never_changes_its_input() -> None:
    n, x = RunningNormalizer(3), normal(5, 3)
    before = x.clone()
    n.update(x + 5)
    n(x)
    assert torch.equal(x, before)


def test_forward_is_any_leading_shape() -> None:
    n = RunningNormalizer(3)
    n.update(normal(10, 3))
    x = normal(4, 5, 3)
    torch.testing.assert_close(n(x)[2, 1], n(x[2, 1]))


def test_the_count_is_exact_beyond_the_integers_of_float64() -> None:
    n = RunningNormalizer(1)
    n.count.fill_(2**53)
    n.update(torch.zeros(1, 1))
    n.update(torch.zeros(2, 1))
    assert n.count.item() == 2**53 + 3


def test_rows_that_are_not_finite_are_ignored_as_rows() -> None:
    x = normal(20, 3)
    bad = x.clone()
    bad[3, 0], bad[7, 2], bad[11, 1] = math.inf, -math.inf, math.nan
    keep = torch.ones(20, dtype=torch.bool)
    keep[[3, 7, 11]] = False
    n = RunningNormalizer(3)
    n.update(bad)
    torch.testing.assert_close(n.mean, x[keep].double().mean(0))
    torch.testing.assert_close(n.std, x[keep].double().std(0, unbiased=False))
    assert n.count.item() == 17


def test_masked_rows_do_not_count() -> None:
    n = RunningNormalizer(1)
    n.update(torch.tensor([[1.0], [1e9], [3.0]]), torch.tensor([True, False, True]))
    assert (n.count.item(), n.mean.item(), n.std.item()) == (2, 2.0, 1.0)


def test_warm_up_is_provisional_and_not_counted() -> None:
    n = RunningNormalizer(1)
    n.warm_up([torch.full((4, 1), 99.0), torch.full((4, 1), 101.0)])
    assert n.count.item() == 0
    # mean 100, deviation 1
    assert n(torch.tensor([[101.01]])).item() == pytest.approx(1.0, rel=1e-3)
    n.update(torch.tensor([[0.0], [2.0]]))
    assert (n.count.item(), n.mean.item(), n.std.item()) == (2, 1.0, 1.0)
    assert n(torch.tensor([[1.0]])).item() == 0.0


def test_an_empty_update_keeps_the_provisional_statistics() -> None:
    n = RunningNormalizer(1)
    n.warm_up([torch.tensor([[9.0], [11.0]])])
    n.update(torch.zeros(0, 1))
    assert n(torch.tensor([[10.0]])).item() == 0.0


def test_statistics_come_back_from_a_state_dict() -> None:
    first, second = RunningNormalizer(2), RunningNormalizer(2)
    first.update(normal(10, 2))
    second.load_state_dict(first.state_dict())
    for n in (first, second):
        n.update(normal(7, 2, seed=1))
    assert all(torch.equal(v, second.state_dict()[k]) for k, v in first.state_dict().items())


def test_values_far_outside_float32_stay_finite() -> None:
    n = RunningNormalizer(1)
    n.update(torch.tensor([[3e38], [-3e38]]))
    assert n(torch.tensor([[3e38], [0.0]])).isfinite().all()


# ---------------------------------------------------------------------- PopArt


@law
@given(seed=st.integers(0, 2**31), shift=st.floats(-1000, 1000), spread=st.floats(0.01, 1000))
def test_new_statistics_leave_every_value_as_it_was(seed: int, shift: float, spread: float) -> None:
    torch.manual_seed(seed)
    normalizer, layer = ValueNormalizer().double(), nn.Linear(4, 1).double()
    features = normal(10, 4, seed=seed).double()
    value = normalizer.denormalize(layer(features))
    for i in range(3):
        returns = shift * (i + 1) + spread * normal(50, seed=seed + i).double()
        normalizer.update(returns, None, layer)
        torch.testing.assert_close(normalizer.denormalize(layer(features)), value, rtol=1e-4, atol=1e-4)


def test_normalised_returns_are_of_size_one() -> None:
    normalizer, layer = ValueNormalizer(), nn.Linear(4, 1)
    returns = 500 + 30 * normal(1000)
    normalizer.update(returns, None, layer)
    unit = normalizer.normalize(returns)
    assert unit.mean().abs() < 1e-3
    assert unit.std().item() == pytest.approx(1.0, rel=1e-2)
    torch.testing.assert_close(normalizer.denormalize(unit), returns, rtol=1e-5, atol=1e-2)


def test_masked_returns_do_not_count() -> None:
    normalizer, layer = ValueNormalizer(), nn.Linear(4, 1)
    normalizer.update(torch.tensor([1.0, 1e9, 3.0]), torch.tensor([True, False, True]), layer)
    assert normalizer.statistics.mean.item() == 2.0
