"""Action heads: features to a distribution over raw actions."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import torch
from torch import Tensor, nn
from torch.nn import functional

from surefoot.errors import ConfigError
from surefoot.networks.config import DistributionConfig
from surefoot.networks.distributions import Bernoulli, Beta, Categorical, Gaussian, SquashedGaussian
from surefoot.networks.encoders import at_least_float32
from surefoot.types import Distribution

spaces = gymnasium.spaces

GSDE_MARGIN = 5.0
"""By how much the logarithm of a deviation σ_fa of gSDE may leave that of `std_range`."""


class Head(nn.Module, ABC):
    """Features [..., F] to a distribution over raw actions [..., A]."""

    linear: nn.Linear
    """The last layer."""
    kl_kind: ClassVar[str] = "exact"
    """That of the distribution."""

    @abstractmethod
    def forward(self, features: Tensor, mask: Tensor | None = None) -> Distribution:
        """`mask` [..., K] is True where a choice is allowed; only heads of counted actions take one."""

    @abstractmethod
    def rebuild(self, params: Mapping[str, Tensor]) -> Distribution:
        """The distribution with these parameters, as they came from `Distribution.params`."""

    def project(self) -> None:
        """Bring bounded parameters back into their range; nothing by default."""

    def explore(self, num_envs: int, step: int, generator: torch.Generator) -> None:
        """Called before each step of a rollout, for noise that lasts over several; nothing by default."""

    def end_exploration(self) -> None:
        """The rollout is complete."""

    def check_mask(self, space: gymnasium.Space[Any]) -> None:
        """Refuse a space of action masks that does not fit the actions."""
        raise ConfigError(
            "the environment gives an action_mask, but its actions are a Box: only Discrete, MultiDiscrete "
            "and MultiBinary actions can be masked. Take the group out."
        )


def straight_through_clamp(x: Tensor, low: float, high: float) -> Tensor:
    """Exactly the bound outside the range, with the gradient of `x` itself: never stuck there."""
    bounded = x.clamp(low, high)
    return bounded.detach() + (x - x.detach()) if torch.is_grad_enabled() else bounded


class MeanHead(Head, ABC):
    """What Gaussian heads have in common: the mean, and whether samples are squashed."""

    def __init__(
        self, num_features: int, num_actions: int, config: DistributionConfig, last_activation: str | None
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(num_features, num_actions)
        self.bound_mean = last_activation == "tanh"
        self.squashed = config.class_name == "SquashedGaussian"

    def mean(self, features: Tensor) -> Tensor:
        """[..., A]"""
        mean = at_least_float32(self.linear(features))
        return mean.tanh() if self.bound_mean else mean

    def rebuild(self, params: Mapping[str, Tensor]) -> Distribution:
        return self.gaussian(params["mean"], params["std"])

    def gaussian(self, mean: Tensor, std: Tensor, noise: Tensor | None = None) -> Distribution:
        gaussian = Gaussian(mean, std, noise)
        return SquashedGaussian(gaussian) if self.squashed else gaussian


class GaussianHead(MeanHead):
    """A Gaussian or SquashedGaussian with one learned deviation per action.

    `scalar` stores the deviation itself. Outside `std_range` the forward pass uses the nearest bound but the
    gradient passes straight through, so that a parameter below the floor is never stuck there; `project`
    brings it back into the range after each optimiser step. `log` stores the logarithm and bounds it the same
    way.
    """

    def __init__(
        self, num_features: int, num_actions: int, config: DistributionConfig, last_activation: str | None
    ) -> None:
        super().__init__(num_features, num_actions, config, last_activation)
        self.is_log = config.std_type == "log"
        low, high = config.std_range
        self.low, self.high = (math.log(low), math.log(high)) if self.is_log else (low, high)
        initial = math.log(config.init_std) if self.is_log else config.init_std
        self.std_param = nn.Parameter(torch.full((num_actions,), initial))

    @property
    def std(self) -> Tensor:
        """[A], positive and within the range."""
        bounded = straight_through_clamp(self.std_param, self.low, self.high)
        return bounded.exp() if self.is_log else bounded

    def std_slope(self, by_std: Tensor) -> Tensor:
        """The gradient by `std_param` from that by `std`, [A] each."""
        return by_std * self.std.detach() if self.is_log else by_std

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Distribution:
        return self.gaussian(self.mean(features), self.std)

    @torch.no_grad()
    def project(self) -> None:
        self.std_param.clamp_(self.low, self.high)


class StateDependentHead(MeanHead):
    """A Gaussian or SquashedGaussian whose deviation is a function of the features.

    With `gsde` (Raffin et al. 2022, arXiv:2005.05719) the noise too: ε(s) = features(s) · W, where W is drawn
    once for many steps, element fa with deviation σ_fa. At one state it is Gaussian, with the deviation
    √(Σ_f features_f² σ_fa²); the gradient of the deviation stops at the features, as there. Each σ_fa too is
    bounded, so that none can overflow, or become too small to grow again.
    """

    def __init__(
        self, num_features: int, num_actions: int, config: DistributionConfig, last_activation: str | None
    ) -> None:
        super().__init__(num_features, num_actions, config, last_activation)
        self.low, self.high = config.std_range
        self.interval = config.gsde_interval
        self.log_std: nn.Linear | nn.Parameter
        if config.std_type == "gsde":
            # features of size about 1 give the deviation asked for
            initial = math.log(config.init_std / math.sqrt(num_features))
            self.log_std = nn.Parameter(torch.full((num_features, num_actions), initial))
        else:
            self.log_std = nn.Linear(num_features, num_actions)
            nn.init.orthogonal_(self.log_std.weight, 0.01)
            nn.init.constant_(self.log_std.bias, math.log(config.init_std))
        # set while a rollout is collected; drawn anew from a saved generator, so it is not saved itself
        self._noise: Tensor | None = None

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Distribution:
        mean = self.mean(features)
        if isinstance(self.log_std, nn.Linear):
            log_std = at_least_float32(self.log_std(features))
            std = straight_through_clamp(log_std, math.log(self.low), math.log(self.high)).exp()
            return self.gaussian(mean, std)
        sigma = straight_through_clamp(self.log_std, *self._log_bounds()).exp()
        latent = features.detach()
        free = at_least_float32((latent.square() @ sigma.square() + 1e-12).sqrt())
        std = straight_through_clamp(free, self.low, self.high)
        noise = None
        if self._noise is not None:
            # where the deviation is bounded, the noise is too
            noise = torch.einsum("nf,nfa->na", latent, self._noise * sigma) * (std / free)
        return self.gaussian(mean, std, noise)

    def explore(self, num_envs: int, step: int, generator: torch.Generator) -> None:
        if isinstance(self.log_std, nn.Parameter) and (
            step == 0 or (self.interval and step % self.interval == 0)
        ):
            noise = self.log_std.new_empty(num_envs, *self.log_std.shape)
            self._noise = noise.normal_(generator=generator)

    def end_exploration(self) -> None:
        self._noise = None

    @torch.no_grad()
    def project(self) -> None:
        if isinstance(self.log_std, nn.Parameter):
            self.log_std.clamp_(*self._log_bounds())

    def _log_bounds(self) -> tuple[float, float]:
        """Of gSDE's parameter: wider than the range, since features need not be of size 1."""
        return math.log(self.low) - GSDE_MARGIN, math.log(self.high) + GSDE_MARGIN


