"""Writes docs/configuration.md from the dataclasses and the docstrings under their fields.

python -m surefoot.cli.configuration_page docs/configuration.md
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from surefoot.algorithm.schedules import ScheduleConfig
from surefoot.config import TrainConfig
from surefoot.config.names import NOTES, OTHER_TRAINERS, section_types
from surefoot.extensions.amp.config import AMPConfig
from surefoot.field_types import describe

_HEAD = """# Configuration

Every key with its default, what it takes, and what it does; where a number can be raised or lowered, what to
expect of either. `python -m surefoot.cli.configuration_page docs/configuration.md` writes this page from
the docstrings in the code; a test keeps it up to date.

A run takes, each over the one before: the defaults below, the task's preset, `--config FILE`, `--set`,
and named options such as `--seed`. `surefoot config TASK` prints the result. Files are YAML, loaded safely;
`1e-3` is a number. A key that does not exist, a wrong type or a value out of range stops the run before its
first step.
"""


class Row(NamedTuple):
    """One key of the configuration."""

    key: str
    default: str
    takes: str
    text: str


def page() -> str:
    """The whole page as Markdown."""
    parts = [_HEAD, "## Top level\n", _table(rows(TrainConfig))]
    parts += [
        f"## `{path}`\n\n{_summary(cls)}\n\n{_table(rows(cls))}" for path, cls in _sections(TrainConfig)
    ]
    parts.append(
        "## Schedules\n\n`algorithm.schedule`, `algorithm.clip_schedule` and `algorithm.entropy_schedule` "
        f"take a mapping of these keys.\n\n{_table(rows(ScheduleConfig))}"
    )
    parts.append(f"## `algorithm.amp_cfg`\n\n{_summary(AMPConfig)}\n\n{_table(rows(AMPConfig))}")
    foreign = [
        f"| `{theirs}` | {f'`{ours}`' if ours else ''} | {NOTES.get(theirs, '')} |"
        for theirs, ours in OTHER_TRAINERS.items()
    ]
    parts.append(
        "## Names of other trainers\n\nNot accepted, but answered with ours.\n\n"
        + "\n".join(["| theirs | ours | to know |", "|---|---|---|", *foreign])
    )
    return "\n".join(parts) + "\n"


def rows(cls: type) -> list[Row]:
    """The keys of one section, in order of definition, without those that are sections."""
    hints, texts = get_type_hints(cls, include_extras=True), field_docstrings(cls)
    skipped = dict(section_types(cls))
    return [
        Row(f.name, _default(f), describe(hints[f.name]), texts[f.name])
        for f in dataclasses.fields(cls)
        if f.name not in skipped
    ]


def field_docstrings(cls: type) -> dict[str, str]:
    """The docstring under each field of a dataclass, those of its bases included."""
    texts: dict[str, str] = {}
    for owner in reversed([c for c in cls.__mro__ if dataclasses.is_dataclass(c)]):
        tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
        body = tree.body[0].body  # pyright: ignore[reportAttributeAccessIssue]
        for field, text in itertools.pairwise(body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(text, ast.Expr)
                and isinstance(field.target, ast.Name)
            ):
                texts[field.target.id] = " ".join(ast.literal_eval(text.value).split())
    return texts


def _sections(cls: type, prefix: str = "") -> Iterator[tuple[str, type]]:
    for name, section in section_types(cls):
        yield prefix + name, section
        yield from _sections(section, f"{prefix}{name}.")


def _summary(cls: type) -> str:
    return (inspect.getdoc(cls) or "").partition("\n\n")[0]


def _default(field: dataclasses.Field[Any]) -> str:
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return value if isinstance(value, str) else json.dumps(value)


def _table(entries: list[Row]) -> str:
    lines = ["| key | default | takes | what it does |", "|---|---|---|---|"]
    lines += [f"| `{r.key}` | `{r.default}` | {r.takes} | {r.text} |" for r in entries]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
