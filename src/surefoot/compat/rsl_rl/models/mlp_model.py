"""A model: groups of observations, normalised and concatenated, through a latent to outputs."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from surefoot.compat.rsl_rl.modules.distribution import Distribution
from surefoot.compat.rsl_rl.modules.mlp import MLP
from surefoot.compat.rsl_rl.modules.normalization import EmpiricalNormalization
from surefoot.compat.rsl_rl.modules.rnn import HiddenState
from surefoot.compat.rsl_rl.utils import resolve_class, unpad_trajectories
from surefoot.errors import ConfigError, MissingKeyError, did_you_mean
from surefoot.networks.dense import through
from surefoot.networks.encoders import at_least_float32

Observations = Mapping[str, Tensor]
"""A TensorDict or any mapping: a tensor [..., *group shape] by the name of each group."""


def group_shapes(
    obs: Observations, obs_groups: Mapping[str, Sequence[str]], obs_set: str
) -> dict[str, torch.Size]:
    """The shape of each group of a set, in order.

    Raises:
        MissingKeyError: there is no such set, or one of its groups is not observed.
    """
    if obs_set not in obs_groups:
        raise MissingKeyError(
            f"obs_groups has no set '{obs_set}', only: {', '.join(obs_groups)}."
            + did_you_mean(obs_set, obs_groups)
        )
    known = list(obs.keys())
    for group in obs_groups[obs_set]:
        if group not in known:
            raise MissingKeyError(
                f"obs_groups['{obs_set}'] names the group '{group}', but the environment observes only: "
                f"{', '.join(known)}.{did_you_mean(group, known)}"
            )
    return {group: obs[group].shape for group in obs_groups[obs_set]}


class MLPModel(nn.Module):
    """Observations to outputs by a multi-layer perceptron.

    Args:
        obs: Observations of some environments, for their shapes.
        obs_groups: Names of groups, in order, by set.
        obs_set: The set that this model reads.
        output_dim: A.
        hidden_dims: Widths of the hidden layers.
        activation: After each of them.
        obs_normalization: Whether vectors are normalised by running statistics.
        distribution_cfg: `class_name` and arguments of the distribution; None: the outputs are numbers.

    Raises:
        ConfigError: a group that is missing (then a KeyError too), or has another shape than [N, D].
    """

    is_recurrent: bool = False

    def __init__(
        self,
        obs: Observations,
        obs_groups: Mapping[str, Sequence[str]],
        obs_set: str,
        output_dim: int,
        hidden_dims: Sequence[int] = (256, 256, 256),
        activation: str = "elu",
        obs_normalization: bool = False,
        distribution_cfg: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.obs_groups, self.obs_dim = self._get_obs_dim(obs, obs_groups, obs_set)
        self.obs_normalization = obs_normalization
        self.obs_normalizer: nn.Module = (
            EmpiricalNormalization(self.obs_dim) if obs_normalization else nn.Identity()
        )
        self.distribution: Distribution | None = None
        mlp_output: int | list[int] = output_dim
        if distribution_cfg is not None:
            family, kwargs = resolve_class(dict(distribution_cfg))
            self.distribution = distribution = family(output_dim, **kwargs)
            mlp_output = distribution.input_dim
        self.mlp = MLP(self._get_latent_dim(), mlp_output, hidden_dims, activation)
        if self.distribution is not None:
            self.distribution.init_mlp_weights(self.mlp)

    def forward(
        self,
        obs: Observations,
        masks: Tensor | None = None,
        hidden_state: HiddenState = None,
        stochastic_output: bool = False,
    ) -> Tensor:
        """Outputs [..., A]: numbers or the distribution's mean; a sample of it if `stochastic_output`.

        Args:
            obs: One step [N, ...] (or [...] of one environment), or sequences [L, B, ...].
            masks: [L, B] bool, True within each sequence; then outputs are put together to [L, N, A].
            hidden_state: Of a recurrent model, before the first step of sequences.
            stochastic_output: Sets the current distribution too.
        """
        mlp_output = self._mlp_output(obs, masks, hidden_state)
        if self.distribution is None:
            return mlp_output
        if stochastic_output:
            self.distribution.update(mlp_output)
            return self.distribution.sample()
        return self.distribution.deterministic_output(mlp_output)

    def set_distribution(
        self, obs: Observations, masks: Tensor | None = None, hidden_state: HiddenState = None
    ) -> None:
        """As `forward` with `stochastic_output`, but nothing is drawn."""
        self._known_distribution.update(self._mlp_output(obs, masks, hidden_state))

    def _mlp_output(self, obs: Observations, masks: Tensor | None, hidden_state: HiddenState) -> Tensor:
        if masks is not None and not self.is_recurrent:
            if isinstance(obs, (Tensor, TensorDict)):
                obs = unpad_trajectories(obs, masks)
            else:
                obs = {group: unpad_trajectories(x, masks) for group, x in obs.items()}
        return at_least_float32(through(self.mlp, self.get_latent(obs, masks, hidden_state)))

    def get_latent(
        self, obs: Observations, masks: Tensor | None = None, hidden_state: HiddenState = None
    ) -> Tensor:
        """What the perceptron reads, [..., latent_dim]."""
        x = self.vectors(obs)
        # the normaliser's statistics have a batch dimension, one environment need not
        return self.obs_normalizer(x).reshape(x.shape)

    def vectors(self, obs: Observations) -> Tensor:
        """The groups that are vectors, side by side; a tensor is taken as just that."""
        x = obs if isinstance(obs, Tensor) else torch.cat([obs[group] for group in self.obs_groups], -1)
        return x.to(next(self.parameters()).dtype)

    def reset(self, dones: Tensor | None = None, hidden_state: HiddenState = None) -> None:
        """Of a recurrent model: forget where `dones`, or take `hidden_state`."""

    def get_hidden_state(self) -> HiddenState:
        """Of a recurrent model: what it remembers."""
        return None

    def detach_hidden_state(self, dones: Tensor | None = None) -> None:
        """Of a recurrent model: cut the gradient through its state."""

    @property
    def _known_distribution(self) -> Distribution:
        if self.distribution is None:
            raise ConfigError("this model is deterministic; give it a distribution_cfg to sample from it.")
        return self.distribution

    @property
    def output_mean(self) -> Tensor:
        """[..., A] of the current distribution, as the following."""
        return self._known_distribution.mean

    @property
    def output_std(self) -> Tensor:
        """[..., A]"""
        return self._known_distribution.std

    @property
    def output_entropy(self) -> Tensor:
        """[...]"""
        return self._known_distribution.entropy

    @property
    def output_distribution_params(self) -> tuple[Tensor, ...]:
        """For `get_kl_divergence`."""
        return self._known_distribution.params

    def get_output_log_prob(self, outputs: Tensor) -> Tensor:
        """[...] of outputs [..., A]."""
        return self._known_distribution.log_prob(outputs)

    def get_kl_divergence(self, old_params: tuple[Tensor, ...], new_params: tuple[Tensor, ...]) -> Tensor:
        """KL(old ‖ new) [...]."""
        return self._known_distribution.kl_divergence(old_params, new_params)

    def as_jit(self) -> nn.Module:
        """A copy for TorchScript: deterministic, normaliser inside."""
        return _TorchMLPModel(self).eval()

    def as_onnx(self, verbose: bool = False) -> nn.Module:
        """A copy for ONNX: deterministic, normaliser inside."""
        return _OnnxMLPModel(self, verbose).eval()

    def update_normalization(self, obs: Observations) -> None:
        """Count the observations [..., *group shape]."""
        if self.obs_normalization and self.obs_groups:
            normalizer: Any = self.obs_normalizer  # it may be a client's own
            normalizer.update(self.vectors(obs))

    def warm_up(self, obs: Observations) -> None:
        """Normalise by these observations until the first `update_normalization`; they are not counted."""
        if isinstance(self.obs_normalizer, EmpiricalNormalization) and self.obs_groups:
            self.obs_normalizer.warm_up(self.vectors(obs))

    def project(self) -> None:
        """Bring bounded parameters back into their range; to be called after each optimiser step."""
        if isinstance(self.distribution, Distribution):
            self.distribution.project()

    def _get_obs_dim(
        self, obs: Observations, obs_groups: Mapping[str, Sequence[str]], obs_set: str
    ) -> tuple[list[str], int]:
        """Names of the groups that are vectors, and D of all of them; may be overridden."""
        shapes = group_shapes(obs, obs_groups, obs_set)
        for group, shape in shapes.items():
            if len(shape) != 2:
                raise ConfigError(
                    f"observation group '{group}' of '{obs_set}' has the shape {tuple(shape)}; expected "
                    "[N, D]. A CNNModel reads images."
                )
        return list(shapes), sum(shape[-1] for shape in shapes.values())

    def _get_latent_dim(self) -> int:
        """Numbers that the perceptron reads; may be overridden."""
        return self.obs_dim


class ExportedModel(nn.Module):
    """Copies of those parts of a model that act."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.obs_normalizer = copy.deepcopy(model.obs_normalizer)
        self.mlp = copy.deepcopy(model.mlp)
        self.deterministic_output: nn.Module = (
            nn.Identity()
            if model.distribution is None
            else model.distribution.as_deterministic_output_module()
        )

    @torch.jit.export
    def reset(self) -> None:
        """Forget; nothing without a memory."""


