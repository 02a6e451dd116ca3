"""`surefoot config`: what a run of a task would use."""

from __future__ import annotations

import click

from surefoot.cli import debug_option
from surefoot.cli.options import config_options, resolve_config, task_argument


@click.command(
    epilog="Example: surefoot config Pendulum-v1 --set algorithm.learning_rate=1e-3 > pendulum.yaml"
)
@task_argument
@config_options
@debug_option
def command(
    task: str, config_file: str | None, assignments: tuple[str, ...], seed: int | None, num_envs: int | None
) -> None:
    """Print the resolved configuration of TASK as YAML.

    Every key with its range and effect: docs/configuration.md.
    """
    from surefoot.config import dump_yaml, to_dict, warn_about

    config = resolve_config(task, config_file, assignments, {"seed": seed, "num_envs": num_envs})
    warn_about(config)
    click.echo(dump_yaml(to_dict(config)), nl=False)
