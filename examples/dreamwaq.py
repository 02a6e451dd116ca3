"""From past observations a network infers the velocity, and a code that predicts the next ones: DreamWaQ's
idea (Nahrendra et al. 2023).

python examples/dreamwaq.py [ITERATIONS]
"""

import sys

import gymnasium
import torch
from torch import nn

import surefoot
from surefoot.algorithm.losses import masked_mean


def blind_pendulum():
    """Pendulum-v1: the last five angles are seen, the velocity is told in training only."""
    env = gymnasium.wrappers.FrameStackObservation(gymnasium.make("Pendulum-v1"), 5)
    box = gymnasium.spaces.Box
    space = gymnasium.spaces.Dict({"policy": box(-1.0, 1.0, (10,)), "privileged": box(-8.0, 8.0, (1,))})
    transform = gymnasium.wrappers.TransformObservation
    return transform(env, lambda obs: {"policy": obs[:, :2].ravel(), "privileged": obs[-1, 2:]}, space)


class Dreamer(nn.Module):
    """Inputs [..., D], then the inferred velocity and code, through a small network."""

    def __init__(self, num_inputs: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(num_inputs, 64), nn.ELU(), nn.Linear(64, 1 + 2 * 4))
        self.decoder = nn.Sequential(nn.Linear(1 + 4, 64), nn.ELU(), nn.Linear(64, 10))
        self.policy = nn.Sequential(nn.Linear(num_inputs + 5, 64), nn.ELU(), nn.Linear(64, 64), nn.ELU())

    def forward(self, x):
        self.velocity, self.mean, self.log_std = self.encoder(x).split([1, 4, 4], -1)
        return self.policy(torch.cat([x, self.velocity.detach(), self.mean], -1))

    def aux_losses(self, batch, out):
        follows = batch.rollout.next_observations["policy"].flatten(0, 1)[batch.index]
        known = batch.rollout.next_known.flatten()[batch.index]
        known = known if batch.mask is None else known & batch.mask
        code = self.mean + self.log_std.exp() * torch.randn_like(self.mean)
        dream = (self.decoder(torch.cat([self.velocity, code], -1)) - follows).square().mean(-1)
        kl = 0.5 * (self.mean.square() + (2 * self.log_std).exp() - 2 * self.log_std - 1).sum(-1)
        error = (self.velocity - batch.observations["privileged"]).square().squeeze(-1)
        return {"velocity": masked_mean(error, batch.mask), "dream": masked_mean(dream + 0.01 * kl, known)}


if __name__ == "__main__":
    config = {
        "obs_groups": {"actor": ["policy"], "critic": ["policy", "privileged"]},
        "actor": {"class_name": "dreamwaq:Dreamer"},
        "algorithm": {"enable_aux_loss": True, "gamma": 0.95, "learning_rate": 1e-3, "schedule": "fixed"},
        "env": {"reward_scaling": True},
    }
    env = surefoot.make("dreamwaq:blind_pendulum", num_envs=64, seed=1)
    runner = surefoot.OnPolicyRunner(env, config | {"num_steps_per_env": 50})
    runner.learn(int(sys.argv[1]) if len(sys.argv) > 1 else 60)
    print({name: runner.metrics[name] for name in ("Train/mean_reward", "Aux/velocity", "Aux/dream")})
