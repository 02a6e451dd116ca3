"""`surefoot export`, from the outside."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import surefoot as package

TINY = (
    "--num-envs 2 --set num_steps_per_env=32 --set eval_episodes=0 --set save_interval=1 "
    "--set algorithm.mini_batch_size=16 --set env.backend=sync --set keep_checkpoints=5 --quiet"
)


def actions_of(directory: Path, observations: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(directory / "policy.onnx"))
    return session.run(None, {"policy": observations})[0]


def test_a_run_is_exported_by_its_checkpoints(surefoot, tmp_path):
    trained = surefoot(f"train Pendulum-v1 --iterations 2 {TINY} --run-dir run")
    assert trained.exit_code == 0, trained.output
    exported = surefoot("export run --checkpoint last")
    assert exported.exit_code == 0, exported.output
    directory = tmp_path / "run" / "exported"
    assert {p.name for p in directory.iterdir()} == {"policy.onnx", "policy.json", "golden.npz"}
    assert "from PyTorch" in exported.output
    description = json.loads((directory / "policy.json").read_text())
    assert (description["task"], description["iteration"]) == ("Pendulum-v1", 1)
    assert description["surefoot"] == package.__version__

    # Pendulum's torque is in [-2, 2]
    observations = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    policy = package.load_policy(tmp_path / "run", "last")
    found = actions_of(directory, observations)
    np.testing.assert_allclose(found, policy(observations).numpy(), atol=1e-5)

    earlier = surefoot("export run/checkpoints/model_0.pt --format torchscript --out elsewhere")
    assert earlier.exit_code == 0, earlier.output
    files = {p.name for p in (tmp_path / "elsewhere").iterdir()}
    assert files == {"policy.pt", "policy.json", "golden.npz"}
    assert json.loads((tmp_path / "elsewhere" / "policy.json").read_text())["iteration"] == 0
    assert surefoot("export run --checkpoint 0 --out onnx").exit_code == 0
    assert np.abs(actions_of(tmp_path / "onnx", observations) - found).max() > 1e-6


@pytest.mark.filterwarnings("ignore:checkpoint for RSL-RL")
def test_all_formats_at_once_and_what_rsl_rl_lacks_is_left_out(surefoot, tmp_path):
    for task in ("Pendulum-v1", "CartPole-v1"):
        trained = surefoot(f"train {task} --iterations 1 {TINY} --run-dir {task}")
        assert trained.exit_code == 0, trained.output
    both = {"policy.onnx", "policy.pt", "policy.json", "golden.npz"}
    exported = surefoot("export Pendulum-v1 --format all --out all")
    assert exported.exit_code == 0, exported.output
    assert {p.name for p in (tmp_path / "all").iterdir()} == both | {"model_0.pt"}
    assert exported.output.count("from PyTorch") == 2
    own = (tmp_path / "Pendulum-v1" / "checkpoints" / "model_0.pt").read_bytes()
    refused = surefoot("export Pendulum-v1 --format rsl_rl --out Pendulum-v1/checkpoints")
    assert (refused.exit_code, "own checkpoints" in refused.stderr) == (2, True)
    assert (tmp_path / "Pendulum-v1" / "checkpoints" / "model_0.pt").read_bytes() == own

    assert surefoot("export CartPole-v1 --format rsl_rl --out none").exit_code == 2
    assert not (tmp_path / "none").exists()
    exported = surefoot("export CartPole-v1 --format all --out most")
    assert exported.exit_code == 0, exported.output
    assert {p.name for p in (tmp_path / "most").iterdir()} == both
    assert "rsl_rl: left out, RSL-RL has no counterpart of counted actions" in exported.output
