"""How many CPU threads PyTorch uses while training."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence

import torch

from surefoot.config import TrainConfig

SMALL_NETWORK = 65536
"""Weights between hidden layers up to which one thread is faster than several (256-128-64 has 40,960)."""


def num_threads(networks: Iterable[Sequence[int]]) -> int:
    """1 where all networks, of these hidden widths, are small, else what PyTorch chose."""
    largest = max((sum(a * b for a, b in itertools.pairwise(dims)) for dims in networks), default=0)
    return 1 if largest <= SMALL_NETWORK else torch.get_num_threads()


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """`count` threads inside, the caller's afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def training_threads(config: TrainConfig) -> contextlib.AbstractContextManager[None]:
    """The run's number of threads inside: as configured, else by the size of the networks."""
    networks = (config.actor.hidden_dims, config.critic.hidden_dims)
    return threads(num_threads(networks) if config.num_threads is None else config.num_threads)
