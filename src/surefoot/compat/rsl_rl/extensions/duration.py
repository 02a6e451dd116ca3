"""How long a step of a client's environment is."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from numbers import Real
from typing import Any


def step_duration(env: Any, key: str) -> float:
    """Seconds per environment step; 1, with a warning, where the environment does not say.

    Args:
        env: May have `step_dt`, itself or under `unwrapped` or `cfg`.
        key: Of the configuration, that is multiplied by it.
    """
    inner = getattr(env, "unwrapped", env)
    for owner in (inner, env, getattr(inner, "cfg", None), getattr(env, "cfg", None)):
        found = owner.get("step_dt") if isinstance(owner, Mapping) else getattr(owner, "step_dt", None)
        if isinstance(found, Real):
            return float(found)
    warnings.warn(
        f"{key} counts per environment step instead of per second: the environment does not say how long a "
        "step is (step_dt).",
        stacklevel=3,
    )
    return 1.0
