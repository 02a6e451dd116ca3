"""Configuration of actor and critic networks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from surefoot.errors import ConfigError

Activation = Literal["elu", "relu", "leaky_relu", "tanh", "silu", "gelu"]


@dataclass(frozen=True)
class DistributionConfig:
    """The distribution over actions at the end of the actor."""

    class_name: Literal["auto", "Gaussian", "SquashedGaussian", "Categorical"] = "auto"
    """Family. `auto`: Gaussian for a Box action space, Categorical for a Discrete one."""
    init_std: Annotated[float, Gt(0)] = 1.0
    """Standard deviation at the start, in units of the raw action. Raise: more exploration, rougher motion.
    Lower: smoother, may never find the behaviour."""
    std_type: Literal["scalar", "log"] = "scalar"
    """What is learned: the deviation itself (`scalar`) or its logarithm (`log`), one per action."""
    std_range: tuple[Annotated[float, Gt(0)], Annotated[float, Gt(0)]] = (0.001, 10.0)
    """Bounds of the deviation. A lower ceiling stops exploration growing without end; a higher floor keeps
    some."""

    def __post_init__(self) -> None:
        low, high = self.std_range
        if not low <= self.init_std <= high:
            raise ConfigError(f"init_std {self.init_std} must lie in std_range [{low}, {high}].")


@dataclass(frozen=True)
class NetworkConfig:
    """What actor and critic have in common."""

    hidden_dims: list[Annotated[int, Ge(1)]] = field(default_factory=lambda: [256, 128, 64])
    """Widths of the hidden layers. Wider: can express more, costs time in proportion to the product of
    neighbouring widths."""
    activation: Activation = "elu"
    """Non-linearity after each hidden layer."""
    layer_norm: bool = False
    """Normalise each hidden layer before its activation (Ba et al. 2016). Steadier with large or changing
    inputs; costs about a fifth more time."""
    init: Literal["orthogonal", "default"] = "orthogonal"
    """Initial weights: `orthogonal` with the gain of the activation (Saxe et al. 2014), or PyTorch's
    `default`."""
    obs_normalization: bool = False
    """Scale observations by their running mean and deviation. Switch on unless the environment scales
    them."""
    obs_clip: Annotated[float, Gt(0)] | None = 10.0
    """Normalised observations are clipped to ± this many deviations; null: not clipped."""


@dataclass(frozen=True)
class ActorConfig(NetworkConfig):
    """The policy network."""

    last_activation: Literal["tanh"] | None = None
    """`tanh` bounds the mean to [-1, 1] without squashing the samples."""
    last_layer_gain: Annotated[float, Gt(0)] = 0.01
    """Gain of the last layer's initial weights. Small: the first actions are centred, whatever the
    observation."""
    mirror: bool = False
    """Average the policy with its mirror image under the environment's left-right symmetry: the gait is
    symmetric by construction. Halves the samples needed; doubles the actor's cost. Needs an environment with
    a mirror map."""
    distribution: DistributionConfig = field(default_factory=DistributionConfig)
    """The distribution over actions."""


@dataclass(frozen=True)
class CriticConfig(NetworkConfig):
    """The value network."""

    last_layer_gain: Annotated[float, Gt(0)] = 1.0
    """Gain of the last layer's initial weights."""
    value_normalization: bool = False
    """Learn values in units of their running deviation (PopArt, van Hasselt et al. 2016). Switch on where
    returns are far from size 1 and you cannot scale the reward."""
