"""Time of a recurrent PPO update: ours against a feed-forward one, RSL-RL and sb3-contrib, in one process and
one thread.

    pip install tensordict stable-baselines3 sb3-contrib && pip install --no-deps rsl-rl-lib==5.5.1
    python benchmarks/recurrent.py [--sizes legged | small] [--repetitions 7] [--json FILE]

`legged`: 512 environments × 24 steps, 5 epochs × 4 mini-batches. `small`: 8 × 128, 10 × 8, what sb3-contrib
does by default. 48 observations, 12 actions, 128 units of memory for actor and critic each under a linear
head; every step ends an episode with probability 0.01. All contenders learn from the same noise, a fresh
rollout for each repetition, and alternate; only the update is timed. Every row is valid, so all learn from
equally many. A peer that is not installed is named and left out.

What differs: the feed-forward reference has layers of 256, 128 and 64 units. RSL-RL's mini-batches are the
same environments each epoch, ours random sequences. sb3-contrib has no GRU, does not adapt its learning
rate, clips the gradients of actor and critic jointly and normalises advantages in each mini-batch.

Ratios are medians over the repetitions, of the process's CPU time first: on a shared machine the wall clock,
beside it, also counts what others do.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peers import Contender, Noise, Target, alternate, box, build, learner_of_sb3, replay, report, write
from update import Regime, ours, rsl_rl

SIZES = {
    "legged": Regime(512, 24, 5, 512 * 24 // 4, 48, 12, (256, 128, 64), "elu", "adaptive"),
    "small": Regime(8, 128, 10, 8 * 128 // 8, 48, 12, (256, 128, 64), "elu", "adaptive"),
}


def sb3_contrib(regime: Regime) -> Contender:
    from sb3_contrib import RecurrentPPO

    # it takes no unbounded actions; these bounds are never met
    env = replay(regime.num_envs, regime.obs, box(regime.actions, 1e3))
    model: Any = RecurrentPPO(
        "MlpLstmPolicy",
        env,
        n_steps=regime.num_steps,
        batch_size=regime.mini_batch,
        n_epochs=regime.epochs,
        clip_range_vf=0.2,
        learning_rate=1e-3,
        vf_coef=1.0,
        max_grad_norm=1.0,
        policy_kwargs={"lstm_hidden_size": regime.rnn, "net_arch": [], "enable_critic_lstm": True},
        device="cpu",
    )
    return learner_of_sb3(model, env, regime.num_steps)


def contenders_of(sizes: Regime) -> dict[str, Callable[[], Contender]]:
    gru = dataclasses.replace(sizes, hidden=(), rnn=128)
    lstm = dataclasses.replace(gru, rnn_type="lstm")
    return {
        "ours, feed-forward": functools.partial(ours, sizes, "off"),
        "ours, GRU": functools.partial(ours, gru, "off"),
        "rsl_rl, GRU": functools.partial(rsl_rl, gru),
        "ours, LSTM": functools.partial(ours, lstm, "off"),
        "rsl_rl, LSTM": functools.partial(rsl_rl, lstm),
        "sb3-contrib, LSTM": functools.partial(sb3_contrib, lstm),
    }


TARGETS = [
    Target("ours, GRU", "ours, feed-forward", "at most", 2.0),
    Target("rsl_rl, GRU", "ours, GRU", "at least", 1.2),
    Target("sb3-contrib, LSTM", "ours, GRU", "at least", 5.0),
    Target("sb3-contrib, LSTM", "ours, LSTM"),
    Target("rsl_rl, LSTM", "ours, LSTM"),
]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", choices=SIZES, default="legged")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    sizes = SIZES[arguments.sizes]
    contenders, missing = build(contenders_of(sizes))
    draw = functools.partial(Noise.draw, sizes.num_steps, sizes.num_envs, sizes.obs)
    times = alternate(contenders, draw, arguments.repetitions)
    num_samples = sizes.num_envs * sizes.num_steps * sizes.epochs
    write(arguments.json, report(times, missing, TARGETS, num_samples, "sample"))


if __name__ == "__main__":
    main()
