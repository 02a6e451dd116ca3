"""A model that reads images beside vectors."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from surefoot.compat.rsl_rl.models.mlp_model import (
    ExportedModel,
    MLPModel,
    Observations,
    OnnxModel,
    group_shapes,
)
from surefoot.compat.rsl_rl.modules.cnn import CNN
from surefoot.compat.rsl_rl.modules.rnn import HiddenState
from surefoot.errors import ConfigError


class CNNModel(MLPModel):
    """Images [N, C, H, W] through a CNN each, then with the vectors [N, D] through a perceptron.

    Only vectors are normalised; pixels of type uint8 are divided by 255. Arguments as for `MLPModel`.

    Args:
        cnn_cfg: Arguments of `CNN`, for all groups of images or by group.
        cnns: Encoders by group, of another model that shares them; then `cnn_cfg` has no effect.

    Raises:
        ConfigError: no image, neither `cnn_cfg` nor `cnns`, or one that does not fit the groups.
    """

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
        cnn_cfg: Mapping[str, Any] | None = None,
        cnns: nn.ModuleDict | Mapping[str, Any] | None = None,
    ) -> None:
        self._get_obs_dim(obs, obs_groups, obs_set)
        encoders: dict[str, Any] = dict((self._make_cnns(cnn_cfg) if cnns is None else cnns).items())
        if set(encoders) != set(self.obs_groups_2d):
            raise ConfigError(
                f"the CNNs to share are for {', '.join(encoders)}, but '{obs_set}' reads the images "
                f"{', '.join(self.obs_groups_2d)}; models share CNNs only if they read the same images."
            )
        self.cnn_latent_dim = 0
        for group, encoder in encoders.items():
            if encoder.output_channels is not None:
                raise ConfigError(f"the CNN of '{group}' gives maps; a perceptron needs flatten: true.")
            self.cnn_latent_dim += int(encoder.output_dim)
        super().__init__(
            obs, obs_groups, obs_set, output_dim, hidden_dims, activation, obs_normalization, distribution_cfg
        )
        self.cnns = cnns if isinstance(cnns, nn.ModuleDict) else nn.ModuleDict(encoders)

    def _make_cnns(self, cnn_cfg: Mapping[str, Any] | None) -> dict[str, CNN]:
        if cnn_cfg is None:
            raise ConfigError("a CNNModel needs cnn_cfg, unless it shares the CNNs of another model.")
        by_group = all(isinstance(config, Mapping) for config in cnn_cfg.values())
        configs = cnn_cfg if by_group else dict.fromkeys(self.obs_groups_2d, cnn_cfg)
        if set(configs) != set(self.obs_groups_2d):
            raise ConfigError(
                f"cnn_cfg is for {', '.join(configs)}, but the images are {', '.join(self.obs_groups_2d)}; "
                "give one configuration for all, or one for each."
            )
        shapes = zip(self.obs_groups_2d, self.obs_dims_2d, self.obs_channels_2d, strict=True)
        return {group: CNN(size, channels, **configs[group]) for group, size, channels in shapes}

    def get_latent(
        self, obs: Observations, masks: Tensor | None = None, hidden_state: HiddenState = None
    ) -> Tensor:
        encoded = [self._encode(group, obs[group]) for group in self.obs_groups_2d]
        return torch.cat([super().get_latent(obs), *encoded] if self.obs_groups else encoded, -1)

    def _encode(self, group: str, pixels: Tensor) -> Tensor:
        """Pixels [..., C, H, W] to features [..., F]."""
        lead = pixels.shape[:-3]
        images = _as_numbers(pixels, next(self.mlp.parameters()).dtype)
        return self.cnns[group](images.reshape(math.prod(lead), *pixels.shape[-3:])).reshape(*lead, -1)

    def as_jit(self) -> nn.Module:
        """A copy for TorchScript: vectors [N, D], and a list of images in the order of `obs_groups_2d`."""
        return _TorchCNNModel(self).eval()

    def as_onnx(self, verbose: bool = False) -> nn.Module:
        """A copy for ONNX: vectors as `obs`, and each image by the name of its group."""
        return _OnnxCNNModel(self, verbose).eval()

    def _get_obs_dim(
        self, obs: Observations, obs_groups: Mapping[str, Sequence[str]], obs_set: str
    ) -> tuple[list[str], int]:
        """As in `MLPModel`; keeps what it finds of images."""
        shapes = group_shapes(obs, obs_groups, obs_set)
        images = {group: shape for group, shape in shapes.items() if len(shape) == 4}
        vectors = {group: shape for group, shape in shapes.items() if len(shape) == 2}
        for group in shapes.keys() - images.keys() - vectors.keys():
            raise ConfigError(
                f"observation group '{group}' of '{obs_set}' has the shape {tuple(shapes[group])}; expected "
                "a vector [N, D] or an image [N, C, H, W]."
            )
        if not images:
            raise ConfigError(f"no group of '{obs_set}' is an image [N, C, H, W]; use an MLPModel.")
        self.obs_groups_2d = list(images)
        self.obs_dims_2d = [(shape[2], shape[3]) for shape in images.values()]
        self.obs_channels_2d = [shape[1] for shape in images.values()]
        self.image_dtypes = [obs[group].dtype for group in images]
        return list(vectors), sum(shape[-1] for shape in vectors.values())

    def _get_latent_dim(self) -> int:
        return self.obs_dim + self.cnn_latent_dim


def _as_numbers(pixels: Tensor, dtype: torch.dtype) -> Tensor:
    return pixels.to(dtype) / 255 if pixels.dtype == torch.uint8 else pixels.to(dtype)


class _TorchCNNModel(ExportedModel):
    """Vectors [N, D], not normalised, and images [N, C, H, W] to outputs [N, A]."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.cnns = nn.ModuleList([copy.deepcopy(model.cnns[group]) for group in model.obs_groups_2d])

    def forward(self, obs_1d: Tensor, obs_2d: list[Tensor]) -> Tensor:
        parts = [self.obs_normalizer(obs_1d)]
        for i, cnn in enumerate(self.cnns):
            parts.append(cnn(_as_numbers(obs_2d[i], obs_1d.dtype)))
        return self.deterministic_output(self.mlp(torch.cat(parts, -1)))


