"""EnvPool's environments (https://envpool.readthedocs.io), all stepped at once by threads of its own."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from surefoot.errors import ConfigError, did_you_mean

_OURS = ("num_envs", "batch_size", "seed", "env_seed", "env_type")
"""What Surefoot itself tells EnvPool."""


def is_installed() -> bool:
    """Whether there is a package of that name; it is imported when it is used."""
    return importlib.util.find_spec("envpool") is not None


def has(task: str) -> bool:
    """Whether there is an EnvPool that works and has an environment of that id."""
    if not is_installed():
        return False
    try:
        return task in _package().list_all_envs()
    except ConfigError:
        return False


class EnvPoolVectorEnv(VectorEnv[Any, Any, Any]):
    """A pool of environments as a VectorEnv that can be seeded.

    An episode ends as in Gymnasium's NEXT_STEP: the step after only resets. EnvPool does not tell a real end
    at the very step of the time limit from the limit. It fixes the seeds when a pool is made, so that
    `reset(seed=...)` makes a new one.

    Args:
        task: EnvPool's id, such as `HalfCheetah-v4` or `Breakout-v5`.
        num_envs: Environments of the pool.
        kwargs: Options of `envpool.make`, such as `num_threads`, `max_episode_steps` or `render_mode`.

    Raises:
        ConfigError: EnvPool is not installed, or has no such environment or option.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 - as in Gymnasium
        "autoreset_mode": AutoresetMode.NEXT_STEP,
        "render_modes": ["rgb_array"],
    }

    def __init__(self, task: str, num_envs: int, kwargs: Mapping[str, Any] | None = None) -> None:
        self._package, self._task = _package(), task
        self._options: dict[str, Any] = {**(kwargs or {}), "num_envs": num_envs}
        self._pool: Any = None
        known = self._package.list_all_envs()
        if task not in known:
            raise ConfigError(
                f"EnvPool has no environment '{task}'.{did_you_mean(task, known)} Others take env.backend "
                "sync or async."
            )
        for key in _OURS:
            if key in (kwargs or {}):
                raise ConfigError(
                    f"env.kwargs.{key}: Surefoot sets it, from num_envs and seed; leave it out."
                )
        with _without_warnings():
            try:
                spec = self._package.make_spec(task, **self._options)
            except Exception as error:  # EnvPool complains by whatever comes first
                raise ConfigError(
                    f"EnvPool cannot make '{task}' with env.kwargs {dict(kwargs or {})}: "
                    f"{type(error).__name__}: {_first_line(error)}"
                ) from error
            self.single_observation_space = spec.gymnasium_observation_space
            self.single_action_space = spec.gymnasium_action_space
            self.observation_space = batch_space(self.single_observation_space, num_envs)
            self.action_space = batch_space(self.single_action_space, num_envs)
        self.num_envs = num_envs
        self.render_mode = self._options.get("render_mode")
        self._max_episode_steps = int(spec.config.max_episode_steps)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin new episodes, everywhere or in the rows of `options["reset_mask"]` [N]; the observations of
        other rows then mean nothing.
        """
        mask = None if options is None else options.get("reset_mask")
        if mask is None or self._pool is None or np.all(mask):
            if seed is not None or self._pool is None:
                self._pool = None  # its threads end before the new ones start
                self._pool = self._make(seed)
            observations, info = self._pool.reset()
            return observations, info
        rows = np.flatnonzero(mask).astype(np.int32)
        observations, _ = self._pool.reset(rows)
        return _spread(observations, rows, self.num_envs), {}

    def step(
        self, actions: Any
    ) -> tuple[Any, np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any], dict[str, Any]]:
        """One step of all environments, in EnvPool's threads."""
        return self._pool.step(actions)

    def render(self) -> Any:
        """A picture of the first environment, as [1, H, W, 3]."""
        return self._pool.render()

    def close(self, **kwargs: Any) -> None:
        """End the pool's threads."""
        self._pool = None

    def _make(self, seed: Any) -> Any:
        seeded = {} if seed is None else {"seed": seed}
        pool = self._package.make(self._task, env_type="gymnasium", **self._options, **seeded)
        with _without_warnings():
            # the pool asks for them at each step, and keeps what it made once
            _ = (pool.observation_space, pool.action_space)
        return pool


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Gymnasium warns of bounds that lose digits in float32 each time that EnvPool makes a space."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def _package() -> Any:
    if not is_installed():
        raise ConfigError(
            "env.backend 'envpool' needs EnvPool, which is not installed: pip install 'surefoot[envs]' "
            "(there is none for Python 3.10)."
        )
    try:
        return importlib.import_module("envpool")
    except Exception as error:  # a missing system library or data package
        raise ConfigError(
            f"EnvPool cannot be imported: {type(error).__name__}: {_first_line(error)}"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or ["no message"])[0]


def _spread(part: Any, rows: np.ndarray[Any, Any], num_envs: int) -> Any:
    """Rows of some environments as rows of all; the others hold a copy of the first."""
    if isinstance(part, Mapping):
        return {key: _spread(value, rows, num_envs) for key, value in part.items()}
    whole = np.repeat(part[:1], num_envs, axis=0)
    whole[rows] = part
    return whole
