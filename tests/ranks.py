"""Tests as several processes of one group (gloo)."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import multiprocessing

from surefoot import distributed

DEADLINE_S = 300.0


def run_ranks(function: Callable[..., None], *args: Any, num_ranks: int = 2) -> None:
    """Call `function(rank, *args)` in processes that have joined one group.

    What one of them raises is raised here; processes that wait for each other are a failure.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.spawn(_be_a_rank, (num_ranks, port, function, args), num_ranks, join=False)
    assert context is not None
    deadline = time.monotonic() + DEADLINE_S
    while not context.join(timeout=1.0):  # true when all have ended
        if time.monotonic() > deadline:
            for process in context.processes:
                process.kill()
            pytest.fail(f"the processes did not end in {DEADLINE_S:g} s; one waits for the others")


def _be_a_rank(rank: int, num_ranks: int, port: int, function: Callable[..., None], args: Any) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(num_ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    distributed.init_from_env(torch.device("cpu"))
    try:
        function(rank, *args)
    finally:
        distributed.shutdown()
