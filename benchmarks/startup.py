"""How long it takes to begin: help, imports, and the first iteration of a training.

    python benchmarks/startup.py [--repetitions 5] [--json FILE]

Each is a process of its own, and they take turns. `first iteration` is `surefoot train Pendulum-v1` until its
first record is written, compiling included where the run is compiled. PyTorch's own import is part of all but
the first, and is taken off where the limit says so.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from peers import Times, write

PYTHON = sys.executable
NAMES = "import surefoot; [getattr(surefoot, name) for name in surefoot.__all__]"


class Start(NamedTuple):
    command: list[str]
    limit_s: float | None = None
    beyond_torch: bool = False
    until: str | None = None
    """A file of the run, whose first line ends the measurement; None: until the process ends."""


STARTS = {
    "surefoot --help": Start([PYTHON, "-m", "surefoot", "--help"], 0.7),
    "import torch": Start([PYTHON, "-c", "import torch"]),
    "import surefoot": Start([PYTHON, "-c", "import torch, surefoot"], 2.0, beyond_torch=True),
    "all of surefoot's names": Start([PYTHON, "-c", NAMES], 2.0, beyond_torch=True),
    "first iteration": Start(
        [PYTHON, "-m", "surefoot", "train", "Pendulum-v1", "--run-dir", "run"], 6.0, until="run/metrics.jsonl"
    ),
}


def time_once(start: Start) -> Times:
    """CPU time is that of all threads and of processes that the process waited for."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, start.until) if start.until else None
        began = time.perf_counter()
        process = subprocess.Popen(
            start.command, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while path is not None and not (path.exists() and path.stat().st_size):
            if process.poll() is not None:
                raise RuntimeError(f"{' '.join(start.command)} ended with exit code {process.returncode}")
            time.sleep(0.02)
        wall = time.perf_counter() - began
        if path is not None:
            process.kill()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if path is None:
            wall = time.perf_counter() - began
    return Times(used.ru_utime + used.ru_stime, wall)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    times: dict[str, list[Times]] = {name: [] for name in STARTS}
    # the first, not counted, reads files that later ones find in memory
    for repetition in range(-1, arguments.repetitions):
        for name, start in STARTS.items():
            found = time_once(start)
            if repetition >= 0:
                times[name].append(found)
    medians = {n: Times(*map(statistics.median, zip(*seen, strict=True))) for n, seen in times.items()}
    torch = medians["import torch"]
    results: dict[str, Any] = {}
    for name, start in STARTS.items():
        own = medians[name]
        if start.beyond_torch:
            own = Times(own.cpu - torch.cpu, own.wall - torch.wall)
        ratio = medians[name].cpu / torch.cpu
        wanted = f"wanted: at most {start.limit_s:g} s" if start.limit_s else ""
        what = f"{name} beyond torch" if start.beyond_torch else name
        print(f"{what:36} CPU {own.cpu:6.2f} s  wall {own.wall:6.2f} s  {ratio:5.2f} x torch  {wanted}")
        results[name] = {**own._asdict(), "ratio_to_torch": ratio, "wanted": wanted, "all": times[name]}
        write(arguments.json, results)


if __name__ == "__main__":
    main()
