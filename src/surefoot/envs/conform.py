"""What an environment returns, held against the contract: cast, flattened and moved once, or refused by name.

Called at every step, so a step that is right already passes through untouched, and no value is ever read.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.envs.spaces import tensor_dtype, tensor_shape
from surefoot.envs.vec_env import VecEnv
from surefoot.errors import EnvContractError, did_you_mean
from surefoot.types import Observations, Step

_KEY = "_surefoot_contract"


def conform_observations(env: VecEnv, observations: Any, source: str = "reset()") -> Observations:
    """Observations of every declared group, [N, ...] of the group's dtype, on the environment's device.

    Raises:
        EnvContractError: a group is missing or not declared, or a tensor has another shape.
    """
    contract = _contract(env)
    if contract.is_conforming(observations):
        return observations
    return contract.observations(observations, source)


def conform_step(env: VecEnv, step: Any) -> Step:
    """A Step whose fields are as `types.Step` says.

    Raises:
        EnvContractError: a field is missing or has another shape; nothing is ever broadcast.
    """
    if not isinstance(step, Step):
        raise EnvContractError(f"step() returned {type(step).__name__}; expected a surefoot.Step.")
    contract = _contract(env)
    vector = contract.is_vector
    final = step.final_observations
    if (
        contract.is_conforming(step.observations)
        and vector(step.rewards, torch.float32)
        and vector(step.terminated, torch.bool)
        and vector(step.truncated, torch.bool)
        and (final is None or final is step.observations or contract.is_conforming(final))
        and (step.final_known is None or vector(step.final_known, torch.bool))
        and (step.valid is None or vector(step.valid, torch.bool))
        and _is_plain(step.log)
    ):
        return step
    return contract.step(step)


def _contract(env: VecEnv) -> _Contract:
    """Kept with the environment; a wrapper that forwards attributes still gets its own."""
    own = getattr(env, "__dict__", None)
    if own is None:
        return _Contract(env)
    contract = own.get(_KEY)
    if contract is None:
        contract = own[_KEY] = _Contract(env)
    return contract


class _Contract:
    """What one environment has declared."""

    def __init__(self, env: VecEnv) -> None:
        self.num_envs = int(env.num_envs)
        device = torch.device(env.device)
        # `cuda` and `cuda:0` are the same device but do not compare equal.
        self.device = torch.empty(0, device=device).device
        self.groups = {
            name: (torch.Size((self.num_envs, *tensor_shape(space))), tensor_dtype(space))
            for name, space in env.observation_spaces.items()
        }
        self.items = [(name, shape, dtype) for name, (shape, dtype) in self.groups.items()]
        self.vector_shape = torch.Size((self.num_envs,))
        self.has_warned = False

    def is_conforming(self, observations: Any) -> bool:
        if type(observations) is not dict or len(observations) != len(self.items):
            return False
        for name, shape, dtype in self.items:
            x = observations.get(name)
            if type(x) is not Tensor or x.dtype is not dtype or x.shape != shape or x.device != self.device:
                return False
        return True

    def is_vector(self, x: Any, dtype: torch.dtype) -> bool:
        return (
            type(x) is Tensor
            and x.dtype is dtype
            and x.shape == self.vector_shape
            and x.device == self.device
        )

    def observations(self, observations: Any, source: str) -> dict[str, Tensor]:
        names = ", ".join(f"'{name}'" for name in self.groups)
        if not isinstance(observations, Mapping):
            hint = (
                " Return the observations alone, without an info." if isinstance(observations, tuple) else ""
            )
            raise EnvContractError(
                f"{source} returned {type(observations).__name__} as observations; expected a mapping with "
                f"the groups {names}.{hint}"
            )
        # A TensorDict's length is its batch size, so the keys are counted.
        given = list(observations.keys())
        for name in self.groups:
            if name not in given:
                near = did_you_mean(name, [str(k) for k in given])
                raise EnvContractError(
                    f"{source} returned no observation group '{name}', which observation_spaces declares; "
                    f"got {given}.{near}"
                )
        for name in given:
            if name not in self.groups:
                raise EnvContractError(
                    f"{source} returned the observation group '{name}', which observation_spaces does not "
                    f"declare (it has {names}). Declare it or leave it out."
                )
        return {name: self._group(observations[name], name, source) for name in self.groups}

    def step(self, step: Step) -> Step:
        final = step.final_observations
        return dataclasses.replace(
            step,
            observations=self.observations(step.observations, "step()"),
            rewards=self._vector(step.rewards, "rewards", torch.float32),
            terminated=self._vector(step.terminated, "terminated", torch.bool),
            truncated=self._vector(step.truncated, "truncated", torch.bool),
            final_observations=None
            if final is None
            else self.observations(final, "step().final_observations"),
            final_known=self._optional_vector(step.final_known, "final_known"),
            valid=self._optional_vector(step.valid, "valid"),
            log=self._log(step.log),
        )

    def _group(self, value: Any, name: str, source: str) -> Tensor:
        shape, dtype = self.groups[name]
        tensor = _as_tensor(value, f"{source} returned observation group '{name}'")
        if tensor.shape != shape:
            raise EnvContractError(
                f"{source} returned observation group '{name}' of shape {tuple(tensor.shape)}; expected "
                f"{tuple(shape)}: num_envs, then the shape of its space."
            )
        if dtype is torch.uint8 and tensor.is_floating_point():
            raise EnvContractError(
                f"{source} returned observation group '{name}' as {tensor.dtype}, but its space says uint8. "
                "Return uint8, or declare a float32 Box."
            )
        return tensor.to(self.device, dtype)

    def _optional_vector(self, value: Any, name: str) -> Tensor | None:
        return None if value is None else self._vector(value, name, torch.bool)

    def _vector(self, value: Any, name: str, dtype: torch.dtype) -> Tensor:
        tensor = _as_tensor(value, f"step() returned {name}")
        if tensor.shape == (self.num_envs, 1):
            tensor = tensor.reshape(self.num_envs)
        if tensor.shape != self.vector_shape:
            what = f"a single {name} value" if tensor.dim() == 0 else f"{name} of shape {tuple(tensor.shape)}"
            raise EnvContractError(
                f"step() returned {what}; expected ({self.num_envs},). Return one value per environment."
            )
        return tensor.to(self.device, dtype)

    def _log(self, log: Any) -> dict[str, float | Tensor]:
        """Numbers as they are, tensors on the device; what cannot be logged is left out, with one warning."""
        kept: dict[str, float | Tensor] = {}
        skipped: list[str] = []
        for key, value in log.items() if isinstance(log, Mapping) else ():
            if isinstance(value, (bool, int, float, np.number, np.bool_)):
                kept[str(key)] = float(value)
            elif isinstance(value, Tensor) and value.numel() and not value.is_complex():
                kept[str(key)] = value if value.is_floating_point() else value.float()
            elif isinstance(value, np.ndarray) and value.size and value.dtype.kind in "biuf":
                kept[str(key)] = torch.as_tensor(value, dtype=torch.float32)
            else:
                skipped.append(f"'{key}' ({type(value).__name__})")
        if log is not None and not isinstance(log, Mapping):
            skipped.append(f"all of it ({type(log).__name__}, expected a dict)")
        if skipped and not self.has_warned:
            self.has_warned = True
            warnings.warn(
                f"step().log: left out what is not a number or a tensor: {', '.join(skipped)}.", stacklevel=4
            )
        return kept


def _is_plain(log: Any) -> bool:
    return type(log) is dict and all(
        type(key) is str and (type(x) is float or (type(x) is Tensor and x.is_floating_point()))
        for key, x in log.items()
    )


def _as_tensor(value: Any, what: str) -> Tensor:
    if isinstance(value, Tensor):
        return value
    try:
        return torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError) as error:
        raise EnvContractError(f"{what} as {type(value).__name__}; expected a tensor or an array.") from error
