"""docs/names.md leads somewhere: each symbol, configuration key and test that it names exists."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from surefoot.config.names import OTHER_TRAINERS, key_paths

ROOT = Path(__file__).parents[1]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "names.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and "`" in line
]
TESTS = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_every_name_leads_to_a_symbol_a_key_and_a_test(row: list[str]) -> None:
    _, _, symbol, key, test = (cell.strip("`") for cell in row)
    module, _, path = symbol.partition(":")
    found = import_module(module)
    for part in filter(None, path.split(".")):
        found = getattr(found, part)
    assert not key or key in key_paths(), f"no configuration key {key}"
    assert not test or test in TESTS, f"no test {test}"


def test_the_page_has_what_other_trainers_users_bring() -> None:
    page = (ROOT / "docs" / "names.md").read_text(encoding="utf-8")
    for name in ("gae_lambda", "clip_range", "vf_coef", "ent_coef", "update_epochs", "SubprocVecEnv"):
        assert f"`{name}`" in page
    assert "DistributedDataParallel" in page
    assert len(ROWS) > 30


def test_other_trainers_keys_lead_to_keys_of_ours() -> None:
    assert all(ours is None or ours in key_paths() for ours in OTHER_TRAINERS.values())
