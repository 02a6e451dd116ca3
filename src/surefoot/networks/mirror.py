"""Mirror maps: what can be wrong with one, in words, and what it makes of deviations."""

from __future__ import annotations

import torch
from torch import Tensor

from surefoot.types import MirrorMap


def map_fault(permutation: Tensor, sign: Tensor, size: int) -> str | None:
    """What keeps `x[..., permutation] * sign` from being a mirror of `size` entries; None: nothing.

    A mirror is its own inverse: every entry has one partner, and both change their sign or none does.
    """
    for x in (permutation, sign):
        if x.shape != (size,):
            return f"has {x.numel()} entries; expected {size}"
    permutation, sign = permutation.cpu(), sign.cpu()
    outside = (permutation < 0) | (permutation >= size)
    if outside.any():
        return f"points outside of the {size} entries at entries {_positions(outside)}"
    wrong = (permutation[permutation] != torch.arange(size)) | (sign * sign[permutation] != 1)
    return f"is not its own inverse at entries {_positions(wrong)}" if wrong.any() else None


def even(x: Tensor, mirror: MirrorMap | None) -> Tensor:
    """The mean of numbers without sign [A], one for each action, and their mirror image."""
    return x if mirror is None else 0.5 * (x + x[mirror.actions[0].to(x.device)])


def _positions(wrong: Tensor) -> list[int]:
    return wrong.nonzero().flatten().tolist()
