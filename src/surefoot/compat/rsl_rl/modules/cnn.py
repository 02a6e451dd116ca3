"""A convolutional network, with the layers at RSL-RL's places."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from surefoot.compat.rsl_rl.modules.mlp import new_activation
from surefoot.compat.rsl_rl.utils import get_param
from surefoot.errors import ConfigError, did_you_mean

PADDINGS = ("none", "zeros", "reflect", "replicate", "circular")
NORMS = ("none", "batch", "layer")
GLOBAL_POOLS = {"none": None, "max": nn.AdaptiveMaxPool2d, "avg": nn.AdaptiveAvgPool2d}


class CNN(nn.Sequential):
    """Images [B, input_channels, *input_dim] to features [B, F], or to maps [B, C, H, W] without `flatten`.

    Args:
        input_dim: Height and width.
        input_channels: Channels of the input.
        output_channels: Of each layer.
        kernel_size, stride, dilation, norm, max_pool: One for all layers, or one for each. `norm` is `none`,
            `batch` or `layer`.
        padding: `none`, or what fills the border, as wide as the output needs to keep its size at stride 1.
        activation: After each layer; every layer has an instance of its own.
        global_pool: `max` or `avg` over each map at the end, or `none`.
        flatten: Whether the output is one row of numbers.

    Raises:
        ConfigError: an unknown choice, or an image that the layers make vanish.
    """

    # TorchScript would compile properties
    __jit_unused_properties__: ClassVar[list[str]] = ["output_channels", "output_dim"]

    def __init__(
        self,
        input_dim: tuple[int, int],
        input_channels: int,
        output_channels: Sequence[int],
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
        padding: str = "none",
        norm: str | Sequence[str] = "none",
        activation: str = "elu",
        max_pool: bool | Sequence[bool] = False,
        global_pool: str = "none",
        flatten: bool = True,
    ) -> None:
        _check_choice("padding", padding, PADDINGS)
        _check_choice("global_pool", global_pool, GLOBAL_POOLS)
        layers: list[nn.Module] = []
        channels, size = input_channels, (input_dim[0], input_dim[1])
        for index, width in enumerate(output_channels):
            kernel, step, spread = (get_param(p, index) for p in (kernel_size, stride, dilation))
            border = (0, 0) if padding == "none" else _compute_padding(size, kernel, step, spread)
            mode: Any = "zeros" if padding == "none" else padding
            layers.append(nn.Conv2d(channels, width, kernel, step, border, spread, padding_mode=mode))
            size, channels = _compute_output_dim(size, kernel, step, spread, border), width
            kind = get_param(norm, index)
            _check_choice("norm", kind, NORMS)
            if kind != "none":
                layers.append(nn.BatchNorm2d(width) if kind == "batch" else nn.LayerNorm([width, *size]))
            layers.append(new_activation(activation))
            if get_param(max_pool, index):
                layers.append(nn.MaxPool2d(3, 2, padding=1))
                size = _half(size)
            if min(size) < 1:
                raise ConfigError(
                    f"nothing is left of an image of {input_dim[0]} x {input_dim[1]} pixels after layer "
                    f"{index} of the CNN; use smaller kernel_size and stride, or padding."
                )
        if (pool := GLOBAL_POOLS[global_pool]) is not None:
            layers.append(pool((1, 1)))
            size = (1, 1)
        if flatten:
            layers.append(nn.Flatten(start_dim=1))
        super().__init__(*layers)
        self._output_channels = None if flatten else channels
        self._output_dim: int | tuple[int, int] = channels * size[0] * size[1] if flatten else size

    @property
    def output_channels(self) -> int | None:
        """Channels of the output; None where it is one row of numbers."""
        return self._output_channels

    @property
    def output_dim(self) -> int | tuple[int, int]:
        """Numbers of the output; without `flatten`, its height and width."""
        return self._output_dim

    def init_weights(self) -> None:
        """Weights after He et al. 2015 (arXiv:1502.01852), biases of 0."""
        for module in self:
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
                if isinstance(module.bias, torch.Tensor):
                    nn.init.zeros_(module.bias)


def _check_choice(key: str, choice: str, known: Collection[str]) -> None:
    if choice not in known:
        raise ConfigError(
            f"{key} '{choice}' is unknown; one of: {', '.join(known)}.{did_you_mean(choice, known)}"
        )


def _compute_padding(input_hw: tuple[int, int], kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """Pixels to add on each side so that the output has ⌊size / stride⌋ pixels."""
    reach = dilation * (kernel - 1) + 1
    height, width = (max(0, -((stride + size % stride - reach) // 2)) for size in input_hw)
    return height, width


def _compute_output_dim(
    input_hw: tuple[int, int],
    kernel: int,
    stride: int,
    dilation: int,
    padding: tuple[int, int],
    is_max_pool: bool = False,
) -> tuple[int, int]:
    """Height and width after a convolution, and after its pooling."""
    reach = dilation * (kernel - 1) + 1
    height, width = ((n + 2 * p - reach) // stride + 1 for n, p in zip(input_hw, padding, strict=True))
    return _half((height, width)) if is_max_pool else (height, width)


def _half(size: tuple[int, int]) -> tuple[int, int]:
    return (size[0] + 1) // 2, (size[1] + 1) // 2
