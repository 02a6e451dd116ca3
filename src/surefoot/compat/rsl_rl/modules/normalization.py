"""Running statistics with RSL-RL's interface and state-dict keys; merged exactly, as Surefoot merges them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from surefoot import distributed


class EmpiricalNormalization(nn.Module):
    """(x - mean) / (std + eps), without a clip; changed by `update`, `warm_up` and loading only.

    Args:
        shape: Of one row.
        eps: Added to the deviation.
        until: Rows after which the statistics stay as they are; None: never.
    """

    if TYPE_CHECKING:  # TorchScript cannot read these
        _mean: Tensor
        _var: Tensor
        _std: Tensor
        count: Tensor

    def __init__(self, shape: int | Sequence[int], eps: float = 1e-2, until: int | None = None) -> None:
        super().__init__()
        self.eps, self.until = eps, until
        size = (1, shape) if isinstance(shape, int) else (1, *shape)
        self.register_buffer("_mean", torch.zeros(size))
        self.register_buffer("_var", torch.ones(size))
        self.register_buffer("_std", torch.ones(size))
        self.register_buffer("count", torch.tensor(0, dtype=torch.long))

    @property
    def mean(self) -> Tensor:
        """[*shape], a copy."""
        return self._mean.squeeze(0).clone()

    @property
    def std(self) -> Tensor:
        """[*shape], a copy."""
        return self._std.squeeze(0).clone()

    def forward(self, x: Tensor) -> Tensor:
        """[..., *shape] to [..., *shape]."""
        return x.sub(self._mean).div_(self._std + self.eps)

    @torch.jit.unused
    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Count the rows [..., *shape] that are finite, of all processes of a run; in training mode only.

        In evaluation mode nothing is communicated, so one process can evaluate alone.
        """
        if not self.training or (self.until is not None and bool(self.count >= self.until)):
            return
        count, mean, m2 = self._moments(x)
        old = self.count.double()
        self.count += count.to(self.count.dtype)
        self._set(
            *distributed.merge_moments(
                (old, self._mean.double(), self._var.double() * old), (count, mean, m2)
            )
        )

    @torch.jit.unused
    @torch.no_grad()
    def warm_up(self, x: Tensor) -> None:
        """Provisional scales from the rows [..., *shape], not counted, in use until the first `update`:
        inputs whose root mean square is above 1 come to 1, smaller ones stay as they are.

        The deviation would not do: at a reset many inputs hardly differ (the last action is 0 everywhere),
        and divided by that they would be hundreds as soon as the robots move.
        """
        if bool(self.count == 0):
            count, mean, m2 = self._moments(x)
            square = (mean.square() + m2 / count.clamp(min=1)).clamp(min=1)
            self._set(count, torch.zeros_like(mean), square * count)

    @torch.jit.unused
    def inverse(self, y: Tensor) -> Tensor:
        """Undo `forward`."""
        return y * (self._std + self.eps) + self._mean

    def _moments(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows = x.reshape(-1, *self._mean.shape[1:])
        count, mean, m2 = distributed.moments(
            rows, rows.isfinite().flatten(1).all(1) if rows.dim() > 1 else rows.isfinite()
        )
        return count, mean.unsqueeze(0), m2.unsqueeze(0)

    def _set(self, count: Tensor, mean: Tensor, m2: Tensor) -> None:
        known = count > 0
        variance = m2 / count.clamp(min=1)
        self._mean.copy_(torch.where(known, mean, self._mean))
        self._var.copy_(torch.where(known, variance, self._var))
        self._std.copy_(self._var.sqrt())


class EmpiricalDiscountedVariationNormalization(nn.Module):
    """Rewards divided by the deviation of their discounted sum (Burda et al. 2018, arXiv:1808.04355, §2.4).

    Args:
        shape: Of one reward; `[]` for a number.
        eps: Unused, as in RSL-RL.
        gamma: Discount of the sum.
        until: As in `EmpiricalNormalization`.
    """

    def __init__(
        self, shape: int | Sequence[int], eps: float = 1e-2, gamma: float = 0.99, until: int | None = None
    ) -> None:
        super().__init__()
        self.emp_norm = EmpiricalNormalization(shape, eps, until)
        self.disc_avg = _DiscountedAverage(gamma)

    def forward(self, rew: Tensor) -> Tensor:
        """Rewards [N] of one step to scaled ones; in training mode they are counted first."""
        if self.training:
            self.emp_norm.update(self.disc_avg.update(rew))
        std = self.emp_norm._std  # pyright: ignore[reportPrivateUsage]
        return torch.where(std > 0, rew / std, rew)


class _DiscountedAverage:
    """R ← γ R + r, one for each environment."""

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma
        self.avg: Tensor | None = None

    def update(self, rew: Tensor) -> Tensor:
        # a copy: the environment may write its next rewards into the same tensor
        self.avg = rew.clone() if self.avg is None else self.avg * self.gamma + rew
        return self.avg
