"""Worker processes that crash and are started again: what the trainer sees, and when it is too much."""

from __future__ import annotations

import multiprocessing
import os
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from surefoot.envs.gymnasium import GymnasiumVecEnv
from surefoot.envs.replicate import replicate
from surefoot.envs.restarts import MAX_RESTARTS
from surefoot.errors import EnvContractError
from surefoot.testing import GymTarget
from surefoot.training.evaluation import evaluate
from surefoot.training.on_policy_runner import OnPolicyRunner

WARNING = r"(?s)environment 1.*A new environment takes its place"


class Fragile(GymTarget):
    """In worker 1, fails as `how` says in its step `at`, while fewer than `times` files are in `marks`."""

    def __init__(
        self, marks: Path, how: str = "raise", at: int = 3, times: int = 1, length: int = 10
    ) -> None:
        super().__init__(episode_length=length)
        self.marks, self.how, self.at, self.times = marks, how, at, times
        self.is_sound = not multiprocessing.current_process().name.endswith("-1")

    def step(self, action: Any) -> Any:
        count = len(list(self.marks.iterdir()))
        if not self.is_sound and self.elapsed + 1 == self.at and count < self.times:
            (self.marks / str(count)).touch()
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("boom")
        return super().step(action)


def make(marks: Path, num_envs: int = 3, **arguments: Any) -> GymnasiumVecEnv:
    return replicate(lambda: Fragile(marks, **arguments), num_envs, backend="async", restart_workers=True)


def zeros(env: GymnasiumVecEnv) -> torch.Tensor:
    return torch.zeros(env.num_envs, 1)


@pytest.mark.parametrize("how", ["raise", "kill"])
def test_a_lost_step_is_no_sample_and_the_next_one_belongs_to_a_new_environment(
    tmp_path: Path, how: str
) -> None:
    env = make(tmp_path, how=how)
    first = env.reset(seed=0)["policy"].clone()
    for _ in range(2):
        step = env.step(zeros(env))
    with pytest.warns(UserWarning, match=WARNING) as caught:
        lost = env.step(zeros(env))
    assert lost.valid is not None
    assert lost.final_known is not None
    assert lost.valid.tolist() == [True, False, True]
    assert lost.truncated.tolist() == [False, True, False]
    assert not lost.final_known.any()
    assert lost.rewards[1] == 0
    # [goal, elapsed / 10]: a new goal at the start of an episode, while the others went on
    assert lost.observations["policy"][:, 1].tolist() == pytest.approx([0.3, 0.0, 0.3])
    assert lost.observations["policy"][1, 0] != first[1, 0]
    step = env.step(zeros(env))
    assert step.valid is None
    assert step.final_observations is not None  # an unknown one does not mean that none is to be had
    assert step.observations["policy"][:, 1].tolist() == pytest.approx([0.4, 0.1, 0.4])
    assert env.num_restarts == len(caught) == 1
    text = str(caught[0].message)
    if how == "raise":
        assert "environment 1 raised ValueError in step(): boom" in text
        assert "Traceback (most recent call last):" in text
        assert 'raise ValueError("boom")' in text
    else:
        assert "the worker process of environment 1 ended: killed by SIGKILL" in text
    env.close()
    assert not multiprocessing.active_children()


def test_one_row_is_lost_while_another_ends_as_it_should(tmp_path: Path) -> None:
    env = make(tmp_path, at=2, length=2, num_envs=2)
    env.reset(seed=0)
    env.step(zeros(env))
    with pytest.warns(UserWarning, match=WARNING):
        step = env.step(zeros(env))
    assert step.final_known is not None
    assert step.valid is not None
    assert (step.truncated.tolist(), step.valid.tolist()) == ([True, True], [True, False])
    assert step.final_known.tolist() == [True, False]
    env.close()


def test_a_worker_that_dies_between_two_steps_loses_the_next_one(tmp_path: Path) -> None:
    env = make(tmp_path, times=0)
    env.reset(seed=0)
    env.step(zeros(env))
    workers: Any = env._envs  # pyright: ignore[reportPrivateUsage]
    os.kill(workers.processes[1].pid, signal.SIGKILL)
    with pytest.warns(UserWarning, match=WARNING):
        state = env.state_dict()
    assert len(state["envs"]) == 3
    step = env.step(zeros(env))
    assert step.valid is not None
    assert step.valid.tolist() == [True, False, True]
    assert step.observations["policy"][1, 1] == 0
    assert env.step(zeros(env)).valid is None
    env.close()


