"""Averages of what environments log, over the steps of an iteration and over environments."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from surefoot.types import Step


class EnvLog:
    """Averages of `Step.log`: numbers, 0-d and [N] tensors (where the row is valid), under their own keys.

    Keys under `Eval/` become `Train/`: they were measured while training, with exploration, noise and pushes.
    Nothing is read back from the device.
    """

    def __init__(self) -> None:
        self._sums: dict[str, float | Tensor] = {}
        self._counts: dict[str, float | Tensor] = {}

    def add(self, step: Step) -> None:
        for key, value in step.log.items():
            count: float | Tensor = 1.0
            if isinstance(value, Tensor) and value.dim():
                if step.valid is None or value.shape != step.valid.shape:
                    value = value.mean()
                else:
                    count = step.valid.sum()
                    value = torch.where(step.valid, value, 0.0).sum()
            if key in self._sums:
                self._sums[key] = self._sums[key] + value
                self._counts[key] = self._counts[key] + count
            else:
                # an environment may write the next step's value into the same tensor
                self._sums[key] = value.clone() if isinstance(value, Tensor) else value
                self._counts[key] = count

    def finish_iteration(self) -> dict[str, Any]:
        """The averages by logged key, numbers or 0-d tensors; starts the next iteration."""
        averages = {}
        for key, total in self._sums.items():
            name = f"Train/{key.removeprefix('Eval/')}" if key.startswith("Eval/") else key
            count = self._counts[key]
            averages[name] = total / (count.clamp(min=1) if isinstance(count, Tensor) else count)
        self._sums, self._counts = {}, {}
        return averages
