"""Surefoot: PPO for legged robots and any Gymnasium task. Public names are imported at their first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surefoot.algorithm.distillation import Distillation
    from surefoot.algorithm.extension import Extension
    from surefoot.algorithm.ppo import PPO
    from surefoot.algorithm.rollout_storage import RolloutStorage
    from surefoot.envs.vec_env import VecEnv
    from surefoot.errors import (
        CheckpointError,
        ConfigError,
        EnvContractError,
        NonFiniteError,
        SurefootError,
    )
    from surefoot.extensions.amp.ppo_amp import PPOAMP
    from surefoot.networks.actor_critic import ActorCritic
    from surefoot.tasks import make
    from surefoot.training.evaluation import evaluate, load_policy
    from surefoot.training.hooks import Hook
    from surefoot.training.on_policy_runner import OnPolicyRunner
    from surefoot.types import Batch, EnvSpec, MirrorMap, PolicyOutput, Step

__version__ = "0.1.0"

_HOMES = {
    "OnPolicyRunner": "training.on_policy_runner",
    "PPO": "algorithm.ppo",
    "PPOAMP": "extensions.amp.ppo_amp",
    "Distillation": "algorithm.distillation",
    "ActorCritic": "networks.actor_critic",
    "RolloutStorage": "algorithm.rollout_storage",
    "Extension": "algorithm.extension",
    "Hook": "training.hooks",
    "VecEnv": "envs.vec_env",
    "Step": "types",
    "Batch": "types",
    "PolicyOutput": "types",
    "EnvSpec": "types",
    "MirrorMap": "types",
    "make": "tasks",
    "load_policy": "training.evaluation",
    "evaluate": "training.evaluation",
    "SurefootError": "errors",
    "ConfigError": "errors",
    "EnvContractError": "errors",
    "CheckpointError": "errors",
    "NonFiniteError": "errors",
}

__all__ = [
    "PPO",
    "PPOAMP",
    "ActorCritic",
    "Batch",
    "CheckpointError",
    "ConfigError",
    "Distillation",
    "EnvContractError",
    "EnvSpec",
    "Extension",
    "Hook",
    "MirrorMap",
    "NonFiniteError",
    "OnPolicyRunner",
    "PolicyOutput",
    "RolloutStorage",
    "Step",
    "SurefootError",
    "VecEnv",
    "evaluate",
    "load_policy",
    "make",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'surefoot' has no attribute '{name}'")
    value = getattr(import_module(f"surefoot.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
