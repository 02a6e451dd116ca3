"""Distributions over actions, as values: a head's forward pass returns one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import Self

LOG_2PI = math.log(2 * math.pi)
LARGEST_LOGIT = 1e30
"""Logits are kept within ± this: no probability changes, and sums of log-probabilities stay finite."""
MAX_BETA = 1 - 1e-6
"""A Beta's sample is kept this far inside of ±1: at the edge its density is 0, or infinite."""


@dataclass(frozen=True)
class Gaussian:
    """Independent normal distributions. `mean` is [..., A]; `std` is [..., A] or [A].

    `noise` [..., A] is a deviation from the mean drawn beforehand, which `sample` then adds (gSDE).
    """

    mean: Tensor
    std: Tensor
    noise: Tensor | None = None
    kl_kind: ClassVar[str] = "exact"

    @property
    def params(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "std": self.std.expand_as(self.mean)}

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        if self.noise is not None:
            return self.mean + self.noise
        noise = torch.empty_like(self.mean).normal_(generator=generator)
        return torch.addcmul(self.mean, noise, self.std)

    def mode(self) -> Tensor:
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        deviation = (action - self.mean) / self.std
        # the deviations' own terms are summed apart: for a [A] std they are a single number
        constant = self.std.log().sum(-1) + 0.5 * LOG_2PI * self.mean.shape[-1]
        return -0.5 * deviation.square().sum(-1) - constant

    def entropy(self, generator: torch.Generator | None = None) -> Tensor:
        """Summed over action dimensions."""
        per_row = (self.std.log() + 0.5 * (1 + LOG_2PI)).sum(-1)
        return per_row.expand(self.mean.shape[:-1])

    def kl(self, other: Self) -> Tensor:
        variance_ratio = (self.std / other.std).square()
        shift = ((self.mean - other.mean) / other.std).square()
        # -½ log of the ratio itself, so that equal deviations cancel exactly
        return 0.5 * (variance_ratio + shift - 1 - variance_ratio.log()).sum(-1)


@dataclass(frozen=True)
class SquashedGaussian:
    """tanh of a Gaussian (Haarnoja et al. 2018, arXiv:1801.01290, appendix C).

    The raw action is the Gaussian's sample u; `log_prob(u)` is the density of tanh(u), Jacobian included.
    """

    base: Gaussian
    kl_kind: ClassVar[str] = "exact"

    @property
    def params(self) -> dict[str, Tensor]:
        return self.base.params

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return self.base.sample(generator)

    def mode(self) -> Tensor:
        return self.base.mode()

    def log_prob(self, action: Tensor) -> Tensor:
        return self.base.log_prob(action) - log_tanh_slope(action).sum(-1)

    def entropy(self, generator: torch.Generator | None = None) -> Tensor:
        """Base entropy plus one reparameterised sample of the Jacobian: no closed form exists."""
        return self.base.entropy() + log_tanh_slope(self.base.sample(generator)).sum(-1)

    def kl(self, other: Self) -> Tensor:
        """That of the base distributions: the KL does not change under a bijection."""
        return self.base.kl(other.base)


def log_tanh_slope(u: Tensor) -> Tensor:
    """log(1 - tanh(u)²), in the form that stays finite for large |u|."""
    return 2 * (math.log(2) - u - functional.softplus(-2 * u))


