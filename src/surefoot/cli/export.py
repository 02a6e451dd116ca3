"""`surefoot export`: a trained policy as files for a robot."""

from __future__ import annotations

from pathlib import Path

import click

from surefoot.cli import debug_option
from surefoot.cli.options import checkpoint_name, run_argument
from surefoot.errors import ConfigError

NATIVE = ("onnx", "torchscript")


@click.command(
    short_help="Export the policy of RUN for a robot.",
    epilog="Example: surefoot export last --format all --out robot/policy",
)
@run_argument
@click.option(
    "--format",
    "kind",
    type=click.Choice([*NATIVE, "rsl_rl", "all"]),
    default="onnx",
    show_default=True,
    help="rsl_rl: a checkpoint for rsl-rl-lib 5.5.1.",
)
@click.option("--checkpoint", type=checkpoint_name, default="best", show_default=True, metavar="best|last|N")
@click.option("--out", metavar="DIR", help="Where to.  [default: RUN/exported]")
@debug_option
def command(run: str, kind: str, checkpoint: str, out: str | None) -> None:
    """Export the policy of RUN, normalisation and memory included.

    Every file is checked against PyTorch before it is written. Beside it, policy.json describes inputs and
    outputs, and golden.npz holds inputs with the right outputs.
    """
    from surefoot.deploy.export import export_policy
    from surefoot.training.checkpoint import find_checkpoint, find_run

    file = find_checkpoint(run, checkpoint)
    directory = Path(out) if out is not None else find_run(run) / "exported"
    formats = NATIVE if kind == "all" else (kind,)
    if kind != "rsl_rl":
        export = export_policy(file, directory, formats)
        for path in export.files:
            click.echo(path)
        for name, difference in export.differences.items():
            found = "not checked" if difference is None else f"at most {difference:.1e} from PyTorch"
            click.echo(f"{name}: {found}")
    if kind in ("rsl_rl", "all"):
        try:
            click.echo(_export_to_rsl_rl(file, directory))
        except ConfigError as error:
            if kind != "all":
                raise
            click.echo(f"rsl_rl: left out, {error}")


def _export_to_rsl_rl(file: Path, directory: Path) -> Path:
    """The checkpoint with RSL-RL's keys, under RSL-RL's name."""
    from surefoot.compat.rsl_rl.checkpoints import from_native
    from surefoot.training.checkpoint import load_checkpoint, save_checkpoint

    if directory.resolve() == file.resolve().parent:
        raise ConfigError(
            f"--out {directory} holds the run's own checkpoints, of the same name; take another."
        )
    state = load_checkpoint(file)
    return save_checkpoint(directory / f"model_{state['iteration']}.pt", from_native(state))
