"""Failures of an environment, here or in a worker process: the real error by name, nothing left behind."""

from __future__ import annotations

import atexit
import os
import queue
import re
import signal
import weakref
from collections.abc import Iterable, Sequence
from multiprocessing import connection
from typing import Any

from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from surefoot.distributed import global_index
from surefoot.envs.sub_env import origin
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
        text = worker_error(index, self._envs.num_envs, kind, value, trace)
        raise EnvContractError(text) from WorkerTracebackError(f"\n{trace}")


class WorkerTracebackError(Exception):
    """The traceback of a worker process, as text."""


def worker_error(index: int, num_envs: int, kind: type[Exception], value: object, trace: str) -> str:
    """In one line, which environment raised what and where."""
    text = " ".join(str(value).split())
    if issubclass(kind, EnvContractError):
        return text
    return f"environment {global_index(index, num_envs)} raised {kind.__name__}: {text}{_origin(trace)}"


_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (.+)\n    (.+)', re.MULTILINE)


def _origin(trace: str) -> str:
    """As `sub_env.origin`, from the text of a traceback."""
    frames = _FRAME.findall(trace)
    return " ({}:{} in {}: {})".format(*frames[-1]) if frames else ""


def end_workers(envs: Any) -> None:
    """At once, whatever they are doing: they do not hear SIGTERM."""
    processes = [process for process in getattr(envs, "processes", []) if process.pid is not None]
    for process in processes:
        process.kill()
    for process in processes:
        process.join()
    for pipe in getattr(envs, "parent_pipes", []):
        if pipe is not None:
            pipe.close()
    envs.closed = True


def end_workers_with(owner: object, envs: AsyncVectorEnv[Any, Any]) -> None:
    """Also where nobody closes them: when `owner` is forgotten, or Python ends.

    Gymnasium and Python itself would send SIGTERM, and then wait for ever.
    """
    end = weakref.finalize(owner, _end_workers_of, os.getpid(), envs)
    # registered here, it comes before what multiprocessing has registered
    atexit.register(end)


def _end_workers_of(process_id: int, envs: AsyncVectorEnv[Any, Any]) -> None:
    """A worker inherits everything, and may tidy up what it inherited; the workers are not its own."""
    if os.getpid() == process_id:
        end_workers(envs)


def dead_workers(processes: Sequence[Any], wait_s: float = 2.0) -> list[str]:
    """Which worker processes have ended, and how, as soon as there is one."""
    ended = connection.wait([process.sentinel for process in processes], wait_s)
    for process in processes:
        if process.sentinel in ended:
            process.join(timeout=1)
    return [
        f"{global_index(i, len(processes))} ({exit_text(p)})"
        for i, p in enumerate(processes)
        if not p.is_alive()
    ]


def exit_text(process: Any) -> str:
    """How a worker process ended."""
    exit_code = process.exitcode
    if exit_code is None:
        return "it does not answer"
    return f"exit code {exit_code}" if exit_code >= 0 else f"killed by {signal.Signals(-exit_code).name}"


def failure(envs: VectorEnv, error: Exception, method: str) -> str:
    """Which environment failed, and how."""
    if isinstance(envs, AsyncVectorEnv) and isinstance(error, (EOFError, OSError)):
        dead = ", ".join(dead_workers(envs.processes)) or "?"
        return (
            f"the worker process of environment {dead} ended during {method}(). Find out why in one process "
            "(env.backend: sync), or set env.restart_workers: true, and a new one takes its place."
        )
    text = f"raised {type(error).__name__} in {method}(): {' '.join(str(error).split())}{origin(error)}"
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if isinstance(envs, SyncVectorEnv) and frame.f_locals.get("self") is envs and "i" in frame.f_locals:
            return f"environment {global_index(frame.f_locals['i'], envs.num_envs)} {text}"
        trace = trace.tb_next
    return f"the environment {text}"
