"""Checkpoint files: whole or not at all, nothing executed from them, found by number."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from surefoot.errors import CheckpointError, NonFiniteError
from surefoot.training.checkpoint import (
    FORMAT,
    find_checkpoint,
    find_run,
    load_checkpoint,
    prune,
    save_checkpoint,
)


def minimal(**extra: object) -> dict[str, object]:
    """The least that is a checkpoint."""
    return {
        "format": FORMAT,
        "task": None,
        "iteration": 0,
        "env_steps": 0,
        "wall_time_s": 0.0,
        "config": {},
        "spec": {},
        "device": "cpu",
        "algorithm": {"tensors": {"w": torch.arange(3.0)}},
        "best": {},
        "skips": {},
        "hooks": {},
        "num_envs": 1,
        "env": None,
        "observations": None,
        "episodes": {},
        "guard": {},
        "masks": {},
        "rng": {},
        "processes": [],
        **extra,
    }


def touch(path: Path, content: dict[str, object] | None = None) -> Path:
    return save_checkpoint(path, content or minimal())


def test_tensors_arrays_and_plain_data_come_back_as_they_were(tmp_path: Path) -> None:
    state = minimal(
        a=np.arange(6, dtype=np.int16).reshape(2, 3),
        b=[1, 2.5, None, True, "text", (3, 4)],
        c={"deep": {1: torch.tensor([True])}},
        d=2**127 + 1,
        scalar=np.float64(0.5),
    )
    loaded = load_checkpoint(touch(tmp_path / "a.pt", state))
    assert loaded["a"].dtype == np.int16
    assert loaded["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert loaded["b"] == [1, 2.5, None, True, "text", (3, 4)]
    assert loaded["c"]["deep"][1].tolist() == [True]
    assert (loaded["d"], loaded["scalar"]) == (2**127 + 1, 0.5)


def test_a_view_does_not_carry_its_whole_storage_into_the_file(tmp_path: Path) -> None:
    small = touch(tmp_path / "small.pt", minimal(x=torch.zeros(10)))
    view = touch(tmp_path / "view.pt", minimal(x=torch.zeros(1_000_000)[:10]))
    assert view.stat().st_size == small.stat().st_size


def test_an_object_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'env\.terrain\[1\]' is a .*Path;"):
        touch(tmp_path / "a.pt", minimal(env={"terrain": [0, Path("x")]}))
    assert not list(tmp_path.iterdir())


def test_weights_that_are_not_finite_never_replace_a_good_file(tmp_path: Path) -> None:
    path = touch(tmp_path / "last.pt")
    before = path.read_bytes()
    bad = minimal(algorithm={"tensors": {"policy.w": torch.tensor([1.0, float("nan")])}})
    with pytest.raises(NonFiniteError, match=r"algorithm\.tensors\.policy\.w"):
        save_checkpoint(path, bad)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["last.pt"]


def test_infinities_outside_of_the_algorithm_are_data(tmp_path: Path) -> None:
    path = touch(tmp_path / "a.pt", minimal(env={"last_contact": torch.tensor([float("inf")])}))
    assert load_checkpoint(path)["env"]["last_contact"].item() == float("inf")


def test_a_failing_disk_is_a_checkpoint_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file where a directory should be")
    with pytest.raises(CheckpointError, match="cannot write"):
        touch(tmp_path / "checkpoints" / "model_0.pt")


@pytest.mark.parametrize("size", [0, 2, 100, 0.5, 0.99])
def test_a_cut_off_file_is_named_and_the_previous_one_offered(tmp_path: Path, size: float) -> None:
    for i in (9, 10):
        touch(tmp_path / f"model_{i}.pt")
    last = touch(tmp_path / "last.pt")
    os.truncate(last, int(size * last.stat().st_size) if isinstance(size, float) else size)
    with pytest.raises(CheckpointError, match=r"last\.pt is cut off.*model_10\.pt") as error:
        load_checkpoint(last)
    assert "\n" not in str(error.value)


def test_damage_in_the_middle_is_found(tmp_path: Path) -> None:
    touch(tmp_path / "model_1.pt")
    path = touch(tmp_path / "last.pt", minimal(x=torch.zeros(1000)))
    data = bytearray(path.read_bytes())
    at = data.index(b"\0" * 4000)
    data[at : at + 100] = b"\1" * 100
    path.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match=r"last\.pt is damaged.*model_1\.pt"):
        load_checkpoint(path)


def test_foreign_files_are_refused_in_one_line(tmp_path: Path) -> None:
    text, pickled, other = (tmp_path / name for name in ("text.pt", "pickled.pt", "other.pt"))
    text.write_text("not a checkpoint")
    pickled.write_bytes(pickle.dumps({"a": Path("x")}))
    torch.save({"model_state_dict": {"w": torch.zeros(2)}, "iter": 3}, other)
    for path in (text, pickled, other):
        with pytest.raises(CheckpointError, match=path.name) as error:
            load_checkpoint(path)
        assert "\n" not in str(error.value)
    with pytest.raises(CheckpointError, match="model_state_dict"):
        load_checkpoint(other)
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        load_checkpoint(tmp_path / "missing.pt")


class Attack:
    """Unpickling this would create a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.marker),)


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    path = tmp_path / "attack.pt"
    torch.save(minimal(algorithm=Attack(tmp_path / "executed")), path)
    with pytest.raises(CheckpointError, match=r"attack\.pt .*nothing in it was executed") as error:
        load_checkpoint(path)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "executed").exists()


