"""The loop laid open: PPO in four calls, for those who bring their own environment loop and logging.

python examples/open_loop.py [ITERATIONS]
"""

import sys

import torch

import surefoot
from surefoot.algorithm.config import PPOConfig
from surefoot.extensions.reward_scaling import RewardScaling
from surefoot.networks.config import ActorConfig, CriticConfig
from surefoot.types import EnvSpec

num_envs, num_steps = 8, 128
num_iterations = int(sys.argv[1]) if len(sys.argv) > 1 else 30

env = surefoot.make("Pendulum-v1", num_envs=num_envs, seed=1)
spec = EnvSpec(env.observation_spaces, env.action_space, num_envs)
torch.manual_seed(1)
policy = surefoot.ActorCritic(
    spec,
    ActorConfig(hidden_dims=[64, 64], activation="tanh", obs_normalization=True),
    CriticConfig(hidden_dims=[64, 64], activation="tanh", obs_normalization=True),
)
config = PPOConfig(gamma=0.9, mini_batch_size=64, num_learning_epochs=10, schedule="fixed")
ppo = surefoot.PPO(
    policy,
    spec,
    config,
    num_steps_per_env=num_steps,
    max_iterations=num_iterations,
    extensions=[RewardScaling()],
)

obs = env.reset(seed=1)
for iteration in range(num_iterations):
    reward = 0.0
    for _ in range(num_steps):
        actions = ppo.act(obs)
        step = env.step(actions)
        ppo.process_env_step(step)
        obs, reward = step.observations, reward + step.rewards.mean().item() / num_steps
    ppo.compute_returns(obs)
    metrics = ppo.update()
    print(
        f"{iteration:3d}  reward per step {reward:7.3f}  "
        + "  ".join(f"{k} {metrics[k]:.4f}" for k in ("Loss/value", "Loss/kl"))
    )

print("reward after training", surefoot.evaluate(policy, env, episodes=16, seed=100)["mean_reward"])
env.close()
