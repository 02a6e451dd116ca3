"""The command line from the outside."""

import pytest
from click.testing import CliRunner, Result

from surefoot.cli import cli


@pytest.fixture
def surefoot(tmp_path, monkeypatch):
    """Runs a command line in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def run(line: str) -> Result:
        return CliRunner().invoke(cli, line.split())

    return run
