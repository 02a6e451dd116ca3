"""Windows of consecutive frames, cut from rollouts so that none spans an episode's start."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class WindowCutter(nn.Module):
    """Cuts, for each row of a rollout, the K frames that end with what followed it.

    The frames that a window needs from the rollout before are carried over and saved with the run.

    Args:
        num_envs: N.
        num_frames: K >= 2; K = 2 gives the transitions (s, s').
        num_features: D.
    """

    carry: Tensor
    age: Tensor

    def __init__(self, num_envs: int, num_frames: int, num_features: int) -> None:
        super().__init__()
        self.num_frames = num_frames
        # the K-2 frames before the next rollout's first, and how many of its episode there are (at most K)
        self.register_buffer("carry", torch.zeros(num_envs, num_frames - 2, num_features))
        self.register_buffer("age", torch.zeros(num_envs, dtype=torch.int64))

    def forward(self, frames: Tensor, next_frames: Tensor, is_first: Tensor) -> tuple[Tensor, Tensor]:
        """The windows of the rollout that follows the one of the last call.

        Args:
            frames: [T, N, D], the rollout's.
            next_frames: [T, N, D], what followed each; the true final frame where an episode ended.
            is_first: [T+1, N] bool, where an episode starts.

        Returns:
            Windows [T, N, K, D], and [T, N] bool: whether all frames are of one episode.
        """
        num_steps, length = frames.shape[0], self.num_frames - 1
        frames = torch.cat([self.carry.transpose(0, 1), frames])
        before = frames.unfold(0, length, 1).movedim(-1, 2)
        windows = torch.cat([before, next_frames.unsqueeze(2)], 2)

        step = torch.arange(num_steps + 1, device=frames.device).unsqueeze(-1)
        start = torch.where(is_first, step, -self.num_frames - num_steps)
        start[0] = torch.maximum(start[0], -self.age)
        age = step - start.cummax(0).values
        self.age.copy_(age[-1].clamp(max=self.num_frames))
        self.carry.copy_(frames[num_steps:].transpose(0, 1))
        return windows, age[:-1] >= length - 1
