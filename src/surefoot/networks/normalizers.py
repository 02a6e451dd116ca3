"""Running statistics of observations and values: frozen while a rollout is collected and learned from."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from surefoot import distributed


class RunningNormalizer(nn.Module):
    """(x - mean) / (std + eps), optionally clipped; statistics in float64 with an exact integer count.

    Only `update`, `warm_up` and loading change it. Batches are merged exactly, over processes too (Chan et
    al. 1983).
    """

    count: Tensor
    mean: Tensor
    m2: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(self, size: int, clip: float | None = 10.0, eps: float = 1e-2) -> None:
        super().__init__()
        self.clip, self.eps = clip, eps
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("m2", torch.zeros(size, dtype=torch.float64))
        # what `forward` applies: x · scale + shift would lose digits, so the mean is subtracted first
        self.register_buffer("shift", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))

    @property
    def std(self) -> Tensor:
        """[D] float64, of the counted rows (biased, as a running estimate)."""
        return (self.m2 / self.count.clamp(min=1)).sqrt()

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] to [..., D]."""
        normalized = x.sub(self.shift).mul_(self.scale)
        return normalized if self.clip is None else normalized.clamp_(-self.clip, self.clip)

    @torch.no_grad()
    def update(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Count the rows [R, D] that are finite and where `mask` [R] is True; none is a no-op."""
        batch = self._moments(x, mask)
        count, mean, m2 = distributed.merge_moments((self.count.double(), self.mean, self.m2), batch)
        self.mean.copy_(mean)
        self.m2.copy_(m2)
        self.count += batch[0].to(torch.int64)
        self._apply_statistics(count, mean, m2)

    @torch.no_grad()
    def warm_up(self, batches: Iterable[Tensor]) -> None:
        """Provisional statistics from [R, D] batches, in use until the first `update`; they are not
        counted.
        """
        self._apply_statistics(*self._moments(torch.cat(list(batches)), None))

    def _moments(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        # in blocks: it is made by way of a float copy
        finite = torch.cat([part.isfinite().all(-1) for part in distributed.blocks(x)])
        return distributed.moments(x, finite if mask is None else finite & mask)

    def _apply_statistics(self, count: Tensor, mean: Tensor, m2: Tensor) -> None:
        std = (m2 / count.clamp(min=1)).sqrt()
        known = count > 0
        self.shift.copy_(torch.where(known, mean, self.shift))
        self.scale.copy_(torch.where(known, 1 / (std + self.eps), self.scale))


class ValueNormalizer(nn.Module):
    """Running mean and deviation of returns for PopArt (van Hasselt et al. 2016, arXiv:1602.07714)."""

    def __init__(self) -> None:
        super().__init__()
        self.statistics = RunningNormalizer(1, clip=None, eps=1e-4)

    def normalize(self, value: Tensor) -> Tensor:
        return (value - self.statistics.shift) * self.statistics.scale

    def denormalize(self, value: Tensor) -> Tensor:
        return value / self.statistics.scale + self.statistics.shift

    @torch.no_grad()
    def update(self, returns: Tensor, mask: Tensor | None, last_layer: nn.Linear) -> None:
        """Count returns of any shape; rescale the critic's last layer so that every value stays as it was."""
        old_shift, old_scale = self.statistics.shift.clone(), self.statistics.scale.clone()
        self.statistics.update(returns.reshape(-1, 1), None if mask is None else mask.reshape(-1))
        ratio = self.statistics.scale / old_scale
        last_layer.weight.mul_(ratio)
        last_layer.bias.mul_(ratio).add_((old_shift - self.statistics.shift) * self.statistics.scale)
