"""`surefoot import-config`: a configuration of RSL-RL in Surefoot's form."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from surefoot.cli import debug_option
from surefoot.errors import ConfigError


@click.command(
    short_help="Turn RSL-RL's configuration into Surefoot's.",
    epilog="Example: surefoot import-config agent.yaml --out config.yaml",
)
@click.argument("file", metavar="FILE")
@click.option("--out", metavar="FILE", help="Write there instead of printing.")
@debug_option
def command(file: str, out: str | None) -> None:
    """Print FILE, of any generation of RSL-RL, in Surefoot's form.

    Comments say what changed and why. `surefoot train TASK --config FILE` takes both forms.
    """
    from surefoot.config import build_config, dump_yaml, load_yaml
    from surefoot.config.rsl_rl import from_rsl_rl, is_rsl_rl

    values = load_yaml(Path(file))
    if not is_rsl_rl(values):
        raise ConfigError(f"'{file}' is not in RSL-RL's form; if it is in Surefoot's, use it as it is.")
    config, notes = from_rsl_rl(values)
    build_config(config)
    text = f"{as_comments(file, notes)}\n{dump_yaml(config)}"
    if out is None:
        click.echo(text, nl=False)
        return
    try:
        Path(out).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write '{out}': {error.strerror}.") from None
    click.echo("\n".join([f"{out}: written from {file}.", *(f"  {note}" for note in notes)]))


def as_comments(file: str, notes: Sequence[str]) -> str:
    """The head of a file that was made from another."""
    return "\n".join([f"# From {file}, a configuration of RSL-RL.", *(f"#   {note}" for note in notes)])
