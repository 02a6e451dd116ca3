"""Checkpoints when something goes wrong: full disks, damage, killed runs, abandoned lines, other versions."""

from __future__ import annotations

import json
import math
import os
import pickle
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from ranks import run_ranks
from surefoot import distributed
from surefoot.algorithm.state import collect_state, restore_state
from surefoot.errors import CheckpointError, SurefootError
from surefoot.testing import TargetEnv
from surefoot.training.checkpoint import FORMAT, find_checkpoint, load_checkpoint, save_checkpoint
from surefoot.training.env_spec import check_spec, spec_to_data
from surefoot.training.hooks import Hook
from surefoot.training.migrate import MIGRATIONS
from surefoot.training.on_policy_runner import OnPolicyRunner
from surefoot.types import EnvSpec

N = 64
CONFIG: dict[str, Any] = {
    "num_steps_per_env": 32,
    "actor": {"hidden_dims": [8]},
    "critic": {"hidden_dims": [8]},
    "algorithm": {"num_learning_epochs": 1, "num_mini_batches": 1},
    "logger": "none",
    "save_interval": 1,
    "keep_checkpoints": 9,
}
SPACES = gymnasium.spaces


class Scripted(Hook):
    """Says how good the policy is."""

    def __init__(self, values: list[float]) -> None:
        self.values = values

    def after_iteration(self, runner: OnPolicyRunner, metrics: dict[str, Any]) -> None:
        metrics["Train/mean_reward"] = self.values[metrics["iteration"]]


def make_runner(run_dir: Path | None, values: list[float] | None = None, **config: Any) -> OnPolicyRunner:
    environment = config.pop("environment", None) or TargetEnv(N, seed=3)
    runner = OnPolicyRunner(environment, CONFIG | config, run_dir, quiet=True)
    runner.hooks.append(Scripted(values or [math.nan] * 20))
    return runner


def train(run_dir: Path, iterations: int, values: list[float] | None = None, **config: Any) -> OnPolicyRunner:
    runner = make_runner(run_dir, values, **config)
    runner.learn(iterations)
    return runner


