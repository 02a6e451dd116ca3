"""N copies of one `gymnasium.Env`, in this process or in worker processes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any, Literal

import gymnasium
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from surefoot.distributed import global_index
from surefoot.envs.gymnasium import GymnasiumVecEnv
from surefoot.envs.restarts import Restarts
from surefoot.envs.sub_env import MakeSubEnv
from surefoot.envs.workers import dead_workers, end_workers, end_workers_with
from surefoot.errors import EnvContractError

Backend = Literal["auto", "sync", "async"]

SLOW_STEP_S = 5e-4
"""`auto` uses worker processes from this step time on: below it, talking to a worker costs about as much."""


def replicate(
    factory: Callable[[], gymnasium.Env[Any, Any]],
    num_envs: int,
    *,
    backend: Backend = "auto",
    device: torch.device | str = "cpu",
    seed: int | None = None,
    restart_workers: bool = False,
) -> GymnasiumVecEnv:
    """Replicate what `factory` returns. Both backends give the same steps.

    Args:
        factory: Makes one environment.
        num_envs: Copies.
        backend: `sync`: one after the other in this process. `async`: one worker process each, observations
            in shared memory. `auto`: `async` if a step takes 0.5 ms or more and there are cores to use.
        device: Where tensors go.
        seed: Of the first reset.
        restart_workers: Start a worker process that dies or raises again, with a new environment; its row is
            cut off and not valid. Observations then come through pipes rather than shared memory.
    """
    if backend == "auto":
        backend = "async" if num_envs > 1 and (os.cpu_count() or 1) > 1 and _is_slow(factory) else "sync"
    makers = [MakeSubEnv(factory, i, global_index(i, num_envs), os.getpid()) for i in range(num_envs)]
    # SAME_STEP: no row of the rollout is lost to resets, and final observations are still known.
    # The adapter copies what it gets, so Gymnasium need not.
    if backend == "sync":
        envs = SyncVectorEnv(makers, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
        return GymnasiumVecEnv(envs, device, seed)
    # made before it is filled, so that its workers can be ended where that fails
    envs = AsyncVectorEnv.__new__(AsyncVectorEnv)
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(end_workers, envs)
        try:
            envs.__init__(
                makers,
                shared_memory=not restart_workers,
                copy=False,
                autoreset_mode=AutoresetMode.SAME_STEP,
            )
        except (EOFError, ConnectionError) as error:
            dead = ", ".join(dead_workers(envs.processes)) or "?"
            raise EnvContractError(
                f"a worker process ended while it made its environment: {dead}; the traceback of an error is "
                "above. The backend 'sync' shows the error in this process."
            ) from error
        env = GymnasiumVecEnv(envs, device, seed, Restarts(envs) if restart_workers else None)
        end_workers_with(env, envs)
        on_failure.pop_all()
    return env


def _is_slow(
    factory: Callable[[], gymnasium.Env[Any, Any]], max_steps: int = 20, max_seconds: float = 0.2
) -> bool:
    """Whether the median step of one environment takes `SLOW_STEP_S`."""
    env = factory()
    times: list[float] = []
    try:
        env.reset(seed=0)
        env.action_space.seed(0)
        while len(times) < max_steps and sum(times) < max_seconds:
            action = env.action_space.sample()
            start = time.perf_counter()
            _, _, terminated, truncated, _ = env.step(action)
            times.append(time.perf_counter() - start)
            if terminated or truncated:
                env.reset()
    except Exception:  # noqa: BLE001 - a failing environment is reported by its first real step, with its index
        return False
    finally:
        env.close()
    return sorted(times)[len(times) // 2] >= SLOW_STEP_S
