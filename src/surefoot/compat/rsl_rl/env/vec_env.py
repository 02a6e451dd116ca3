"""VecEnv: what an environment of an RSL-RL client offers. Nobody has to subclass it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor


class VecEnv(ABC):
    """N environments that step together and reset themselves when an episode ends."""

    num_envs: int
    """N."""
    num_actions: int
    """A."""
    max_episode_length: int | Tensor
    """In steps, of all environments, or [N]."""
    episode_length_buf: Tensor
    """[N], steps of the running episodes. `learn(init_at_random_ep_len=True)` assigns to it."""
    device: torch.device | str
    """Where its tensors are."""
    cfg: dict[str, Any] | object
    """Its configuration, for services that show it."""

    @abstractmethod
    def get_observations(self) -> TensorDict:
        """The present observations: one tensor [N, ...] per group, which `obs_groups` refers to."""
        raise NotImplementedError

    @abstractmethod
    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        """One step with actions [N, A].

        Returns:
            Observations after any reset; rewards [N]; dones [N]; and extras: `time_outs` [N], where the clock
            ended the episode; `final_observations`, those before the reset, where the environment has them
            (they make the value at a time limit exact); `log` or `episode`, numbers to average and log.
        """
        raise NotImplementedError
