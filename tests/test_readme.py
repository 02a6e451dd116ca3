"""The README in both languages: its Python runs, its links lead somewhere, its content is the same."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "README.zh-CN.md"]
TEXTS = [page.read_text(encoding="utf-8") for page in PAGES]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_the_python_runs(tmp_path: Path) -> None:
    (code,) = blocks(TEXTS[0], "python")
    short = code.replace("num_learning_iterations=20", "num_learning_iterations=2")
    done = subprocess.run(
        [sys.executable, "-c", short], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.splitlines()[-1]) < 0
    assert (tmp_path / "runs" / "first" / "metrics.jsonl").exists()


@pytest.mark.parametrize("text", TEXTS, ids=["en", "zh"])
def test_links_and_pictures_exist(text: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert target.startswith("http") or (ROOT / target).exists(), target


def test_both_languages_have_the_same_content() -> None:
    english, chinese = TEXTS
    assert blocks(english, "python") == blocks(chinese, "python")
    for pattern in (r"^## ", r"^\| ", r"\]\("):
        counts = [len(re.findall(pattern, text, re.MULTILINE)) for text in (english, chinese)]
        assert counts[0] == counts[1], f"{pattern}: {counts}"
    commands = [
        [line.split("#")[0].strip() for block in blocks(text, "sh") for line in block.splitlines()]
        for text in (english, chinese)
    ]
    assert commands[0] == commands[1]


def test_the_map_names_what_exists() -> None:
    for name in re.findall(r"^  (\w+[/.]\w*)", TEXTS[0], re.MULTILINE):
        assert (ROOT / "src" / "surefoot" / name.rstrip("/")).exists(), name
