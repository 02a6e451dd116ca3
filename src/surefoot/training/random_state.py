"""The global random streams, which an environment or an extension of the user may draw from."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch


def global_random_state() -> dict[str, Any]:
    """Of Python, NumPy and PyTorch, as tensors and plain data."""
    name, keys, *rest = np.random.get_state()
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": [name, keys, *rest],
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_global_random_state(state: Mapping[str, Any]) -> None:
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    np.random.set_state(tuple(state["numpy"]))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def seed_global_random_state(seed: int) -> None:
    """For environments and extensions that draw from a global stream: a run is then the same each time."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


@contextlib.contextmanager
def preserved_random_state() -> Iterator[None]:
    """Whatever is drawn inside, the streams go on afterwards as if it had not been."""
    state = global_random_state()
    try:
        yield
    finally:
        restore_global_random_state(state)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """PyTorch's global stream starts from `seed` inside, and goes on undisturbed afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
