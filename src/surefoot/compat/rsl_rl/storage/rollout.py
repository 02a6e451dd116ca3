"""Surefoot's rollout storage as RSL-RL fills it: each step brings values and log-probabilities along."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from surefoot.algorithm.rollout_storage import RolloutStorage
from surefoot.algorithm.stored import FinalObservations
from surefoot.types import Step

LOG_PROB = "log_prob"
"""Among the stored parameters of the distribution: the log-probability of the actions [T, N]."""


class Rollout(RolloutStorage):
    """T steps of N environments.

    `values` [T+1, N] are those that the critic gave while acting, and `bootstrap` [T, N] is V(s') at time
    limits. Everything may be read, as zeros, before it is known.

    Args:
        num_envs: N.
        num_transitions_per_env: T.
        observations: One tensor [N, ...] per group; dtypes are kept.
        device: Where the rows live.
    """

    def __init__(
        self,
        num_envs: int,
        num_transitions_per_env: int,
        observations: Mapping[str, Tensor],
        device: torch.device | str = "cpu",
    ) -> None:
        dtype = torch.get_default_dtype()
        super().__init__(num_envs, num_transitions_per_env, {}, device=device, dtype=dtype)
        num_rows = num_transitions_per_env + 1
        self.observations = {
            g: torch.zeros(num_rows, *x.shape, dtype=x.dtype, device=device) for g, x in observations.items()
        }
        self.finals = FinalObservations(self.observations)
        self.values = torch.zeros(num_rows, num_envs, dtype=dtype, device=device)
        for name in ("bootstrap", "actions_log_prob", "advantages", "returns"):
            setattr(self, name, torch.zeros(num_transitions_per_env, num_envs, dtype=dtype, device=device))

    bootstrap: Tensor

    def begin(self) -> None:
        super().begin()
        if hasattr(self, "bootstrap"):  # steps need not say anything of time limits
            self.bootstrap.zero_()

    def _keep_final(self, t: int, step: Step, ended: Tensor) -> None:
        # their values are in `bootstrap` already; finding the rows makes the host wait for the device
        if self.keep_terminal:
            super()._keep_final(t, step, ended)
        else:
            self.offers_final = True
