"""What a mirror map pairs, in words, and whether the environment moves in the mirror as it does outside.

A map can be its own inverse and still be wrong: a sign that is missing, legs in another order. Names and
physics tell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import torch
from gymnasium import spaces
from torch import Tensor

from surefoot.envs.conform import conform_observations, conform_step
from surefoot.envs.trial import SampledActions, copied
from surefoot.envs.vec_env import VecEnv
from surefoot.types import MirrorMap, Observations

ROWS = 4096
"""Transitions of the trial, half to fit and half to compare."""
EXPLAINED, WORSE = 0.5, 4.0
"""An entry tells when a linear model explains this share of its change; then the mirror image is wrong where
its squared error is so many times larger."""


# ---------------------------------------------------------------------- in words


def pairing(mirror: MirrorMap, names: Mapping[str, Sequence[str]]) -> list[str]:
    """One line for the actions and for each group: `a <-> -b` change places and sign, `-c` changes its sign;
    what stays as it is is left out.
    """
    lines: list[str] = []
    for part, (permutation, sign) in _parts(mirror):
        words: list[str] = []
        for i, (j, s) in enumerate(zip(permutation.tolist(), sign.tolist(), strict=True)):
            minus = "-" if s < 0 else ""
            if j > i:
                words.append(f"{_name(names, part, i)} <-> {minus}{_name(names, part, j)}")
            elif j == i and minus:
                words.append(f"-{_name(names, part, i)}")
        lines.append(f"mirror of {part or 'the actions'}: {', '.join(words) or 'unchanged'}")
    return lines


def doubtful_pairs(mirror: MirrorMap, names: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Entries whose names say left or right and whose partner is not the same thing on the other side."""
    for part, (permutation, _) in _parts(mirror):
        own = list(names.get(part, ()))
        for i, j in enumerate(permutation.tolist()):
            if i < len(own) and own[j] not in (other := _other_sides(own[i], own)) and other:
                yield f"{own[i]} is mirrored to {own[j]}, by its name it should be {' or '.join(other)}"


def _parts(mirror: MirrorMap) -> list[tuple[str, tuple[Tensor, Tensor]]]:
    """Actions, under an empty name, and groups."""
    return [("", mirror.actions), *mirror.observations.items()]


def _name(names: Mapping[str, Sequence[str]], part: str, i: int) -> str:
    own = names.get(part, ())
    return own[i] if i < len(own) else str(i)


_WORDS = {"left": "right", "Left": "Right", "LEFT": "RIGHT", "L": "R", "l": "r"}
_OTHER = _WORDS | {right: left for left, right in _WORDS.items()}
_SIDE = re.compile(r"left|right|Left|Right|LEFT|RIGHT|(?<![a-z])[LR](?![a-z])|(?<![A-Za-z])[lr](?![A-Za-z])")


def _other_sides(name: str, names: Sequence[str]) -> list[str]:
    """The names that differ from this one in one word or letter of side."""
    changed = [name[: m.start()] + _OTHER[m.group()] + name[m.end() :] for m in _SIDE.finditer(name)]
    return [other for other in changed if other in names]


# ---------------------------------------------------------------------- in the physics


def wrong_in_the_mirror(env: VecEnv, mirror: MirrorMap, seed: int) -> list[tuple[str, int]]:
    """Entries (group, index) of the observation that move otherwise in the mirror.

    A linear model of one step is fitted to transitions of sampled actions and asked to predict others, and
    their mirror images. In a symmetric task it does both equally well. Only what a linear model explains can
    be told, and what never moves, such as a command, cannot.
    """
    if not isinstance(env.action_space, spaces.Box):
        return []
    groups = [
        g
        for g, s in env.observation_spaces.items()
        if g in mirror.observations and isinstance(s, spaces.Box) and len(s.shape) == 1
    ]
    if not groups:
        return []
    before, actions, after = _transitions(env, groups, seed)
    half = before[groups[0]].shape[0] // 2
    x, change = _joined(groups, before, actions), _joined(groups, after) - _joined(groups, before)
    images = [mirror.mirror_observations(o) for o in (before, after)]
    image_x = _joined(groups, images[0], mirror.mirror_actions(actions))
    image_change = _joined(groups, images[1]) - _joined(groups, images[0])
    weights = torch.linalg.lstsq(_with_one(x[:half]), change[:half], driver="gelsd").solution
    error, image_error = (
        (_with_one(a[half:]) @ weights - b[half:]).square().mean(0)
        for a, b in ((x, change), (image_x, image_change))
    )
    variance = change[half:].var(0)
    tells = (error < (1 - EXPLAINED) * variance) & (variance > 1e-10)
    # what a model explains entirely is compared with a hundredth of its spread
    wrong = tells & (image_error > WORSE * torch.maximum(error, 0.01 * variance))
    places = [(g, i) for g in groups for i in range(before[g].shape[1])]
    return [places[k] for k in wrong.nonzero().flatten().tolist()]


def _transitions(
    env: VecEnv, groups: Sequence[str], seed: int
) -> tuple[dict[str, Tensor], Tensor, dict[str, Tensor]]:
    """Observations, actions and next observations [R, ...] of rows that end no episode, in random order."""
    sampled = SampledActions(env, seed)
    now = copied(conform_observations(env, env.reset(seed=seed)))
    rows: list[tuple[dict[str, Tensor], Tensor, dict[str, Tensor]]] = []
    for _ in range(-(-ROWS // env.num_envs)):
        actions = sampled.sample(now)
        step = conform_step(env, env.step(actions.clone()))
        following, keep = copied(step.observations), ~step.starts
        before, after = ({g: o[g][keep].cpu() for g in groups} for o in (now, following))
        rows.append((before, actions[keep].cpu(), after))
        now = following
    order = torch.randperm(sum(len(a) for _, a, _ in rows), generator=torch.Generator().manual_seed(seed))
    return (
        {g: torch.cat([before[g] for before, _, _ in rows])[order] for g in groups},
        torch.cat([a for _, a, _ in rows])[order],
        {g: torch.cat([after[g] for _, _, after in rows])[order] for g in groups},
    )


def _joined(groups: Sequence[str], observations: Observations, *more: Tensor) -> Tensor:
    return torch.cat([observations[g].double() for g in groups] + [x.double() for x in more], -1)


def _with_one(x: Tensor) -> Tensor:
    return torch.cat([x, torch.ones_like(x[:, :1])], -1)