def test_a_newer_format_asks_for_an_upgrade(tmp_path: Path) -> None:
    path = touch(tmp_path / "a.pt", {"format": 99, "algorithm": {}})
    with pytest.raises(CheckpointError, match="format 99"):
        load_checkpoint(path)


def test_last_is_the_run_with_the_newest_checkpoint(tmp_path: Path) -> None:
    for i, name in enumerate(("2024_b", "2025_a")):
        path = touch(tmp_path / "task" / name / "checkpoints" / "last.pt")
        os.utime(path, (1000 + i, 1000 + i))
    assert find_run("last", root=tmp_path).name == "2025_a"


def test_a_run_may_be_a_directory_or_one_of_its_files(tmp_path: Path) -> None:
    run = tmp_path / "run"
    best = touch(run / "checkpoints" / "best.pt")
    last = touch(run / "checkpoints" / "last.pt")
    assert find_run(best) == find_run(run) == run
    assert find_checkpoint(best) == best
    assert find_checkpoint(run) == last
    assert find_checkpoint(run, "best") == best


def test_best_falls_back_to_the_newest(tmp_path: Path) -> None:
    last = touch(tmp_path / "checkpoints" / "last.pt")
    assert find_checkpoint(tmp_path, "best") == last


def test_what_is_not_there_is_said_with_what_is(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no run with a checkpoint"):
        find_run("last", root=tmp_path)
    with pytest.raises(CheckpointError, match="there is no run"):
        find_run(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").touch()
    with pytest.raises(CheckpointError, match=r"no checkpoint yet; it holds notes\.txt"):
        find_run(tmp_path / "empty")
    touch(tmp_path / "run" / "checkpoints" / "model_3.pt")
    with pytest.raises(CheckpointError, match="it has iterations 3"):
        find_checkpoint(tmp_path / "run", 7)
    with pytest.raises(CheckpointError, match=r"'bets'.*expected 'best', 'last' or an iteration"):
        find_checkpoint(tmp_path / "run", "bets")


def test_pruning_keeps_the_highest_numbers(tmp_path: Path) -> None:
    for name in ("model_2", "model_100", "model_9", "best", "last"):
        touch(tmp_path / f"{name}.pt")
    prune(tmp_path, keep=2)
    assert sorted(p.stem for p in tmp_path.iterdir()) == ["best", "last", "model_100", "model_9"]
