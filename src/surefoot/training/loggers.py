"""Where the metrics of an iteration go: `metrics.jsonl`, TensorBoard, Weights & Biases; several at once."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import uuid
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from surefoot.errors import ConfigError

Record = Mapping[str, Any]
"""One iteration: numbers, text or None by their logged key. docs/metrics.md explains every key."""


class Logger(Protocol):
    """A place for records. A logger never decides anything and never stops a run: an OSError is a warning."""

    def log(self, record: Record, step: int) -> None:
        """Take the record of iteration `step`.

        Raises:
            OSError: it cannot be written; the next one may be.
        """
        ...

    def close(self) -> None: ...


class JsonlLogger:
    """One JSON object per line.

    Args:
        path: The file; it is continued where it exists.
        first_iteration: The next iteration of the run. Records from there on belong to a continuation that
            was abandoned, and are dropped.
    """

    def __init__(self, path: Path, first_iteration: int = 0) -> None:
        self.path = path
        if path.exists():
            _drop_records(path, first_iteration)
        # unbuffered: what a full disk refuses must not be tried again later, out of order
        self._file = path.open("ab", buffering=0)
        self._is_cut = False

    def log(self, record: Record, step: int) -> None:
        text = json.dumps({k: finite_or_none(v) for k, v in record.items()}, allow_nan=False) + "\n"
        # the half of a record that a full disk took must not spoil this one
        line = ("\n" * self._is_cut + text).encode()
        self._is_cut = True
        if self._file.write(line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._is_cut = False

    def close(self) -> None:
        self._file.close()


def _drop_records(path: Path, first_iteration: int) -> None:
    """Rewrite the file without the records from `first_iteration` on, and without a cut-off line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if (record := _parse(line)) and record["iteration"] < first_iteration]
    if len(kept) < len(lines):
        temporary = path.with_suffix(".tmp")
        temporary.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        os.replace(temporary, path)


def _parse(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("iteration"), int) else None


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records of a `metrics.jsonl`, without lines that a crash cut off."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [record for line in lines if (record := _parse(line))]


def finite_or_none(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


class TensorBoardLogger:
    """Scalars under the same tags as the keys; text once, when it changes.

    Args:
        directory: Where the event file goes.
        first_iteration: As for `JsonlLogger`: TensorBoard hides older events from this step on.
    """

    def __init__(self, directory: Path, first_iteration: int = 0) -> None:
        # imported here: it takes half a second, and a run may log elsewhere
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer = SummaryWriter(str(directory), purge_step=first_iteration or None)
        self._text: dict[str, str] = {}

    def log(self, record: Record, step: int) -> None:
        for key, value in record.items():
            if isinstance(value, str):
                if self._text.get(key) != value:
                    self._writer.add_text(key, value, step)
                    self._text[key] = value
            elif key != "iteration" and finite_or_none(value) is not None:
                self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbLogger:
    """Weights & Biases; mode and account come from its own environment variables (`WANDB_MODE=offline`).

    Args:
        directory: The run directory; the run's id is kept there, so that a resumed run goes on in the
            same chart.
        project: Project name.
        config: Shown beside the charts.
        entity: User or team; None: as wandb itself decides.
    """

    def __init__(
        self, directory: Path, project: str, config: Mapping[str, Any], entity: str | None = None
    ) -> None:
        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise ConfigError(
                "logger 'wandb' needs the wandb package: pip install 'surefoot[wandb]'."
            ) from None
        id_file = directory / "wandb_id.txt"
        if not id_file.exists():
            id_file.write_text(uuid.uuid4().hex[:8], encoding="utf-8")
        try:
            self.run: Any = wandb.init(
                project=re.sub(r"[/\\#?%:]", "-", project),
                entity=entity,
                name=directory.name,
                id=id_file.read_text(encoding="utf-8").strip(),
                resume="allow",
                dir=str(directory),
                config=dict(config),
            )
        except wandb.Error as error:
            raise OSError(f"wandb did not start: {error}") from error

    def log(self, record: Record, step: int) -> None:
        self.run.log({k: v for k, v in record.items() if finite_or_none(v) is not None}, step=step)

    def close(self) -> None:
        self.run.finish()


def open_loggers(
    names: str | Sequence[str], directory: Path, first_iteration: int, project: str, config: Mapping[str, Any]
) -> list[Logger]:
    """`metrics.jsonl` and the loggers named. One that cannot be opened is left out with a warning.

    Raises:
        ConfigError: a logger whose package is not installed.
    """
    wanted = ["jsonl", *([names] if isinstance(names, str) else names)]
    makers = {
        "jsonl": lambda: JsonlLogger(directory / "metrics.jsonl", first_iteration),
        "tensorboard": lambda: TensorBoardLogger(directory, first_iteration),
        "wandb": lambda: WandbLogger(directory, project, config),
    }
    loggers: list[Logger] = []
    for name in dict.fromkeys(wanted):
        if name == "none":
            continue
        try:
            loggers.append(makers[name]())
        except ConfigError:
            for logger in loggers:
                logger.close()
            raise
        except OSError as error:
            warnings.warn(f"logger '{name}' is off: {error}. Training goes on without it.", stacklevel=2)
    return loggers
