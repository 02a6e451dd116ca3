"""What a rollout says about itself, logged once per iteration."""

from __future__ import annotations

import torch
from torch import Tensor

from surefoot import distributed
from surefoot.algorithm.returns import explained_variance
from surefoot.algorithm.rollout_storage import RolloutStorage


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
