"""`surefoot train`: from the command line to a plan, and from the plan to one or several processes."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from surefoot.cli import debug_option
from surefoot.cli.options import config_options, count, device_option, resolve_config
from surefoot.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from surefoot.cli.session import Plan
    from surefoot.config import TrainConfig

_EPILOG = """\b
Examples: surefoot train Pendulum-v1
          surefoot train go1-walk --set algorithm.entropy_coef=0.005 --seed 2
          surefoot train --resume last --iterations 3000"""


@dataclass(frozen=True)
class Options:
    """The command line of `train`."""

    task: str | None
    config_file: str | None
    assignments: tuple[str, ...]
    seed: int | None
    num_envs: int | None
    nproc: int | None
    device: str
    iterations: int | None
    steps: int | None
    minutes: float | None
    run_dir: str | None
    resume: str | None
    quiet: bool


@click.command(epilog=_EPILOG)
@click.argument("task", metavar="[TASK]", required=False)
@config_options
@click.option(
    "--nproc", type=click.IntRange(min=1), metavar="N", help="Processes; the environments are divided."
)
@device_option
@click.option("--iterations", type=count, metavar="N", help="Of the whole run.  [default: max_iterations]")
@click.option("--steps", type=count, metavar="N", help="Environment steps of the whole run, instead.")
@click.option(
    "--minutes", type=click.FloatRange(min=0, min_open=True), metavar="M", help="Of the whole run, instead."
)
@click.option("--run-dir", metavar="DIR", help="Where the run's files go.  [default: runs/TASK/TIME_seedN]")
@click.option("--resume", metavar="RUN", help="Go on with a run, with its configuration; instead of TASK.")
@click.option("--quiet", is_flag=True, help="Print warnings and errors only.")
@debug_option
@click.pass_context
def command(ctx: click.Context, **values: Any) -> None:
    """Train on TASK, or go on with a run.

    Defaults < the task's preset < --config < --set < --seed and --num-envs. --iterations, --steps and
    --minutes stop the run; schedules keep the horizon that max_iterations gives them.
    """
    from surefoot.cli.launch import is_worker, launch
    from surefoot.cli.session import run
    from surefoot.config import build_extensions
    from surefoot.training.hooks import build_hooks

    options = Options(**values)
    _check_usage(options, ctx)
    plan = _plan(options)
    # before any environment or process is made
    build_extensions(plan.config)
    build_hooks(plan.config)
    check_writable(plan.run_dir)
    _check_device(options.device, plan.config.nproc)
    if plan.config.nproc > 1 and not is_worker():
        arguments = ctx.find_root().obj["arguments"]
        if plan.checkpoint is not None:
            # the last one counts: all processes go on from one file, whatever `last` is by then
            arguments = [*arguments, "--resume", str(plan.checkpoint)]
        sys.exit(launch(arguments, plan.config.nproc))
    sys.exit(run(plan))


def _check_usage(options: Options, ctx: click.Context) -> None:
    if (options.task is None) == (options.resume is None):
        got = "both" if options.task else "neither"
        raise click.UsageError(f"expected TASK or --resume RUN, got {got}.", ctx)
    if sum(limit is not None for limit in (options.iterations, options.steps, options.minutes)) > 1:
        raise click.UsageError("--iterations, --steps and --minutes exclude one another.", ctx)
    if options.resume:
        fixed = {
            "--config": options.config_file,
            "--set": options.assignments or None,
            "--seed": options.seed,
            "--num-envs": options.num_envs,
            "--run-dir": options.run_dir,
        }
        for name, value in fixed.items():
            if value is not None:
                raise click.UsageError(
                    f"{name} does not go with --resume: a run keeps what it began with.", ctx
                )


def _check_device(device: str, num_processes: int) -> None:
    num_here = int(os.environ.get("LOCAL_WORLD_SIZE", num_processes))
    if ":" in device and num_here > 1:
        raise ConfigError(
            f"--device {device}: all {num_here} processes would share that GPU; with --device cuda each "
            "takes its own."
        )


def _plan(options: Options) -> Plan:
    """The run that the command line asks for; where torchrun restarts it, from its last checkpoint."""
    from surefoot.cli.session import earlier_start
    from surefoot.training.checkpoint import find_checkpoint, find_run

    if options.resume:
        started = earlier_start(find_run(options.resume), is_default=False)
        return _resumed(replace(options, resume=str(started)) if started else options)
    plan = _new(options)
    started = earlier_start(plan.run_dir, plan.is_default_dir)
    if started is None:
        return plan
    try:
        find_checkpoint(started)
    except CheckpointError:
        return replace(plan, run_dir=started, is_default_dir=False, starts_anew=True)
    return _resumed(replace(options, resume=str(started)))


def _new(options: Options) -> Plan:
    from surefoot.cli.session import Plan

    task = options.task or ""
    overrides = {"seed": options.seed, "num_envs": options.num_envs, "nproc": _num_processes(options)}
    config = resolve_config(task, options.config_file, options.assignments, overrides)
    run_dir = Path(options.run_dir) if options.run_dir else default_run_dir(task, config)
    return Plan(task, config, run_dir, None, *_limits(options), is_default_dir=not options.run_dir)


def _resumed(options: Options) -> Plan:
    from surefoot.cli.session import Plan
    from surefoot.config import build_config
    from surefoot.training.checkpoint import find_checkpoint, find_run, load_checkpoint

    run = options.resume or ""
    checkpoint = find_checkpoint(run)
    state = load_checkpoint(checkpoint)
    if state["task"] is None:
        raise CheckpointError(
            f"{checkpoint} was made from Python, with an environment of its own: go on there with "
            "OnPolicyRunner.load(), not with --resume."
        )
    config = build_config(state["config"])
    processes = _num_processes(options)
    if processes is not None:
        config = build_config(replace(config, nproc=processes))
    return Plan(state["task"], config, find_run(run), checkpoint, *_limits(options))


def _num_processes(options: Options) -> int | None:
    """`--nproc`; in a process started by torchrun, what it started."""
    from surefoot.cli.launch import is_worker

    return int(os.environ["WORLD_SIZE"]) if is_worker() else options.nproc


def _limits(options: Options) -> tuple[int | None, int | None, float | None, str, bool]:
    return options.iterations, options.steps, options.minutes, options.device, options.quiet


def default_run_dir(task: str, config: TrainConfig) -> Path:
    """`runs/<task>/<date>_<time>_seed<seed>`; `experiment_name` and `run_name` change its parts."""
    import time

    name = config.experiment_name or task.replace("/", "_").replace(":", "_")
    suffix = f"_{config.run_name}" if config.run_name else ""
    stem = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_seed{config.seed}{suffix}"
    path, count = Path("runs") / name / stem, 1
    while path.exists():
        count += 1
        path = path.with_name(f"{stem}_{count}")
    return path


def check_writable(directory: Path) -> None:
    """A ConfigError where the run directory could not be made; nothing stays behind."""
    existing = directory
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise ConfigError(
            f"run directory '{directory}': '{existing}' is a file; choose another with --run-dir."
        )
    try:
        # permissions do not tell all: a file system may be read-only, or no place for directories
        tempfile.TemporaryDirectory(dir=existing).cleanup()
    except OSError as error:
        raise ConfigError(
            f"run directory '{directory}': cannot write in '{existing}' ({error.strerror}); set --run-dir."
        ) from error
