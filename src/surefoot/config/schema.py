"""The configuration of a run, composed of those that stand beside the classes they configure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Len

from surefoot.algorithm.config import PPOConfig
from surefoot.errors import ConfigError, did_you_mean
from surefoot.field_checks import Checked
from surefoot.networks.config import ActorConfig, CriticConfig

PositiveInt = Annotated[int, Ge(1)]


@dataclass(frozen=True)
class EnvConfig(Checked):
    """How environments are made and how their rewards reach the algorithm."""

    backend: Literal["auto", "sync", "async", "envpool"] = "auto"
    """Gymnasium tasks: environments in this process (`sync`), in worker processes (`async`), or EnvPool's
    environment of that id, in threads of its own (`envpool`; `pip install 'surefoot[envs]'`). `auto`:
    Gymnasium's own vectorised version where there is one, else `async` where the environment is slow.
    `surefoot check TASK` measures which is fastest."""
    restart_workers: bool = False
    """A worker process (backend `async`) that dies or raises is started again, with a new environment: the
    row that was lost is not trained on, the episode counts as cut off, and `Data/restarts` counts. Switch on
    where a simulator crashes now and then. Eleven crashes of one environment without a finished episode in
    between still stop the run."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the task (`gymnasium.make(id, **kwargs)`, or your factory's)."""
    reward_clip: Annotated[float, Gt(0)] | None = None
    """Rewards are clipped to ± this before they are scaled; null: not clipped. Lower: an outlier does less
    harm, and real differences above it are lost. Logged rewards stay the environment's."""
    reward_scaling: bool = False
    """Divide rewards by the running deviation of the discounted return. Switch on where returns are far from
    size 1; logged rewards stay the environment's."""
    reward_scale: Annotated[float, Gt(0), Le(1e6)] = 1.0
    """Multiply rewards by this constant, instead of `reward_scaling`; logged rewards stay the
    environment's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reward_scaling and self.reward_scale != 1.0:
            raise ConfigError(
                f"reward_scaling (true) and reward_scale ({self.reward_scale}) both scale rewards; keep one."
            )


@dataclass(frozen=True)
class TrainConfig(Checked):
    """Everything that decides a run, apart from the task."""

    num_envs: PositiveInt = 4096
    """Environments stepped together, over all processes. Raise: more samples per iteration and smoother
    gradients, until memory or the simulator is full. Lower: more updates per sample."""
    num_steps_per_env: PositiveInt = 24
    """Steps per environment in each rollout. Raise: longer credit assignment without the critic, older
    samples. Lower: more frequent updates that lean on the critic."""
    max_iterations: PositiveInt = 1500
    """Iterations of the whole run, and the horizon of every schedule; `--iterations`, `--steps` and
    `--minutes` stop earlier and leave the schedules as they are."""
    nproc: PositiveInt = 1
    """Processes that `surefoot train` starts; `num_envs` is divided among them."""
    num_threads: PositiveInt | None = None
    """CPU threads of PyTorch in each process. null: 1 for small networks (up to about 256-128-64), where more
    threads cost more than they bring; else all cores."""
    network: Literal["separate", "shared"] = "separate"
    """Actor and critic as two networks, or one trunk with two heads (`shared`: sizes come from `actor`)."""
    obs_groups: dict[str, Annotated[list[str], Len(1)]] | None = None
    """Observation groups that each network reads, such as `{actor: [policy], critic: [policy,
    privileged]}`. null: the group of that name, else `policy`, else (Gymnasium Dict spaces) all."""
    actor: ActorConfig = field(default_factory=ActorConfig)
    """The policy network."""
    critic: CriticConfig = field(default_factory=CriticConfig)
    """The value network."""
    algorithm: PPOConfig = field(default_factory=PPOConfig)
    """PPO."""
    env: EnvConfig = field(default_factory=EnvConfig)
    """The environments."""
    extensions: list[dict[str, Any]] = field(default_factory=list)
    """Extensions in the order in which they fold the reward: `[{class_name: NAME or package.module:Class,
    ...}]`; the other keys are its constructor's."""
    hooks: list[dict[str, Any]] = field(default_factory=list)
    """Hooks of the training loop: `[{class_name: package.module:Class, ...}]`; the other keys are its
    constructor's."""
    logger: Literal["tensorboard", "wandb", "none"] | list[Literal["tensorboard", "wandb"]] = "tensorboard"
    """Where metrics go besides `metrics.jsonl`: one name or a list."""
    experiment_name: str | None = None
    """Folder of the run under `runs/`, and the project of wandb. null: the task's name."""
    run_name: str | None = None
    """Appended to the name of the run's directory."""
    seed: Annotated[int, Ge(0)] = 1
    """Every random stream (weights, actions, shuffling, environments, extensions, evaluation) derives from
    it."""
    save_interval: Annotated[int, Ge(0)] = 50
    """Iterations between checkpoints; 0: only at the end."""
    keep_checkpoints: PositiveInt = 5
    """Newest `model_<iteration>.pt` files that are kept, besides `best.pt` and `last.pt`."""
    eval_interval: PositiveInt | None = None
    """Iterations between evaluations (deterministic policy, separate environments); null: only at the end."""
    eval_episodes: Annotated[int, Ge(0)] = 100
    """Episodes per evaluation; 0: none at the end. Raise: a steadier mean, slower."""
    on_nonfinite: Literal["raise", "quarantine"] = "raise"
    """A NaN or infinity from an environment: stop and name it, or set that environment aside until its
    next reset (`quarantine`, counted in `Data/quarantined`)."""
    on_skipped: Literal["stop", "rollback"] = "stop"
    """Many updates in a row that would have made the weights non-finite: stop, or return once to the weights
    of the last iteration without such an update, at half the learning rate (`rollback`)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        networks = ("actor", "critic")
        for name in self.obs_groups or ():
            if name not in networks:
                raise ConfigError(
                    f"obs_groups.{name}: expected actor or critic.{did_you_mean(name, networks)}"
                )
        if self.num_envs % self.nproc:
            raise ConfigError(f"num_envs ({self.num_envs}) must be a multiple of nproc ({self.nproc}).")
        rows = self.num_envs * self.num_steps_per_env
        batches = self.algorithm.num_batches(rows)
        if batches > rows:
            raise ConfigError(
                f"algorithm.num_mini_batches ({batches}) is more than the {rows} samples of a rollout "
                f"(num_envs {self.num_envs} x num_steps_per_env {self.num_steps_per_env}); lower it."
            )
        length = self.algorithm.sequence_length
        if length is not None and (self.actor.rnn_type or self.critic.rnn_type):
            sequences = self.num_envs * -(-self.num_steps_per_env // length)
            if sequences < batches:
                raise ConfigError(
                    f"algorithm.sequence_length ({length}) leaves {sequences} sequences for {batches} "
                    "mini-batches; shorten it or lower num_mini_batches."
                )