def names(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


def iteration_in(run_dir: Path, name: str) -> int:
    return load_checkpoint(run_dir / "checkpoints" / name)["iteration"]


class Disk:
    """Refuses to write the files whose name matches `full`, `times` times."""

    def __init__(self, full: str | None = None, times: int = 99) -> None:
        self.full, self.times = full, times
        self.refused: list[str] = []
        self._replace = os.replace

    def replace(self, source: Path, target: Path) -> None:
        is_full = self.full is not None and re.fullmatch(self.full, Path(target).name)
        if is_full and len(self.refused) < self.times:
            self.refused.append(Path(target).name)
            raise OSError(28, os.strerror(28))
        self._replace(source, target)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(os, "replace", disk.replace)
    return disk


class FullAt(Hook):
    """The disk is full from one iteration to another."""

    def __init__(self, disk: Disk, full: str, first: int, end: int = 99) -> None:
        self.disk, self.full, self.first, self.end = disk, full, first, end

    def before_iteration(self, runner: OnPolicyRunner, iteration: int) -> None:
        self.disk.full = self.full if self.first <= iteration < self.end else None


# ------------------------------------------------------------------ full disks


def test_a_full_disk_is_said_and_the_old_files_stay_and_training_goes_on(tmp_path: Path, disk: Disk) -> None:
    runner = make_runner(tmp_path)
    runner.hooks.append(FullAt(disk, "model_1.pt", 1, 2))
    with pytest.warns(UserWarning, match=r"model_1\.pt: No space left on device\. .*last\.pt\. Training"):
        runner.learn(3)
    assert names(tmp_path) == ["last.pt", "model_0.pt", "model_2.pt"]
    assert iteration_in(tmp_path, "last.pt") == 2


def test_a_file_that_cannot_be_replaced_stays_and_the_message_says_so(tmp_path: Path, disk: Disk) -> None:
    train(tmp_path, 1)
    before = (tmp_path / "checkpoints" / "last.pt").read_bytes()
    runner = make_runner(tmp_path)
    runner.load(tmp_path)
    disk.full = "last.pt"
    with pytest.raises(
        CheckpointError, match=r"No space left on device\. The file that was there stays\. .*model_0"
    ):
        runner.save()
    assert (tmp_path / "checkpoints" / "last.pt").read_bytes() == before


def test_a_disk_that_ends_in_the_middle_of_a_file_leaves_the_old_one(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    path = tmp_path / "last.pt"
    save_checkpoint(path, {"a": 1})
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(
            CheckpointError, match=r"cannot write .*last\.pt: File too large\. The file .* stays"
        ) as error:
            save_checkpoint(path, {"a": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(error.value)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["last.pt"]


def test_a_full_disk_at_the_very_end_is_a_failed_run_and_no_bad_input(tmp_path: Path, disk: Disk) -> None:
    runner = make_runner(tmp_path, save_interval=0)
    disk.full = r"model_\d+.pt"
    with pytest.raises(SurefootError, match=r"the run is over.*model_1\.pt: No space left") as error:
        runner.learn(2)
    # the command line makes exit code 2 of a CheckpointError, and 1 of others
    assert not isinstance(error.value, CheckpointError)
    assert "\n" not in str(error.value)


def test_what_failed_in_the_last_iteration_is_tried_again_at_the_end(tmp_path: Path, disk: Disk) -> None:
    runner = make_runner(tmp_path)
    runner.hooks.append(FullAt(disk, "last.pt", 1))
    disk.times = 1
    with pytest.warns(UserWarning, match="last.pt: No space"):
        runner.learn(2)
    assert disk.refused == ["last.pt"]
    assert iteration_in(tmp_path, "last.pt") == 1


def test_old_checkpoints_go_before_the_copy_that_the_disk_may_refuse(tmp_path: Path, disk: Disk) -> None:
    runner = make_runner(tmp_path, keep_checkpoints=2)
    runner.hooks.append(FullAt(disk, "last.pt", 3))
    with (
        pytest.warns(UserWarning, match="last.pt"),
        pytest.raises(SurefootError, match=r"last\.pt.*model_4\.pt"),
    ):
        runner.learn(5)
    assert names(tmp_path) == ["last.pt", "model_3.pt", "model_4.pt"]
    assert iteration_in(tmp_path, "last.pt") == 2


def test_pruning_spares_the_file_just_written(tmp_path: Path) -> None:
    train(tmp_path, 4)
    runner = make_runner(tmp_path, keep_checkpoints=1)
    runner.load(tmp_path / "checkpoints" / "model_1.pt")
    assert runner.save().is_file()
    assert iteration_in(tmp_path, "last.pt") == 1


class FullAtTheEnd(Hook):
    """On process 0 the last numbered file cannot be written, `times` times."""

    def __init__(self, times: int) -> None:
        self.disk = Disk(r"model_1\.pt", times)

    def on_start(self, runner: OnPolicyRunner) -> None:
        if distributed.is_main():
            os.replace = self.disk.replace


def run_in_two_processes(rank: int, directory: Path) -> None:
    warnings.simplefilter("ignore")
    again = make_runner(directory / "again")
    again.hooks.append(FullAtTheEnd(1))
    assert again.learn(2) == "finished"
    never = make_runner(directory / "never")
    never.hooks.append(FullAtTheEnd(99))
    with pytest.raises(SurefootError, match="the run is over"):
        never.learn(2)
    # an abandoned line, with no file of the iteration gone on with
    if rank == 0:
        (directory / "again" / "checkpoints" / "model_0.pt").rename(directory / "again" / "model_0.pt")
    distributed.gather_objects(None)
    other = make_runner(directory / "again")
    other.load(directory / "again" / "model_0.pt")
    other.learn(0)


def test_all_processes_decide_alike_when_process_0_cannot_write(tmp_path: Path) -> None:
    run_ranks(run_in_two_processes, tmp_path)
    assert "model_1.pt" not in names(tmp_path / "never")
    assert iteration_in(tmp_path / "again", "last.pt") == 0


# ------------------------------------------------------------------ best.pt


def test_a_best_that_could_not_be_written_is_not_remembered(tmp_path: Path, disk: Disk) -> None:
    runner = make_runner(tmp_path, [1.0, 5.0, 3.0])
    runner.hooks.append(FullAt(disk, "best.pt", 1, 2))
    with pytest.warns(UserWarning, match="best.pt: No space left"):
        runner.learn(3)
    assert runner.checkpoints.best == {"value": 3.0, "iteration": 2}
    assert iteration_in(tmp_path, "best.pt") == 2
    assert load_checkpoint(tmp_path / "checkpoints" / "best.pt")["best"] == runner.checkpoints.best


def test_interval_zero_writes_no_file_before_the_end(tmp_path: Path) -> None:
    seen: list[list[str]] = []

    class Look(Hook):
        def before_iteration(self, runner: OnPolicyRunner, iteration: int) -> None:
            seen.append(names(tmp_path))

    runner = make_runner(tmp_path, [1.0, 5.0, 3.0], save_interval=0)
    runner.hooks.append(Look())
    runner.learn(3)
    assert seen == [[], [], []]
    assert names(tmp_path) == ["best.pt", "last.pt", "model_2.pt"]
    assert iteration_in(tmp_path, "best.pt") == 1
    assert runner.checkpoints.best == {"value": 5.0, "iteration": 1}


# ------------------------------------------------------------------ an abandoned line


def killed_after_start(run_dir: Path, file: Path, **config: Any) -> OnPolicyRunner:
    """Go on from `file` and end before anything is saved."""

    class Kill(Hook):
        def before_iteration(self, runner: OnPolicyRunner, iteration: int) -> None:
            raise RuntimeError("killed")

    runner = make_runner(run_dir, **config)
    runner.load(file)
    runner.hooks.append(Kill())
    with pytest.raises(RuntimeError, match="killed"):
        runner.learn(1)
    return runner


def test_a_run_killed_before_its_next_save_does_not_go_back_to_the_abandoned_line(tmp_path: Path) -> None:
    train(tmp_path, 4, [0.0, 1.0, 2.0, 3.0])
    model = tmp_path / "checkpoints" / "model_1.pt"
    runner = killed_after_start(tmp_path, model)
    assert names(tmp_path) == ["last.pt", "model_0.pt", "model_1.pt"]
    assert find_checkpoint(tmp_path).read_bytes() == model.read_bytes()
    assert runner.checkpoints.best == {"value": None, "iteration": None}
    again = make_runner(tmp_path)
    again.load(tmp_path)
    assert again.iteration == 2


def test_a_run_that_starts_anew_in_its_directory_leaves_nothing_of_its_first_start(tmp_path: Path) -> None:
    train(tmp_path, 2, [0.0, 1.0])
    runner = make_runner(tmp_path)
    runner.is_continued = True  # as where torchrun restarts a launch
    runner.learn(0)
    assert names(tmp_path) == []


def test_a_best_of_before_the_fork_stays(tmp_path: Path) -> None:
    train(tmp_path, 4, [0.0, 9.0, 2.0, 3.0])
    runner = killed_after_start(tmp_path, tmp_path / "checkpoints" / "model_2.pt")
    assert iteration_in(tmp_path, "best.pt") == 1
    assert runner.checkpoints.best == {"value": 9.0, "iteration": 1}


def test_going_on_from_the_best_makes_it_the_last(tmp_path: Path) -> None:
    train(tmp_path, 4, [0.0, 9.0, 2.0, 3.0], save_interval=0)
    best = tmp_path / "checkpoints" / "best.pt"
    runner = killed_after_start(tmp_path, best, save_interval=0)
    assert names(tmp_path) == ["best.pt", "last.pt"]
    assert find_checkpoint(tmp_path).read_bytes() == best.read_bytes()
    assert runner.checkpoints.best == {"value": 9.0, "iteration": 1}


def test_going_on_from_a_file_kept_elsewhere_makes_its_state_the_last(tmp_path: Path) -> None:
    runner = train(tmp_path / "run", 2)
    kept = runner.save(tmp_path / "kept.pt")
    runner.learn(2)
    (tmp_path / "run" / "checkpoints" / "model_1.pt").unlink()
    runner.load(kept)
    runner.learn(0)
    saved, expected = load_checkpoint(find_checkpoint(tmp_path / "run")), load_checkpoint(kept)
    assert saved["iteration"] == expected["iteration"] == 1
    assert all(
        torch.equal(x, expected["algorithm"]["tensors"][name])
        for name, x in saved["algorithm"]["tensors"].items()
    )


def test_going_on_from_the_last_leaves_it_as_it_is(tmp_path: Path) -> None:
    train(tmp_path, 2, [0.0, 1.0])
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "checkpoints").iterdir()}
    runner = killed_after_start(tmp_path, tmp_path)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "checkpoints").iterdir()} == before
    assert runner.checkpoints.best == {"value": 1.0, "iteration": 1}


