"""From raw observation groups to what the networks read: concatenated, normalised, mirrored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import torch
from torch import Tensor, nn

from surefoot.errors import ConfigError, did_you_mean
from surefoot.networks.config import NetworkConfig
from surefoot.networks.encoders import as_vector, space_of, vector_size
from surefoot.networks.images import ImageShape, image_shape
from surefoot.networks.mirror import map_fault
from surefoot.networks.normalizers import RunningNormalizer
from surefoot.types import EnvSpec, MirrorMap, Observations

SETS = ("actor", "critic")

MASK_GROUP = "action_mask"
"""The group that says which discrete actions are allowed; never a network's input."""
PIXELS = "pixels."
"""Before the name of an image group among the inputs."""

LENGTHS = "lengths"

Inputs = dict[str, Tensor]
"""Network inputs by name: the vectors `actor`, `critic` (absent where it equals `actor`) and `actor_mirror`
[..., D]; the raw pixels of each image group; `action_mask` where actions are masked; perhaps `lengths` [B] of
sequences, the longest first."""


class InputPipeline(nn.Module):
    """Observation groups of actor and critic, their normalisers, and the mirrored input of a mirrored actor.

    Args:
        spec: Spaces of the environment.
        configs: Of the networks, under `actor` and `critic`.
        wanted: Observation groups by network; default: the group of that name, else `policy`, else all.
        is_shared: One trunk serves both.
        is_mirrored: Also make the actor's input for the mirror image.
        is_masked: Also pass on the mask of allowed actions.

    Attributes:
        groups: As resolved.
        images: The image groups of each network, with their layout.
        sizes: D of each network's vector.
        critic_name: `actor` where both networks read the same input, which is then made once.
    """

    like: Tensor

    def __init__(
        self,
        spec: EnvSpec,
        configs: Mapping[str, NetworkConfig],
        wanted: Mapping[str, Sequence[str]],
        is_shared: bool,
        is_mirrored: bool,
        is_masked: bool = False,
    ) -> None:
        super().__init__()
        self.spaces = dict(spec.observation_spaces)
        self.groups = resolve_groups(self.spaces, wanted)
        if is_shared and self.groups["critic"] != self.groups["actor"]:
            raise ConfigError(
                f"network 'shared' needs the same observation groups for actor {self.groups['actor']} and "
                f"critic {self.groups['critic']}; use network 'separate'."
            )
        self.is_masked = is_masked
        shares_images = is_shared or configs["critic"].cnn == "shared"
        self.images = {s: self._images_of(s, configs["actor" if shares_images else s]) for s in SETS}
        if shares_images and self.images["actor"] != self.images["critic"]:
            raise ConfigError(
                f"critic.cnn 'shared' needs the same image groups for actor {list(self.images['actor'])} and "
                f"critic {list(self.images['critic'])}."
            )
        self._vectors = {s: [g for g in self.groups[s] if g not in self.images[s]] for s in SETS}
        self.sizes = {s: sum(vector_size(self.spaces[g], g) for g in self._vectors[s]) for s in SETS}
        treatment = {s: (self._vectors[s], configs[s].obs_normalization, configs[s].obs_clip) for s in SETS}
        self.critic_name = "actor" if is_shared or treatment["critic"] == treatment["actor"] else "critic"
        # the dtype of everything that enters a network: it moves with the module
        self.register_buffer("like", torch.zeros(()), persistent=False)
        self.normalizers = nn.ModuleDict()
        for name in dict.fromkeys(("actor", self.critic_name)):
            if configs[name].obs_normalization and self.sizes[name]:
                self.normalizers[name] = RunningNormalizer(self.sizes[name], configs[name].obs_clip)
        if is_mirrored and self.images["actor"]:
            raise ConfigError(f"actor.mirror cannot mirror the image groups {list(self.images['actor'])}.")
        self.mirror = mirror_of(spec, self.groups["actor"]) if is_mirrored else None

    def read(self, sets: Sequence[str] = SETS) -> list[str]:
        """Every group that these networks need, the mask of actions too."""
        groups = [group for name in sets for group in self.groups[name]]
        return [*dict.fromkeys(groups), *([MASK_GROUP] if self.is_masked and "actor" in sets else [])]

    def names(self, network: str) -> list[str]:
        """Of the inputs that `actor` or `critic` reads."""
        vector = self.critic_name if network == "critic" else network
        return [vector, *(f"{PIXELS}{g}" for g in self.images[network])]

    def forward(self, observations: Observations, sets: Sequence[str] = SETS) -> Inputs:
        """The inputs of the named networks."""
        names = dict.fromkeys(self.critic_name if s == "critic" else s for s in sets)
        inputs = {name: self._normalize(name, self.concatenate(name, observations)) for name in names}
        inputs |= {f"{PIXELS}{g}": observations[g] for s in sets for g in self.images[s]}
        if self.is_masked and "actor" in sets:
            inputs[MASK_GROUP] = observations[MASK_GROUP].bool()
        if self.mirror and "actor" in sets:
            # the raw observation is mirrored: its statistics need not be symmetric
            mirrored = self.mirror.mirror_observations({g: observations[g] for g in self.groups["actor"]})
            inputs["actor_mirror"] = self._normalize("actor", self.concatenate("actor", mirrored))
        return inputs

    def concatenate(self, name: str, observations: Observations) -> Tensor:
        """The vector groups of one network [..., D], not normalised; D is 0 where all are images."""
        groups = self._vectors[name]
        vectors = [as_vector(self.spaces[g], observations[g]).to(self.like.dtype) for g in groups]
        if not vectors:
            group = self.groups[name][0]
            pixels = observations[group]
            return self.like.new_zeros(*pixels.shape[: pixels.dim() - len(self.spaces[group].shape or ())], 0)
        return vectors[0] if len(vectors) == 1 else torch.cat(vectors, -1)

    def update(self, observations: Observations, mask: Tensor | None = None) -> None:
        """Count raw observations [R, ...] where `mask` [R] is True."""
        for name, normalizer in self._each_normalizer():
            normalizer.update(self.concatenate(name, observations), mask)

    def warm_up(self, batches: Sequence[Observations]) -> None:
        """Provisional statistics, in use until the first `update`."""
        for name, normalizer in self._each_normalizer():
            normalizer.warm_up([self.concatenate(name, b) for b in batches])

    def _images_of(self, name: str, config: NetworkConfig) -> dict[str, ImageShape]:
        shapes = {g: image_shape(self.spaces[g], g, config) for g in self.groups[name]}
        return {g: shape for g, shape in shapes.items() if shape is not None}

    def _normalize(self, name: str, x: Tensor) -> Tensor:
        return self.normalizers[name](x) if name in self.normalizers else x

    def _each_normalizer(self) -> Iterator[tuple[str, RunningNormalizer]]:
        for name, normalizer in self.normalizers.items():
            assert isinstance(normalizer, RunningNormalizer)
            yield name, normalizer


