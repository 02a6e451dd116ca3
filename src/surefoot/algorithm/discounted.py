"""Discounted sums along a rollout."""

from __future__ import annotations

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
    rows = list(zip(x.unbind(), decay.expand_as(x).unbind(), ends.unbind(), strict=True))
    following, zero = rows[-1][0], x.new_zeros(())
    for row, weight, is_end in rows[-2::-1]:
        # selected: what follows an end may be NaN
        following = row.addcmul_(weight, torch.where(is_end, zero, following))
    return x


def _scan_(y: Tensor, weight: Tensor) -> Tensor:
    """By recursive doubling (Hillis and Steele 1986): after k passes y_t holds 2^k terms. Writes over both."""
    step = 1
    while step < y.shape[0]:
        # the right-hand sides are new tensors: no row is read after it was written
        following = y[step:].masked_fill(weight[:-step] == 0, 0.0)
        y[:-step] = torch.addcmul(y[:-step], weight[:-step], following)
        weight[:-step] = weight[:-step] * weight[step:]
        weight[-step:] = 0.0
        step *= 2
    return y
