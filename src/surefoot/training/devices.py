"""Moving observations and steps between the environments' device and the algorithm's."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from surefoot.types import Observations, Step


def observations_to(observations: Observations, device: torch.device) -> Observations:
    return {g: x.to(device) for g, x in observations.items()}


def step_to(step: Step, device: torch.device) -> Step:
    """The step on `device`; the same object where it is there already."""
    if step.rewards.device == device:
        return step

    def move(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.to(device)

    finals = step.final_observations
    return replace(
        step,
        observations=observations_to(step.observations, device),
        rewards=step.rewards.to(device),
        terminated=step.terminated.to(device),
        truncated=step.truncated.to(device),
        final_observations=None if finals is None else observations_to(finals, device),
        final_known=move(step.final_known),
        valid=move(step.valid),
        log={k: x.to(device) if isinstance(x, Tensor) else x for k, x in step.log.items()},
    )
