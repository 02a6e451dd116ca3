"""The command line: one file per command, imported when it is called. `surefoot --help` imports no torch."""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from surefoot.errors import CheckpointError, ConfigError

COMMANDS = (
    "train",
    "eval",
    "play",
    "export",
    "check",
    "tasks",
    "config",
    "fault",
    "verify-resume",
    "rsl-rl",
    "import-config",
)

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
"""Exit codes: success; a failed run; bad usage, configuration, run or checkpoint; Ctrl-C."""

REPORT_VARIABLE = "SUREFOOT_FAILURE_REPORT"
"""Environment variable: the file for the exit code and the error of the first process to fail."""


class _Commands(click.Group):
    """Imports `surefoot.cli.<name>` for a command, and turns every error into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return import_module(f"surefoot.cli.{cmd_name.replace('-', '_')}").command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"Did you mean '{near[0]}'?" if near else f"There are: {', '.join(COMMANDS)}."
            raise click.UsageError(f"there is no command '{args[0]}'. {hint}", ctx)
        return super().resolve_command(ctx, args)

    def main(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> None:
        arguments = list(sys.argv[1:] if args is None else args)
        state = {"arguments": arguments, "debug": False}
        extra = {**extra, "standalone_mode": False, "obj": state}
        code: Any = OK
        try:
            # one name, also where it was started as `python -m surefoot`
            code = super().main(arguments, "surefoot", **extra)
        except (click.Abort, KeyboardInterrupt):
            code = INTERRUPTED
        except BrokenPipeError:
            # whoever read our output has seen enough; Python must not try to flush it again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = FAILED
        except Exception as error:  # noqa: BLE001 - the one place where any error becomes an exit code
            code = _exit_code(error)
            if not tell_launcher(error, bool(state["debug"])):
                sys.stderr.write(_report(error, bool(state["debug"])))
        sys.exit(code if isinstance(code, int) else OK)


def _exit_code(error: Exception) -> int:
    return BAD_INPUT if isinstance(error, (click.UsageError, ConfigError, CheckpointError)) else FAILED


def _report(error: Exception, is_debug: bool) -> str:
    """The error as one line, with `--debug` after where it arose."""
    where = "".join(traceback.format_exception(error)) if is_debug else ""
    return f"{where}error: {describe_error(error)}\n"


def tell_launcher(error: Exception, is_debug: bool | None = None) -> bool:
    """Leave the error to `cli.launch`, which shows that of the first process to fail.

    A process calls it before it leaves the process group: the others fail because of that.

    Returns:
        Whether there is a launcher.
    """
    report = os.environ.get(REPORT_VARIABLE)
    if report is None:
        return False
    if is_debug is None:
        context = click.get_current_context(silent=True)
        is_debug = context is not None and bool(context.find_root().obj["debug"])
    with contextlib.suppress(FileExistsError), open(report, "x", encoding="utf-8") as file:
        file.write(f"{_exit_code(error)}\n{_report(error, is_debug)}")
    return True


def describe_error(error: Exception) -> str:
    """One line; what Surefoot does not raise on purpose has its type in front."""
    from surefoot.errors import SurefootError

    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        hint = f" See `{context.command_path} --help`." if context else ""
        return " ".join(error.format_message().split()) + hint
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
    if isinstance(error, SurefootError):
        more = f" (and {len(lines) - 1} more; --debug shows all)" if len(lines) > 1 else ""
        return lines[0] + more
    advice = " Lower num_envs or num_steps_per_env, or raise num_mini_batches."
    is_memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return f"{type(error).__name__}: {' '.join(lines)}{advice if is_memory else ''} (--debug shows where)"


def _debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.find_root().obj["debug"] = True


debug_option = click.option(
    "--debug",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_debug,
    help="Show where an error arose.",
)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: surefoot train Pendulum-v1",
)
@click.version_option(package_name="surefoot", message="surefoot %(version)s")
@debug_option
def cli() -> None:
    """PPO for legged robots and any Gymnasium task.

    TASK is a bundled task (go1-walk), a Gymnasium id (Pendulum-v1) or package.module:factory. RUN is a run
    directory, a checkpoint file, or `last`: the newest run that has a checkpoint.
    """


def _show_warning(message: Warning | str, _category: type[Warning], *_: object, **__: object) -> None:
    """One line, once for all processes; a traceback keeps its lines."""
    text, start, trace = str(message).partition("\nTraceback (most recent call last):\n")
    line = f"warning: {' '.join(text.split())}\n"
    if "RANK" in os.environ:
        from surefoot import distributed

        # before they have joined one another, all processes find the same
        is_alone = distributed.world_size() == 1
        if os.environ["RANK"] != "0" if is_alone else not distributed.is_first(line):
            return
    sys.stderr.write(line + start.lstrip("\n") + trace)


def main() -> None:
    """The entry point of the `surefoot` program."""
    warnings.showwarning = _show_warning  # pyright: ignore[reportAttributeAccessIssue]
    # tasks, extensions and hooks are found from the current directory too, as with `python -m`
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    cli()
