"""PPO-Clip's loss for a Gaussian with one deviation per action, with its gradient written down.

For a small network autograd needs longer for the loss than for the network. Where the loss is the usual one,
its gradient by mean, deviation and value is a few lines, and autograd begins there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from surefoot.algorithm.extension import Extension
from surefoot.algorithm.objectives import Clip, value_loss_kind
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.heads import GaussianHead
from surefoot.types import Batch

if TYPE_CHECKING:
    from surefoot.algorithm.ppo import PPO

Outcome = tuple[Tensor | tuple[Tensor, ...], tuple[Tensor, ...] | None, Tensor, dict[str, Tensor]]
"""What the networks put out and the loss's gradient by it, or the loss and None; the mean KL (0-d), and the
terms to log.
"""


class Gradients(NamedTuple):
    """Of the loss, by what the networks put out."""

    mean: Tensor
    """[M, A]"""
    std: Tensor
    """[A]"""
    value: Tensor
    """[M]"""


@torch.no_grad()
def clip_loss(
    batch: Batch,
    mean: Tensor,
    std: Tensor,
    value: Tensor,
    clip: Tensor,
    value_loss_coef: float,
    entropy_coef: Tensor | float,
    clips_value: bool,
) -> tuple[Gradients, Tensor, dict[str, Tensor]]:
    """What `PPO._loss` and its derivative make of a flat batch without mask, of rows of one rollout.

    Args:
        batch: [M, ...]; its old deviation is that of one set of weights, the same in every row.
        mean: [M, A], of the present policy.
        std: [A], likewise.
        value: [M].
        clip: 0-d ε of the ratio and of the value.
        value_loss_coef: Weight of the value loss.
        entropy_coef: Weight of the entropy bonus.
        clips_value: Whether the value loss is `clipped`, else `mse`.

    Returns:
        The gradients, the mean KL(old ‖ new) (0-d), and the terms to log.
    """
    num_rows, num_actions = mean.shape
    precision = std.reciprocal()
    sum_log_std = std.log().sum()
    deviation = (batch.actions - mean).mul_(precision)
    log_ratio = deviation.square().sum(-1).mul_(-0.5)
    log_ratio.sub_(batch.old_log_prob).sub_(sum_log_std + 0.5 * math.log(2 * math.pi) * num_actions)
    ratio = log_ratio.exp_()
    kept = torch.clamp(ratio, 1.0 - clip, 1.0 + clip)  # pyright: ignore[reportCallIssue, reportArgumentType]
    is_outside = kept.ne(ratio)
    gain, kept_gain = ratio.mul_(batch.advantage), kept.mul_(batch.advantage)
    surrogate = torch.minimum(gain, kept_gain).mean().neg_()
    # d surrogate / d log π [M]; not "where gain <= kept_gain", so that NaN is passed on
    slope = gain.masked_fill_(gain > kept_gain, 0.0).mul_(-1.0 / num_rows)
    pull = deviation * slope.unsqueeze(-1)
    by_std = (pull * deviation).sum(0).sub_(slope.sum() + entropy_coef).mul_(precision)

    shift = (batch.old_distribution["mean"] - mean).mul_(precision)
    variance_ratio = (batch.old_distribution["std"][0] * precision).square_()
    spread = (variance_ratio - variance_ratio.log()).sum().sub_(num_actions)
    kl = shift.square_().sum().div_(num_rows).add_(spread).mul_(0.5)

    error = value - batch.returns
    if clips_value:
        change = value - batch.old_value
        # the error of the value kept within ± clip of the old one is exactly the same where it is within
        kept_error = change.clamp(-clip, clip).sub_(change).add_(error)  # pyright: ignore[reportCallIssue, reportArgumentType]
        square, kept_square = error.square(), kept_error.square_()
        error.masked_fill_(kept_square > square, 0.0)
        value_loss = torch.maximum(square, kept_square).mean()
    else:
        value_loss = error.square().mean()
    by_value = error.mul_(2 * value_loss_coef / num_rows)
    terms = {
        "Loss/surrogate": surrogate,
        "Loss/value": value_loss,
        "Loss/entropy": sum_log_std.add_(0.5 * (1 + math.log(2 * math.pi)) * num_actions),
        "Loss/clip_fraction": is_outside.to(value.dtype).mean(),
    }
    return Gradients(pull.mul_(precision), by_std, by_value), kl, terms


def closed_form(ppo: PPO) -> Callable[[Batch], Outcome] | None:
    """As `PPO.forward`, where PPO's loss is the usual one; None elsewhere."""
    policy, head, kind = ppo.policy, ppo.policy.action_head, value_loss_kind(ppo.config)
    is_usual = (
        type(policy) is ActorCritic
        and type(head) is GaussianHead
        and not head.squashed
        and policy.mirror is None
        and not policy.is_recurrent
        and policy.value_normalizer is None
        and type(ppo.objective) is Clip
        and kind != "huber"
    )
    if not is_usual:
        return None

    def evaluate(batch: Batch) -> Outcome:
        if any(_adds_to_loss(extension) for extension in ppo.extensions) or not batch.index.numel():
            return ppo(batch)
        distribution = policy.action_distribution(batch.inputs)
        outputs = (distribution.mean, distribution.std, policy.value_of(batch.inputs))  # pyright: ignore
        numbers = (ppo.objective.clip, ppo.config.value_loss_coef, ppo.entropy_coef, kind == "clipped")
        slopes, kl, terms = clip_loss(batch, *outputs, *numbers)
        trained = [(x, slope) for x, slope in zip(outputs, slopes, strict=True) if x.requires_grad]
        return *zip(*trained, strict=True), kl, terms  # pyright: ignore[reportReturnType]

    return evaluate


def _adds_to_loss(extension: object) -> bool:
    kind = type(extension)
    return not (kind.loss is Extension.loss and kind.augment is Extension.augment)  # pyright: ignore
