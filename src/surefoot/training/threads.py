"""How many CPU threads PyTorch uses while training."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import torch

from surefoot.config import TrainConfig

SMALL_NETWORK = 65536
"""Weights between hidden layers up to which one thread is faster than several (256-128-64 has 40,960)."""


def num_threads(config: TrainConfig) -> int:
    """As configured; else 1 for small networks, and what PyTorch chose for larger ones."""
    if config.num_threads is not None:
        return config.num_threads
    networks = [config.actor.hidden_dims, config.critic.hidden_dims]
    largest = max(sum(a * b for a, b in itertools.pairwise(dims)) for dims in networks)
    return 1 if largest <= SMALL_NETWORK else torch.get_num_threads()


@contextlib.contextmanager
def training_threads(config: TrainConfig) -> Iterator[None]:
    """The run's number of threads inside, the caller's afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads(config))
    try:
        yield
    finally:
        torch.set_num_threads(before)
