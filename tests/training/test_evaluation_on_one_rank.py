"""Evaluating on one of two processes: nothing waits for the other, and training goes on unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ranks import run_ranks
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


def train(rank: int, directory: Path) -> None:
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


def test_evaluating_on_one_process_neither_hangs_nor_changes_training(tmp_path: Path) -> None:
    run_ranks(train, tmp_path)
