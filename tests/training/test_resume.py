"""A resumed run is the run that was never stopped."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor

from surefoot.errors import CheckpointError
from surefoot.testing import DiscreteTargetEnv, TargetEnv
from surefoot.training.checkpoint import load_checkpoint
from surefoot.training.hooks import Hook
from surefoot.training.loggers import read_records
from surefoot.training.on_policy_runner import OnPolicyRunner
from surefoot.types import Step

N = 64
CONFIG: dict[str, Any] = {
    "num_steps_per_env": 32,
    "max_iterations": 10,
    "actor": {"hidden_dims": [16], "obs_normalization": True},
    "critic": {"hidden_dims": [16], "obs_normalization": True},
    "algorithm": {"num_learning_epochs": 2, "num_mini_batches": 2, "compile": "off"},
    "logger": "none",
    "save_interval": 1,
}
TIMES = {"wall_time_s", "Perf/total_fps", "Perf/collection_time", "Perf/learning_time"}


def make_runner(run_dir: Path | None = None, environment: Any = None, **config: Any) -> OnPolicyRunner:
    return OnPolicyRunner(environment or TargetEnv(N, seed=3), CONFIG | config, run_dir, quiet=True)


def resumed(run_dir: Path, environment: Any = None, **config: Any) -> OnPolicyRunner:
    runner = make_runner(run_dir, environment, **config)
    runner.load(run_dir)
    return runner


def assert_same(a: OnPolicyRunner, b: OnPolicyRunner) -> None:
    """Every weight, moment, statistic and generator, bit for bit."""
    first, second = a.alg.state(), b.alg.state()

    def compare(x: Any, y: Any, path: str) -> None:
        if isinstance(x, Tensor):
            assert torch.equal(x, y), path
        elif isinstance(x, dict):
            assert x.keys() == y.keys(), path
            for key in x:
                compare(x[key], y[key], f"{path}.{key}")
        elif isinstance(x, list | tuple):
            for i, (p, q) in enumerate(zip(x, y, strict=True)):
                compare(p, q, f"{path}.{i}")
        else:
            assert x == y, path

    compare(first, second, "algorithm")
    assert {k: v for k, v in a.metrics.items() if k not in TIMES} == {
        k: v for k, v in b.metrics.items() if k not in TIMES
    }


LINEAR = {
    "num_learning_epochs": 2,
    "num_mini_batches": 2,
    "schedule": "linear",
    "clip_schedule": {"type": "cosine"},
}


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"algorithm": LINEAR},
        {"critic": {"hidden_dims": [16], "value_normalization": True}},
        {"env": {"reward_scaling": True}},
        {"algorithm": CONFIG["algorithm"] | {"policy_objective": "penalty", "schedule": "fixed"}},
        {"extensions": [{"class_name": "AuxiliaryPrediction", "target": "policy"}]},
        {"on_nonfinite": "quarantine", "network": "shared", "critic": {}},
    ],
    ids=["adaptive", "schedules", "popart", "reward scaling", "penalty", "auxiliary", "shared"],
)
def test_two_and_two_iterations_equal_four_bit_for_bit(tmp_path: Path, config: dict[str, Any]) -> None:
    straight = make_runner(tmp_path / "a", **config)
    straight.learn(4)
    make_runner(tmp_path / "b", **config).learn(2)
    torch.manual_seed(99)  # the global streams of a new process are not those of the old one
    again = resumed(tmp_path / "b", **config)
    again.learn(2)
    assert_same(straight, again)


def test_discrete_actions_continue_bit_for_bit(tmp_path: Path) -> None:
    straight = make_runner(tmp_path / "a", DiscreteTargetEnv(N, seed=3))
    straight.learn(4)
    make_runner(tmp_path / "b", DiscreteTargetEnv(N, seed=3)).learn(2)
    again = resumed(tmp_path / "b", DiscreteTargetEnv(N, seed=9))
    again.learn(2)
    assert_same(straight, again)


class GloballyNoisyEnv(TargetEnv):
    """Draws from the global streams, as users' environments do."""

    def step(self, actions: Tensor) -> Step:
        step = super().step(actions)
        step.rewards += torch.rand(self.num_envs) + float(np.random.rand()) + random.random()
        return step


def test_global_random_streams_are_restored(tmp_path: Path) -> None:
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    straight = make_runner(tmp_path / "a", GloballyNoisyEnv(N))
    straight.learn(3)
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    make_runner(tmp_path / "b", GloballyNoisyEnv(N)).learn(2)
    torch.manual_seed(2), np.random.seed(2), random.seed(2)
    again = resumed(tmp_path / "b", GloballyNoisyEnv(N))
    again.learn(1)
    assert_same(straight, again)


