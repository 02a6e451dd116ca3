"""Faults that a run survives, and what is left of those that end it."""

from __future__ import annotations

import math
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from surefoot.algorithm.extension import Extension
from surefoot.cli.fault import command
from surefoot.errors import EnvContractError, NonFiniteError
from surefoot.testing import TargetEnv
from surefoot.training.action_masks import ActionMaskGuard
from surefoot.training.faults import load_fault
from surefoot.training.hooks import Hook, StopAfter
from surefoot.training.loggers import JsonlLogger, read_records
from surefoot.training.nonfinite import NonFiniteGuard
from surefoot.training.on_policy_runner import OnPolicyRunner
from surefoot.types import Step

N, T = 8, 32
CONFIG: dict[str, Any] = {
    "num_steps_per_env": T,
    "actor": {"hidden_dims": [8]},
    "critic": {"hidden_dims": [8]},
    "algorithm": {"num_learning_epochs": 2, "num_mini_batches": 2},
    "logger": "none",
    "save_interval": 1,
}


def make_runner(run_dir: Path | None = None, environment: Any = None, **config: Any) -> OnPolicyRunner:
    return OnPolicyRunner(environment or TargetEnv(N, seed=3), CONFIG | config, run_dir, quiet=True)


def weights(runner: OnPolicyRunner) -> Tensor:
    return torch.cat([p.detach().flatten() for p in runner.policy.parameters()])


# ------------------------------------------------------------------ a disk without room for metrics


class NoRoom(Hook):
    """In iterations 1 and 2 no file may grow beyond what `metrics.jsonl` has, and half a record."""

    def before_iteration(self, runner: OnPolicyRunner, iteration: int) -> None:
        assert runner.run_dir is not None
        size = (runner.run_dir / "metrics.jsonl").stat().st_size + 100 if iteration in (1, 2) else -1
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@pytest.fixture
def _unlimited() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("_unlimited")
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)  # TensorBoard's own thread
def test_metrics_that_cannot_be_written_cost_a_warning_for_each_file(tmp_path: Path) -> None:
    runner = make_runner(tmp_path, save_interval=0, logger="tensorboard")
    runner.hooks.append(NoRoom())
    with pytest.warns(UserWarning, match=r"Logger cannot write \(.*\)\. Training goes on") as caught:
        assert runner.learn(5) == "finished"
    assert sorted(str(w.message).partition(" ")[0] for w in caught) == ["JsonlLogger", "TensorBoardLogger"]
    # what follows is written again, and the half of a record spoils no other
    assert [r["iteration"] for r in read_records(tmp_path / "metrics.jsonl")] == [0, 3, 4]
    assert (tmp_path / "checkpoints" / "model_4.pt").exists()


@pytest.mark.usefixtures("_unlimited")
def test_half_a_record_spoils_no_other(tmp_path: Path) -> None:
    logger = JsonlLogger(tmp_path / "metrics.jsonl")
    resource.setrlimit(resource.RLIMIT_FSIZE, (30, -1))
    logger.log({"iteration": 0}, 0)
    for i in (1, 2):
        with pytest.raises(OSError, match=r"large|space"):
            logger.log({"iteration": i, "text": "long" * 9}, i)
    resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
    logger.log({"iteration": 3}, 3)
    logger.close()
    assert read_records(tmp_path / "metrics.jsonl") == [{"iteration": 0}, {"iteration": 3}]


# ------------------------------------------------------------------ hooks that fail at the end


class FailsAtTheEnd(Hook):
    def __init__(self, text: str) -> None:
        self.text = text

    def on_end(self, runner: OnPolicyRunner, reason: str) -> None:
        raise ZeroDivisionError(self.text)


class FailsBefore(Hook):
    def before_iteration(self, runner: OnPolicyRunner, iteration: int) -> None:
        raise KeyError("the cause")


