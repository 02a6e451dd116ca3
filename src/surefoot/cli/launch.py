"""Start one command in several processes on this machine, as `torchrun` does, and end them together.

Ours, and not torchrun itself: that one reports a failure with pages of text and exit code 1, and at Ctrl-C it
sends the processes a second interrupt while they save. `torchrun -m surefoot train ...` works all the same.
"""

from __future__ import annotations

import math
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

from surefoot.cli import FAILED, INTERRUPTED, OK, REPORT_VARIABLE

GRACE_S = 10.0
"""What the other processes get to end by themselves after the first has failed."""
SAVING_S = 600.0
"""What they get after Ctrl-C: process 0 may still be saving when the others have ended."""


def is_worker() -> bool:
    """Whether this process was started as one of several, by `launch` or by torchrun."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def launch(arguments: Sequence[str], num_processes: int) -> int:
    """Run `surefoot ARGUMENTS` as processes 0 to `num_processes` - 1 and wait.

    Only process 0 writes to the standard output. Of a failure, the cause alone is printed.

    Returns:
        The exit code of the first process that failed, else 0.
    """
    with tempfile.TemporaryDirectory(prefix="surefoot-") as directory:
        report = Path(directory) / "failure"
        common = {
            **os.environ,
            "WORLD_SIZE": str(num_processes),
            "LOCAL_WORLD_SIZE": str(num_processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(_free_port()),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, num_cores() // num_processes))),
            REPORT_VARIABLE: str(report),
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
        return _wait(processes, report)


def num_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait(processes: Sequence[subprocess.Popen[Any]], report: Path) -> int:
    """The first failure's exit code; passes interrupts on, and ends the others after a failure."""

    def forward(number: int, _: object) -> None:
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous = {number: signal.signal(number, forward) for number in signals}
    try:
        codes, is_reported = _exit_codes(processes, report)
        return _verdict(codes, report, is_reported)
    finally:
        _kill(processes)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _exit_codes(processes: Sequence[subprocess.Popen[Any]], report: Path) -> tuple[list[int | None], bool]:
    """How each process ended; None where it had not, long after another's failure.

    Also whether an error was reported before any process had ended: if so, that was the cause.
    """
    deadline, is_reported = math.inf, False
    while True:
        has_report = report.exists()
        codes = [process.poll() for process in processes]
        is_reported |= has_report and not any(codes)
        if None not in codes or time.monotonic() > deadline:
            return codes, is_reported
        for code in filter(None, codes):
            patience = SAVING_S if code == INTERRUPTED else GRACE_S
            deadline = min(deadline, time.monotonic() + patience)
        time.sleep(0.1)


def _verdict(codes: Sequence[int | None], report: Path, is_reported: bool) -> int:
    """Print the cause of a failure; returns the exit code of the run."""
    # what the other processes report after one was killed is that they lost it
    for rank, code in enumerate(codes):
        if code is not None and code < 0 and not is_reported:
            name = signal.Signals(-code).name
            click.echo(f"error: process {rank} was ended by {name}.", err=True)
            return FAILED
    if report.exists():
        code, _, text = report.read_text(encoding="utf-8").partition("\n")
        click.echo(text, nl=False, err=True)
        return int(code or FAILED)
    for rank, code in enumerate(codes):
        if code and code != INTERRUPTED:
            click.echo(f"error: process {rank} ended with exit code {code}.", err=True)
            return code
    return INTERRUPTED if INTERRUPTED in codes else OK


def _kill(processes: Sequence[subprocess.Popen[Any]]) -> None:
    for process in processes:
        if process.poll() is None:
            # with the worker processes of its environments: it leads a session of its own
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
