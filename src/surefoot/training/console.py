"""Progress on the screen: a live bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from surefoot.training.loggers import Record

LINE_INTERVAL_S = 10.0
"""Without a terminal, seconds between lines; the first and the last iteration always have one."""


class ConsoleProgress:
    """Reward, errors that the environment logs, falls, speed and time left.

    Args:
        first_iteration: Iterations done before.
        total: Iterations that will be done in the end.
        console: Where to write; default the standard output.
    """

    def __init__(self, first_iteration: int, total: int, console: Console | None = None) -> None:
        self.console = console or Console()
        self.first, self.total = first_iteration, total
        self._start, self._last_line = time.monotonic(), float("-inf")
        self._progress: Progress | None = None
        if self.console.is_terminal:
            self._progress = Progress(
                TextColumn("iteration"),
                MofNCompleteColumn(),
                BarColumn(bar_width=20),
                TextColumn("{task.description}"),
                TimeElapsedColumn(),
                TextColumn("eta {task.fields[eta]}"),
                console=self.console,
            )
            self._task = self._progress.add_task(
                "collecting", total=total, completed=first_iteration, eta="-"
            )
            self._progress.start()

    def log(self, record: Record, step: int) -> None:
        done = step + 1
        eta = self._eta(done)
        if self._progress is not None:
            self._progress.update(self._task, completed=done, description=summary(record), eta=eta)
            return
        now = time.monotonic()
        if done == self.total or now - self._last_line >= LINE_INTERVAL_S:
            self._last_line = now
            line = f"iteration {done}/{self.total}  {summary(record)}  eta {eta}"
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()

    def _eta(self, done: int) -> str:
        per_iteration = (time.monotonic() - self._start) / max(done - self.first, 1)
        return str(timedelta(seconds=round(per_iteration * max(self.total - done, 0))))


def summary(record: Record) -> str:
    """The few figures of a record that tell how it goes."""
    parts = [f"reward {_number(record.get('Train/mean_reward'))}"]
    if "Eval/mean_reward" in record:
        parts.append(f"eval {_number(record['Eval/mean_reward'])}")
    errors = [key for key in record if key.startswith("Train/") and key.endswith("_error")]
    parts += [f"{key[6:].replace('_', ' ')} {_number(record[key])}" for key in errors[:2]]
    ends = (record.get("Data/terminations") or 0) + (record.get("Data/truncations") or 0)
    if ends:
        parts.append(f"terminated {record['Data/terminations'] / ends:.0%}")
    parts += [
        f"{key[5:]} {record[key]:,.0f}" for key in ("Data/quarantined", "Data/restarts") if record.get(key)
    ]
    parts.append(f"{record.get('Perf/total_fps') or 0:,.0f} steps/s")
    return "  ".join(parts)


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}"
