"""What a rollout says about itself, logged once per iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from surefoot import distributed
from surefoot.algorithm.returns import explained_variance
from surefoot.algorithm.rollout_storage import RolloutStorage


def weighted_means(history: Mapping[str, Sequence[Tensor]], weight: str) -> dict[str, Tensor]:
    """Means over mini-batches and processes of all but the entry `weight`, weighted by it."""
    weights = torch.stack([*history[weight]]).to(torch.float32)
    names = [name for name in history if name != weight]
    sums = [(torch.stack([*history[name]]) * weights).sum() for name in names]
    totals = distributed.all_sum(torch.stack([*sums, weights.sum()]))
    return dict(zip(names, (totals[:-1] / totals[-1].clamp(min=1)).unbind(), strict=True))


@torch.no_grad()
def rollout_metrics(rollout: RolloutStorage) -> dict[str, Tensor]:
    """0-d tensors by logged name, over all processes (the largest return: of this one)."""
    mask = rollout.mask
    flags = (rollout.valid, rollout.truncated & rollout.valid, rollout.terminated & rollout.valid)
    counts = distributed.all_sum(torch.stack([f.sum() for f in flags]).to(torch.float32))
    names = ("Data/samples_used", "Data/truncations", "Data/terminations")
    metrics: dict[str, Tensor] = dict(zip(names, counts.unbind(), strict=True))
    metrics["Loss/explained_variance"] = explained_variance(rollout.values[:-1], rollout.returns, mask)
    metrics["Data/return_abs_max"] = rollout.returns.abs().amax()
    if "std" in rollout.distribution:
        metrics["Policy/mean_std"] = rollout.distribution["std"][-1].mean()
    return metrics
