"""Types and ranges in words, for error texts and for the page of all keys."""

from __future__ import annotations

import dataclasses
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Interval, Le, Len, Lt


def members(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the type itself."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def base_type(hint: Any) -> Any:
    """The type without its range and without its parameters."""
    hint = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return get_origin(hint) or hint


def choices(hint: Any) -> list[Any]:
    """The values of every Literal in the type."""
    return [c for arm in members(hint) if get_origin(arm) is Literal for c in get_args(arm)]


_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
_PLURALS = {int: "whole numbers", float: "numbers", str: "texts", dict: "mappings"}


def is_plain(hint: Any) -> bool:
    """Whether every value of the type is a single number, truth value, text or null."""
    return all(base_type(arm) is Literal or base_type(arm) in _NAMES for arm in members(hint))


def describe(hint: Any) -> str:
    """The type in words: `a number above 0, or null`."""
    arms = members(hint)
    words = [_describe_one(arm) for arm in arms if arm is not type(None)]
    return ", or ".join(words + ["null"] * (len(words) < len(arms)))


def _describe_one(hint: Any) -> str:
    if get_origin(hint) is Annotated:
        inner, *limits = get_args(hint)
        text = _describe_one(inner) + " and".join(f" {_limit(x)}" for x in limits if not isinstance(x, Len))
        return (
            text.replace("a list", "a non-empty list", 1) if any(isinstance(x, Len) for x in limits) else text
        )
    base, arguments = base_type(hint), get_args(hint)
    if base is Literal:
        return ("one of " if len(arguments) > 1 else "") + ", ".join(str(c) for c in arguments)
    if base is list:
        item = arguments[0]
        if base_type(item) is Literal:
            return f"a list from {', '.join(choices(item))}"
        if base_type(item) is tuple:
            return f"a list of {_describe_one(item)}"
        limits = get_args(item)[1:] if get_origin(item) is Annotated else ()
        return f"a list of {_PLURALS.get(base_type(item), 'lists')}" + "".join(
            f" {_limit(x)}" for x in limits
        )
    if base is tuple:
        return f"[{', '.join(_describe_one(a) for a in arguments)}]"
    if base is dict:
        value = _describe_one(arguments[1]) if arguments[1:] != (Any,) else ""
        return f"a mapping of names to {value}" if value else "a mapping"
    if dataclasses.is_dataclass(base):
        return "a mapping of " + ", ".join(f.name for f in dataclasses.fields(base))
    return _NAMES[base]


def _limit(limit: Any) -> str:
    match limit:
        case Interval():
            parts = [(limit.ge, "from"), (limit.gt, "above"), (limit.le, "to"), (limit.lt, "below")]
            return " ".join(f"{word} {bound:g}" for bound, word in parts if bound is not None)  # pyright: ignore
        case Ge():
            return f"of at least {limit.ge:g}"  # pyright: ignore
        case Gt():
            return f"above {limit.gt:g}"  # pyright: ignore
        case Le():
            return f"of at most {limit.le:g}"  # pyright: ignore
        case Lt():
            return f"below {limit.lt:g}"  # pyright: ignore
        case _:
            return ""
