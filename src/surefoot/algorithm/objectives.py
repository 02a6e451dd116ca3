"""The policy objective is exactly one: PPO-Clip, PPO-Penalty or your own. So is the value loss."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.losses import (
    adapt_beta,
    clipped_surrogate,
    clipped_value_loss,
    huber_value_loss,
    mse_value_loss,
    penalty_surrogate,
)
from surefoot.errors import ConfigError


class Objective(nn.Module, ABC):
    """The policy loss per row, and what it adapts between iterations. State lives in buffers."""

    uses_kl: bool = False
    """Whether `forward` differentiates through the KL."""

    clip: Tensor
    """0-d ε: set by PPO from `clip_param` and its schedule before each iteration; also clips the value
    loss."""

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


def make_objective(config: PPOConfig) -> Objective:
    if config.policy_objective == "clip":
        return Clip()
    if config.policy_objective == "penalty":
        return Penalty(config.kl_target, config.kl_beta)
    raise ConfigError(
        f"policy_objective '{config.policy_objective}': choose 'clip' or 'penalty', or give PPO an "
        "`objective`."
    )


def value_loss_kind(config: PPOConfig) -> str:
    """`clipped`, `huber` or `mse`."""
    return config.value_loss or ("clipped" if config.use_clipped_value_loss else "mse")


def value_loss(config: PPOConfig, value: Tensor, old_value: Tensor, returns: Tensor, clip: Tensor) -> Tensor:
    """The configured value loss per row [M]."""
    kind = value_loss_kind(config)
    if kind == "clipped":
        return clipped_value_loss(value, old_value, returns, clip)
    if kind == "huber":
        return huber_value_loss(value, returns, config.huber_delta)
    return mse_value_loss(value, returns)
