"""Demonstrations: windows of frames from motion clips."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from surefoot.errors import ConfigError
from surefoot.extensions.amp.config import AMPConfig
from surefoot.extensions.amp.loaders import load_clip
from surefoot.importing import import_object

Demonstrations = Sequence[tuple[Tensor, float]]
"""Clips: features [F, D] at the rate of the environment's steps, and how often each is drawn."""


class MotionDataset(nn.Module):
    """Windows of K consecutive frames, each within one clip.

    Args:
        features: Of each clip [F, D], at the rate of the environment's steps.
        weights: How often each clip is drawn, relative to the others.
        num_frames: K >= 2.
        names: Of the clips, for errors.

    Raises:
        ConfigError: naming the clip that is too short, not finite or of another width.
    """

    frames: Tensor
    weights: Tensor
    first: Tensor
    num_starts: Tensor

    def __init__(
        self,
        features: Sequence[Tensor],
        weights: Sequence[float],
        num_frames: int,
        names: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        names = names or [f"clip {i}" for i in range(len(features))]
        if num_frames < 2:
            raise ConfigError(f"num_frames {num_frames}: a window has at least 2 frames.")
        if len(weights) != len(features) or not features:
            raise ConfigError(f"there are {len(features)} motion clips and {len(weights)} weights.")
        if not all(0 <= weight < math.inf for weight in weights) or not any(weights):
            raise ConfigError(f"motion weights {list(weights)} must not be negative or infinite, nor all 0.")
        for name, clip in zip(names, features, strict=True):
            _check_clip(name, clip, features[0], num_frames)
        self.num_frames = num_frames
        lengths = torch.tensor([clip.shape[0] for clip in features])
        # demonstrations are read anew with each run: they are not part of checkpoints
        for key, value in {
            "frames": torch.cat([clip.detach().float() for clip in features]),
            "weights": torch.tensor(weights, dtype=torch.float64),
            "first": lengths.cumsum(0) - lengths,
            "num_starts": lengths - num_frames + 1,
        }.items():
            self.register_buffer(key, value, persistent=False)

    @property
    def num_features(self) -> int:
        """D."""
        return self.frames.shape[1]

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """[count, K, D]: the clip by weight, the start of the window uniform within it."""
        clip = torch.multinomial(self.weights, count, replacement=True, generator=generator)
        draw = torch.rand(count, generator=generator, device=clip.device, dtype=torch.float64)
        start = self.first[clip] + (draw * self.num_starts[clip]).long()
        return self.frames[start.unsqueeze(-1) + torch.arange(self.num_frames, device=start.device)]


def _check_clip(name: str, clip: Tensor, other: Tensor, num_frames: int) -> None:
    if clip.dim() != 2 or clip.shape[1:] != other.shape[1:]:
        raise ConfigError(
            f"motion {name}: features of shape {tuple(clip.shape)}; expected [frames, {other.shape[-1]}]."
        )
    if clip.shape[0] < num_frames:
        raise ConfigError(
            f"motion {name} has {clip.shape[0]} frames, one per environment step; a window needs "
            f"{num_frames}."
        )
    if not clip.isfinite().all():
        frame = int((~clip.isfinite().all(-1)).nonzero()[0])
        raise ConfigError(f"motion {name}: frame {frame} is not finite.")


def load_demonstrations(config: AMPConfig, step_dt: float | None) -> MotionDataset:
    """The demonstrations that the configuration names.

    Args:
        config: Where they come from.
        step_dt: Seconds per environment step; None where it has no meaning.

    Raises:
        ConfigError: naming the key and what is wrong with it.
    """
    if config.motion_files is not None:
        return _from_files(config, config.motion_files, step_dt)
    assert config.dataset is not None
    function = import_object(config.dataset, "dataset")
    if not callable(function):
        raise ConfigError(f'dataset = "{config.dataset}": expected a function of the seconds per step.')
    clips: Any = function(step_dt)
    try:
        features = [torch.as_tensor(x) for x, _ in clips]
        weights = [float(weight) for _, weight in clips]
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f'dataset = "{config.dataset}": expected [(features [F, D], weight), ...] ({error}).'
        ) from error
    return MotionDataset(features, weights, config.num_frames)


def _from_files(config: AMPConfig, files: Sequence[str], step_dt: float | None) -> MotionDataset:
    if step_dt is None:
        raise ConfigError("motion_files need an environment that says how long a step is (step_dt).")
    clips = [load_clip(path, config.joint_names, step_dt) for path in files]
    features = [clip.features(config.features or (), config.joint_names) for clip in clips]
    return MotionDataset(features, config.motion_weights or [1.0] * len(clips), config.num_frames, files)
