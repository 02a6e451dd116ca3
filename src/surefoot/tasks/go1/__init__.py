"""`go1-walk`: a Unitree Go1 learns to trot where it is told to, on the CPU, in minutes.

The robot is in `robot` and `go1.xml`, the task in `observations`, `rewards`, `terminations` and `commands`,
and the environment that puts them together in `env`.
"""

from __future__ import annotations

from typing import Any

import torch

from surefoot.tasks.go1.config import Go1Config
from surefoot.tasks.go1.env import Go1Env


def make_env(
    num_envs: int,
    *,
    seed: int = 1,
    evaluation: bool = False,
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> Go1Env:
    """N robots; `kwargs` are the fields of `Go1Config`.

    With `evaluation` there is no noise, push or randomisation; every episode starts from the stand pose,
    lasts 20 s and asks for a new random velocity every 5 s.
    """
    return Go1Env(num_envs, Go1Config.from_kwargs(kwargs), seed=seed, evaluation=evaluation, device=device)
