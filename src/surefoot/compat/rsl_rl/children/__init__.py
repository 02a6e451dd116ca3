"""The door in the processes that a client starts: workers of torchrun or torchrunx, spawned loaders.

They begin as fresh interpreters. Python looks for a module `sitecustomize` at its start; the one in this
directory opens the door, then runs the one that it hides.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def open_in_children() -> Iterator[None]:
    """Python processes started meanwhile have the door open, by way of `PYTHONPATH`."""
    before = os.environ.get("PYTHONPATH")
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = here if not before else os.pathsep.join([here, before])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
