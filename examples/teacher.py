"""Stay near a teacher while learning: the distance to its mean action is a loss whose weight fades.

    python examples/teacher.py [ITERATIONS]

The teacher here is a hand-written controller; a network that was trained before serves as well.
"""

import sys

import torch

import surefoot
from surefoot.algorithm.losses import masked_mean


def swing_up(obs):
    """Torque [..., 1] in units of the largest: pump energy, and balance near the top."""
    cos, sin, velocity = obs[..., :3].unbind(-1)
    energy = velocity.square() / 6 + 5 * (cos - 1)
    pump = -0.5 * velocity * energy
    balance = -8 * torch.atan2(sin, cos) - 2 * velocity
    return torch.where(cos > 0.9, balance, pump).clamp(-2, 2).unsqueeze(-1) / 2


class NearTeacher(surefoot.Extension):
    """Squared distance of the mean action to the teacher's; its weight halves in `half_life` iterations."""

    def __init__(self, weight: float = 1.0, half_life: float = 20.0) -> None:
        super().__init__()
        self.half_life = half_life
        self.register_buffer("weight", torch.tensor(weight))

    def loss(self, batch, out, policy):
        wanted = swing_up(batch.observations["policy"])
        distance = (out.distribution.mode() - wanted).square().sum(-1)
        return {"Aux/teacher": self.weight * masked_mean(distance, batch.mask)}

    def learn(self, rollout):
        self.weight *= 0.5 ** (1 / self.half_life)
        return {"Aux/teacher_weight": self.weight.clone()}


if __name__ == "__main__":
    network = {"hidden_dims": [64, 64], "activation": "tanh", "obs_normalization": True}
    config = {
        "num_steps_per_env": 200,
        "actor": network,
        "critic": network,
        "algorithm": {"gamma": 0.95, "learning_rate": 1e-3, "schedule": "fixed"},
        "env": {"reward_scaling": True},
        "extensions": [{"class_name": "teacher:NearTeacher"}],
    }
    runner = surefoot.OnPolicyRunner(surefoot.make("Pendulum-v1", num_envs=16, seed=1), config)
    runner.learn(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
    print(f"mean return {runner.metrics['Train/mean_reward']:.1f}, {runner.metrics['Aux/teacher']:.3f} to go")
