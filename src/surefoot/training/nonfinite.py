"""Numbers that are not finite: found before they do harm, and named by where they appeared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from surefoot.algorithm.rollout_storage import RolloutStorage
from surefoot.distributed import global_index
from surefoot.errors import NonFiniteError
from surefoot.networks.inputs import MASK_GROUP
from surefoot.types import Observations, Step

_FINAL = "final "
ADVICE = "repair the environment, or set on_nonfinite: quarantine."


class NonFiniteGuard:
    """Finds a NaN or an infinity in observations and rewards before the policy acts on it.

    On the CPU every step is looked at when it happens. On an accelerator the flags stay on the device until
    the iteration ends; meanwhile the policy sees zeros, and nothing is learned from such rows.

    Args:
        mode: `raise`, or `quarantine`: the last finite row of the environment counts as cut off by a time
            limit with unknown final observation, and its rows are invalid until it resets.
        num_envs: N.
        device: Where the steps are.
        advice: What the error tells the user to do.
    """

    def __init__(self, mode: str, num_envs: int, device: torch.device, advice: str = ADVICE) -> None:
        self.mode, self.device, self.advice = mode, device, advice
        self._on_cpu = device.type == "cpu"
        self._away = torch.zeros(num_envs, dtype=torch.bool, device=device)
        self._any_away = False
        self._quarantined = torch.zeros((), dtype=torch.int64, device=device)
        self._flags: list[tuple[int, dict[str, Tensor]]] = []
        self.step_count = 0
        # number of the first faulty step that `finish_rollout` found, and its faulty rows by source
        self.faulty: tuple[int, Mapping[str, Tensor]] = (0, {})

    def check_reset(self, observations: Observations) -> Observations:
        """The observations of a reset, clean."""
        if self._on_cpu and _all_finite(observations.values()):
            return observations
        bad = _bad_rows(observations)
        if self.mode == "raise":
            none = torch.zeros(self._away.shape, device=self.device)
            self._report(bad, Step(observations, none, none.bool(), none.bool()))
        self._away = _any_row(bad)
        self._any_away = True
        return _clean(observations, self._away)

    def check(self, step: Step, storage: RolloutStorage | None = None) -> Step:
        """The step with clean observations and rewards; in quarantine also with changed ends and validity.

        Args:
            step: From the environment.
            storage: The rollout in which `step` will become row `storage.step`; None outside of one.
        """
        self.step_count += 1
        if self._on_cpu and not self._any_away and self._is_finite(step):
            return step
        bad = {"reward": ~step.rewards.isfinite()} | _bad_rows(step.observations)
        if self.mode == "raise":
            self._report(bad | self._bad_finals(step), step)
            if not self._on_cpu:
                return replace(step, observations=_clean(step.observations, _any_row(bad)))
        return self._quarantine(step, bad, storage)

    def finish_rollout(self) -> None:
        """On an accelerator, the one look at the flags of the iteration; before anything is learned from it.

        Raises:
            NonFiniteError: in mode `raise`.
        """
        flags, self._flags = self._flags, []
        if not flags:
            return
        if not torch.stack([rows.any() for _, bad in flags for rows in bad.values()]).any().item():
            return
        for step, bad in flags:
            for source, rows in bad.items():
                if rows.any():
                    self.faulty = (step, bad)
                    raise NonFiniteError(_message(source, rows, step, None) + self.advice)

    def finish_iteration(self) -> Tensor:
        """0-d: rows set aside since the last call."""
        count, self._quarantined = self._quarantined, torch.zeros_like(self._quarantined)
        return count

    def state_dict(self) -> dict[str, Any]:
        return {"away": self._away, "step_count": self.step_count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.step_count = state["step_count"]
        if state["away"].shape == self._away.shape:
            self._away = state["away"].to(self.device)
            self._any_away = bool(self._away.any())

    def _is_finite(self, step: Step) -> bool:
        used = [step.rewards, *step.observations.values()]
        if step.final_observations is not None:
            rows = (step.terminated | step.truncated).nonzero().squeeze(-1)
            if rows.numel():
                used += [x[rows] for x in step.final_observations.values()]
        return _all_finite(used)

    def _bad_finals(self, step: Step) -> dict[str, Tensor]:
        """Final observations whose value would be used. After a termination none is."""
        if step.final_observations is None:
            return {}
        used = step.truncated & ~step.terminated
        if step.final_known is not None:
            used = used & step.final_known
        return {f"{_FINAL}{g}": rows & used for g, rows in _bad_rows(step.final_observations).items()}

    def _report(self, bad: Mapping[str, Tensor], step: Step) -> None:
        """Raise, or on an accelerator note what would be raised."""
        if not self._on_cpu:
            self._flags.append((self.step_count, dict(bad)))
            return
        values = {"reward": step.rewards, **step.observations}
        values |= {f"{_FINAL}{g}": x for g, x in (step.final_observations or {}).items()}
        for source, rows in bad.items():
            if rows.any():
                raise NonFiniteError(_message(source, rows, self.step_count, values[source]) + self.advice)

    def _quarantine(self, step: Step, bad: Mapping[str, Tensor], storage: RolloutStorage | None) -> Step:
        """Set environments aside; without bad rows the result equals the step."""
        bad_reward = bad["reward"]
        bad_observation = _any_row({source: rows for source, rows in bad.items() if source != "reward"})
        valid = torch.ones_like(self._away) if step.valid is None else step.valid
        ended = step.terminated | step.truncated
        # a bad reward spoils this row, so the one before it was the last good one
        self._cut_previous(storage, bad_reward & valid & ~self._away)
        good = valid & ~self._away & ~bad_reward
        self._quarantined += (valid & ~good).sum()
        cut = bad_observation & good & ~ended
        # after an end, and after a row that only resets, the next observation belongs to a new episode
        restarts = ended | ~valid
        self._away = torch.where(restarts, bad_observation, self._away | bad_observation | bad_reward)
        self._any_away = not self._on_cpu or bool(self._away.any())
        finals, known = self._clean_finals(step, ended, cut)
        return replace(
            step,
            observations=_clean(step.observations, bad_observation),
            rewards=torch.where(good, step.rewards, 0.0),
            truncated=step.truncated | cut,
            valid=good,
            final_observations=finals,
            final_known=known,
        )

    def _clean_finals(
        self, step: Step, ended: Tensor, cut: Tensor
    ) -> tuple[Observations | None, Tensor | None]:
        """A final observation that is not finite is not known."""
        if step.final_observations is None:
            return None, step.final_known
        bad = _any_row(_bad_rows(step.final_observations))
        known = ended if step.final_known is None else step.final_known
        return _clean(step.final_observations, bad), known & ~bad & ~cut

    def _cut_previous(self, storage: RolloutStorage | None, rows: Tensor) -> None:
        # the row before the rollout's first was learned from already, with the value of this observation
        if storage is None or storage.step == 0:
            return
        previous = storage.step - 1
        rows = rows & storage.valid[previous] & ~storage.terminated[previous]
        storage.truncated[previous] |= rows


def _all_finite(tensors: Any) -> bool:
    # one sum per tensor is the cheapest look; a sum that overflows only costs a second look
    return all(not x.is_floating_point() or math.isfinite(x.sum().item()) for x in tensors)


def _bad_rows(observations: Observations) -> dict[str, Tensor]:
    """[N] per group: rows with a NaN or an infinity."""
    return {
        g: ~x.isfinite().flatten(1).all(1) if x.dim() > 1 else ~x.isfinite() for g, x in observations.items()
    }


def _any_row(bad: Mapping[str, Tensor]) -> Tensor:
    return torch.stack([*bad.values()]).any(0)


def _clean(observations: Observations, rows: Tensor) -> dict[str, Tensor]:
    """Zeros in every group of the rows; but what the environment allows there stays true."""
    cleaned = {g: x.masked_fill(rows.view(-1, *[1] * (x.dim() - 1)), 0) for g, x in observations.items()}
    if MASK_GROUP in observations:
        cleaned[MASK_GROUP] = torch.nan_to_num(observations[MASK_GROUP], nan=1.0)
    return cleaned


def _message(source: str, rows: Tensor, step: int, values: Tensor | None) -> str:
    """Of the first of the environments `rows` [N]; `values` [N, ...] where they are still known."""
    env = int(rows.nonzero()[0])
    what = f"observation group '{source}'"
    if source == "reward":
        what = "reward"
    elif source.startswith(_FINAL):
        what = f"final observation of group '{source.removeprefix(_FINAL)}'"
    if values is not None:
        flat = values[env].reshape(-1)
        feature = int((~flat.isfinite()).nonzero()[0])
        at = f" (feature {feature})" if values.dim() > 1 else ""
        what += f"{at} is {flat[feature].item()}"
    else:
        what += " is not finite"
    return (
        f"environment {global_index(env, len(rows))}: {what} (step {step}). Nothing was learned from it and "
        "earlier checkpoints are untouched; "
    )


def check_parameters(module: nn.Module, iteration: int) -> None:
    """Before an iteration: every parameter and buffer is finite. One look at the device.

    Raises:
        NonFiniteError: naming the tensor and the iteration.
    """
    tensors = {n: t for n, t in module.state_dict().items() if t.is_floating_point() and t.numel()}
    if math.isfinite(torch.stack([t.sum().double() for t in tensors.values()]).sum().item()):
        return
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise NonFiniteError(
                f"parameter '{name}' is not finite at iteration {iteration}; the run cannot go on. Resume "
                "from an earlier checkpoint, with a lower learning rate."
            )
