"""The state of the code behind a run: commit, status and difference of the git repositories involved."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

TIMEOUT_S = 60.0


def store_code_state(logdir: str | Path, repositories: Sequence[str | Path]) -> list[str]:
    """Write `git/<repository>.diff` below `logdir`, where it is not there yet.

    Args:
        logdir: Of the run.
        repositories: A file or directory in each; what is in no repository is left out.

    Returns:
        The files written.
    """
    written: list[str] = []
    for place in map(Path, repositories):
        inside = place if place.is_dir() else place.parent
        root = _git(inside, "rev-parse", "--show-toplevel")
        commit = _git(inside, "rev-parse", "HEAD")
        if root is None or commit is None:
            continue
        path = Path(logdir) / "git" / f"{Path(root).name}.diff"
        if path.exists():
            continue
        parts = {"commit": commit, "status": _git(inside, "status"), "diff": _git(inside, "diff", "HEAD")}
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "\n\n".join(f"--- git {name} ---\n{part or ''}" for name, part in parts.items())
        path.write_text(text, encoding="utf-8")
        written.append(str(path))
    return written


def _git(directory: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(directory), *arguments]
    try:
        result = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.decode("utf-8", errors="replace").strip()
