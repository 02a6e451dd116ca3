"""One of the N environments behind a vector environment: named in errors, with its own final observation.

A worker process imports this file, so it imports no torch.
"""

from __future__ import annotations

import copy
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from surefoot.errors import EnvContractError


class SubEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The outermost wrapper of each replica, in this process or in a worker.

    Args:
        env: Wrapped.
        index: Among the replicas of this process.
        number: Among those of all processes, for messages.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], index: int, number: int) -> None:
        super().__init__(env)
        self.index, self.number = index, number

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        try:
            observation, info = self.env.reset(seed=seed, options=options)
        except Exception as error:
            raise self._named(error, "reset") from error
        if fault := shape_fault(self.observation_space, observation):
            raise EnvContractError(f"environment {self.number}: reset() returned an observation{fault}")
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
        except Exception as error:
            raise self._named(error, "step") from error
        if terminated or truncated:
            # The autoreset that follows would overwrite it where the environment has a single buffer.
            observation = copy.deepcopy(observation)
        return observation, self._number(reward), bool(terminated), bool(truncated), info

    def surefoot_state(self) -> list[dict[str, Any]]:
        return env_state(self)

    def surefoot_load_state(self, states: Sequence[list[dict[str, Any]]]) -> None:
        """`VectorEnv.call` hands every replica the same arguments: each takes its own entry."""
        load_env_state(self, states[self.index])

    def surefoot_is_stateful(self) -> bool:
        return is_stateful(self)

    def surefoot_render_first(self) -> Any:
        return self.env.render() if self.index == 0 else None

    def _number(self, reward: Any) -> Any:
        """Also from an array that holds a single one."""
        if isinstance(reward, (int, float)):
            return reward
        array = np.asarray(reward)
        if array.size != 1 or array.dtype.kind not in "biuf":
            what = f"shape {array.shape}" if array.dtype.kind in "biuf" else f"type {type(reward).__name__}"
            raise EnvContractError(
                f"environment {self.number}: step() returned a reward of {what}; expected a single number."
            )
        return array.item()

    def _named(self, error: Exception, method: str) -> EnvContractError:
        # Text travels between processes; an arbitrary exception may not, and the parent would wait for ever.
        text = " ".join(str(error).split())
        return EnvContractError(
            f"environment {self.number} raised {type(error).__name__} in {method}(): {text}{origin(error)}"
        )


@dataclass(frozen=True)
class MakeSubEnv:
    """Builds replica `index`, among all processes `number`; picklable, to run in a worker process."""

    factory: Callable[[], gymnasium.Env[Any, Any]]
    index: int
    number: int
    parent_pid: int

    def __call__(self) -> SubEnv:
        if os.getpid() != self.parent_pid:
            # Ctrl-C reaches the whole process group, as SIGTERM may; only the trainer may answer them, and
            # it ends the workers.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            # not SIG_IGN: a simulator started by the environment would inherit that, and could not be ended
            signal.signal(signal.SIGTERM, lambda *_: None)
        env = self.factory()
        if not isinstance(env, gymnasium.Env):
            raise EnvContractError(f"the factory returned {type(env).__name__}; expected a gymnasium.Env.")
        return SubEnv(env, self.index, self.number)


def shape_fault(space: gymnasium.Space[Any], observation: Any) -> str:
    """Where an observation has not the shape that its space says; empty where it has."""
    if isinstance(space, gymnasium.spaces.Dict):
        for key, part in space.spaces.items():
            if not isinstance(observation, Mapping) or key not in observation:
                return f" without '{key}', which its space has."
            if fault := shape_fault(part, observation[key]):
                return f" '{key}'{fault}"
        return ""
    if space.shape is None or np.shape(observation) == space.shape:
        return ""
    return f" of shape {np.shape(observation)}; its space says {space.shape}."


def origin(error: Exception) -> str:
    """` (file:line in function: code)`: the line that raised `error`, for a message of one line."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f" ({frame.filename}:{frame.lineno} in {frame.name}: {frame.line})"


def layers(env: gymnasium.Env[Any, Any]) -> Iterator[gymnasium.Env[Any, Any]]:
    """The wrappers from the outside in, then the environment itself."""
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    yield env


def is_stateful(env: gymnasium.Env[Any, Any]) -> bool:
    """Whether the environment itself can save and restore its state."""
    inner = env.unwrapped
    return callable(getattr(inner, "state_dict", None)) and callable(getattr(inner, "load_state_dict", None))


def env_state(env: gymnasium.Env[Any, Any]) -> list[dict[str, Any]]:
    """State of each layer: its own `state_dict` where it has one, and the elapsed steps of a time limit."""
    states: list[dict[str, Any]] = []
    for layer in layers(env):
        state: dict[str, Any] = {}
        if isinstance(vars(layer).get("_elapsed_steps"), int):
            state["elapsed_steps"] = vars(layer)["_elapsed_steps"]
        if hasattr(type(layer), "state_dict") and hasattr(type(layer), "load_state_dict"):
            state["state"] = layer.state_dict()  # pyright: ignore[reportAttributeAccessIssue]
        states.append(state)
    return states


def load_env_state(env: gymnasium.Env[Any, Any], states: Sequence[dict[str, Any]]) -> None:
    """Restore what `env_state` saved. The environment must have been reset once: wrappers insist on it."""
    chain = list(layers(env))
    if len(chain) != len(states):
        raise EnvContractError(
            f"the saved state has {len(states)} layers of wrappers, this environment has {len(chain)}; "
            "make it with the same wrappers as when it was saved."
        )
    for layer, state in zip(chain, states, strict=True):
        if "elapsed_steps" in state:
            layer._elapsed_steps = state["elapsed_steps"]  # pyright: ignore[reportAttributeAccessIssue]
        if "state" in state:
            layer.load_state_dict(state["state"])  # pyright: ignore[reportAttributeAccessIssue]
