"""manifest.json: with what a run was made. Enough to repeat it, or to see why a repetition differs."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from surefoot import distributed

_PACKAGES = ("torch", "gymnasium", "mujoco", "numpy")


def write_manifest(
    directory: Path,
    *,
    task: str | None,
    seed: int,
    device: torch.device,
    iteration: int,
    is_exact: bool,
    compile_mode: str,
) -> None:
    """Write the file, or add a session to it where the run goes on.

    Args:
        directory: The run directory.
        task: What was trained, as on the command line; None for an environment made by the caller.
        seed: Of the run.
        device: Of the algorithm.
        iteration: Where this session starts.
        is_exact: Whether a resumed run repeats an uninterrupted one bit for bit.
        compile_mode: What was decided: `off`, `default` or `cudagraph`.
    """
    path = directory / "manifest.json"
    data: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        data = json.loads(path.read_text(encoding="utf-8"))
    session = {
        "started": datetime.now(timezone.utc).astimezone().isoformat(timespec="seconds"),
        "iteration": iteration,
        "command": command_line(sys.argv),
        "device": _device_name(device),
        "processes": distributed.world_size(),
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": versions(_PACKAGES),
        "git": git_state(Path.cwd()),
        "determinism": "exact" if is_exact else "seeded",
        "compile": compile_mode,
    }
    if not data:
        data = {"task": task, "version": versions(["surefoot"])["surefoot"], "seed": seed, **session}
    else:
        data.setdefault("sessions", []).append(session)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def command_line(argv: Sequence[str]) -> str:
    """The command as typed, without the directory of the program."""
    return " ".join([Path(argv[0]).name, *argv[1:]]) if argv else ""


def versions(packages: Sequence[str]) -> dict[str, str | None]:
    """Installed versions; None for a package that is not there."""
    return {name: _version(name) for name in packages}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def git_state(directory: Path) -> dict[str, Any] | None:
    """Commit and whether the tree differs from it; None outside of git."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(directory), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "is_modified": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _device_name(device: torch.device) -> str:
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)
