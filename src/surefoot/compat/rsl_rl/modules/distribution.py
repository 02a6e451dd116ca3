"""Distributions over a model's outputs, as modules with the current distribution inside.

RSL-RL's interface; the mathematics is that of `surefoot.networks.distributions`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn import functional

from surefoot.errors import ConfigError
from surefoot.networks import distributions
from surefoot.networks.heads import straight_through_clamp

SMALLEST_STD = 1e-6
"""No deviation falls below this, whatever `std_range` says."""
MAX_BETA = 1 - 2e-6
"""Outputs are kept this far inside of ±1 before the density of a Beta is taken, as in RSL-RL."""


class Distribution(nn.Module):
    """A family of distributions over outputs [..., A], set by a network's output.

    A family of your own overrides whatever is not implemented here. `update` keeps the parameters; all that
    follows speaks of them until the next `update`.
    """

    def __init__(self, output_dim: int) -> None:
        super().__init__()
        self.output_dim = output_dim

    def update(self, mlp_output: Tensor) -> None:
        """Set the parameters from the network's output [..., *input_dim]."""
        raise NotImplementedError

    def sample(self) -> Tensor:
        """[..., A], without a gradient."""
        raise NotImplementedError

    def deterministic_output(self, mlp_output: Tensor) -> Tensor:
        """The mean [..., A] that this network output [..., *input_dim] stands for."""
        raise NotImplementedError

    def as_deterministic_output_module(self) -> nn.Module:
        """`deterministic_output` as a module that can be exported."""
        raise NotImplementedError

    @property
    def input_dim(self) -> int | list[int]:
        """Shape of the network's output for one row."""
        raise NotImplementedError

    @property
    def mean(self) -> Tensor:
        """[..., A]"""
        raise NotImplementedError

    @property
    def std(self) -> Tensor:
        """[..., A]"""
        raise NotImplementedError

    @property
    def entropy(self) -> Tensor:
        """[...], summed over the outputs."""
        raise NotImplementedError

    @property
    def params(self) -> tuple[Tensor, ...]:
        """What `kl_divergence` needs to know of the current distribution, each [..., A]."""
        raise NotImplementedError

    def log_prob(self, outputs: Tensor) -> Tensor:
        """[...] of the outputs [..., A], summed over them."""
        raise NotImplementedError

    def kl_divergence(self, old_params: tuple[Tensor, ...], new_params: tuple[Tensor, ...]) -> Tensor:
        """KL(old ‖ new) [...], summed over the outputs."""
        raise NotImplementedError

    def init_mlp_weights(self, mlp: nn.Module) -> None:
        """Change the initial weights of the network below; nothing by default."""

    def project(self) -> None:
        """Bring bounded parameters back into their range after an optimiser step; nothing by default."""

    def __getstate__(self) -> dict[str, Any]:
        # a current distribution with its graph can neither be copied nor pickled
        return {k: None if k in ("_distribution", "_alpha", "_beta") else v for k, v in vars(self).items()}


