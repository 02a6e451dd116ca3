"""A run that is killed again and again, at any moment, ends as if nothing had happened."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
from pathlib import Path

import pytest
import yaml
from command_line import records

from surefoot.cli import main
from surefoot.training.checkpoint import load_checkpoint
from surefoot.training.verify import first_difference

KILLS, ITERATIONS = 50, 300
OPTIONS = (
    "--num-envs 4 --set num_steps_per_env=32 --set eval_episodes=0 --set save_interval=1 --set logger=none "
    "--set num_threads=1 --set actor.hidden_dims=[16] --set critic.hidden_dims=[16] "
    "--set algorithm.num_mini_batches=2 --set algorithm.mini_batch_size=null "
    "--set algorithm.num_learning_epochs=1 --quiet"
)
TASKS = {
    "bundled": "go1-walk",
    "sync": "surefoot.testing:GymTarget --set env.backend=sync",
    "workers": "surefoot.testing:GymTarget --set env.backend=async",
}


class Command:
    """Runs `surefoot` in a directory, in processes that have everything imported already."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(
            ["surefoot.cli.train", "surefoot.training.on_policy_runner", "surefoot.tasks.go1", "gymnasium"]
        )

    def start(self, line: str) -> multiprocessing.process.BaseProcess:
        process = self.context.Process(target=run_command, args=(self.directory, line))
        process.start()
        return process

    def run(self, line: str) -> None:
        process = self.start(line)
        process.join(1200)
        assert process.exitcode == 0, line


def run_command(directory: Path, line: str) -> None:
    os.chdir(directory)
    # so that workers end with it
    os.setpgid(0, 0)
    import sys

    import torch

    torch.set_num_threads(1)
    sys.argv = ["surefoot", *line.split()]
    main()


def wait_for_an_iteration(process: multiprocessing.process.BaseProcess, last: Path) -> None:
    """Until the run has written its next checkpoint."""
    before = last.stat().st_mtime_ns if last.exists() else 0
    while process.exitcode is None and (not last.exists() or last.stat().st_mtime_ns == before):
        process.join(0.01)


def check_files(run: Path) -> None:
    """Everything a killed run left can be read, apart from temporary files that a kill cut off."""
    for path in run.rglob("*.pt"):
        load_checkpoint(path)
    for path in run.glob("manifest.json"):
        json.loads(path.read_text())
    for path in run.glob("config.yaml"):
        yaml.safe_load(path.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_fifty_kills_change_nothing(task: str, tmp_path: Path) -> None:
    command, dice = Command(tmp_path), random.Random(1)
    train = f"train {TASKS[task]} {OPTIONS} --set max_iterations={ITERATIONS}"
    command.run(f"{train} --run-dir whole")
    run = tmp_path / "parts"
    last = run / "checkpoints" / "last.pt"
    reached: set[int] = set()
    for _ in range(KILLS):
        is_begun = last.exists()
        if not is_begun:
            shutil.rmtree(run, ignore_errors=True)
        process = command.start("train --resume parts --quiet" if is_begun else f"{train} --run-dir parts")
        if dice.random() < 0.8:
            wait_for_an_iteration(process, last)
        process.join(dice.uniform(0.0, 0.3))
        assert process.exitcode is None, "the run is over before all kills: it needs more iterations"
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        check_files(run)
        if last.exists():
            reached.add(load_checkpoint(last)["iteration"])
    assert len(reached) > KILLS // 2
    command.run("train --resume parts --quiet")
    assert first_difference(tmp_path / "whole" / "checkpoints" / "last.pt", last) is None
    assert [r["iteration"] for r in records(run)] == list(range(ITERATIONS))
