"""Small models, storages and rollouts in RSL-RL's form, for the tests of the layer."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from surefoot.compat.rsl_rl.algorithms import PPO
from surefoot.compat.rsl_rl.models import MLPModel, RNNModel
from surefoot.compat.rsl_rl.storage import RolloutStorage

NUM_ENVS, NUM_STEPS, OBS_DIM, NUM_ACTIONS = 4, 8, 6, 3
GROUPS = {"actor": ["policy"], "critic": ["policy"]}
GAUSSIAN = {"class_name": "GaussianDistribution", "init_std": 1.0, "std_type": "scalar"}


def make_obs(num_envs: int = NUM_ENVS, **groups: int) -> TensorDict:
    sizes = groups or {"policy": OBS_DIM}
    return TensorDict({g: torch.randn(num_envs, n) for g, n in sizes.items()}, batch_size=[num_envs])


def make_models(
    obs: Any, memory: str | None = None, groups: Any = GROUPS, **kwargs: Any
) -> tuple[MLPModel, MLPModel]:
    kind, options = MLPModel, {"hidden_dims": [16], "activation": "elu", **kwargs}
    if memory:
        kind, options = RNNModel, {**options, "rnn_type": memory, "rnn_hidden_dim": 8}
    actor = kind(obs, groups, "actor", NUM_ACTIONS, distribution_cfg=dict(GAUSSIAN), **options)
    return actor, kind(obs, groups, "critic", 1, **options)


def make_ppo(
    num_envs: int = NUM_ENVS, num_steps: int = NUM_STEPS, memory: str | None = None, **options: Any
) -> PPO:
    obs = make_obs(num_envs)
    actor, critic = make_models(obs, memory)
    storage = RolloutStorage("rl", num_envs, num_steps, obs, [NUM_ACTIONS])
    defaults = {"num_learning_epochs": 2, "num_mini_batches": 2, "schedule": "fixed"}
    return PPO(actor, critic, storage, **{**defaults, **options})


def transition(ppo: PPO, obs: Any, **given: Any) -> RolloutStorage.Transition:
    """A step filled from outside, as clients that learn in their own way do it."""
    step = RolloutStorage.Transition()
    with torch.no_grad():
        step.observations = obs
        step.actions = ppo.actor(obs, stochastic_output=True)
        step.values = ppo.critic(obs)
        step.actions_log_prob = ppo.actor.get_output_log_prob(step.actions)
        step.distribution_params = tuple(p.clone() for p in ppo.actor.output_distribution_params)
    step.rewards, step.dones = torch.randn(len(obs)), torch.zeros(len(obs))
    for name, value in given.items():
        setattr(step, name, value)
    return step


def run(ppo: PPO, extras: Any = None, dones: Tensor | None = None) -> TensorDict:
    """A rollout by the algorithm's own calls; returns what followed its last step."""
    num_envs = ppo.storage.num_envs
    obs = make_obs(num_envs)
    with torch.inference_mode():
        for _ in range(ppo.storage.num_transitions_per_env):
            ppo.act(obs)
            obs = make_obs(num_envs)
            ended = torch.zeros(num_envs) if dones is None else dones
            ppo.process_env_step(obs, torch.randn(num_envs), ended, dict(extras or {}))
        ppo.compute_returns(obs)
    return obs
