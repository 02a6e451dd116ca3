"""Bytes of the rollout storage against those of the fields that are read.

    python benchmarks/memory.py [--json FILE]

4096 environments x 24 steps; the environment gives a third group that no network reads. The fields that are
read: observations of actor and critic (and those that followed the last step), actions, rewards, ends,
parameters of the distribution, log-probabilities, values, advantages and returns. `inputs` are what the
networks are fed in the end, concatenated and normalised once for all epochs; listed apart where they are a
copy.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from peers import box, write
from torch import Tensor

from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.ppo import PPO
from surefoot.networks.actor_critic import ActorCritic
from surefoot.types import EnvSpec, Step

NUM_ENVS, NUM_STEPS, NUM_ACTIONS = 4096, 24, 12
GROUPS = {"policy": 48, "privileged": 60, "unread": 48}
SETS = {"actor": ["policy"], "critic": ["policy", "privileged"]}


def nbytes(tensors: Iterable[Any]) -> int:
    """Of the memory behind the tensors; what they share counts once."""
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}
    return sum(storages.values())


def tensors_of(x: object) -> list[Tensor]:
    """All tensors in the attributes of an object, and in its lists, tuples and mappings."""
    if isinstance(x, Tensor):
        return [x]
    if hasattr(x, "items"):
        return [t for _, value in x.items() for t in tensors_of(value)]  # pyright: ignore
    if isinstance(x, list | tuple):
        return [t for value in x for t in tensors_of(value)]
    return []


def needed() -> int:
    rows = NUM_ENVS * NUM_STEPS
    observations = sum(GROUPS[g] for g in ("policy", "privileged")) * (rows + NUM_ENVS)
    # actions, means and deviations; rewards, log-probabilities, advantages, returns
    a_row = 3 * NUM_ACTIONS + 4
    return 4 * (observations + a_row * rows + rows + NUM_ENVS) + 2 * rows


def ours() -> dict[str, int]:
    spec = EnvSpec({g: box(n) for g, n in GROUPS.items()}, box(NUM_ACTIONS), NUM_ENVS)
    ppo = PPO(ActorCritic(spec, obs_groups=SETS), spec, PPOConfig(), num_steps_per_env=NUM_STEPS)
    observations = {g: torch.zeros(NUM_ENVS, n) for g, n in GROUPS.items()}
    never = torch.zeros(NUM_ENVS, dtype=torch.bool)
    for _ in range(NUM_STEPS):
        ppo.act(observations)
        ppo.process_env_step(Step(observations, torch.zeros(NUM_ENVS), never, never))
    ppo.compute_returns(observations)
    fields = vars(ppo.storage)
    rows = [t for name, x in fields.items() if name != "inputs" for t in tensors_of(x)]
    return {"ours": nbytes(rows), "inputs": nbytes(rows + tensors_of(fields["inputs"])) - nbytes(rows)}


def rsl_rl() -> dict[str, int]:
    from rsl_rl.storage import RolloutStorage
    from tensordict import TensorDict

    obs = TensorDict({g: torch.zeros(NUM_ENVS, n) for g, n in GROUPS.items()}, batch_size=[NUM_ENVS])
    storage = RolloutStorage("rl", NUM_ENVS, NUM_STEPS, obs, [NUM_ACTIONS])
    distribution = [torch.zeros(NUM_STEPS, NUM_ENVS, NUM_ACTIONS) for _ in range(2)]
    return {"rsl_rl": nbytes([t for x in vars(storage).values() for t in tensors_of(x)] + distribution)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    read, results = needed(), {}
    for measure in (ours, rsl_rl):
        try:
            sizes = measure()
        except ImportError as error:
            print(f"{measure.__name__:8} not installed: {error}")
            continue
        for name, size in sizes.items():
            results[name] = {"bytes": size, "ratio": size / read}
            wanted = "wanted: at most 1.1" if name == "ours" else ""
            print(f"{name:8} {size / 1e6:7.1f} MB  {size / read:5.2f} of what is read  {wanted}")
    write(arguments.json, {"read_bytes": read, **results})


if __name__ == "__main__":
    main()
