"""A door that closes again: other tests compare with the real rsl-rl-lib."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch

from surefoot.compat.rsl_rl.install import install


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In here `import rsl_rl` leads into the layer."""

    def take() -> dict[str, object]:
        names = [name for name in sys.modules if name.partition(".")[0] == "rsl_rl"]
        return {name: sys.modules.pop(name) for name in names}

    real = take()
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    install()
    try:
        yield
    finally:
        take()
        sys.modules.update(real)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Weights and noise are drawn from torch's own generator, as clients of RSL-RL do."""
    torch.manual_seed(0)
