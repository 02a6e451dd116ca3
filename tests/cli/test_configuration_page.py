"""docs/configuration.md is written from the code."""

from pathlib import Path

from surefoot.cli.configuration_page import page
from surefoot.config.names import key_paths

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_up_to_date():
    command = "python -m surefoot.cli.configuration_page docs/configuration.md"
    assert PAGE.read_text(encoding="utf-8") == page(), f"run `{command}`"


def test_every_key_is_on_the_page_with_its_docstring():
    text = page()
    sections = {path.rpartition(".")[0] for path in key_paths()} - {""}
    assert all(f"## `{section}`" in text for section in sections)
    for path in key_paths():
        assert path in sections or f"| `{path.rpartition('.')[2]}` | `" in text
