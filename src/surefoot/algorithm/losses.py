"""PPO's loss terms: pure functions, one value per row; `masked_mean` makes the scalar."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def masked_mean(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean over the entries where `mask` is True (all without one); 0 where there are none."""
    if mask is None:
        return x.sum() / max(x.numel(), 1)
    return torch.where(mask, x, 0.0).sum() / mask.sum().clamp(min=1)


def clipped_surrogate(ratio: Tensor, advantage: Tensor, clip: Tensor | float) -> Tensor:
    """PPO-Clip (Schulman et al. 2017, arXiv:1707.06347, eq. 7), as a loss.

    Args:
        ratio: [M] π(a|s) / π_old(a|s).
        advantage: [M].
        clip: ε > 0.
    """
    clipped = torch.clamp(ratio, 1.0 - clip, 1.0 + clip)  # pyright: ignore[reportCallIssue, reportArgumentType]
    return torch.maximum(-advantage * ratio, -advantage * clipped)


def penalty_surrogate(ratio: Tensor, advantage: Tensor, kl: Tensor, beta: Tensor | float) -> Tensor:
    """PPO-Penalty (Schulman et al. 2017, eq. 8), as a loss: unclipped ratio and β times the KL per row
    [M].
    """
    return -advantage * ratio + beta * kl


def adapt_beta(beta: Tensor, kl: Tensor, target: float, bounds: tuple[float, float] = (1e-4, 1e4)) -> Tensor:
    """β for the next iteration (Schulman et al. 2017, section 4): double above 1.5 targets, halve below
    1/1.5.
    """
    doubled = torch.where(kl > 1.5 * target, beta * 2, beta)
    return torch.where(kl < target / 1.5, beta / 2, doubled).clamp(*bounds)


def mse_value_loss(value: Tensor, returns: Tensor) -> Tensor:
    """Squared error, without ½."""
    return (value - returns).square()


def clipped_value_loss(value: Tensor, old_value: Tensor, returns: Tensor, clip: Tensor | float) -> Tensor:
    """The larger of the squared errors of V and of V kept within ± `clip` of the old one (OpenAI
    Baselines).
    """
    change = torch.clamp(value - old_value, -clip, clip)  # pyright: ignore[reportCallIssue, reportArgumentType]
    clipped = old_value + change
    return torch.maximum((value - returns).square(), (clipped - returns).square())


def huber_value_loss(value: Tensor, returns: Tensor, delta: float) -> Tensor:
    """Square near the target, linear beyond `delta`; twice Huber's form, so that near it equals the squared
    error.
    """
    return 2 * functional.huber_loss(value, returns, reduction="none", delta=delta)


def kl_k3(log_ratio: Tensor) -> Tensor:
    """Estimate of KL(old ‖ new) per row from samples of old: (r - 1) - log r ≥ 0 (Schulman 2020, "k3")."""
    return torch.expm1(log_ratio) - log_ratio


def clip_fraction(ratio: Tensor, clip: Tensor | float) -> Tensor:
    """1.0 where the ratio lies outside 1 ± ε."""
    return ((ratio - 1.0).abs() > clip).to(ratio.dtype)
