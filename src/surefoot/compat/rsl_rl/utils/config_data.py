"""Configurations of clients as plain data, for services that show them beside the charts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

PARTS = ("runner_cfg", "alg_cfg", "policy_cfg")


def as_dict(config: Any) -> dict[str, Any]:
    """A client's configuration (a mapping, a dataclass, something with `to_dict()`) as plain data; what
    is none of these is shown by its attributes.
    """
    if isinstance(config, Mapping):
        return {str(key): _plain(value) for key, value in config.items()}
    if callable(to_dict := getattr(config, "to_dict", None)):
        return as_dict(to_dict())
    if dataclasses.is_dataclass(config):
        return {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config)}
    return {key: _plain(value) for key, value in getattr(config, "__dict__", {}).items()}


def by_part(*parts: Any) -> dict[str, Any]:
    """The configurations of runner, algorithm and policy, as versions before 5.4 hand them to a writer."""
    return {name: as_dict(part) for name, part in zip(PARTS, parts, strict=False)}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return as_dict(value)
    if isinstance(value, (list, tuple, set)):
        return [_plain(x) for x in value]
    return str(value)
