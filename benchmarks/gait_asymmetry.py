"""How far a trained Go1's gait is from its own mirror image.

    python benchmarks/gait_asymmetry.py RUN ... [--robots 32] [--seconds 6] [--checkpoint last]

For each of some commands, robots walk under it and others under its mirror image (the same forward speed, the
opposite sideways speed and turn), without noise, pushes or randomisation. The mean joint trajectory over the
gait clock under the mirrored command, mirrored (left and right legs change places, hips change their sign,
the clock is half a cycle later), is compared with the one under the command itself:

    asymmetry   root mean square of the difference over the clock, the joints and the commands, in rad

A policy that is symmetric by construction (`actor.mirror: true`) is not quite at 0: the robot's trunk and
calves are not symmetric, nor is the contact solver.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from surefoot.tasks.go1 import make_env
from surefoot.tasks.go1.robot import JOINTS, mirror_of
from surefoot.training.evaluation import load_policy

COMMANDS = ((0.8, 0.0, 0.0), (-0.5, 0.0, 0.0), (0.8, 0.3, 0.0), (0.6, 0.0, 0.8), (0.0, 0.3, 0.4))
"""Forward m/s, left m/s, turn left rad/s."""
NUM_BINS = 20
"""Of the gait clock; even, since the mirror image is half a cycle later."""
SETTLE_S = 1.0
"""s after the start of an episode that do not count: it begins standing."""


def trajectory(policy, command: tuple[float, float, float], num_robots: int, seconds: float) -> np.ndarray:
    """[bins, 12] mean joint positions in rad, from the stand pose, over the gait clock."""
    fixed = {name: [x, x] for name, x in zip(("forward", "left", "turn"), command, strict=True)}
    still = {"push_speed": 0.0, "sensor_noise": 0.0, "num_variants": 1, "episode_length_s": 1e4}
    commands = {**fixed, "hold_s": [1e3, 1e3], "stand_fraction": 0.0, "straight_fraction": 0.0}
    env = make_env(num_robots, seed=1, commands=commands, **still)
    names = env.observation_names["policy"]
    first, clock = names.index(f"joint_position.{JOINTS[0]}"), names.index("clock.sin")
    total, count = np.zeros((NUM_BINS, 12)), np.zeros(NUM_BINS)
    age = torch.zeros(num_robots)
    policy.reset()
    obs = env.reset()
    for _ in range(round(seconds / env.step_dt)):
        step = env.step(policy(obs))
        obs, ended = step.observations, step.terminated | step.truncated
        policy.reset(ended)
        age = torch.where(ended, 0.0, age + env.step_dt)
        rows = obs["policy"][age >= SETTLE_S].double().numpy()
        phase = np.arctan2(rows[:, clock], rows[:, clock + 1]) / (2 * np.pi) % 1.0
        bins = np.floor(phase * NUM_BINS).astype(int) % NUM_BINS
        np.add.at(total, bins, rows[:, first : first + 12])
        np.add.at(count, bins, 1)
    env.close()
    return total / np.maximum(count, 1)[:, None]


def asymmetry(policy, num_robots: int, seconds: float) -> float:
    """The asymmetry in rad."""
    permutation, sign = mirror_of(JOINTS)
    squares = []
    for forward, left, turn in COMMANDS:
        own = trajectory(policy, (forward, left, turn), num_robots, seconds)
        other = trajectory(policy, (forward, -left, -turn), num_robots, seconds)
        image = np.roll(other, NUM_BINS // 2, axis=0)[:, permutation] * np.array(sign)
        squares.append(np.square(own - image).mean())
    return float(np.sqrt(np.mean(squares)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--robots", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--checkpoint", default="last")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for run in arguments.runs:
        policy = load_policy(run, arguments.checkpoint).inference
        found = asymmetry(policy, arguments.robots, arguments.seconds)
        print(f"{run}: asymmetry {found:.4f} rad", flush=True)


if __name__ == "__main__":
    main()