def test_temporary_files_of_killed_runs_go_and_those_of_living_processes_stay(tmp_path: Path) -> None:
    train(tmp_path, 1)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    folder = tmp_path / "checkpoints"
    stale, alive = folder / f".model_3.pt.{dead.pid}.tmp", folder / f".last.pt.{os.getppid()}.tmp"
    foreign = folder / ".notes.tmp"
    for path in (stale, alive, foreign):
        path.touch()
    runner = make_runner(tmp_path)
    runner.load(tmp_path)
    runner.learn(1)
    assert not stale.exists()
    assert alive.exists()
    assert foreign.exists()


def test_a_rename_is_flushed_with_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[bool] = []
    fsync = os.fsync

    def watch(descriptor: int) -> None:
        is_directory = os.path.isdir(f"/proc/self/fd/{descriptor}")
        flushed.append(is_directory and (tmp_path / "a.pt").exists())
        fsync(descriptor)

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc")
    monkeypatch.setattr(os, "fsync", watch)
    save_checkpoint(tmp_path / "a.pt", {"a": 1})
    assert flushed == [False, True]


# ------------------------------------------------------------------ what does not fit changes nothing


def everything_of(runner: OnPolicyRunner) -> bytes:
    return pickle.dumps(json.dumps(runner.alg.state(), default=lambda x: np.asarray(x.cpu()).tolist()))


