"""Worker processes that are started again: a crash costs one episode of one environment, not the run."""

from __future__ import annotations

import contextlib
import inspect
import multiprocessing
import queue
import warnings
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv
from gymnasium.vector.async_vector_env import _async_worker  # pyright: ignore[reportPrivateUsage]
from gymnasium.vector.utils import CloudpickleWrapper

from surefoot.distributed import global_index
from surefoot.envs.workers import WorkerTracebackError, exit_text, worker_error
from surefoot.errors import EnvContractError

MAX_RESTARTS = 10
"""Restarts of one environment without a finished episode in between; one more crash ends the run."""
_MOVES = ("step", "reset", "reset-noop")
"""What an environment may fail in; what it raises elsewhere (say, while a state is loaded) is no crash."""


class Restarts:
    """Stands between an AsyncVectorEnv, made with `shared_memory=False`, and its workers.

    The vector environment never hears of a crash: it talks to each worker through a `_Pipe`, which answers in
    the place of one that is gone. To the step that was lost the answer is a time limit, with the first
    observation of the new environment.

    Attributes:
        count: Workers started again so far.
        lost: Environments whose last step was lost; the caller empties it.
    """

    def __init__(self, envs: AsyncVectorEnv[Any, Any]) -> None:
        self._envs = envs
        self._errors: dict[int, tuple[str, str]] = {}
        self.count, self.lost = 0, set[int]()
        envs.parent_pipes = [_Pipe(self, i, pipe) for i, pipe in enumerate(envs.parent_pipes)]  # pyright: ignore[reportAttributeAccessIssue]

    def take_lost(self) -> np.ndarray[Any, Any] | None:
        """[N], where the last step was lost; None: nowhere."""
        if not self.lost:
            return None
        rows = np.isin(np.arange(self._envs.num_envs), list(self.lost))
        self.lost.clear()
        return rows

    def end(self, index: int, has_raised: bool) -> tuple[str, str]:
        """End a worker that failed; returns what happened to it, and its traceback."""
        process = self._envs.processes[index]
        text, trace = self._error(index) if has_raised else ("", "")
        # not killed at once: it may still hold the lock of the queue that its error came through
        process.join(timeout=5)
        if not has_raised:
            number = global_index(index, self._envs.num_envs)
            text = f"the worker process of environment {number} ended: {exit_text(process)}"
        process.kill()
        process.join()
        return text, trace

    def start(self, index: int, text: str, trace: str) -> Any:
        """A new worker with a new environment, after what happened to the last; our end of its pipe."""
        if self.count == 0:
            warnings.warn(
                f"{text}. A new environment takes its place, and the episode counts as cut off; "
                f"Data/restarts counts whatever crashes from here on.\n{trace}",
                stacklevel=2,
            )
        self.count += 1
        envs = self._envs
        context = multiprocessing.get_context(envs.context)
        ours, theirs = context.Pipe()
        make = CloudpickleWrapper(envs.env_fns[index])
        arguments = [index, make, theirs, ours, None, envs.error_queue, envs.autoreset_mode]
        # newer versions of Gymnasium take a semaphore too
        arguments += [None] * (len(inspect.signature(_async_worker).parameters) - len(arguments))
        name = envs.processes[index].name
        process: Any = context.Process(target=_async_worker, name=name, args=arguments, daemon=envs.daemon)  # pyright: ignore[reportAttributeAccessIssue]
        with warnings.catch_warnings():
            # of a fork beside threads, from Python 3.12 on; the first workers were forked beside them too
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        envs.processes[index] = process
        return ours

    def _error(self, index: int) -> tuple[str, str]:
        """What the worker raised, and its traceback."""
        while index not in self._errors:
            try:
                number, kind, value, trace = self._envs.error_queue.get(timeout=2)
            except queue.Empty:
                return f"environment {global_index(index, self._envs.num_envs)} failed", ""
            self._errors[number] = (worker_error(number, self._envs.num_envs, kind, value, trace), trace)
        return self._errors.pop(index)


class _Pipe:
    """Our end of the pipe to a worker, with a new worker behind it whenever one is gone."""

    def __init__(self, restarts: Restarts, index: int, pipe: Any) -> None:
        self._restarts, self._index, self._pipe = restarts, index, pipe
        self._message: tuple[str, Any] = ("", None)
        # observation and info of a new environment, of which the trainer has not heard yet
        self._first: Any = None
        self._seed, self._crashes = 0, 0

    @property
    def closed(self) -> bool:
        return self._pipe.closed

    def close(self) -> None:
        self._pipe.close()

    def send(self, message: tuple[str, Any]) -> None:
        self._message = message
        name, data = message
        if name == "reset":
            self._first = None
            self._seed = self._seed if data["seed"] is None else data["seed"]
        # an action was chosen for the environment that is gone
        if name != "step" or self._first is None:
            self._send(message)

    def recv(self) -> tuple[Any, bool]:
        name = self._message[0]
        if name == "step" and self._first is not None:
            return self._lost_step()
        reply, is_well, fault = self._answer()
        if fault is None or name == "close":
            if name == "step" and (reply[2] or reply[3]):
                self._crashes = 0
            return reply, is_well or name == "close"
        self._renew(*fault)
        if name == "step":
            return self._lost_step()
        if name == "reset":
            first, self._first = self._first, None
            return first, True
        # something between two steps, such as the state for a checkpoint; the next step is the lost one
        self._send(self._message)
        return self.recv()

    def _send(self, message: tuple[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the worker has ended: receiving will tell
            self._pipe.send(message)

    def _answer(self) -> tuple[Any, bool, tuple[str, str] | None]:
        """The worker's reply, whether all is well, and why a new worker is needed, where it is: what happened
        and the traceback.
        """
        try:
            reply, is_well = self._pipe.recv()
        except (EOFError, OSError):
            return None, False, self._restarts.end(self._index, has_raised=False)
        if is_well or self._message[0] not in _MOVES:
            return reply, is_well, None
        return None, False, self._restarts.end(self._index, has_raised=True)

    def _renew(self, text: str, trace: str) -> None:
        """A new worker, whose environment was reset with a seed of its own."""
        fault: tuple[str, str] | None = (text, trace)
        while fault is not None:
            self._crashes += 1
            if self._crashes > MAX_RESTARTS:
                raise EnvContractError(
                    f"{fault[0]}; {self._crashes} crashes without a finished episode in between are too many "
                    "for env.restart_workers."
                ) from WorkerTracebackError(f"\n{fault[1]}")
            self._pipe.close()
            self._pipe = self._restarts.start(self._index, *fault)
            entropy = [self._seed, self._index, self._restarts.count]
            seed = int(np.random.SeedSequence(entropy).generate_state(1)[0] >> 1)
            self._send(("reset", {"seed": seed, "options": None}))
            self._first, _, fault = self._answer()

    def _lost_step(self) -> tuple[Any, bool]:
        (observation, info), self._first = self._first, None
        self._restarts.lost.add(self._index)
        return (observation, 0.0, False, True, info), True
