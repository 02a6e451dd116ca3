"""How fast a task is with each backend and number of environments: what `surefoot check` recommends."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from surefoot.envs.conform import conform_observations, conform_step
from surefoot.envs.vec_env import VecEnv
from surefoot.types import Observations

WORKERS_PER_CORE = 4
"""Worker processes for each core beyond which more of them are not tried."""
AS_FAST = 0.9
"""Of the largest throughput: what reaches it with fewer environments is recommended."""
_WARM_UP_STEPS = 2

Candidate = tuple[str, int]
"""A backend and a number of environments."""
Act = Callable[[Observations], Tensor]
"""Observations [N, ...] to actions [N, ...]."""


@dataclass(frozen=True)
class Throughput:
    """Of collection with a backend and a number of environments."""

    backend: str
    num_envs: int
    step_s: float
    """Of one step of all environments."""
    act_s: float
    """Of the policy's actions for it."""
    valid: float = 1.0
    """Share of the rows that can be learned from: with `envpool`, each reset takes a step."""

    @property
    def steps_per_s(self) -> float:
        """Environment steps per second, all environments together."""
        return self.valid * self.num_envs / (self.step_s + self.act_s)


@dataclass
class ThroughputReport:
    """What was measured."""

    found: list[Throughput] = field(default_factory=list)
    configured: Throughput | None = None
    """The one of them that is in use now."""
    notes: list[str] = field(default_factory=list)

    @property
    def recommended(self) -> Throughput | None:
        """The fewest environments that are `AS_FAST`; the configured combination, if it is one of these."""
        if not self.found:
            return None
        enough = AS_FAST * max(x.steps_per_s for x in self.found)
        if self.configured and self.configured.steps_per_s >= enough:
            return self.configured
        return min(
            (x for x in self.found if x.steps_per_s >= enough), key=lambda x: (x.num_envs, -x.steps_per_s)
        )

    def __str__(self) -> str:
        best = self.recommended
        lines = [f"note: {text}" for text in self.notes]
        if best is None:
            return "\n".join(lines)
        lines.append("with the untrained policy:")
        lines.append("backend  num_envs   env.step     policy    steps/s")
        for x in self.found:
            marks = ["as configured"] * (x is self.configured) + ["recommended"] * (x is best)
            lines.append(
                f"{x.backend:8} {x.num_envs:8} {1e3 * x.step_s:7.2f} ms {1e3 * x.act_s:7.2f} ms "
                f"{x.steps_per_s:10,.0f}  {', '.join(marks)}".rstrip()
            )
        lines.append(self._advice(best))
        return "\n".join(lines)

    def _advice(self, best: Throughput) -> str:
        now = self.configured
        if best is now:
            return f"nothing that was tried is more than {1 / AS_FAST - 1:.0%} faster than the configuration"
        faster = f"{best.steps_per_s / now.steps_per_s:.1f} times as fast: " if now else ""
        backend = f"--set env.backend={best.backend} " if not now or best.backend != now.backend else ""
        if now and best.num_envs == now.num_envs:
            return f"{faster}{backend}".rstrip()
        envs = f"--num-envs {best.num_envs} (and num_steps_per_env, for rollouts of the same size)"
        return f"{faster}{backend}{envs}"


def candidates(backend: str, backends: Sequence[str], num_envs: int) -> list[Candidate]:
    """What to try, the configured combination first: each backend with as many environments, with four times
    as many and with a quarter.
    """
    most_workers = WORKERS_PER_CORE * (os.cpu_count() or 1)
    tries = [
        (name, size)
        for size in (num_envs, 4 * num_envs, max(num_envs // 4, 1))
        for name in backends
        if name != "async" or size <= most_workers
    ]
    return list(dict.fromkeys([(backend, num_envs), *tries]))


def measure(
    tries: Sequence[Candidate],
    make: Callable[[str, int], VecEnv],
    policy: Callable[[VecEnv], Act],
    seconds: float,
) -> ThroughputReport:
    """Collect with each candidate for its share of the time; what fails or would take too long is noted.

    Args:
        tries: In order of interest. The first is measured even where that alone takes longer than `seconds`.
        make: The environments of a candidate; closed here.
        policy: What chooses actions for them.
        seconds: For everything, making environments included.
    """
    report, late = ThroughputReport(), []
    end = time.perf_counter() + seconds
    costs: dict[str, float] = {}
    for i, (backend, num_envs) in enumerate(tries):
        began = time.perf_counter()
        share = (end - began) / (len(tries) - i)
        if any((x.backend, x.num_envs) == (backend, num_envs) for x in report.found):
            continue
        # of a backend that was not made yet, the cheapest one will do as a guess
        cost = costs.get(backend, min(costs.values(), default=0.0))
        if report.found and cost * num_envs > share:
            late.append(f"{backend} {num_envs}")
            continue
        try:
            env = make(backend, num_envs)
            try:
                # `auto` is whatever was chosen
                name = getattr(env, "backend", backend)
                observations = conform_observations(env, env.reset(seed=0))
                act = policy(env)
                ready = time.perf_counter()
                report.found.append(_collect(env, name, act, observations, began + share))
                if i == 0:
                    report.configured = report.found[0]
            finally:
                env.close()
        except Exception as error:  # noqa: BLE001 - what cannot be measured is not recommended
            text = " ".join(str(error).split())
            report.notes.append(f"{backend} with {num_envs} environments: {type(error).__name__}: {text}")
            continue
        costs[backend] = (ready - began + report.found[-1].step_s) / num_envs
    if late:
        report.notes.append(f"no time for {', '.join(late)}; try --throughput {4 * seconds:g}.")
    return report


@torch.no_grad()
def _collect(env: VecEnv, backend: str, act: Act, observations: Observations, until: float) -> Throughput:
    """Steps until then, at least one; those before it, which warm up, are not counted."""
    step_s = act_s = 0.0
    num_steps, num_valid = -_WARM_UP_STEPS, 0
    while num_steps < 1 or time.perf_counter() < until:
        start = time.perf_counter()
        actions = act(observations)
        acted = time.perf_counter()
        step = conform_step(env, env.step(actions))
        stepped = time.perf_counter()
        observations = step.observations
        num_steps += 1
        if num_steps > 0:
            act_s, step_s = act_s + acted - start, step_s + stepped - acted
            num_valid += env.num_envs if step.valid is None else int(step.valid.sum())
    valid = num_valid / (num_steps * env.num_envs)
    return Throughput(backend, env.num_envs, step_s / num_steps, act_s / num_steps, valid)
