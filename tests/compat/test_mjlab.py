"""mjlab 1.6.0, unmodified and without rsl-rl-lib, trains, exports, resumes and plays on Surefoot.

These tests need an interpreter that has mjlab (`examples/mjlab_go1.sh` makes one) and some minutes:

    SUREFOOT_MJLAB_PYTHON=mjlab-venv/bin/python python -m pytest -m slow tests/compat/test_mjlab.py
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from click.testing import CliRunner
from torch import nn

from surefoot.cli import cli

VARIABLE = "SUREFOOT_MJLAB_PYTHON"
TASK = "Mjlab-Velocity-Flat-Unitree-Go1"
SIZES = ["--env.scene.num-envs", "8", "--agent.num-steps-per-env", "8", "--agent.logger", "tensorboard"]
SOURCES = Path(__file__).parents[2] / "src"

pytestmark = pytest.mark.slow


@dataclass
class Mjlab:
    """Starts mjlab's own commands through the door, in a directory of their own."""

    python: Path
    cwd: Path

    def start(self, script: str, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.python, "-m", "surefoot.compat.rsl_rl", self.python.parent / script, TASK, *arguments],
            cwd=self.cwd,
            env={
                **os.environ,
                "PYTHONPATH": str(SOURCES),
                "CUDA_VISIBLE_DEVICES": "",
                "OMP_NUM_THREADS": "1",
                "MUJOCO_GL": os.environ.get("MUJOCO_GL", "egl"),
                "WANDB_MODE": "disabled",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def train(self, iterations: int, *arguments: str) -> tuple[Path, str]:
        """The directory of the new run, and what was printed."""
        already = self.runs()
        process = self.start("train", *SIZES, "--agent.max-iterations", str(iterations), *arguments)
        output, _ = process.communicate(timeout=1200)  # the first time, Warp compiles for minutes
        assert process.returncode == 0, output
        assert "[WARN]" not in output, output  # mjlab goes on when its export fails
        [run] = self.runs() - already
        return run, output

    def runs(self) -> set[Path]:
        return set((self.cwd / "logs" / "rsl_rl" / "go1_velocity").glob("*"))


@pytest.fixture(scope="module")
def mjlab(tmp_path_factory: pytest.TempPathFactory) -> Mjlab:
    if VARIABLE not in os.environ:
        pytest.skip(f"{VARIABLE} names no interpreter that has mjlab; examples/mjlab_go1.sh makes one")
    python = Path(os.environ[VARIABLE]).absolute()
    look = "import importlib.util as u; print(u.find_spec('mjlab') is not None, u.find_spec('rsl_rl'))"
    found = subprocess.run([python, "-c", look], capture_output=True, text=True, check=True).stdout.split()
    if found[0] != "True":
        pytest.skip(f"{python} ({VARIABLE}) cannot import mjlab; examples/mjlab_go1.sh makes one that can")
    return Mjlab(python, tmp_path_factory.mktemp("mjlab"))


@pytest.fixture(scope="module")
def trained(mjlab: Mjlab) -> Path:
    """The directory of a run of two iterations."""
    return mjlab.train(2)[0]


def checkpoint(run: Path, iteration: int) -> dict[str, Any]:
    return torch.load(run / f"model_{iteration}.pt", weights_only=True)


def actor_of(state: dict[str, torch.Tensor], obs: torch.Tensor) -> torch.Tensor:
    """The actions of the saved actor, computed from its tensors alone: RSL-RL's keys and formula."""
    x = (obs - state["obs_normalizer._mean"]) / (state["obs_normalizer._std"] + 1e-2)
    for layer in (0, 2, 4, 6):
        x = nn.functional.linear(x, state[f"mlp.{layer}.weight"], state[f"mlp.{layer}.bias"])
        x = nn.functional.elu(x) if layer < 6 else x
    return x


def test_training_saves_checkpoints_with_the_environments_counter(trained: Path) -> None:
    first, last = checkpoint(trained, 0), checkpoint(trained, 1)
    assert (first["iter"], last["iter"]) == (0, 1)
    assert last["infos"]["env_state"]["common_step_counter"] == 2 * 8
    weight = "mlp.0.weight"
    assert not torch.equal(first["actor_state_dict"][weight], last["actor_state_dict"][weight])


def test_the_exported_policy_has_mjlabs_metadata_and_acts_as_the_checkpoint(trained: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(trained / f"{trained.name}.onnx")
    metadata = session.get_modelmeta().custom_metadata_map
    assert metadata["run_path"] == "local"
    assert len(metadata["joint_names"].split(",")) == 12
    state = checkpoint(trained, 1)["actor_state_dict"]
    obs = torch.randn(1, state["mlp.0.weight"].shape[1])
    [actions] = session.run(["actions"], {"obs": obs.numpy()})
    np.testing.assert_allclose(actions, actor_of(state, obs), atol=1e-5)


def test_the_runs_configuration_becomes_one_of_surefoots(trained: Path) -> None:
    result = CliRunner().invoke(cli, ["import-config", str(trained / "params" / "agent.yaml")])
    assert result.exit_code == 0, result.output
    config = yaml.safe_load(result.stdout)
    assert config["obs_groups"] == {"actor": ["actor"], "critic": ["critic"]}
    assert config["actor"]["hidden_dims"] == [512, 256, 128]
    assert config["num_steps_per_env"] == 8


def test_training_resumes_where_it_stopped(mjlab: Mjlab, trained: Path) -> None:
    run, output = mjlab.train(2, "--agent.resume", "True", "--agent.load-run", trained.name)
    assert "Loading model checkpoint" in output
    before, after = checkpoint(trained, 1), checkpoint(run, 3)
    assert after["infos"]["env_state"]["common_step_counter"] == 4 * 8
    assert not (run / "model_0.pt").exists(), "it began anew"
    count = "obs_normalizer.count"
    assert after["actor_state_dict"][count] == 2 * before["actor_state_dict"][count]


def test_play_records_a_video(mjlab: Mjlab, trained: Path) -> None:
    """The viewer serves a web page until Ctrl-C; the video is there once the policy has done its steps."""
    arguments = ["--num-envs", "2", "--viewer", "viser", "--video", "True", "--video-length", "10"]
    process = mjlab.start("play", "--checkpoint-file", str(trained / "model_1.pt"), *arguments)
    try:
        until = time.monotonic() + 300
        while not list(trained.glob("videos/play/*.mp4")) and time.monotonic() < until:
            assert process.poll() is None, process.communicate()[0]
            time.sleep(1)
    finally:
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert list(trained.glob("videos/play/*.mp4")), output
    assert process.returncode == 0, output
    assert "[ERROR]" not in output, output
