"""PPOAMP: PPO with adversarial motion priors, under the name that forks of RSL-RL gave it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.extension import Extension
from surefoot.algorithm.ppo import PPO
from surefoot.errors import ConfigError
from surefoot.extensions.amp.amp import AMP
from surefoot.extensions.amp.config import AMPConfig
from surefoot.networks.actor_critic import ActorCritic
from surefoot.types import EnvSpec


def PPOAMP(  # noqa: N802 - a factory that stands where forks have a class
    policy: ActorCritic,
    spec: EnvSpec,
    config: PPOConfig | None = None,
    *,
    amp_cfg: AMPConfig | Mapping[str, Any] | None = None,
    num_steps_per_env: int = 24,
    max_iterations: int = 1000,
    extensions: Sequence[Extension] = (),
    seed: int = 1,
) -> PPO:
    """PPO with the extension AMP, which folds the reward before the other extensions.

    Args:
        policy: Moved to `spec.device` already.
        spec: What the environment is.
        config: PPO's.
        amp_cfg: The keys of `algorithm.amp_cfg`; default: those of `config`.
        num_steps_per_env: T.
        max_iterations: Horizon of the schedules that name none.
        extensions: Others, called after AMP.
        seed: Of the streams of action noise, shuffling and extensions.

    Raises:
        ConfigError: there is no amp_cfg, or one of its keys cannot be used.
    """
    amp_cfg = amp_cfg or (config.amp_cfg if config else None)
    if amp_cfg is None:
        raise ConfigError("PPOAMP needs amp_cfg, which names at least the demonstrations: {dataset: ...}.")
    return PPO(
        policy,
        spec,
        config,
        num_steps_per_env=num_steps_per_env,
        max_iterations=max_iterations,
        extensions=[AMP(amp_cfg), *extensions],
        seed=seed,
    )
