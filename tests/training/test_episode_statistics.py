"""Returns and lengths of finished episodes, and averages of what environments log."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from surefoot.training.env_log import EnvLog
from surefoot.training.episodes import EpisodeStatistics
from surefoot.types import Step

CPU = torch.device("cpu")


def step(rewards: list[float], ended: list[int], valid: list[int] | None = None, **log: Any) -> Step:
    flags = torch.tensor(ended)
    return Step(
        observations={"policy": torch.zeros(len(rewards), 1)},
        rewards=torch.tensor(rewards),
        terminated=flags == 1,
        truncated=flags == 2,
        valid=None if valid is None else torch.tensor(valid).bool(),
        log=log,
    )


def run(statistics: EpisodeStatistics, *steps: Step) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    for s in steps:
        statistics.record(s)
    return statistics.finish_iteration()


def test_no_finished_episode_has_no_mean() -> None:
    metrics, finished = run(EpisodeStatistics(2, 4, CPU), step([1, 1], [0, 0]))
    assert metrics == {"Train/mean_reward": None, "Train/mean_episode_length": None, "Train/episodes": 0}
    assert finished == []


def test_episodes_run_on_over_iterations() -> None:
    statistics = EpisodeStatistics(2, 2, CPU)
    run(statistics, step([1, 10], [0, 0]), step([1, 10], [0, 0]))
    metrics, finished = run(statistics, step([1, 10], [1, 0]), step([5, 10], [0, 2]))
    # environment 0: 1+1+1 over 3 steps; environment 1: 4 · 10 over 4 steps
    assert metrics == {
        "Train/mean_reward": (3 + 40) / 2,
        "Train/mean_episode_length": 3.5,
        "Train/episodes": 2,
    }
    assert finished == [(0, 3), (1, 4)]
    metrics, finished = run(statistics, step([1, 0], [1, 0]))
    assert finished == [(0, 2)]  # 5 and 1
    assert metrics["Train/mean_reward"] == (3 + 40 + 6) / 3


def test_several_episodes_in_one_iteration_are_told_apart() -> None:
    metrics, finished = run(
        EpisodeStatistics(1, 8, CPU), *(step([r], [e]) for r, e in [(1, 1), (2, 0), (3, 2), (4, 1), (9, 0)])
    )
    assert finished == [(0, 1), (0, 2), (0, 1)]
    assert metrics["Train/mean_reward"] == (1 + 5 + 4) / 3


def test_rows_that_only_reset_count_for_nothing() -> None:
    _, finished = run(
        EpisodeStatistics(1, 8, CPU),
        step([1], [1], [1]),
        step([100], [0], [0]),
        step([2], [0], [1]),
        step([float("nan")], [1], [0]),  # an end in a discarded row: the episode is not counted
        step([5], [1], [1]),
    )
    assert finished == [(0, 1), (0, 1)]


def test_the_mean_is_over_the_last_hundred_episodes() -> None:
    statistics = EpisodeStatistics(1, 16, CPU)
    metrics, _ = run(statistics, *(step([float(i)], [1]) for i in range(250)))
    assert metrics["Train/episodes"] == 250
    assert metrics["Train/mean_reward"] == np.mean(range(150, 250))


def test_long_episodes_lose_no_digits() -> None:
    statistics = EpisodeStatistics(1, 1000, CPU)
    for _ in range(20):
        run(statistics, *(step([1.0 + 1e-4], [0]) for _ in range(1000)))
    metrics, _ = run(statistics, step([0.0], [1]))
    assert metrics["Train/mean_reward"] == pytest.approx(20_000 * float(np.float32(1.0001)), rel=1e-12)


def test_state_goes_on_in_the_middle_of_an_episode() -> None:
    first, second = EpisodeStatistics(2, 4, CPU), EpisodeStatistics(2, 4, CPU)
    run(first, step([1, 2], [1, 0]))
    second.load_state_dict(first.state_dict())
    assert run(first, step([3, 4], [1, 1])) == run(second, step([3, 4], [1, 1]))


# ------------------------------------------------------------------ what environments log


def averages(*steps: Step) -> dict[str, float]:
    log = EnvLog()
    for s in steps:
        log.add(s)
    return {name: float(x) for name, x in log.finish_iteration().items()}


def logged(valid: list[int] | None = None, **log: float | Tensor) -> Step:
    return step([0.0, 0.0], [0, 0], valid, **log)


def test_numbers_and_tensors_are_averaged_under_their_key() -> None:
    result = averages(
        logged(a=1.0, b=torch.tensor(2.0), c=torch.tensor([0.0, 4.0])),
        logged(a=3.0, b=torch.tensor(4.0), c=torch.tensor([2.0, 6.0])),
    )
    assert result == {"a": 2.0, "b": 3.0, "c": 3.0}


def test_a_key_counts_only_the_steps_that_have_it() -> None:
    assert averages(logged(a=1.0), logged(), logged(a=3.0)) == {"a": 2.0}


def test_rows_that_only_reset_are_left_out_of_an_average() -> None:
    nan = float("nan")
    result = averages(
        logged([1, 0], c=torch.tensor([1.0, nan])),
        logged([1, 1], c=torch.tensor([2.0, 6.0])),
    )
    assert result == {"c": 3.0}


def test_a_reused_tensor_is_read_in_time() -> None:
    buffer, log = torch.tensor(1.0), EnvLog()
    log.add(logged(a=buffer))
    buffer.fill_(100.0)
    assert float(log.finish_iteration()["a"]) == 1.0


def test_evaluation_entries_are_training_entries_while_training() -> None:
    step_ = logged(**{"Eval/linear_velocity_error": torch.tensor([0.1, 0.3])})
    assert averages(step_) == {"Train/linear_velocity_error": pytest.approx(0.2)}


def test_averages_start_anew_each_iteration() -> None:
    log = EnvLog()
    log.add(logged(a=1.0))
    log.finish_iteration()
    assert log.finish_iteration() == {}
