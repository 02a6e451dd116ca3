"""From a configuration and an environment to the algorithm."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from surefoot import distributed
from surefoot.algorithm.ppo import PPO
from surefoot.config import (
    SurefootWarning,
    TrainConfig,
    build_config,
    build_extensions,
    own_networks,
    warn_about,
)
from surefoot.envs.vec_env import VecEnv
from surefoot.errors import ConfigError
from surefoot.networks.actor_critic import ActorCritic
from surefoot.training.env_spec import spec_of
from surefoot.training.random_state import seeded
from surefoot.types import EnvSpec


def resolve_config(config: TrainConfig | Mapping[str, Any], total_envs: int) -> TrainConfig:
    """The validated configuration, with the number of environments and processes that there are.

    Raises:
        ConfigError: One line for each fault.
    """
    if total_envs < 1:
        raise ConfigError("the environment given has num_envs 0; expected at least 1.")
    built = build_config(config)
    if isinstance(config, Mapping) and config.get("num_envs", total_envs) != total_envs:
        text = f"num_envs {config['num_envs']} has no effect here: the environment given has {total_envs}."
        warnings.warn(text, SurefootWarning, stacklevel=3)
    built = replace(built, num_envs=total_envs, nproc=distributed.world_size())
    warn_about(built)
    return built


def build_policy(spec: EnvSpec, config: TrainConfig) -> ActorCritic:
    """The networks with initial weights by the run's seed, on the device of `spec`."""
    with seeded(distributed.stream_seed(config.seed, "weights")):
        policy = ActorCritic(
            spec, config.actor, config.critic, config.obs_groups, config.network, own_networks(config)
        )
    return policy.to(spec.device)


def build_algorithm(env: VecEnv, config: TrainConfig, device: torch.device) -> PPO:
    """PPO with the networks and extensions of `config`, for `env`."""
    spec = spec_of(env, config.algorithm.gamma, device)
    policy = build_policy(spec, config)
    # extensions draw initial weights too, when they are built and when PPO sets them up
    with seeded(distributed.stream_seed(config.seed, "extension weights")):
        return PPO(
            policy,
            spec,
            config.algorithm,
            num_steps_per_env=config.num_steps_per_env,
            max_iterations=config.max_iterations,
            extensions=build_extensions(config),
            seed=config.seed,
        )