class _TorchMLPModel(ExportedModel):
    """Observations [N, D], concatenated but not normalised, to outputs [N, A]."""

    def forward(self, x: Tensor) -> Tensor:
        return self.deterministic_output(self.mlp(self.obs_normalizer(x)))


class OnnxModel(ExportedModel):
    """What an exporter to ONNX asks; the first axis of each input and output, or that of
    `dynamic_axes`, is the batch.
    """

    is_recurrent: bool = False

    def __init__(self, model: Any, verbose: bool) -> None:
        super().__init__(model)
        self.verbose = verbose
        self.input_size: int = model.obs_dim

    def get_dummy_inputs(self, batch_size: int = 1) -> tuple[Tensor, ...]:
        """Zeros of the inputs' shapes."""
        return (next(self.mlp.parameters()).new_zeros(batch_size, self.input_size),)

    @property
    def input_names(self) -> list[str]:
        return ["obs"]

    @property
    def output_names(self) -> list[str]:
        return ["actions"]

    @property
    def dynamic_axes(self) -> dict[str, dict[int, str]]:
        """The axis of the batch in each input and output, as `torch.onnx.export` takes it."""
        return {name: {0: "batch"} for name in [*self.input_names, *self.output_names]}


class _OnnxMLPModel(OnnxModel):
    """Observations [N, D], concatenated but not normalised, to outputs [N, A]."""

    def forward(self, x: Tensor) -> Tensor:
        return self.deterministic_output(self.mlp(self.obs_normalizer(x)))
