"""PPO-Clip's loss for a Gaussian with one deviation per action, with its gradient written down.

For a small network autograd needs longer for the loss than for the network. Where the loss is the usual one,
its gradient by mean, deviation and value is a few lines; where the networks are layers alone, autograd has
nothing left to do.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.extension import Extension
from surefoot.algorithm.losses import huber_value_loss
from surefoot.algorithm.objectives import Clip, value_loss_kind
from surefoot.algorithm.plain_networks import PlainNetworks, plain_networks
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.heads import GaussianHead
from surefoot.networks.mirror import even
from surefoot.types import Batch

if TYPE_CHECKING:
    from surefoot.algorithm.ppo import PPO


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
    values: tuple[Tensor, Tensor, Tensor],
    clip: Tensor,
    entropy_coef: Tensor | float,
    config: PPOConfig,
) -> tuple[Gradients, Tensor, dict[str, Tensor]]:
    """What `PPO._loss` and its derivative make of a flat batch without mask, of rows of one rollout.

    Args:
        batch: [M, ...]; its old deviation is that of one set of weights, the same in every row.
        mean: [M, A], of the present policy.
        std: [A], likewise.
        values: The present ones, those before and the returns, [M] each, in the loss's units.
        clip: 0-d ε of the ratio and of the value.
        entropy_coef: Weight of the entropy bonus.
        config: Kind and weight of the value loss.

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

    value, old_value, returns = values
    error, kind = value - returns, value_loss_kind(config)
    if kind == "clipped":
        change = value - old_value
        # the error of the value kept within ± clip of the old one is exactly the same where it is within
        kept_error = change.clamp(-clip, clip).sub_(change).add_(error)  # pyright: ignore[reportCallIssue, reportArgumentType]
        square, kept_square = error.square(), kept_error.square_()
        error.masked_fill_(kept_square > square, 0.0)
        value_loss = torch.maximum(square, kept_square).mean()
    elif kind == "huber":
        value_loss = huber_value_loss(value, returns, config.huber_delta).mean()
        error.clamp_(-config.huber_delta, config.huber_delta)
    else:
        value_loss = error.square().mean()
    by_value = error.mul_(2 * config.value_loss_coef / num_rows)
    terms = {
        "Loss/surrogate": surrogate,
        "Loss/value": value_loss,
        "Loss/entropy": sum_log_std.add_(0.5 * (1 + math.log(2 * math.pi)) * num_actions),
        "Loss/clip_fraction": is_outside.to(value.dtype).mean(),
    }
    return Gradients(pull.mul_(precision), by_std, by_value), kl, terms


class ClosedForm:
    """The gradient of PPO's loss where that is the usual one; `PPO.differentiate` finds it elsewhere."""

    def __init__(self, ppo: PPO) -> None:
        self.ppo = ppo
        self.networks = plain_networks(ppo.policy, ppo.optimizer.gradient_of)

    def __call__(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """As `PPO.gradient`."""
        ppo, policy = self.ppo, self.ppo.policy
        if any(_adds_to_loss(extension) for extension in ppo.extensions) or not batch.index.numel():
            return ppo.differentiate(batch)
        if self.networks is not None and self.networks.are_free():
            return self._without_autograd(batch, self.networks)
        distribution = policy.action_distribution(batch.inputs)
        value = ppo.in_units_of_loss(policy.value_of(batch.inputs))
        outputs = (distribution.mean, distribution.std, value)  # pyright: ignore[reportAttributeAccessIssue]
        slopes, kl, terms = self._loss(batch, *outputs)
        trained = [(x, slope) for x, slope in zip(outputs, slopes, strict=True) if x.requires_grad]
        ppo.optimizer.differentiate(*zip(*trained, strict=True))
        return kl, terms

    def _without_autograd(self, batch: Batch, networks: PlainNetworks) -> tuple[Tensor, dict[str, Tensor]]:
        policy, head = self.ppo.policy, self.ppo.policy.action_head
        assert isinstance(head, GaussianHead)
        mean, value = networks.forward(batch.inputs)
        slopes, kl, terms = self._loss(batch, mean, even(head.std.detach(), policy.mirror), value)
        networks.backward(slopes.mean, slopes.value)
        by_std = head.std_slope(even(slopes.std, policy.mirror))
        self.ppo.optimizer.gradient_of[head.std_param].copy_(by_std)
        return kl, terms

    def _loss(
        self, batch: Batch, mean: Tensor, std: Tensor, value: Tensor
    ) -> tuple[Gradients, Tensor, dict[str, Tensor]]:
        ppo = self.ppo
        values = (value, ppo.in_units_of_loss(batch.old_value), ppo.in_units_of_loss(batch.returns))
        return clip_loss(batch, mean, std, values, ppo.objective.clip, ppo.entropy_coef, ppo.config)


def closed_form(ppo: PPO) -> ClosedForm | None:
    """None where PPO's loss is not the usual one."""
    policy, head = ppo.policy, ppo.policy.action_head
    is_usual = (
        type(policy) is ActorCritic
        and type(head) is GaussianHead
        and not head.squashed
        and not policy.is_recurrent
        and type(ppo.objective) is Clip
    )
    return ClosedForm(ppo) if is_usual else None


def _adds_to_loss(extension: object) -> bool:
    kind = type(extension)
    return not (kind.loss is Extension.loss and kind.augment is Extension.augment)  # pyright: ignore
