"""Discounted sums along a rollout."""

from __future__ import annotations

from itertools import repeat

import torch
from torch import Tensor

SCAN_STEPS = 128
"""Above this many steps a scan of log2(T) passes beats a loop of T fused steps."""


def discounted_sum(x: Tensor, decay: Tensor) -> Tensor:
    """y_t = x_t + decay_t · y_{t+1}, backwards over the first dimension of [T, N]."""
    return add_discounted_(x.clone(), decay, decay == 0)


def add_discounted_(x: Tensor, decay: Tensor, ends: Tensor) -> Tensor:
    """The same, written over x [T, N], with 0 for the decay where `ends` [T, N]; returns it.

    `decay` is [T, N], or [] where it is the same everywhere.
    """
    if x.shape[0] > SCAN_STEPS:
        return _scan_(x, torch.where(ends, 0.0, decay))
    # one number serves all rows as it is: a view of it for each costs about as much as a short row's sum
    weights = decay.unbind() if decay.dim() else repeat(decay, len(x))
    rows = list(zip(x.unbind(), weights, ends.unbind(), strict=True))
    following, zero, selected = rows[-1][0], x.new_zeros(()), torch.empty_like(x[0])
    for row, weight, is_end in rows[-2::-1]:
        torch.where(is_end, zero, following, out=selected)  # what follows an end may be NaN
        following = row.addcmul_(weight, selected)
    return x


def _scan_(y: Tensor, weight: Tensor) -> Tensor:
    """By recursive doubling (Hillis and Steele 1986): after k passes y_t holds 2^k terms.

    Writes over both.
    """
    step = 1
    while step < y.shape[0]:
        # the right-hand sides are new tensors: no row is read after it was written
        following = y[step:].masked_fill(weight[:-step] == 0, 0.0)
        y[:-step] = torch.addcmul(y[:-step], weight[:-step], following)
        weight[:-step] = weight[:-step] * weight[step:]
        weight[-step:] = 0.0
        step *= 2
    return y
