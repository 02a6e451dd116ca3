"""What `eval` and `play` share: a trained policy and environments to try it in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from surefoot import tasks
from surefoot.envs.vec_env import VecEnv
from surefoot.errors import CheckpointError
from surefoot.training.evaluation import LoadedPolicy, load_policy


def load(run: str, checkpoint: str, device: torch.device) -> LoadedPolicy:
    """The policy of a run whose task is known."""
    policy = load_policy(run, checkpoint, device)
    if policy.task is None:
        raise CheckpointError(
            f"the run {run} was made from Python, with an environment of its own: evaluate it there with "
            "surefoot.evaluate(surefoot.load_policy(RUN), env)."
        )
    return policy


def evaluation_env(
    policy: LoadedPolicy,
    num_envs: int,
    seed: int,
    device: torch.device,
    extra: Mapping[str, Any] | None = None,
) -> VecEnv:
    """Environments of the policy's task, without noise, pushes or randomisation."""
    assert policy.task is not None
    settings = policy.config.env
    return tasks.make(
        policy.task,
        num_envs,
        seed=seed,
        evaluation=True,
        backend=settings.backend,
        kwargs={**settings.kwargs, **(extra or {})},
        device=device,
    )