@dataclass(frozen=True)
class Beta:
    """Independent Beta distributions over [-1, 1] (Chou et al. 2017). `alpha`, `beta` [..., A] are above 1.

    The raw action is the sample itself; its density is that on [-1, 1], half of the one on [0, 1].
    """

    alpha: Tensor
    beta: Tensor
    kl_kind: ClassVar[str] = "exact"

    @property
    def params(self) -> dict[str, Tensor]:
        return {"alpha": self.alpha, "beta": self.beta}

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        # the only sampler of gamma variates that takes a generator
        x = torch._standard_gamma(self.alpha, generator)  # pyright: ignore
        y = torch._standard_gamma(self.beta, generator)  # pyright: ignore
        return (2 * x / (x + y) - 1).clamp(-MAX_BETA, MAX_BETA)

    def mode(self) -> Tensor:
        a, b = self.alpha - 1, self.beta - 1
        return (a - b) / (a + b).clamp(min=1e-6)

    def log_prob(self, action: Tensor) -> Tensor:
        a, b = self._wide()
        x = 0.5 * (action.double() + 1)
        log_density = (a - 1) * x.log() + (b - 1) * torch.log1p(-x) - _log_beta(a, b)
        return (log_density - math.log(2)).sum(-1).to(self.alpha.dtype)

    def entropy(self, generator: torch.Generator | None = None) -> Tensor:
        a, b = self._wide()
        total = a + b
        spread = (a - 1) * a.digamma() + (b - 1) * b.digamma() - (total - 2) * total.digamma()
        return (_log_beta(a, b) - spread + math.log(2)).sum(-1).to(self.alpha.dtype)

    def kl(self, other: Self) -> Tensor:
        (a, b), (c, d) = self._wide(), other._wide()
        total = (a + b).digamma()
        shift = (a - c) * (a.digamma() - total) + (b - d) * (b.digamma() - total)
        return (_log_beta(c, d) - _log_beta(a, b) + shift).sum(-1).to(self.alpha.dtype)

    def _wide(self) -> tuple[Tensor, Tensor]:
        """In float64: large terms cancel, and their rounding would look like a policy that moved."""
        return self.alpha.double(), self.beta.double()


def _log_beta(a: Tensor, b: Tensor) -> Tensor:
    """Logarithm of Euler's beta function."""
    return a.lgamma() + b.lgamma() - (a + b).lgamma()


@dataclass(frozen=True)
class Categorical:
    """A choices of at most K values each, from logits [..., A, K]; the raw action is their indices [..., A],
    int64. Discrete has A = 1.

    A logit of -inf is a choice that cannot be taken: its probability is 0 and it adds nothing to entropy or
    KL.
    """

    logits: Tensor
    kl_kind: ClassVar[str] = "exact"

    @property
    def params(self) -> dict[str, Tensor]:
        return {"logits": self.logits}

    @property
    def log_probs(self) -> Tensor:
        """[..., A, K], with a finite number in place of log 0, so that 0 · log 0 = 0 and gradients stay
        finite.
        """
        finite = self.logits.clamp(-LARGEST_LOGIT, LARGEST_LOGIT)
        return functional.log_softmax(finite, dim=-1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        # Gumbel-max: argmax(logits + Gumbel noise) is a sample, and a logit of -inf never wins
        noise = torch.empty_like(self.logits).exponential_(generator=generator).log()
        return (self.logits - noise).argmax(-1)

    def mode(self) -> Tensor:
        return self.logits.argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        return self.log_probs.gather(-1, action.long().unsqueeze(-1)).squeeze(-1).sum(-1)

    def entropy(self, generator: torch.Generator | None = None) -> Tensor:
        log_probs = self.log_probs
        return -(log_probs.exp() * log_probs).sum((-2, -1))

    def kl(self, other: Self) -> Tensor:
        mine, theirs = self.log_probs, other.log_probs
        return (mine.exp() * (mine - theirs)).sum((-2, -1))


@dataclass(frozen=True)
class Bernoulli:
    """Independent bits from logits [..., A] of being 1; the raw action is 0 or 1, int64.

    A logit of -inf is a bit that must stay 0.
    """

    logits: Tensor
    kl_kind: ClassVar[str] = "exact"

    @property
    def params(self) -> dict[str, Tensor]:
        return {"logits": self.logits}

    @property
    def log_probs(self) -> tuple[Tensor, Tensor]:
        """Log P(0) and log P(1), each [..., A], finite as in Categorical."""
        finite = self.logits.clamp(-LARGEST_LOGIT, LARGEST_LOGIT)
        return functional.logsigmoid(-finite), functional.logsigmoid(finite)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        uniform = torch.empty_like(self.logits).uniform_(generator=generator)
        return (uniform < self.logits.sigmoid()).long()

    def mode(self) -> Tensor:
        return (self.logits > 0).long()

    def log_prob(self, action: Tensor) -> Tensor:
        zero, one = self.log_probs
        return torch.where(action.bool(), one, zero).sum(-1)

    def entropy(self, generator: torch.Generator | None = None) -> Tensor:
        zero, one = self.log_probs
        return -(zero.exp() * zero + one.exp() * one).sum(-1)

    def kl(self, other: Self) -> Tensor:
        (zero, one), (other_zero, other_one) = self.log_probs, other.log_probs
        return (zero.exp() * (zero - other_zero) + one.exp() * (one - other_one)).sum(-1)
