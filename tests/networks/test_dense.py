"""Layers whose gradient is written down, against autograd."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from surefoot.networks.config import NetworkConfig
from surefoot.networks.dense import BLOCK_ROWS, Dense, activation_of, layers_of, through
from surefoot.networks.encoders import ACTIVATIONS, make_mlp

WITH_FORM = ["elu", "relu", "leaky_relu", "tanh"]


def make(activation: str, widths: list[int], head: int = 0) -> nn.Sequential:
    mlp = make_mlp(widths[0], NetworkConfig(hidden_dims=widths[1:], activation=activation))
    return nn.Sequential(*mlp, *([nn.Linear(widths[-1], head)] if head else [])).double()


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(WITH_FORM),
    st.lists(st.integers(1, 40), min_size=2, max_size=4),
    st.integers(0, 3),
    st.lists(
        st.sampled_from([1, 2, 63, BLOCK_ROWS, BLOCK_ROWS + 1, 2 * BLOCK_ROWS + 5]), min_size=1, max_size=3
    ),
    st.integers(0, 10**6),
)
def test_results_and_gradients_are_those_of_autograd(
    activation: str, widths: list[int], head: int, sizes: list[int], seed: int
) -> None:
    torch.manual_seed(seed)
    mlp = make(activation, widths, head)
    layers = layers_of(mlp)
    assert layers is not None
    dense, places = Dense(layers), [torch.full_like(p, torch.nan) for p in mlp.parameters()]
    for num_rows in sizes:
        x = (3 * torch.randn(num_rows, widths[0], dtype=torch.float64)).requires_grad_()
        expected = mlp(x)
        slope, by_input = torch.randn_like(expected), torch.empty_like(x)
        torch.testing.assert_close(dense.forward(x), expected.detach(), rtol=1e-12, atol=1e-12)
        wanted = torch.autograd.grad(expected, [x, *mlp.parameters()], slope)
        dense.backward(x, slope.clone(), list(zip(places[::2], places[1::2], strict=True)), by_input)
        torch.testing.assert_close([by_input, *places], list(wanted), rtol=1e-9, atol=1e-10)


def count_written(function: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> int:
    """How often `function` goes by `Dense`."""
    calls, forward = [], Dense.forward
    with monkeypatch.context() as patch:
        patch.setattr(Dense, "forward", lambda self, x: calls.append(1) or forward(self, x))
        function()
    return len(calls)


@pytest.mark.parametrize("needs_input", [False, True])
@pytest.mark.parametrize("lead", [(700,), (7, 100)])
def test_many_rows_learn_as_by_autograd(
    lead: tuple[int, ...], needs_input: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    mlp = make("elu", [30, 20, 10], 3)
    x = torch.randn(*lead, 30, dtype=torch.float64, requires_grad=needs_input)
    inputs = [*mlp.parameters(), *([x] if needs_input else [])]
    slope = torch.randn(*lead, 3, dtype=torch.float64)
    wanted = torch.autograd.grad(mlp(x), inputs, slope)

    def learn() -> None:
        out = through(mlp, x)
        for _ in range(2):  # twice through one graph
            found = torch.autograd.grad(out, inputs, slope, retain_graph=True)
            torch.testing.assert_close(list(found), list(wanted), rtol=1e-9, atol=1e-10)

    assert count_written(learn, monkeypatch) == 1


def test_a_gradient_has_a_gradient() -> None:
    torch.manual_seed(1)
    mlp = make("tanh", [30, 20], 1)
    x = torch.randn(700, 30, dtype=torch.float64, requires_grad=True)
    penalties = []
    for function in (mlp, lambda x: through(mlp, x)):
        (slope,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        penalties.append(torch.autograd.grad(slope.square().sum(), [*mlp.parameters()], allow_unused=True))
    for mine, wanted in zip(*penalties, strict=True):
        assert (mine is None) == (wanted is None)
        if mine is not None:
            torch.testing.assert_close(mine, wanted, rtol=1e-9, atol=1e-10)


def test_weights_that_were_changed_before_the_gradient_are_an_error() -> None:
    mlp = make("elu", [30, 20])
    out = through(mlp, torch.randn(700, 30, dtype=torch.float64))
    with torch.no_grad():
        mlp[0].weight.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_passes_that_are_alive_together_do_not_disturb_each_other() -> None:
    torch.manual_seed(1)
    mlp = make("elu", [30, 20, 10], 3)
    inputs = [torch.randn(n, 30, dtype=torch.float64) for n in (700, 700, 900)]
    parameters = [*mlp.parameters()]
    for _ in range(3):
        outs = [through(mlp, x) for x in inputs]
        kept = [out.detach().clone() for out in outs]
        torch.autograd.grad(through(mlp, inputs[0]).sum(), parameters)
        for x, out, before in zip(inputs, outs, kept, strict=True):
            found = torch.autograd.grad(out.square().sum(), parameters)
            wanted = torch.autograd.grad(mlp(x).square().sum(), parameters)
            torch.testing.assert_close(list(found), list(wanted), rtol=1e-9, atol=1e-10)
            assert torch.equal(out, before)


def test_a_layer_that_was_replaced_is_used() -> None:
    mlp, x = make("elu", [30, 20], 3), torch.randn(700, 30, dtype=torch.float64)
    through(mlp, x)
    mlp[2] = nn.Linear(20, 5).double()
    torch.testing.assert_close(through(mlp, x), mlp(x), rtol=1e-12, atol=1e-12)
    mlp[1] = nn.Tanh()
    torch.testing.assert_close(through(mlp, x), mlp(x), rtol=1e-12, atol=1e-12)


def test_another_precision_takes_other_memory() -> None:
    mlp, x = make("elu", [30, 20], 3), torch.randn(700, 30)
    through(mlp, x.double())
    mlp.float()
    torch.testing.assert_close(through(mlp, x), mlp(x))


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
def test_everything_unusual_goes_the_usual_way(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(700, 30, dtype=torch.float64)
    plain = make("elu", [30, 20], 3)
    assert count_written(lambda: through(plain, x), monkeypatch) == 1
    hooked, frozen, other = make("elu", [30, 20], 3), make("elu", [30, 20], 3), make("silu", [30, 20], 3)
    hooked[1].register_forward_hook(lambda *_: None)
    frozen[0].weight.requires_grad_(False)
    without_bias = nn.Sequential(nn.Linear(30, 3, bias=False)).double()
    cases: dict[str, Callable[[], object]] = {
        "few rows": lambda: through(plain, x[:3]),
        "no gradient": lambda: torch.no_grad()(through)(plain, x),
        "hooks": lambda: through(hooked, x),
        "frozen": lambda: through(frozen, x),
        "another activation": lambda: through(other, x),
        "no bias": lambda: through(without_bias, x),
        "traced": lambda: torch.jit.trace(_Through(plain), (x,), check_trace=False),
        "functional": lambda: torch.func.grad(
            lambda p: torch.func.functional_call(_Through(plain), p, (x,)).sum()
        )({f"module.{name}": p.detach() for name, p in plain.named_parameters()}),
    }
    for name, call in cases.items():
        assert count_written(call, monkeypatch) == 0, name


class _Through(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return through(self.module, x)


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
