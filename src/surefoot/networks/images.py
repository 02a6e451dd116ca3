"""Image observations: which groups are images, and the convolutions that encode them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from surefoot.errors import ConfigError
from surefoot.networks.config import CnnConfig, NetworkConfig

MIN_NATURE = 36
"""Pixels a side below which nothing is left after the layers of `nature`."""
MIN_IMAGE = 8
"""A uint8 array with a side below this is a table, not a picture."""
NATURE = CnnConfig([32, 64, 64], [8, 4, 3], [4, 2, 1], 512)
"""Mnih et al. 2015, doi:10.1038/nature14236."""


@dataclass(frozen=True)
class ImageShape:
    """What is known of an image group."""

    channels: int
    height: int
    width: int
    layout: str
    """`first` (C, H, W), `last` (H, W, C) or `none` (H, W)."""
    scale: float
    """Pixels are multiplied by this."""


def is_picture(space: gymnasium.Space[Any]) -> bool:
    """Whether a space holds pixels from 0 to 255: uint8, and not a small table."""
    return (
        isinstance(space, gymnasium.spaces.Box)
        and space.dtype == np.uint8
        and len(space.shape) >= 2
        and sorted(space.shape)[-2] >= MIN_IMAGE
    )


def image_shape(space: gymnasium.Space[Any], group: str, config: NetworkConfig) -> ImageShape | None:
    """The layout of an image group, or None where the group is a vector to this network.

    Raises:
        ConfigError: an image whose channels cannot be told from its sides.
    """
    if not isinstance(space, gymnasium.spaces.Box) or config.cnn == "flat" or len(space.shape) < 2:
        return None
    is_uint8 = space.dtype == np.uint8
    if not is_uint8 and (config.cnn is None or len(space.shape) < 3):
        return None
    scale = 1 / 255 if is_uint8 else 1.0
    if config.cnn is None and not is_picture(space):
        return None
    if len(space.shape) == 2:
        return ImageShape(1, *space.shape, "none", scale)
    if len(space.shape) > 3:
        raise ConfigError(
            f"observation group '{group}' has the shape {space.shape}; an image has at most 3 dimensions. "
            "Merge stacked frames into the channels with gymnasium.wrappers.ReshapeObservation, or set "
            "cnn to flat."
        )
    a, b, c = space.shape
    if c < min(a, b):
        return ImageShape(c, a, b, "last", scale)
    if a < min(b, c):
        return ImageShape(a, b, c, "first", scale)
    raise ConfigError(
        f"observation group '{group}' has the shape {space.shape}: its channels cannot be told from its "
        "sides. Channels stand first or last and are fewer than the pixels of a side; reshape it, or set cnn "
        "to flat."
    )


class ImageEncoder(nn.Module):
    """Pixels [..., *group shape], uint8 or float, to features [..., F]."""

    def __init__(self, shape: ImageShape, group: str, config: NetworkConfig) -> None:
        super().__init__()
        self.shape = shape
        side = min(shape.height, shape.width)
        kind = config.cnn or ("nature" if side >= MIN_NATURE else CnnConfig())
        if kind == "impala":
            self.convolutions, self.num_features = _impala(shape.channels), 256
        else:
            layers = NATURE if kind == "nature" else kind
            assert isinstance(layers, CnnConfig)
            self.convolutions, self.num_features = _plain(shape.channels, layers), layers.features
        try:
            with torch.no_grad():
                dummy = torch.zeros(1, shape.channels, shape.height, shape.width)
                num_flat = self.convolutions(dummy).numel()
        except RuntimeError as error:
            raise ConfigError(
                f"observation group '{group}' is only {shape.height} x {shape.width} pixels: its "
                "convolutions leave nothing. Use cnn: impala, or smaller kernel_sizes and strides."
            ) from error
        self.linear = nn.Linear(num_flat, self.num_features)
        if config.init == "orthogonal":
            for module in self.modules():
                if isinstance(module, nn.Conv2d | nn.Linear):
                    nn.init.orthogonal_(module.weight, math.sqrt(2))
                    assert module.bias is not None
                    nn.init.zeros_(module.bias)
            for module in self.modules():
                if isinstance(module, _Residual):
                    nn.init.zeros_(module.second.weight)  # a block starts as the identity

    def forward(self, pixels: Tensor) -> Tensor:
        shape = self.shape
        lead = pixels.shape[: -2 if shape.layout == "none" else -3]
        x = pixels.reshape(math.prod(lead), *pixels.shape[len(lead) :])
        if shape.layout == "last":
            x = x.permute(0, 3, 1, 2)
        elif shape.layout == "none":
            x = x.unsqueeze(1)
        x = x.to(self.linear.weight.dtype) * shape.scale
        features = self.linear(self.convolutions(x).flatten(1)).relu()
        return features.view(*lead, self.num_features)


def _plain(channels: int, config: CnnConfig) -> nn.Sequential:
    layers: list[nn.Module] = []
    sizes = zip(config.channels, config.kernel_sizes, config.strides, strict=True)
    for width, kernel, stride in sizes:
        layers += [nn.Conv2d(channels, width, kernel, stride), nn.ReLU(inplace=True)]
        channels = width
    return nn.Sequential(*layers)


def _impala(channels: int) -> nn.Sequential:
    """Three stages that halve the picture, two residual blocks each (Espeholt et al. 2018)."""
    layers: list[nn.Module] = []
    for width in (16, 32, 32):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.MaxPool2d(3, 2, padding=1)]
        layers += [_Residual(width), _Residual(width)]
        channels = width
    return nn.Sequential(*layers, nn.ReLU(inplace=True))


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(functional.relu(self.first(functional.relu(x))))
