"""Potential-based reward shaping (Ng, Harada and Russell 1999): a hint that leaves the best policy as it is.

    python examples/reward_shaping.py [ITERATIONS]

Here the potential of the mountain car is its height, so that climbing pays before the flag is ever seen.
"""

import sys

import torch

import surefoot


class Shaping(surefoot.Extension):
    """Adds γ Φ(s') - Φ(s); Φ is 0 after a terminated episode."""

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = weight

    def setup(self, spec, policy):
        self.gamma = spec.gamma

    def observation_groups(self):
        return ("policy",)

    def reward(self, rollout, reward):
        before = self.potential(rollout.observations["policy"][:-1])
        after = self.potential(rollout.next_observations["policy"])
        after = torch.where(rollout.terminated, 0.0, after)
        bonus = self.gamma * after - before
        return reward + torch.where(rollout.next_known | rollout.terminated, bonus, 0.0)

    def potential(self, obs):
        return self.weight * torch.sin(3 * obs[..., 0])


if __name__ == "__main__":
    network = {"hidden_dims": [64, 64], "activation": "tanh", "obs_normalization": True}
    config = {
        "num_steps_per_env": 200,
        "actor": network,
        "critic": network,
        "algorithm": {"entropy_coef": 0.01, "gamma": 0.99},
        "extensions": [{"class_name": "reward_shaping:Shaping", "weight": 10.0}],
    }
    runner = surefoot.OnPolicyRunner(surefoot.make("MountainCar-v0", num_envs=16, seed=1), config)
    runner.learn(int(sys.argv[1]) if len(sys.argv) > 1 else 60)
    print(
        f"mean return {runner.metrics['Train/mean_reward']:.1f} without the hints (-200: never at the flag)"
    )
