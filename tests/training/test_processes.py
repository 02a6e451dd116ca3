"""One run in two processes: one policy, one set of files, one decision to stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ranks import run_ranks
from surefoot import distributed
from surefoot.errors import NonFiniteError
from surefoot.testing import TargetEnv
from surefoot.training.checkpoint import load_checkpoint
from surefoot.training.hooks import Hook
from surefoot.training.loggers import read_records
from surefoot.training.nonfinite import NonFiniteGuard
from surefoot.training.on_policy_runner import OnPolicyRunner
from surefoot.types import Step

N = 32
CONFIG: dict[str, Any] = {
    "num_steps_per_env": 32,
    "actor": {"hidden_dims": [16], "obs_normalization": True},
    "critic": {"hidden_dims": [16]},
    "algorithm": {"num_learning_epochs": 2, "num_mini_batches": 2},
    "env": {"reward_scaling": True},
    "logger": "none",
    "eval_episodes": 4,
}


class StopOnRank(Hook):
    """One process alone asks to stop after iteration 0."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def after_iteration(self, runner: OnPolicyRunner, metrics: dict[str, Any]) -> bool:
        return distributed.rank() == self.rank


def make_runner(run_dir: Path) -> OnPolicyRunner:
    eval_env = TargetEnv(4) if distributed.is_main() else None
    return OnPolicyRunner(TargetEnv(N), CONFIG, run_dir, eval_env=eval_env, quiet=True)


def weights(runner: OnPolicyRunner) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in runner.policy.parameters()])


def train(rank: int, directory: Path) -> None:
    straight = make_runner(directory / "a")
    assert straight.config.num_envs == 2 * N
    assert straight.learn(2) == "finished"
    both = distributed.gather_objects(weights(straight))
    assert torch.equal(both[0], both[1])
    observations = distributed.gather_objects(straight.observations["policy"])  # pyright: ignore[reportOptionalSubscript]
    assert not torch.equal(observations[0], observations[1])

    make_runner(directory / "b").learn(1)
    again = make_runner(directory / "b")
    again.load(directory / "b")
    again.learn(1)
    assert torch.equal(weights(again), weights(straight))
    assert again.metrics["Train/mean_reward"] == straight.metrics["Train/mean_reward"]

    stopped = make_runner(directory / "c")
    stopped.hooks.append(StopOnRank(1))
    assert stopped.learn(5) == ("stopped: StopOnRank" if rank else "stopped: another process")
    assert stopped.iteration == 1

    # process 0 decides the learning rate, whatever another one took it for
    drifted = make_runner(directory / "d")
    drifted.alg.learning_rate.mul_(1 + rank)
    drifted.learn(1)
    rates = distributed.gather_objects(drifted.alg.learning_rate.item())
    assert rates[0] == rates[1]
    both = distributed.gather_objects(weights(drifted))
    assert torch.equal(both[0], both[1])

    # messages: once for both, and about environments by their number among all
    assert sorted(distributed.gather_objects(distributed.is_first("a warning"))) == [False, True]
    assert distributed.is_first(f"of process {rank} alone")
    nothing = torch.zeros(N).bool()
    step = Step({}, torch.full((N,), torch.nan), nothing, nothing)
    with pytest.raises(NonFiniteError, match=f"environment {N * rank}: reward is nan"):
        NonFiniteGuard("raise", N, torch.device("cpu")).check(step)

    with pytest.raises(Exception, match="already holds a run"):
        make_runner(directory / "a").learn(1)


def test_two_processes_train_one_policy(tmp_path: Path) -> None:
    run_ranks(train, tmp_path)
    records = read_records(tmp_path / "a" / "metrics.jsonl")
    assert [r["iteration"] for r in records] == [0, 1]
    assert [r["env_steps"] for r in records] == [1024 + 2 * N * 32 * (i + 1) for i in range(2)]
    assert records[0]["Data/samples_used"] == 2 * N * 32
    # 16 steps of warm-up and 32 of the rollout: 4 episodes of 10 steps in each of the 64 environments
    assert records[0]["Train/episodes"] == 4 * 2 * N
    assert "Eval/mean_reward" in records[-1]
    state = load_checkpoint(tmp_path / "a" / "checkpoints" / "last.pt")
    assert len(state["processes"]) == 1

    alone = OnPolicyRunner(TargetEnv(2 * N), CONFIG, quiet=True)
    with pytest.warns(UserWarning, match=r"is of 32 \+ 32 environments, this run has 64"):
        alone.load(tmp_path / "b" / "checkpoints" / "model_1.pt")
    assert alone.learn(1) == "finished"
    assert alone.iteration == 3
