"""Gymnasium's info dictionaries: final observations and the numbers worth logging."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

LOGGED = ("log", "episode")
"""Entries of an info whose numbers are logged; all others are the environment's own business."""


def as_vector_info(envs: VectorEnv, info: Any) -> Mapping[str, Any]:
    """Gymnasium's layout (arrays with `_key` masks), also from None or a list of one dict per environment."""
    if info is None:
        return {}
    if isinstance(info, Mapping):
        return info
    merged: dict[str, Any] = {}
    for i, single in enumerate(info):
        merged = envs._add_info(merged, dict(single or {}), i)  # pyright: ignore[reportPrivateUsage]
    return merged


def final_observation(info: Mapping[str, Any]) -> tuple[Any, Any]:
    """The final observations of a SAME_STEP step (None: not given) and the mask of rows that have one."""
    for key in ("final_obs", "final_observation"):
        if info.get(key) is not None:
            return info[key], np.asarray(info.get(f"_{key}", True), dtype=bool)
    return None, np.asarray(False)


def pick(source: Any, row: int, path: Sequence[str]) -> Any:
    """Leaf `path` of environment `row` in an array of dicts, a dict of arrays, or a mixture."""
    chosen = False
    for key in path:
        if not chosen and not isinstance(source, Mapping):
            source, chosen = source[row], True
        if source is None:
            return None
        source = source[key]
    return source if chosen else source[row]


class InfoLog:
    """Collects `info["log"]` and `info["episode"]`, also those of episodes that ended in this step.

    Numbers are averaged over the environments that gave one; `Eval/` keys that all gave stay one number per
    environment. What is not a number is left out, with one warning.
    """

    def __init__(self, num_envs: int) -> None:
        self._num_envs = num_envs
        self._has_warned = False

    def collect(self, info: Mapping[str, Any]) -> dict[str, float | Tensor]:
        found: dict[str, Any] = {}
        skipped: list[str] = []
        for key, values, given in self._entries(info):
            numbers = _numbers(values, given)
            if numbers is None:
                skipped.append(key)
            elif numbers.shape == (self._num_envs,) and key in found:
                found[key] = np.where(given, numbers, found[key])
            else:
                found[key] = numbers
        if skipped and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"info entries that are not numbers are not logged: {', '.join(skipped)}.", stacklevel=3
            )
        log: dict[str, float | Tensor] = {}
        for key, numbers in found.items():
            is_per_env = numbers.shape == (self._num_envs,) and not np.isnan(numbers).any()
            if key.startswith("Eval/") and is_per_env:
                log[key] = torch.from_numpy(numbers.astype(np.float32))
            elif not np.isnan(numbers).all():
                log[key] = float(np.nanmean(numbers))
        return log

    def _entries(self, info: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
        if not info:
            return
        sources = [info]
        if info.get("final_info") is not None:
            sources += _final_infos(info["final_info"], self._num_envs)
        for source in sources:
            for name in LOGGED:
                entries = source.get(name)
                if not isinstance(entries, Mapping):
                    if name == "log" and any(x is not None for x in np.ravel(np.asarray(entries, object))):
                        yield name, "no mapping", np.asarray(True)
                    continue
                entries = {str(key): values for key, values in entries.items()}
                for key, values in entries.items():
                    if key.startswith("_") and key[1:] in entries:
                        continue
                    given = np.asarray(entries.get(f"_{key}", True), dtype=bool)
                    yield (key if "/" in key else f"Episode/{key}"), values, given


def _final_infos(final_info: Any, num_envs: int) -> list[Mapping[str, Any]]:
    """`final_info` is a dict of masked arrays (Gymnasium 1) or an array of dicts (before)."""
    if isinstance(final_info, Mapping):
        return [final_info]
    given = [(i, single) for i, single in enumerate(final_info) if isinstance(single, Mapping)]
    merged: dict[str, Any] = {}
    for i, single in given:
        for name in LOGGED:
            for key, value in (single.get(name) or {}).items():
                entries = merged.setdefault(name, {})
                entries.setdefault(key, [None] * num_envs)[i] = value
                entries.setdefault(f"_{key}", np.zeros(num_envs, dtype=bool))[i] = True
    return [merged]


def _numbers(values: Any, given: Any) -> np.ndarray[Any, Any] | None:
    """Values as float64 with NaN where none was given, or None if they are not numbers."""
    array = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
    if array.dtype.kind == "O":
        items = [_number(value) for value in array.reshape(-1)]
        if None in items or np.isnan(np.array(items, dtype=float)).all():
            return None
        array = np.array(items)
    elif array.dtype.kind not in "biuf":
        return None
    numbers = array.astype(np.float64)
    if given.ndim and given.shape == numbers.shape[:1]:
        numbers[~given] = np.nan
    return numbers


def _number(value: Any) -> float | None:
    if value is None:
        return float("nan")
    array = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)
    return float(array.mean()) if array.dtype.kind in "biuf" else None
