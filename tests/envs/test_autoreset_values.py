"""Whatever the autoreset mode, the critic learns the same value of the same task."""

from __future__ import annotations

import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.ppo import PPO
from surefoot.envs.conform import conform_step
from surefoot.envs.gymnasium import GymnasiumVecEnv
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import ActorConfig, CriticConfig
from surefoot.testing import GymConstant
from surefoot.types import EnvSpec, Observations

GAMMA, LENGTH = 0.7, 4


def learned_values(mode: AutoresetMode, ends: str) -> torch.Tensor:
    """V of the four states of an episode, [4], after training on reward 1 a step."""
    copies = SyncVectorEnv([lambda: GymConstant(LENGTH, ends)] * 4, autoreset_mode=mode)
    env = GymnasiumVecEnv(copies)
    spec = EnvSpec(env.observation_spaces, env.action_space, env.num_envs)
    torch.manual_seed(1)
    policy = ActorCritic(
        spec, ActorConfig(hidden_dims=[8]), CriticConfig(hidden_dims=[32, 32], activation="tanh")
    )
    config = PPOConfig(gamma=GAMMA, lam=0.95, learning_rate=1e-2, schedule="fixed", value_loss="mse")
    ppo = PPO(policy, spec, config, num_steps_per_env=20)
    obs = _without_episode(env.reset(seed=1))
    for _ in range(40):
        for _ in range(20):
            step = conform_step(env, env.step(ppo.act(obs)))
            step.observations = obs = _without_episode(step.observations)
            if step.final_observations is not None:
                step.final_observations = _without_episode(step.final_observations)
            ppo.process_env_step(step)
        ppo.compute_returns(obs)
        ppo.update()
    env.close()
    states = torch.stack([torch.zeros(LENGTH), torch.arange(float(LENGTH))], 1)
    return policy.value({"policy": states}).detach()


def _without_episode(obs: Observations) -> dict[str, torch.Tensor]:
    """The task also counts episodes; the policy is not to see that."""
    return {g: x * torch.tensor([0.0, 1.0]) for g, x in obs.items()}


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_a_time_limit_leaves_the_value_of_going_on_for_ever(mode: AutoresetMode) -> None:
    # 1 + γ + γ² + … = 1 / (1 - 0.7)
    assert learned_values(mode, "truncated").tolist() == pytest.approx([3.333] * LENGTH, abs=0.1)


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_a_termination_ends_the_value(mode: AutoresetMode) -> None:
    # with k steps to go: (1 - γ^k) / (1 - γ) for k = 4, 3, 2, 1
    assert learned_values(mode, "terminated").tolist() == pytest.approx([2.533, 2.19, 1.7, 1.0], abs=0.1)
