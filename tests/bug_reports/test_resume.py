"""Public bug reports on resuming and on checkpoints: going on is as if one had never stopped. Each test
carries the number of its report.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from torch import Tensor

from surefoot.envs.gymnasium import GymnasiumVecEnv
from surefoot.errors import CheckpointError
from surefoot.networks.normalizers import RunningNormalizer
from surefoot.testing import GymTarget, TargetEnv
from surefoot.training.checkpoint import find_checkpoint, find_run, load_checkpoint, save_checkpoint
from surefoot.training.loggers import read_records
from surefoot.training.on_policy_runner import OnPolicyRunner
from surefoot.types import Step

N, T = 4, 32
NORMALISED = {"hidden_dims": [8], "obs_normalization": True}
SMALL: dict[str, Any] = {
    "num_steps_per_env": T,
    "max_iterations": 10,
    "actor": NORMALISED,
    "critic": NORMALISED,
    "algorithm": {"num_mini_batches": 2, "num_learning_epochs": 1},
    "logger": "none",
    "save_interval": 1,
}
LINEAR = {**SMALL["algorithm"], "schedule": "linear", "learning_rate": 1e-3}


def make_runner(run_dir: Path | None = None, environment: Any = None, **config: Any) -> OnPolicyRunner:
    return OnPolicyRunner(environment or TargetEnv(N, seed=3), SMALL | config, run_dir, quiet=True)


def resumed(run_dir: Path, environment: Any = None, **config: Any) -> OnPolicyRunner:
    runner = make_runner(run_dir, environment, **config)
    runner.load(run_dir)
    return runner


def assert_same(first: OnPolicyRunner, second: OnPolicyRunner) -> None:
    one, other = first.alg.state_dict(), second.alg.state_dict()
    assert one.keys() == other.keys()
    for name, x in one.items():
        assert torch.equal(x, other[name]), name


# ---------------------------------------------------------------------- C02: normalisers


def statistics(runner: OnPolicyRunner) -> dict[str, RunningNormalizer]:
    return {name: m for name, m in runner.alg.named_modules() if isinstance(m, RunningNormalizer)}


EVERYTHING: dict[str, Any] = {
    "critic": {**NORMALISED, "value_normalization": True},
    "env": {"reward_scaling": True},
}


def test_c02_every_normaliser_comes_back_with_its_count(tmp_path: Path) -> None:
    runner = make_runner(tmp_path, **EVERYTHING)
    runner.learn(20)
    again = resumed(tmp_path, **EVERYTHING)
    saved, loaded = statistics(runner), statistics(again)
    assert len(saved) >= 3  # observations, values, rewards
    assert saved.keys() == loaded.keys()
    for name, one in saved.items():
        assert one.count.item() == 20 * N * T, name
        for key, x in one.state_dict().items():
            assert torch.equal(x, loaded[name].state_dict()[key]), f"{name}.{key}"
    observations = TargetEnv(8).reset(seed=1)
    torch.testing.assert_close(
        again.policy.act(observations), runner.policy.act(observations), rtol=0, atol=1e-6
    )


def test_c02_the_next_batch_moves_the_mean_by_its_share_only(tmp_path: Path) -> None:
    class Shifted(TargetEnv):
        def observe(self) -> dict[str, Tensor]:
            return {g: x + 50 for g, x in super().observe().items()}

        state_dict = load_state_dict = property()  # pyright: ignore[reportAssignmentType]

    make_runner(tmp_path).learn(20)
    again = make_runner(None, Shifted(N))
    again.load(tmp_path)
    normalizer = again.policy.inputs.normalizers["actor"]
    mean, count = normalizer.mean.clone(), int(normalizer.count)
    again.learn(1)
    rows = again.alg.storage.observations["policy"][:-1].flatten(0, 1).double()
    assert int(normalizer.count) == count + N * T
    share = N * T / (count + N * T)
    torch.testing.assert_close(normalizer.mean, mean + share * (rows.mean(0) - mean), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("part", ["inputs.normalizers", "value_normalizer", "statistics"])
def test_c02_a_checkpoint_without_them_is_refused_by_name(tmp_path: Path, part: str) -> None:
    make_runner(tmp_path, **EVERYTHING).learn(1)
    file = tmp_path / "checkpoints" / "last.pt"
    state = load_checkpoint(file)
    tensors = state["algorithm"]["tensors"]
    gone = [name for name in tensors if part in name]
    assert gone
    for name in gone:
        del tensors[name]
    save_checkpoint(tmp_path / "without.pt", state)
    again = make_runner(**EVERYTHING)
    with pytest.raises(CheckpointError, match=rf"without\.pt: .*lacks '[^']*{part}"):
        again.load(tmp_path / "without.pt")


# ---------------------------------------------------------------------- C03: counting iterations


def test_c03_every_iteration_is_once_in_the_log_and_on_disk(tmp_path: Path) -> None:
    make_runner(tmp_path).learn(3)
    files = tmp_path / "checkpoints"
    old = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in files.glob("model_*.pt")}
    again = resumed(tmp_path)
    assert again.iteration == 3
    again.learn(2)
    assert again.iteration == 5
    assert [r["iteration"] for r in read_records(tmp_path / "metrics.jsonl")] == [0, 1, 2, 3, 4]
    assert sorted(p.name for p in files.glob("model_*.pt")) == [f"model_{i}.pt" for i in range(5)]
    assert {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in old} == old
    assert load_checkpoint(files / "model_4.pt")["iteration"] == 4


def test_c03_learn_twice_in_one_process_counts_two(tmp_path: Path) -> None:
    runner = make_runner(tmp_path)
    for done in (1, 2):
        runner.learn(1)
        assert runner.iteration == done
    records = read_records(tmp_path / "metrics.jsonl")
    assert [r["iteration"] for r in records] == [0, 1]
    assert [r["env_steps"] - records[0]["env_steps"] for r in records] == [0, N * T]
    assert {p.name for p in (tmp_path / "checkpoints").glob("model_*")} == {"model_0.pt", "model_1.pt"}


def test_c03_a_run_that_is_loaded_again_and_again_never_repeats_an_iteration(tmp_path: Path) -> None:
    make_runner(tmp_path).learn(1)
    for _ in range(3):
        resumed(tmp_path).learn(1)
    assert [r["iteration"] for r in read_records(tmp_path / "metrics.jsonl")] == [0, 1, 2, 3]


def test_c03_a_new_runner_that_loaded_nothing_does_not_write_over_a_run(tmp_path: Path) -> None:
    make_runner(tmp_path).learn(1)
    before = (tmp_path / "checkpoints" / "model_0.pt").read_bytes()
    with pytest.raises(CheckpointError, match="already holds a run"):
        make_runner(tmp_path).learn(1)
    assert (tmp_path / "checkpoints" / "model_0.pt").read_bytes() == before


# ---------------------------------------------------------------------- C04: counters of the environment


class Curriculum(TargetEnv):
    """A level and a step counter, which it saves."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.common_step_counter, self.level = 0, torch.zeros(num_envs, dtype=torch.int64)

    def step(self, actions: Tensor) -> Step:
        self.common_step_counter += 1
        self.level += 1
        return super().step(actions)

    def state_dict(self) -> dict[str, Any]:
        own = {"counter": self.common_step_counter, "level": self.level.clone()}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        self.common_step_counter, self.level = state["counter"], state["level"].clone()


