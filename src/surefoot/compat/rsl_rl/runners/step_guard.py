"""NaN and infinity in what environments return, found before anything is learned from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from surefoot.compat.rsl_rl.algorithms.ppo import FINAL_OBSERVATIONS
from surefoot.training.nonfinite import NonFiniteGuard
from surefoot.types import Step

ADVICE = "repair the environment's step() or reset()."


class StepGuard:
    """Surefoot's guard for steps in RSL-RL's form.

    On the CPU it raises at once. On an accelerator it does when the rollout is over, so that nothing waits
    for the device; meanwhile the policy sees zeros in such rows.

    Args:
        num_envs: N.
        device: Where the steps are.
    """

    def __init__(self, num_envs: int, device: torch.device) -> None:
        self.guard = NonFiniteGuard("raise", num_envs, device, ADVICE)

    def check(
        self, observations: TensorDict, rewards: Tensor, dones: Tensor, extras: Mapping[str, Any]
    ) -> TensorDict:
        """The observations, clean. Dones that are NaN count as a faulty group of that name.

        Raises:
            NonFiniteError: naming environment, group and step.
        """
        groups = {name: x for name, x in observations.items() if isinstance(x, Tensor)}
        looked_at = {**groups, "dones": dones} if dones.is_floating_point() else groups
        ended, clock = dones > 0, extras.get("time_outs")
        truncated = ended if clock is None else ended & (clock > 0)
        finals = next((extras[name] for name in FINAL_OBSERVATIONS if extras.get(name) is not None), None)
        step = Step(looked_at, rewards, ended & ~truncated, truncated, finals)
        checked = self.guard.check(step)
        if checked is step:
            return observations
        clean = {**dict(observations.items()), **{name: checked.observations[name] for name in groups}}
        return TensorDict(clean, batch_size=observations.batch_size)

    def finish_rollout(self) -> None:
        """On an accelerator, the one look at what was noted.

        Raises:
            NonFiniteError: as `check`.
        """
        self.guard.finish_rollout()
