"""Does a run that was killed and resumed end exactly where an uninterrupted one does?"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.training.checkpoint import load_checkpoint
from surefoot.training.hooks import Hook

IGNORED = ("wall_time_s", "config", "hooks")
"""Parts of a checkpoint that say nothing of what was learned."""


class KillAt(Hook):
    """Kills its own process, as a power cut would, before iteration `iteration`; once for each run directory.

    Args:
        iteration: From 0.
    """

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def before_iteration(self, runner: Any, iteration: int) -> None:
        if iteration != self.iteration or runner.run_dir is None:
            return
        mark = Path(runner.run_dir) / "killed"
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def first_difference(one: Path, other: Path) -> str | None:
    """What differs first between two checkpoints, bit for bit; None: nothing."""
    states = [
        {key: x for key, x in load_checkpoint(path).items() if key not in IGNORED} for path in (one, other)
    ]
    return next(_differences("", *states), None)


def _differences(path: str, one: Any, other: Any) -> Iterator[str]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in dict.fromkeys([*one, *other]):
            where = f"{path}.{key}" if path else str(key)
            if key not in one or key not in other:
                yield f"{where} is only in the {'resumed' if key not in one else 'uninterrupted'} run"
            else:
                yield from _differences(where, one[key], other[key])
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            yield f"{path} has {len(one)} entries, in the resumed run {len(other)}"
        for i, (a, b) in enumerate(zip(one, other, strict=False)):
            yield from _differences(f"{path}.{i}", a, b)
    elif isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        if one.dtype != other.dtype or one.shape != other.shape or one.tobytes() != other.tobytes():
            yield f"{path} differs"
    elif isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            yield f"{path} is {_kind(one)}, in the resumed run {_kind(other)}"
        elif not torch.equal(_bits(one), _bits(other)):
            largest = (one.double() - other.double()).abs().max().item()
            yield f"{path} differs by up to {largest:.3g}"
    elif one != other and not (one != one and other != other):
        yield f"{path} is {one!r:.60}, in the resumed run {other!r:.60}"


def _kind(x: Tensor) -> str:
    return f"{x.dtype} {tuple(x.shape)}"


def _bits(x: Tensor) -> Tensor:
    """A NaN is equal to the same NaN."""
    return x.contiguous().view(torch.uint8) if x.dim() else x.reshape(1).view(torch.uint8)
