"""Linear layers and their activations, with the gradient written down.

Autograd makes every result anew and takes a whole mini-batch through each layer before the next. Here rows go
through all layers a block at a time, which stays in the processor's cache, and every result has its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from surefoot.networks.body import Body
from surefoot.networks.encoders import LARGE, Tanh, tanh_

BLOCK_ROWS = 1024
"""Rows that a thread of a CPU takes through the layers at once."""


class Activation(NamedTuple):
    """Both in place."""

    forward: Callable[[Tensor, Tensor], object]
    """Of the first; the second, of its shape, is room for work."""
    backward: Callable[[Tensor, Tensor], object]
    """Makes of the gradient by its result, the first, that by its input; the second is the result."""


class Layer(NamedTuple):
    linear: nn.Linear
    activation: Activation | None


def activation_of(module: nn.Module) -> Activation | None:
    """None where the gradient is not written down."""
    aten = torch.ops.aten
    if type(module) in (Tanh, nn.Tanh):
        return Activation(
            lambda x, _: tanh_(x), lambda g, y: aten.tanh_backward.grad_input(g, y, grad_input=g)
        )
    if type(module) is nn.ReLU:
        return Activation(
            lambda x, _: x.relu_(), lambda g, y: aten.threshold_backward.grad_input(g, y, 0, grad_input=g)
        )
    if type(module) is nn.LeakyReLU and module.negative_slope >= 0:
        slope = module.negative_slope
        return Activation(
            lambda x, _: functional.leaky_relu_(x, slope),
            lambda g, y: aten.leaky_relu_backward.grad_input(g, y, slope, True, grad_input=g),
        )
    if type(module) is nn.ELU and module.alpha == 1.0:
        return Activation(
            _elu_, lambda g, y: aten.elu_backward.grad_input(g, 1.0, 1.0, 1.0, True, y, grad_input=g)
        )
    return None


def _elu_(x: Tensor, room: Tensor) -> None:
    """max(x, exp(min(x, 0)) - 1): the library's own takes half as long again for large tensors on a CPU."""
    if x.numel() < LARGE or not x.is_cpu:
        functional.elu_(x)
        return
    torch.clamp_max(x, 0.0, out=room)
    torch.maximum(x, room.exp_().sub_(1.0), out=x)


def layers_of(body: Body) -> list[Layer] | None:
    """The layers of a body that has nothing else; None: there is more to it."""
    if body.memory is not None or body.estimator is not None or body.image_groups:
        return None
    modules: list[nn.Module] = list(body.layers.children())
    if type(body.layers) is not nn.Sequential or len(modules) % 2:
        return None
    layers = []
    for linear, module in zip(modules[::2], modules[1::2], strict=True):
        activation = activation_of(module)
        if type(linear) is not nn.Linear or activation is None:
            return None
        layers.append(Layer(linear, activation))
    return layers


def is_watched(modules: Iterable[nn.Module], parameters: Iterable[Tensor]) -> bool:
    """Whether something is to see what goes through, or a parameter must not learn any more."""
    for m in modules:
        if m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks:  # pyright: ignore[reportPrivateUsage]
            return True
    return any(p._backward_hooks or not p.requires_grad for p in parameters)  # pyright: ignore[reportPrivateUsage]


class Dense:
    """One way through layers, and back.

    Args:
        layers: In their order.
        gradients: Where the gradient of each parameter goes.
    """

    def __init__(self, layers: Sequence[Layer], gradients: Mapping[Tensor, Tensor]) -> None:
        self.layers = list(layers)
        self._gradients = [(gradients[x.linear.weight], gradients[x.linear.bias]) for x in layers]
        self._out = torch.empty(0)
        # of each layer by block: its result, and room of that shape
        self._blocks: list[list[tuple[Tensor, Tensor]]] = []
        self._inputs: Sequence[Tensor] = ()

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """[M, D] to [M, F], which the next call overwrites."""
        if len(x) != len(self._out):
            self._make_room(x)
        self._inputs = x.tensor_split(len(self._blocks))
        transposed = [linear.weight.t() for linear, _ in self.layers]
        for rows, places in zip(self._inputs, self._blocks, strict=True):
            for (linear, activation), weight, (result, room) in zip(
                self.layers, transposed, places, strict=True
            ):
                rows = torch.addmm(linear.bias, rows, weight, out=result)
                if activation is not None:
                    activation.forward(result, room)
        return self._out

    @torch.no_grad()
    def backward(self, slope: Tensor, add: bool = False) -> None:
        """The gradients, from that by the last result [M, F], which is overwritten; added to what is there,
        or in its place.
        """
        parts = zip(self._inputs, self._blocks, slope.tensor_split(len(self._blocks)), strict=True)
        for rows, places, by_result in parts:
            for i in range(len(self.layers) - 1, -1, -1):
                (linear, activation), (by_weight, by_bias) = self.layers[i], self._gradients[i]
                if activation is not None:
                    activation.backward(by_result, places[i][0])
                below, room = places[i - 1] if i else (rows, rows)
                if not add:
                    torch.mm(by_result.t(), below, out=by_weight)
                    torch.sum(by_result, 0, out=by_bias)
                else:
                    by_weight.addmm_(by_result.t(), below)
                    by_bias.add_(by_result.sum(0))
                if i:
                    by_result = torch.mm(by_result, linear.weight, out=room)
            add = True

    def _make_room(self, x: Tensor) -> None:
        num_rows, block_rows = len(x), BLOCK_ROWS * torch.get_num_threads() if x.is_cpu else len(x)
        num_blocks = -(-num_rows // block_rows)
        by_layer = []
        for linear, _ in self.layers:
            self._out = x.new_empty(num_rows, linear.out_features)
            results = self._out.tensor_split(num_blocks)
            room = torch.empty_like(results[0])  # the same for all blocks: it stays in the cache
            by_layer.append([(result, room[: len(result)]) for result in results])
        self._blocks = [list(places) for places in zip(*by_layer, strict=True)]
