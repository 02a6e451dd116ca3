"""Encoders: a vector of inputs to features."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import torch
from torch import Tensor, nn
from torch.nn import functional

from surefoot.errors import ConfigError, did_you_mean
from surefoot.networks.config import NetworkConfig
from surefoot.networks.images import is_picture

LARGE = 2**14
"""Numbers from which on the CPU's own tanh takes longer than four simpler operations."""


def tanh_(x: Tensor) -> Tensor:
    """The hyperbolic tangent in place, without a gradient.

    On a CPU it is 2σ(2x) - 1 for large tensors, within 2e-7: much faster than its own tanh.
    """
    if x.numel() < LARGE or not x.is_cpu or x.dtype != torch.float32:
        return x.tanh_()
    return x.mul_(2.0).sigmoid_().mul_(2.0).sub_(1.0)


class Tanh(nn.Module):
    """The hyperbolic tangent of what nothing else reads."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return 2.0 * (2.0 * x).sigmoid() - 1.0  # one kernel, and the compiler's tanh is slow too
        return x.tanh() if torch.is_grad_enabled() or x.numel() < LARGE else tanh_(x)


# In place where the gradient needs only the result: ELU's then needs no exponential.
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "elu": lambda: nn.ELU(inplace=True),
    "relu": lambda: nn.ReLU(inplace=True),
    "leaky_relu": lambda: nn.LeakyReLU(inplace=True),
    "tanh": Tanh,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}


def make_mlp(num_inputs: int, config: NetworkConfig) -> nn.Sequential:
    """Hidden layers only, [..., D] to [..., hidden_dims[-1]]; the heads follow elsewhere."""
    layers: list[nn.Module] = []
    width = num_inputs
    for hidden in config.hidden_dims:
        linear = nn.Linear(width, hidden)
        init_linear(linear, config, hidden_gain(config.activation))
        layers.append(linear)
        if config.layer_norm:
            layers.append(nn.LayerNorm(hidden))
        layers.append(ACTIVATIONS[config.activation]())
        width = hidden
    return nn.Sequential(*layers)


def hidden_gain(activation: str) -> float:
    """Gain that keeps the size of the signal through the activation (He et al. 2015; √2 for ReLU and its
    kin).
    """
    return nn.init.calculate_gain("tanh") if activation == "tanh" else math.sqrt(2)


def init_linear(linear: nn.Linear, config: NetworkConfig, gain: float) -> None:
    if config.init == "orthogonal":
        nn.init.orthogonal_(linear.weight, gain)
        nn.init.zeros_(linear.bias)


def at_least_float32(x: Tensor) -> Tensor:
    """Low precision ends where the heads begin: PPO works on small differences of log-probabilities."""
    return x if x.dtype == torch.float64 else x.float()


def vector_size(space: gymnasium.Space[Any], group: str) -> int:
    """Entries that an observation of `space` takes in a network's input vector.

    Raises:
        ConfigError: the space cannot be a vector.
    """
    if isinstance(space, gymnasium.spaces.Box | gymnasium.spaces.MultiBinary):
        return int(math.prod(space.shape))
    if isinstance(space, gymnasium.spaces.Discrete):
        return int(space.n)
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return int(space.nvec.sum())
    raise ConfigError(f"observation group '{group}' has the space {space}, which cannot enter a network.")


def as_vector(space: gymnasium.Space[Any], x: Tensor) -> Tensor:
    """[..., *space.shape] to [..., D] float: flattened; one-hot where the space counts; pixels up to 1."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return functional.one_hot(x.long() - int(space.start), int(space.n)).to(torch.get_default_dtype())
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        start = torch.as_tensor(space.start, device=x.device)
        parts = (x.long() - start).flatten(-len(space.shape)).unbind(-1)
        sizes: Sequence[int] = space.nvec.flatten().tolist()
        return torch.cat([functional.one_hot(p, n) for p, n in zip(parts, sizes, strict=True)], -1).to(
            torch.get_default_dtype()
        )
    vector = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    if is_picture(space):
        vector = vector / 255
    dims = len(space.shape or ())
    return vector if dims == 1 else vector.flatten(-dims) if dims else vector.unsqueeze(-1)


def space_of(spaces: Mapping[str, gymnasium.Space[Any]], group: str, what: str) -> gymnasium.Space[Any]:
    """The space of a group that `what` reads.

    Raises:
        ConfigError: there is no such group.
    """
    if group not in spaces:
        raise ConfigError(
            f"{what} wants the observation group '{group}', which the environment does not give; it has "
            f"{sorted(spaces)}.{did_you_mean(group, spaces)}"
        )
    return spaces[group]


def part_size(spaces: Mapping[str, gymnasium.Space[Any]], group: str, part: slice, what: str) -> int:
    """Numbers in the part of a group that `what` wants to predict.

    Raises:
        ConfigError: there is no such group, or no such part.
    """
    shape = space_of(spaces, group, what).shape or ()
    size = len(range(*part.indices(shape[-1] if shape else 0)))
    if len(shape) != 1 or not size or (part.stop or 0) > shape[0]:
        raise ConfigError(
            f"{what}: {part} of the group '{group}', of shape {tuple(shape)}, is empty, too long or not "
            "of a vector."
        )
    return size
