"""When checkpoints are written: at an interval, at the end, and when the policy was never better."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefoot import distributed
from surefoot.errors import CheckpointError, SurefootError
from surefoot.training.checkpoint import (
    copy_checkpoint,
    iteration_of,
    load_checkpoint,
    numbered,
    prune,
    remove_stale,
    save_checkpoint,
    to_plain,
)
from surefoot.training.hooks import Hook

if TYPE_CHECKING:
    from surefoot.training.on_policy_runner import OnPolicyRunner

NO_BEST: Mapping[str, Any] = {"value": None, "iteration": None}


class CheckpointFiles(Hook):
    """`checkpoints/model_<iteration>.pt`, `last.pt` and `best.pt` of a run.

    `best.pt` goes by evaluation where the run evaluates at an interval, else by the reward in training. That
    one changes slowly and rises for long, so it is looked at ten times per `save_interval`.

    Process 0 writes; whether that succeeded is known to all, so that all take the same way from there.

    Attributes:
        best: Value and iteration of what `best.pt` holds.
    """

    def __init__(self) -> None:
        self.best: dict[str, Any] = dict(NO_BEST)
        self._best_state: dict[str, Any] | None = None
        """Of a run that saves only at the end: what `best.pt` will hold."""
        self._is_resumed = False
        # iterations done when `model_<iteration>.pt` was written, and when `last.pt` was
        self._numbered: int | None = None
        self._last: int | None = None

    def on_start(self, runner: OnPolicyRunner) -> None:
        """Files after the checkpoint that the run goes on from are of a continuation that was abandoned."""
        is_resumed, self._is_resumed = self._is_resumed, False
        if is_resumed:
            self._numbered = self._last = runner.iteration
        if runner.run_dir is None:
            return
        folder = runner.run_dir / "checkpoints"
        if is_resumed:
            self._abandon_later(runner, folder)

        def clean() -> None:
            remove_stale(folder)
            later = [path for path in numbered(folder) if iteration_of(path) >= runner.iteration]
            if runner.iteration == 0:
                later += [folder / "last.pt", folder / "best.pt"]
            for path in later:
                path.unlink(missing_ok=True)

        _on_main(clean)

    def after_iteration(self, runner: OnPolicyRunner, metrics: dict[str, Any]) -> None:
        best, interval = self._new_best(runner, metrics), runner.config.save_interval
        if runner.run_dir is None:
            self.best = best or self.best
            return
        # a full disk should not end a run of hours
        with _warning():
            if best and interval > 0:
                self._save_best(runner, runner.run_dir, {**runner.state(), "best": best})
            elif best:
                self._best_state = to_plain({**runner.state(), "best": best})
        with _warning():
            if interval > 0 and metrics["iteration"] % interval == 0:
                self.save_numbered(runner, runner.run_dir)

    def on_end(self, runner: OnPolicyRunner, reason: str) -> None:
        """The last state, unless an error passes through: what led to it may be in the state.

        Raises:
            SurefootError: it could not be written. This is a run that failed, not a checkpoint of no use.
        """
        best_state, self._best_state = self._best_state, None
        if runner.run_dir is None or reason == "failed" or runner.iteration == 0:
            return
        try:
            if self._numbered != runner.iteration:
                self.save_numbered(runner, runner.run_dir)
            elif self._last != runner.iteration:
                self._save_last(runner, runner.run_dir)
            if best_state is not None:
                self._save_best(runner, runner.run_dir, best_state)
        except CheckpointError as error:
            raise SurefootError(
                f"the run is over, but its last files are not all written: {error}"
            ) from error

    def save(self, runner: OnPolicyRunner, path: Path) -> Path:
        """Write the state of all processes to `path`; every process must call it."""
        state = runner.state()
        _on_main(lambda: save_checkpoint(path, state))
        return path

    def save_numbered(self, runner: OnPolicyRunner, directory: Path) -> Path:
        """`model_<iteration>.pt` and `last.pt` of the run in `directory`; older files are pruned."""
        path = self.save(runner, _numbered_path(runner, directory))
        self._numbered = runner.iteration
        self._save_last(runner, directory)
        return path

    def _save_last(self, runner: OnPolicyRunner, directory: Path) -> None:
        path = _numbered_path(runner, directory)

        def copy() -> None:
            # pruned first: what a full disk gains by it may be just what the copy needs
            prune(path.parent, runner.config.keep_checkpoints, spare=path)
            copy_checkpoint(path, path.with_name("last.pt"))

        _on_main(copy)
        self._last = runner.iteration

    def _save_best(self, runner: OnPolicyRunner, directory: Path, state: Mapping[str, Any]) -> None:
        _on_main(lambda: save_checkpoint(directory / "checkpoints" / "best.pt", state))
        self.best = dict(state["best"])

    def _new_best(self, runner: OnPolicyRunner, metrics: Mapping[str, Any]) -> dict[str, Any] | None:
        """Value and number of the iteration, if it is better than all before."""
        is_evaluated = runner.evaluation is not None and runner.config.eval_interval is not None
        if is_evaluated:
            value = metrics.get("Eval/mean_reward")
        else:
            rhythm = max(1, runner.config.save_interval // 10)
            is_looked_at = metrics["iteration"] % rhythm == 0 or runner.iteration == runner.last_iteration
            value = metrics.get("Train/mean_reward") if is_looked_at else None
        before = (self._best_state["best"] if self._best_state else self.best)["value"]
        if value is None or not math.isfinite(value) or (before is not None and value <= before):
            return None
        return {"value": value, "iteration": metrics["iteration"]}

    def _abandon_later(self, runner: OnPolicyRunner, folder: Path) -> None:
        """Let `last.pt` be what the run goes on from, and drop a `best.pt` that is later.

        The later numbered files go after this, so that a run that is killed here goes on from the right one.
        """
        found = _survey(folder, runner.iteration - 1) if distributed.is_main() else None
        is_stale, source, best = distributed.gather_objects(found)[0]
        if source is not None:
            _on_main(lambda: copy_checkpoint(source, folder / "last.pt"))
        elif is_stale:
            self.save(runner, folder / "last.pt")
        self.best = dict(best or NO_BEST)
        if best is None:
            _on_main(lambda: (folder / "best.pt").unlink(missing_ok=True))

    def state_dict(self) -> dict[str, Any]:
        return self.best

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best, self._is_resumed = dict(state), True


def _numbered_path(runner: OnPolicyRunner, directory: Path) -> Path:
    return directory / "checkpoints" / f"model_{runner.iteration - 1}.pt"


def _state_in(path: Path) -> Mapping[str, Any]:
    """Empty where there is no file, or none that can be read."""
    try:
        return load_checkpoint(path)
    except CheckpointError:
        return {}


def _survey(folder: Path, here: int) -> tuple[bool, Path | None, Mapping[str, Any] | None]:
    """Whether `last.pt` is not of iteration `here`, which file beside it is, and what `best.pt` says of
    itself; None: it is later.
    """
    last, best = folder / "last.pt", folder / "best.pt"
    of_best = _state_in(best)
    record = None if of_best.get("iteration", here) > here else of_best.get("best", NO_BEST)
    is_stale = last.exists() and _state_in(last).get("iteration") != here
    same = (p for p in (folder / f"model_{here}.pt", best) if _state_in(p).get("iteration") == here)
    return is_stale, next(same, None) if is_stale else None, record


def _on_main(work: Callable[[], object]) -> None:
    """Do `work` on process 0. What it raises is raised in every process: all decide alike what follows."""
    fault: Exception | None = None
    if distributed.is_main():
        try:
            work()
        except SurefootError as error:
            fault = error
        except OSError as error:
            fault = CheckpointError(f"cannot change {error.filename}: {error.strerror or error}.")
    theirs = distributed.gather_objects(fault)[0]
    if theirs is not None:
        raise fault or theirs


@contextlib.contextmanager
def _warning() -> Iterator[None]:
    """A checkpoint that cannot be written is a warning, once for all processes."""
    try:
        yield
    except CheckpointError as error:
        if distributed.is_main():
            warnings.warn(f"{error} Training goes on.", stacklevel=4)
