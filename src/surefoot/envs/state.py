"""Saving and restoring environments: by their own `state_dict`, as tensors and plain data."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from surefoot.envs.sub_env import env_state, is_stateful, load_env_state
from surefoot.errors import EnvContractError

State = dict[str, Any]
"""Tensors and plain data only, so that a checkpoint can hold it."""


def has_state(envs: VectorEnv) -> bool:
    """Whether every environment behind `envs` can save and restore its state."""
    base = envs.unwrapped
    if base is not envs:
        return False  # a vector wrapper (say, of running statistics) may hold state that would be lost
    if isinstance(base, SyncVectorEnv):
        return all(is_stateful(env) for env in base.envs)
    if isinstance(base, AsyncVectorEnv):
        return all(base.call("has_wrapper_attr", "surefoot_is_stateful")) and all(
            base.call("surefoot_is_stateful")
        )
    return callable(getattr(base, "state_dict", None)) and callable(getattr(base, "load_state_dict", None))


def save_state(envs: VectorEnv) -> Any:
    """The state of all environments behind `envs`."""
    base = envs.unwrapped
    if isinstance(base, SyncVectorEnv):
        return pack([env_state(env) for env in base.envs])
    if isinstance(base, AsyncVectorEnv):
        return pack(base.call("surefoot_state"))
    return pack(base.state_dict())  # pyright: ignore[reportAttributeAccessIssue]


def load_state(envs: VectorEnv, state: Any, ended: np.ndarray[Any, Any]) -> None:
    """Restore what `save_state` saved; `ended` [N] marks rows whose next step is only an autoreset."""
    base = envs.unwrapped
    base.reset()  # wrappers insist on it
    saved = unpack(state)
    if isinstance(base, (SyncVectorEnv, AsyncVectorEnv)) and len(saved) != base.num_envs:
        raise EnvContractError(f"the saved state is of {len(saved)} environments, not {base.num_envs}.")
    if isinstance(base, SyncVectorEnv):
        for env, own in zip(base.envs, saved, strict=True):
            load_env_state(env, own)
        base._autoreset_envs = ended.copy()  # pyright: ignore[reportPrivateUsage]
    elif isinstance(base, AsyncVectorEnv):
        base.call("surefoot_load_state", saved)
    else:
        base.load_state_dict(saved)  # pyright: ignore[reportAttributeAccessIssue]


_ARRAY, _RNG = "__ndarray__", "__numpy_generator__"


def pack(value: Any, where: str = "state") -> Any:
    """State as tensors and plain data; numpy arrays and generators are marked for `unpack`."""
    if value is None or isinstance(value, (bool, int, float, str, torch.Tensor)):
        return copy.deepcopy(value) if isinstance(value, torch.Tensor) else value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return {_ARRAY: torch.from_numpy(np.array(value, order="C"))}
    if isinstance(value, np.random.Generator):
        return {_RNG: pack(value.bit_generator.state, where)}
    if isinstance(value, Mapping):
        return {key: pack(child, f"{where}.{key}") for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [pack(child, f"{where}[{i}]") for i, child in enumerate(value)]
    raise EnvContractError(
        f"state_dict() holds {type(value).__name__} at '{where}'; a checkpoint takes tensors, numpy arrays, "
        "numpy generators, numbers, strings, lists and dicts."
    )


def unpack(value: Any) -> Any:
    """The inverse of `pack` (tuples come back as lists)."""
    if isinstance(value, list):
        return [unpack(child) for child in value]
    if not isinstance(value, dict):
        return value
    if _ARRAY in value:
        return value[_ARRAY].cpu().numpy().copy()
    if _RNG in value:
        state = unpack(value[_RNG])
        generator = np.random.Generator(getattr(np.random, state["bit_generator"])())
        generator.bit_generator.state = state
        return generator
    return {key: unpack(child) for key, child in value.items()}
