"""Observations drawn from their spaces: any group that an actor can read, without its environment."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import torch
from torch import Tensor

from surefoot.envs.spaces import tensor_dtype
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.encoders import vector_size
from surefoot.networks.heads import CategoricalHead
from surefoot.networks.inputs import MASK_GROUP, InputPipeline
from surefoot.networks.normalizers import RunningNormalizer

UNBOUNDED = 1e6
"""A Box at least this wide is drawn from as if it had no bounds."""


def random_observations(policy: ActorCritic, num_rows: int, generator: torch.Generator) -> dict[str, Tensor]:
    """[N, ...] of every group that the actor reads, in its order; where a group is normalised and has no
    bounds, spread as the normaliser has seen it.
    """
    seen = _seen(policy.inputs)
    observations: dict[str, Tensor] = {}
    for group in policy.inputs.read(("actor",)):
        space = policy.inputs.spaces[group]
        if group == MASK_GROUP:
            observations[group] = _draw_mask(policy, space.shape or (), num_rows, generator)
        elif isinstance(space, gymnasium.spaces.Box):
            observations[group] = _draw_box(space, *seen.get(group, (0.0, 1.0)), num_rows, generator)
        else:
            observations[group] = _draw_counts(space, num_rows, generator)
    return observations


def _seen(inputs: InputPipeline) -> dict[str, tuple[Tensor, Tensor]]:
    """Mean and deviation [D] of the actor's normalised vector groups."""
    if "actor" not in inputs.normalizers:
        return {}
    normalizer = inputs.normalizers["actor"]
    assert isinstance(normalizer, RunningNormalizer)
    groups = [g for g in inputs.groups["actor"] if g not in inputs.images["actor"]]
    sizes = [vector_size(inputs.spaces[g], g) for g in groups]
    means, deviations = normalizer.shift.split(sizes), (1 / normalizer.scale).split(sizes)
    return dict(zip(groups, zip(means, deviations, strict=True), strict=True))


def _draw_box(
    space: gymnasium.spaces.Box,
    mean: Tensor | float,
    deviation: Tensor | float,
    num_rows: int,
    generator: torch.Generator,
) -> Tensor:
    """Uniform between bounds; normal, with twice the deviation, where there are none."""
    shape = (num_rows, math.prod(space.shape))
    low, high = (torch.as_tensor(x, dtype=torch.float64).flatten() for x in (space.low, space.high))
    is_bounded = high - low < UNBOUNDED
    uniform = low + (high - low) * torch.rand(shape, generator=generator)
    normal = mean + 2 * deviation * torch.randn(shape, generator=generator)
    x = torch.where(is_bounded, uniform, normal.double().clamp(low, high))
    return x.to(tensor_dtype(space)).unflatten(-1, space.shape) if space.shape else x.float().squeeze(-1)


def _draw_counts(space: gymnasium.Space[Any], num_rows: int, generator: torch.Generator) -> Tensor:
    unit = torch.rand(num_rows, *(space.shape or ()), generator=generator)
    if isinstance(space, gymnasium.spaces.MultiBinary):
        return unit.round()
    assert isinstance(space, gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete)
    counts = space.n if isinstance(space, gymnasium.spaces.Discrete) else space.nvec
    return (unit * torch.as_tensor(counts)).long() + torch.as_tensor(space.start)


def _draw_mask(
    policy: ActorCritic, shape: tuple[int, ...], num_rows: int, generator: torch.Generator
) -> Tensor:
    """[N, ...] bool, with at least one choice for each action."""
    allowed = torch.rand(num_rows, math.prod(shape), generator=generator) < 0.7
    if isinstance(policy.action_head, CategoricalHead):
        allowed[:, policy.action_head.column[:, 0]] = True
    return allowed.view(num_rows, *shape)
