"""The contract suite for environments."""

from __future__ import annotations

from collections.abc import Callable

from surefoot.envs import check
from surefoot.envs.vec_env import VecEnv
from surefoot.errors import EnvContractError


def check_env(env: VecEnv | Callable[[], VecEnv], num_steps: int = 200, seed: int = 1) -> check.EnvReport:
    """Run an environment through the contract; the report is returned when all is well.

    Raises:
        EnvContractError: lists every problem found.
    """
    made = env if isinstance(env, VecEnv) else env()
    report = check.check_env(made, num_steps=num_steps, seed=seed)
    if report.problems:
        raise EnvContractError("; ".join(report.problems))
    return report
