"""A new loss is a new class: here, smooth actions by two distances (CAPS, Mysore et al. 2021).

python examples/custom_loss.py [ITERATIONS]
"""

import sys

import torch

import surefoot
from surefoot.algorithm.losses import masked_mean


class Smoothness(surefoot.Extension):
    """Mean actions differ little from those at the next observation, and at a noisy copy of this one."""

    def __init__(self, spatial: float = 0.1, temporal: float = 0.1, noise: float = 0.05) -> None:
        super().__init__()
        self.spatial, self.temporal, self.noise = spatial, temporal, noise

    def setup(self, spec, policy):
        self.generator = spec.generator

    def loss(self, batch, out, policy):
        def distance(observations):
            other = policy(observations, batch.actions, batch.hidden).distribution.mode()
            return (other - out.distribution.mode()).square().sum(-1)

        noisy, following = {}, {}
        for group, x in batch.observations.items():
            noise = torch.randn(x.shape, generator=self.generator, device=x.device)
            noisy[group] = x + self.noise * noise
            following[group] = batch.rollout.next_observations[group].flatten(0, 1)[batch.index]
        known = batch.rollout.next_known.flatten()[batch.index]
        known = known if batch.mask is None else known & batch.mask
        return {
            "Smoothness/spatial": self.spatial * masked_mean(distance(noisy), batch.mask),
            "Smoothness/temporal": self.temporal * masked_mean(distance(following), known),
        }


if __name__ == "__main__":
    config = {
        "num_steps_per_env": 128,
        "max_iterations": 50,
        "actor": {"hidden_dims": [64, 64], "activation": "tanh", "obs_normalization": True},
        "critic": {"hidden_dims": [64, 64], "activation": "tanh", "obs_normalization": True},
        "algorithm": {"gamma": 0.9, "mini_batch_size": 64, "schedule": "fixed"},
        "env": {"reward_scaling": True},
        "extensions": [{"class_name": "custom_loss:Smoothness", "spatial": 0.05}],
    }
    env = surefoot.make("Pendulum-v1", num_envs=8, seed=1)
    runner = surefoot.OnPolicyRunner(env, config)
    runner.learn(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
    for name in ("Train/mean_reward", "Loss/value", "Smoothness/spatial"):
        print(f"{name:20} {runner.metrics[name]:.4f}")
