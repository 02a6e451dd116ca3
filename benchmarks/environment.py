"""Throughput of the whole Go1 environment against the physics alone.

    python benchmarks/environment.py [--num-envs 512 2048] [--threads 1] [--repetitions 7] [--json FILE]

`environment` is `make("go1-walk")` with standing robots that are sent random actions. `physics` is
`mujoco.rollout` on the same models, states and controls, for the same number of physics steps and threads.
They alternate; wall time counts, as the physics runs on threads of its own.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from peers import Contender, Noise, Target, alternate, report, write

import surefoot
from surefoot.tasks.go1.env import ACTION_SCALE, STAND

NUM_STEPS = 10
LARGEST_SHARE = 1 / 0.7


def environment(num_envs: int, num_threads: int) -> Contender:
    env = surefoot.make("go1-walk", num_envs=num_envs, seed=1, kwargs={"num_threads": num_threads})
    env.reset(seed=1)

    def prepare(noise: Noise) -> Callable[[], object]:
        def step_all() -> None:
            for actions in noise.obs[:-1]:
                env.step(0.5 * actions)

        return step_all

    return prepare


def physics(num_envs: int, num_threads: int) -> Contender:
    env = surefoot.make("go1-walk", num_envs=num_envs, seed=1, kwargs={"num_threads": num_threads})
    env.reset(seed=1)
    simulation = env._physics  # pyright: ignore[reportAttributeAccessIssue]
    pool, models, data = simulation._pool, simulation._models, simulation._data

    def prepare(noise: Noise) -> Callable[[], object]:
        env.reset(seed=1)
        targets = [STAND + ACTION_SCALE * 0.5 * actions.numpy() for actions in noise.obs[:-1]]
        controls = [np.repeat(t[:, None], simulation.substeps, 1) for t in targets]

        def step_all() -> None:
            for control in controls:
                pool.rollout(
                    models,
                    data,
                    simulation.state,
                    control,
                    skip_checks=True,
                    nstep=simulation.substeps,
                    state=simulation._trace,
                    sensordata=simulation._sensors,
                )
                simulation.state[:] = simulation._trace[:, -1]

        return step_all

    return prepare


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num-envs", nargs="+", type=int, default=[512, 2048])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    for num_envs in arguments.num_envs:
        print(f"\n{num_envs} robots, {arguments.threads} threads")
        contenders = {
            "environment": environment(num_envs, arguments.threads),
            "physics": physics(num_envs, arguments.threads),
        }
        draw = functools.partial(Noise.draw, NUM_STEPS, num_envs, 12)
        times = alternate(contenders, draw, arguments.repetitions)
        targets = [Target("environment", "physics", "at most", LARGEST_SHARE)]
        results[str(num_envs)] = report(times, {}, targets, NUM_STEPS * num_envs, "robot_step")
        write(arguments.json, results)


if __name__ == "__main__":
    main()
