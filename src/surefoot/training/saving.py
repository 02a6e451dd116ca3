"""When checkpoints are written: at an interval, at the end, and when the policy was never better."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefoot import distributed
from surefoot.errors import CheckpointError
from surefoot.training.checkpoint import copy_checkpoint, iteration_of, numbered, prune, save_checkpoint
from surefoot.training.hooks import Hook

if TYPE_CHECKING:
    from surefoot.training.on_policy_runner import OnPolicyRunner


class CheckpointFiles(Hook):
    """`checkpoints/model_<iteration>.pt`, `last.pt` and `best.pt` of a run.

    `best.pt` goes by evaluation where the run evaluates at an interval, else by the reward in training. That
    one changes slowly and rises for long, so it is looked at ten times per `save_interval`.
    """

    def __init__(self) -> None:
        self.best: dict[str, Any] = {"value": None, "iteration": None}
        self._saved: int | None = None

    def on_start(self, runner: OnPolicyRunner) -> None:
        """Files after the checkpoint that the run goes on from are of a continuation that was abandoned."""
        self._saved = runner.iteration if runner.iteration else None
        if runner.run_dir is None or not distributed.is_main():
            return
        for path in numbered(runner.run_dir / "checkpoints"):
            if iteration_of(path) >= runner.iteration:
                path.unlink()

    def after_iteration(self, runner: OnPolicyRunner, metrics: dict[str, Any]) -> None:
        is_best = self._is_best(runner, metrics)
        if runner.run_dir is None:
            return
        interval = runner.config.save_interval
        is_due = interval > 0 and metrics["iteration"] % interval == 0
        try:
            if is_due:
                self.save_numbered(runner, runner.run_dir)
            if is_best:
                self._save_best(runner, runner.run_dir / "checkpoints" / "best.pt")
        except CheckpointError as error:
            # a full disk should not end a run of hours
            warnings.warn(f"{error} Training goes on.", stacklevel=2)

    def on_end(self, runner: OnPolicyRunner, reason: str) -> None:
        """The last state, unless an error passes through: what led to it may be in the state."""
        if runner.run_dir is not None and reason != "failed" and self._saved != runner.iteration:
            self.save_numbered(runner, runner.run_dir)

    def save(self, runner: OnPolicyRunner, path: Path) -> Path:
        """Write the state of all processes to `path`; every process must call it."""
        state = runner.state()
        if distributed.is_main():
            save_checkpoint(path, state)
        return path

    def save_numbered(self, runner: OnPolicyRunner, directory: Path) -> Path:
        """`model_<iteration>.pt` and `last.pt` of the run in `directory`; older files are pruned."""
        folder = directory / "checkpoints"
        path = self.save(runner, folder / f"model_{runner.iteration - 1}.pt")
        self._saved = runner.iteration
        if distributed.is_main():
            copy_checkpoint(path, folder / "last.pt")
            prune(folder, runner.config.keep_checkpoints)
        return path

    def _save_best(self, runner: OnPolicyRunner, path: Path) -> None:
        if self._saved != runner.iteration:
            self.save(runner, path)
        elif distributed.is_main():
            copy_checkpoint(path.parent / f"model_{runner.iteration - 1}.pt", path)

    def _is_best(self, runner: OnPolicyRunner, metrics: Mapping[str, Any]) -> bool:
        """Whether the iteration is better than all before, and remember it."""
        is_evaluated = runner.evaluation is not None and runner.config.eval_interval is not None
        if is_evaluated:
            value = metrics.get("Eval/mean_reward")
        else:
            rhythm = max(1, runner.config.save_interval // 10)
            is_looked_at = metrics["iteration"] % rhythm == 0 or runner.iteration == runner.last_iteration
            value = metrics.get("Train/mean_reward") if is_looked_at else None
        if (
            value is None
            or not math.isfinite(value)
            or (self.best["value"] is not None and value <= self.best["value"])
        ):
            return False
        self.best = {"value": value, "iteration": metrics["iteration"]}
        return True

    def state_dict(self) -> dict[str, Any]:
        return self.best

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best = dict(state)
