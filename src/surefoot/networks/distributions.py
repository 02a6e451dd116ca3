"""Distributions over actions, as values: a head's forward pass returns one."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import Self

from surefoot.errors import ConfigError
from surefoot.networks.config import DistributionConfig
from surefoot.types import Distribution

LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class Gaussian:
    """Independent normal distributions. `mean` is [..., A]; `std` is [..., A] or [A]."""

    mean: Tensor
    std: Tensor
    kl_kind: ClassVar[str] = "exact"

    @property
    def params(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "std": self.std.expand_as(self.mean)}

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
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
class Categorical:
    """One of K choices from logits [..., K]; the raw action is its index [..., 1], int64.

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
        """[..., K], with the smallest finite number in place of log 0, so that 0 · log 0 = 0 and gradients
        stay finite.
        """
        finite = self.logits.clamp(min=torch.finfo(self.logits.dtype).min / 4)
        return functional.log_softmax(finite, dim=-1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        # Gumbel-max: argmax(logits + Gumbel noise) is a sample, and a logit of -inf never wins
        noise = torch.empty_like(self.logits).exponential_(generator=generator).log()
        return (self.logits - noise).argmax(-1, keepdim=True)

    def mode(self) -> Tensor:
        return self.logits.argmax(-1, keepdim=True)

    def log_prob(self, action: Tensor) -> Tensor:
        return self.log_probs.gather(-1, action.long()).squeeze(-1)

    def entropy(self, generator: torch.Generator | None = None) -> Tensor:
        log_probs = self.log_probs
        return -(log_probs.exp() * log_probs).sum(-1)

    def kl(self, other: Self) -> Tensor:
        mine, theirs = self.log_probs, other.log_probs
        return (mine.exp() * (mine - theirs)).sum(-1)


def at_least_float32(x: Tensor) -> Tensor:
    """Low precision ends at the network's last layer: PPO works on small differences of log-probabilities."""
    return x if x.dtype == torch.float64 else x.float()


class Head(nn.Module, ABC):
    """Features [..., F] to a distribution over raw actions."""

    linear: nn.Linear
    """The last layer."""
    kl_kind: ClassVar[str]
    """That of the distribution."""

    @abstractmethod
    def forward(self, features: Tensor) -> Distribution: ...

    @abstractmethod
    def rebuild(self, params: Mapping[str, Tensor]) -> Distribution:
        """The distribution with these parameters, as they came from `Distribution.params`."""

    def project(self) -> None:
        """Bring bounded parameters back into their range; nothing by default."""


class GaussianHead(Head):
    """Features [..., F] to a Gaussian or SquashedGaussian with one learned deviation per action.

    `scalar` stores the deviation itself. Outside `std_range` the forward pass uses the nearest bound but the
    gradient passes straight through, so that a parameter below the floor is never stuck there; `project`
    brings it back into the range after each optimiser step. `log` stores the logarithm and bounds it the same
    way.
    """

    kl_kind: ClassVar[str] = "exact"

    def __init__(
        self, num_features: int, num_actions: int, config: DistributionConfig, last_activation: str | None
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(num_features, num_actions)
        self.bound_mean = last_activation == "tanh"
        self.squashed = config.class_name == "SquashedGaussian"
        self.is_log = config.std_type == "log"
        low, high = config.std_range
        self.low, self.high = (math.log(low), math.log(high)) if self.is_log else (low, high)
        initial = math.log(config.init_std) if self.is_log else config.init_std
        self.std_param = nn.Parameter(torch.full((num_actions,), initial))

    @property
    def std(self) -> Tensor:
        """[A], positive and within the range."""
        # exactly the bound outside the range, with the gradient of the parameter itself
        bounded = self.std_param.clamp(self.low, self.high).detach() + (
            self.std_param - self.std_param.detach()
        )
        return bounded.exp() if self.is_log else bounded

    def forward(self, features: Tensor) -> Distribution:
        mean = at_least_float32(self.linear(features))
        return self.rebuild({"mean": mean.tanh() if self.bound_mean else mean, "std": self.std})

    def rebuild(self, params: Mapping[str, Tensor]) -> Distribution:
        gaussian = Gaussian(params["mean"], params["std"])
        return SquashedGaussian(gaussian) if self.squashed else gaussian

    @torch.no_grad()
    def project(self) -> None:
        self.std_param.clamp_(self.low, self.high)


class CategoricalHead(Head):
    """Features [..., F] to a Categorical over the values of a Discrete space."""

    kl_kind: ClassVar[str] = "exact"

    def __init__(self, num_features: int, num_choices: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_features, num_choices)

    def forward(self, features: Tensor) -> Distribution:
        return Categorical(at_least_float32(self.linear(features)))

    def rebuild(self, params: Mapping[str, Tensor]) -> Distribution:
        return Categorical(params["logits"])


def make_head(
    space: gymnasium.Space[Any], num_features: int, config: DistributionConfig, last_activation: str | None
) -> Head:
    """The head that fits the action space.

    Raises:
        ConfigError: the space has none, or not the one that the configuration names.
    """
    name = config.class_name
    if isinstance(space, gymnasium.spaces.Box):
        if name == "Categorical":
            raise ConfigError(
                f"actor.distribution.class_name 'Categorical' needs a Discrete action space, not {space}."
            )
        return GaussianHead(num_features, int(math.prod(space.shape)), config, last_activation)
    if isinstance(space, gymnasium.spaces.Discrete):
        if name not in ("auto", "Categorical"):
            raise ConfigError(
                f"actor.distribution.class_name '{name}' needs a Box action space, not {space}."
            )
        if last_activation:
            raise ConfigError(
                f"actor.last_activation '{last_activation}' needs a Box action space, not {space}."
            )
        return CategoricalHead(num_features, int(space.n))
    raise ConfigError(
        f"action space {space} is not supported; use Box or Discrete (a Dict or Tuple can be flattened with "
        "gymnasium.wrappers or a small wrapper of your own)."
    )


def _rounded_inwards(bound: Any, towards: float) -> Tensor:
    """A float64 bound as float32, never outside of it."""
    exact = torch.as_tensor(bound, dtype=torch.float64).reshape(-1)
    single = exact.float()
    outside = single.double() < exact if towards > 0 else single.double() > exact
    return torch.where(outside, torch.nextafter(single, torch.full_like(single, towards)), single)


class ActionMap(nn.Module):
    """Raw actions [..., A] to what the environment takes.

    A bounded Box dimension: the raw value clipped to [-1, 1] (or its tanh, when squashed) and mapped to the
    bounds; half-bounded: clipped; unbounded: as it is. Discrete: the index plus the space's `start`.
    """

    low: Tensor
    high: Tensor

    def __init__(self, space: gymnasium.Space[Any], squashed: bool) -> None:
        super().__init__()
        self.squashed = squashed
        self.is_discrete = isinstance(space, gymnasium.spaces.Discrete)
        self.start = int(space.start) if isinstance(space, gymnasium.spaces.Discrete) else 0
        self.shape = tuple(space.shape or ())
        if not isinstance(space, gymnasium.spaces.Box):
            return
        low = _rounded_inwards(space.low, torch.inf)
        high = _rounded_inwards(space.high, -torch.inf)
        self.register_buffer("low", low, persistent=False)
        self.register_buffer("high", high, persistent=False)
        bounded = low.isfinite() & high.isfinite()
        if squashed and not bool(bounded.all()):
            raise ConfigError(f"SquashedGaussian needs a Box with finite bounds, not {space}; use Gaussian.")
        self.all_bounded, self.any_bounded = bool(bounded.all()), bool(bounded.any())
        self.is_identity = not bool((low.isfinite() | high.isfinite()).any())

    def forward(self, raw: Tensor) -> Tensor:
        """A new tensor: an environment may change it in place."""
        if self.is_discrete:
            return raw.squeeze(-1) + self.start
        if self.is_identity:
            return raw.reshape(*raw.shape[:-1], *self.shape).clone()
        if self.any_bounded:
            unit = raw.tanh() if self.squashed else raw.clamp(-1.0, 1.0)
            # from the middle: -u is mapped to the mirror image of u to the last bit, and nothing overflows
            mapped = 0.5 * self.low + 0.5 * self.high + unit * (0.5 * self.high - 0.5 * self.low)
            if not self.all_bounded:
                mapped = torch.where(self.low.isfinite() & self.high.isfinite(), mapped, raw)
        else:
            mapped = raw
        # rounding of the map must not leave the Box
        return mapped.clamp(self.low, self.high).reshape(*raw.shape[:-1], *self.shape)