def drop_generators(state: dict[str, Any]) -> None:
    state["algorithm"]["generators"] = {}


def spoil_generator(state: dict[str, Any]) -> None:
    generators = state["algorithm"]["generators"]
    generators[next(iter(generators))] = torch.zeros(7, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("algorithm", "change", "message"),
    [
        ({"optimizer": "sgd"}, None, "is Adam in the checkpoint and SGD here"),
        (
            {"critic_learning_rate": 1e-4},
            None,
            r"has groups of \[1\] parameters in the checkpoint and of \[1, 1\]",
        ),
        ({}, drop_generators, "lacks the generator"),
        ({}, spoil_generator, "the generator '.*' cannot take its state"),
        ({}, lambda state: state["algorithm"].update(iteration="x"), "'iteration' = 'x'; expected a count"),
        ({}, lambda state: state["algorithm"].pop("max_iterations"), "'max_iterations' = None"),
    ],
    ids=["another optimiser", "other groups", "no generator", "a broken generator", "no count", "no horizon"],
)
def test_a_refused_checkpoint_leaves_everything_as_it_was(
    tmp_path: Path, algorithm: dict[str, Any], change: Callable[[dict[str, Any]], None] | None, message: str
) -> None:
    file = train(tmp_path, 1).save(tmp_path / "kept.pt")
    if change is not None:
        state = load_checkpoint(file)
        change(state)
        save_checkpoint(file, state)
    runner = make_runner(None, algorithm=CONFIG["algorithm"] | algorithm, seed=5)
    before = everything_of(runner)
    with pytest.raises(CheckpointError, match=message) as error:
        runner.load(file)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)
    assert everything_of(runner) == before


def test_a_number_in_the_place_of_a_tensor_is_named() -> None:
    module = nn.Linear(2, 1)
    state = collect_state(module)
    state["tensors"]["bias"] = 3
    with pytest.raises(CheckpointError, match="'bias' is of type int"):
        restore_state(module, state)


def spec(action: gymnasium.Space[Any], observation: gymnasium.Space[Any] | None = None) -> EnvSpec:
    return EnvSpec({"policy": observation or SPACES.Box(-1, 1, (2,))}, action, N)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (SPACES.Box(-1, 1, (2,)), SPACES.Box(-1, 2, (2,))),
        (SPACES.Box(-1, 1, (2,)), SPACES.Box(-3, 1, (2,))),
        (SPACES.Box(-1, 1, (2,)), SPACES.Box(-np.inf, np.inf, (2,))),
        (SPACES.Discrete(3), SPACES.Discrete(4)),
        (SPACES.Discrete(3), SPACES.Discrete(3, start=1)),
        (SPACES.MultiDiscrete([3, 4]), SPACES.MultiDiscrete([3, 5])),
        (SPACES.MultiDiscrete([3, 4]), SPACES.MultiDiscrete([3, 4], start=[0, 1])),
        (SPACES.MultiBinary(2), SPACES.MultiDiscrete([2, 2])),
        (SPACES.Discrete(100_000), SPACES.Discrete(100_001)),
    ],
    ids=str,
)
def test_other_actions_of_the_same_shape_are_refused_and_both_are_named(
    before: gymnasium.Space[Any], now: gymnasium.Space[Any]
) -> None:
    for space in (before, now):
        check_spec(spec_to_data(spec(space)), spec(space))
    with pytest.raises(CheckpointError) as error:
        check_spec(spec_to_data(spec(before)), spec(now))
    assert f"with actions {before}, the environment takes {now}" in str(error.value)


