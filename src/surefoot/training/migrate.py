"""What a checkpoint holds, and how files of older formats are brought to that, a step at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

FORMAT = 3
"""Version of the layout; a change that older readers could not take raises it and adds a migration."""

LAYOUT: dict[str, type | tuple[type, ...]] = {
    "task": (str, type(None)),
    "iteration": int,
    "env_steps": int,
    "wall_time_s": (float, int),
    "config": dict,
    "spec": dict,
    "device": str,
    "algorithm": dict,
    "best": dict,
    "skips": dict,
    "hooks": dict,
    "num_envs": int,
    "env": object,
    "observations": (dict, type(None)),
    "episodes": dict,
    "guard": dict,
    "masks": dict,
    "rng": dict,
    "processes": list,
}
"""What a checkpoint holds besides its format, and of which type."""


def _add_hidden(state: dict[str, Any]) -> dict[str, Any]:
    """Format 2 keeps what recurrent policies remember, `hidden`, next to `is_first`; older ones had none."""
    # what process 0 remembers stands at the top level, as far as `algorithm` is its own
    parts = [part["local"] for part in state["processes"] if "local" in part]
    for part in [state["algorithm"], *parts]:
        part.setdefault("hidden", {})
    return state


def _add_guards(state: dict[str, Any]) -> dict[str, Any]:
    """Format 3 keeps, in the part of each process, what watches over action masks and skipped updates."""
    skips = {**state["skips"], "has_good": False, "good": None}
    for part in [state, *state["processes"]]:
        part |= {"masks": {"ended": None, "steps": 0}, "skips": skips}
    return state


MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _add_hidden, 2: _add_guards}
"""From each older format to the next. A step may change the state that it is given."""


def migrate(state: dict[str, Any]) -> dict[str, Any]:
    """`state` of format `state["format"]` as one of format `FORMAT`."""
    for number in range(state["format"], FORMAT):
        state = {**MIGRATIONS[number](state), "format": number + 1}
    return state


def misfit(state: Mapping[str, Any]) -> str | None:
    """The first entry of another type than in `LAYOUT`; one that is missing is a KeyError."""
    for key, kind in LAYOUT.items():
        if not isinstance(state[key], kind):
            return f"its '{key}' is of type {type(state[key]).__name__}"
    for i, part in enumerate(state["processes"]):
        if not isinstance(part, dict) or "num_envs" not in part:
            return f"its 'processes[{i}]' has no 'num_envs'"
    return None
