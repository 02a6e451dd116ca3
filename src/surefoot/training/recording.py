"""From device tensors to one record of plain numbers, and where records go."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from surefoot import distributed
from surefoot.config import dump_yaml, to_dict
from surefoot.training.console import ConsoleProgress
from surefoot.training.hooks import Hook
from surefoot.training.loggers import Logger, open_loggers
from surefoot.training.manifest import write_manifest
from surefoot.training.resume import can_restore

if TYPE_CHECKING:
    from surefoot.training.on_policy_runner import OnPolicyRunner


_COUNTS = (
    "Data/samples_used",
    "Data/truncations",
    "Data/terminations",
    "Loss/skipped_updates",
    "Loss/stopped_updates",
)


def to_numbers(values: Mapping[str, Tensor | float | None]) -> dict[str, float | int | None]:
    """0-d tensors and numbers to plain numbers with a single transfer; what is not finite becomes None."""
    tensors: dict[str, Tensor] = {name: x for name, x in values.items() if isinstance(x, Tensor)}
    numbers: dict[str, Any] = dict(values)
    if tensors:
        device = next(iter(tensors.values())).device
        stacked = torch.stack([x.detach().to(device, torch.float64).reshape(()) for x in tensors.values()])
        for (name, tensor), number in zip(tensors.items(), stacked.tolist(), strict=True):
            numbers[name] = number if tensor.is_floating_point() else int(number)
    finite = {n: x if x is not None and math.isfinite(x) else None for n, x in numbers.items()}
    return {n: int(x) if n in _COUNTS and x is not None else x for n, x in finite.items()}


def average_over_processes(values: dict[str, float | int | None]) -> dict[str, float | int | None]:
    """Mean by key over the processes that have it."""
    if distributed.world_size() == 1:
        return values
    gathered = distributed.gather_objects(values)
    names = dict.fromkeys(name for part in gathered for name in part)
    means: dict[str, float | int | None] = {}
    for name in names:
        found = [part[name] for part in gathered if part.get(name) is not None]
        means[name] = sum(found) / len(found) if found else None
    return means


class Stopwatch:
    """Seconds of collecting and of learning in one iteration, by the device's own clock where it has one."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._marks: list[Any] = []

    def start(self) -> None:
        self._marks = [self._now()]

    def mark(self) -> None:
        self._marks.append(self._now())

    def read(self) -> list[float]:
        """Seconds between the marks."""
        if self._is_cuda:
            self._marks[-1].synchronize()
            return [a.elapsed_time(b) / 1000 for a, b in itertools.pairwise(self._marks)]
        return [b - a for a, b in itertools.pairwise(self._marks)]

    def _now(self) -> Any:
        if not self._is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class RunFiles(Hook):
    """config.yaml, manifest.json, metrics.jsonl, other loggers, the console; on process 0 only."""

    def __init__(self) -> None:
        self._loggers: list[Logger] = []
        self._failed: set[str] = set()

    def on_start(self, runner: OnPolicyRunner) -> None:
        if not distributed.is_main():
            return
        if not runner.quiet:
            self._loggers.append(ConsoleProgress(runner.iteration, runner.last_iteration))
        if runner.run_dir is not None:
            self._loggers += self._open(runner, runner.run_dir)

    def _open(self, runner: OnPolicyRunner, directory: Path) -> list[Logger]:
        config = to_dict(runner.config)
        with self._warning("config.yaml and manifest.json cannot be written"):
            (directory / "config.yaml").write_text(dump_yaml(config), encoding="utf-8")
            write_manifest(
                directory,
                task=runner.task,
                seed=runner.config.seed,
                device=runner.device,
                iteration=runner.iteration,
                is_exact=runner.device.type == "cpu" and can_restore(runner.env),
                compile_mode=runner.compilation.mode or "off",
            )
        project = runner.config.experiment_name or runner.task or "surefoot"
        return open_loggers(runner.config.logger, directory, runner.iteration, project, config)

    def after_iteration(self, runner: OnPolicyRunner, metrics: dict[str, Any]) -> None:
        for logger in self._loggers:
            with self._warning(f"{type(logger).__name__} cannot write"):
                logger.log(metrics, metrics["iteration"])

    def on_end(self, runner: OnPolicyRunner, reason: str) -> None:
        loggers, self._loggers = self._loggers, []
        for logger in loggers:
            with self._warning(f"{type(logger).__name__} cannot write"):
                logger.close()

    @contextlib.contextmanager
    def _warning(self, what: str) -> Iterator[None]:
        """A record that cannot be written costs one warning, not a run of hours."""
        try:
            yield
        except OSError as error:
            if what not in self._failed:
                self._failed.add(what)
                warnings.warn(f"{what} ({error.strerror or error}). Training goes on.", stacklevel=4)
