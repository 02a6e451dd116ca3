"""Comparing two checkpoints, and the command that kills and resumes a run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from surefoot.testing import TargetEnv
from surefoot.training.checkpoint import load_checkpoint, save_checkpoint
from surefoot.training.on_policy_runner import OnPolicyRunner
from surefoot.training.verify import first_difference

CONFIG: dict[str, Any] = {
    "num_steps_per_env": 32,
    "actor": {"hidden_dims": [8]},
    "critic": {"hidden_dims": [8]},
    "logger": "none",
}


def saved(path: Path, iterations: int, seed: int = 1) -> Path:
    runner = OnPolicyRunner(TargetEnv(6), {**CONFIG, "seed": seed}, quiet=True)
    runner.learn(iterations)
    return runner.save(path)


def test_the_same_run_has_no_difference(tmp_path: Path) -> None:
    assert first_difference(saved(tmp_path / "a.pt", 2), saved(tmp_path / "b.pt", 2)) is None


def test_the_first_difference_is_named(tmp_path: Path) -> None:
    one, two = saved(tmp_path / "a.pt", 2), saved(tmp_path / "b.pt", 3)
    assert first_difference(one, two) == "iteration is 1, in the resumed run 2"
    state = load_checkpoint(one)
    name = next(iter(state["algorithm"]["tensors"]))
    state["algorithm"]["tensors"][name] = state["algorithm"]["tensors"][name] + 1e-3
    save_checkpoint(tmp_path / "c.pt", state)
    difference = first_difference(one, tmp_path / "c.pt")
    assert difference is not None
    assert difference.startswith(f"algorithm.tensors.{name} differs by up to")


def verify(task: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "surefoot", "verify-resume", task, "--before", "2", "--after", "2"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False, cwd=HERE)


HERE = Path(__file__).parent


def test_a_killed_and_resumed_run_is_equal_bit_for_bit() -> None:
    small = ("--num-envs", "8", "--set", "num_steps_per_env=32", "--set", "actor.rnn_type=gru")
    done = verify("surefoot.testing:TargetEnv", *small)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed after 2 iterations and resumed for 2: equal bit for bit" in done.stdout


@pytest.mark.slow
def test_an_environment_that_cannot_be_restored_is_found_out() -> None:
    done = verify("CartPole-v1", "--num-envs", "4")
    assert done.returncode == 1
    assert "not the same after 2 + 2 iterations" in done.stdout
