"""A trial run for the pre-flight: sampled actions, and each step held against the one before."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, field

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from torch import Tensor

from surefoot.envs.conform import conform_observations, conform_step
from surefoot.envs.vec_env import VecEnv
from surefoot.types import Observations, Step


@dataclass
class EnvReport:
    """What `check_env` found."""

    problems: list[str] = field(default_factory=list)
    """Breaches of the contract: training on this environment would be wrong or would stop."""
    notes: list[str] = field(default_factory=list)
    """Worth knowing, or could not be checked."""
    mirror: list[str] = field(default_factory=list)
    """What the mirror map pairs, a line for each part."""
    steps_per_second: float = 0.0
    """Environment steps per second, all environments together, without a policy."""
    terminated: int = 0
    truncated: int = 0

    @property
    def is_ok(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        lines = [f"problem: {text}" for text in self.problems] + [f"note: {text}" for text in self.notes]
        lines += self.mirror
        if self.steps_per_second:
            lines.append(
                f"{self.steps_per_second:,.0f} environment steps/s; episodes ended: {self.terminated} "
                f"terminated, {self.truncated} truncated (time limit)"
            )
        lines.append(
            "the environment keeps the contract" if self.is_ok else f"{len(self.problems)} problem(s)"
        )
        return "\n".join(lines)

    def note_once(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


class SampledActions:
    """Seeded samples of the action space as a policy would send them; obeys a group `action_mask`."""

    def __init__(self, env: VecEnv, seed: int) -> None:
        self._space = batch_space(copy.deepcopy(env.action_space), env.num_envs)
        self._space.seed(seed)
        self._single, self._device = env.action_space, env.device
        self._generator = torch.Generator().manual_seed(seed)

    def sample(self, observations: Observations) -> Tensor:
        sample = torch.as_tensor(np.asarray(self._space.sample()))
        mask = observations.get("action_mask")
        if mask is not None:
            sample = self._allowed(sample, mask.cpu().flatten(1).float())
        dtype = torch.float32 if isinstance(self._single, spaces.Box) else torch.int64
        return sample.to(self._device, dtype)

    def _allowed(self, sample: Tensor, mask: Tensor) -> Tensor:
        """A sample of what the mask [N, K] allows; a bit that it forbids is 0."""
        if isinstance(self._single, spaces.MultiBinary):
            return sample * mask.reshape(sample.shape).to(sample.dtype)
        if not isinstance(self._single, spaces.Discrete | spaces.MultiDiscrete):
            return sample
        sizes = getattr(self._single, "nvec", np.array([getattr(self._single, "n", 1)])).flatten().tolist()
        # after an end a mask may allow nothing, where the next step only resets
        mask = mask + (mask.sum(1, keepdim=True) == 0)
        columns = [torch.multinomial(part, 1, generator=self._generator) for part in mask.split(sizes, 1)]
        return torch.cat(columns, 1).reshape(sample.shape) + torch.as_tensor(self._single.start)


class TrialRun:
    """The main run: what each step returned, held against the declaration and the step before."""

    def __init__(self, env: VecEnv, seed: int, report: EnvReport) -> None:
        self.env, self.report = env, report
        self.actions = SampledActions(env, seed)
        self.last = copied(conform_observations(env, env.reset(seed=seed)))
        self.ended = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
        self.elapsed = torch.zeros(env.num_envs, dtype=torch.int64, device=env.device)
        self.num_final_unknown = self.num_final_suspect = self.num_final = self.num_late_terminations = 0

    def steps(self, num_steps: int) -> None:
        seconds, k = 0.0, 0
        self._finite(self.last, None, None, 0)
        for k in range(1, num_steps + 1):
            actions = self.actions.sample(self.last)
            sent = actions.clone()
            start = time.perf_counter()
            raw = self.env.step(actions)
            seconds += time.perf_counter() - start
            if not torch.equal(actions, sent):
                self.report.note_once("step() changes the actions it is given.")
            step = conform_step(self.env, raw)
            self._casts(raw)
            self._finite(step.observations, step.rewards, step.valid, k)
            self._ends(step, k)
            self.last = copied(step.observations)
            if self.report.problems:
                break
        self.report.steps_per_second = self.env.num_envs * k / max(seconds, 1e-9)
        self._summary(num_steps)

    def _casts(self, raw: Step) -> None:
        for name, space in self.env.observation_spaces.items():
            given = raw.observations[name]
            if isinstance(given, Tensor) and given.dtype == torch.float64:
                self.report.note_once(
                    f"observation group '{name}' is float64; it is cast to float32 at each step."
                )
            if isinstance(space, spaces.Box) and space.is_bounded() and isinstance(given, Tensor):
                low, high = (torch.as_tensor(b, device=given.device) for b in (space.low, space.high))
                if ((given < low - 1e-4) | (given > high + 1e-4)).any():
                    self.report.note_once(f"observation group '{name}' leaves the bounds of its space.")

    def _finite(
        self, observations: Observations, rewards: Tensor | None, valid: Tensor | None, k: int
    ) -> None:
        values = dict(observations) if rewards is None else {**observations, "rewards": rewards}
        for name, x in values.items():
            bad = ~torch.isfinite(x).flatten(1).all(-1) if x.dim() > 1 else ~torch.isfinite(x)
            if valid is not None:
                bad &= valid
            if bad.any():
                what = "rewards" if name == "rewards" else f"observation group '{name}'"
                i = int(bad.nonzero()[0])
                self.report.problems.append(f"{what} of environment {i} is not finite at step {k}.")

    def _ends(self, step: Step, k: int) -> None:
        ended = step.terminated | step.truncated
        invalid = torch.zeros_like(ended) if step.valid is None else ~step.valid
        if (invalid & ~self.ended).any():
            i = int((invalid & ~self.ended).nonzero()[0])
            self.report.problems.append(
                f"valid is False for environment {i} at step {k}, but no episode ended before."
            )
        if (ended & invalid).any():
            self.report.problems.append(f"an episode ends at step {k} in a row that is not valid.")
        if (step.terminated & step.truncated).any():
            self.report.note_once("some episodes are both terminated and truncated; terminated wins.")
        self.elapsed = torch.where(invalid, 0, self.elapsed + 1)
        limit = self.env.max_episode_length
        if limit is not None:
            at_limit = self.elapsed >= torch.as_tensor(limit, device=self.elapsed.device)
            self.num_late_terminations += int((step.terminated & ~step.truncated & at_limit).sum())
        self.report.terminated += int(step.terminated.sum())
        self.report.truncated += int((step.truncated & ~step.terminated).sum())
        self._finals(step, ended)
        self.elapsed = torch.where(ended, 0, self.elapsed)
        self.ended = ended

    def _finals(self, step: Step, ended: Tensor) -> None:
        known = ended if step.final_known is None else ended & step.final_known
        if step.final_observations is None:
            known = torch.zeros_like(ended)
        self.num_final_unknown += int((ended & ~known & step.truncated).sum())
        if step.final_observations is None or step.final_observations is step.observations or not known.any():
            return
        self.num_final += int(known.sum())
        for name, final in step.final_observations.items():
            same = (final == step.observations[name]).reshape(len(known), -1).all(-1)
            moved = (self.last[name] != step.observations[name]).reshape(len(known), -1).any(-1)
            known = known & same & moved
        self.num_final_suspect += int(known.sum())

    def _summary(self, num_steps: int) -> None:
        report = self.report
        if report.terminated + report.truncated == 0:
            report.notes.append(f"no episode ended in {num_steps} steps; what happens there was not checked.")
        if self.num_late_terminations and not report.truncated:
            report.notes.append(
                f"episodes end at max_episode_length ({self.env.max_episode_length}) as terminated, none as "
                "truncated: if that is a time limit, report it as truncated, or values will be too low."
            )
        if self.num_final_unknown:
            report.notes.append(
                f"{self.num_final_unknown} time limits came without a final observation: V(s_t) stands in."
            )
        if self.num_final > 1 and self.num_final_suspect == self.num_final:
            report.problems.append(
                "final_observations equals the observation after the reset at every ended row; return the "
                "one before the reset."
            )


def copied(observations: Observations) -> dict[str, Tensor]:
    return {name: x.clone() for name, x in observations.items()}


def record(observations: Observations, step: Step | None = None) -> dict[str, Tensor]:
    entry = copied(observations)
    if step is not None:
        entry |= {"rewards": step.rewards.clone(), "terminated": step.terminated.clone()}
        entry["truncated"] = step.truncated.clone()
    return entry


def difference(first: list[dict[str, Tensor]], second: list[dict[str, Tensor]]) -> str:
    """Where two recordings part, in words; empty if they do not."""
    for k, (a, b) in enumerate(zip(first, second, strict=True)):
        for name in a:
            if not torch.equal(torch.nan_to_num(a[name]), torch.nan_to_num(b[name])):
                return f"'{name}' at step {k}"
    return ""
