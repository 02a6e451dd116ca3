"""The objective is exactly one, so it is an argument of PPO: here, Simple Policy Optimisation (Xie et al.
2024).

python examples/custom_objective.py [ITERATIONS]
"""

import sys

import torch

import surefoot
from surefoot.algorithm.objectives import Objective
from surefoot.networks.config import ActorConfig, CriticConfig
from surefoot.types import EnvSpec


class SimplePolicyOptimization(Objective):
    """A quadratic pull towards ratio 1 in place of the clip: its optimum lies at ratio 1 ± ε
    (arXiv:2401.16025).
    """

    def forward(self, log_ratio, advantage, kl):
        ratio = log_ratio.exp()
        return -(advantage * ratio - advantage.abs() / (2 * self.clip) * (ratio - 1).square())


env = surefoot.make("CartPole-v1", num_envs=8, seed=1)
spec = EnvSpec(env.observation_spaces, env.action_space, env.num_envs)
torch.manual_seed(1)
network = {"hidden_dims": [64, 64], "activation": "tanh"}
policy = surefoot.ActorCritic(spec, ActorConfig(**network), CriticConfig(**network))
ppo = surefoot.PPO(policy, spec, num_steps_per_env=128, objective=SimplePolicyOptimization())

obs = env.reset(seed=1)
for iteration in range(int(sys.argv[1]) if len(sys.argv) > 1 else 30):
    for _ in range(128):
        step = env.step(ppo.act(obs))
        ppo.process_env_step(step)
        obs = step.observations
    ppo.compute_returns(obs)
    metrics = ppo.update()
    ends = metrics["Data/terminations"] + metrics["Data/truncations"]
    print(f"{iteration:3d}  steps per episode {8 * 128 / max(ends, 1):6.1f}  KL {metrics['Loss/kl']:.4f}")
env.close()
