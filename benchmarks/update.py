"""Time of PPO's update against the bare matrix products it contains, in one process and one thread.

    python benchmarks/update.py [--repetitions 5] [--json FILE]

The limit is the time of `mm` for each layer's output, weight gradient and input gradient (not the first
layer's), in preallocated memory, without bias or activation, for the same rows. Ours and the limit alternate;
medians and their ratio are printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import gymnasium
import numpy as np
import torch

from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.ppo import PPO
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import ActorConfig, CriticConfig
from surefoot.types import EnvSpec, Step


@dataclass(frozen=True)
class Regime:
    num_envs: int
    num_steps: int
    epochs: int
    mini_batch: int
    obs: int
    actions: int
    hidden: tuple[int, ...]
    activation: str


REGIMES = {
    "small": Regime(8, 256, 10, 64, 17, 6, (64, 64), "tanh"),
    "medium": Regime(512, 24, 5, 512 * 24 // 4, 48, 12, (256, 128, 64), "elu"),
    "go1": Regime(512, 24, 4, 512 * 24 // 4, 50, 12, (128, 128), "elu"),
}


def filled_ppo(regime: Regime) -> PPO:
    """PPO with a rollout of noise, ready to update."""
    spec = EnvSpec(
        {"policy": gymnasium.spaces.Box(-np.inf, np.inf, (regime.obs,))},
        gymnasium.spaces.Box(-np.inf, np.inf, (regime.actions,)),
        regime.num_envs,
    )
    shape = {"hidden_dims": list(regime.hidden), "activation": regime.activation}
    policy = ActorCritic(spec, ActorConfig(**shape), CriticConfig(**shape))  # pyright: ignore[reportArgumentType]
    config = PPOConfig(num_learning_epochs=regime.epochs, mini_batch_size=regime.mini_batch)
    ppo = PPO(policy, spec, config, num_steps_per_env=regime.num_steps)
    for _ in range(regime.num_steps):
        ppo.act({"policy": torch.randn(regime.num_envs, regime.obs)})
        ended = torch.rand(2, regime.num_envs) < 0.01
        obs = {"policy": torch.randn(regime.num_envs, regime.obs)}
        ppo.process_env_step(Step(obs, torch.randn(regime.num_envs), ended[0], ended[1]))
    ppo.compute_returns(obs)
    return ppo


def time_update(regime: Regime) -> float:
    ppo = filled_ppo(regime)
    start = time.perf_counter()
    ppo.update()
    return time.perf_counter() - start


def time_products(regime: Regime) -> float:
    rows = regime.num_envs * regime.num_steps
    widths = [[regime.obs, *regime.hidden, out] for out in (regime.actions, 1)]
    layers = [pair for w in widths for pair in pairwise(w)]
    firsts = {0, len(regime.hidden) + 1}
    m = min(regime.mini_batch, rows)
    x = [(torch.randn(m, i), torch.randn(i, o), torch.randn(m, o)) for i, o in layers]
    out = [(torch.empty(m, o), torch.empty(i, o), torch.empty(m, i)) for i, o in layers]
    start = time.perf_counter()
    for _ in range(regime.epochs * rows // m):
        for k, ((a, w, g), (y, dw, dx)) in enumerate(zip(x, out, strict=True)):
            torch.mm(a, w, out=y)
            torch.mm(a.t(), g, out=dw)
            if k not in firsts:
                torch.mm(g, w.t(), out=dx)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = {}
    for name, regime in REGIMES.items():
        time_update(regime), time_products(regime)
        pairs = [(time_update(regime), time_products(regime)) for _ in range(arguments.repetitions)]
        batches = regime.epochs * -(-regime.num_envs * regime.num_steps // regime.mini_batch)
        ours, limit = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(a / b for a, b in pairs)
        table[name] = {
            "update_s": ours,
            "products_s": limit,
            "ratio": ratio,
            "us_per_mini_batch": ours / batches * 1e6,
        }
        each = f"{ours / batches * 1e6:.0f} µs a mini-batch"
        print(f"{name:8} update {ours:.3f} s  products {limit:.3f} s  ratio {ratio:.2f}  {each}")
    if arguments.json:
        arguments.json.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