class GaussianDistribution(Distribution):
    """Independent normal distributions with one deviation per output, learned or fixed.

    Outside `std_range` the nearest bound counts, but the gradient passes straight through and `project`
    brings the parameter back, so that it never stays beyond the bound.

    Args:
        output_dim: A.
        init_std: Of each output, whatever the type.
        std_range: Smallest and largest deviation.
        std_type: What is stored: `scalar`, the deviation itself, or `log`, its logarithm.
        learn_std: False keeps `init_std` for ever.

    Raises:
        ConfigError: another `std_type`.
    """

    def __init__(
        self,
        output_dim: int,
        init_std: float = 1.0,
        std_range: tuple[float, float] = (1e-6, 1e6),
        std_type: str = "scalar",
        learn_std: bool = True,
    ) -> None:
        super().__init__(output_dim)
        self._set_std_type(std_type, std_range)
        initial = init_std * torch.ones(output_dim)
        if std_type == "scalar":
            self.std_param = nn.Parameter(initial, requires_grad=learn_std)
        else:
            self.log_std_param = nn.Parameter(initial.log(), requires_grad=learn_std)

    def _set_std_type(self, std_type: str, std_range: Sequence[float]) -> None:
        if std_type not in ("scalar", "log"):
            raise ConfigError(f"std_type '{std_type}' is unknown; expected 'scalar' or 'log'.")
        self.std_type = std_type
        self.std_range = [max(std_range[0], SMALLEST_STD), std_range[1]]
        self.log_std_range = [math.log(bound) for bound in self.std_range]
        # subclasses of clients set a torch.distributions.Normal here
        self._distribution: Normal | None = None

    def update(self, mlp_output: Tensor) -> None:
        """The output is the mean [..., A]."""
        stored = self.std_param if self.std_type == "scalar" else self.log_std_param
        self._set(mlp_output, stored)

    def _set(self, mean: Tensor, stored_std: Tensor) -> None:
        if self.std_type == "scalar":
            std = straight_through_clamp(stored_std, *self.std_range)
        else:
            std = straight_through_clamp(stored_std, *self.log_std_range).exp()
        self._distribution = Normal(mean, std, validate_args=False)

    @property
    def value(self) -> distributions.Gaussian:
        """The current distribution as one of Surefoot's values."""
        current = self._distribution
        if current is None:
            raise RuntimeError("no distribution yet: call the model with stochastic_output=True first.")
        return distributions.Gaussian(current.loc, current.scale)

    def sample(self) -> Tensor:
        with torch.no_grad():
            return self.value.sample()

    def deterministic_output(self, mlp_output: Tensor) -> Tensor:
        return mlp_output

    def as_deterministic_output_module(self) -> nn.Module:
        return nn.Identity()

    @property
    def input_dim(self) -> int | list[int]:
        return self.output_dim

    @property
    def mean(self) -> Tensor:
        return self.value.mean

    @property
    def std(self) -> Tensor:
        return self.value.std

    @property
    def entropy(self) -> Tensor:
        return self.value.entropy()

    @property
    def params(self) -> tuple[Tensor, ...]:
        """Mean and deviation."""
        return self.mean, self.std

    def log_prob(self, outputs: Tensor) -> Tensor:
        return self.value.log_prob(outputs)

    def kl_divergence(self, old_params: tuple[Tensor, ...], new_params: tuple[Tensor, ...]) -> Tensor:
        return distributions.Gaussian(*old_params).kl(distributions.Gaussian(*new_params))

    @torch.no_grad()
    def project(self) -> None:
        for name, bounds in (("std_param", self.std_range), ("log_std_param", self.log_std_range)):
            if isinstance(stored := getattr(self, name, None), Tensor):
                stored.clamp_(*bounds)


class HeteroscedasticGaussianDistribution(GaussianDistribution):
    """Independent normal distributions whose mean and deviation are both the network's, [..., 2, A]."""

    def __init__(
        self,
        output_dim: int,
        init_std: float = 1.0,
        std_range: tuple[float, float] = (1e-6, 1e6),
        std_type: str = "scalar",
    ) -> None:
        # not GaussianDistribution's: there is no parameter of its own
        Distribution.__init__(self, output_dim)
        self._set_std_type(std_type, std_range)
        self.init_std = init_std

    def update(self, mlp_output: Tensor) -> None:
        """The output is mean and stored deviation [..., 2, A]."""
        self._set(*mlp_output.unbind(-2))

    def deterministic_output(self, mlp_output: Tensor) -> Tensor:
        return mlp_output[..., 0, :]

    def as_deterministic_output_module(self) -> nn.Module:
        return _FirstRow()

    @property
    def input_dim(self) -> int | list[int]:
        return [2, self.output_dim]

    def init_mlp_weights(self, mlp: nn.Module) -> None:
        """The initial deviation is `init_std`, whatever the observation."""
        last = _last_linear(mlp)
        initial = self.init_std if self.std_type == "scalar" else math.log(self.init_std)
        nn.init.zeros_(last.weight[self.output_dim :])
        nn.init.constant_(last.bias[self.output_dim :], initial)


