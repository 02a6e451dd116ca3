"""Time of one training iteration through the RSL-RL layer against Surefoot's own runner, in one process.

    python benchmarks/rsl_rl_layer.py [--sizes small large] [--repetitions 3] [--json FILE]

An iteration is `learn(1)`: collection, returns and update, in an environment that costs nothing (tensors of
noise made beforehand: 48 observations, 12 actions, an end in 2 % of the steps, half of them time limits),
with normalised observations, networks of 512, 256 and 128 ELU units, 5 epochs and 4 mini-batches. The arms,
all in one thread:

- `native`: `surefoot.OnPolicyRunner`;
- `layer`: `surefoot.compat.rsl_rl.runners.OnPolicyRunner` with a client's environment and configuration;
- `rsl_rl`: the same client on rsl-rl-lib, where that is installed.

They alternate, and which goes first changes with every round. Printed are the medians of processor seconds
and of the rounds' ratios to `native`, with the ratios' range.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import io
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from tensordict import TensorDict

import surefoot
from surefoot.types import MirrorMap, Step

NUM_OBS, NUM_ACTIONS = 48, 12
HIDDEN_DIMS = [512, 256, 128]
NUM_DIFFERENT_STEPS = 8

Space = gymnasium.spaces.Space[Any]


@dataclass(frozen=True)
class Size:
    num_envs: int
    num_steps: int = 24


SIZES = {"small": Size(256), "large": Size(4096)}


class Noise:
    """The tensors that both environments hand out, over and over, and what is the same in both."""

    max_episode_length: int | torch.Tensor | None = 1000

    def __init__(self, num_envs: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.num_envs, self.device = num_envs, torch.device("cpu")
        self._made: list[Any] = []
        self._next = 0
        for _ in range(NUM_DIFFERENT_STEPS):
            obs = torch.randn(num_envs, NUM_OBS, generator=generator)
            rewards = torch.randn(num_envs, generator=generator)
            draw = torch.rand(num_envs, generator=generator)
            self._made.append(self.make(obs, rewards, draw < 0.01, (draw >= 0.01) & (draw < 0.02)))

    def make(self, obs: torch.Tensor, rewards: torch.Tensor, failed: torch.Tensor, late: torch.Tensor) -> Any:
        """What `step` returns once; `failed` and `late` are [N] bool."""
        raise NotImplementedError

    def step(self, actions: torch.Tensor) -> Any:
        self._next = (self._next + 1) % NUM_DIFFERENT_STEPS
        return self._made[self._next]

    def close(self) -> None:
        """There is nothing to close."""


class NativeEnv(Noise):
    """In Surefoot's contract."""

    step_dt: float | None = 0.02
    mirror: MirrorMap | None = None

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        box = gymnasium.spaces.Box
        self.observation_spaces: dict[str, Space] = {"policy": box(-np.inf, np.inf, (NUM_OBS,))}
        self.action_space: Space = box(-np.inf, np.inf, (NUM_ACTIONS,))

    def make(
        self, obs: torch.Tensor, rewards: torch.Tensor, failed: torch.Tensor, late: torch.Tensor
    ) -> Step:
        return Step({"policy": obs}, rewards, failed, late)

    def reset(self, seed: int | None = None, mask: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        return self._made[0].observations


class ClientEnv(Noise):
    """In RSL-RL's contract, as mjlab and Isaac Lab write it."""

    num_actions = NUM_ACTIONS

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.cfg: dict[str, Any] = {}
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long)

    def make(self, obs: torch.Tensor, rewards: torch.Tensor, failed: torch.Tensor, late: torch.Tensor) -> Any:
        observations = TensorDict({"policy": obs}, batch_size=[len(obs)])
        return observations, rewards, (failed | late).long(), {"time_outs": late}

    def get_observations(self) -> TensorDict:
        return self._made[0][0]


def native_arm(size: Size) -> Callable[[], object]:
    network = {"hidden_dims": HIDDEN_DIMS, "activation": "elu", "obs_normalization": True}
    config = {
        "num_envs": size.num_envs,
        "num_steps_per_env": size.num_steps,
        "num_threads": 1,
        "actor": network,
        "critic": network,
        "algorithm": {"num_mini_batches": 4, "entropy_coef": 0.01},
    }
    runner = surefoot.OnPolicyRunner(NativeEnv(size.num_envs), config, device="cpu")
    return lambda: runner.learn(1)


def client_arm(runner_class: Callable[..., Any], size: Size) -> Callable[[], object]:
    network = {
        "class_name": "MLPModel",
        "hidden_dims": HIDDEN_DIMS,
        "activation": "elu",
        "obs_normalization": True,
    }
    gaussian = {"class_name": "GaussianDistribution", "init_std": 1.0, "std_type": "scalar"}
    config = {
        "num_steps_per_env": size.num_steps,
        "save_interval": 1000,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "actor": {**network, "distribution_cfg": gaussian},
        "critic": network,
        "algorithm": {"class_name": "PPO", "num_learning_epochs": 5, "num_mini_batches": 4},
    }
    runner = runner_class(ClientEnv(size.num_envs), config, log_dir=None, device="cpu")
    return lambda: runner.learn(1)


def make_arms(size: Size) -> dict[str, Callable[[], object]]:
    """The arms that can run here; the first is what the others are compared with."""
    from surefoot.compat.rsl_rl.runners import OnPolicyRunner

    arms = {"native": native_arm(size), "layer": client_arm(OnPolicyRunner, size)}
    if importlib.util.find_spec("rsl_rl"):
        from rsl_rl.runners import OnPolicyRunner as TheirRunner

        arms["rsl_rl"] = client_arm(TheirRunner, size)
    return arms


def time_iteration(learn: Callable[[], object]) -> float:
    """Processor seconds of one iteration; what it writes on the screen is made and thrown away."""
    start = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        learn()
    return time.process_time() - start


def measure(size: Size, repetitions: int) -> dict[str, dict[str, float]]:
    with contextlib.redirect_stdout(io.StringIO()):
        arms = make_arms(size)
    for learn in arms.values():
        time_iteration(learn)
    rounds: list[dict[str, float]] = []
    for i in range(repetitions):
        order = list(arms) if i % 2 == 0 else list(arms)[::-1]
        rounds.append({name: time_iteration(arms[name]) for name in order})
    table = {}
    for name in arms:
        ratios = [r[name] / r["native"] for r in rounds]
        table[name] = {
            "iteration_s": statistics.median(r[name] for r in rounds),
            "ratio": statistics.median(ratios),
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
        }
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tables = {}
    for name in arguments.sizes:
        size = SIZES[name]
        tables[name] = measure(size, arguments.repetitions)
        for arm, row in tables[name].items():
            version = importlib.metadata.version("rsl-rl-lib") if arm == "rsl_rl" else surefoot.__version__
            print(
                f"{size.num_envs:5} x {size.num_steps}  {arm:7} {version:6} {row['iteration_s']:8.3f} s"
                f"  ratio {row['ratio']:.3f} ({row['ratio_min']:.3f} to {row['ratio_max']:.3f})"
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(tables, indent=1))


if __name__ == "__main__":
    main()
