"""`surefoot fault`: what was in the mini-batch whose update was skipped, or in the step that ended a run."""

from __future__ import annotations

from pathlib import Path

import click

from surefoot.cli import debug_option


@click.command(
    short_help="Show what a skipped or faulty step held.",
    epilog="Example: surefoot fault runs/go1-walk/2026-01-01_12-00-00_seed1/faults/iteration_3_rank_0.pt",
)
@click.argument("file", metavar="FILE")
@debug_option
def command(file: str) -> None:
    """Show the record of a skipped update, or of a step that was not finite: where it happened, and which
    numbers were not finite or huge.
    """
    from surefoot.training.faults import describe_fault, load_fault

    click.echo(describe_fault(load_fault(Path(file))))
