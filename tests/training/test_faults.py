"""A skipped update leaves a record of its mini-batch that can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from surefoot.algorithm.extension import Extension
from surefoot.cli.fault import command
from surefoot.errors import CheckpointError
from surefoot.networks.actor_critic import ActorCritic
from surefoot.testing import TargetEnv
from surefoot.training.faults import describe_fault, load_fault
from surefoot.training.on_policy_runner import OnPolicyRunner
from surefoot.types import Batch, PolicyOutput


class Spoiler(Extension):
    """Makes the loss of one mini-batch, counted over the run, not a number."""

    def __init__(self, update: int = 0) -> None:
        super().__init__()
        self.update, self.count = update, 0
        self.spoiled: Tensor | None = None

    def loss(self, batch: Batch, out: PolicyOutput, policy: ActorCritic) -> dict[str, Tensor]:
        self.count += 1
        if self.count - 1 != self.update:
            return {}
        self.spoiled = batch.index.clone()
        return {"Spoiler/loss": out.value.sum() * float("nan")}


def spoiled_run(run_dir: Path, update: int, **network: Any) -> tuple[OnPolicyRunner, dict[str, Any]]:
    config = {
        "num_steps_per_env": 32,
        "actor": {"hidden_dims": [8], **network},
        "critic": {"hidden_dims": [8]},
        "algorithm": {"num_learning_epochs": 2, "num_mini_batches": 4},
        "logger": "none",
        "extensions": [{"class_name": f"{__name__}:Spoiler", "update": update}],
    }
    runner = OnPolicyRunner(TargetEnv(6), config, run_dir, quiet=True)
    with pytest.warns(UserWarning, match=r"surefoot fault .*iteration_1_rank_0.pt"):
        runner.learn(3)
    return runner, load_fault(run_dir / "faults" / "iteration_1_rank_0.pt")


@pytest.mark.parametrize("network", [{}, {"rnn_type": "gru", "rnn_hidden_dim": 4}])
def test_the_record_holds_the_very_rows_of_the_skipped_update(
    network: dict[str, Any], tmp_path: Path
) -> None:
    runner, record = spoiled_run(tmp_path / "run", 8 + 5, **network)
    assert (record["iteration"], record["epoch"], record["mini_batch"]) == (1, 1, 1)
    spoiler = runner.alg.extensions[0]
    assert isinstance(spoiler, Spoiler)
    assert spoiler.spoiled is not None
    assert torch.equal(record["tensors"]["index"], spoiler.spoiled)
    assert record["tensors"]["observations.policy"].shape[:-1] == spoiler.spoiled.shape


def test_the_command_shows_where_and_what(tmp_path: Path) -> None:
    spoiled_run(tmp_path / "run", 8)
    file = tmp_path / "run" / "faults" / "iteration_1_rank_0.pt"
    shown = CliRunner().invoke(command, [str(file)]).output
    assert "iteration 1, epoch 0, mini-batch 0 of 4: 48 rows" in shown
    assert "observations.policy" in shown


def test_the_first_number_that_is_not_finite_is_named_by_environment_and_step(tmp_path: Path) -> None:
    _, record = spoiled_run(tmp_path / "run", 8)
    record["tensors"]["advantage"][3] = float("inf")
    step, env = divmod(int(record["tensors"]["index"][3]), 6)
    assert f"first: advantage of environment {env} at step {step}" in describe_fault(record)


def test_another_file_is_no_fault_record(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no")
    torch.save({"a": 1}, tmp_path / "other.pt")
    for name in ("text", "other.pt"):
        with pytest.raises(CheckpointError, match="no fault record"):
            load_fault(tmp_path / name)
    with pytest.raises(CheckpointError, match="there is no file"):
        load_fault(tmp_path / "none.pt")
