"""The door: `import rsl_rl` and the metadata of `rsl-rl-lib`, answered by Surefoot.

Nothing of that name is shipped, so that the real library can be installed beside Surefoot.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from types import ModuleType

from surefoot.errors import ConfigError

PACKAGE = "surefoot.compat.rsl_rl"
NAME = "rsl_rl"
DISTRIBUTION = "rsl-rl-lib"
VERSION = "5.5.1"


def install() -> None:
    """Let `rsl_rl`, and every module below it, be this layer, and `rsl-rl-lib` its version 5.5.1.

    It lasts as long as the process; a second call does nothing.

    Raises:
        ConfigError: another rsl_rl is imported already: some of its classes would stay in use.
    """
    if any(isinstance(finder, _Door) for finder in sys.meta_path):
        return
    for name, module in sys.modules.items():
        if name.partition(".")[0] == NAME:
            raise ConfigError(
                f"rsl_rl is already imported, from {getattr(module, '__file__', None)}; call install() "
                "before anything imports it, or start the script with `surefoot rsl-rl SCRIPT`."
            )
    sys.meta_path.insert(0, _Door())


class _Door(MetaPathFinder, Loader):
    """Finds `rsl_rl.x` as `surefoot.compat.rsl_rl.x`: the same module under a second name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        head, dot, rest = fullname.partition(".")
        if head != NAME:
            return None
        own = importlib.util.find_spec(f"{PACKAGE}{dot}{rest}")
        if own is None:
            return None
        spec = ModuleSpec(fullname, self, origin=own.origin, loader_state=own)
        spec.submodule_search_locations = own.submodule_search_locations
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return importlib.import_module(spec.loader_state.name)

    def exec_module(self, module: ModuleType) -> None:
        """It ran under its own name, whose spec the import system has just replaced."""
        spec = module.__spec__
        assert spec is not None
        module.__spec__ = spec.loader_state

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterator[Distribution]:
        name = None if context is None else context.name
        if name is None or re.sub(r"[-_.]+", "-", name).lower() == DISTRIBUTION:
            yield _Metadata()


class _Metadata(Distribution):
    """What `importlib.metadata` is told of `rsl-rl-lib`."""

    def read_text(self, filename: str) -> str | None:
        return {
            "METADATA": f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: {VERSION}\n"
            "Summary: RSL-RL's interface, answered by Surefoot\n",
            "top_level.txt": f"{NAME}\n",
        }.get(filename)

    def locate_file(self, path: object) -> Path:  # pyright: ignore[reportIncompatibleMethodOverride]
        return Path(__file__).parent.parent / str(path)
