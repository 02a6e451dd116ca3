"""The weight of an extension's reward over time, in RSL-RL's form."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from surefoot.algorithm.config import Weight
from surefoot.errors import ConfigError, did_you_mean
from surefoot.field_checks import Checked


@dataclasses.dataclass(frozen=True)
class WeightSchedule(Checked):
    """The weight of a reward over time, counted in steps of each environment from the start of training.

    `constant`; `step` to `final_value` at `final_step`; `linear` from `initial_step` to `final_step`.
    """

    mode: Literal["constant", "step", "linear"] = "constant"
    initial_step: Annotated[int, Ge(0)] = 0
    final_step: Annotated[int, Ge(1)] | None = None
    final_value: Weight | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        finals = [self.final_step is not None, self.final_value is not None]
        if any(finals) if self.mode == "constant" else not all(finals):
            raise ConfigError(
                f"weight_schedule: mode '{self.mode}' takes {'no' if self.mode == 'constant' else 'a'} "
                "final_step and final_value."
            )
        if self.initial_step and self.mode != "linear":
            raise ConfigError(f"weight_schedule.initial_step has no meaning for mode '{self.mode}'.")
        if self.final_step is not None and self.initial_step >= self.final_step:
            raise ConfigError(
                f"weight_schedule: final_step {self.final_step} must be above initial_step "
                f"{self.initial_step}."
            )

    @classmethod
    def of(cls, keys: Mapping[str, Any]) -> WeightSchedule:
        """From a mapping of a configuration."""
        if not isinstance(keys, Mapping):
            raise ConfigError(f"weight_schedule = {keys!r}: expected a mapping with mode.")
        known = [f.name for f in dataclasses.fields(cls)]
        for key in keys:
            if key not in known:
                near = did_you_mean(key, known)
                raise ConfigError(f"unknown key 'weight_schedule.{key}'; known: {', '.join(known)}.{near}")
        try:
            return cls(**keys)
        except ConfigError as error:
            prefix = "" if str(error).startswith("weight_schedule") else "weight_schedule."
            raise ConfigError(f"{prefix}{error}") from error

    def weight(self, initial: float, step: Tensor) -> Tensor:
        """The weight at steps of any shape, where it begins at `initial`; both ends are exact."""
        dtype = torch.promote_types(step.dtype, torch.get_default_dtype())
        if self.final_step is None or self.final_value is None:
            return torch.full_like(step, initial, dtype=dtype)
        if self.mode == "step":
            progress = (step >= self.final_step).to(dtype)
        else:
            progress = ((step - self.initial_step) / (self.final_step - self.initial_step)).clamp(0, 1)
        return (1 - progress) * initial + progress * self.final_value
