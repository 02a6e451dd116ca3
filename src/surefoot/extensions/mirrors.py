"""Mirror functions: where they come from, and whether they mirror at all."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from surefoot.algorithm.stored import stored_dtype
from surefoot.errors import ConfigError
from surefoot.importing import import_object
from surefoot.networks.mirror import map_fault
from surefoot.types import EnvSpec, MirrorMap, Observations

MirrorFunction = Callable[
    [Observations | None, Tensor | None], tuple[Mapping[str, Tensor] | None, Tensor | None]
]
"""`(observations | None, actions | None)` to their mirror images, None where None was given.

Observations are raw, one tensor [..., *group shape] per group; actions are raw [..., A], in [-1, 1] where the
space is bounded, indices from 0 where it is counted. Leading dimensions are any, rows are independent, and
what comes in stays as it is.
"""

NUM_PROBES = 64
"""Made-up rows that a mirror is tried on; a multiple of 8."""


@dataclass(frozen=True)
class Mirror:
    """One symmetry."""

    name: str
    """For errors."""
    function: MirrorFunction
    is_involution: bool = True
    """Whether applied twice it must give back what was there."""


# ---------------------------------------------------------------------- where they come from


def make_mirrors(wanted: Any, spec: EnvSpec, groups: Sequence[str]) -> list[Mirror]:
    """The symmetries that the argument `mirror` of `Symmetry` names.

    Args:
        wanted: See there.
        spec: Has the map that None stands for.
        groups: What a map must cover.
    """
    entries = wanted if isinstance(wanted, list | tuple) else [wanted]
    if not entries:
        raise ConfigError("Symmetry: mirror is an empty list; name at least one symmetry, or null.")
    return [_make(entry, spec, groups, f"mirror.{i}") for i, entry in enumerate(entries)]


def _make(entry: Any, spec: EnvSpec, groups: Sequence[str], key: str) -> Mirror:
    if isinstance(entry, Mapping):
        if "mirror" not in entry or not entry.keys() <= {"mirror", "involution"}:
            raise ConfigError(
                f"Symmetry: {key} has the keys {sorted(entry)}; expected mirror and involution."
            )
        made = _make(entry["mirror"], spec, groups, key)
        return Mirror(made.name, made.function, bool(entry.get("involution", True)))
    if isinstance(entry, list | tuple):
        parts = [_make(part, spec, groups, f"{key}.{i}") for i, part in enumerate(entry)]
        # two mirrors that do not commute make a rotation, which is not its own inverse
        return Mirror(" then ".join(part.name for part in parts), _product(parts), is_involution=False)
    if entry is None:
        if spec.mirror is None:
            raise ConfigError(
                "Symmetry: the environment declares no mirror map (VecEnv.mirror); name a function of your "
                "own in `mirror`, as package.module:function."
            )
        return Mirror("the environment's mirror map", _from_map(spec.mirror, spec, groups))
    name = entry if isinstance(entry, str) else getattr(entry, "__name__", type(entry).__name__)
    found: Any = import_object(entry, f"Symmetry: {key}") if isinstance(entry, str) else entry
    if isinstance(found, MirrorMap):
        return Mirror(name, _from_map(found, spec, groups))
    if not callable(found):
        raise ConfigError(
            f"Symmetry: {key} {name} is of type {type(found).__name__}; expected a function (observations, "
            "actions) -> (observations, actions), or a MirrorMap."
        )
    return Mirror(name, cast("MirrorFunction", found))


def _product(mirrors: Sequence[Mirror]) -> MirrorFunction:
    def apply(
        observations: Observations | None, actions: Tensor | None
    ) -> tuple[Observations | None, Tensor | None]:
        for mirror in mirrors:
            observations, actions = mirror.function(observations, actions)
        return observations, actions

    return apply


def _from_map(mirror: MirrorMap, spec: EnvSpec, groups: Sequence[str]) -> MirrorFunction:
    """The function that a declared map stands for; its tensors on the device of `spec`."""
    for group in groups:
        if group not in mirror.observations:
            raise ConfigError(
                f"Symmetry: the mirror map lacks the observation group '{group}'; it has "
                f"{sorted(mirror.observations)}. Add it, or name a function that mirrors it."
            )
        shape = spec.observation_spaces[group].shape or ()
        if len(shape) != 1:
            raise ConfigError(
                f"Symmetry: observation group '{group}' has the shape {shape}, and a mirror map is for "
                "vectors; name a function that mirrors it."
            )
        if fault := map_fault(*mirror.observations[group], shape[0]):
            raise ConfigError(f"Symmetry: the mirror map of observation group '{group}' {fault}.")
    if fault := map_fault(*mirror.actions, num_actions(spec.action_space)):
        raise ConfigError(f"Symmetry: the mirror map of the actions {fault}.")
    here = {g: _to(pair, spec.device) for g, pair in mirror.observations.items()}
    mirror = MirrorMap(here, _to(mirror.actions, spec.device))

    def apply(
        observations: Observations | None, actions: Tensor | None
    ) -> tuple[Observations | None, Tensor | None]:
        if observations is not None:
            mapped = {g: x for g, x in observations.items() if g in mirror.observations}
            observations = mirror.mirror_observations(mapped)
        return observations, None if actions is None else mirror.mirror_actions(actions)

    return apply


def _to(pair: tuple[Tensor, Tensor], device: torch.device) -> tuple[Tensor, Tensor]:
    return pair[0].to(device), pair[1].to(device)


def num_actions(space: gymnasium.Space[Any]) -> int:
    """A of the raw actions."""
    return int(np.prod(space.shape or (1,)))


# ---------------------------------------------------------------------- whether they mirror


@torch.no_grad()
def check_mirror(
    mirror: Mirror, spec: EnvSpec, groups: Sequence[str], to_env: nn.Module, dtype: torch.dtype
) -> None:
    """Try a mirror on made-up observations and actions.

    Args:
        mirror: Of the environment that `spec` describes.
        spec: Gives spaces and device.
        groups: Observation groups that are needed.
        to_env: Raw actions to what the environment takes.
        dtype: Of vectors.

    Raises:
        ConfigError: naming the group and its entries, where the result has another shape or type, depends on
            other rows, leaves the bounds of the space, changes nothing at all, or mirrored twice is not what
            it was.
    """
    spaces = {g: spec.observation_spaces[g] for g in groups}
    observations = {g: probe(s, spec.device, dtype) for g, s in spaces.items()}
    actions = probe_actions(spec.action_space, spec.device, dtype)
    given = _as_one(observations, actions)
    before = {name: x.clone() for name, x in given.items()}
    images = _apply(mirror, observations, actions)
    _same_form(mirror, given, images)
    _expect(mirror, before, given, "the function changes in place what it is given, at")
    rows = {name: x.unflatten(0, (8, -1)) for name, x in given.items()}
    blocks = {name: x.flatten(0, 1) for name, x in _apply(mirror, *_apart(rows)).items()}
    _same_form(mirror, given, blocks)
    _expect(mirror, images, blocks, "in sequences [L, B, ...] the same rows have other images at")
    both = mirror.function(observations, actions)
    _expect(
        mirror,
        images,
        _as_one(dict(both[0] or {}), both[1]),
        "observations and actions given together have other images at",
    )
    if all(torch.equal(x, images[name]) for name, x in given.items()):
        raise ConfigError(f"Symmetry: {mirror.name} changes neither observations nor actions.")
    if mirror.is_involution:
        twice = _apply(mirror, *_apart(images))
        _expect(mirror, given, twice, "mirrored twice is not what it was, at")
    _inside(mirror, spaces, images, spec.action_space, to_env)


ACTIONS = "the actions"


def _as_one(observations: Mapping[str, Tensor], actions: Tensor | None) -> dict[str, Tensor]:
    return {**observations} if actions is None else {**observations, ACTIONS: actions}


def _apart(named: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
    return {g: x for g, x in named.items() if g != ACTIONS}, named[ACTIONS]


def _label(name: str) -> str:
    return name if name == ACTIONS else f"observation group '{name}'"


def _apply(mirror: Mirror, observations: Observations, actions: Tensor) -> dict[str, Tensor]:
    """The images of observations and of actions, each asked for alone."""
    start = f"Symmetry: {mirror.name}"
    asked = [(observations, None), (None, actions)]
    found: list[Any] = []
    for i, arguments in enumerate(asked):
        try:
            result: Any = mirror.function(*arguments)
        except Exception as error:
            raise ConfigError(
                f"{start} raised {type(error).__name__}: {error}. It is called with (observations, None) and "
                f"(None, actions) too, and observations has the groups {sorted(observations)}."
            ) from error
        if not (isinstance(result, tuple) and len(result) == 2):
            raise ConfigError(
                f"{start} returned {type(result).__name__}; expected the tuple (observations, actions)."
            )
        if result[1 - i] is not None or result[i] is None:
            raise ConfigError(
                f"{start} was given {('observations', 'actions')[i]} only and returned "
                f"{('actions', 'observations')[i] if result[1 - i] is not None else 'None'}."
            )
        found.append(result[i])
    if not isinstance(found[0], Mapping):
        raise ConfigError(f"{start} returned observations as {type(found[0]).__name__}; expected a mapping.")
    if missing := [g for g in observations if g not in found[0]]:
        raise ConfigError(f"{start} leaves out the observation groups {missing}.")
    return _as_one({g: found[0][g] for g in observations}, found[1])


def _same_form(mirror: Mirror, given: Mapping[str, Tensor], images: Mapping[str, Tensor]) -> None:
    for name, x in given.items():
        image = images[name]
        if (image.shape, image.dtype, image.device) != (x.shape, x.dtype, x.device):
            raise ConfigError(
                f"Symmetry: {mirror.name} made of {_label(name)} {tuple(x.shape)} {x.dtype} on {x.device} "
                f"{tuple(image.shape)} {image.dtype} on {image.device}; expected the same shape (mirrored "
                "rows only), type and device."
            )


def _expect(mirror: Mirror, wanted: Mapping[str, Tensor], got: Mapping[str, Tensor], what: str) -> None:
    """A ConfigError where two tensors of a name differ by more than rounding."""
    for name, x in wanted.items():
        close = torch.isclose(got[name].double(), x.double(), rtol=1e-4, atol=1e-5)
        if not close.all():
            raise ConfigError(f"Symmetry: {mirror.name}: {what} {_entries(name, ~close)}.")


def _entries(name: str, wrong: Tensor) -> str:
    """Which entries are wrong in any row of [R, ...]."""
    found = wrong.flatten(1).any(0).nonzero().flatten().tolist()
    return f"{_label(name)} entries {found[:12]}{' and more' if len(found) > 12 else ''}"


def _inside(
    mirror: Mirror,
    spaces: Mapping[str, gymnasium.Space[Any]],
    images: Mapping[str, Tensor],
    action_space: gymnasium.Space[Any],
    to_env: nn.Module,
) -> None:
    """Bounds of a space are symmetric where its entries are: a wrong sign or partner often breaks them."""
    observations, actions = _apart(images)
    checks = [(g, x, spaces[g]) for g, x in observations.items()]
    if isinstance(action_space, gymnasium.spaces.Box):
        # what the environment would get is to be the image of what it got
        probes = probe_actions(action_space, actions.device, actions.dtype)
        expected = mirror.function(None, to_env(probes).flatten(1))[1]
        assert expected is not None
        _expect(
            mirror,
            {ACTIONS: expected},
            {ACTIONS: to_env(actions).flatten(1)},
            "the bounds of the action space are not symmetric under the mirror at",
        )
    else:
        high = torch.as_tensor(_counts(action_space), device=actions.device)
        checks.append((ACTIONS, actions, gymnasium.spaces.Box(0, high.cpu().numpy() - 1, dtype=np.int64)))
    for name, x, space in checks:
        low, high = _bounds(space)
        if low is None or high is None:
            continue
        low, high = low.to(x.device), high.to(x.device)
        slack = 1e-4 * (high - low).where((high - low).isfinite(), 0.0) + 1e-6
        values = x.double().reshape(x.shape[0], *low.shape)
        outside = (values < low - slack) | (values > high + slack)
        if outside.any():
            raise ConfigError(
                f"Symmetry: {mirror.name}: the image leaves the bounds of the space at "
                f"{_entries(name, outside)}."
            )


def _bounds(space: gymnasium.Space[Any]) -> tuple[Tensor | None, Tensor | None]:
    if isinstance(space, gymnasium.spaces.Box):
        return torch.as_tensor(space.low).double(), torch.as_tensor(space.high).double()
    if isinstance(space, gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete):
        start = torch.as_tensor(space.start).double()
        return start, start + torch.as_tensor(_counts(space)).double().reshape(start.shape) - 1
    return None, None


def _counts(space: gymnasium.Space[Any]) -> np.ndarray:
    """Values that each entry of a counted space can take, flat."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return np.array([space.n])
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return space.nvec.flatten()
    return np.full(num_actions(space), 2)


def _samples(space: gymnasium.Space[Any]) -> Iterator[np.ndarray]:
    space = copy.deepcopy(space)
    space.seed(0)
    return (np.asarray(space.sample()) for _ in range(NUM_PROBES))


def probe(space: gymnasium.Space[Any], device: torch.device, dtype: torch.dtype) -> Tensor:
    """[R, *shape] samples of an observation space, as they are stored."""
    rows = torch.as_tensor(np.stack([*_samples(space)]))
    return rows.to(device, stored_dtype(space, dtype))


def probe_actions(space: gymnasium.Space[Any], device: torch.device, dtype: torch.dtype) -> Tensor:
    """[R, A] raw actions."""
    if isinstance(space, gymnasium.spaces.Box):
        unit = torch.rand(NUM_PROBES, num_actions(space), generator=torch.Generator().manual_seed(0))
        return (2 * unit - 1).to(device, dtype)
    start = torch.as_tensor(getattr(space, "start", 0))
    rows = torch.as_tensor(np.stack([*_samples(space)])) - start
    return rows.reshape(NUM_PROBES, -1).to(device, torch.int64)