class BetaHead(Head):
    """A Beta distribution per action; both its parameters are 1 + softplus, so that it has one peak."""

    def __init__(self, num_features: int, num_actions: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_features, 2 * num_actions)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Distribution:
        shape = 1 + functional.softplus(at_least_float32(self.linear(features)))
        alpha, beta = shape.chunk(2, -1)
        return Beta(alpha, beta)

    def rebuild(self, params: Mapping[str, Tensor]) -> Distribution:
        return Beta(params["alpha"], params["beta"])


class CategoricalHead(Head):
    """A Categorical over the values of a Discrete or of each entry of a MultiDiscrete space."""

    column: Tensor
    exists: Tensor

    def __init__(self, num_features: int, sizes: list[int]) -> None:
        super().__init__()
        self.linear = nn.Linear(num_features, sum(sizes))
        # choices of unequal number side by side: [A, K] into the flat logits, and where there is one at all
        choice = torch.arange(max(sizes))
        counts = torch.tensor(sizes).unsqueeze(-1)
        first = counts.cumsum(0) - counts
        self.register_buffer("column", first + torch.minimum(choice, counts - 1), persistent=False)
        self.register_buffer("exists", choice < counts, persistent=False)
        self.is_even = len(set(sizes)) == 1

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Distribution:
        return self.on(at_least_float32(self.linear(features)), mask)

    def on(self, out: Tensor, mask: Tensor | None = None) -> Categorical:
        """From what the last layer puts out [..., sum of all K]."""
        logits = _allowed(out, mask)
        if self.is_even:
            return Categorical(logits.unflatten(-1, tuple(self.exists.shape)))
        return Categorical(logits[..., self.column].masked_fill(~self.exists, -torch.inf))

    def rebuild(self, params: Mapping[str, Tensor]) -> Distribution:
        return Categorical(params["logits"])

    def check_mask(self, space: gymnasium.Space[Any]) -> None:
        _check_mask_size(space, self.linear.out_features, "one entry for each value of each action")