def test_c04_counters_and_levels_of_the_environment_go_on(tmp_path: Path) -> None:
    env = Curriculum(N)
    runner = make_runner(tmp_path, env)
    runner.learn(1)
    env.common_step_counter = 123
    runner.save()
    fresh = Curriculum(N)
    again = resumed(tmp_path, fresh)
    assert fresh.common_step_counter == 123
    assert torch.equal(fresh.level, env.level)
    again.learn(1)
    assert fresh.common_step_counter == 123 + T


def test_c04_schedules_go_on(tmp_path: Path) -> None:
    config = {
        "algorithm": {
            **LINEAR,
            "clip_schedule": {"type": "linear", "final": 0.1},
            "entropy_coef": 0.01,
            "entropy_schedule": {"type": "linear", "final": 0.0},
        }
    }
    straight = make_runner(tmp_path / "a", **config)
    straight.learn(6)
    make_runner(tmp_path / "b", **config).learn(5)
    again = resumed(tmp_path / "b", **config)
    again.learn(1)
    for runner in (straight, again):
        # iteration 5 of 10: half way
        assert runner.metrics["Loss/learning_rate"] == pytest.approx(0.5e-3)
        assert runner.alg.objective.clip.item() == pytest.approx(0.15)
        assert runner.alg.entropy_coef == pytest.approx(0.005)
    assert_same(straight, again)