def test_every_iteration_is_once_in_the_log_and_on_disk(tmp_path: Path) -> None:
    make_runner(tmp_path, logger="tensorboard").learn(3)
    written = (tmp_path / "checkpoints" / "model_2.pt").stat().st_mtime_ns
    again = resumed(tmp_path, logger="tensorboard")
    again.learn(2)
    assert again.iteration == 5
    assert [r["iteration"] for r in read_records(tmp_path / "metrics.jsonl")] == [0, 1, 2, 3, 4]
    names = sorted(p.name for p in (tmp_path / "checkpoints").glob("model_*.pt"))
    assert names == [f"model_{i}.pt" for i in range(5)]
    assert (tmp_path / "checkpoints" / "model_2.pt").stat().st_mtime_ns == written
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [e.step for e in events.Scalars("Train/mean_reward")] == [0, 1, 2, 3, 4]
    assert len(json.loads((tmp_path / "manifest.json").read_text())["sessions"]) == 1


def test_an_abandoned_continuation_leaves_nothing(tmp_path: Path) -> None:
    make_runner(tmp_path, keep_checkpoints=9).learn(5)
    again = make_runner(tmp_path, keep_checkpoints=9)
    again.load(tmp_path / "checkpoints" / "model_1.pt")
    again.learn(1)
    assert [r["iteration"] for r in read_records(tmp_path / "metrics.jsonl")] == [0, 1, 2]
    names = sorted(p.name for p in (tmp_path / "checkpoints").glob("model_*.pt"))
    assert names == ["model_0.pt", "model_1.pt", "model_2.pt"]


def test_loading_without_learning_changes_no_file(tmp_path: Path) -> None:
    make_runner(tmp_path).learn(3)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    runner = make_runner(tmp_path)
    runner.load(tmp_path / "checkpoints" / "model_0.pt")
    runner.get_inference_policy()(TargetEnv(4).reset())
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_normalisers_counters_and_best_so_far_come_back(tmp_path: Path) -> None:
    runner = make_runner(tmp_path)
    runner.learn(3)
    observations = TargetEnv(8).reset(seed=1)
    again = resumed(tmp_path)
    assert (again.iteration, again.env_steps) == (runner.iteration, runner.env_steps)
    assert again.env_steps == 3 * N * 32 + 1024
    assert again.checkpoints.best == runner.checkpoints.best
    assert again.wall_time_s == pytest.approx(runner.wall_time_s)
    assert torch.equal(again.policy.act(observations), runner.policy.act(observations))
    normalizer = again.policy.inputs.normalizers["actor"]
    assert int(normalizer.count) == 3 * N * 32  # the warm-up is not counted
    mean = normalizer.mean.clone()
    again.policy.inputs.update({"policy": torch.full((100, 3), 50.0)})
    share = 100 / (3 * N * 32 + 100)
    assert torch.allclose(normalizer.mean, mean + share * (50 - mean))


class Counting(Hook):
    """Has a state of its own."""

    def __init__(self) -> None:
        self.total = 0

    def after_iteration(self, runner: OnPolicyRunner, metrics: dict[str, Any]) -> None:
        self.total += 1

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total}

    def load_state_dict(self, state: Any) -> None:
        self.total = state["total"]


def test_hooks_go_on_where_they_were(tmp_path: Path) -> None:
    hooks = [{"class_name": f"{__name__}:Counting"}]
    make_runner(tmp_path, hooks=hooks).learn(2)
    again = resumed(tmp_path, hooks=[{"class_name": "StopAfter", "minutes": 9}, *hooks])
    again.learn(1)
    assert [h.total for h in again.hooks if isinstance(h, Counting)] == [3]


class Stateless(TargetEnv):
    """Cannot say where it is."""

    state_dict = load_state_dict = property()  # pyright: ignore[reportAssignmentType]


def test_an_environment_without_state_starts_new_episodes(tmp_path: Path) -> None:
    make_runner(tmp_path, Stateless(N)).learn(1)
    assert load_checkpoint(tmp_path / "checkpoints" / "last.pt")["env"] is None
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["determinism"] == "seeded"
    runs = []
    for seed in (1, 2):
        again = make_runner(None, Stateless(N, seed=seed))
        again.load(tmp_path)
        again.learn(1)
        runs.append(again)
    assert_same(*runs)  # the reset is seeded: repeatable, if not the same as going on


