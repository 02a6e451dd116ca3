"""The body of a network: inputs → encode → remember → think → features. Heads stand on it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from surefoot.errors import ConfigError
from surefoot.networks.config import ActorConfig, CriticConfig, EstimatorConfig, NetworkConfig
from surefoot.networks.dense import through
from surefoot.networks.encoders import at_least_float32, make_mlp, part_size
from surefoot.networks.images import ImageEncoder
from surefoot.networks.inputs import LENGTHS, PIXELS, InputPipeline, Inputs
from surefoot.networks.memory import Memory
from surefoot.types import EnvSpec


class MakeNetwork(Protocol):
    """A user's network class: the number of inputs, then `kwargs` of the configuration."""

    def __call__(self, num_inputs: int, /, **kwargs: object) -> nn.Module: ...


@dataclass
class BodyOutput:
    """What a body makes of its inputs; float32 or wider."""

    features: Tensor
    """[..., F]"""
    state: Tensor | None
    """The memory's, after the last step [N | B, K]."""
    estimate: Tensor | None


class Body(nn.Module):
    """Everything of one network below its head.

    Args:
        name: `actor` or `critic`, for errors.
        input_name: Of its input vector.
        num_inputs: D of that vector.
        images: Encoders of its image groups; they may be another body's.
        config: Sizes and choices.
        own_network: The class behind `config.class_name`.
        estimator: Sizes of the network that predicts privileged observations; None: there is none.
        num_estimated: Numbers that it predicts.
    """

    def __init__(
        self,
        name: str,
        input_name: str,
        num_inputs: int,
        images: Mapping[str, ImageEncoder],
        config: NetworkConfig,
        own_network: MakeNetwork | None = None,
        num_estimated: int = 0,
        estimator: EstimatorConfig | None = None,
    ) -> None:
        super().__init__()
        self.input_name, self.mixed_precision = input_name, False
        self.image_groups, self.images = list(images), nn.ModuleList(images.values())
        width = num_inputs + sum(encoder.num_features for encoder in images.values())
        self.memory = None
        if config.rnn_type is not None:
            self.memory = Memory(width, config)
            width = self.memory.num_features
        self.estimator = None
        if estimator is not None:
            hidden = make_mlp(width, NetworkConfig(hidden_dims=estimator.hidden_dims, init=config.init))
            last = nn.Linear(estimator.hidden_dims[-1] if estimator.hidden_dims else width, num_estimated)
            self.estimator = nn.Sequential(*hidden, last)
            width += num_estimated
        if own_network is None:
            self.layers: nn.Module = make_mlp(width, config)
            self.num_features = config.hidden_dims[-1] if config.hidden_dims else width
        else:
            what = f"{name}.class_name {config.class_name}"
            try:
                self.layers = own_network(width, **config.kwargs)
            except TypeError as error:
                raise ConfigError(f"{what} cannot be made with {width} inputs and kwargs: {error}") from error
            self.num_features = _num_features(self.layers, width, what)

    @property
    def state_size(self) -> int:
        """K, numbers that the memory keeps for each environment; 0 without one."""
        return 0 if self.memory is None else self.memory.state_size

    def forward(self, inputs: Inputs, state: Tensor | None = None) -> BodyOutput:
        with self.low_precision(inputs[self.input_name].device):
            x, state = self.remember(self.encode(inputs), state, inputs.get(LENGTHS))
            features, estimate = self.think(x)
        wide = [None if x is None else at_least_float32(x) for x in (state, estimate)]
        return BodyOutput(at_least_float32(features), *wide)

    def low_precision(self, device: torch.device) -> AbstractContextManager[object]:
        """The context in which the parts below run."""
        return torch.autocast(device.type, torch.bfloat16) if self.mixed_precision else nullcontext()

    def encode(self, inputs: Inputs) -> Tensor:
        """The vector and the encoded images [..., E]."""
        named = zip(self.image_groups, self.images, strict=True)
        encoded = [encoder(inputs[f"{PIXELS}{group}"]) for group, encoder in named]
        vector = inputs[self.input_name]
        return torch.cat([vector, *encoded], -1) if encoded else vector

    def remember(
        self, x: Tensor, state: Tensor | None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """One step [N, E] or sequences [L, B, E] through the memory; the state afterwards [N | B, K]."""
        if self.memory is None:
            return x, None
        if state is None:
            state = x.new_zeros(x.shape[-2], self.memory.state_size)
        return self.memory(x, state, lengths) if x.dim() == 3 else self.memory.step(x, state)

    def think(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Features [..., F], and what the estimator predicts."""
        if self.estimator is None:
            return through(self.layers, x), None
        estimate = self.estimator(x)
        # detached: the prediction learns from its own loss only
        return through(self.layers, torch.cat([x, estimate.detach()], -1)), estimate


def _num_features(network: nn.Module, width: int, what: str) -> int:
    """F of a user's network, found by trying it."""
    if not isinstance(network, nn.Module):
        raise ConfigError(f"{what}: expected a torch.nn.Module, got {type(network).__name__}.")
    x = torch.randn(4, width, generator=torch.Generator().manual_seed(0))
    try:
        with torch.no_grad():
            out = network.eval()(x)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"{what} does not take inputs of width {width}: {error}") from error
    if not isinstance(out, Tensor) or out.dim() != 2 or out.shape[0] != len(x):
        shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ConfigError(f"{what}: expected features [..., F] from inputs [..., {width}], got {shape}.")
    trial = copy.deepcopy(network.train())
    with torch.no_grad():
        passes = [trial(x), trial(x), trial(x[:2])]
    if not all(torch.allclose(y, out[: len(y)], atol=1e-5) for y in passes):
        raise ConfigError(
            f"{what}: its features of one observation change from call to call or with the rest of the "
            "batch, as with dropout or batch normalisation. The policy that learns would not be the one that "
            "acted; use layer normalisation, or none."
        )
    return out.shape[1]


def make_bodies(
    spec: EnvSpec,
    inputs: InputPipeline,
    actor: ActorConfig,
    critic: CriticConfig,
    is_shared: bool,
    own_networks: Mapping[str, MakeNetwork],
) -> tuple[Body, Body | None]:
    """The bodies of actor and critic; the critic's is None where they are one."""
    num_estimated = 0
    if (estimator := actor.estimator) is not None:
        num_estimated = part_size(spec.observation_spaces, estimator.group, estimator.part, "actor.estimator")
    encoders = {g: ImageEncoder(shape, g, actor) for g, shape in inputs.images["actor"].items()}
    own = own_networks.get("actor")
    body = Body("actor", "actor", inputs.sizes["actor"], encoders, actor, own, num_estimated, estimator)
    if is_shared:
        return body, None
    if critic.cnn != "shared":
        encoders = {g: ImageEncoder(shape, g, critic) for g, shape in inputs.images["critic"].items()}
    own = own_networks.get("critic")
    return body, Body("critic", inputs.critic_name, inputs.sizes["critic"], encoders, critic, own)
