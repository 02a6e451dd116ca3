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
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.ppo import PPO
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import ActorConfig, CriticConfig
from surefoot.types import EnvSpec, Step

OBS, ACTIONS, MEMORY, END = 48, 12, 128, 0.01


class Sizes(NamedTuple):
    num_envs: int
    num_steps: int
    epochs: int
    mini_batches: int


SIZES = {"legged": Sizes(512, 24, 5, 4), "small": Sizes(8, 128, 10, 8)}


@dataclass(frozen=True)
class Noise:
    """What an environment says during one rollout."""

    obs: Tensor
    """[T+1, N, D]"""
    rewards: Tensor
    """[T, N]"""
    ended: Tensor
    """[T, N] bool"""

    @classmethod
    def draw(cls, sizes: Sizes) -> Noise:
        rows = (sizes.num_steps, sizes.num_envs)
        obs = torch.randn(sizes.num_steps + 1, sizes.num_envs, OBS)
        return cls(obs, torch.randn(rows), torch.rand(rows) < END)


class Times(NamedTuple):
    cpu: float
    wall: float


Contender = Callable[[Noise], Callable[[], object]]
"""Collects a rollout of noise; returns the update that learns from it."""


def box(size: int, bound: float = np.inf) -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(-bound, bound, (size,))


def ours(sizes: Sizes, rnn_type: Literal["gru", "lstm"] | None) -> Contender:
    spec = EnvSpec({"policy": box(OBS)}, box(ACTIONS), sizes.num_envs)
    shape: dict[str, Any] = {"hidden_dims": [256, 128, 64], "activation": "elu"}
    if rnn_type:
        shape = {"hidden_dims": [], "rnn_type": rnn_type, "rnn_hidden_dim": MEMORY}
    policy = ActorCritic(spec, ActorConfig(**shape), CriticConfig(**shape))
    config = PPOConfig(num_learning_epochs=sizes.epochs, num_mini_batches=sizes.mini_batches)
    ppo = PPO(policy, spec, config, num_steps_per_env=sizes.num_steps)

    def collect(noise: Noise) -> Callable[[], object]:
        for t in range(sizes.num_steps):
            ppo.act({"policy": noise.obs[t]})
            ended = noise.ended[t]
            ppo.process_env_step(
                Step({"policy": noise.obs[t + 1]}, noise.rewards[t], ended, torch.zeros_like(ended))
            )
        ppo.compute_returns({"policy": noise.obs[-1]})
        return ppo.update

    return collect


def rsl_rl(sizes: Sizes, rnn_type: Literal["gru", "lstm"]) -> Contender:
    from rsl_rl import algorithms
    from rsl_rl.models import RNNModel
    from rsl_rl.storage import RolloutStorage
    from tensordict import TensorDict

    def observations(rows: Tensor) -> Any:
        return TensorDict({"policy": rows}, batch_size=[sizes.num_envs])

    def model(name: str, num_outputs: int, distribution: dict[str, Any] | None) -> Any:
        groups = {"actor": ["policy"], "critic": ["policy"]}
        memory: dict[str, Any] = {"rnn_type": rnn_type, "rnn_hidden_dim": MEMORY, "hidden_dims": [1]}
        network: Any = RNNModel(example, groups, name, num_outputs, distribution_cfg=distribution, **memory)
        # it takes no empty hidden_dims; so its layers give way to the linear head that the others have
        network.mlp = nn.Linear(MEMORY, num_outputs)
        return network

    example = observations(torch.zeros(sizes.num_envs, OBS))
    actor = model("actor", ACTIONS, {"class_name": "GaussianDistribution"})
    storage = RolloutStorage("rl", sizes.num_envs, sizes.num_steps, example, [ACTIONS])
    settings: dict[str, Any] = {"num_learning_epochs": sizes.epochs, "num_mini_batches": sizes.mini_batches}
    critic = model("critic", 1, None)
    ppo: Any = algorithms.PPO(actor, critic, storage, entropy_coef=0.0, **settings)

    def collect(noise: Noise) -> Callable[[], object]:
        with torch.inference_mode():  # as its runner does
            for t in range(sizes.num_steps):
                ppo.act(observations(noise.obs[t]))
                ppo.process_env_step(observations(noise.obs[t + 1]), noise.rewards[t], noise.ended[t], {})
            ppo.compute_returns(observations(noise.obs[-1]))
        return ppo.update

    return collect


