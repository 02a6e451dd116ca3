"""The bundled walking task goes on bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from surefoot import tasks
from surefoot.training.on_policy_runner import OnPolicyRunner

NUM_ENVS = 32


def make_runner(run_dir: Path) -> OnPolicyRunner:
    config: dict[str, Any] = {**tasks.preset("go1-walk"), "logger": "none", "save_interval": 1}
    config |= {"num_envs": NUM_ENVS, "nproc": 1, "num_steps_per_env": 32}
    return OnPolicyRunner(tasks.make("go1-walk", NUM_ENVS, seed=1), config, run_dir, quiet=True)


@pytest.mark.filterwarnings("ignore:a rollout of 32 steps")
def test_two_and_two_iterations_equal_four(tmp_path: Path) -> None:
    straight = make_runner(tmp_path / "a")
    straight.learn(4)
    make_runner(tmp_path / "b").learn(2)
    again = make_runner(tmp_path / "b")
    again.load(tmp_path / "b")
    again.learn(2)
    for name, tensor in straight.alg.state_dict().items():
        assert torch.equal(tensor, again.alg.state_dict()[name]), name
    ours = {k for k in straight.metrics if not k.startswith("Perf/") and k != "wall_time_s"}
    assert {k: again.metrics[k] for k in ours} == {k: straight.metrics[k] for k in ours}
    assert straight.metrics["Train/linear_velocity_error"] > 0