class BetaDistribution(Distribution):
    """Independent Beta distributions over `action_range`, each with one peak (Chou et al. 2017).

    The network's output [..., 2, A] becomes α and β by 1 + softplus. As in RSL-RL, the entropy is that of
    the distribution on [0, 1], while `log_prob` is the density on `action_range`.
    """

    def __init__(self, output_dim: int, action_range: tuple[float, float] = (-1.0, 1.0)) -> None:
        super().__init__(output_dim)
        self.action_range = action_range
        low, high = action_range
        if not low < high:
            raise ConfigError(f"action_range {tuple(action_range)}: expected (low, high) with low < high.")
        self._offset, self._scale = low, high - low
        self._alpha: Tensor | None = None
        self._beta: Tensor | None = None

    def update(self, mlp_output: Tensor) -> None:
        self._alpha, self._beta = _positive(mlp_output).unbind(-2)

    @property
    def value(self) -> distributions.Beta:
        """The current distribution, over [-1, 1], as one of Surefoot's values."""
        if self._alpha is None or self._beta is None:
            raise RuntimeError("no distribution yet: call the model with stochastic_output=True first.")
        return distributions.Beta(self._alpha, self._beta)

    def sample(self) -> Tensor:
        with torch.no_grad():
            return (self.value.sample() + 1) * (0.5 * self._scale) + self._offset

    def deterministic_output(self, mlp_output: Tensor) -> Tensor:
        return self.as_deterministic_output_module()(mlp_output)

    def as_deterministic_output_module(self) -> nn.Module:
        return _BetaMean(self._scale, self._offset)

    @property
    def input_dim(self) -> int | list[int]:
        return [2, self.output_dim]

    @property
    def mean(self) -> Tensor:
        alpha, beta = self.params
        return alpha / (alpha + beta) * self._scale + self._offset

    @property
    def std(self) -> Tensor:
        alpha, beta = self.params
        total = alpha + beta
        return (alpha * beta / (total + 1)).sqrt() / total * self._scale

    @property
    def entropy(self) -> Tensor:
        return self.value.entropy() - self.output_dim * math.log(2)

    @property
    def params(self) -> tuple[Tensor, ...]:
        """α and β."""
        return self.value.alpha, self.value.beta

    def log_prob(self, outputs: Tensor) -> Tensor:
        x = (outputs - self._offset) / (0.5 * self._scale) - 1
        density = self.value.log_prob(x.clamp(-MAX_BETA, MAX_BETA))
        return density - self.output_dim * math.log(0.5 * self._scale)

    def kl_divergence(self, old_params: tuple[Tensor, ...], new_params: tuple[Tensor, ...]) -> Tensor:
        return distributions.Beta(*old_params).kl(distributions.Beta(*new_params))

    def init_mlp_weights(self, mlp: nn.Module) -> None:
        """α = β whatever the observation, so that no action is preferred at first."""
        last = _last_linear(mlp)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)


def _positive(mlp_output: Tensor) -> Tensor:
    return functional.softplus(mlp_output) + 1.0


def _last_linear(mlp: nn.Module) -> nn.Linear:
    layers: Iterator[nn.Linear] = (m for m in mlp.modules() if isinstance(m, nn.Linear))
    return list(layers)[-1]


class _FirstRow(nn.Module):
    """[..., 2, A] to its first [..., A]."""

    def forward(self, mlp_output: Tensor) -> Tensor:
        return mlp_output[..., 0, :]


class _BetaMean(nn.Module):
    """The mean of a Beta distribution over a range."""

    def __init__(self, scale: float, offset: float) -> None:
        super().__init__()
        self.scale, self.offset = scale, offset

    def forward(self, mlp_output: Tensor) -> Tensor:
        shape = _positive(mlp_output)
        alpha, beta = shape[..., 0, :], shape[..., 1, :]
        return alpha / (alpha + beta) * self.scale + self.offset
