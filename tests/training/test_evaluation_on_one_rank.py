"""Evaluating on one of two processes: nothing waits for the other, and training goes on unchanged."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, multiprocessing

from surefoot import distributed
from surefoot.testing import TargetEnv
from surefoot.training.evaluation import evaluate, load_policy
from surefoot.training.on_policy_runner import OnPolicyRunner

NETWORK = {"hidden_dims": [8], "obs_normalization": True, "rnn_type": "gru", "rnn_hidden_dim": 4}
CONFIG: dict[str, Any] = {
    "num_steps_per_env": 8,
    "actor": {**NETWORK, "estimator": {"target": "privileged", "hidden_dims": [4]}},
    "critic": {**NETWORK, "value_normalization": True},
    "algorithm": {"num_learning_epochs": 2, "num_mini_batches": 2, "enable_aux_loss": True},
    "env": {"reward_scaling": True},
    "logger": "none",
}
DEADLINE_S = 300.0


def make_env() -> TargetEnv:
    return TargetEnv(16, groups={"policy": 3, "privileged": 3})


def weights(runner: OnPolicyRunner) -> Tensor:
    return torch.cat([p.detach().flatten() for p in runner.policy.parameters()])


def use_the_policy(runner: OnPolicyRunner, run_dir: Path) -> None:
    """Everything that a user does with a policy beside training it."""
    policy = runner.get_inference_policy(deterministic=False)
    observations = make_env().reset(seed=1)
    policy(observations)
    policy.reset()
    runner.policy.value(observations)
    loaded = load_policy(run_dir, "last")
    for user in (runner.policy, policy, loaded):
        assert evaluate(user, make_env(), episodes=20, seed=3)["episodes"] == 20


def train(rank: int, port: int, directory: Path) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    runs = {}
    for name in ("plain", "evaluated"):
        runs[name] = runner = OnPolicyRunner(make_env(), CONFIG, directory / name, quiet=True)
        runner.learn(1)
        if rank == 0 and name == "evaluated":
            use_the_policy(runner, directory / name)
        runner.learn(1)
        assert runner.iteration == 2
    assert torch.equal(weights(runs["evaluated"]), weights(runs["plain"]))
    both = distributed.gather_objects(weights(runs["evaluated"]))
    assert torch.equal(both[0], both[1])
    distributed.shutdown()


def test_evaluating_on_one_process_neither_hangs_nor_changes_training(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.spawn(train, args=(port, tmp_path), nprocs=2, join=False)
    deadline = time.monotonic() + DEADLINE_S
    while not context.join(timeout=1.0):  # true when both have ended
        if time.monotonic() > deadline:
            for process in context.processes:
                process.kill()
            pytest.fail(f"the two processes did not end in {DEADLINE_S:g} s; one waits for the other")
