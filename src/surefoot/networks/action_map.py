"""From raw actions to what the environment takes."""

from __future__ import annotations

from typing import Any

import gymnasium
import torch
from torch import Tensor, nn

from surefoot.errors import ConfigError


def _rounded_inwards(bound: Any, towards: float) -> Tensor:
    """A float64 bound as float32, never outside of it."""
    exact = torch.as_tensor(bound, dtype=torch.float64).reshape(-1)
    single = exact.float()
    outside = single.double() < exact if towards > 0 else single.double() > exact
    return torch.where(outside, torch.nextafter(single, torch.full_like(single, towards)), single)


class ActionMap(nn.Module):
    """Raw actions [..., A] to what the environment takes.

    A bounded Box dimension: the raw value clipped to [-1, 1] (or its tanh, when squashed) and mapped to the
    bounds; half-bounded: clipped; unbounded: as it is. Discrete and MultiDiscrete: the index plus the space's
    `start`. MultiBinary: as it is.

    Args:
        space: Of one environment.
        distribution: Class name of the distribution that the raw actions come from.
    """

    low: Tensor
    high: Tensor
    middle: Tensor
    half_range: Tensor
    start: Tensor

    def __init__(self, space: gymnasium.Space[Any], distribution: str = "auto") -> None:
        super().__init__()
        self.space, self.squashed = space, distribution == "SquashedGaussian"
        self.shape = tuple(space.shape or ())
        self.is_counted = not isinstance(space, gymnasium.spaces.Box)
        if not isinstance(space, gymnasium.spaces.Box):
            start = torch.as_tensor(getattr(space, "start", 0), dtype=torch.int64)
            self.register_buffer("start", start.broadcast_to(self.shape).clone(), persistent=False)
            return
        low = _rounded_inwards(space.low, torch.inf)
        high = _rounded_inwards(space.high, -torch.inf)
        self.register_buffer("low", low, persistent=False)
        self.register_buffer("high", high, persistent=False)
        # from the middle: -u is mapped to the mirror image of u to the last bit, and nothing overflows
        self.register_buffer("middle", 0.5 * low + 0.5 * high, persistent=False)
        self.register_buffer("half_range", 0.5 * high - 0.5 * low, persistent=False)
        bounded = low.isfinite() & high.isfinite()
        if distribution in ("SquashedGaussian", "Beta") and not bool(bounded.all()):
            raise ConfigError(f"{distribution} needs a Box with finite bounds, not {space}; use Gaussian.")
        self.all_bounded, self.any_bounded = bool(bounded.all()), bool(bounded.any())
        self.is_identity = not bool((low.isfinite() | high.isfinite()).any())

    def forward(self, raw: Tensor) -> Tensor:
        """A new tensor: an environment may change it in place."""
        if self.is_counted:
            return self._shaped(raw) + self.start
        if self.is_identity:
            return self._shaped(raw).clone()
        if self.any_bounded:
            unit = raw.tanh() if self.squashed else raw.clamp(-1.0, 1.0)
            mapped = self.middle + unit * self.half_range
            if not self.all_bounded:
                mapped = torch.where(self.low.isfinite() & self.high.isfinite(), mapped, raw)
        else:
            mapped = raw
        # rounding of the map must not leave the Box
        return self._shaped(mapped.clamp(self.low, self.high))

    def _shaped(self, x: Tensor) -> Tensor:
        """[..., A] to [..., *shape of the space]."""
        # without sizes of its own, reshape would fix the number of rows in an exported graph
        return x.reshape(*x.shape[:-1], *self.shape) if self.shape else x.squeeze(-1)
