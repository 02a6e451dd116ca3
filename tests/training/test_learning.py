"""What each kind of policy is for, shown by the command: slow, one seed each."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from surefoot import tasks

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
TINY = "surefoot.testing.gymnasium_environments"
GRU = ("--set", "actor.rnn_type=gru", "--set", "critic.rnn_type=gru")


def surefoot(*arguments: str) -> str:
    command = [sys.executable, "-m", "surefoot", *arguments]
    done = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def trained(task: str, run_dir: Path, *arguments: str) -> float:
    """Mean reward of 100 deterministic episodes of the last checkpoint."""
    surefoot("train", task, "--quiet", "--run-dir", str(run_dir), "--set", "eval_episodes=0", *arguments)
    return json.loads(surefoot("eval", str(run_dir), "--checkpoint", "last", "--json"))["mean_reward"]


def logged(run_dir: Path, key: str) -> list[float]:
    records = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(record)[key] for record in records]


def test_cartpole_without_velocities_needs_memory(tmp_path: Path) -> None:
    task = "hidden_velocity:cartpole"
    assert trained(task, tmp_path / "gru", "--steps", "200000", *GRU) >= 475
    assert trained(task, tmp_path / "mlp", "--steps", "200000") < 200


def test_pendulum_without_velocity(tmp_path: Path) -> None:
    preset = Path(tasks.__file__).parent / "presets" / "Pendulum-v1.yaml"
    settings = ["--config", str(preset), "--set", "max_iterations=292"]  # 300,032 steps
    for change in ("actor.rnn_hidden_dim=64", "critic.rnn_hidden_dim=64", "algorithm.learning_rate=3e-4"):
        settings += ["--set", change]
    assert trained("hidden_velocity:pendulum", tmp_path / "gru", *settings, *GRU) >= -250


def test_masks_keep_every_forbidden_action_out(tmp_path: Path) -> None:
    assert trained(f"{TINY}:GymForbidden", tmp_path / "run", "--steps", "100000") >= 19
    assert set(logged(tmp_path / "run", "Actions/forbidden")) == {0.0}


def test_convolutions_know_a_shape_wherever_it_is(tmp_path: Path) -> None:
    task, steps = f"{TINY}:GymShapes", ("--steps", "60000")
    flat = ("--set", "actor.cnn=flat", "--set", "critic.cnn=flat")
    assert trained(task, tmp_path / "cnn", *steps) >= 15  # of 16
    assert trained(task, tmp_path / "flat", *steps, *flat) < 12


@pytest.mark.parametrize(("task", "steps", "reward"), [("Acrobot-v1", "300000", -100)])
def test_discrete_tasks_with_the_general_defaults(
    task: str, steps: str, reward: float, tmp_path: Path
) -> None:
    assert trained(task, tmp_path / "run", "--steps", steps) >= reward