def sb3_contrib(sizes: Sizes) -> Contender:
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.vec_env import VecEnv

    class Replay(VecEnv):
        """Says what the noise says."""

        noise = Noise.draw(sizes)
        t = 0

        def reset(self) -> Any:
            self.t = 0
            return self.noise.obs[0].numpy()

        def step_async(self, actions: Any) -> None: ...

        def step_wait(self) -> Any:
            t, self.t = self.t, self.t + 1
            said = (self.noise.obs[t + 1], self.noise.rewards[t].clone(), self.noise.ended[t])
            return (*(x.numpy() for x in said), [{} for _ in range(sizes.num_envs)])

        def close(self) -> None: ...

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return [None] * sizes.num_envs

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None: ...

        def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
            return [None] * sizes.num_envs

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [False] * sizes.num_envs

    # it takes no unbounded actions; these bounds are never met
    env = Replay(sizes.num_envs, box(OBS), box(ACTIONS, 1e3))
    model: Any = RecurrentPPO(
        "MlpLstmPolicy",
        env,
        n_steps=sizes.num_steps,
        batch_size=sizes.num_envs * sizes.num_steps // sizes.mini_batches,
        n_epochs=sizes.epochs,
        clip_range_vf=0.2,
        learning_rate=1e-3,
        vf_coef=1.0,
        max_grad_norm=1.0,
        policy_kwargs={"lstm_hidden_size": MEMORY, "net_arch": [], "enable_critic_lstm": True},
        device="cpu",
    )
    _, callback = model._setup_learn(sizes.num_envs * sizes.num_steps)

    def collect(noise: Noise) -> Callable[[], object]:
        env.noise, env.t = noise, 0
        model._last_obs = noise.obs[0].numpy()
        model.collect_rollouts(env, callback, model.rollout_buffer, sizes.num_steps)
        return model.train

    return collect


CONTENDERS: dict[str, Callable[[Sizes], Contender]] = {
    "ours, feed-forward": lambda sizes: ours(sizes, None),
    "ours, GRU": lambda sizes: ours(sizes, "gru"),
    "rsl_rl, GRU": lambda sizes: rsl_rl(sizes, "gru"),
    "ours, LSTM": lambda sizes: ours(sizes, "lstm"),
    "rsl_rl, LSTM": lambda sizes: rsl_rl(sizes, "lstm"),
    "sb3-contrib, LSTM": sb3_contrib,
}
TARGETS = [
    ("ours, GRU", "ours, feed-forward", "at most", 2.0),
    ("rsl_rl, GRU", "ours, GRU", "at least", 1.2),
    ("sb3-contrib, LSTM", "ours, GRU", "at least", 5.0),
    ("sb3-contrib, LSTM", "ours, LSTM", "", 0.0),
    ("rsl_rl, LSTM", "ours, LSTM", "", 0.0),
]
PEERS = {"rsl_rl": "rsl-rl-lib", "sb3-contrib": "sb3-contrib"}


def installed(sizes: Sizes) -> tuple[dict[str, Contender], dict[str, str]]:
    """Those that can be built, and the reason why each other one cannot."""
    contenders: dict[str, Contender] = {}
    missing: dict[str, str] = {}
    for name, make in CONTENDERS.items():
        try:
            contenders[name] = make(sizes)
        except ImportError as error:  # noqa: PERF203
            missing[name] = str(error)
    return contenders, missing


def time_update(contender: Contender, noise: Noise) -> Times:
    update = contender(noise)
    wall, cpu = time.perf_counter(), time.process_time()
    update()
    return Times(time.process_time() - cpu, time.perf_counter() - wall)


def measure(contenders: dict[str, Contender], sizes: Sizes, repetitions: int) -> dict[str, list[Times]]:
    for contender in contenders.values():
        time_update(contender, Noise.draw(sizes))
    times: dict[str, list[Times]] = {name: [] for name in contenders}
    for _ in range(repetitions):
        noise = Noise.draw(sizes)
        for name, contender in contenders.items():
            times[name].append(time_update(contender, noise))
    return times


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
    num_samples = sizes.num_envs * sizes.num_steps * sizes.epochs
    contenders, missing = installed(sizes)
    times = measure(contenders, sizes, arguments.repetitions)

    table: dict[str, dict[str, Any]] = {}
    for name in CONTENDERS:
        if name in missing:
            table[name] = {"missing": missing[name]}
            print(f"{name:20} not installed: {missing[name]}")
            continue
        cpu, wall = (statistics.median(column) for column in zip(*times[name], strict=True))
        each = cpu / num_samples * 1e6
        table[name] = {"cpu_s": cpu, "wall_s": wall, "us_per_sample": each, "all": times[name]}
        package = PEERS.get(name.split(",")[0])
        if package:
            table[name]["version"] = version(package)
        release = table[name].get("version", "")
        print(f"{name:20} CPU {cpu:6.3f} s  wall {wall:6.3f} s  {each:6.2f} µs a sample  {release}")

    ratios: dict[str, dict[str, Any]] = {}
    for slow, fast, bound, target in TARGETS:
        if slow in missing or fast in missing:
            continue
        pairs = list(zip(times[slow], times[fast], strict=True))
        cpu = statistics.median(a.cpu / b.cpu for a, b in pairs)
        wall = statistics.median(a.wall / b.wall for a, b in pairs)
        wanted = f"wanted: {bound} {target:g}" if bound else ""
        ratios[f"{slow} / {fast}"] = {"cpu": cpu, "wall": wall, "wanted": wanted}
        print(f"{slow + ' / ' + fast:40} CPU {cpu:5.2f}  wall {wall:5.2f}  {wanted}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"updates": table, "ratios": ratios}, indent=1))


if __name__ == "__main__":
    main()
