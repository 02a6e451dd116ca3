"""Time of PPO's iteration after collection with an extension against without, in one process and one thread.

    python benchmarks/extensions.py [--repetitions 15] [--only NAME ...]

The rollout is of a legged robot's size: 512 environments and 24 steps of 48 observations and 12 actions, for
networks of 256, 128 and 64 units. Each round times `compute_returns` and `update` of every variant, one after
the other, in seconds of the processor; medians and the median of the rounds' ratios are printed. `inert` is
an `Extension()`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import gymnasium
import numpy as np
import torch

from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.extension import Extension
from surefoot.algorithm.ppo import PPO
from surefoot.extensions.rnd import RND
from surefoot.extensions.symmetry import Symmetry
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import ActorConfig, CriticConfig
from surefoot.types import EnvSpec, MirrorMap, Step

NUM_ENVS, NUM_STEPS, NUM_OBS, NUM_ACTIONS = 512, 24, 48, 12

VARIANTS: dict[str, Callable[[], list[Extension]]] = {
    "none": list,
    "inert": lambda: [Extension()],
    "RND": lambda: [RND()],
    "mirrored rows": lambda: [Symmetry(use_data_augmentation=True)],
    "mirror loss": lambda: [Symmetry(use_mirror_loss=True)],
    "both": lambda: [Symmetry(use_data_augmentation=True, use_mirror_loss=True)],
}
"""The first is what the others are compared with."""


def swapped_pairs(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A mirror in which neighbours change places, every other pair with its sign."""
    sign = torch.tensor([-1.0, -1.0, 1.0, 1.0]).repeat(size // 4)
    return torch.arange(size).view(-1, 2).flip(1).flatten(), sign


def make_ppo(extensions: list[Extension]) -> PPO:
    spec = EnvSpec(
        {"policy": gymnasium.spaces.Box(-np.inf, np.inf, (NUM_OBS,))},
        gymnasium.spaces.Box(-np.inf, np.inf, (NUM_ACTIONS,)),
        NUM_ENVS,
        mirror=MirrorMap({"policy": swapped_pairs(NUM_OBS)}, swapped_pairs(NUM_ACTIONS)),
    )
    torch.manual_seed(0)
    sizes = [256, 128, 64]
    actor = ActorConfig(hidden_dims=sizes, obs_normalization=True)
    critic = CriticConfig(hidden_dims=sizes, obs_normalization=True)
    policy = ActorCritic(spec, actor, critic)
    return PPO(policy, spec, PPOConfig(), num_steps_per_env=NUM_STEPS, extensions=extensions)


def time_iteration(ppo: PPO) -> float:
    """Processor seconds of all that follows the collection of one rollout of noise."""
    obs = {"policy": torch.randn(NUM_ENVS, NUM_OBS)}
    for _ in range(NUM_STEPS):
        ppo.act(obs)
        obs = {"policy": torch.randn(NUM_ENVS, NUM_OBS)}
        ended = torch.rand(2, NUM_ENVS) < 0.01
        ppo.process_env_step(Step(obs, torch.randn(NUM_ENVS), ended[0], ended[1], obs))
    start = time.process_time()
    ppo.compute_returns(obs)
    ppo.update()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--only", nargs="+", choices=[*VARIANTS][1:], default=[*VARIANTS][1:])
    arguments = parser.parse_args()
    repetitions, first = arguments.repetitions, next(iter(VARIANTS))
    torch.set_num_threads(1)
    algorithms = {name: make_ppo(VARIANTS[name]()) for name in (first, *arguments.only)}
    for ppo in algorithms.values():
        time_iteration(ppo)
    rounds = [{name: time_iteration(ppo) for name, ppo in algorithms.items()} for _ in range(repetitions)]
    for name in algorithms:
        seconds = statistics.median(r[name] for r in rounds)
        ratio = statistics.median(r[name] / r[first] for r in rounds)
        print(f"{name:14} {seconds:.3f} s  ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
