"""Distributions against torch.distributions, Monte Carlo and their hard cases."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from surefoot.errors import ConfigError
from surefoot.networks.config import DistributionConfig
from surefoot.networks.distributions import (
    Categorical,
    Gaussian,
    SquashedGaussian,
    log_tanh_slope,
)
from surefoot.networks.heads import CategoricalHead, GaussianHead, make_head

law = settings(max_examples=30, deadline=None)


def normal(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gaussian(seed: int, rows: int = 5, actions: int = 3, shared_std: bool = False) -> Gaussian:
    std = normal(actions, seed=seed + 1) if shared_std else normal(rows, actions, seed=seed + 1)
    return Gaussian(normal(rows, actions, seed=seed), std.exp())


def reference(g: Gaussian) -> torch.distributions.Independent:
    return torch.distributions.Independent(torch.distributions.Normal(g.mean, g.std.expand_as(g.mean)), 1)


# ---------------------------------------------------------------------- Gaussian


@law
@given(seed=st.integers(0, 2**31), shared_std=st.booleans())
def test_a_gaussian_equals_torchs(seed: int, shared_std: bool) -> None:
    mine, other = gaussian(seed, shared_std=shared_std), gaussian(seed + 7, shared_std=shared_std)
    action = normal(5, 3, seed=seed + 3)
    torch.testing.assert_close(mine.log_prob(action), reference(mine).log_prob(action))
    torch.testing.assert_close(mine.entropy(), reference(mine).entropy())
    expected = torch.distributions.kl_divergence(reference(mine), reference(other))
    torch.testing.assert_close(mine.kl(other), expected)


def test_a_gaussian_by_hand() -> None:
    g = Gaussian(torch.tensor([[1.0, 0.0]]), torch.tensor([2.0, 1.0]))
    # dimension 1: -½·(2/2)² - log 2 - ½ log 2π;  dimension 2: -½ log 2π
    assert g.log_prob(torch.tensor([[3.0, 0.0]])).item() == pytest.approx(
        -0.5 - math.log(2) - math.log(2 * math.pi)
    )
    # summed over dimensions: 2·½(1 + log 2π) + log 2
    assert g.entropy().tolist() == pytest.approx([1 + math.log(2 * math.pi) + math.log(2)])
    other = Gaussian(torch.tensor([[0.0, 0.0]]), torch.tensor([1.0, 1.0]))
    # dimension 1: log(1/2) + (4 + 1)/2 - ½;  dimension 2: 0
    assert g.kl(other).item() == pytest.approx(-math.log(2) + 2.5 - 0.5)


def test_the_kl_is_that_of_old_to_new_by_monte_carlo() -> None:
    old = Gaussian(
        torch.tensor([[0.5, -1.0]], dtype=torch.float64), torch.tensor([0.5, 2.0], dtype=torch.float64)
    )
    new = Gaussian(
        torch.tensor([[0.0, 0.0]], dtype=torch.float64), torch.tensor([1.0, 1.5], dtype=torch.float64)
    )
    wide = Gaussian(old.mean.expand(200_000, 2), old.std)
    x = wide.sample(torch.Generator().manual_seed(0))
    estimate = (wide.log_prob(x) - Gaussian(new.mean.expand_as(x), new.std).log_prob(x)).mean()
    assert old.kl(new).item() == pytest.approx(estimate.item(), rel=0.02)


def test_the_kl_of_a_distribution_to_itself_is_exactly_zero() -> None:
    g = gaussian(0)
    single = Gaussian(g.mean.float(), g.std.float())
    assert single.kl(single).tolist() == [0.0] * 5


def test_samples_have_the_mean_and_the_deviation() -> None:
    g = Gaussian(torch.tensor([1.0, -2.0]).expand(100_000, 2), torch.tensor([0.5, 3.0]))
    x = g.sample(torch.Generator().manual_seed(0))
    torch.testing.assert_close(x.mean(0), torch.tensor([1.0, -2.0]), rtol=0.02, atol=0.02)
    torch.testing.assert_close(x.std(0), torch.tensor([0.5, 3.0]), rtol=0.02, atol=0)


def test_samples_follow_their_generator_alone() -> None:
    g = gaussian(0)
    one = g.sample(torch.Generator().manual_seed(5))
    torch.manual_seed(1)
    assert torch.equal(one, g.sample(torch.Generator().manual_seed(5)))


# ---------------------------------------------------------------------- squashed


@pytest.mark.parametrize("point", [-2.5, -0.3, 0.0, 0.8, 2.0])
def test_the_squashed_density_is_a_change_of_variables(point: float) -> None:
    d = SquashedGaussian(
        Gaussian(torch.tensor([[0.4]], dtype=torch.float64), torch.tensor([0.7], dtype=torch.float64))
    )
    base = torch.distributions.Normal(0.4, 0.7)
    # P(tanh u in [a - h, a + h]) / 2h from the base's cumulative distribution
    a, h = math.tanh(point), 1e-6
    low, high = torch.tensor([a - h, a + h], dtype=torch.float64).atanh()
    density = (base.cdf(high) - base.cdf(low)) / (2 * h)
    result = d.log_prob(torch.tensor([[point]], dtype=torch.float64)).exp()
    assert result.item() == pytest.approx(density.item(), rel=1e-4)


def test_the_squashed_density_integrates_to_one() -> None:
    d = SquashedGaussian(
        Gaussian(torch.tensor([0.4], dtype=torch.float64), torch.tensor([0.7], dtype=torch.float64))
    )
    a = torch.linspace(-1, 1, 20_002, dtype=torch.float64)[1:-1]
    density = d.log_prob(a.atanh().unsqueeze(-1)).exp()
    assert torch.trapezoid(density, a).item() == pytest.approx(1.0, abs=1e-3)


def test_the_squashed_entropy_is_the_base_entropy_and_the_mean_jacobian() -> None:
    rows = 200_000
    base = Gaussian(torch.full((rows, 1), 0.4), torch.tensor([0.7]))
    d = SquashedGaussian(base)
    estimate = d.entropy(torch.Generator().manual_seed(0)).mean()
    x = d.sample(torch.Generator().manual_seed(1))
    assert estimate.item() == pytest.approx(-d.log_prob(x).mean().item(), abs=0.01)


def test_the_squashed_entropy_has_a_gradient_through_its_sample() -> None:
    mean = torch.tensor([[3.0]], requires_grad=True)
    entropy = SquashedGaussian(Gaussian(mean, torch.tensor([0.1]))).entropy(torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad(entropy.sum(), mean)
    assert gradient.item() < -1  # towards the middle, where tanh is steep


def test_the_squashed_kl_is_that_of_the_base() -> None:
    a, b = gaussian(0), gaussian(5)
    assert torch.equal(SquashedGaussian(a).kl(SquashedGaussian(b)), a.kl(b))


@pytest.mark.parametrize("u", [-1e4, -50.0, 0.0, 50.0, 1e4])
def test_the_tanh_slope_stays_finite(u: float) -> None:
    x = torch.tensor(u, requires_grad=True)
    slope = log_tanh_slope(x)
    (gradient,) = torch.autograd.grad(slope, x)
    assert slope.isfinite()
    assert gradient.isfinite()
    if abs(u) < 1:
        assert slope.item() == pytest.approx(math.log(1 - math.tanh(u) ** 2))


# ---------------------------------------------------------------------- Categorical


@law
@given(seed=st.integers(0, 2**31), choices=st.integers(1, 8), scale=st.floats(0.1, 20))
def test_a_categorical_equals_torchs(seed: int, choices: int, scale: float) -> None:
    mine, other = (Categorical(scale * normal(4, 1, choices, seed=seed + i)) for i in range(2))
    a, b = (torch.distributions.Categorical(logits=d.logits.squeeze(1)) for d in (mine, other))
    action = mine.sample(torch.Generator().manual_seed(seed))
    torch.testing.assert_close(mine.log_prob(action), a.log_prob(action.squeeze(-1)))
    torch.testing.assert_close(mine.entropy(), a.entropy())
    torch.testing.assert_close(mine.kl(other), torch.distributions.kl_divergence(a, b))


def test_categorical_samples_have_the_right_shares() -> None:
    logits = torch.tensor([0.5, 0.3, 0.2]).log().expand(100_000, 1, 3)
    x = Categorical(logits).sample(torch.Generator().manual_seed(0))
    assert x.dtype == torch.int64
    shares = x.flatten().bincount(minlength=3) / len(x)
    torch.testing.assert_close(shares, torch.tensor([0.5, 0.3, 0.2]), rtol=0, atol=0.01)


def test_the_mode_of_a_categorical_is_its_arg_max() -> None:
    assert Categorical(torch.tensor([[[0.0, 1.0, 0.5]]])).mode().tolist() == [[1]]


HARD = [0.0, -200.0, -math.inf, -85.0]


def test_zero_times_log_zero_is_zero() -> None:
    one = Categorical(torch.tensor([[[0.0, -math.inf, -math.inf]]]))
    assert one.entropy().item() == 0.0
    assert one.kl(one).item() == 0.0
    half = Categorical(torch.tensor([[[0.0, 0.0, -math.inf]]]))
    assert half.entropy().item() == pytest.approx(math.log(2))
    # KL(one ‖ half) = 1 · log(1 / ½)
    assert one.kl(half).item() == pytest.approx(math.log(2))


def test_a_sample_never_takes_an_impossible_choice() -> None:
    x = Categorical(torch.tensor(HARD).expand(50_000, 1, 4)).sample(torch.Generator().manual_seed(0))
    assert set(x.flatten().tolist()) == {0}
    masked = torch.tensor([-math.inf, 0.0, -math.inf, 0.0]).expand(50_000, 1, 4)
    assert set(Categorical(masked).sample(torch.Generator().manual_seed(0)).flatten().tolist()) == {1, 3}


def test_entropy_of_a_categorical_that_is_almost_sure_has_a_finite_gradient() -> None:
    logits = torch.tensor([[[200.0, 0.0, -200.0]]], requires_grad=True)
    (gradient,) = torch.autograd.grad(Categorical(logits).entropy().sum(), logits)
    assert gradient.isfinite().all()


# ---------------------------------------------------------------------- heads


def head(std_type: Any = "scalar", init_std: float = 1.0, **changes: Any) -> GaussianHead:
    torch.manual_seed(0)
    return GaussianHead(3, 2, DistributionConfig(std_type=std_type, init_std=init_std, **changes), None)


@pytest.mark.parametrize("std_type", ["scalar", "log"])
@pytest.mark.parametrize("value", [-120.0, -0.5, 0.0, 20.0, 100.0, 1e9, -1e9])
def test_the_std_is_positive_and_in_its_range_whatever_the_parameter(std_type: Any, value: float) -> None:
    part = head(std_type)
    with torch.no_grad():
        part.std_param.fill_(value)
    low, high = 0.001, 10.0
    assert (part.std >= low * (1 - 1e-5)).all()
    assert (part.std <= high * (1 + 1e-5)).all()
    distribution = part(torch.ones(1000, 3))
    action = distribution.sample(torch.Generator().manual_seed(0))
    for result in (action, distribution.log_prob(action), distribution.entropy()):
        assert result.isfinite().all()


@pytest.mark.parametrize("std_type", ["scalar", "log"])
@pytest.mark.parametrize(("value", "push"), [(-5.0, 1.0), (50.0, -1.0)])
def test_at_its_bound_the_std_has_a_gradient_inwards(std_type: Any, value: float, push: float) -> None:
    part = head(std_type)
    with torch.no_grad():
        part.std_param.fill_(value)
    (gradient,) = torch.autograd.grad((push * part.std).sum(), part.std_param)
    assert (gradient * push > 0).all()
    with torch.no_grad():
        part.std_param += 1000 * push * gradient.sign().abs()
    part.project()
    assert (part.std_param >= part.low).all()
    assert (part.std_param <= part.high).all()


@pytest.mark.parametrize("std_type", ["scalar", "log"])
def test_within_its_range_the_std_is_left_as_it_is(std_type: Any) -> None:
    part = head(std_type, init_std=0.37)
    part.project()
    assert part.std.tolist() == pytest.approx([0.37, 0.37])


def test_a_projected_std_is_the_one_that_acted() -> None:
    part = head()
    with torch.no_grad():
        part.std_param.copy_(torch.tensor([-0.5, 30.0]))
    acted = part.std.detach().clone()
    part.project()
    torch.testing.assert_close(part.std.detach(), acted)


def test_the_initial_std_is_the_one_asked_for() -> None:
    assert head(init_std=0.25).std.tolist() == [0.25, 0.25]
    assert head("log", init_std=0.25).std.tolist() == pytest.approx([0.25, 0.25])


def test_the_mean_can_be_bounded_without_squashing() -> None:
    part = GaussianHead(3, 2, DistributionConfig(), "tanh")
    with torch.no_grad():
        part.linear.bias.fill_(50.0)
    d = part(torch.ones(1000, 3))
    assert d.mean.max().item() <= 1.0
    assert d.sample(torch.Generator().manual_seed(0)).max() > 2.0


@pytest.mark.parametrize("std_range", [(0.5, 0.9), (1.5, 2.0)])
def test_an_initial_std_outside_its_range_is_refused(std_range: tuple[float, float]) -> None:
    with pytest.raises(ConfigError, match=r"init_std 1.0.*std_range"):
        DistributionConfig(init_std=1.0, std_range=std_range)


@pytest.mark.parametrize(
    "make", [lambda: head(), lambda: head("log"), lambda: CategoricalHead(3, [4]), lambda: make_squashed()]
)
def test_a_head_rebuilds_its_distribution_from_the_stored_parameters(make: Any) -> None:
    part = make()
    d = part(torch.randn(6, 3))
    again = part.rebuild(d.params)
    action = d.sample(torch.Generator().manual_seed(0))
    assert type(again) is type(d)
    assert torch.equal(d.log_prob(action), again.log_prob(action))
    assert again.kl(d).abs().max().item() == 0.0


def make_squashed() -> GaussianHead:
    return GaussianHead(3, 2, DistributionConfig("SquashedGaussian"), None)


def test_low_precision_ends_at_the_last_layer() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        d = head()(torch.randn(6, 3))
        c = CategoricalHead(3, [4])(torch.randn(6, 3))
    assert d.mean.dtype == torch.float32
    assert c.logits.dtype == torch.float32


BOX, DISCRETE = gymnasium.spaces.Box(-1, 1, (2, 3)), gymnasium.spaces.Discrete(5)


def test_the_head_fits_the_action_space() -> None:
    assert make_head(BOX, 3, DistributionConfig(), None).linear.out_features == 6
    assert make_head(DISCRETE, 3, DistributionConfig(), None).linear.out_features == 5


@pytest.mark.parametrize(
    ("space", "name", "last_activation", "message"),
    [
        (BOX, "Categorical", None, "Categorical.*Discrete"),
        (DISCRETE, "Gaussian", None, "Gaussian.*Box"),
        (DISCRETE, "SquashedGaussian", None, "SquashedGaussian.*Box"),
        (DISCRETE, "auto", "tanh", "last_activation.*Box"),
        (gymnasium.spaces.Dict({"a": BOX}), "auto", None, "not supported"),
        (gymnasium.spaces.Tuple((BOX, BOX)), "auto", None, "not supported"),
    ],
)
def test_a_head_that_does_not_fit_is_refused(
    space: Any, name: Any, last_activation: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_head(space, 3, DistributionConfig(name), last_activation)


def test_numbers_of_a_float64_policy_stay_float64() -> None:
    d = head().double()(torch.ones(2, 3, dtype=torch.float64))
    assert d.log_prob(torch.zeros(2, 2, dtype=torch.float64)).dtype == torch.float64
    assert np.isfinite(d.entropy().detach().numpy()).all()
