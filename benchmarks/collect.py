"""Time of collection beside the environment: act, store, and returns at the end, for each vector step.

    python benchmarks/collect.py [--repetitions 7] [--only small ...] [--json FILE]

The environment costs nothing: it hands out noise made beforehand. What it does cost (in stable-baselines3 a
call of `step`, and copies to NumPy) is measured in the same run and taken off. All alternate, in one thread.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peers import Contender, Noise, Target, Times, alternate, box, build, replay, report, write

from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.ppo import PPO
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import ActorConfig, CriticConfig
from surefoot.types import EnvSpec, Step

NUM_OBS, NUM_ACTIONS = 48, 12


@dataclass(frozen=True)
class Size:
    num_envs: int
    num_steps: int
    hidden: tuple[int, ...] = (64, 64)


SIZES = {
    "small": Size(8, 256),
    "medium": Size(512, 24),
    "large": Size(4096, 24),
    "legged": Size(4096, 24, (512, 256, 128)),
}
TARGETS = {
    "small": [Target("sb3", "ours", "at least", 3.0), Target("rsl_rl", "ours")],
    "medium": [Target("rsl_rl", "ours", "at least", 2.0), Target("sb3", "ours")],
    "large": [Target("rsl_rl", "ours", "at least", 2.0)],
    "legged": [Target("rsl_rl", "ours")],
}


def ours(size: Size) -> Contender:
    spec = EnvSpec({"policy": box(NUM_OBS)}, box(NUM_ACTIONS), size.num_envs)
    shape: dict[str, Any] = {"hidden_dims": list(size.hidden), "activation": "tanh"}
    policy = ActorCritic(spec, ActorConfig(**shape), CriticConfig(**shape))
    ppo = PPO(policy, spec, PPOConfig(), num_steps_per_env=size.num_steps)
    never = torch.zeros(size.num_envs, dtype=torch.bool)

    def prepare(noise: Noise) -> Callable[[], object]:
        ppo.storage.begin()
        steps = [
            Step({"policy": obs}, rewards, ended, never)
            for obs, rewards, ended in zip(noise.obs[1:], noise.rewards, noise.ended, strict=True)
        ]

        def collect() -> None:
            observations = {"policy": noise.obs[0]}
            for step in steps:
                ppo.act(observations)
                ppo.process_env_step(step)
                observations = step.observations
            ppo.compute_returns(observations)

        return collect

    return prepare


def rsl_rl(size: Size) -> Contender:
    from rsl_rl import algorithms
    from rsl_rl.models import MLPModel
    from rsl_rl.storage import RolloutStorage
    from tensordict import TensorDict

    groups = {"actor": ["policy"], "critic": ["policy"]}
    example = TensorDict({"policy": torch.zeros(size.num_envs, NUM_OBS)}, batch_size=[size.num_envs])
    shape: dict[str, Any] = {"hidden_dims": list(size.hidden), "activation": "tanh"}
    gaussian = {"class_name": "GaussianDistribution"}
    actor = MLPModel(example, groups, "actor", NUM_ACTIONS, distribution_cfg=gaussian, **shape)
    storage = RolloutStorage("rl", size.num_envs, size.num_steps, example, [NUM_ACTIONS])
    ppo = algorithms.PPO(actor, MLPModel(example, groups, "critic", 1, **shape), storage)

    def prepare(noise: Noise) -> Callable[[], object]:
        ppo.storage.clear()
        rows = [TensorDict({"policy": obs}, batch_size=[size.num_envs]) for obs in noise.obs]

        def collect() -> None:
            with torch.inference_mode():
                for t in range(size.num_steps):
                    ppo.act(rows[t])
                    ppo.process_env_step(rows[t + 1], noise.rewards[t], noise.ended[t], {})
                ppo.compute_returns(rows[-1])

        return collect

    return prepare


def sb3(size: Size) -> Contender:
    import stable_baselines3

    env = replay(size.num_envs, NUM_OBS, box(NUM_ACTIONS, 1e3))
    sizes = list(size.hidden)
    options: dict[str, Any] = {"net_arch": {"pi": sizes, "vf": sizes}}
    model = stable_baselines3.PPO(
        "MlpPolicy", env, n_steps=size.num_steps, batch_size=64, policy_kwargs=options, device="cpu"
    )
    _, callback = model._setup_learn(size.num_envs * size.num_steps)

    def prepare(noise: Noise) -> Callable[[], object]:
        env.noise, env.t = noise, 0
        model._last_obs = noise.obs[0].numpy()
        buffer: Any = model.rollout_buffer
        return functools.partial(model.collect_rollouts, env, callback, buffer, size.num_steps)

    return prepare


def sb3_environment(size: Size) -> Contender:
    """What sb3's environment costs, without sb3."""
    env = replay(size.num_envs, NUM_OBS, box(NUM_ACTIONS, 1e3))

    def prepare(noise: Noise) -> Callable[[], object]:
        env.noise, env.t = noise, 0

        def step_all() -> None:
            for _ in range(size.num_steps):
                env.step_wait()

        return step_all

    return prepare


CONTENDERS: dict[str, Callable[[Size], Contender]] = {
    "ours": ours,
    "rsl_rl": rsl_rl,
    "sb3": sb3,
    "sb3 environment": sb3_environment,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    results = {}
    for name in arguments.only:
        size = SIZES[name]
        print(f"\n{name}: {size}")
        contenders, missing = build({n: functools.partial(make, size) for n, make in CONTENDERS.items()})
        draw = functools.partial(Noise.draw, size.num_steps, size.num_envs, NUM_OBS)
        times = alternate(contenders, draw, arguments.repetitions)
        if "sb3" in times:
            costs = times.pop("sb3 environment")
            times["sb3"] = [
                Times(a.cpu - b.cpu, a.wall - b.wall) for a, b in zip(times["sb3"], costs, strict=True)
            ]
        results[name] = report(times, missing, TARGETS[name], size.num_steps, "vector_step")
        write(arguments.json, results)


if __name__ == "__main__":
    main()
