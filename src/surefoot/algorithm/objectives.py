"""The policy objective is exactly one: PPO-Clip, PPO-Penalty or your own."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from surefoot.algorithm.losses import adapt_beta, clipped_surrogate, penalty_surrogate


class Objective(nn.Module, ABC):
    """The policy loss per row, and what it adapts between iterations. State lives in buffers."""

    uses_kl: bool = False
    """Whether `forward` differentiates through the KL."""

    clip: Tensor
    """0-d ε: set by PPO from `clip_param` and its schedule before each iteration; also clips the value loss."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("clip", torch.tensor(0.2))

    @abstractmethod
    def forward(self, log_ratio: Tensor, advantage: Tensor, kl: Tensor) -> Tensor:
        """Loss [M] from log π/π_old [M], the normalised advantage [M] and KL(old ‖ new) [M]."""

    def end_iteration(self, kl: Tensor) -> None:
        """Adapt to the KL (0-d), averaged over the last epoch and all processes."""


class Clip(Objective):
    """PPO-Clip."""

    def forward(self, log_ratio: Tensor, advantage: Tensor, kl: Tensor) -> Tensor:
        return clipped_surrogate(log_ratio.exp(), advantage, self.clip)


class Penalty(Objective):
    """PPO-Penalty with adaptive β."""

    uses_kl = True
    beta: Tensor

    def __init__(self, kl_target: float = 0.01, kl_beta: float = 1.0) -> None:
        super().__init__()
        self.kl_target = kl_target
        self.register_buffer("beta", torch.tensor(kl_beta))

    def forward(self, log_ratio: Tensor, advantage: Tensor, kl: Tensor) -> Tensor:
        return penalty_surrogate(log_ratio.exp(), advantage, kl, self.beta)

    def end_iteration(self, kl: Tensor) -> None:
        self.beta.copy_(adapt_beta(self.beta, kl, self.kl_target))