class _OnnxCNNModel(OnnxModel):
    """Vectors [N, D], not normalised, and images [N, C, H, W] to outputs [N, A]."""

    def __init__(self, model: Any, verbose: bool) -> None:
        super().__init__(model, verbose)
        self.cnns = nn.ModuleList([copy.deepcopy(model.cnns[group]) for group in model.obs_groups_2d])
        self.obs_groups_2d, self.obs_dims_2d = model.obs_groups_2d, model.obs_dims_2d
        self.obs_channels_2d, self.obs_dim_1d = model.obs_channels_2d, model.obs_dim
        self.image_dtypes = model.image_dtypes

    def forward(self, obs_1d: Tensor, *obs_2d: Tensor) -> Tensor:
        images = [_as_numbers(pixels, obs_1d.dtype) for pixels in obs_2d]
        encoded = [cnn(image) for cnn, image in zip(self.cnns, images, strict=True)]
        latent = torch.cat([self.obs_normalizer(obs_1d), *encoded], -1)
        return self.deterministic_output(self.mlp(latent))

    def get_dummy_inputs(self, batch_size: int = 1) -> tuple[Tensor, ...]:
        shapes = zip(self.obs_channels_2d, self.obs_dims_2d, self.image_dtypes, strict=True)
        images = [torch.zeros(batch_size, c, *size, dtype=dtype) for c, size, dtype in shapes]
        return *super().get_dummy_inputs(batch_size), *images

    @property
    def input_names(self) -> list[str]:
        return ["obs", *self.obs_groups_2d]