def test_a_dtype_or_a_class_of_its_own_makes_no_other_actions() -> None:
    class OwnBox(SPACES.Box):
        pass

    before = spec_to_data(spec(SPACES.Box(-0.1, 0.1, (2,), np.float64)))
    check_spec(before, spec(OwnBox(-0.1, 0.1, (2,), np.float32)))


def test_an_environment_with_other_action_bounds_cannot_go_on_with_a_run(tmp_path: Path) -> None:
    train(tmp_path, 1)
    environment = TargetEnv(N)
    environment.action_space = SPACES.Box(-2.0, 2.0, (1,))
    runner = make_runner(None, environment=environment)
    with pytest.raises(CheckpointError, match=r"last\.pt: .*Box\(-1\.0, 1\.0.*takes Box\(-2\.0, 2\.0"):
        runner.load(tmp_path)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (SPACES.Discrete(3), SPACES.Discrete(4)),
        (SPACES.MultiDiscrete([3, 4]), SPACES.MultiDiscrete([4, 3])),
        (SPACES.MultiDiscrete([3, 4]), SPACES.Box(-1, 1, (2,))),
    ],
    ids=str,
)
def test_observations_with_other_counts_are_refused(
    before: gymnasium.Space[Any], now: gymnasium.Space[Any]
) -> None:
    action = SPACES.Box(-1, 1, (2,))
    with pytest.raises(CheckpointError, match="observation group 'policy' as "):
        check_spec(spec_to_data(spec(action, before)), spec(action, now))


def test_bounds_of_observations_may_differ() -> None:
    action = SPACES.Box(-1, 1, (2,))
    before = spec(action, SPACES.Box(-1, 1, (2,)))
    check_spec(spec_to_data(before), spec(action, SPACES.Box(-9, np.inf, (2,))))


# ------------------------------------------------------------------ damage


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two iterations; tests copy what they change."""
    directory = tmp_path_factory.mktemp("run")
    train(directory, 2)
    return directory


def flips(size: int) -> Iterator[tuple[int, int]]:
    """Where to flip which bit: all over the file, and each byte of its directory at the end."""
    random = np.random.default_rng(0)
    for at in random.integers(0, size, 150):
        yield int(at), int(random.integers(8))
    for at in random.choice(min(size, 3000), 250, replace=False):
        yield size - 1 - int(at), int(random.integers(8))


def test_no_flipped_bit_escapes_as_another_error(run: Path, tmp_path: Path) -> None:
    good = (run / "checkpoints" / "last.pt").read_bytes()
    (tmp_path / "model_1.pt").write_bytes(good)
    path, refused = tmp_path / "last.pt", 0
    for at, bit in flips(len(good)):
        data = bytearray(good)
        data[at] ^= 1 << bit
        path.write_bytes(data)
        try:
            load_checkpoint(path)
        except CheckpointError as error:
            refused += 1
            message = str(error)
            assert re.search(r"last\.pt is (damaged|cut off) .*model_1\.pt\.$", message), (at, bit, message)
            assert "\n" not in message
    assert refused > 200


def test_a_flipped_bit_that_makes_a_directory_of_a_tensor_is_found(run: Path, tmp_path: Path) -> None:
    data = bytearray((run / "checkpoints" / "last.pt").read_bytes())
    # in the entry of the archive's directory the external attributes stand 8 bytes before the name
    data[data.rindex(b"/data/0PK") - len("archive") - 8] ^= 0x10
    (tmp_path / "last.pt").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"last\.pt is damaged"):
        load_checkpoint(tmp_path / "last.pt")


@pytest.mark.parametrize(
    "fault",
    [
        NotImplementedError("compression type 99"),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "invalid start byte"),
        OSError(22, "Invalid argument"),
        MemoryError(),
    ],
    ids=lambda fault: type(fault).__name__,
)
def test_whatever_the_reader_raises_is_damage(
    run: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise fault

    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(CheckpointError, match=r"last\.pt is damaged \(.*model_1\.pt") as error:
        load_checkpoint(run / "checkpoints" / "last.pt")
    assert "\n" not in str(error.value)


# ------------------------------------------------------------------ other layouts


def rewritten(run: Path, target: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The run's last checkpoint with a change to its raw content."""
    data = torch.load(run / "checkpoints" / "last.pt", weights_only=True)
    change(data)
    torch.save(data, target)
    return target


