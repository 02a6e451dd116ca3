"""Returns and advantages: pure functions of rewards, values and episode ends."""

from __future__ import annotations

import torch
from torch import Tensor

from surefoot import distributed
from surefoot.algorithm.discounted import add_discounted_


def gae(
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    bootstrap: Tensor,
    gamma: float,
    lam: float,
    valid: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al. 2016, arXiv:1506.02438, eq. 16).

    Values at ended rows are selected, never multiplied: a NaN there has no effect.

    Args:
        reward: [T, N], per environment step.
        value: [T+1, N]; the last row bootstraps the unfinished step.
        terminated: [T, N] bool. The return ends here: V(s') = 0. Wins over `truncated`.
        truncated: [T, N] bool. A time limit: V(s') = bootstrap, and the recursion restarts.
        bootstrap: [T, N] value of the cut-off observation; read only where truncated.
        gamma: Discount per environment step, in [0, 1].
        lam: 0 is the TD error, 1 is Monte Carlo.
        valid: [T, N] bool. False where a row counts for nothing, whatever it holds: its advantage is 0,
            and the recursion restarts before it.

    Returns:
        advantage [T, N] and returns [T, N] = advantage + value.
    """
    # in place: large tensors are dearer to allocate than to write
    next_value = torch.where(truncated, bootstrap, value[1:])
    torch.where(terminated, value.new_zeros(()), next_value, out=next_value)
    delta = next_value.mul_(gamma).add_(reward).sub_(value[:-1])
    ended = terminated | truncated
    if valid is not None:
        delta, ended = torch.where(valid, delta, 0.0), ended | ~valid
    advantage = add_discounted_(delta, delta.new_full((), gamma * lam), ended)
    return advantage, advantage + value[:-1]


def normalize_advantage(
    advantage: Tensor, mask: Tensor | None = None, scale: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(A - mean) / (std + 1e-8) over the valid entries of all processes, with the unbiased deviation.

    Zeros where there is nothing to compare: a single sample, or a spread that is only the float32 rounding of
    the numbers it came from.

    Args:
        advantage: any shape.
        mask: same shape, True where an entry counts; None: all do.
        scale: 0-d, largest magnitude among the values and returns behind the advantage.

    Returns:
        The normalised advantage and its deviation before (0-d).
    """
    flat = advantage.reshape(-1)
    count, mean, m2 = distributed.moments(flat, None if mask is None else mask.reshape(-1))
    std = (m2 / (count - 1).clamp(min=1)).sqrt()
    size = mean.abs() if scale is None else torch.maximum(mean.abs(), scale.double())
    rounding = 4 * torch.finfo(torch.float32).eps * size
    normalized = (advantage - mean.to(advantage.dtype)) / (std + 1e-8).to(advantage.dtype)
    return torch.where(std <= rounding, 0.0, normalized), std  # a NaN is to be seen


def explained_variance(value: Tensor, returns: Tensor, mask: Tensor | None = None) -> Tensor:
    """1 - Var(returns - value) / Var(returns): 1 is a perfect critic, 0 no better than a constant.

    0 where the returns do not vary.
    """
    keep = None if mask is None else mask.reshape(-1)
    _, _, residual = distributed.moments((returns - value).reshape(-1), keep)
    _, _, total = distributed.moments(returns.reshape(-1), keep)
    return torch.where(total > 0, 1 - residual / total.clamp(min=1e-30), 0.0)