def test_another_number_of_environments_is_possible_and_said(tmp_path: Path) -> None:
    make_runner(tmp_path / "a").learn(1)
    again = make_runner(None, TargetEnv(N // 2))
    with pytest.warns(UserWarning, match="the checkpoint is of 64 environments, this run has 32"):
        again.load(tmp_path / "a")
    again.learn(1)
    assert again.iteration == 2


@pytest.mark.parametrize(
    ("environment", "config", "message"),
    [
        (TargetEnv(N, dim=5), {}, r"group 'policy' of shape \(3,\), the environment has it of shape \(5,\)"),
        (
            TargetEnv(N, groups=("other",)),
            {},
            r"group 'policy' of shape \(3,\), the environment has it absent",
        ),
        (TargetEnv(N, num_actions=2, dim=3), {}, "made with actions .*, the environment takes"),
        (TargetEnv(N), {"actor": {"hidden_dims": [32], "obs_normalization": True}}, r"has shape \(16, 3\)"),
        (
            TargetEnv(N),
            {"actor": {"hidden_dims": [16]}, "critic": {"hidden_dims": [16]}},
            "holds .*normalizers",
        ),
    ],
    ids=["other width", "other group", "other actions", "other network", "without a normaliser"],
)
def test_what_does_not_fit_is_refused_in_one_line(
    tmp_path: Path, environment: Any, config: dict[str, Any], message: str
) -> None:
    make_runner(tmp_path).learn(1)
    other = make_runner(None, environment, **config)
    before = {k: v.clone() for k, v in other.alg.state_dict().items()}
    with pytest.raises(CheckpointError, match=rf"last\.pt: .*{message}") as error:
        other.load(tmp_path)
    assert "\n" not in str(error.value)
    assert all(torch.equal(v, before[k]) for k, v in other.alg.state_dict().items())
    assert other.iteration == 0


def test_a_setting_that_changes_what_the_weights_mean_is_warned_of(tmp_path: Path) -> None:
    make_runner(tmp_path).learn(1)
    other = make_runner(critic={"hidden_dims": [16]})
    with pytest.warns(UserWarning, match="obs_normalization is False here and was True"):
        other.load(tmp_path)


def test_a_run_does_not_go_on_in_the_directory_of_another(tmp_path: Path) -> None:
    for name in "ab":
        make_runner(tmp_path / name).learn(1)
    runner = make_runner(tmp_path / "a")
    runner.load(tmp_path / "b")
    with pytest.raises(CheckpointError, match="already holds a run"):
        runner.learn(1)


def test_a_checkpoint_from_elsewhere_starts_a_run_of_its_own(tmp_path: Path) -> None:
    make_runner(tmp_path / "a").learn(2)
    runner = make_runner(tmp_path / "b")
    runner.load(tmp_path / "a")
    runner.learn(1)
    assert [r["iteration"] for r in read_records(tmp_path / "b" / "metrics.jsonl")] == [2]


def test_saving_and_loading_in_the_middle_of_a_process(tmp_path: Path) -> None:
    straight, other = make_runner(), make_runner(tmp_path / "run")
    straight.learn(3)
    other.learn(2)
    file = other.save(tmp_path / "kept.pt")
    other.learn(2)
    other.load(file)
    other.learn(1)
    assert_same(straight, other)


# ------------------------------------------------------------------ signals

SCRIPT = textwrap.dedent(
    """
    import sys, time
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    import test_resume
    from surefoot.training.hooks import Hook

    class Ready(Hook):
        def before_iteration(self, runner, iteration):
            if iteration == 1:
                print("ready", flush=True)
                time.sleep(0.5)

    runner = test_resume.make_runner(Path(sys.argv[2]), save_interval=0)
    runner.hooks.append(Ready())
    print(runner.learn(100000), runner.iteration, flush=True)
    """
)


def test_a_signal_saves_and_ends_and_the_run_goes_on_exactly(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(Path(__file__).parent), str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert output == "interrupted 2\n"
    assert "Traceback" not in errors
    assert load_checkpoint(tmp_path / "run" / "checkpoints" / "last.pt")["iteration"] == 1
    assert len(read_records(tmp_path / "run" / "metrics.jsonl")) == 2
    straight = make_runner()
    straight.learn(3)
    again = resumed(tmp_path / "run")
    again.learn(1)
    assert_same(straight, again)


def test_the_second_signal_ends_at_once_and_handlers_come_back() -> None:
    class TwoSignals(Hook):
        def before_iteration(self, runner: OnPolicyRunner, iteration: int) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            assert runner.is_interrupted
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    runner = make_runner()
    runner.hooks.append(TwoSignals())
    with pytest.raises(KeyboardInterrupt):
        runner.learn(1)
    assert signal.getsignal(signal.SIGINT) == before


def test_an_interrupt_skips_the_final_evaluation(tmp_path: Path) -> None:
    class OneSignal(Hook):
        def before_iteration(self, runner: OnPolicyRunner, iteration: int) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    config = CONFIG | {"eval_episodes": 4, "eval_interval": 1}
    runner = OnPolicyRunner(TargetEnv(N), config, tmp_path, eval_env=TargetEnv(4), quiet=True)
    runner.hooks.append(OneSignal())
    assert runner.learn(5) == "interrupted"
    assert runner.iteration == 1
    assert "Eval/mean_reward" not in runner.metrics
    assert (tmp_path / "checkpoints" / "last.pt").exists()


def test_training_works_outside_of_the_main_thread() -> None:
    reasons: list[str] = []
    thread = threading.Thread(target=lambda: reasons.append(make_runner().learn(1)))
    thread.start()
    thread.join(timeout=60)
    assert reasons == ["finished"]
