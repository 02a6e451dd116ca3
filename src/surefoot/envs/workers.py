"""Failures of an environment, here or in a worker process: the real error by name, nothing left behind."""

from __future__ import annotations

import queue
from collections.abc import Iterable
from typing import Any

from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from surefoot.errors import EnvContractError


class WorkerErrors:
    """Stands in for `AsyncVectorEnv._raise_if_errors`.

    That one waits for ever for an exception that does not pickle, fails on a traceback with a `%` in it, and
    does not say which environment it was.
    """

    def __init__(self, envs: AsyncVectorEnv[Any, Any]) -> None:
        self._envs = envs

    def __call__(self, successes: Iterable[bool]) -> None:
        failed = [i for i, ok in enumerate(successes) if not ok]
        if not failed:
            return
        try:
            index, kind, value, trace = self._envs.error_queue.get(timeout=2)
        except queue.Empty:
            index, kind, value, trace = failed[0], Exception, "see the worker's output above", ""
        pipes: list[Any] = self._envs.parent_pipes
        for i in failed:
            pipes[i].close()
            pipes[i] = None  # as Gymnasium marks a worker that is gone
        is_named = issubclass(kind, EnvContractError)
        text = str(value) if is_named else f"environment {index} raised {kind.__name__}: {value}"
        raise EnvContractError(text) from _WorkerTracebackError(f"\n{trace}")


class _WorkerTracebackError(Exception):
    """The traceback of a worker process, as text."""


def end_workers(envs: Any) -> None:
    processes = getattr(envs, "processes", [])
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(timeout=5)
        if process.is_alive():
            process.kill()
            process.join()
    for pipe in getattr(envs, "parent_pipes", []):
        if pipe is not None:
            pipe.close()
    envs.closed = True


def failure(envs: VectorEnv, error: Exception, method: str) -> str:
    """Which environment failed, and how."""
    if isinstance(envs, AsyncVectorEnv) and isinstance(error, (EOFError, OSError)):
        for process in envs.processes:
            process.join(timeout=0.5)
        dead = [f"{i} (exit code {p.exitcode})" for i, p in enumerate(envs.processes) if not p.is_alive()]
        return f"the worker process of environment {', '.join(dead) or '?'} ended during {method}()."
    text = f"raised {type(error).__name__} in {method}(): {error}"
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if isinstance(envs, SyncVectorEnv) and frame.f_locals.get("self") is envs and "i" in frame.f_locals:
            return f"environment {frame.f_locals['i']} {text}"
        trace = trace.tb_next
    return f"the environment {text}"
