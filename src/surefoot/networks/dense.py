"""Linear layers and their activations, with the gradient written down.

Autograd makes every result anew and takes a whole mini-batch through each layer before the next. Here rows go
through all layers a block at a time, which stays in the processor's cache, and every result has its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional

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


def layers_of(module: nn.Module) -> list[Layer] | None:
    """Of a sequence that is nothing but linear layers and such activations; None of another module."""
    if not isinstance(module, nn.Sequential) or type(module).forward is not nn.Sequential.forward:
        return None
    layers: list[Layer] = []
    for part in module:
        if type(part) is nn.Linear and isinstance(part.bias, nn.Parameter):
            layers.append(Layer(part, None))
        elif layers and layers[-1].activation is None and (activation := activation_of(part)):
            layers[-1] = layers[-1]._replace(activation=activation)
        else:
            return None
    return layers


def is_watched(modules: Iterable[nn.Module], parameters: Iterable[Tensor]) -> bool:
    """Whether something is to see what goes through, or a parameter must not learn any more."""
    for m in modules:
        if m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks:  # pyright: ignore[reportPrivateUsage]
            return True
    return any(p._backward_hooks or not p.requires_grad for p in parameters)  # pyright: ignore[reportPrivateUsage]


Gradients = Sequence[tuple[Tensor, Tensor]]
"""Of each layer the places for the gradient of its weight and of its bias."""


class Dense:
    """One way through layers, and back."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = list(layers)
        self._out = torch.empty(0)
        # of each layer by block: its result, and room of that shape
        self._blocks: list[list[tuple[Tensor, Tensor]]] = []

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """[M, D] to [M, F], which the next call overwrites."""
        if len(x) != len(self._out) or x.dtype != self._out.dtype:
            self._make_room(x)
        transposed = [linear.weight.t() for linear, _ in self.layers]
        for rows, places in zip(self._split(x), self._blocks, strict=True):
            below = rows
            for (linear, activation), weight, (result, room) in zip(
                self.layers, transposed, places, strict=True
            ):
                below = torch.addmm(linear.bias, below, weight, out=result)
                if activation is not None:
                    activation.forward(result, room)
        return self._out

    @torch.no_grad()
    def backward(
        self,
        x: Tensor,
        slope: Tensor,
        gradients: Gradients,
        by_input: Tensor | None = None,
        add: bool = False,
    ) -> None:
        """Fill the gradients of what `forward` did last.

        Args:
            x: What it was given.
            slope: That by the result [M, F]; overwritten.
            gradients: Of the parameters.
            by_input: Of the input [M, D], if it is wanted.
            add: To what stands there already; not `by_input`.
        """
        slopes, wanted = self._split(slope), () if by_input is None else self._split(by_input)
        for block, (rows, places) in enumerate(zip(self._split(x), self._blocks, strict=True)):
            by_result = slopes[block]
            for i in range(len(self.layers) - 1, -1, -1):
                (linear, activation), (by_weight, by_bias) = self.layers[i], gradients[i]
                if activation is not None:
                    activation.backward(by_result, places[i][0])
                below = places[i - 1][0] if i else rows
                if add:
                    by_weight.addmm_(by_result.t(), below)
                    by_bias.add_(by_result.sum(0))
                else:
                    torch.mm(by_result.t(), below, out=by_weight)
                    torch.sum(by_result, 0, out=by_bias)
                if i:
                    by_result = torch.mm(by_result, linear.weight, out=places[i - 1][1])
                elif wanted:
                    torch.mm(by_result, linear.weight, out=wanted[block])
            add = True

    def _split(self, x: Tensor) -> Sequence[Tensor]:
        return x.tensor_split(len(self._blocks)) if len(self._blocks) > 1 else (x,)

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


def through(module: nn.Module, x: Tensor) -> Tensor:
    """`module(x)` [..., F] of [..., D]; of many rows on a CPU, layers that learn go by `Dense`."""
    if (
        not torch.is_grad_enabled()
        or not x.is_cpu
        or torch.is_autocast_enabled("cpu")
        or torch.compiler.is_compiling()
        or torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
        or x.numel() < LARGE
    ):
        return module(x)
    layers = layers_of(module)
    if not layers:
        return module(x)
    parameters = [p for layer in layers for p in (layer.linear.weight, layer.linear.bias)]
    # functions of the parameters, as torch.func makes them, put other tensors in their place
    if any(type(p) is not nn.Parameter or p.dtype != x.dtype for p in parameters):
        return module(x)
    if is_watched(module.modules(), parameters):
        return module(x)
    out: Any = _Written.apply(module, layers, x.reshape(-1, x.shape[-1]), *parameters)
    return out.view(*x.shape[:-1], out.shape[-1])


class _Loan:
    """A `Dense` of a module's layers for as long as a gradient may need it; then it serves the next.

    New memory for each mini-batch would cost more than is gained: the system hands it out in pages of zeros.
    """

    free: ClassVar[WeakKeyDictionary[nn.Module, list[Dense]]] = WeakKeyDictionary()

    def __init__(self, module: nn.Module, layers: list[Layer]) -> None:
        self._free = self.free.setdefault(module, [])
        self.dense = self._free.pop() if self._free else Dense(layers)
        if [x.linear for x in self.dense.layers] != [x.linear for x in layers]:  # some were replaced
            self.dense = Dense(layers)
        self.dense.layers = layers  # perhaps with other activations

    def __del__(self) -> None:
        self._free.append(self.dense)


class _Written(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, module: nn.Module, layers: list[Layer], x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.module, ctx.loan = module, _Loan(module, layers)
        ctx.save_for_backward(x, *parameters)
        return ctx.loan.dense.forward(x).clone()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, *parameters = ctx.saved_tensors  # which sees to it that none was changed since
        if torch.is_grad_enabled():  # the gradient is to have one itself: autograd's has
            wanted = [x, *parameters] if x.requires_grad else parameters
            found = torch.autograd.grad(ctx.module(x), wanted, slope, create_graph=True)
            return None, None, *(found if x.requires_grad else (None, *found))
        places = [torch.empty_like(p) for p in parameters]
        by_input = torch.empty_like(x) if x.requires_grad else None
        by_layer = list(zip(places[::2], places[1::2], strict=True))
        ctx.loan.dense.backward(x, slope.clone(), by_layer, by_input)
        return None, None, by_input, *places
