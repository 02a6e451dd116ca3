"""The mini-batch whose update was skipped, or the step that was not finite, written down to be looked at."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from surefoot import distributed
from surefoot.algorithm.ppo import PPO
from surefoot.errors import CheckpointError, NonFiniteError
from surefoot.training.checkpoint import save_checkpoint
from surefoot.types import Batch, Step

if TYPE_CHECKING:
    from surefoot.training.on_policy_runner import OnPolicyRunner

MAX_FILES = 3
"""Files of a run; what goes wrong again and again goes wrong alike."""


class FaultRecorder:
    """Writes `faults/….pt`: the first mini-batch of an iteration whose update was skipped, found by drawing
    the same order again, and the step that ends a run.
    """

    def __init__(self, alg: PPO) -> None:
        self._alg = alg
        self._order: Tensor | None = None
        self._num_files = 0

    def before_update(self) -> None:
        self._order = self._alg.shuffle_generator.get_state()

    def after_update(self, runner: OnPolicyRunner, metrics: Mapping[str, Any]) -> None:
        """Write `faults/iteration_<i>_rank_<r>.pt` where an update was skipped."""
        if not metrics["Loss/skipped_updates"] or runner.run_dir is None or self._num_files >= MAX_FILES:
            return
        self._num_files += 1
        update = int(self._alg.optimizer.first_skipped.item()) - 1
        epoch, number = divmod(update, self._alg.num_batches)
        batch = self._batch(epoch, number)
        record = {
            "epoch": epoch,
            "mini_batch": number,
            "num_mini_batches": self._alg.num_batches,
            "metrics": {key: x for key, x in metrics.items() if isinstance(x, int | float | str)},
            "tensors": dict(_tensors(batch)),
        }
        file = self._write(runner, runner.run_dir, f"iteration_{runner.iteration}", record)
        # every process skips the same update, and has written its part
        if file is not None and distributed.is_main():
            warnings.warn(
                f"iteration {runner.iteration}: an update that would have made weights non-finite was "
                f"skipped; its mini-batch is in {file} (surefoot fault {file}).",
                stacklevel=2,
            )

    def with_step(
        self, error: NonFiniteError, runner: OnPolicyRunner, step: Step, actions: Tensor
    ) -> NonFiniteError:
        """The error, which names the file to which the step was written: what the environments were sent, and
        what they answered.
        """
        return self._with_row(error, runner, self._alg.storage.step, runner.guard.step_count, step, actions)

    def with_rollout(self, error: NonFiniteError, runner: OnPolicyRunner) -> NonFiniteError:
        """As `with_step`, after a rollout on an accelerator: of an observation that was not finite only that
        is known, so all its entries are NaN.
        """
        number, bad = runner.guard.faulty
        rollout, steps_ago = self._alg.storage, runner.guard.step_count - number
        row = rollout.step - 1 - steps_ago
        if row < 0:  # while warming up: not kept
            return error
        assert runner.observations is not None
        following = runner.observations
        if steps_ago:
            following = {g: x[row + 1] for g, x in rollout.observations.items()}
        observations = {
            g: x.masked_fill(bad[g].view(-1, *[1] * (x.dim() - 1)), float("nan"))
            for g, x in following.items()
            if x.is_floating_point()
        }
        step = Step(observations, rollout.rewards[row], rollout.terminated[row], rollout.truncated[row])
        return self._with_row(error, runner, row, number, step, rollout.actions[row])

    def _with_row(
        self,
        error: NonFiniteError,
        runner: OnPolicyRunner,
        row: int,
        number: int,
        step: Step,
        actions: Tensor,
    ) -> NonFiniteError:
        if runner.run_dir is None:
            return error
        num_envs = len(step.rewards)
        tensors = {
            "index": torch.arange(num_envs) + num_envs * row,
            "actions": actions,
            "rewards": step.rewards,
            "terminated": step.terminated,
            "truncated": step.truncated,
            **{f"observations.{g}": x for g, x in step.observations.items()},
            **{f"final_observations.{g}": x for g, x in (step.final_observations or {}).items()},
        }
        file = self._write(runner, runner.run_dir, f"step_{number}", {"step": number, "tensors": tensors})
        if file is None:
            return error
        return NonFiniteError(f"{error} The step is in {file} (surefoot fault {file}).")

    def _write(
        self, runner: OnPolicyRunner, run_dir: Path, name: str, record: Mapping[str, Any]
    ) -> Path | None:
        """The file; None and a warning where it cannot be written."""
        file = run_dir / "faults" / f"{name}_rank_{distributed.rank()}.pt"
        num_envs = self._alg.storage.num_envs
        place = {
            "iteration": runner.iteration,
            "num_envs": num_envs,
            "first_env": distributed.global_index(0, num_envs),
        }
        try:
            return save_checkpoint(file, {**place, **record})
        except CheckpointError as error:
            warnings.warn(f"{error}", stacklevel=3)
            return None

    def _batch(self, epoch: int, number: int) -> Batch:
        rollout, order = self._alg.storage, self._order
        assert order is not None
        generator = torch.Generator(self._alg.shuffle_generator.device)
        generator.set_state(order)
        batches = rollout.mini_batch_generator
        if self._alg.policy.is_recurrent:
            batches = rollout.recurrent_mini_batch_generator
        drawn = batches(self._alg.num_batches, epoch + 1, generator)
        return next(islice(drawn, epoch * self._alg.num_batches + number, None))


def _tensors(batch: Batch) -> Iterator[tuple[str, Tensor]]:
    """Without the memory's states: they have been refreshed since."""
    names = ("index", "actions", "old_log_prob", "old_value", "advantage", "returns")
    yield from ((name, getattr(batch, name)) for name in names)
    yield from ((f"observations.{g}", x) for g, x in batch.observations.items())
    yield from ((f"old_distribution.{g}", x) for g, x in batch.old_distribution.items())
    if batch.mask is not None:
        yield "mask", batch.mask


