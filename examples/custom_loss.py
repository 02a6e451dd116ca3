"""A new loss is a new class: here, actions that change little for inputs that change little (CAPS, Mysore
2021).

python examples/custom_loss.py [ITERATIONS]
"""

import sys

import torch

import surefoot
from surefoot.algorithm.losses import masked_mean


class Smoothness(surefoot.Extension):
    """Penalise the distance between the mean actions at an observation and at a noisy copy of it."""

    def __init__(self, weight: float = 0.1, noise: float = 0.05) -> None:
        super().__init__()
        self.weight, self.noise = weight, noise

    def loss(self, batch, out, policy):
        noisy = {g: x + self.noise * torch.randn_like(x) for g, x in batch.observations.items()}
        near = policy(noisy, batch.actions, batch.hidden).distribution
        distance = (near.mode() - out.distribution.mode()).square().sum(-1)
        return {"Smoothness/spatial": self.weight * masked_mean(distance, batch.mask)}


if __name__ == "__main__":
    config = {
        "num_steps_per_env": 128,
        "max_iterations": 50,
        "actor": {"hidden_dims": [64, 64], "activation": "tanh", "obs_normalization": True},
        "critic": {"hidden_dims": [64, 64], "activation": "tanh", "obs_normalization": True},
        "algorithm": {"gamma": 0.9, "mini_batch_size": 64, "schedule": "fixed"},
        "env": {"reward_scaling": True},
        "extensions": [{"class_name": "custom_loss:Smoothness", "weight": 0.05}],
    }
    env = surefoot.make("Pendulum-v1", num_envs=8, seed=1)
    runner = surefoot.OnPolicyRunner(env, config)
    runner.learn(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
    for name in ("Train/mean_reward", "Loss/value", "Smoothness/spatial"):
        print(f"{name:20} {runner.metrics[name]:.4f}")
