"""Runs a client of RSL-RL as it stands: a script, a module, or a program that a package has installed."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from surefoot.compat.rsl_rl.children import open_in_children
from surefoot.compat.rsl_rl.install import install
from surefoot.errors import ConfigError, did_you_mean


def run_client(arguments: Sequence[str]) -> None:
    """Open the door and run the client as Python would, with `arguments` of its own after its name.

    Args:
        arguments: `SCRIPT ARGS...`, `-m MODULE ARGS...`, or `PROGRAM ARGS...`.

    Raises:
        ConfigError: there is no such client, or rsl_rl is imported already.
    """
    first, *rest = arguments
    if first == "-m" and not rest:
        raise ConfigError("-m needs the name of a module.")
    install()
    with open_in_children():
        if first == "-m":
            module, *rest = rest
            sys.argv = [module, *rest]
            sys.path.insert(0, os.getcwd())
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        elif Path(first).is_file():
            sys.argv = [first, *rest]
            sys.path.insert(0, str(Path(first).resolve().parent))
            runpy.run_path(first, run_name="__main__")
        else:
            program = _program(first)
            sys.argv = [first, *rest]
            sys.exit(program())


def _program(name: str) -> Callable[[], Any]:
    """The function behind a program that a package of this environment has installed."""
    programs = {entry.name: entry for entry in entry_points(group="console_scripts")}
    if name not in programs:
        raise ConfigError(
            f"there is no script '{name}' here, and no installed program of that name."
            f"{did_you_mean(name, programs)}"
        )
    return programs[name].load()
