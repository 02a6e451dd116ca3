"""A multi-layer perceptron, with the layers at RSL-RL's places."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from surefoot.compat.rsl_rl.utils import get_param, resolve_nn_activation

IN_PLACE = (nn.ELU, nn.SELU, nn.CELU, nn.ReLU, nn.LeakyReLU)
"""Activations whose gradient needs only the result: in place they are faster, and take less memory."""


def new_activation(name: str) -> nn.Module:
    """A module of its own, for behind a layer whose gradient does not need that layer's output."""
    activation = resolve_nn_activation(name)
    if isinstance(activation, IN_PLACE):
        activation.inplace = True
    return activation


class MLP(nn.Sequential):
    """[..., input_dim] to [..., *output_dim].

    Args:
        input_dim: Numbers of one row.
        output_dim: Numbers, or shape, of the output of one row.
        hidden_dims: Widths of the hidden layers; -1 is that of the input.
        activation: After each hidden layer; every layer has an instance of its own.
        last_activation: After the last layer; None: none.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int | Sequence[int],
        hidden_dims: Sequence[int],
        activation: str = "elu",
        last_activation: str | None = None,
    ) -> None:
        layers: list[nn.Module] = []
        width = input_dim
        for hidden in hidden_dims:
            size = input_dim if hidden == -1 else hidden
            layers += [nn.Linear(width, size), new_activation(activation)]
            width = size
        if isinstance(output_dim, int):
            layers.append(nn.Linear(width, output_dim))
        else:
            layers += [nn.Linear(width, math.prod(output_dim)), nn.Unflatten(-1, tuple(output_dim))]
        if last_activation is not None:
            layers.append(new_activation(last_activation))
        super().__init__(*layers)

    def init_weights(self, scales: float | Sequence[float]) -> None:
        """Orthogonal weights with a gain for all linear layers or one for each, and biases of 0."""
        linears = [layer for layer in self if isinstance(layer, nn.Linear)]
        for index, linear in enumerate(linears):
            nn.init.orthogonal_(linear.weight, gain=get_param(scales, index))
            nn.init.zeros_(linear.bias)
