"""Whether a run is compiled: decided once, said in one line, and kept when the run is resumed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from surefoot import distributed
from surefoot.algorithm.compiled import compile_ppo, decide
from surefoot.training.hooks import Hook

if TYPE_CHECKING:
    from surefoot.training.on_policy_runner import OnPolicyRunner


class Compilation(Hook):
    """Decides when learning starts, since only then it is known for how long.

    Attributes:
        mode: `off`, `default` or `cudagraph`; None: not decided yet.
    """

    def __init__(self) -> None:
        self.mode: str | None = None
        self._is_applied = False

    def on_start(self, runner: OnPolicyRunner) -> None:
        if self._is_applied:
            return
        self._is_applied = True
        config = runner.config.algorithm
        why = "as when this run began" if self.mode != "off" else ""
        if self.mode is None or config.compile_mode != "auto":
            iterations = runner.last_iteration - runner.iteration
            num_rows = runner.total_envs * runner.config.num_steps_per_env
            self.mode, why = decide(runner.alg, num_rows, iterations)
        if why:
            self._say(runner, f"compile: {self.mode}, {why}")
        compile_ppo(runner.alg, self.mode, lambda line: self._say(runner, line))

    def load(self, mode: str | None) -> None:
        """Take the decision of the run that goes on."""
        self.mode, self._is_applied = mode, False

    @staticmethod
    def _say(runner: OnPolicyRunner, line: str) -> None:
        if distributed.is_main() and not runner.quiet:
            Console().print(line, markup=False, highlight=False, soft_wrap=True)
