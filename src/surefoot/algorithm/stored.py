"""How observations are kept in the storage, and gathered from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import torch
from torch import Tensor

from surefoot.errors import EnvContractError


class GatheredObservations(Mapping[str, Tensor]):
    """The raw observations of some rows, gathered group by group when first read."""

    def __init__(self, observations: Mapping[str, Tensor], index: Tensor) -> None:
        self._observations, self._index = observations, index
        self._gathered: dict[str, Tensor] = {}

    def __getitem__(self, group: str) -> Tensor:
        if group in self._gathered:
            return self._gathered[group]
        rows = self._observations[group][:-1].flatten(0, 1)[self._index]
        if not torch.compiler.is_compiling():  # a graph's own tensors must not be kept beyond it
            self._gathered[group] = rows
        return rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._observations)

    def __len__(self) -> int:
        return len(self._observations)


class FinalObservations:
    """The observations that episodes ended with, kept only where they are known and used.

    Args:
        groups: Shapes and dtypes to keep: the rows of each group [T+1, N, ...].
    """

    def __init__(self, groups: Mapping[str, Tensor]) -> None:
        self._groups = groups
        self._parts: list[tuple[int, Tensor, dict[str, Tensor]]] = []

    def clear(self) -> None:
        self._parts.clear()

    def add(self, t: int, keep: Tensor, observations: Mapping[str, Tensor]) -> None:
        """Of step `t`, the rows where `keep` [N] is True."""
        rows = keep.nonzero().squeeze(-1)
        if rows.shape[0]:
            self._parts.append((t, rows, {g: observations[g].index_select(0, rows) for g in self._groups}))

    def steps(self) -> dict[int, tuple[Tensor, slice]]:
        """By step: the environments [k], and where they stand in `index`."""
        found, start = {}, 0
        for t, rows, _ in self._parts:
            found[t] = (rows, slice(start, start + rows.shape[0]))
            start += rows.shape[0]
        return found

    @property
    def index(self) -> Tensor:
        """[K] positions t·N+n."""
        any_group = next(iter(self._groups.values()))
        if not self._parts:
            return torch.zeros(0, dtype=torch.int64, device=any_group.device)
        return torch.cat([rows + t * any_group.shape[1] for t, rows, _ in self._parts])

    @property
    def observations(self) -> dict[str, Tensor]:
        """[K, ...] per group, in the order of `index`."""
        if not self._parts:
            return {g: x[0, :0] for g, x in self._groups.items()}
        return {g: torch.cat([finals[g] for _, _, finals in self._parts]) for g in self._groups}

    def following(self) -> dict[str, Tensor]:
        """[T, N, ...] per group: the next observation, or the final one where it is known."""
        index, finals = self.index, self.observations
        rows = {g: x[1:].clone() for g, x in self._groups.items()}
        for group, x in rows.items():
            x.flatten(0, 1)[index] = finals[group].to(x.dtype)
        return rows


def as_vector(x: Tensor, num_envs: int, name: str) -> Tensor:
    """[N] from [N] or [N, 1]; nothing is ever broadcast."""
    if x.shape == (num_envs,):
        return x
    if x.shape != (num_envs, 1):
        raise EnvContractError(f"{name} have the shape {tuple(x.shape)}; expected ({num_envs},).")
    return x.reshape(num_envs)


def write_row(rows: Mapping[str, Tensor], t: int, observations: Mapping[str, Tensor]) -> None:
    """Copy observations [N, ...] into row `t` of each group [T+1, N, ...]; nothing is ever broadcast."""
    for group, x in rows.items():
        given = observations[group]
        if given.shape != x.shape[1:]:
            raise EnvContractError(
                f"observation group '{group}' has the shape {tuple(given.shape)}; expected "
                f"{tuple(x.shape[1:])}."
            )
        x[t] = given


def stored_dtype(space: gymnasium.Space[Any], dtype: torch.dtype) -> torch.dtype:
    """Images stay uint8 and counted spaces int64; everything else is `dtype`."""
    if isinstance(space, gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete):
        return torch.int64
    is_image = isinstance(space, gymnasium.spaces.Box) and space.dtype == "uint8" and len(space.shape) >= 2
    return torch.uint8 if is_image else dtype


def rows_like(x: Tensor, num_steps: int, dtype: torch.dtype) -> Tensor:
    """Room for `num_steps` tensors like `x`, of `dtype` unless they are integers."""
    dtype = dtype if x.is_floating_point() else x.dtype
    return torch.zeros(num_steps, *x.shape, dtype=dtype, device=x.device)
