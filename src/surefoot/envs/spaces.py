"""Gymnasium spaces as observation groups: one named tensor per leaf of the space."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from surefoot.distributed import global_index
from surefoot.errors import EnvContractError

PLAIN_GROUP = "policy"
"""The group that an observation space without names becomes."""

_LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete)
_ADVICE = {
    "Tuple": "Name its parts with a gymnasium.spaces.Dict.",
    "Text": "Encode it as numbers with gymnasium.wrappers.TransformObservation.",
    "Graph": "Flatten it to a Box with gymnasium.wrappers.TransformObservation.",
    "Sequence": "Pad it to a Box of fixed length with gymnasium.wrappers.TransformObservation.",
    "OneOf": "Encode it as one Box with gymnasium.wrappers.TransformObservation.",
}


def observation_groups(space: spaces.Space[Any]) -> dict[str, tuple[tuple[str, ...], spaces.Space[Any]]]:
    """Group name to (path inside the observation, space). Nested Dict keys are joined with a dot."""
    if not isinstance(space, spaces.Dict):
        return {PLAIN_GROUP: ((), _leaf(space, "observation space"))}
    groups: dict[str, tuple[tuple[str, ...], spaces.Space[Any]]] = {}

    def visit(node: spaces.Dict, path: tuple[str, ...]) -> None:
        for key, child in node.spaces.items():
            here = (*path, key)
            if isinstance(child, spaces.Dict):
                visit(child, here)
                continue
            name = ".".join(str(part) for part in here)
            if name in groups:
                raise EnvContractError(f"Two parts of the observation space are named '{name}'; rename one.")
            groups[name] = (here, _leaf(child, f"observation '{name}'"))

    visit(space, ())
    if not groups:
        raise EnvContractError("The observation space is an empty Dict; it needs at least one entry.")
    return groups


def check_action_space(space: spaces.Space[Any]) -> None:
    """Refuse an action space that no policy can serve."""
    if not isinstance(space, _LEAVES):
        raise EnvContractError(
            f"action space is {type(space).__name__}; expected Box, Discrete, MultiDiscrete or MultiBinary. "
            "Turn it into one of these with gymnasium.wrappers.TransformAction."
        )


def tensor_dtype(space: spaces.Space[Any]) -> torch.dtype:
    """What a group of this space is stored as: images stay uint8, numbers are float32, indices int64."""
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        return torch.int64
    if isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) >= 2:
        return torch.uint8
    return torch.float32


def tensor_shape(space: spaces.Space[Any]) -> tuple[int, ...]:
    """Shape of one environment's tensor; `()` for a Discrete space."""
    shape = space.shape
    assert shape is not None, "leaf spaces have a shape"
    return tuple(shape)


def check_counted(space: spaces.Space[Any], values: np.ndarray[Any, Any], name: str) -> None:
    """Refuse a number [N, ...] that a Discrete or MultiDiscrete space does not have."""
    assert isinstance(space, (spaces.Discrete, spaces.MultiDiscrete))
    low = space.start
    high = low + (space.n if isinstance(space, spaces.Discrete) else space.nvec)
    outside = (values < low) | (values >= high)
    if outside.any():
        env, *entry = (int(i) for i in np.argwhere(outside)[0])
        raise EnvContractError(
            f"environment {global_index(env, len(values))} gave {values[(env, *entry)]} in the observation "
            f"group '{name}', which its space {space} does not have."
        )


def _leaf(space: spaces.Space[Any], what: str) -> spaces.Space[Any]:
    if isinstance(space, _LEAVES):
        return space
    kind = type(space).__name__
    advice = _ADVICE.get(kind, "Turn it into one of these with gymnasium.wrappers.TransformObservation.")
    raise EnvContractError(
        f"{what} is {kind}; expected Box, Discrete, MultiDiscrete, MultiBinary or a Dict of these. {advice}"
    )
