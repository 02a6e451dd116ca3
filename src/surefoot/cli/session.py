"""One process of a training run: environments, runner, and what is said at the end."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from surefoot import distributed, tasks
from surefoot.cli import INTERRUPTED, OK
from surefoot.cli.options import pick_device
from surefoot.config import TrainConfig
from surefoot.envs.vec_env import VecEnv
from surefoot.training.hooks import StopAfter
from surefoot.training.on_policy_runner import OnPolicyRunner


@dataclass(frozen=True)
class Plan:
    """A run, decided and valid, before anything is made."""

    task: str
    config: TrainConfig
    run_dir: Path
    checkpoint: Path | None = None
    """Where it goes on."""
    iterations: int | None = None
    """Of the whole run, as `steps` and `minutes`; at most one is given."""
    steps: int | None = None
    minutes: float | None = None
    device: str = "auto"
    quiet: bool = False


def run(plan: Plan) -> int:
    """Train; returns the exit code."""
    device = pick_device(plan.device)
    distributed.init_from_env(device)
    # the default directory holds the time, which differs between processes that torchrun has started
    plan = replace(plan, run_dir=distributed.gather_objects(plan.run_dir)[0])
    config = plan.config
    try:
        env = make_env(plan, config.num_envs // distributed.world_size(), "env", device)
        eval_env = None
        try:
            if config.eval_episodes > 0 and distributed.is_main():
                eval_env = make_env(plan, min(config.eval_episodes, config.num_envs), "evaluation", device)
            runner = OnPolicyRunner(
                env, config, plan.run_dir, device, eval_env, task=plan.task, quiet=plan.quiet
            )
            return _train(runner, plan)
        finally:
            env.close()
            if eval_env is not None:
                eval_env.close()
    finally:
        distributed.shutdown()


def make_env(plan: Plan, num_envs: int, stream: str, device: Any) -> VecEnv:
    """The training (`env`) or evaluation environments of this process."""
    settings = plan.config.env
    return tasks.make(
        plan.task,
        num_envs,
        seed=distributed.stream_seed(plan.config.seed, stream, distributed.rank()) % 2**31,
        evaluation=stream == "evaluation",
        backend=settings.backend,
        kwargs=settings.kwargs,
        device=device,
    )


def _train(runner: OnPolicyRunner, plan: Plan) -> int:
    if plan.checkpoint is not None:
        runner.load(plan.checkpoint)
    todo = _iterations(plan) - runner.iteration
    minutes = None if plan.minutes is None else plan.minutes - runner.wall_time_s / 60
    if todo <= 0 or (minutes is not None and minutes <= 0):
        if distributed.is_main():
            click.echo(
                f"nothing to do: {plan.run_dir} has done {runner.iteration} iterations; go on with "
                f"`surefoot train --resume {shlex.quote(str(plan.run_dir))} --iterations N`."
            )
        return OK
    if minutes is not None:
        runner.hooks.append(StopAfter(minutes=minutes))
    if distributed.is_main() and not plan.quiet:
        click.echo(_opening(plan, runner))
    reason = runner.learn(todo)
    if distributed.is_main() and not plan.quiet:
        print_summary(runner, plan, reason)
    return INTERRUPTED if reason == "interrupted" else OK


def _iterations(plan: Plan) -> int:
    """Of the whole run."""
    if plan.steps is not None:
        return math.ceil(plan.steps / (plan.config.num_envs * plan.config.num_steps_per_env))
    return plan.iterations or plan.config.max_iterations


def _opening(plan: Plan, runner: OnPolicyRunner) -> str:
    config = plan.config
    processes = f", {config.nproc} processes" if config.nproc > 1 else ""
    start = f" from iteration {runner.iteration}" if runner.iteration else ""
    return (
        f"{plan.task}: {config.num_envs} environments x {config.num_steps_per_env} steps on {runner.device}"
        f"{processes}{start} -> {plan.run_dir}"
    )


def print_summary(runner: OnPolicyRunner, plan: Plan, reason: str) -> None:
    """A small table of the result, where it lies, and what to do next."""
    from rich.console import Console
    from rich.table import Table

    run_dir = shlex.quote(str(plan.run_dir))
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in result_rows(runner.metrics):
        table.add_row(name, value)
    console = Console(soft_wrap=True, highlight=False)
    console.print(
        f"{reason} after {runner.iteration} iterations, {runner.env_steps:,} environment steps", markup=False
    )
    console.print(table)
    lines = [f"checkpoint  {plan.run_dir / 'checkpoints' / 'last.pt'}"]
    if reason == "interrupted":
        lines.append(f"go on       surefoot train --resume {run_dir}")
    lines += [f"next        surefoot eval {run_dir}", f"            surefoot play {run_dir}"]
    for line in lines:
        console.print(line, markup=False)


def result_rows(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and value of what a run ended with."""
    rows: list[tuple[str, str]] = []
    if metrics.get("Train/mean_reward") is not None:
        rows.append(("reward in training", f"{metrics['Train/mean_reward']:.4g}"))
    if "Eval/mean_reward" in metrics:
        mean, std = metrics["Eval/mean_reward"], metrics["Eval/std_reward"]
        rows.append(("evaluation", f"{mean:.4g} ± {std:.3g} over {metrics['Eval/episodes']} episodes"))
        skipped = {"Eval/mean_reward", "Eval/std_reward", "Eval/episodes"}
        for key, value in metrics.items():
            if key.startswith("Eval/") and key not in skipped:
                rows.append((f"  {key.removeprefix('Eval/').replace('_', ' ')}", f"{value:.4g}"))
    if metrics.get("Perf/total_fps"):
        rows.append(("speed", f"{metrics['Perf/total_fps']:,.0f} steps/s"))
    return rows