# ---------------------------------------------------------------------- C05: another device


def test_c05_a_checkpoint_of_an_accelerator_opens_on_the_cpu(tmp_path: Path) -> None:
    make_runner(tmp_path / "a").learn(1)
    file = tmp_path / "a" / "checkpoints" / "last.pt"
    state = load_checkpoint(file)
    state["device"] = "cuda"
    # the state of a CUDA generator: a seed and an offset
    state["algorithm"]["generators"] = {
        name: torch.zeros(16, dtype=torch.uint8) for name in state["algorithm"]["generators"]
    }
    save_checkpoint(file, state)
    again = make_runner()
    again.load(file)
    again.learn(1)
    assert again.iteration == 2


def test_c05_a_file_holds_no_device(tmp_path: Path) -> None:
    make_runner(tmp_path).learn(1)
    raw = torch.load(tmp_path / "checkpoints" / "last.pt", weights_only=True)  # without map_location
    assert raw["algorithm"]["tensors"]
    assert {x.device.type for x in raw["algorithm"]["tensors"].values()} == {"cpu"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_c05_from_gpu_to_cpu_and_back(tmp_path: Path) -> None:
    observations = TargetEnv(8).reset(seed=1)
    actions = []
    for device in ("cuda", "cpu", "cuda"):
        runner = OnPolicyRunner(TargetEnv(N), SMALL, device=device, quiet=True)
        if actions:
            runner.load(tmp_path / "last.pt")
            actions.append(runner.get_inference_policy()(observations).cpu())
            torch.testing.assert_close(actions[-1], actions[-2], rtol=0, atol=1e-5)
        runner.learn(1)
        runner.save(tmp_path / "last.pt")
        actions.append(runner.get_inference_policy()(observations).cpu())


# ---------------------------------------------------------------------- C07: the continuation

SCRIPT = """
import random, sys
from pathlib import Path
import numpy, torch
sys.path.insert(0, sys.argv[1])
from bug_reports import test_resume
seed = int(sys.argv[3])
random.seed(seed), numpy.random.seed(seed), torch.manual_seed(seed)
torch.set_num_threads(1)
runner = test_resume.resumed(Path(sys.argv[2]))
first = runner.alg.act(runner.observations) if len(sys.argv) > 4 else None
if first is not None:
    print(first.flatten().tolist())
else:
    runner.learn(2)
    torch.save(runner.alg.state_dict(), Path(sys.argv[2]) / "final.pt")
"""


def in_a_new_process(run: Path, seed: int, *more: str) -> str:
    command = [sys.executable, "-c", SCRIPT, str(Path(__file__).parents[1]), str(run), str(seed), *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_c07_in_new_processes_of_any_global_seed_the_run_goes_on_as_if_uninterrupted(tmp_path: Path) -> None:
    straight = make_runner(tmp_path / "a")
    straight.learn(2)
    assert straight.observations is not None
    copy = resumed(_copied(tmp_path / "a", tmp_path / "c"))
    assert copy.observations is not None
    expected = copy.alg.act(copy.observations).flatten().tolist()
    straight.learn(2)

    make_runner(tmp_path / "b").learn(2)
    assert in_a_new_process(tmp_path / "b", 7, "first") == f"{expected}\n"
    in_a_new_process(tmp_path / "b", 99)
    final = torch.load(tmp_path / "b" / "final.pt", weights_only=True)
    for name, x in straight.alg.state_dict().items():
        assert torch.equal(x, final[name]), name


def _copied(run: Path, target: Path) -> Path:
    shutil.copytree(run, target)
    return target


def test_c07_an_environment_of_gymnasium_with_state_goes_on_too(tmp_path: Path) -> None:
    def env() -> GymnasiumVecEnv:
        return GymnasiumVecEnv(SyncVectorEnv([GymTarget] * 4))

    straight = make_runner(tmp_path / "a", env())
    straight.learn(4)
    make_runner(tmp_path / "b", env()).learn(2)
    again = resumed(tmp_path / "b", env())
    again.learn(2)
    assert_same(straight, again)


# ---------------------------------------------------------------------- C08: schedules are data


@pytest.mark.parametrize("schedule", ["linear", {"type": "piecewise", "points": [[0, 1e-3], [10, 0.0]]}])
def test_c08_the_rate_at_an_iteration_does_not_depend_on_how_one_got_there(
    tmp_path: Path, schedule: Any
) -> None:
    config = {"algorithm": {**LINEAR, "schedule": schedule}, "save_interval": 0}
    once, twice = make_runner(tmp_path / "once", **config), make_runner(tmp_path / "twice", **config)
    once.learn(10)
    for _ in range(2):
        twice.learn(5)
    make_runner(tmp_path / "resumed", **config).learn(5)
    resumed(tmp_path / "resumed", **config).learn(5)
    curves = [
        [r["Loss/learning_rate"] for r in read_records(tmp_path / name / "metrics.jsonl")]
        for name in ("once", "twice", "resumed")
    ]
    assert curves[0] == curves[1] == curves[2]
    assert curves[0][0] == pytest.approx(1e-3)
    if schedule == "linear":
        assert curves[0] == pytest.approx([1e-3 * (1 - i / 10) for i in range(10)])
    assert_same(once, twice)


def test_c08_a_checkpoint_holds_no_code(tmp_path: Path) -> None:
    config = {"algorithm": {**LINEAR, "clip_schedule": {"type": "cosine", "final": 0.1}}}
    make_runner(tmp_path, **config).learn(1)
    raw = torch.load(tmp_path / "checkpoints" / "last.pt", weights_only=True)
    assert raw["config"]["algorithm"]["clip_schedule"]["type"] == "cosine"

    def kinds(value: Any) -> set[type]:
        inner = (
            value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
        )
        return {type(value)}.union(*(kinds(x) for x in inner))

    assert kinds(raw) <= {dict, list, tuple, str, bytes, int, float, bool, type(None), Tensor}


# ---------------------------------------------------------------------- C11: which file is the latest


def test_c11_latest_is_the_newest_run_with_a_checkpoint_and_numbers_are_numbers(tmp_path: Path) -> None:
    make_runner(tmp_path / "first").learn(1)
    source = tmp_path / "first" / "checkpoints" / "model_0.pt"
    runs = tmp_path / "logs" / "task"
    for i in (200, 1000):
        target = runs / "a" / "checkpoints" / f"model_{i}.pt"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    (runs / "b" / "checkpoints").mkdir(parents=True)  # newer, and empty
    (runs / "c").mkdir()
    (runs / "c_backup.zip").touch()
    os.utime(runs / "a", (1, 1))
    assert find_run("last", root=tmp_path / "logs").name == "a"
    assert find_checkpoint("last", root=tmp_path / "logs").name == "model_1000.pt"
    assert find_checkpoint(runs / "a").name == "model_1000.pt"
    assert find_checkpoint(runs / "a", 200).name == "model_200.pt"
    for run in ("b", "c"):
        with pytest.raises(CheckpointError, match=rf"{run} has no checkpoint yet; it holds"):
            find_checkpoint(runs / run)
    with pytest.raises(CheckpointError, match="no checkpoint of iteration 7; it has iterations 200, 1000"):
        find_checkpoint(runs / "a", 7)
    with pytest.raises(CheckpointError, match="no run with a checkpoint under"):
        find_run("last", root=runs / "b")


def test_c11_resuming_makes_no_directory_that_would_be_found_instead(tmp_path: Path) -> None:
    make_runner(tmp_path / "runs" / "task" / "one").learn(1)
    before = sorted(p for p in (tmp_path / "runs").rglob("*"))
    again = make_runner(find_run("last", root=tmp_path / "runs"))
    again.load(find_checkpoint("last", root=tmp_path / "runs"))
    assert sorted(p for p in (tmp_path / "runs").rglob("*")) == before
    again.learn(1)
    assert [p.name for p in (tmp_path / "runs" / "task").iterdir()] == ["one"]