def resolve_groups(
    spaces: Mapping[str, gymnasium.Space[Any]], wanted: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """Observation groups of actor and critic, as asked for or by the default rule."""
    for name in wanted:
        if name not in SETS:
            raise ConfigError(
                f"obs_groups.{name}: the sets are 'actor' and 'critic'.{did_you_mean(name, SETS)}"
            )
    groups = {}
    for name in SETS:
        if name in wanted:
            groups[name] = list(wanted[name])
        elif name in spaces:
            groups[name] = [name]
        elif "policy" in spaces:
            groups[name] = ["policy"]
        else:
            groups[name] = [g for g in spaces if g != MASK_GROUP]
        if not groups[name]:
            raise ConfigError(f"obs_groups.{name} is empty; the environment has the groups {sorted(spaces)}.")
        if MASK_GROUP in groups[name]:
            raise ConfigError(
                f"obs_groups.{name}: '{MASK_GROUP}' masks actions and is never a network's input."
            )
        for group in groups[name]:
            space_of(spaces, group, f"obs_groups.{name}")
    return groups


def mirror_of(spec: EnvSpec, groups: Sequence[str]) -> MirrorMap:
    if spec.mirror is None:
        raise ConfigError("actor.mirror is true, but the environment declares no mirror map (VecEnv.mirror).")
    if missing := [g for g in groups if g not in spec.mirror.observations]:
        raise ConfigError(
            f"actor.mirror: the environment's mirror map lacks the observation groups {missing}."
        )
    spaces = {g: spec.observation_spaces[g] for g in groups} | {"actions": spec.action_space}
    maps = {**spec.mirror.observations, "actions": spec.mirror.actions}
    for name, space in spaces.items():
        if space.shape and (fault := map_fault(*maps[name], space.shape[-1])):
            raise ConfigError(f"the environment's mirror map of '{name}' {fault}.")
    return spec.mirror
