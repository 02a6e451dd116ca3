"""Evaluation of a run while it trains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from surefoot import distributed
from surefoot.envs.vec_env import VecEnv
from surefoot.training.evaluation import evaluate
from surefoot.training.hooks import Hook

if TYPE_CHECKING:
    from surefoot.training.on_policy_runner import OnPolicyRunner


class EvaluationHook(Hook):
    """Adds `Eval/` keys to the metrics of every `eval_interval`-th iteration and of the last one.

    The episodes are the same each time, so that a difference is one of the policy. Process 0 evaluates.

    Args:
        env: Other environments than those of training; only process 0 needs them.
    """

    def __init__(self, env: VecEnv | None) -> None:
        self.env = env

    def after_iteration(self, runner: OnPolicyRunner, metrics: dict[str, Any]) -> None:
        interval = runner.config.eval_interval
        if interval and runner.iteration % interval == 0:
            self.evaluate(runner, metrics)

    def evaluate(self, runner: OnPolicyRunner, metrics: dict[str, Any]) -> None:
        """Once per iteration; every process gets the result."""
        if runner.config.eval_episodes == 0 or "Eval/episodes" in metrics:
            return
        result: dict[str, float] = {}
        if distributed.is_main():
            assert self.env is not None
            result = evaluate(
                runner.get_inference_policy(),
                self.env,
                episodes=runner.config.eval_episodes,
                seed=runner.stream_seed("evaluation"),
                should_stop=lambda: runner.is_interrupted,
            )
        result = distributed.gather_objects(result)[0]
        if result["episodes"] == runner.config.eval_episodes:
            metrics.update({f"Eval/{name}": value for name, value in result.items()})
