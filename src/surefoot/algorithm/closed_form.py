"""PPO-Clip's loss with its gradient written down, for the usual distributions.

For a small network autograd needs longer for the loss than for the network. Where the loss is the usual one,
its gradient by what the networks put out is a few lines; where the networks are layers alone, autograd has
nothing left to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.extension import Extension
from surefoot.algorithm.losses import huber_value_loss
from surefoot.algorithm.objectives import Clip, value_loss_kind
from surefoot.algorithm.plain_networks import PlainNetworks, plain_networks
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.distributions import LOG_2PI, Categorical, Gaussian
from surefoot.networks.heads import CategoricalHead, GaussianHead
from surefoot.networks.inputs import MASK_GROUP
from surefoot.networks.mirror import even
from surefoot.types import Batch, Distribution

if TYPE_CHECKING:
    from surefoot.algorithm.ppo import PPO

PolicyLoss = tuple[tuple[Tensor, ...], Tensor, dict[str, Tensor]]
"""Gradients of the policy's part of the loss by the parameters of its distribution, the mean KL(old ‖ new)
(0-d), and the terms to log.
"""


def surrogate_slope(log_ratio: Tensor, advantage: Tensor, clip: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The gradient of PPO-Clip's mean loss by log π [M], and its terms; overwrites `log_ratio` [M].

    Args:
        log_ratio: log π/π_old.
        advantage: [M].
        clip: 0-d ε.
    """
    ratio = log_ratio.exp_()
    kept = torch.clamp(ratio, 1.0 - clip, 1.0 + clip)  # pyright: ignore[reportCallIssue, reportArgumentType]
    outside = kept.ne(ratio).to(ratio.dtype).mean()
    gain, kept_gain = ratio.mul_(advantage), kept.mul_(advantage)
    surrogate = torch.minimum(gain, kept_gain).mean().neg_()
    # not "where gain <= kept_gain", so that NaN is passed on
    slope = gain.masked_fill_(gain > kept_gain, 0.0).mul_(-1.0 / len(gain))
    return slope, {"Loss/surrogate": surrogate, "Loss/clip_fraction": outside}


def value_slope(
    value: Tensor, old_value: Tensor, returns: Tensor, clip: Tensor, config: PPOConfig
) -> tuple[Tensor, Tensor]:
    """The gradient of the weighted mean value loss by the values [M], and that loss without its weight; all
    [M] in the loss's units.
    """
    error, kind = value - returns, value_loss_kind(config)
    if kind == "clipped":
        change = value - old_value
        # the error of the value kept within ± clip of the old one is exactly the same where it is within
        kept_error = change.clamp(-clip, clip).sub_(change).add_(error)  # pyright: ignore[reportCallIssue, reportArgumentType]
        square, kept_square = error.square(), kept_error.square_()
        error.masked_fill_(kept_square > square, 0.0)
        loss = torch.maximum(square, kept_square).mean()
    elif kind == "huber":
        loss = huber_value_loss(value, returns, config.huber_delta).mean()
        error.clamp_(-config.huber_delta, config.huber_delta)
    else:
        loss = error.square().mean()
    return error.mul_(2 * config.value_loss_coef / len(error)), loss


def gaussian_loss(
    batch: Batch, mean: Tensor, std: Tensor, clip: Tensor, entropy_coef: Tensor | float
) -> PolicyLoss:
    """Of a flat batch without mask, of rows of one rollout: the old deviation is the same in every row.

    Args:
        batch: [M, ...].
        mean: [M, A], of the present policy.
        std: [A], likewise.
        clip: 0-d ε of the ratio.
        entropy_coef: Weight of the entropy bonus.
    """
    num_rows, num_actions = mean.shape
    precision = std.reciprocal()
    sum_log_std = std.log().sum()
    deviation = (batch.actions - mean).mul_(precision)
    log_ratio = deviation.square().sum(-1).mul_(-0.5)
    log_ratio.sub_(batch.old_log_prob).sub_(sum_log_std + 0.5 * LOG_2PI * num_actions)
    slope, terms = surrogate_slope(log_ratio, batch.advantage, clip)
    pull = deviation * slope.unsqueeze(-1)
    by_std = (pull * deviation).sum(0).sub_(slope.sum() + entropy_coef).mul_(precision)

    shift = (batch.old_distribution["mean"] - mean).mul_(precision)
    variance_ratio = (batch.old_distribution["std"][0] * precision).square_()
    spread = (variance_ratio - variance_ratio.log()).sum().sub_(num_actions)
    kl = shift.square_().sum().div_(num_rows).add_(spread).mul_(0.5)
    terms["Loss/entropy"] = sum_log_std.add_(0.5 * (1 + LOG_2PI) * num_actions)
    return (pull.mul_(precision), by_std), kl, terms


