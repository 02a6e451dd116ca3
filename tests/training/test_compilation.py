"""Whether a run is compiled: decided once, said once, and kept with the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from surefoot.algorithm import compiled
from surefoot.testing import TargetEnv
from surefoot.training.checkpoint import find_checkpoint, load_checkpoint
from surefoot.training.on_policy_runner import OnPolicyRunner

CONFIG: dict[str, Any] = {
    "num_steps_per_env": 64,
    "max_iterations": 4,
    "actor": {"hidden_dims": [8]},
    "critic": {"hidden_dims": [8]},
    "eval_episodes": 0,
    "logger": "none",
}


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What a compiler that changes nothing is given."""
    given: list[object] = []
    monkeypatch.setattr(compiled, "missing_compiler", lambda _: None)
    monkeypatch.setattr(torch, "compile", lambda function, **_: given.append(function) or function)
    return given


def make_runner(run_dir: Path | None, compile_: Any, **config: Any) -> OnPolicyRunner:
    algorithm = {"num_mini_batches": 2, "num_learning_epochs": 1, "compile": compile_}
    env: Any = TargetEnv(4, seed=3)
    return OnPolicyRunner(env, {**CONFIG, **config, "algorithm": algorithm}, run_dir)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("compile:")]


def recorded(run_dir: Path) -> tuple[list[str], str]:
    """By each session in the manifest, and in the newest checkpoint."""
    manifest = json.loads((run_dir / "manifest.json").read_text(encoding="utf-8"))
    sessions = [manifest, *manifest.get("sessions", [])]
    return [s["compile"] for s in sessions], load_checkpoint(find_checkpoint(run_dir, "last"))["compile"]


def test_the_decision_is_said_once_and_recorded(
    tmp_path: Path, compiles: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    runner = make_runner(tmp_path, "default")
    runner.learn(1)
    runner.learn(1)
    assert lines(capsys) == ["compile: default, as configured"]
    assert len(compiles) == 1
    assert recorded(tmp_path) == (["default", "default"], "default")


def test_off_says_nothing(tmp_path: Path, compiles: list[object], capsys: pytest.CaptureFixture[str]) -> None:
    make_runner(tmp_path, "off").learn(1)
    assert lines(capsys) == []
    assert compiles == []
    assert recorded(tmp_path) == (["off"], "off")


def test_what_auto_decided_is_kept_when_the_run_goes_on(
    tmp_path: Path,
    compiles: list[object],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_runner(tmp_path, "auto").learn(1)
    assert lines(capsys) == []
    assert compiles == []
    # it would pay now, but the run is to go on as it began
    monkeypatch.setattr(compiled, "WORTH_S", 0.0)
    runner = make_runner(tmp_path, "auto")
    runner.load(tmp_path)
    runner.learn(1)
    assert lines(capsys) == []
    assert compiles == []
    assert recorded(tmp_path) == (["off", "off"], "off")
    # what the configuration says goes before
    runner = make_runner(tmp_path, "default")
    runner.load(tmp_path)
    runner.learn(1)
    assert lines(capsys) == ["compile: default, as configured"]
    assert len(compiles) == 1
    assert recorded(tmp_path) == (["off", "off", "default"], "default")


def test_a_policy_that_cannot_be_compiled_is_recorded_as_off(
    tmp_path: Path, compiles: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    memory = {"hidden_dims": [], "rnn_type": "gru", "rnn_hidden_dim": 4}
    make_runner(tmp_path, "default", actor=memory, critic=memory).learn(1)
    assert lines(capsys) == ["compile: off, the policy is recurrent"]
    assert compiles == []
    assert recorded(tmp_path) == (["off"], "off")
