"""Configuration of actor and critic networks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le

from surefoot.errors import ConfigError
from surefoot.field_checks import Checked

Deviation = Annotated[float, Ge(1e-6), Le(1e6)]
"""A smaller one is below the rounding of the action itself; the square of a larger ratio is no float32."""
Activation = Literal["elu", "relu", "leaky_relu", "tanh", "silu", "gelu"]


@dataclass(frozen=True)
class DistributionConfig(Checked):
    """The distribution over actions at the end of the actor."""

    class_name: Literal[
        "auto", "Gaussian", "SquashedGaussian", "Beta", "Categorical", "MultiCategorical", "Bernoulli"
    ] = "auto"
    """Family. `auto`: Gaussian for a Box action space, Categorical for Discrete, MultiCategorical for
    MultiDiscrete, Bernoulli for MultiBinary. SquashedGaussian and Beta need a Box with finite bounds."""
    init_std: Annotated[float, Gt(0)] = 1.0
    """Standard deviation at the start, in units of the raw action. Raise: more exploration, rougher motion.
    Lower: smoother, may never find the behaviour."""
    std_type: Literal["scalar", "log", "state_dependent", "gsde"] = "scalar"
    """What is learned: the deviation itself (`scalar`) or its logarithm (`log`), one per action; a deviation
    for each observation (`state_dependent`); or noise that is a function of the features and lasts over many
    steps, so that motion stays smooth (`gsde`, Raffin et al. 2022)."""
    std_range: tuple[Deviation, Deviation] = (0.001, 10.0)
    """Bounds of the deviation. A lower ceiling stops exploration growing without end; a higher floor keeps
    some."""
    gsde_interval: Annotated[int, Ge(1)] | None = None
    """Steps between new noise functions with `std_type: gsde`; null: one for each rollout. Raise: smoother
    motion. Lower: more varied exploration."""

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.std_range
        if not low <= self.init_std <= high:
            raise ConfigError(f"init_std {self.init_std} must lie in std_range [{low}, {high}].")


@dataclass(frozen=True)
class CnnConfig(Checked):
    """Convolutions of an image group, then one linear layer; ReLU after each."""

    channels: list[Annotated[int, Ge(1)]] = field(default_factory=lambda: [16, 32])
    """Output channels of each layer. More: finer distinctions, and time in proportion."""
    kernel_sizes: list[Annotated[int, Ge(1)]] = field(default_factory=lambda: [3, 3])
    """Side of each layer's window, in pixels of its input."""
    strides: list[Annotated[int, Ge(1)]] = field(default_factory=lambda: [2, 2])
    """Step of each window. Larger: a smaller, faster picture."""
    features: Annotated[int, Ge(1)] = 128
    """Width of the linear layer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        lengths = {len(self.channels), len(self.kernel_sizes), len(self.strides)}
        if len(lengths) != 1 or not self.channels:
            raise ConfigError(
                f"channels ({len(self.channels)}), kernel_sizes ({len(self.kernel_sizes)}) and strides "
                f"({len(self.strides)}) must have one entry for each layer."
            )


@dataclass(frozen=True)
class EstimatorConfig(Checked):
    """A network inside the actor that predicts what only the simulator knows."""

    target: str | list[Any]
    """What to predict: an observation group, or `[GROUP, start, stop]` for a part of it."""
    hidden_dims: list[Annotated[int, Ge(1)]] = field(default_factory=lambda: [128, 64])
    """Widths of its hidden layers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.target, list):
            kinds = tuple(type(x) for x in self.target)
            if kinds != (str, int, int) or not 0 <= self.target[1] < self.target[2]:
                raise ConfigError(f"target {self.target}: expected GROUP or [GROUP, start, stop].")

    @property
    def group(self) -> str:
        return self.target if isinstance(self.target, str) else self.target[0]

    @property
    def part(self) -> slice:
        """Of the group's last dimension."""
        return slice(None) if isinstance(self.target, str) else slice(self.target[1], self.target[2])


@dataclass(frozen=True)
class NetworkConfig(Checked):
    """What actor and critic have in common."""

    class_name: str | None = None
    """A network of your own in place of the hidden layers: `package.module:Class`, called with the number of
    inputs and `kwargs`; an nn.Module from [..., D] to [..., F]."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of your own network."""
    hidden_dims: list[Annotated[int, Ge(1)]] = field(default_factory=lambda: [256, 128, 64])
    """Widths of the hidden layers, after convolutions and memory. Wider: can express more, costs time in
    proportion to the product of neighbouring widths."""
    rnn_type: Literal["gru", "lstm"] | None = None
    """Memory before the hidden layers; null: none. Switch on where one observation does not tell the state,
    such as without velocities."""
    rnn_hidden_dim: Annotated[int, Ge(1)] = 256
    """Units of the memory. More: remembers more, costs time with the square."""
    rnn_num_layers: Annotated[int, Ge(1)] = 1
    """Layers of the memory; one is nearly always enough."""
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
    cnn: Literal["nature", "impala", "flat", "shared"] | CnnConfig | None = None
    """How image groups are encoded: `nature` (Mnih et al. 2015; at least 36 pixels a side), `impala`
    (Espeholt et al. 2018; residual, slower, learns more from a sample), layers of your own, `flat`: no
    convolution, or for the critic `shared`: the actor's, trained by both. null: `nature` where the image is
    large enough, else two small layers; only uint8 images count as images then."""


@dataclass(frozen=True)
class ActorConfig(NetworkConfig):
    """The policy network."""

    last_activation: Literal["tanh"] | None = None
    """`tanh` bounds the mean to [-1, 1] without squashing the samples."""
    last_layer_gain: Annotated[float, Gt(0), Le(1e3)] = 0.01
    """Gain of the last layer's initial weights. Small: the first actions are centred, whatever the
    observation."""
    mirror: bool = False
    """Average the policy with its mirror image under the environment's left-right symmetry: the gait is
    symmetric by construction. Halves the samples needed; doubles the actor's cost. Needs an environment with
    a mirror map."""
    estimator: EstimatorConfig | None = None
    """A prediction of privileged observations, such as the base velocity, that joins the input of the hidden
    layers, in training and on the robot alike. Learns only with `algorithm.enable_aux_loss`."""
    distribution: DistributionConfig = field(default_factory=DistributionConfig)
    """The distribution over actions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cnn == "shared":
            raise ConfigError("cnn 'shared' is for the critic: it then uses the actor's.")
        if self.mirror and self.rnn_type:
            raise ConfigError(
                "mirror and rnn_type exclude each other: a mirrored actor would need a second memory. Use "
                "symmetry augmentation with a recurrent policy."
            )


@dataclass(frozen=True)
class CriticConfig(NetworkConfig):
    """The value network."""

    last_layer_gain: Annotated[float, Gt(0), Le(1e3)] = 1.0
    """Gain of the last layer's initial weights."""
    value_normalization: bool = False
    """Learn values in units of their running deviation (PopArt, van Hasselt et al. 2016). Switch on where
    returns are far from size 1 and you cannot scale the reward."""
