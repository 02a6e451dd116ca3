"""Time of advantages and returns against the Python loop that is usual for them.

    python benchmarks/gae.py [--repetitions 30] [--json FILE]

Both get the same rewards, values and ends; they alternate, in one thread.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from pathlib import Path

import torch
from peers import Contender, Noise, Target, alternate, report, write
from torch import Tensor

from surefoot.algorithm.returns import gae

GAMMA, LAM = 0.99, 0.95
SIZES = {"T=2048 N=8": (2048, 8, 10.0), "T=24 N=4096": (24, 4096, 2.0)}
"""Steps, environments, and by how many times the loop is to be slower."""


def loop(rewards: Tensor, values: Tensor, ended: Tensor) -> tuple[Tensor, Tensor]:
    """Backwards over the steps, as in the paper and in most libraries."""
    advantages, last = torch.zeros_like(rewards), torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        goes_on = 1.0 - ended[t].float()
        delta = rewards[t] + GAMMA * values[t + 1] * goes_on - values[t]
        last = delta + GAMMA * LAM * goes_on * last
        advantages[t] = last
    return advantages, advantages + values[:-1]


def ours(rewards: Tensor, values: Tensor, ended: Tensor) -> tuple[Tensor, Tensor]:
    return gae(rewards, values, ended, torch.zeros_like(ended), values[:-1], GAMMA, LAM)


def contender(function: Callable[[Tensor, Tensor, Tensor], object]) -> Contender:
    def prepare(noise: Noise) -> Callable[[], object]:
        call = functools.partial(function, noise.rewards, noise.obs[..., 0].contiguous(), noise.ended)
        call()  # whoever comes first would otherwise pay for bringing the noise into the cache
        return call

    return prepare


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=30)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    results = {}
    for name, (num_steps, num_envs, ratio) in SIZES.items():
        print(f"\n{name}")
        draw = functools.partial(Noise.draw, num_steps, num_envs, 1)
        times = alternate({"ours": contender(ours), "loop": contender(loop)}, draw, arguments.repetitions)
        results[name] = report(times, {}, [Target("loop", "ours", "at least", ratio)], num_steps, "step")
        write(arguments.json, results)


if __name__ == "__main__":
    main()
