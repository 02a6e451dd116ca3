"""`surefoot tasks`: what can be trained."""

from __future__ import annotations

import click

from surefoot.cli import debug_option


@click.command(short_help="List the bundled tasks and those with a preset.", epilog="Example: surefoot tasks")
@debug_option
def command() -> None:
    """List the bundled tasks and the Gymnasium tasks with a preset.

    Any other Gymnasium id, or package.module:factory, is a TASK too and starts from general defaults.
    """
    from surefoot.tasks import list_tasks

    tasks = list_tasks()
    width = max(map(len, tasks))
    for name, about in tasks.items():
        click.echo(f"{name:<{width}}  {about}")
