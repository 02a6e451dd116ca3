"""The rollout storage that a policy, its extensions and a configuration need."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import torch

from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.extension import Extension
from surefoot.algorithm.rollout_storage import RolloutStorage
from surefoot.algorithm.sequences import default_sequence_length
from surefoot.algorithm.stored import stored_dtype
from surefoot.errors import ConfigError
from surefoot.networks.actor_critic import ActorCritic
from surefoot.types import EnvSpec


def make_storage(
    spec: EnvSpec,
    policy: ActorCritic,
    extensions: Sequence[Extension],
    config: PPOConfig,
    num_steps: int,
    num_batches: int,
) -> RolloutStorage:
    """Room for T = `num_steps` rows of the groups that something reads.

    Raises:
        ConfigError: an extension reads a group that does not exist, or there are more mini-batches than rows
            or sequences.
    """
    num_envs, num_rows = spec.num_envs, spec.num_envs * num_steps
    if num_batches > num_rows:
        raise ConfigError(
            f"num_mini_batches {num_batches} is more than the {num_envs} environments · {num_steps} steps = "
            f"{num_rows} rows of a rollout."
        )
    length = config.sequence_length or default_sequence_length(num_envs, num_steps, num_batches)
    if policy.is_recurrent and num_envs * -(-num_steps // length) < num_batches:
        raise ConfigError(
            f"sequence_length {length} leaves {num_envs * -(-num_steps // length)} sequences for "
            f"{num_batches} mini-batches; shorten it or lower num_mini_batches."
        )
    read_by_extensions = [g for e in extensions for g in e.observation_groups()]
    groups = [*dict.fromkeys([*policy.inputs.read(), *read_by_extensions])]
    for group in groups:
        if group not in spec.observation_spaces:
            raise ConfigError(
                f"an extension reads the observation group '{group}', which the environment does not give; "
                f"it has {sorted(spec.observation_spaces)}."
            )
    spaces, dtype = {g: spec.observation_spaces[g] for g in groups}, policy.inputs.like.dtype
    _check_memory(spaces, num_envs, num_steps, dtype, spec.device)
    return RolloutStorage(
        num_envs,
        num_steps,
        spaces,
        keep_terminal=bool(read_by_extensions),
        device=spec.device,
        dtype=dtype,
        sequence_length=length,
        burn_in=config.burn_in,
    )


def _check_memory(
    spaces: Mapping[str, gymnasium.Space[Any]],
    num_envs: int,
    num_steps: int,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Refuse what can never fit; an operating system may grant it, and end the process when it is written."""
    numbers = {g: (num_steps + 1) * num_envs * math.prod(s.shape or ()) for g, s in spaces.items()}
    needed = sum(n * stored_dtype(spaces[g], dtype).itemsize for g, n in numbers.items())
    if device.type == "cuda":
        there = torch.cuda.get_device_properties(device).total_memory
    else:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise ConfigError(
            f"a rollout of {num_envs} environments x {num_steps} steps needs "
            f"{needed / 1e9:.1f} GB, and {device} has {there / 1e9:.1f} GB: lower num_envs or "
            "num_steps_per_env."
        )
