"""Objects named in a configuration as `package.module:name`."""

from __future__ import annotations

import importlib
from typing import Any

from surefoot.errors import ConfigError, did_you_mean


def is_import_path(name: str) -> bool:
    """Whether `name` has the form `package.module:name`."""
    module, colon, attribute = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")])


def import_object(path: str, key: str) -> Any:
    """What stands at `path`; `key` is where the path was written.

    Raises:
        ConfigError: the form is wrong, or there is no such module or name in it.
    """
    start = f'{key} = "{path}"'
    if not is_import_path(path):
        raise ConfigError(f"{start}: expected package.module:name.")
    module_name, _, attribute = path.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(
            f"{start}: there is no module '{error.name}'; it must be installed or in the current directory."
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = did_you_mean(part, [name for name in vars(found) if not name.startswith("_")])
            raise ConfigError(f"{start}: '{module_name}' has no '{attribute}'.{near}")
        found = getattr(found, part)
    return found
