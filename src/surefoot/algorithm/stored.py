"""How observations are kept in the storage, and gathered from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import torch
from torch import Tensor


class GatheredObservations(Mapping[str, Tensor]):
    """The raw observations of some rows, gathered group by group when first read."""

    def __init__(self, observations: Mapping[str, Tensor], index: Tensor) -> None:
        self._observations, self._index = observations, index
        self._gathered: dict[str, Tensor] = {}

    def __getitem__(self, group: str) -> Tensor:
        if group not in self._gathered:
            self._gathered[group] = self._observations[group][:-1].flatten(0, 1)[self._index]
        return self._gathered[group]

    def __iter__(self) -> Iterator[str]:
        return iter(self._observations)

    def __len__(self) -> int:
        return len(self._observations)


def stored_dtype(space: gymnasium.Space[Any], dtype: torch.dtype) -> torch.dtype:
    """Images stay uint8 and counted spaces int64; everything else is `dtype`."""
    if isinstance(space, gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete):
        return torch.int64
    is_image = isinstance(space, gymnasium.spaces.Box) and space.dtype == "uint8" and len(space.shape) >= 2
    return torch.uint8 if is_image else dtype
