"""Hidden layers, their initial weights, and observations as vectors."""

from __future__ import annotations

import math
from typing import Any, get_args

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from surefoot.errors import ConfigError
from surefoot.networks.config import Activation, NetworkConfig
from surefoot.networks.encoders import (
    LARGE,
    Tanh,
    as_vector,
    hidden_gain,
    init_linear,
    make_mlp,
    vector_size,
)

spaces = gymnasium.spaces


def linears(module: nn.Module) -> list[nn.Linear]:
    return [m for m in module.modules() if isinstance(m, nn.Linear)]


@pytest.mark.parametrize("activation", get_args(Activation))
def test_every_activation_builds_and_trains(activation: Any) -> None:
    torch.manual_seed(0)
    net = make_mlp(3, NetworkConfig(hidden_dims=[8, 4], activation=activation))
    x = torch.randn(5, 3, requires_grad=True)
    out = net(x)
    assert out.shape == (5, 4)
    out.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize("activation", get_args(Activation))
def test_an_activation_is_the_function_of_its_name(activation: Any) -> None:
    net = make_mlp(1, NetworkConfig(hidden_dims=[1], activation=activation))
    with torch.no_grad():
        linears(net)[0].weight.fill_(1.0)
        linears(net)[0].bias.fill_(0.0)
    x = torch.tensor([[-1.0], [2.0]])
    expected = {
        "elu": [math.exp(-1) - 1, 2.0],
        "relu": [0.0, 2.0],
        "leaky_relu": [-0.01, 2.0],
        "tanh": [math.tanh(-1), math.tanh(2)],
        "silu": [-1 / (1 + math.exp(1)), 2 / (1 + math.exp(-2))],
        # x · Φ(x)
        "gelu": [-0.5 * (1 + math.erf(-1 / math.sqrt(2))), 1 + math.erf(2 / math.sqrt(2))],
    }
    assert net(x).flatten().tolist() == pytest.approx(expected[activation], rel=1e-5)
    assert x.tolist() == [[-1.0], [2.0]]


@torch.no_grad()
def test_tanh_of_a_large_batch_is_tanh_within_rounding_and_not_a_number_where_that_is_none() -> None:
    x = torch.linspace(-30, 30, 2 * LARGE)
    x[0], x[1], x[2] = math.nan, math.inf, -math.inf
    torch.testing.assert_close(Tanh()(x.clone()), x.tanh(), rtol=0, atol=2e-7, equal_nan=True)
    assert torch.equal(Tanh()(x[3:].double()), x[3:].double().tanh())


def test_tanh_of_a_large_batch_has_its_gradient_and_leaves_its_input() -> None:
    x = torch.linspace(-2, 2, 2 * LARGE, requires_grad=True)
    Tanh()(x).sum().backward()
    torch.testing.assert_close(x.grad, 1 - x.detach().tanh().square())


def test_without_hidden_layers_the_input_passes() -> None:
    net = make_mlp(3, NetworkConfig(hidden_dims=[]))
    x = torch.randn(2, 3)
    assert torch.equal(net(x), x)


def test_layer_norm_stands_before_each_activation() -> None:
    net = make_mlp(3, NetworkConfig(hidden_dims=[8, 4], layer_norm=True))
    kinds = [type(m).__name__ for m in net]
    assert kinds == ["Linear", "LayerNorm", "ELU", "Linear", "LayerNorm", "ELU"]
    # an input a thousand times larger gives the same features
    x = torch.randn(5, 3)
    with torch.no_grad():
        torch.testing.assert_close(net[:2](x * 1000), net[:2](x), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(
    ("activation", "gain"), [("elu", math.sqrt(2)), ("relu", math.sqrt(2)), ("tanh", 5 / 3)]
)
def test_hidden_weights_are_orthogonal_with_the_gain_of_the_activation(activation: Any, gain: float) -> None:
    assert hidden_gain(activation) == pytest.approx(gain)
    net = make_mlp(6, NetworkConfig(hidden_dims=[6, 4], activation=activation))
    for linear in linears(net):
        w = linear.weight.detach()
        rows = w.shape[0]
        torch.testing.assert_close(w @ w.T, gain**2 * torch.eye(rows), rtol=1e-4, atol=1e-4)
        assert linear.bias.abs().max().item() == 0.0


def test_default_initial_weights_are_torchs() -> None:
    torch.manual_seed(3)
    mine = make_mlp(3, NetworkConfig(hidden_dims=[4], init="default"))
    torch.manual_seed(3)
    assert torch.equal(linears(mine)[0].weight, nn.Linear(3, 4).weight)


def test_a_small_last_layer() -> None:
    last = nn.Linear(64, 4)
    init_linear(last, NetworkConfig(), 0.01)
    # orthogonal rows of length .01
    torch.testing.assert_close(last.weight.detach().norm(dim=1), torch.full((4,), 0.01))


SPACES: list[tuple[Any, int]] = [
    (spaces.Box(-1, 1, (3,)), 3),
    (spaces.Box(-1, 1, ()), 1),
    (spaces.Box(-1, 1, (2, 3)), 6),
    (spaces.Discrete(4), 4),
    (spaces.MultiDiscrete([2, 3]), 5),
    (spaces.MultiDiscrete([[2, 3], [4, 5]]), 14),
    (spaces.MultiBinary(3), 3),
    (spaces.MultiBinary((2, 2)), 4),
]


@pytest.mark.parametrize(("space", "size"), SPACES, ids=str)
@pytest.mark.parametrize("lead", [(7,), (2, 7)])
def test_every_space_becomes_a_vector_of_its_size(space: Any, size: int, lead: tuple[int, ...]) -> None:
    space.seed(0)
    samples = np.stack([space.sample() for _ in range(math.prod(lead))])
    x = torch.as_tensor(samples).reshape(*lead, *space.shape)
    assert vector_size(space, "g") == size
    vector = as_vector(space, x)
    assert vector.shape == (*lead, size)
    assert vector.is_floating_point()


def test_discrete_observations_are_one_hot_from_their_start() -> None:
    space = spaces.Discrete(3, start=-1)
    assert as_vector(space, torch.tensor([-1, 1])).tolist() == [[1, 0, 0], [0, 0, 1]]


def test_multi_discrete_observations_are_one_hot_part_by_part() -> None:
    space = spaces.MultiDiscrete([2, 3])
    assert as_vector(space, torch.tensor([[1, 0], [0, 2]])).tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]
    shifted = spaces.MultiDiscrete([2, 2], start=[5, -1])
    assert as_vector(shifted, torch.tensor([[6, -1]])).tolist() == [[0, 1, 1, 0]]


def test_a_space_that_cannot_be_a_vector_is_refused_with_its_group() -> None:
    with pytest.raises(ConfigError, match="'words'"):
        vector_size(spaces.Text(5), "words")
