"""The discriminator, its losses and its gradient penalty."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from surefoot.algorithm.losses import masked_mean
from surefoot.networks.config import Activation, NetworkConfig
from surefoot.networks.encoders import make_mlp


class Discriminator(nn.Module):
    """A score for each window: high for demonstrations, low for the policy.

    Args:
        num_inputs: K·D.
        hidden_dims: Widths of the hidden layers.
        activation: Between them.
    """

    def __init__(self, num_inputs: int, hidden_dims: list[int], activation: Activation) -> None:
        super().__init__()
        # PyTorch's initial weights: orthogonal ones would score the first windows far from 0
        config = NetworkConfig(hidden_dims=hidden_dims, activation=activation, init="default")
        self.trunk = make_mlp(num_inputs, config)
        self.last = nn.Linear(hidden_dims[-1], 1)

    def forward(self, x: Tensor) -> Tensor:
        """[..., K·D] to [...]."""
        return self.last(self.trunk(x)).squeeze(-1)


def lsgan_loss(demo: Tensor, policy: Tensor) -> Tensor:
    """Half the squared distance of the scores [B] to 1 and -1 (Peng et al. 2021, eq. 6)."""
    return 0.5 * (masked_mean((demo - 1).square()) + masked_mean((policy + 1).square()))


def bce_loss(demo: Tensor, policy: Tensor) -> Tensor:
    """Half the cross-entropies of the scores [B] as logits of "demonstration" (Ho & Ermon 2016)."""
    return 0.5 * (masked_mean(functional.softplus(-demo)) + masked_mean(functional.softplus(policy)))


def wgan_loss(demo: Tensor, policy: Tensor) -> Tensor:
    """Half the difference of the mean scores [B] (Arjovsky et al. 2017, arXiv:1701.07875)."""
    return 0.5 * (masked_mean(policy) - masked_mean(demo))


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "lsgan": lsgan_loss,
    "bce": bce_loss,
    "wgan": wgan_loss,
}


def gradient_penalty(score: Tensor, inputs: Tensor, target: float = 0.0) -> Tensor:
    """Mean squared distance of the score's gradient norm to `target` (Gulrajani et al. 2017 with 1; Mescheder
    et al. 2018, R1, with 0).

    Args:
        score: [B], computed from `inputs`.
        inputs: [B, K·D], what the discriminator saw.
        target: Norm that costs nothing.
    """
    (gradient,) = torch.autograd.grad(score.sum(), inputs, create_graph=True)
    square = gradient.square().sum(-1)
    # the root has no derivative at 0
    return masked_mean(square if target == 0 else ((square + 1e-12).sqrt() - target).square())


def threshold(loss_type: str, demo: Tensor, policy: Tensor) -> Tensor:
    """0-d: the score from which on a window passes for a demonstration. Wasserstein scores have no zero
    point; there it is the middle of both means.
    """
    middle = 0.5 * (masked_mean(demo) + masked_mean(policy))
    return middle if loss_type == "wgan" else torch.zeros_like(middle)
