"""One process of a training run: environments, runner, and what is said at the end."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from surefoot import distributed, tasks
from surefoot.cli import INTERRUPTED, OK, tell_launcher
from surefoot.cli.options import pick_device
from surefoot.config import TrainConfig
from surefoot.envs.vec_env import VecEnv
from surefoot.training.hooks import Hook, StopAfter
from surefoot.training.on_policy_runner import OnPolicyRunner
from surefoot.training.random_state import seed_global_random_state

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Plan:
    """A run, decided and valid, before anything is made."""

    task: str
    config: TrainConfig
    run_dir: Path
    """The default one, which holds the time, is made under another name where it exists."""
    checkpoint: Path | None = None
    """Where it goes on."""
    iterations: int | None = None
    """Of the whole run, as `steps` and `minutes`; at most one is given."""
    steps: int | None = None
    minutes: float | None = None
    device: str = "auto"
    quiet: bool = False
    is_default_dir: bool = False
    starts_anew: bool = False
    """torchrun restarts it, from nothing: `run_dir` may hold the files of its first start."""


def run(plan: Plan) -> int:
    """Train; returns the exit code."""
    device = pick_device(plan.device)
    distributed.init_from_env(device)
    try:
        # one for all: the time in the default directory, or the newest run, may differ between processes
        return _run(distributed.gather_objects(plan)[0], device)
    except Exception as error:
        tell_launcher(error)
        raise
    finally:
        distributed.shutdown()


def _run(plan: Plan, device: torch.device) -> int:
    config = plan.config
    seed_global_random_state(distributed.stream_seed(config.seed, "global", distributed.rank()) % 2**31)
    env = make_env(plan, config.num_envs // distributed.world_size(), "env", device)
    eval_env = None
    try:
        if config.eval_episodes > 0 and distributed.is_main():
            eval_env = make_env(plan, min(config.eval_episodes, config.num_envs), "evaluation", device)
        runner = OnPolicyRunner(env, config, plan.run_dir, device, eval_env, task=plan.task, quiet=plan.quiet)
        return _train(runner, plan)
    finally:
        env.close()
        if eval_env is not None:
            eval_env.close()


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
        restart_workers=settings.restart_workers,
    )


def _train(runner: OnPolicyRunner, plan: Plan) -> int:
    if plan.is_default_dir:
        # nothing can be wrong with the input any more: a run that never began leaves no directory
        directory = make_run_dir(plan.run_dir) if distributed.is_main() else plan.run_dir
        plan = replace(plan, run_dir=distributed.gather_objects(directory)[0])
        runner.run_dir = plan.run_dir
    if plan.checkpoint is not None:
        runner.load(plan.checkpoint)
    runner.is_continued |= plan.starts_anew
    if start_mark() is not None:
        runner.hooks.append(StartMark())
    todo = _iterations(plan) - runner.iteration
    is_late = plan.minutes is not None and runner.wall_time_s >= 60 * plan.minutes
    if todo <= 0 or is_late:
        if distributed.is_main():
            click.echo(
                f"nothing to do: {plan.run_dir} has done {runner.iteration} iterations; go on with "
                f"`surefoot train --resume {shlex.quote(str(plan.run_dir))} --iterations N`."
            )
        return OK
    if plan.minutes is not None:
        runner.hooks.append(StopAfter(run_minutes=plan.minutes))
    if distributed.is_main() and not plan.quiet:
        click.echo(_opening(plan, runner))
    reason = runner.learn(todo)
    if distributed.is_main() and not plan.quiet:
        print_summary(runner, plan, reason)
    return INTERRUPTED if reason == "interrupted" else OK


def make_run_dir(path: Path) -> Path:
    """Make the directory, under another name where another run was quicker."""
    name, count = path.name, 1
    while not _is_made(path):
        count += 1
        path = path.with_name(f"{name}_{count}")
    return path


def _is_made(directory: Path) -> bool:
    try:
        directory.mkdir(parents=True)
    except FileExistsError:
        return False
    return True


class StartMark(Hook):
    """Under torchrun, a file in the run directory by which a restart finds it again; gone once it is done.

    It says that a start of this very launch had begun to train there. A directory with somebody else's run
    is refused at the first start, and a restart must refuse it too.
    """

    def on_start(self, runner: OnPolicyRunner) -> None:
        name = start_mark()
        if name and runner.run_dir is not None and distributed.is_main():
            (runner.run_dir / name).touch()

    def on_end(self, runner: OnPolicyRunner, reason: str) -> None:
        name = start_mark()
        if name and runner.run_dir is not None and distributed.is_main() and reason != "failed":
            (runner.run_dir / name).unlink(missing_ok=True)


def start_mark() -> str | None:
    """The name of the file that `StartMark` keeps; None where torchrun did not start this process."""
    launch = os.environ.get("TORCHELASTIC_RUN_ID")
    if launch is None:
        return None
    # `none` is every launch that was given no --rdzv-id; within one, the parent is the same
    launch = f"none_{os.getppid()}" if launch == "none" else re.sub(r"[^\w-]", "_", launch)
    return f".torchelastic_{launch}"


def earlier_start(directory: Path, is_default: bool) -> Path | None:
    """Where torchrun, which restarts this process, had begun to train; None at its first start.

    Args:
        directory: Of the run; as it would be named now, if `is_default`.
        is_default: Look at all runs of the task.
    """
    name = start_mark()
    if name is None:
        return None
    marks = list(directory.parent.glob(f"*/{name}")) if is_default else [directory / name]
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0:
        return next((mark.parent for mark in marks if mark.exists()), None)
    for mark in marks:
        # of an earlier launch with the same --rdzv-id
        mark.unlink(missing_ok=True)
    return None


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
        f"{processes}{start}{_image_size(runner)} -> {plan.run_dir}"
    )


def _image_size(runner: OnPolicyRunner) -> str:
    """What the observations of a rollout take, where there are images among them."""
    groups = runner.alg.storage.observations.values()
    if not any(x.element_size() == 1 for x in groups):
        return ""
    return f", observations of a rollout: {sum(x.nbytes for x in groups) / 1e6:,.1f} MB"


def print_summary(runner: OnPolicyRunner, plan: Plan, reason: str) -> None:
    """A small table of the result, where it lies, and what to do next."""
    from rich.console import Console
    from rich.table import Table

    run_dir = shlex.quote(str(plan.run_dir))
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in result_rows(runner.metrics):
        table.add_row(name, value)
    console = Console(soft_wrap=True, highlight=False)
    done = f"{runner.iteration} iterations, {runner.env_steps:,} environment steps"
    console.print(f"{reason} after {done}" if ":" not in reason else f"{reason} ({done})", markup=False)
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