def test_a_hook_that_fails_at_the_end_keeps_no_other_from_its_work(tmp_path: Path) -> None:
    runner = make_runner(tmp_path, save_interval=0)
    runner.hooks += [FailsAtTheEnd("one"), FailsAtTheEnd("two")]
    with (
        pytest.raises(ZeroDivisionError, match="one"),
        pytest.warns(UserWarning, match=r"on_end failed too: ZeroDivisionError: two"),
    ):
        runner.learn(1)
    assert (tmp_path / "checkpoints" / "last.pt").exists()


def test_the_error_that_ended_a_run_is_the_one_that_is_raised() -> None:
    runner = make_runner()
    runner.hooks += [FailsAtTheEnd("a consequence"), FailsBefore()]
    with (
        pytest.raises(KeyError, match="the cause"),
        pytest.warns(UserWarning, match="on_end failed too: ZeroDivisionError: a consequence"),
    ):
        runner.learn(1)


# ------------------------------------------------------------------ the step that ended a run, and after it


class NanOnce(TargetEnv):
    """At step `at`, counted over everything, environment 5 gives one NaN."""

    def __init__(self, at: int, where: str = "reward") -> None:
        super().__init__(N, seed=3)
        self.at, self.where, self.count = at, where, 0

    def step(self, actions: Tensor) -> Step:
        step = super().step(actions)
        self.count += 1
        if self.count == self.at:
            (step.rewards if self.where == "reward" else step.observations["policy"][:, 1])[5] = math.nan
        return step


@pytest.mark.parametrize(("where", "name"), [("reward", "rewards"), ("observation", "observations.policy")])
def test_the_step_that_was_not_finite_is_left_in_a_file(tmp_path: Path, where: str, name: str) -> None:
    runner = make_runner(tmp_path, NanOnce(T + 4, where))
    with pytest.raises(NonFiniteError, match=r"environment 5.*surefoot fault .*step_36_rank_0\.pt"):
        runner.learn(2)
    file = tmp_path / "faults" / "step_36_rank_0.pt"
    record = load_fault(file)
    assert record["iteration"] == 1
    assert record["tensors"][name].isnan().nonzero()[0, 0] == 5
    assert record["tensors"]["actions"].shape == (N, 1)
    shown = CliRunner().invoke(command, [str(file)]).output
    assert f"iteration 1, step 36 of the environments: {N} rows" in shown
    assert f"first: {name} of environment 5 at step 3 of the rollout" in shown


def test_on_an_accelerator_the_step_is_left_in_a_file_too(tmp_path: Path) -> None:
    runner = make_runner(tmp_path, NanOnce(4, "observation"))
    runner.guard = NonFiniteGuard("raise", N, torch.device("cpu"))
    runner.guard._on_cpu = False  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(NonFiniteError, match=r"environment 5.*\(step 4\).*step_4_rank_0\.pt"):
        runner.learn(1)
    tensors = load_fault(tmp_path / "faults" / "step_4_rank_0.pt")["tensors"]
    assert tensors["observations.policy"].isnan().all(1).tolist() == [i == 5 for i in range(N)]
    assert torch.equal(tensors["rewards"], runner.alg.storage.rewards[3])
    assert torch.equal(tensors["index"], torch.arange(N) + 3 * N)


def test_after_a_failure_in_mid_rollout_learning_goes_on_with_new_episodes(tmp_path: Path) -> None:
    env = NanOnce(T + 4)
    runner = make_runner(tmp_path, env)
    with pytest.raises(NonFiniteError):
        runner.learn(2)
    assert runner.iteration == 1
    assert runner.learn(2) == "finished"
    assert [r["iteration"] for r in read_records(tmp_path / "metrics.jsonl")] == [0, 1, 2]
    assert env.count == T + 4 + 2 * T


