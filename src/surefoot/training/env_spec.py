"""What the networks know of an environment, as plain data: enough to rebuild a policy without it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch

from surefoot.envs.vec_env import VecEnv
from surefoot.errors import CheckpointError, EnvContractError
from surefoot.networks.actor_critic import ActorCritic
from surefoot.types import EnvSpec, MirrorMap


def spec_of(env: VecEnv, gamma: float, device: torch.device) -> EnvSpec:
    return EnvSpec(
        observation_spaces=env.observation_spaces,
        action_space=env.action_space,
        num_envs=env.num_envs,
        gamma=gamma,
        step_dt=env.step_dt,
        device=device,
        mirror=env.mirror,
    )


def spec_to_data(spec: EnvSpec) -> dict[str, Any]:
    mirror = spec.mirror
    return {
        "observation_spaces": {g: space_to_data(s) for g, s in spec.observation_spaces.items()},
        "action_space": space_to_data(spec.action_space),
        "num_envs": spec.num_envs,
        "gamma": spec.gamma,
        "step_dt": spec.step_dt,
        "mirror": mirror
        and {
            "observations": {g: list(pair) for g, pair in mirror.observations.items()},
            "actions": list(mirror.actions),
        },
    }


def spec_from_data(data: Mapping[str, Any], device: torch.device) -> EnvSpec:
    mirror = data["mirror"]
    return EnvSpec(
        observation_spaces={g: space_from_data(s) for g, s in data["observation_spaces"].items()},
        action_space=space_from_data(data["action_space"]),
        num_envs=data["num_envs"],
        gamma=data["gamma"],
        step_dt=data["step_dt"],
        device=device,
        mirror=mirror
        and MirrorMap(
            {g: (p, s) for g, (p, s) in mirror["observations"].items()},
            (mirror["actions"][0], mirror["actions"][1]),
        ),
    )


def space_to_data(space: gymnasium.Space[Any]) -> dict[str, Any]:
    """A Box, Discrete, MultiDiscrete or MultiBinary space."""
    spaces = gymnasium.spaces
    if isinstance(space, spaces.Box):
        return {"type": "Box", "low": space.low, "high": space.high, "dtype": str(space.dtype)}
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"type": "MultiDiscrete", "nvec": space.nvec, "start": space.start}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.shape)}
    raise CheckpointError(f"a space of type {type(space).__name__} cannot be saved.")


def space_from_data(data: Mapping[str, Any]) -> gymnasium.Space[Any]:
    spaces = gymnasium.spaces
    if data["type"] == "Box":
        return spaces.Box(data["low"], data["high"], dtype=np.dtype(data["dtype"]).type)
    if data["type"] == "Discrete":
        return spaces.Discrete(data["n"], start=data["start"])
    if data["type"] == "MultiDiscrete":
        return spaces.MultiDiscrete(data["nvec"], start=data["start"])
    if data["type"] == "MultiBinary":
        return spaces.MultiBinary(data["n"])
    raise CheckpointError(
        f"the checkpoint has a space of type '{data['type']}', which this version does not know."
    )


def check_spec(saved: Mapping[str, Any], spec: EnvSpec) -> None:
    """Refuse an environment that does not fit a checkpoint.

    The bounds of observations may differ: no network reads them.

    Raises:
        CheckpointError: naming the first group of another shape or number of values, or both action spaces.
    """
    theirs = spec_from_data(saved, spec.device)
    for group in {**theirs.observation_spaces, **spec.observation_spaces}:
        before, now = theirs.observation_spaces.get(group), spec.observation_spaces.get(group)
        if before is None or now is None or _size(before) != _size(now):
            raise CheckpointError(
                f"the checkpoint was made with observation group '{group}' {_shape(before)}, the environment "
                f"has it {_shape(now)}; use the task and settings that it was made with."
            )
    if not _are_same_actions(theirs.action_space, spec.action_space):
        raise CheckpointError(
            f"the checkpoint was made with actions {theirs.action_space}, the environment takes "
            f"{spec.action_space}."
        )


def check_fits(policy: ActorCritic, env: VecEnv) -> None:
    """Refuse an environment in which a policy cannot act.

    Raises:
        EnvContractError: naming the first observation group that is missing or of another shape, or both
            action spaces.
    """
    for group in policy.inputs.read(("actor",)):
        wanted, given = policy.inputs.spaces[group], env.observation_spaces.get(group)
        if given is None or _size(given) != _size(wanted):
            raise EnvContractError(
                f"the policy reads the observation group '{group}' {_shape(wanted)}; the environment has it "
                f"{_shape(given)} (its groups: {sorted(env.observation_spaces)})."
            )
    wanted, given = policy.to_env.space, env.action_space
    if type(given) is not type(wanted) or _size(given) != _size(wanted):
        raise EnvContractError(f"the policy gives actions for {wanted}; the environment takes {given}.")


def _size(space: gymnasium.Space[Any]) -> tuple[Any, list[int] | None]:
    """Shape, and how many values each entry can take where they are counted."""
    counts = getattr(space, "n", None) if isinstance(space, gymnasium.spaces.Discrete) else None
    counts = getattr(space, "nvec", counts)
    return space.shape, None if counts is None else np.ravel(counts).tolist()


def _are_same_actions(before: gymnasium.Space[Any], now: gymnasium.Space[Any]) -> bool:
    """Whether the same raw action does the same in both; the dtype may differ."""
    if before.shape != now.shape:
        return False
    if isinstance(before, gymnasium.spaces.Box) and isinstance(now, gymnasium.spaces.Box):
        return np.allclose(before.low, now.low) and np.allclose(before.high, now.high)
    first, second = space_to_data(before), space_to_data(now)
    return first.keys() == second.keys() and all(
        np.array_equal(np.ravel(first[key]), np.ravel(second[key])) for key in first
    )


def _shape(space: gymnasium.Space[Any] | None) -> str:
    if space is None:
        return "absent"
    return f"of shape {space.shape}" if _size(space)[1] is None else f"as {space}"
