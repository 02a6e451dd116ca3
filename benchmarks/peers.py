"""What the benchmarks of updates share: noise to learn from, contenders in turn, medians and ratios."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from torch import Tensor

END = 0.01
"""Probability that a step of noise ends its episode."""
PACKAGES = {
    "rsl_rl": "rsl-rl-lib",
    "sb3": "stable-baselines3",
    "sb3-contrib": "sb3-contrib",
    "skrl": "skrl",
    "tianshou": "tianshou",
    "torchrl": "torchrl",
}
"""Of the contenders whose names begin so."""


class Times(NamedTuple):
    cpu: float
    wall: float


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
    def draw(cls, num_steps: int, num_envs: int, num_obs: int) -> Noise:
        rows = (num_steps, num_envs)
        obs = torch.randn(num_steps + 1, num_envs, num_obs)
        return cls(obs, torch.randn(rows), torch.rand(rows) < END)


Contender = Callable[[Noise], Callable[[], object]]
"""Collects a rollout of noise; returns the update that learns from it."""


class Target(NamedTuple):
    """`slow` is to take `at least` or `at most` so many times as long as `fast`; no bound: only shown."""

    slow: str
    fast: str
    bound: str = ""
    ratio: float = 0.0


def box(size: int, bound: float = np.inf) -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(-bound, bound, (size,))


def replay(num_envs: int, num_obs: int, actions: gymnasium.Space[Any]) -> Any:
    """Environments for stable-baselines3 that say what the noise says that they are given."""
    from stable_baselines3.common.vec_env import VecEnv

    class Replay(VecEnv):
        noise = Noise.draw(1, num_envs, num_obs)
        t = 0

        def reset(self) -> Any:
            self.t = 0
            return self.noise.obs[0].numpy()

        def step_async(self, actions: Any) -> None: ...

        def step_wait(self) -> Any:
            t, self.t = self.t, self.t + 1
            said = (self.noise.obs[t + 1], self.noise.rewards[t].clone(), self.noise.ended[t])
            return (*(x.numpy() for x in said), [{} for _ in range(num_envs)])

        def close(self) -> None: ...

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return [None] * num_envs

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None: ...

        def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
            return [None] * num_envs

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [False] * num_envs

    return Replay(num_envs, box(num_obs), actions)


def learner_of_sb3(model: Any, env: Any, num_steps: int) -> Contender:
    """From one of stable-baselines3's on-policy algorithms on `replay` environments."""
    _, callback = model._setup_learn(env.num_envs * num_steps)

    def collect(noise: Noise) -> Callable[[], object]:
        env.noise, env.t = noise, 0
        model._last_obs = noise.obs[0].numpy()
        model.collect_rollouts(env, callback, model.rollout_buffer, num_steps)
        return model.train

    return collect


def learner_of_rsl_rl(ppo: Any, observations: Callable[[Tensor], Any]) -> Contender:
    """From RSL-RL's PPO; `observations` makes its form of rows [N, D]."""

    def collect(noise: Noise) -> Callable[[], object]:
        with torch.inference_mode():  # as its runner does
            for t in range(len(noise.rewards)):
                ppo.act(observations(noise.obs[t]))
                ppo.process_env_step(observations(noise.obs[t + 1]), noise.rewards[t], noise.ended[t], {})
            ppo.compute_returns(observations(noise.obs[-1]))
        return ppo.update

    return collect


def build(makers: Mapping[str, Callable[[], Contender]]) -> tuple[dict[str, Contender], dict[str, str]]:
    """The contenders that can be built, and the reason why each other one cannot."""
    contenders: dict[str, Contender] = {}
    missing: dict[str, str] = {}
    for name, make in makers.items():
        try:
            contenders[name] = make()
        except ImportError as error:  # noqa: PERF203
            missing[name] = str(error)
    return contenders, missing


def time_once(contender: Contender, noise: Noise) -> Times:
    update = contender(noise)
    wall, cpu = time.perf_counter(), time.process_time()
    update()
    return Times(time.process_time() - cpu, time.perf_counter() - wall)


def alternate(
    contenders: Mapping[str, Contender], draw: Callable[[], Noise], repetitions: int
) -> dict[str, list[Times]]:
    """Each contender in turn, so many times, on the same noise; a first time is not counted."""
    for contender in contenders.values():
        time_once(contender, draw())
    times: dict[str, list[Times]] = {name: [] for name in contenders}
    for _ in range(repetitions):
        noise = draw()
        for name, contender in contenders.items():
            times[name].append(time_once(contender, noise))
    return times


def report(
    times: Mapping[str, list[Times]],
    missing: Mapping[str, str],
    targets: Iterable[Target],
    num_units: int,
    unit: str,
) -> dict[str, Any]:
    """Print medians and ratios, of the process's CPU time first; the same as plain data."""
    table: dict[str, dict[str, Any]] = {}
    for name, reason in missing.items():
        table[name] = {"missing": reason}
        print(f"{name:22} not installed: {reason}")
    for name, seen in times.items():
        cpu, wall = (statistics.median(column) for column in zip(*seen, strict=True))
        each = cpu / num_units * 1e6
        table[name] = {"cpu_s": cpu, "wall_s": wall, f"us_per_{unit}": each, "all": seen}
        package = PACKAGES.get(name.split(",")[0])
        if package:
            table[name]["version"] = version(package)
        release = table[name].get("version", "")
        print(f"{name:22} CPU {cpu:6.3f} s  wall {wall:6.3f} s  {each:8.2f} µs a {unit}  {release}")

    ratios: dict[str, dict[str, Any]] = {}
    for slow, fast, bound, target in targets:
        if slow not in times or fast not in times:
            continue
        pairs = list(zip(times[slow], times[fast], strict=True))
        cpu = statistics.median(a.cpu / b.cpu for a, b in pairs)
        wall = statistics.median(a.wall / b.wall for a, b in pairs)
        wanted = f"wanted: {bound} {target:g}" if bound else ""
        ratios[f"{slow} / {fast}"] = {"cpu": cpu, "wall": wall, "wanted": wanted}
        print(f"{slow + ' / ' + fast:44} CPU {cpu:5.2f}  wall {wall:5.2f}  {wanted}")
    return {"updates": table, "ratios": ratios}


def write(path: Path | None, data: Mapping[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
