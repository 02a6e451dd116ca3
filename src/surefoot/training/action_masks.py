"""A state in which no action is allowed: found before the policy acts in it, and named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import torch
from torch import Tensor

from surefoot.distributed import global_index
from surefoot.errors import EnvContractError
from surefoot.networks.inputs import MASK_GROUP
from surefoot.types import Observations, Step

spaces = gymnasium.spaces


class ActionMaskGuard:
    """Holds each action mask against the rule that every action has at least one value left.

    After an end there may be none, where the next step only resets; such a row is looked at once it turns out
    to count. On an accelerator the flags stay on the device until the rollout ends.
    """

    def __init__(self, action_space: gymnasium.Space[Any], device: torch.device) -> None:
        self._sizes: list[int] = []
        if isinstance(action_space, spaces.Discrete):
            self._sizes = [int(action_space.n)]
        elif isinstance(action_space, spaces.MultiDiscrete):
            self._sizes = action_space.nvec.flatten().tolist()
        self._device, self._on_cpu = device, device.type == "cpu"
        self._ended: Tensor | None = None
        self._flags: list[Tensor] = []
        self._steps = 0

    def check(self, observations: Observations, step: Step | None = None) -> None:
        """Observations of a reset, or of `step`.

        Raises:
            EnvContractError: a mask allows nothing.
        """
        if not self._sizes or MASK_GROUP not in observations:
            return
        mask = observations[MASK_GROUP].bool().flatten(1)
        empty = torch.stack([~part.any(1) for part in mask.split(self._sizes, 1)]).any(0)
        bad, before, self._ended = empty, self._ended, None
        if step is not None:
            self._steps += 1
            ended = step.terminated | step.truncated
            bad, self._ended = empty & ~ended, empty & ended
            if before is not None:
                bad = bad | (before if step.valid is None else before & step.valid)
        if self._on_cpu:
            _raise_if(bad, f"at step {self._steps}")
        else:
            self._flags.append(bad)

    def finish_rollout(self) -> None:
        """On an accelerator, the one look at the flags."""
        flags, self._flags = self._flags, []
        if flags:
            _raise_if(torch.stack(flags).any(0), "in this rollout")

    def state_dict(self) -> dict[str, Any]:
        return {"ended": self._ended, "steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._steps, ended = state["steps"], state["ended"]
        self._ended = None if ended is None else ended.to(self._device)


def _raise_if(bad: Tensor, when: str) -> None:
    if bool(bad.any()):
        env = global_index(int(bad.nonzero()[0]), len(bad))
        raise EnvContractError(
            f"environment {env} gave an action_mask that allows no action {when}. Allow at least one value "
            "of each action, or end the episode there."
        )
