"""Where records go: files, TensorBoard, wandb, the screen."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from surefoot.errors import ConfigError
from surefoot.training.console import ConsoleProgress, summary
from surefoot.training.loggers import JsonlLogger, TensorBoardLogger, open_loggers, read_records
from surefoot.training.manifest import git_state, versions


def record(iteration: int, **extra: object) -> dict[str, object]:
    return {"iteration": iteration, "Train/mean_reward": float(iteration), "Loss/kl_kind": "exact", **extra}


def test_what_is_not_finite_is_null(tmp_path: Path) -> None:
    logger = JsonlLogger(tmp_path / "metrics.jsonl")
    logger.log(record(0, a=float("nan"), b=float("-inf"), c=None, d=1), 0)
    logger.close()
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == record(0, a=None, b=None, c=None, d=1)


def test_a_record_is_on_disk_as_soon_as_it_is_logged(tmp_path: Path) -> None:
    logger = JsonlLogger(tmp_path / "metrics.jsonl")
    logger.log(record(0), 0)
    assert read_records(tmp_path / "metrics.jsonl") == [record(0)]
    logger.close()


def test_a_resumed_file_drops_later_records_and_a_cut_off_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    logger = JsonlLogger(path)
    for i in range(5):
        logger.log(record(i), i)
    logger.close()
    with path.open("a") as file:
        file.write('{"iteration": 5, "Train/mean_rew')
    again = JsonlLogger(path, first_iteration=3)
    again.log(record(3, again=1), 3)
    again.close()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        record(0),
        record(1),
        record(2),
        record(3, again=1),
    ]


def test_tensorboard_has_the_same_tags_and_each_step_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # files of one second are read in the order of their number as text, in which 10 comes before 9
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    for first, steps in ((0, range(4)), (2, range(2, 5))):
        logger = TensorBoardLogger(tmp_path, first)
        for i in steps:
            logger.log(record(i, missing=None, value=float(10 * first + i)), i)
        logger.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"Train/mean_reward", "value"}
    assert [e.step for e in events.Scalars("Train/mean_reward")] == [0, 1, 2, 3, 4]
    assert [e.value for e in events.Scalars("value")] == [0, 1, 22, 23, 24]
    assert "Loss/kl_kind/text_summary" in events.Tags()["tensors"]


def test_several_loggers_at_once_and_none(tmp_path: Path) -> None:
    for names, kinds in (
        ("none", ["JsonlLogger"]),
        ("tensorboard", ["JsonlLogger", "TensorBoardLogger"]),
        (["tensorboard"], ["JsonlLogger", "TensorBoardLogger"]),
    ):
        loggers = open_loggers(names, tmp_path, 0, "project", {})
        assert [type(x).__name__ for x in loggers] == kinds
        for logger in loggers:
            logger.close()


def test_a_logger_that_cannot_be_opened_is_left_out_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.warns(UserWarning, match="logger 'jsonl' is off"):
        assert open_loggers("none", tmp_path, 0, "project", {}) == []


WANDB_RUN = """
import sys, pathlib
from surefoot.training.loggers import open_loggers
directory = pathlib.Path(sys.argv[1])
for first in (0, 2):
    loggers = open_loggers(["wandb"], directory, first, "my/project", {"seed": 1})
    print([type(x).__name__ for x in loggers])
    for i in (first, first + 1):
        for x in loggers:
            x.log({"iteration": i, "a": 1.0, "b": None, "Loss/kl_kind": "exact"}, i)
    for x in loggers:
        x.close()
"""


@pytest.mark.parametrize("mode", ["offline", "disabled"])
def test_wandb_offline_or_disabled_goes_on(tmp_path: Path, mode: str) -> None:
    pytest.importorskip("wandb")
    environment = {**os.environ, "WANDB_MODE": mode, "WANDB_SILENT": "true", "WANDB_CACHE_DIR": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", WANDB_RUN, str(tmp_path)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("WandbLogger") == 2
    assert (tmp_path / "wandb_id.txt").read_text().strip()


def test_a_logger_that_is_not_installed_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"pip install 'surefoot\[wandb\]'"):
        open_loggers("wandb", tmp_path, 0, "project", {})


# ------------------------------------------------------------------ the screen


def console(is_terminal: bool) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, force_terminal=is_terminal, width=120), stream


FULL = {
    "Train/mean_reward": -7.25,
    "Train/linear_velocity_error": 0.25,
    "Data/terminations": 1,
    "Data/truncations": 3,
    "Perf/total_fps": 12345.6,
}


def test_without_a_terminal_there_are_plain_lines() -> None:
    target, stream = console(is_terminal=False)
    progress = ConsoleProgress(0, 3, target)
    for i in range(3):
        progress.log(record(i, **FULL), i)
    progress.close()
    first, last = stream.getvalue().splitlines()  # the one between came too soon after the first
    assert first.startswith("iteration 1/3  reward -7.25  linear velocity error 0.25  terminated 25%")
    assert "12,346 steps/s  eta 0:00:0" in first
    assert last.startswith("iteration 3/3")
    assert "\x1b" not in stream.getvalue()


def test_in_a_terminal_there_is_a_bar() -> None:
    target, stream = console(is_terminal=True)
    progress = ConsoleProgress(5, 10, target)
    progress.log(record(5, **FULL), 5)
    progress.close()
    assert "reward -7.25" in stream.getvalue()
    assert "6/10" in stream.getvalue()


def test_what_was_lost_stands_on_the_screen_and_nothing_where_nothing_was() -> None:
    lost = {"Data/quarantined": 1216.0, "Data/restarts": 2.0}
    assert "quarantined 1,216  restarts 2" in summary(lost)
    sound = summary(dict.fromkeys(lost, 0.0))
    assert "quarantined" not in sound
    assert "restarts" not in sound


def test_an_empty_record_is_no_problem_on_the_screen() -> None:
    target, stream = console(is_terminal=False)
    ConsoleProgress(0, 1, target).log({"Train/mean_reward": None}, 0)
    assert "reward -" in stream.getvalue()


# ------------------------------------------------------------------ the manifest's parts


def test_outside_of_git_there_is_no_git_state(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None


def test_the_version_of_a_missing_package_is_none() -> None:
    found = versions(["torch", "no-such-package"])
    assert found["torch"]
    assert found["no-such-package"] is None
