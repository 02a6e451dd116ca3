"""Moving observations and steps between the environments' device and the algorithm's."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from surefoot.errors import ConfigError
from surefoot.types import Observations, Step


def available_device(device: torch.device | str) -> torch.device:
    """The device with its index (`cuda` as `cuda:0`).

    Raises:
        ConfigError: there is no such device.
    """
    try:
        # an empty tensor knows the index of `cuda`
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"device '{device}' cannot be used: {str(error).splitlines()[0]} Use auto, cpu, cuda or cuda:N."
        ) from error


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