def load_fault(file: Path) -> dict[str, Any]:
    """What `FaultRecorder` wrote.

    Raises:
        CheckpointError: it is no such file.
    """
    try:
        record = torch.load(file, weights_only=True, map_location="cpu")
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no file {file}.") from error
    except Exception as error:
        raise CheckpointError(f"{file} is no fault record of Surefoot, or damaged.") from error
    if not isinstance(record, dict) or not {"mini_batch", "step"} & record.keys():
        raise CheckpointError(f"{file} is no fault record of Surefoot.")
    return record


def describe_fault(record: Mapping[str, Any]) -> str:
    """A few lines: where it happened, and which tensors hold what."""
    tensors: dict[str, Tensor] = record["tensors"]
    index = tensors["index"]
    if "step" in record:
        place = f"step {record['step']} of the environments"
    else:
        place = f"epoch {record['epoch']}, mini-batch {record['mini_batch']} of {record['num_mini_batches']}"
    lines = [
        f"iteration {record['iteration']}, {place}: {index.numel()} rows",
        f"{'tensor':32} {'shape':>18} {'not finite':>10} {'smallest':>12} {'largest':>12}",
    ]
    for name, x in tensors.items():
        if name in ("index", "mask"):
            continue
        values = x.double()
        good = values[values.isfinite()]
        low, high = (good.min().item(), good.max().item()) if good.numel() else (float("nan"),) * 2
        bad = int((~values.isfinite()).sum())
        lines.append(f"{name:32} {tuple(x.shape)!s:>18} {bad:>10} {low:>12.4g} {high:>12.4g}")
    for name, x in tensors.items():
        if x.shape[: index.dim()] != index.shape:
            continue
        rows = (~x.double().isfinite()).reshape(index.numel(), -1).any(-1)
        if bool(rows.any()):
            step, env = divmod(int(index.flatten()[rows][0]), record["num_envs"])
            env += record.get("first_env", 0)
            lines.append(f"first: {name} of environment {env} at step {step} of the rollout")
            break
    return "\n".join(lines)
