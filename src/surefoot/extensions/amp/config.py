"""The keys of `algorithm.amp_cfg`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Interval, Len

from surefoot.algorithm.config import Rate, Weight
from surefoot.errors import ConfigError, did_you_mean
from surefoot.extensions.weight_schedule import WeightSchedule
from surefoot.field_checks import Checked
from surefoot.networks.config import Activation

FORKS = {
    "task_style_lerp": "style_weight, which is 1 - task_style_lerp",
    "task_reward_lerp": "style_weight, which is 1 - task_reward_lerp",
    "amp_task_reward_lerp": "style_weight, which is 1 - amp_task_reward_lerp",
    "amp_reward_scale": "style_reward_scale",
    "amp_reward_coef": "style_reward_scale",
    "amp_discriminator": "hidden_dims, activation, style_reward_scale and style_weight, beside the others",
    "amp_discr_hidden_dims": "hidden_dims",
    "amp_motion_files": "motion_files",
    "amp_replay_buffer_size": "replay_size",
    "disc_obs_buffer_size": "replay_size, in windows rather than steps",
    "num_amp_steps": "num_frames",
}
"""What PPOAMP forks of RSL-RL call it, and ours."""


@dataclass(frozen=True)
class AMPConfig(Checked):
    """Adversarial motion priors (Peng et al. 2021, arXiv:2104.02180).

    Demonstrations come from `dataset` or from `motion_files`.
    """

    dataset: str | None = None
    """`package.module:function`: called with the seconds per environment step, it returns `[(features [F, D],
    weight), ...]`, one entry per clip, with the features that the observation group has."""
    motion_files: Annotated[list[str], Len(1)] | None = None
    """Motion clips, instead of `dataset`; their frame rate becomes that of the environment's steps."""
    motion_weights: list[Annotated[float, Ge(0)]] | None = None
    """How often each clip is drawn, relative to the others; null: alike."""
    joint_names: list[str] | None = None
    """The robot's joints in the order of the observation group; clips are mapped to it by name."""
    features: Annotated[list[str], Len(1)] | None = None
    """What of a clip makes up the observation group, in its order."""
    obs_group: str = "amp"
    """Observation group that the discriminator sees."""
    mask_group: str | None = None
    """Observation group of one number per environment: style counts only where it is above 0.5. null:
    everywhere."""
    num_frames: Annotated[int, Ge(2)] = 2
    """Consecutive frames that the discriminator sees at once; 2 is the transition (s, s'). Raise: judges
    longer motion, and needs longer clips and more memory."""
    hidden_dims: Annotated[list[Annotated[int, Ge(1)]], Len(1)] = field(default_factory=lambda: [512, 256])
    """Widths of the discriminator. Raise: finer judgement, sooner saturated, slower."""
    activation: Activation = "relu"
    """Between its layers."""
    loss_type: Literal["lsgan", "bce", "wgan"] = "lsgan"
    """Least squares to ±1 (`lsgan`), cross-entropy (`bce`) or Wasserstein (`wgan`). Each has its own reward
    of the score d: max(0, 1 - (d-1)²/4); -log(1 - sigmoid(d)), at most 9.21; a sigmoid of d relative to all
    scores."""
    grad_penalty_scale: Weight = 10.0
    """Weight of the squared gradient of the score by the normalised inputs (of its squared distance to 1 for
    `wgan`). Raise: smoother, less certain scores. Lower: sharper ones, until the discriminator saturates and
    the style reward is the same everywhere; do so where scores stay near 0 and accuracies near 1."""
    grad_penalty_on: Literal["demo", "policy", "both", "interpolated"] = "demo"
    """Where that gradient is taken."""
    disc_trunk_weight_decay: Weight = 1e-4
    """Weight decay of the discriminator's hidden layers (the factor of the weight in its gradient)."""
    disc_linear_weight_decay: Weight = 1e-2
    """Weight decay of its last layer. Raise: smaller scores, later saturation."""
    logit_penalty_scale: Weight = 0.0
    """Weight of the mean squared score. Raise: keeps scores from drifting, as `bce` and `wgan` do."""
    input_noise: Weight = 0.0
    """Deviation of noise on the normalised windows that the discriminator learns from. Raise: demonstrations
    that no robot can match exactly are told apart less easily."""
    disc_learning_rate: Rate = 1e-4
    """Adam's step size of the discriminator. Lower where its accuracy stays near 1."""
    disc_max_grad_norm: Annotated[float, Gt(0)] = 1.0
    """Its gradients are scaled down to this norm."""
    disc_update_interval: Annotated[int, Ge(1)] = 1
    """Iterations from one training of the discriminator to the next. Raise: it learns less often."""
    disc_num_epochs: Annotated[int, Ge(1)] = 1
    """Passes over each rollout when it is trained."""
    disc_num_mini_batches: Annotated[int, Ge(1)] = 4
    """Mini-batches per pass."""
    disc_max_batch_size: Annotated[int, Ge(1)] = 4096
    """Windows of the policy in a mini-batch, at most, and as many demonstrations. Lower: faster, noisier."""
    replay_size: Annotated[int, Ge(0)] = 100_000
    """Windows of earlier rollouts that each process keeps on the device, and in checkpoints; 0: none. They
    take replay_size · num_frames · features · 4 bytes: 24 MB for 100,000 pairs of 30 features."""
    replay_share: Annotated[float, Interval(ge=0, lt=1)] = 0.5
    """Of the policy's windows in a mini-batch, the share from the replay buffer. Raise: the discriminator
    forgets less, and follows the present policy less."""
    replay_iterations: Annotated[int, Ge(1)] = 50
    """Iterations that the buffer should span: a random part of each rollout enters it. Raise: longer
    memory."""
    style_reward_scale: Weight = 1.0
    """Factor of the style reward, per environment step; never multiplied by the step's duration. Choose it so
    that `Reward/style` is of the size of `Reward/task`."""
    combination: Literal["lerp", "additive", "multiplicative"] = "lerp"
    """Reward from task t and style s, with w = `style_weight`: (1-w)·t + w·s, t + w·s, or t·(1 - w + w·s).
    The last is for task rewards that are not negative."""
    style_weight: Weight = 0.5
    """w. Raise: more like the demonstrations, less obedient to the task."""
    weight_schedule: dict[str, Any] | None = None
    """`style_weight` over time, in steps of each environment: `{mode: step, final_step, final_value}` or
    `{mode: linear, initial_step, final_step, final_value}`; null: constant."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dataset is not None and self.motion_files is not None:
            raise ConfigError("dataset and motion_files both say where demonstrations come from; keep one.")
        of_files = [name for name in ("motion_weights", "joint_names", "features") if getattr(self, name)]
        if self.motion_files is None and of_files:
            raise ConfigError(f"{of_files[0]} belongs to motion_files, which is not set.")
        if self.motion_files is not None and not self.features:
            raise ConfigError("motion_files needs features, the parts of a clip in the observation group.")
        weights = self.motion_weights
        if weights is not None and len(weights) != len(self.motion_files or ()):
            raise ConfigError(
                f"motion_weights has {len(weights)} numbers for {len(self.motion_files or ())} motion_files."
            )
        style = {
            "style_weight": self.style_weight,
            "weight_schedule.final_value": self.schedule.final_value or 0.0,
        }
        for name, weight in style.items():
            if self.combination != "additive" and weight > 1:
                raise ConfigError(
                    f"{name} {weight} must lie in [0, 1] with combination '{self.combination}'."
                )

    @property
    def schedule(self) -> WeightSchedule:
        """Of `style_weight`."""
        return WeightSchedule.of(self.weight_schedule or {})

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> AMPConfig:
        """From a mapping of a configuration.

        Raises:
            ConfigError: naming the keys that are unknown, of a wrong type or out of their range.
        """
        known = [f.name for f in fields(cls)]
        for key in values:
            if key not in known:
                near = f" Surefoot calls it {FORKS[key]}." if key in FORKS else did_you_mean(key, known)
                raise ConfigError(f"unknown key '{key}'.{near or ' Known: ' + ', '.join(known) + '.'}")
        return cls(**values)