@pytest.mark.parametrize("version", ["2", 0, -1, 1.0, True, None, "x" * 999])
def test_a_format_that_is_no_number_from_1_is_refused(run: Path, tmp_path: Path, version: Any) -> None:
    path = rewritten(run, tmp_path / "odd.pt", lambda data: data.update(format=version))
    with pytest.raises(
        CheckpointError, match=r"odd\.pt is not a Surefoot checkpoint: its format is"
    ) as error:
        load_checkpoint(path)
    assert len(str(error.value)) < 300 + len(str(path))


@pytest.mark.parametrize(
    "key", ["processes", "config", "task", "iteration", "spec", "best", "rng", "num_envs"]
)
@pytest.mark.parametrize("version", range(1, FORMAT + 1))
def test_a_missing_entry_is_named_with_the_file(run: Path, tmp_path: Path, key: str, version: int) -> None:
    def change(data: dict[str, Any]) -> None:
        data["format"] = version
        del data[key]

    path = rewritten(run, tmp_path / "odd.pt", change)
    with pytest.raises(CheckpointError, match=rf"odd\.pt is not a complete checkpoint: it lacks '{key}'"):
        load_checkpoint(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("algorithm", 3),
        ("config", "text"),
        ("processes", None),
        ("processes", [3]),
        ("processes", [{}]),
        ("env", {"__numpy__": 3}),
        ("env", {"__numpy__": torch.zeros(1, dtype=torch.bfloat16)}),
    ],
    ids=str,
)
@pytest.mark.parametrize("version", range(1, FORMAT + 1))
def test_an_entry_of_another_kind_is_one_line_with_the_file(
    run: Path, tmp_path: Path, key: str, value: Any, version: int
) -> None:
    path = rewritten(run, tmp_path / "odd.pt", lambda data: data.update({key: value, "format": version}))
    with pytest.raises(CheckpointError, match=r"odd\.pt is not a complete checkpoint: it") as error:
        load_checkpoint(path)
    assert "\n" not in str(error.value)


def test_each_older_format_has_a_step_to_the_next() -> None:
    assert sorted(MIGRATIONS) == list(range(1, FORMAT))


def test_a_checkpoint_of_format_1_goes_on_as_one_of_today(tmp_path: Path) -> None:
    straight = train(tmp_path / "a", 2)
    train(tmp_path / "b", 1)

    def to_format_1(data: dict[str, Any]) -> None:
        data["format"] = 1
        del data["algorithm"]["hidden"]
        # as a run of two processes would have it
        data["processes"] = [{"num_envs": N, "local": {"is_first": torch.zeros(N, dtype=torch.bool)}}]

    path = rewritten(tmp_path / "b", tmp_path / "old.pt", to_format_1)
    state = load_checkpoint(path)
    assert state["format"] == FORMAT
    assert state["algorithm"]["hidden"] == state["processes"][0]["local"]["hidden"] == {}

    path = rewritten(tmp_path / "b", path, lambda data: (to_format_1(data), data.update(processes=[])))
    again = make_runner(None)
    again.load(path)
    again.learn(1)
    assert everything_of(again) == everything_of(straight)


def test_a_checkpoint_of_format_2_goes_on_as_one_of_today(tmp_path: Path) -> None:
    straight = train(tmp_path / "a", 2)
    train(tmp_path / "b", 1)

    def to_format_2(data: dict[str, Any]) -> None:
        del data["masks"], data["skips"]["has_good"], data["skips"]["good"]
        data["format"] = 2

    again = make_runner(None)
    again.load(rewritten(tmp_path / "b", tmp_path / "old.pt", to_format_2))
    again.learn(1)
    assert everything_of(again) == everything_of(straight)


# ------------------------------------------------------------------ hostile files


class Attack:
    """Unpickling this would create a directory."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "pickle"])
def test_a_hostile_checkpoint_runs_nothing_and_is_refused_in_one_line(
    run: Path, tmp_path: Path, is_zip: bool
) -> None:
    data = torch.load(run / "checkpoints" / "last.pt", weights_only=True)
    data["env"] = Attack(tmp_path / "executed")
    path = tmp_path / "hostile.pt"
    torch.save(data, path, _use_new_zipfile_serialization=is_zip)
    runner = make_runner(None)
    before = everything_of(runner)
    with pytest.raises(CheckpointError, match=r"hostile\.pt .*nothing in it was executed") as error:
        runner.load(path)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "executed").exists()
    assert everything_of(runner) == before
