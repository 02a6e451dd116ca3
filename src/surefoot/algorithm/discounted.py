"""Discounted sums along a rollout."""

from __future__ import annotations

import torch
from torch import Tensor

SCAN_STEPS = 128
"""Above this many steps a scan of log2(T) passes beats a loop of T fused steps."""


def discounted_sum(x: Tensor, decay: Tensor) -> Tensor:
    """y_t = x_t + decay_t · y_{t+1}, backwards over the first dimension of [T, N]."""
    return add_discounted_(x.clone(), decay)


def add_discounted_(x: Tensor, decay: Tensor) -> Tensor:
    """The same, written over x [T, N]; returns it."""
    if x.shape[0] > SCAN_STEPS:
        return _scan_(x, decay)
    rows = list(zip(x.unbind(), decay.unbind(), (decay == 0).unbind(), strict=True))
    following = rows[-1][0]
    for row, weight, is_end in rows[-2::-1]:
        following = row.addcmul_(weight, following.masked_fill(is_end, 0.0))
    return x


def _scan_(y: Tensor, decay: Tensor) -> Tensor:
    """By recursive doubling (Hillis and Steele 1986): after k passes y_t holds 2^k terms."""
    weight, step = decay.clone(), 1
    while step < y.shape[0]:
        # the right-hand sides are new tensors: no row is read after it was written
        following = y[step:].masked_fill(weight[:-step] == 0, 0.0)
        y[:-step] = torch.addcmul(y[:-step], weight[:-step], following)
        weight[:-step] = weight[:-step] * weight[step:]
        weight[-step:] = 0.0
        step *= 2
    return y
