"""`surefoot rsl-rl`: run a program that was written for RSL-RL, on Surefoot."""

from __future__ import annotations

import sys

import click

from surefoot.cli import FAILED, debug_option
from surefoot.errors import SurefootError


@click.command(
    short_help="Run a script written for RSL-RL, unchanged.",
    epilog="Example: surefoot rsl-rl train.py --num_envs 4096",
    # all after the client's name belongs to it, `-m` and `--help` too
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument(
    "arguments", metavar="[SCRIPT | -m MODULE | PROGRAM] ARGS...", nargs=-1, type=click.UNPROCESSED
)
@debug_option
def command(arguments: tuple[str, ...]) -> None:
    """Run SCRIPT with `import rsl_rl` and the version of `rsl-rl-lib` (5.5.1) answered by Surefoot.

    SCRIPT is a Python file; instead of it may stand `-m MODULE`, or a PROGRAM that a package in this
    environment has installed. What follows is passed on.
    """
    if not arguments:
        raise click.UsageError("give a SCRIPT, -m MODULE or a PROGRAM.", click.get_current_context())
    from surefoot.compat.rsl_rl.client import run_client

    try:
        run_client(arguments)
    except SurefootError:
        raise
    except Exception:  # noqa: BLE001 - a fault of the client is shown as Python shows it
        sys.excepthook(*sys.exc_info())  # pyright: ignore[reportArgumentType]
        sys.exit(FAILED)
