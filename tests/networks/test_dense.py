"""Layers whose gradient is written down, against autograd."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from surefoot.networks.config import NetworkConfig
from surefoot.networks.dense import BLOCK_ROWS, Dense, Layer, activation_of
from surefoot.networks.encoders import ACTIVATIONS, make_mlp

WITH_FORM = ["elu", "relu", "leaky_relu", "tanh"]


def make(activation: str, widths: list[int]) -> tuple[nn.Sequential, Dense, dict[nn.Parameter, torch.Tensor]]:
    mlp = make_mlp(widths[0], NetworkConfig(hidden_dims=widths[1:], activation=activation)).double()
    gradients = {p: torch.full_like(p, torch.nan) for p in mlp.parameters()}
    modules = list(mlp)
    pairs = zip(modules[::2], modules[1::2], strict=True)
    layers = [Layer(linear, activation_of(module)) for linear, module in pairs]  # pyright: ignore
    return mlp, Dense(layers, gradients), gradients


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(WITH_FORM),
    st.lists(st.integers(1, 40), min_size=2, max_size=4),
    st.lists(
        st.sampled_from([1, 2, 63, BLOCK_ROWS, BLOCK_ROWS + 1, 2 * BLOCK_ROWS + 5]), min_size=1, max_size=3
    ),
    st.integers(0, 10**6),
)
def test_results_and_gradients_are_those_of_autograd(
    activation: str, widths: list[int], sizes: list[int], seed: int
) -> None:
    torch.manual_seed(seed)
    mlp, dense, gradients = make(activation, widths)
    for num_rows in sizes:
        x = 3 * torch.randn(num_rows, widths[0], dtype=torch.float64)
        slope = torch.randn(num_rows, widths[-1], dtype=torch.float64)
        expected = mlp(x)
        torch.testing.assert_close(dense.forward(x), expected.detach(), rtol=1e-12, atol=1e-12)
        wanted = torch.autograd.grad(expected, list(mlp.parameters()), slope)
        dense.backward(slope.clone())
        torch.testing.assert_close(list(gradients.values()), list(wanted), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("activation", WITH_FORM)
def test_large_float32_tensors_too(activation: str) -> None:
    """Tanh and ELU have forms of their own there."""
    torch.manual_seed(1)
    module = ACTIVATIONS[activation]()
    form = activation_of(module)
    assert form is not None
    x = torch.cat([torch.linspace(-30, 30, 2**15), torch.tensor([0.0, -1e-8, 1e-8, -1e-30, 100.0, -100.0])])
    leaf = x.clone().requires_grad_()
    expected = module(leaf * 1.0)
    y = x.clone()
    form.forward(y, torch.empty_like(y))
    torch.testing.assert_close(y, expected.detach(), rtol=0, atol=3e-7)
    (wanted,) = torch.autograd.grad(expected.sum(), leaf)
    slope = torch.ones_like(x)
    form.backward(slope, y)
    torch.testing.assert_close(slope, wanted, rtol=0, atol=5e-7)


@pytest.mark.parametrize("activation", WITH_FORM)
def test_a_nan_is_passed_on(activation: str) -> None:
    form = activation_of(ACTIVATIONS[activation]())
    assert form is not None
    x = torch.ones(2**15)
    x[5] = torch.nan
    form.forward(x, torch.empty_like(x))
    assert x.isnan().nonzero().flatten().tolist() == [5]


@pytest.mark.parametrize(
    "module", [nn.SiLU(), nn.GELU(), nn.ELU(alpha=0.5), nn.LeakyReLU(-0.1), nn.LayerNorm(3)]
)
def test_what_has_no_such_form_is_said_to_have_none(module: nn.Module) -> None:
    assert activation_of(module) is None
