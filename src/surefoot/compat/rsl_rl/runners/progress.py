"""What a resumed run needs beside the algorithm: counters, statistics, random streams, the environment."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from surefoot import distributed
from surefoot.compat.rsl_rl.utils.logger import Logger
from surefoot.errors import CheckpointError
from surefoot.training.checkpoint import from_plain, to_plain
from surefoot.training.random_state import global_random_state, restore_global_random_state
from surefoot.training.resume import can_restore

KEY = "surefoot_run"
"""Where it stands in a checkpoint; rsl-rl-lib reads past it."""


def collect(iterations: int, logger: Logger, env: Any, alg: Any) -> dict[str, Any]:
    """As tensors and plain data.

    Args:
        iterations: Done so far.
        logger: Of the run.
        env: The client's environment.
        alg: The algorithm, which may remember the running episodes.
    """
    owner, state = _stateful(env), None
    if owner is not None:
        with contextlib.suppress(CheckpointError):  # more than plain data: such an environment starts anew
            state = to_plain(owner.state_dict())
    return {
        "iterations": iterations,
        "num_envs": int(env.num_envs),
        "logger": logger.state_dict(),
        "rng": global_random_state(),
        "env": state,
        "memories": None if state is None or not hasattr(alg, "memories") else to_plain(alg.memories()),
    }


def restore(state: Mapping[str, Any], logger: Logger, env: Any, alg: Any) -> bool:
    """The reverse, when training goes on: a policy that is only used keeps its own random streams.

    Returns:
        Whether the environments are back where they were.
    """
    state = from_plain(dict(state))
    logger.load_state_dict(state["logger"])
    owner, is_back = _stateful(env), False
    # what was saved is process 0's
    if distributed.is_main():
        if owner is not None and state["env"] is not None and state["num_envs"] == env.num_envs:
            owner.load_state_dict(state["env"])
            is_back = True
            if state.get("memories") is not None and hasattr(alg, "remember"):
                alg.remember(state["memories"])
        restore_global_random_state(state["rng"])
    if not is_back:
        logger.forget_running_episodes()
    return is_back


def _stateful(env: Any) -> Any:
    """The environment, or what it wraps, where that can be put back."""
    return next((x for x in (env, getattr(env, "unwrapped", None)) if x is not None and can_restore(x)), None)