def test_after_a_failure_in_mid_rollout_a_checkpoint_brings_the_run_back_exactly(tmp_path: Path) -> None:
    straight = make_runner()
    straight.learn(3)
    runner = make_runner(tmp_path, NanOnce(T + 4))
    with pytest.raises(NonFiniteError):
        runner.learn(3)
    runner.load(tmp_path)
    runner.learn(2)
    assert torch.equal(weights(runner), weights(straight))


# ------------------------------------------------------------------ guards go on where they were


class Broken(Extension):
    """Its loss is NaN while `is_broken`."""

    is_broken = False

    def loss(self, batch: Any, out: Any, policy: Any) -> dict[str, Tensor]:
        return {"Broken/loss": out.value.mean() * (math.nan if self.is_broken else 0.0)}


class Breaks(Hook):
    """In iterations 1 to 3."""

    def before_iteration(self, runner: OnPolicyRunner, iteration: int) -> None:
        Broken.is_broken = 1 <= iteration <= 3


@pytest.mark.filterwarnings("ignore:.*surefoot fault")
def test_a_run_resumed_among_skipped_updates_rolls_back_to_the_same_weights(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "on_skipped": "rollback",
        "extensions": [{"class_name": f"{__name__}:Broken"}],
        "hooks": [{"class_name": f"{__name__}:Breaks"}],
    }
    straight = make_runner(tmp_path / "a", **settings)
    with pytest.warns(UserWarning, match="12 updates in a row were skipped up to iteration 3.*going back"):
        straight.learn(6)
    make_runner(tmp_path / "b", **settings).learn(3)
    again = make_runner(tmp_path / "b", **settings)
    again.load(tmp_path / "b")
    with pytest.warns(UserWarning, match="12 updates in a row were skipped up to iteration 3.*going back"):
        again.learn(3)
    assert torch.equal(weights(again), weights(straight))


@pytest.mark.filterwarnings("ignore:.*surefoot fault")
@pytest.mark.parametrize("mode", ["stop", "rollback"])
def test_a_setting_is_not_advised_to_whom_has_it(mode: str) -> None:
    runner = make_runner(on_skipped=mode, extensions=[{"class_name": f"{__name__}:Broken"}])
    Broken.is_broken = True
    with pytest.raises(NonFiniteError, match="in a row") as error:
        runner.learn(9)
    assert ("on_skipped: rollback" in str(error.value)) == (mode == "stop")


def test_a_mask_before_a_checkpoint_is_judged_after_it() -> None:
    def guard() -> ActionMaskGuard:
        return ActionMaskGuard(gymnasium.spaces.Discrete(2), torch.device("cpu"))

    def step(mask: list[int], ended: bool) -> Step:
        observations = {"action_mask": torch.tensor([[1, 1], mask])}
        return Step(observations, torch.zeros(2), torch.tensor([False, ended]), torch.zeros(2).bool())

    first, second = guard(), guard()
    # allowed where the next row only resets; this one turns out to count
    last = step([0, 0], ended=True)
    first.check(last.observations, last)
    second.load_state_dict(first.state_dict())
    following = step([1, 0], ended=False)
    with pytest.raises(EnvContractError, match=r"environment 1 gave an action_mask.*at step 2"):
        second.check(following.observations, following)


# ------------------------------------------------------------------ limits of a whole run


def test_minutes_of_a_run_count_what_it_took_before_it_was_resumed(tmp_path: Path) -> None:
    make_runner(tmp_path).learn(1)
    again = make_runner(tmp_path, hooks=[{"class_name": "StopAfter", "run_minutes": 10}])
    again.load(tmp_path)
    again.wall_time_s += 600
    assert again.learn(5) == "stopped: 10 minutes"
    assert again.iteration == 2
    assert (tmp_path / "checkpoints" / "model_1.pt").exists()


def test_a_run_that_has_time_left_goes_on() -> None:
    runner = make_runner()
    runner.hooks.append(StopAfter(run_minutes=100.0))
    assert runner.learn(1) == "finished"
