"""Configuration of PPO; the keys follow RSL-RL's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Interval, Le

from surefoot.algorithm.schedules import LARGEST_VALUE, ScheduleConfig
from surefoot.errors import ConfigError
from surefoot.field_checks import Checked

LARGEST_RATE = 1.0
"""A larger step moves every weight by more than its own size, and the networks overflow."""
Rate = Annotated[float, Gt(0), Le(LARGEST_RATE)]
Weight = Annotated[float, Ge(0), Le(LARGEST_VALUE)]
"""Of a term of the loss or of the reward."""


@dataclass(frozen=True)
class PPOConfig(Checked):
    """Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347)."""

    class_name: Literal["PPO", "PPOAMP"] = "PPO"
    """The algorithm; `PPOAMP` is PPO with a style reward from motion data, set up in `amp_cfg`."""
    policy_objective: str = "clip"
    """`clip` (PPO-Clip), `penalty` (PPO-Penalty, adaptive β), or `package.module:Class` of your own
    Objective."""
    num_learning_epochs: Annotated[int, Ge(1)] = 5
    """Passes over each rollout. Raise: more learning per sample, and more risk of leaving the trust region
    (watch `Loss/kl`). Lower: steadier, slower."""
    num_mini_batches: Annotated[int, Ge(1)] | None = None
    """Mini-batches per epoch; 4 unless `mini_batch_size` is given. Raise: more, noisier steps."""
    mini_batch_size: Annotated[int, Ge(1)] | None = None
    """Rows per mini-batch, over all processes; instead of `num_mini_batches`."""
    learning_rate: Annotated[float, Ge(0), Le(LARGEST_RATE)] = 1e-3
    """Adam's step size (the initial one, with a schedule). Raise: faster until `Loss/kl` and
    `Loss/clip_fraction` grow. Lower: steadier, slower; 0: the weights stay, for a look at what is
    collected."""
    critic_learning_rate: Rate | None = None
    """Step size of the critic, when the networks are separate; keeps its ratio to `learning_rate`. null: the
    same."""
    schedule: Literal["adaptive", "fixed", "constant", "linear", "cosine"] | ScheduleConfig = "adaptive"
    """Learning rate over time: `adaptive` follows the KL, `fixed` (also `constant`) never moves, `linear` and
    `cosine` fall to 0 at `max_iterations`; or a schedule in full, `{type: linear, final: 1e-4}`."""
    desired_kl: float | None = 0.01
    """Target of the `adaptive` schedule, per mini-batch. Raise: larger policy steps. Must be above 0
    there."""
    max_kl: Annotated[float, Gt(0)] | None = None
    """Above this KL of a mini-batch the rest of the iteration's mini-batches change nothing; null: no limit.
    Lower: shorter policy steps, more of each rollout unused (`Loss/stopped_updates`)."""
    lr_bounds: tuple[Rate, Rate] = (1e-5, 1e-2)
    """Bounds of the `adaptive` learning rate."""
    clip_param: Annotated[float, Gt(0)] = 0.2
    """ε of the clipped ratio and of the clipped value loss. Raise: larger policy changes. Lower: steadier."""
    clip_schedule: ScheduleConfig | None = None
    """`clip_param` over time; null: constant."""
    kl_target: Annotated[float, Gt(0)] = 0.01
    """PPO-Penalty: the KL per iteration that β steers to."""
    kl_beta: Annotated[float, Interval(ge=1e-4, le=1e4)] = 1.0
    """PPO-Penalty: β at the start."""
    value_loss_coef: Weight = 1.0
    """Weight of the value loss, the mean squared error without ½ (half of another trainer's `vf_coef`).
    Matters with a shared trunk and for joint gradient clipping."""
    value_loss: Literal["clipped", "mse", "huber"] | None = None
    """Form of the value loss; null: by `use_clipped_value_loss`."""
    use_clipped_value_loss: bool = True
    """`clipped` value loss if true, else `mse`; read where `value_loss` is null."""
    huber_delta: Annotated[float, Gt(0)] = 1.0
    """Where the Huber loss turns from square to linear, in units of the return. Lower: outliers count
    less."""
    entropy_coef: Weight = 0.0
    """Weight of the entropy bonus. Raise: explores longer; too high and `Policy/mean_std` grows without
    end."""
    entropy_schedule: ScheduleConfig | None = None
    """`entropy_coef` over time; null: constant."""
    gamma: Annotated[float, Interval(ge=0, le=1)] = 0.99
    """Discount per environment step. The horizon is about 1/(1-γ) steps. Raise: longer foresight, noisier
    values."""
    lam: Annotated[float, Interval(ge=0, le=1)] = 0.95
    """λ of generalised advantage estimation: 0 trusts the critic, 1 the observed return."""
    max_grad_norm: Annotated[float, Gt(0), Le(1e12)] = 1.0
    """Gradients are scaled down to this norm. Lower: steadier, slower."""
    grad_clip: Literal["separate", "joint"] = "separate"
    """Clip actor and critic each on its own, or jointly; a shared trunk is always joint."""
    normalize_advantage_per_mini_batch: bool = False
    """Normalise advantages in each mini-batch rather than once over the rollout."""
    recompute_advantages: bool = False
    """Recompute values and advantages before each epoch after the first (Andrychowicz et al. 2021)."""
    optimizer: Literal["adam", "adamw", "sgd", "rmsprop"] = "adam"
    """Update rule."""
    sequence_length: Annotated[int, Ge(1)] | None = None
    """Recurrent policies: steps of a training sequence, at most; episodes' ends cut it shorter. null: the
    whole rollout, or with few environments so much that each mini-batch gets sixteen. Raise, with larger
    mini-batches: learns to remember for longer. Lower: steadier gradients, faster."""
    burn_in: Annotated[int, Ge(0)] = 0
    """Recurrent policies: steps before each sequence that bring its memory up to date and are not themselves
    learned from (Kapturowski et al. 2019). Raise: fresher memory, more time."""
    enable_aux_loss: bool = False
    """Train what predicts: `actor.estimator`, and networks of your own that have `aux_losses(batch, out)`."""
    aux_loss_coef: Weight = 1.0
    """Weight of those losses, of the estimator the mean squared error. Raise: better predictions, slower
    policy where they share layers."""
    rnd_cfg: dict[str, Any] | None = None
    """Random network distillation, a bonus for new observations: `{weight: 0.1, ...}`, keys as in
    `surefoot.extensions.rnd:RND`; null: none. Switch on where rewards are too rare to be found by chance."""
    symmetry_cfg: dict[str, Any] | None = None
    """Left-right symmetry of the task: `{use_data_augmentation: true, ...}` learns from mirrored samples too,
    and `{use_mirror_loss: true, mirror_loss_coeff: 1.0}` draws the policy to its mirror image; keys as in
    `surefoot.extensions.symmetry:Symmetry`. null: none."""
    amp_cfg: dict[str, Any] | None = None
    """Adversarial motion priors, for class_name `PPOAMP`: `{dataset: package.module:function, ...}`, keys as
    in `surefoot.extensions.amp.config:AMPConfig`. A reward for moving as in motion clips."""
    use_mixed_precision: bool = False
    """Run the networks' bodies in bfloat16; heads, probabilities, losses and normalisers stay float32. Faster
    on accelerators with large networks, seldom on a CPU."""

    compile: Literal["auto", "off", "default", "cudagraph"] | bool = "auto"
    """torch.compile of the mini-batch: `auto`: where a compiler is there and the run is long enough to repay
    compiling; `off` (false), `default` (true), or `cudagraph` (on a GPU, also of acting and GAE, without the
    time to launch each kernel). Results are the same up to rounding. Where something cannot be compiled, a
    line says why and the run goes on without. `off`: bit for bit the same results on every machine of a
    kind, and no minute of compiling."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.class_name == "PPOAMP" and self.amp_cfg is None:
            raise ConfigError(
                "class_name is PPOAMP, which needs amp_cfg: {dataset: package.module:function, ...}."
            )
        if self.class_name == "PPO" and self.amp_cfg is not None:
            raise ConfigError("amp_cfg is set, but class_name is PPO; set class_name to PPOAMP.")
        if self.num_mini_batches is not None and self.mini_batch_size is not None:
            raise ConfigError(
                f"num_mini_batches ({self.num_mini_batches}) and mini_batch_size ({self.mini_batch_size}) "
                "are both set and say the same thing twice; keep one."
            )
        if self.is_adaptive and not (self.desired_kl and self.desired_kl > 0):
            raise ConfigError(f"desired_kl is {self.desired_kl}; schedule 'adaptive' needs a number above 0.")
        if self.is_adaptive and self.policy_objective == "penalty":
            raise ConfigError(
                "policy_objective 'penalty' and schedule 'adaptive' both steer by the KL; set schedule to "
                "'fixed', 'linear' or 'cosine'."
            )
        if self.learning_rate == 0 and self.critic_learning_rate is not None:
            raise ConfigError(
                f"critic_learning_rate ({self.critic_learning_rate}) keeps its ratio to learning_rate, which "
                "is 0; leave it out, or make learning_rate very small."
            )
        low, high = self.lr_bounds
        if low > high:
            raise ConfigError(f"lr_bounds [{low}, {high}]: the lower bound is above the upper one.")

        largest = self.schedule.largest if isinstance(self.schedule, ScheduleConfig) else 0.0
        if largest > LARGEST_RATE:
            raise ConfigError(
                f"schedule reaches a learning rate of {largest:g}; expected at most {LARGEST_RATE:g}."
            )

    @property
    def compile_mode(self) -> str:
        """`auto`, `off`, `default` or `cudagraph`."""
        return {True: "default", False: "off"}.get(self.compile, self.compile)  # pyright: ignore

    @property
    def is_adaptive(self) -> bool:
        return self.schedule == "adaptive"

    def num_batches(self, num_rows: int) -> int:
        """Mini-batches per epoch for a rollout of `num_rows` = N·T rows (4096 · 24 / 4 = 24,576 rows
        each).
        """
        if self.mini_batch_size is not None:
            return -(-num_rows // self.mini_batch_size)
        return self.num_mini_batches or 4

    def rate_schedule(self) -> ScheduleConfig:
        """The learning rate's schedule in full; `adaptive` starts from a fixed one."""
        if isinstance(self.schedule, ScheduleConfig):
            return self.schedule
        name = "fixed" if self.schedule in ("adaptive", "constant", "fixed") else self.schedule
        return ScheduleConfig(type=name)  # pyright: ignore[reportArgumentType]
