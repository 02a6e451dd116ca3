"""Every example runs as its first line says, and stays short."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from surefoot.algorithm.extension import Extension
from surefoot.config.plugins import resolve_class
from surefoot.testing import check_extension

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_example_runs_two_iterations(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(path.relative_to(ROOT)), "2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "it prints what it learned"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_example_is_short_and_uses_public_names(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    assert not re.search(r"\._[^_]", text), "no private names"


@pytest.mark.parametrize(
    "name",
    [
        "custom_loss:Smoothness",
        "observation_dropout:ObservationDropout",
        "reward_shaping:Shaping",
        "teacher:NearTeacher",
    ],
)
def test_the_examples_extension_keeps_the_contract(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    check_extension(resolve_class(name, Extension, "class_name"), two_processes=False)


@pytest.mark.slow
def test_the_pendulum_example_learns() -> None:
    """The returns of the last iterations are far above those of the first."""
    done = subprocess.run(
        [sys.executable, "examples/pendulum.py", "60"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    returns = [float(line.split("return")[1].split()[0]) for line in done.stdout.splitlines()]
    assert sum(returns[:5]) / 5 < -1000
    assert sum(returns[-10:]) / 10 > -300
