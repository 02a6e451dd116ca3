"""From a mapping to a `TrainConfig`: strict, and every fault named by its full key.

The dataclasses state types and ranges once; pydantic checks the single values against them. Sections are
walked here, because an error should name the nearest key, and the one member of a union that the value was
meant for.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Union, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from surefoot.config.describe import base_type, choices, describe, members
from surefoot.config.loading import plain
from surefoot.config.names import unknown_key
from surefoot.config.schema import TrainConfig
from surefoot.errors import ConfigError, did_you_mean
from surefoot.importing import is_import_path

_STRICT = ConfigDict(strict=True, allow_inf_nan=False)
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
    hints, before = _hints(cls), len(errors)
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


def value_faults(hint: Any, value: Any, path: str) -> list[str]:
    """What is wrong with one value, named by its full key; empty where it is of the type `hint`."""
    errors: list[str] = []
    _value(hint, value, path, errors)
    return errors


def _value(hint: Any, value: Any, path: str, errors: list[str]) -> Any:
    arms = [arm for arm in members(hint) if _is_meant(arm, value)]
    sections = [arm for arm in arms if dataclasses.is_dataclass(arm)]
    if sections:
        return _section(sections[0], value, path, errors)  # pyright: ignore[reportArgumentType]
    if arms:
        try:
            return _adapter(Union[tuple(arms)]).validate_json(json.dumps(value))  # noqa: UP007 - members at run time
        except ValidationError as error:
            # inside a list or mapping: name the entry; the first fault of a union's members will do
            path = ".".join([path, *(str(at) for at in error.errors()[0]["loc"] if _leads_into(value, at))])
    errors.append(f"{path} = {_show(value)}: expected {describe(hint)}.{_suggestion(hint, value)}")
    return None


def _leads_into(value: Any, at: int | str) -> bool:
    return (isinstance(value, list) and isinstance(at, int)) or (isinstance(value, dict) and at in value)


def _show(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _suggestion(hint: Any, value: Any) -> str:
    if isinstance(value, str):
        known = [str(c) for c in choices(hint)]
        return did_you_mean(value, known) or did_you_mean(value.lower(), known)
    wants_int = any(base_type(arm) is int for arm in members(hint))
    if isinstance(value, float) and value.is_integer() and wants_int:
        return f" Write {int(value)}."
    if isinstance(value, (int, float)) and any(base_type(arm) is str for arm in members(hint)):
        return " Put it in quotes."
    return ""


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
                yield f"{key}.{i} = {_show(entry)}: expected {wanted}."


@cache
def _hints(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls, include_extras=True)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint, config=_STRICT)


def _is_meant(arm: Any, value: Any) -> bool:
    """Whether a value of this kind (mapping, list, single value) can be meant for this member of a union."""
    base = base_type(arm)
    if isinstance(value, dict):
        return base is dict or dataclasses.is_dataclass(base)
    if isinstance(value, list):
        return base in (list, tuple)
    return base not in (dict, list, tuple) and not dataclasses.is_dataclass(base)
