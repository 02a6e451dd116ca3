"""Whether a value is of the type and in the range that its field states."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Union, get_type_hints

import numpy as np
from pydantic import ConfigDict, TypeAdapter, ValidationError

from surefoot.errors import ConfigError, did_you_mean
from surefoot.field_types import base_type, choices, describe, members

_STRICT = ConfigDict(strict=True, allow_inf_nan=False)


class Checked:
    """A dataclass whose fields are held against their annotations when it is made.

    Raises:
        ConfigError: One line for each fault.
    """

    def __post_init__(self) -> None:
        faults = [_fault(hint, getattr(self, name), name) for name, hint in field_hints(type(self)).items()]
        if any(faults):
            raise ConfigError("\n".join(fault for fault in faults if fault))


def _fault(hint: Any, value: Any, name: str) -> str | None:
    sections = [arm for arm in members(hint) if dataclasses.is_dataclass(arm)]
    if any(isinstance(value, arm) for arm in sections):  # pyright: ignore[reportArgumentType]
        return None
    if dataclasses.is_dataclass(value) or (sections and isinstance(value, Mapping)):
        wanted = " or ".join(arm.__name__ for arm in sections) or describe(hint)  # pyright: ignore
        return f"{name} is a {type(value).__name__}: expected {wanted}."
    return convert(hint, plain(value, name), name)[1]


@cache
def field_hints(cls: type) -> dict[str, Any]:
    """The annotation of each field of a dataclass."""
    hints = get_type_hints(cls, include_extras=True)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def convert(hint: Any, value: Any, path: str) -> tuple[Any, str | None]:
    """A plain value as the type `hint` has it (a list as a tuple), or what is wrong with it.

    Args:
        hint: The field's type; of a union's members, those that are dataclasses are not considered.
        value: Made of dict, list, str, int, float, bool and None.
        path: Its full key.
    """
    arms = [arm for arm in meant_arms(hint, value) if not dataclasses.is_dataclass(arm)]
    if arms:
        try:
            return _adapter(Union[tuple(arms)]).validate_json(json.dumps(value)), None  # noqa: UP007 - members at run time
        except ValidationError as error:
            # inside a list or mapping: name the entry; the first fault of a union's members will do
            path = ".".join([path, *(str(at) for at in error.errors()[0]["loc"] if _leads_into(value, at))])
    return None, f"{path} = {show(value)}: expected {describe(hint)}.{_suggestion(hint, value)}"


def meant_arms(hint: Any, value: Any) -> list[Any]:
    """The members of a union that a value of this kind (mapping, list, single value) can be meant for."""
    return [arm for arm in members(hint) if _is_meant(arm, value)]


def plain(value: Any, path: str = "") -> Any:
    """A copy made of dict, list, str, int, float, bool and None only."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ConfigError(
                    f"{path or 'configuration'}: the key {key!r} must be text; put it in quotes."
                )
        return {key: plain(x, f"{path}.{key}" if path else key) for key, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(x, f"{path}.{i}") for i, x in enumerate(value)]
    if isinstance(value, Path):
        return str(value)
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, np.generic):
        return value.item()
    raise ConfigError(
        f"{path or 'configuration'} = {value!r:.60}: expected plain data (text, number, boolean, null, list "
        f"or mapping), got {type(value).__name__}; name a class as 'package.module:Class'."
    )


def _leads_into(value: Any, at: int | str) -> bool:
    return (isinstance(value, list) and isinstance(at, int)) or (isinstance(value, dict) and at in value)


def show(value: Any) -> str:
    """For errors, on one line."""
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
