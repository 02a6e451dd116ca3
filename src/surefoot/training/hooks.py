"""Hooks: what watches or schedules a run without touching its gradients."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from surefoot.config import TrainConfig, build
from surefoot.errors import ConfigError

if TYPE_CHECKING:
    from surefoot.training.on_policy_runner import OnPolicyRunner

HOOKS: dict[str, str] = {"StopAfter": "surefoot.training.hooks:StopAfter"}
"""Short names of the built-in hooks, for `hooks:` in a config."""


class Hook:
    """Called by the runner, on every process. Every method does nothing by default.

    `runner.hooks.append(MyHook())`, or `hooks: [{class_name: my_package.hooks:MyHook}]` in the config.
    """

    reason: str | None = None
    """Why `after_iteration` asked to stop; default: the name of the class."""

    def on_start(self, runner: OnPolicyRunner) -> None:
        """`learn` begins."""

    def before_iteration(self, runner: OnPolicyRunner, iteration: int) -> None:
        """Iteration `iteration` (from 0) is about to collect."""

    def after_iteration(self, runner: OnPolicyRunner, metrics: dict[str, Any]) -> bool | None:
        """An iteration ended, nothing of it is logged or saved yet; keys added to `metrics` are logged.

        Returns:
            True to stop the run.
        """

    def on_end(self, runner: OnPolicyRunner, reason: str) -> None:
        """`learn` ends: `finished`, `stopped: …`, `interrupted`, or `failed` after an error."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain data for the checkpoint."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def end_hooks(hooks: Sequence[Hook], runner: OnPolicyRunner, reason: str) -> None:
    """Call `on_end` of every hook, whatever one of them raises.

    Raises:
        Exception: the first that a hook raised, unless the run failed before and has an error of its own;
            all others are warnings.
    """
    errors = [error for hook in hooks if (error := _error_at_end(hook, runner, reason))]
    first = errors.pop(0) if errors and reason != "failed" else None
    for error in errors:
        warnings.warn(f"on_end failed too: {type(error).__name__}: {error}", stacklevel=3)
    if first is not None:
        raise first


def _error_at_end(hook: Hook, runner: OnPolicyRunner, reason: str) -> Exception | None:
    try:
        hook.on_end(runner, reason)
    except Exception as error:  # noqa: BLE001 - the other hooks have files to close and states to save
        return error
    return None


class StopAfter(Hook):
    """Stops a run early; schedules keep their horizon.

    Args:
        minutes: Of this call of `learn`.
        steps: Environment steps of the whole run, over all processes.
        iterations: Iterations of the whole run.
        run_minutes: As `minutes`, of the whole run: what it took before it was resumed counts.
    """

    def __init__(
        self,
        minutes: float | None = None,
        steps: int | None = None,
        iterations: int | None = None,
        run_minutes: float | None = None,
    ) -> None:
        given = {"minutes": minutes, "steps": steps, "iterations": iterations, "run_minutes": run_minutes}
        if all(limit is None for limit in given.values()):
            raise ConfigError(f"StopAfter needs one of {', '.join(given)}.")
        for name, limit in given.items():
            if limit is not None and limit <= 0:
                raise ConfigError(f"StopAfter: {name} is {limit}; expected a number above 0.")
        self.minutes, self.steps, self.iterations = minutes, steps, iterations
        self.run_minutes = run_minutes
        self._start = time.monotonic()

    def on_start(self, runner: OnPolicyRunner) -> None:
        self._start, self.reason = time.monotonic(), None

    def after_iteration(self, runner: OnPolicyRunner, metrics: dict[str, Any]) -> bool:
        if self.minutes is not None and time.monotonic() - self._start >= 60 * self.minutes:
            self.reason = f"{self.minutes:g} minutes"
        elif self.run_minutes is not None and runner.wall_time_s >= 60 * self.run_minutes:
            self.reason = f"{self.run_minutes:g} minutes"
        elif self.steps is not None and runner.env_steps >= self.steps:
            self.reason = f"{self.steps} steps"
        elif self.iterations is not None and runner.iteration >= self.iterations:
            self.reason = f"{self.iterations} iterations"
        return self.reason is not None


def build_hooks(config: TrainConfig) -> list[Hook]:
    """The hooks that a configuration lists.

    Raises:
        ConfigError: an unknown class or argument.
    """
    return [build(entry, Hook, f"hooks.{i}", HOOKS) for i, entry in enumerate(config.hooks)]
