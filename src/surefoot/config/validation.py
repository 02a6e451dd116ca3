"""From a mapping to a `TrainConfig`: strict, and every fault named by its full key.

The dataclasses state types and ranges once; `field_checks` holds the single values against them. Sections are
walked here, because an error should name the nearest key, and the one member of a union that the value was
meant for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from surefoot.config.names import unknown_key
from surefoot.config.schema import TrainConfig
from surefoot.errors import ConfigError, did_you_mean
from surefoot.field_checks import convert, field_hints, meant_arms, plain, show
from surefoot.importing import is_import_path

_CHOICE_OR_CLASS = {"algorithm.policy_objective": ("clip", "penalty")}
"""Keys that take a name from this list or `package.module:Class`."""


def build_config(config: Mapping[str, Any] | TrainConfig) -> TrainConfig:
    """The validated configuration. The argument stays as it is; what it does not name has its default.

    Raises:
        ConfigError: One line for each fault.
    """
    if not isinstance(config, (Mapping, TrainConfig)):
        raise ConfigError(f"expected a configuration mapping, got {type(config).__name__}.")
    errors: list[str] = []
    values = plain(config)
    built = _section(TrainConfig, values, "", errors)
    errors += _reference_faults(values)
    if errors:
        raise ConfigError("\n".join(errors))
    assert isinstance(built, TrainConfig)
    return built


def _section(cls: type, values: Mapping[str, Any], path: str, errors: list[str]) -> Any:
    """An instance of the dataclass `cls`, or None after adding to `errors`."""
    hints, before = field_hints(cls), len(errors)
    fields: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{path}.{key}" if path else key
        if key in hints:
            fields[key] = _value(hints[key], value, name, errors)
        else:
            errors.append(unknown_key(name, cls))
    if len(errors) > before:
        return None
    try:
        return cls(**fields)
    except ConfigError as error:
        names_key = str(error).partition(" ")[0].partition(".")[0] in hints
        errors.append(f"{path}{'.' if names_key else ': '}{error}" if path else str(error))
        return None


def _value(hint: Any, value: Any, path: str, errors: list[str]) -> Any:
    sections = [arm for arm in meant_arms(hint, value) if dataclasses.is_dataclass(arm)]
    if sections:
        return _section(sections[0], value, path, errors)  # pyright: ignore[reportArgumentType]
    converted, fault = convert(hint, value, path)
    if fault:
        errors.append(fault)
    return converted


def _reference_faults(values: Mapping[str, Any]) -> Iterator[str]:
    """Class names that are neither a known name nor `package.module:Class`; nothing is imported here."""
    for path, known in _CHOICE_OR_CLASS.items():
        section, _, key = path.partition(".")
        part = values.get(section)
        name = part.get(key) if isinstance(part, dict) else None
        if isinstance(name, str) and name not in known and not is_import_path(name):
            wanted = ", ".join([*known, "package.module:Class"])
            yield f'{path} = "{name}": expected {wanted}.{did_you_mean(name, known)}'
    for key in ("extensions", "hooks"):
        entries = values.get(key)
        for i, entry in enumerate(entries if isinstance(entries, list) else []):
            if isinstance(entry, dict) and not isinstance(entry.get("class_name"), str):
                wanted = "{class_name: NAME or package.module:Class, ...}"
                yield f"{key}.{i} = {show(entry)}: expected {wanted}."