def test_only_the_first_crash_is_shown_and_all_are_counted(tmp_path: Path) -> None:
    env = make(tmp_path, times=3)
    env.reset(seed=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lost = [env.step(zeros(env)).valid is not None for _ in range(12)]
    assert lost == [False, False, True] * 3 + [False] * 3
    assert len(caught) == 1
    assert env.num_restarts == 3
    env.close()


@pytest.mark.filterwarnings("ignore:.*A new environment takes its place")
def test_an_environment_that_always_crashes_ends_the_run_with_its_traceback(tmp_path: Path) -> None:
    env = make(tmp_path, at=1, times=99)
    env.reset(seed=0)
    for _ in range(MAX_RESTARTS):
        env.step(zeros(env))
    with pytest.raises(EnvContractError, match=rf"boom.*{MAX_RESTARTS + 1} crashes without") as caught:
        env.step(zeros(env))
    assert 'raise ValueError("boom")' in str(caught.value.__cause__)
    assert len(list(tmp_path.iterdir())) == MAX_RESTARTS + 1
    assert not multiprocessing.active_children()


@pytest.mark.filterwarnings("ignore:.*A new environment takes its place")
def test_a_finished_episode_forgives_the_crashes_before_it(tmp_path: Path) -> None:
    env = make(tmp_path, at=2, times=MAX_RESTARTS, length=3, num_envs=2)
    env.reset(seed=0)
    for _ in range(2):
        for _ in range(2 * MAX_RESTARTS + 3):  # a crash in every second step, then a whole episode
            env.step(zeros(env))
        for mark in tmp_path.iterdir():
            mark.unlink()
    assert env.num_restarts == 2 * MAX_RESTARTS
    env.close()


def test_without_a_crash_the_steps_are_those_of_one_process(tmp_path: Path) -> None:
    envs = make(tmp_path, times=0), replicate(GymTarget, 3, backend="sync")
    for a, b in zip(*[[env.reset(seed=4)["policy"]] for env in envs], strict=True):
        assert torch.equal(a, b)
    for _ in range(12):
        a, b = (env.step(torch.ones(3, 1)) for env in envs)
        assert torch.equal(a.observations["policy"], b.observations["policy"])
        assert torch.equal(a.rewards, b.rewards)
        assert torch.equal(a.truncated, b.truncated)
    envs[0].close()


def test_a_run_goes_on_counts_the_crash_and_learns_nothing_from_the_lost_row(tmp_path: Path) -> None:
    env = make(tmp_path, num_envs=4)
    config = {
        "num_steps_per_env": 32,
        "actor": {"hidden_dims": [8]},
        "critic": {"hidden_dims": [8]},
        "algorithm": {"num_mini_batches": 1, "num_learning_epochs": 1},
    }
    runner = OnPolicyRunner(env, config, quiet=True)
    with pytest.warns(UserWarning, match=WARNING):
        runner.learn(1)
    assert runner.metrics["Data/restarts"] == 1
    assert runner.metrics["Data/samples_used"] == 4 * 32 - 1
    assert runner.metrics["Data/bootstrap"] == "final"
    # one episode of ten steps of each, none of the one that was lost after two
    assert runner.metrics["Train/mean_episode_length"] == 10
    storage = runner.alg.storage
    # cut off before the lost row: what the row before it led to is known, and stands in for all that follows
    value = storage.values[2, 1]
    assert torch.isclose(storage.returns[1, 1], storage.rewards[1, 1] + runner.config.algorithm.gamma * value)
    runner.learn(1)
    assert runner.metrics["Data/restarts"] == 0
    env.close()


def test_an_episode_that_was_lost_does_not_count_in_an_evaluation(tmp_path: Path) -> None:
    env = make(tmp_path, at=5, num_envs=2)
    with pytest.warns(UserWarning, match=WARNING):
        result = evaluate(lambda _: zeros(env), env, 2, seed=0)
    assert result["episodes"] == 2
    assert result["mean_episode_length"] == 10
    env.close()
