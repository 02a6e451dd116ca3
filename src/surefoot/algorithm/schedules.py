"""Schedules of the learning rate, the clip range and the entropy coefficient: data. The adaptive rate is
computed on the device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Le, Len
from torch import Tensor

from surefoot.errors import ConfigError
from surefoot.field_checks import Checked

LARGEST_VALUE = 1e6
"""Of a schedule and of every weight in the loss: beyond, gradients no longer fit into a float32."""
Value = Annotated[float, Ge(0), Le(LARGEST_VALUE)]


@dataclass(frozen=True)
class ScheduleConfig(Checked):
    """A value over training iterations. It is plain data, so a run resumes it where it stopped."""

    type: Literal["fixed", "linear", "cosine", "piecewise"] = "fixed"
    """Shape: `fixed`; `linear` or `cosine` from `initial` to `final`; `piecewise` linear through `points`."""
    initial: Value | None = None
    """Value at iteration 0. Default: the key that is scheduled (`learning_rate`, `clip_param`,
    `entropy_coef`)."""
    final: Value = 0.0
    """Value at `horizon` and after it."""
    horizon: Annotated[int, Ge(1)] | None = None
    """Iterations from `initial` to `final`. Default: `max_iterations`."""
    points: Annotated[list[tuple[Annotated[int, Ge(0)], Value]], Len(1)] | None = None
    """For `piecewise`: `[[iteration, value], ...]` in rising order of iteration."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.type == "piecewise") != (self.points is not None):
            raise ConfigError(
                f"schedule type '{self.type}': 'points' belongs to type 'piecewise', which needs it."
            )
        if self.points and [i for i, _ in self.points] != sorted({i for i, _ in self.points}):
            raise ConfigError(f"schedule points {self.points}: iterations must rise.")

    @property
    def largest(self) -> float:
        """Of the values that it names."""
        return max(self.initial or 0.0, self.final, *(value for _, value in self.points or ()))


def schedule_value(config: ScheduleConfig | None, initial: float, horizon: int, iteration: int) -> float:
    """The value at `iteration` (from 0); `initial` and `horizon` stand in where the config leaves them
    open. None: always `initial`.
    """
    if config is None:
        return initial
    start = initial if config.initial is None else config.initial
    progress = min(iteration / (config.horizon or horizon), 1.0)
    if config.type == "linear":
        return start + (config.final - start) * progress
    if config.type == "cosine":
        return config.final + (start - config.final) * 0.5 * (1 + math.cos(math.pi * progress))
    if config.type == "piecewise":
        return _interpolate(config.points or [], iteration)
    return start


def _interpolate(points: list[tuple[int, float]], iteration: int) -> float:
    if iteration <= points[0][0]:
        return points[0][1]
    for (i0, v0), (i1, v1) in pairwise(points):
        if iteration < i1:
            return v0 + (v1 - v0) * (iteration - i0) / (i1 - i0)
    return points[-1][1]


def adapt_learning_rate(
    rate: Tensor, kl: Tensor, desired_kl: float, bounds: tuple[float, float], factor: float = 1.5
) -> Tensor:
    """The KL-adaptive rule: slower above twice the desired KL, faster below half of it.

    A KL of 0, up to rounding, says that nothing was learned, and NaN that nothing is known: both leave the
    rate as it is.
    Source: the rule of RSL-RL (Rudin et al. 2022, arXiv:2109.11978), per mini-batch.
    """
    slower = (rate / factor).clamp(min=bounds[0])
    faster = (rate * factor).clamp(max=bounds[1])
    adapted = torch.where(kl > 2 * desired_kl, torch.minimum(slower, rate), rate)
    has_moved = kl > torch.finfo(kl.dtype).eps
    return torch.where(has_moved & (kl < desired_kl / 2), torch.maximum(faster, rate), adapted)
