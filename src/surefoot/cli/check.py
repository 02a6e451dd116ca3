"""`surefoot check`: what would spoil training, before training."""

from __future__ import annotations

import sys

import click

from surefoot.cli import FAILED, debug_option
from surefoot.cli.options import config_options, device_option, resolve_config, task_argument


@click.command(
    short_help="Look for mistakes in an environment.", epilog="Example: surefoot check my_module:make_env"
)
@task_argument
@config_options
@device_option
@debug_option
def command(
    task: str,
    config_file: str | None,
    assignments: tuple[str, ...],
    seed: int | None,
    num_envs: int | None,
    device: str,
) -> None:
    """Run the environment of TASK for a moment and hold it against the contract.

    Exits 1 where something would spoil training.
    """
    from surefoot import tasks
    from surefoot.cli.options import pick_device
    from surefoot.envs.check import check_env

    config = resolve_config(task, config_file, assignments, {"seed": seed, "num_envs": num_envs})
    count = num_envs or min(config.num_envs, 4)
    env = tasks.make(
        task,
        count,
        seed=config.seed,
        backend=config.env.backend,
        kwargs=config.env.kwargs,
        device=pick_device(device),
    )
    try:
        report = check_env(env, seed=config.seed)
    finally:
        env.close()
    click.echo(f"{task}: {report}")
    if not report.is_ok:
        sys.exit(FAILED)
