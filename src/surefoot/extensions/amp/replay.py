"""The replay buffer of the discriminator: windows of earlier policies, so that it does not forget them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ReplayBuffer(nn.Module):
    """A ring of windows per environment, allocated once; the oldest of an environment give way.

    It is saved and restored with the run. One row per environment keeps each process's own part apart.

    Args:
        num_envs: N.
        capacity: C, windows that each environment keeps.
        window_shape: (K, D), frames and features of a window.
        persistent: False: it is not saved, and a resumed run begins with an empty one.
    """

    windows: Tensor
    num_inserted: Tensor

    def __init__(
        self, num_envs: int, capacity: int, window_shape: tuple[int, int], persistent: bool = True
    ) -> None:
        super().__init__()
        self.capacity = capacity
        # the last slot takes what is not to be kept, so that no write depends on a value on the device
        windows = torch.zeros(num_envs, capacity + 1, *window_shape)
        self.register_buffer("windows", windows, persistent)
        self.register_buffer("num_inserted", torch.zeros(num_envs, dtype=torch.int64), persistent)

    @property
    def num_bytes(self) -> int:
        """Memory that the windows take, full or not."""
        return self.windows.numel() * self.windows.element_size()

    @property
    def counts(self) -> Tensor:
        """[N] windows that each environment has."""
        return self.num_inserted.clamp(max=self.capacity)

    def insert(self, windows: Tensor, keep: Tensor) -> None:
        """Add windows [R, N, K, D] in order of R, where `keep` [R, N] is True."""
        total = keep.sum(0)
        rank = keep.cumsum(0) - 1
        # of more than fit, only the last are written
        keep = keep & (rank >= total - self.capacity)
        slot = torch.where(keep, (self.num_inserted + rank) % self.capacity, self.capacity)
        env = torch.arange(slot.shape[1], device=slot.device).expand_as(slot)
        self.windows[env, slot] = windows
        self.num_inserted += total

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """[count, K, D], drawn uniformly with replacement from all windows there are; there must be one."""
        ends = self.counts.cumsum(0)
        draw = torch.rand(count, generator=generator, device=ends.device, dtype=torch.float64)
        position = (draw * ends[-1]).long()
        env = torch.searchsorted(ends, position, right=True)
        return self.windows[env, position - (ends - self.counts)[env]]
