"""Start one command in several processes on this machine, as `torchrun` does, and end them together.

Ours, and not torchrun itself: that one reports a failure with pages of text and exit code 1, and at Ctrl-C it
sends the processes a second interrupt while they save. `torchrun -m surefoot train ...` works all the same.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

GRACE_S = 10.0
"""What the other processes get to end by themselves after the first has failed."""


def is_worker() -> bool:
    """Whether this process was started as one of several, by `launch` or by torchrun."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def launch(arguments: Sequence[str], num_processes: int) -> int:
    """Run `surefoot ARGUMENTS` as processes 0 to `num_processes` - 1 and wait.

    Only process 0 writes to the standard output; an error is printed by the first process to fail.

    Returns:
        The exit code of the first process that failed, else 0.
    """
    with tempfile.TemporaryDirectory(prefix="surefoot-") as directory:
        common = {
            **os.environ,
            "WORLD_SIZE": str(num_processes),
            "LOCAL_WORLD_SIZE": str(num_processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(_free_port()),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, num_cores() // num_processes))),
            "SUREFOOT_FAILURE_MARKER": str(Path(directory) / "failed"),
        }
        command = [sys.executable, "-m", "surefoot", *arguments]
        processes = [
            subprocess.Popen(
                command,
                env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=None if rank == 0 else subprocess.DEVNULL,
                # their own session: Ctrl-C reaches them once, through us
                start_new_session=True,
            )
            for rank in range(num_processes)
        ]
        return _wait(processes)


def num_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait(processes: Sequence[subprocess.Popen[Any]]) -> int:
    """The first failure's exit code; passes interrupts on, and ends the others after a failure."""

    def forward(number: int, _: object) -> None:
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous = {number: signal.signal(number, forward) for number in signals}
    try:
        failed = _first_failure(processes)
        if failed is None:
            return 0
        _end(processes)
        if failed.returncode < 0:
            name = signal.Signals(-failed.returncode).name
            click.echo(f"error: process {list(processes).index(failed)} was ended by {name}.", err=True)
            return 1
        return failed.returncode
    finally:
        _end(processes)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _first_failure(processes: Sequence[subprocess.Popen[Any]]) -> subprocess.Popen[Any] | None:
    while True:
        codes = [process.poll() for process in processes]
        for process, code in zip(processes, codes, strict=True):
            if code:
                return process
        if None not in codes:
            return None
        time.sleep(0.1)


def _end(processes: Sequence[subprocess.Popen[Any]]) -> None:
    deadline = time.monotonic() + GRACE_S
    while any(p.poll() is None for p in processes) and time.monotonic() < deadline:
        time.sleep(0.1)
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()
