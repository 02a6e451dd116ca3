"""From the discriminator's scores to rewards: pure functions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

MAX_BCE_REWARD = 9.21
"""-log(1e-4): the reward where the discriminator is certain, in place of infinity."""


def lsgan_reward(score: Tensor) -> Tensor:
    """max(0, 1 - (d-1)²/4), in [0, 1] (Peng et al. 2021, arXiv:2104.02180, eq. 7)."""
    return (1 - 0.25 * (score - 1).square()).clamp(min=0)


def bce_reward(score: Tensor) -> Tensor:
    """-log(1 - σ(d)) = softplus(d), cut at `MAX_BCE_REWARD` (Ho & Ermon 2016, arXiv:1606.03476)."""
    return functional.softplus(score).clamp(max=MAX_BCE_REWARD)


def wgan_reward(score: Tensor, demo: tuple[Tensor, Tensor], policy: tuple[Tensor, Tensor]) -> Tensor:
    """½(1 + tanh z) in [0, 1], with z the score relative to the equal mixture of the demonstrations' and the
    policy's scores: ½ for both where they cannot be told apart. Ours; Wasserstein scores have neither zero
    point nor unit.

    Args:
        score: Of any shape.
        demo: Mean and variance of the demonstrations' scores, 0-d.
        policy: Of the policy's.
    """
    middle = 0.5 * (demo[0] + policy[0])
    variance = 0.5 * (demo[1] + policy[1]) + 0.25 * (demo[0] - policy[0]).square()
    return 0.5 * (1 + torch.tanh((score - middle) / (variance.sqrt() + 1e-6)))


def lerp(task: Tensor, style: Tensor, weight: Tensor | float) -> Tensor:
    """Task and style as (1-w)·t + w·s."""
    return (1 - weight) * task + weight * style


def additive(task: Tensor, style: Tensor, weight: Tensor | float) -> Tensor:
    """Task and style as t + w·s."""
    return task + weight * style


def multiplicative(task: Tensor, style: Tensor, weight: Tensor | float) -> Tensor:
    """Task and style as t·(1 - w + w·s)."""
    return task * (1 - weight + weight * style)


COMBINATIONS: dict[str, tuple[Callable[[Tensor, Tensor, Tensor | float], Tensor], float]] = {
    "lerp": (lerp, 0.0),
    "additive": (additive, 0.0),
    "multiplicative": (multiplicative, 1.0),
}
"""The law by its name, and the style reward of rows where style does not apply."""
