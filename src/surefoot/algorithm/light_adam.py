"""Adam that does not bring torch's compiler along."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import Optimizer


def _plain(name: str) -> Callable[..., Any]:
    """A method of `Optimizer` without the wrapper that hides it from the compiler and imports it for that."""
    method = getattr(Optimizer, name)
    return getattr(method, "__wrapped__", method)


class LightAdam(torch.optim.Adam):
    """`torch.optim.Adam` whose state exists before the first step.

    The first call of any of these methods, and of `step`, would import `torch._dynamo` and all that it needs,
    which takes longer than a short training; none of them is ever compiled. With the state there, the fused
    kernel can be called in place of `step`.
    """

    add_param_group = _plain("add_param_group")
    state_dict = _plain("state_dict")
    load_state_dict = _plain("load_state_dict")
    zero_grad = _plain("zero_grad")

    def __init__(self, params: Iterable[Any], **options: Any) -> None:
        super().__init__(params, **options)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p] = {
                    "step": torch.zeros((), dtype=torch.float32, device=p.device),
                    "exp_avg": torch.zeros_like(p),
                    "exp_avg_sq": torch.zeros_like(p),
                }
