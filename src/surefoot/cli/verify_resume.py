"""`surefoot verify-resume`: a run that is killed and resumed, held against one that is not."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import click

from surefoot.cli import FAILED, debug_option
from surefoot.cli.options import config_options, count, resolve_config, task_argument


@click.command(
    "verify-resume",
    short_help="Show that a resumed run is bit for bit the same.",
    epilog="Example: surefoot verify-resume go1-walk --num-envs 16",
)
@task_argument
@config_options
@click.option("--before", type=count, default="3", show_default=True, help="Iterations before the kill.")
@click.option("--after", type=count, default="3", show_default=True, help="Iterations after it.")
@debug_option
def command(
    task: str,
    config_file: str | None,
    assignments: tuple[str, ...],
    seed: int | None,
    num_envs: int | None,
    before: int,
    after: int,
) -> None:
    """Train on TASK twice: once through, and once killed on the way and resumed. Compare bit for bit.

    Exits 1 and names the first difference where there is one. On a GPU, and for environments without
    `state_dict`, a difference is to be expected.
    """
    from surefoot.training.verify import first_difference

    resolve_config(task, config_file, assignments, {"seed": seed, "num_envs": num_envs})
    options = [*(("--config", config_file) if config_file else ())]
    for assignment in assignments:
        options += ["--set", assignment]
    options += [] if seed is None else ["--seed", str(seed)]
    options += [] if num_envs is None else ["--num-envs", str(num_envs)]
    options += ["--set", "save_interval=1", "--set", "eval_episodes=0", "--set", "logger=none", "--quiet"]
    kill = f"hooks=[{{class_name: 'surefoot.training.verify:KillAt', iteration: {before}}}]"
    total = str(before + after)
    with tempfile.TemporaryDirectory() as folder:
        whole, parts = Path(folder) / "whole", Path(folder) / "parts"
        _train(task, "--run-dir", str(whole), "--iterations", total, *options)
        _train(task, "--run-dir", str(parts), "--iterations", total, *options, "--set", kill, is_killed=True)
        _train("--resume", str(parts), "--iterations", total, "--quiet")
        last = Path("checkpoints") / "last.pt"
        difference = first_difference(whole / last, parts / last)
    if difference:
        click.echo(f"{task}: not the same after {before} + {after} iterations: {difference}")
        sys.exit(FAILED)
    click.echo(f"{task}: killed after {before} iterations and resumed for {after}: equal bit for bit")


def _train(*arguments: str, is_killed: bool = False) -> None:
    """`surefoot train`; its failure is ours."""
    command = [sys.executable, "-m", "surefoot", "train", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 and not is_killed:
        raise click.ClickException(done.stderr.strip().removeprefix("error: ") or "training failed")