def categorical_loss(batch: Batch, logits: Tensor, clip: Tensor, entropy_coef: Tensor | float) -> PolicyLoss:
    """As `gaussian_loss`, by logits [M, A, K]."""
    num_rows = len(logits)
    log_probs, chosen = Categorical(logits).log_probs, batch.actions.long().unsqueeze(-1)
    log_ratio = log_probs.gather(-1, chosen).squeeze(-1).sum(-1).sub_(batch.old_log_prob)
    slope, terms = surrogate_slope(log_ratio, batch.advantage, clip)
    probs, slope = log_probs.exp(), slope.view(-1, 1, 1)
    minus_entropy = (probs * log_probs).sum(-1, keepdim=True)
    # d log π = onehot - p, d entropy = -p (log p + entropy)
    by_logits = (log_probs - minus_entropy).mul_(entropy_coef / num_rows).sub_(slope).mul_(probs)
    by_logits.scatter_add_(-1, chosen, slope.expand_as(chosen))

    old = Categorical(batch.old_distribution["logits"]).log_probs
    kl = (old - log_probs).mul_(old.exp()).sum().div_(num_rows)
    terms["Loss/entropy"] = minus_entropy.sum().div_(-num_rows)
    return (by_logits,), kl, terms


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
        params = _params(policy.action_distribution(batch.inputs))
        value = ppo.in_units_of_loss(policy.value_of(batch.inputs))
        slopes, kl, terms = self._loss(batch, params, value)
        trained = [(x, slope) for x, slope in zip((*params, value), slopes, strict=True) if x.requires_grad]
        ppo.optimizer.differentiate(*zip(*trained, strict=True))
        return kl, terms

    @torch.no_grad()
    def _without_autograd(self, batch: Batch, networks: PlainNetworks) -> tuple[Tensor, dict[str, Tensor]]:
        policy, head = self.ppo.policy, self.ppo.policy.action_head
        out, value = networks.forward(batch.inputs)
        if isinstance(head, GaussianHead):
            params = (out, even(head.std, policy.mirror))
            (by_mean, by_std, by_value), kl, terms = self._loss(batch, params, value)
            networks.backward(batch.inputs, by_mean, by_value)
            by_std = head.std_slope(even(by_std, policy.mirror))
            self.ppo.optimizer.gradient_of[head.std_param].copy_(by_std)
        else:
            assert isinstance(head, CategoricalHead)
            logits = head.on(out, batch.inputs.get(MASK_GROUP)).logits
            (by_logits, by_value), kl, terms = self._loss(batch, (logits,), value)
            networks.backward(batch.inputs, by_logits.flatten(1), by_value)
        return kl, terms

    @torch.no_grad()
    def _loss(self, batch: Batch, params: tuple[Tensor, ...], value: Tensor) -> PolicyLoss:
        """The whole loss: the last gradient is by the value."""
        ppo = self.ppo
        clip, entropy_coef = ppo.objective.clip, ppo.entropy_coef
        if len(params) == 2:
            slopes, kl, terms = gaussian_loss(batch, *params, clip, entropy_coef)
        else:
            slopes, kl, terms = categorical_loss(batch, params[0], clip, entropy_coef)
        old_value, returns = ppo.in_units_of_loss(batch.old_value), ppo.in_units_of_loss(batch.returns)
        by_value, terms["Loss/value"] = value_slope(value, old_value, returns, clip, ppo.config)
        return (*slopes, by_value), kl, terms


def closed_form(ppo: PPO) -> ClosedForm | None:
    """None where PPO's loss is not the usual one."""
    policy, head = ppo.policy, ppo.policy.action_head
    is_usual = (
        type(policy) is ActorCritic
        and (
            (type(head) is GaussianHead and not head.squashed)
            or (type(head) is CategoricalHead and head.is_even)
        )
        and policy.critic is not None  # a shared trunk would run twice
        and not policy.is_recurrent
        and type(ppo.objective) is Clip
    )
    return ClosedForm(ppo) if is_usual else None


def _adds_to_loss(extension: object) -> bool:
    kind = type(extension)
    return not (kind.loss is Extension.loss and kind.augment is Extension.augment)  # pyright: ignore


def _params(distribution: Distribution) -> tuple[Tensor, ...]:
    if isinstance(distribution, Gaussian):
        return distribution.mean, distribution.std
    assert isinstance(distribution, Categorical)
    return (distribution.logits,)