class BernoulliHead(Head):
    """A Bernoulli over each bit of a MultiBinary space."""

    def __init__(self, num_features: int, num_bits: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_features, num_bits)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Distribution:
        logits = _allowed(at_least_float32(self.linear(features)), mask)
        return Bernoulli(logits)

    def rebuild(self, params: Mapping[str, Tensor]) -> Distribution:
        return Bernoulli(params["logits"])

    def check_mask(self, space: gymnasium.Space[Any]) -> None:
        _check_mask_size(space, self.linear.out_features, "one entry for each bit that may be 1")


def _allowed(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Logits [..., K] with -inf where the mask, of K entries in any shape, forbids."""
    return logits if mask is None else logits.masked_fill(~mask.flatten(logits.dim() - 1), -torch.inf)


def _check_mask_size(space: gymnasium.Space[Any], size: int, what: str) -> None:
    given = math.prod(space.shape or ())
    if given != size:
        raise ConfigError(f"action_mask has {given} entries; expected {size}: {what}.")


FAMILIES: dict[type, tuple[str, ...]] = {
    spaces.Box: ("Gaussian", "SquashedGaussian", "Beta"),
    spaces.Discrete: ("Categorical",),
    spaces.MultiDiscrete: ("MultiCategorical",),
    spaces.MultiBinary: ("Bernoulli",),
}
"""Distributions that fit each kind of action space; the first is the default."""


def make_head(
    space: gymnasium.Space[Any], num_features: int, config: DistributionConfig, last_activation: str | None
) -> Head:
    """The head that fits the action space.

    Raises:
        ConfigError: the space has none, or not the one that the configuration names.
    """
    kind = next((k for k in FAMILIES if isinstance(space, k)), None)
    if kind is None:
        raise ConfigError(
            f"action space {space} is not supported; use Box, Discrete, MultiDiscrete or MultiBinary. A Dict "
            "or Tuple of them becomes one with a gymnasium.ActionWrapper that splits the flat action."
        )
    name = FAMILIES[kind][0] if config.class_name == "auto" else config.class_name
    if name not in FAMILIES[kind]:
        fitting = next(k for k, families in FAMILIES.items() if name in families).__name__
        raise ConfigError(
            f"actor.distribution.class_name '{name}' needs a {fitting} action space, not {space}; fitting: "
            f"{', '.join(FAMILIES[kind])}."
        )
    if last_activation and name not in ("Gaussian", "SquashedGaussian"):
        raise ConfigError(
            f"actor.last_activation '{last_activation}' needs a Gaussian over a Box action space, not {name} "
            f"over {space}."
        )
    if isinstance(space, spaces.Box):
        num_actions = math.prod(space.shape)
        if name == "Beta":
            return BetaHead(num_features, num_actions)
        by_state = config.std_type in ("state_dependent", "gsde")
        gaussian = StateDependentHead if by_state else GaussianHead
        return gaussian(num_features, num_actions, config, last_activation)
    if isinstance(space, spaces.Discrete):
        return CategoricalHead(num_features, [int(space.n)])
    if isinstance(space, spaces.MultiDiscrete):
        return CategoricalHead(num_features, space.nvec.flatten().tolist())
    return BernoulliHead(num_features, math.prod(space.shape or ()))
