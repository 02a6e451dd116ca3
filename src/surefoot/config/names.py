"""Answers to a key that does not exist: its right place, our word for another trainer's, the nearest name."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterator
from functools import cache
from typing import get_type_hints

from surefoot.config.schema import TrainConfig

OTHER_TRAINERS: dict[str, str | None] = {
    # Stable-Baselines3 and CleanRL
    "gae_lambda": "algorithm.lam",
    "clip_range": "algorithm.clip_param",
    "clip_coef": "algorithm.clip_param",
    "clip_range_vf": "algorithm.use_clipped_value_loss",
    "clip_vloss": "algorithm.use_clipped_value_loss",
    "vf_coef": "algorithm.value_loss_coef",
    "ent_coef": "algorithm.entropy_coef",
    "n_epochs": "algorithm.num_learning_epochs",
    "update_epochs": "algorithm.num_learning_epochs",
    "n_steps": "num_steps_per_env",
    "num_steps": "num_steps_per_env",
    "n_envs": "num_envs",
    "batch_size": "algorithm.mini_batch_size",
    "minibatch_size": "algorithm.mini_batch_size",
    "num_minibatches": "algorithm.num_mini_batches",
    "norm_adv": "algorithm.normalize_advantage_per_mini_batch",
    "normalize_advantage": "algorithm.normalize_advantage_per_mini_batch",
    "target_kl": "algorithm.max_kl",
    "use_sde": "actor.distribution.std_type",
    "sde_sample_freq": "actor.distribution.gsde_interval",
    "lstm_hidden_size": "actor.rnn_hidden_dim",
    "n_lstm_layers": "actor.rnn_num_layers",
    "rnn_hidden_size": "actor.rnn_hidden_dim",
    "features_extractor_class": "actor.class_name",
    "share_cnn_encoders": "critic.cnn",
    "cnn_cfg": "actor.cnn",
    "total_timesteps": "max_iterations",
    "anneal_lr": "algorithm.schedule",
    "net_arch": "actor.hidden_dims",
    "activation_fn": "actor.activation",
    "log_std_init": "actor.distribution.init_std",
    "normalize": "actor.obs_normalization",
    "norm_obs": "actor.obs_normalization",
    "norm_reward": "env.reward_scaling",
    "env_kwargs": "env.kwargs",
    # RSL-RL, its older layouts, legged_gym and the like
    "policy": "actor",
    "runner": "num_steps_per_env",
    "actor_hidden_dims": "actor.hidden_dims",
    "critic_hidden_dims": "critic.hidden_dims",
    "init_noise_std": "actor.distribution.init_std",
    "noise_std_type": "actor.distribution.std_type",
    "state_dependent_std": "actor.distribution.std_type",
    "distribution_cfg": "actor.distribution",
    "empirical_normalization": "actor.obs_normalization",
    "actor_obs_normalization": "actor.obs_normalization",
    "critic_obs_normalization": "critic.obs_normalization",
    "lr_schedule": "algorithm.schedule",
    "lr_scheduler": "algorithm.schedule",
    "lr_decay": "algorithm.schedule",
    "lr": "algorithm.learning_rate",
    "actor_lr": "algorithm.learning_rate",
    "critic_lr": "algorithm.critic_learning_rate",
    "runner_class_name": "algorithm.class_name",
    "wandb_project": "experiment_name",
    "neptune_project": "experiment_name",
    "resume": None,
    "load_run": None,
    "load_checkpoint": None,
    "device": None,
    # IsaacGymEnvs / rl_games
    "e_clip": "algorithm.clip_param",
    "horizon_length": "num_steps_per_env",
    "mini_epochs": "algorithm.num_learning_epochs",
    "critic_coef": "algorithm.value_loss_coef",
    "tau": "algorithm.lam",
    "grad_norm": "algorithm.max_grad_norm",
    "kl_threshold": "algorithm.desired_kl",
    "num_actors": "num_envs",
    "max_epochs": "max_iterations",
}
"""Another trainer's key, and ours; None: no key of ours."""

_ONE_OWNER = "The learning rate has one owner, 'algorithm.schedule' (adaptive, fixed, linear, cosine)."
NOTES: dict[str, str] = {
    "clip_range_vf": "The value clip has the same range as 'algorithm.clip_param'.",
    "vf_coef": "Ours is vf_coef/2 where the other value loss has a factor ½ (CleanRL, baselines), and "
    "vf_coef unchanged where it has none (SB3).",
    "batch_size": "It counts rows of one mini-batch over all processes.",
    "norm_adv": "Advantages are always normalised, over the rollout or per mini-batch.",
    "normalize_advantage": "Advantages are always normalised, over the rollout or per mini-batch.",
    "target_kl": "It ends an iteration's updates; SB3's limit is 1.5 times its `target_kl`.",
    "use_sde": "Set it to 'gsde'.",
    "share_cnn_encoders": "Set it to 'shared'.",
    "total_timesteps": "It is total_timesteps / (num_envs x num_steps_per_env).",
    "anneal_lr": f"{_ONE_OWNER} anneal_lr is schedule 'linear'.",
    "net_arch": "And 'critic.hidden_dims'.",
    "log_std_init": "It is exp(log_std_init).",
    "normalize": "And 'critic.obs_normalization', 'env.reward_scaling'.",
    "norm_obs": "And 'critic.obs_normalization'.",
    "policy": "And 'critic'; each has its own section.",
    "runner": "The runner's keys stand at the top level.",
    "empirical_normalization": "And 'critic.obs_normalization'.",
    "lr_schedule": _ONE_OWNER,
    "lr_scheduler": _ONE_OWNER,
    "lr_decay": _ONE_OWNER,
    "resume": "Use `surefoot train --resume RUN`.",
    "load_run": "Use `surefoot train --resume RUN`.",
    "load_checkpoint": "Use `surefoot train --resume RUN`.",
    "device": "Use `--device`.",
    "critic_coef": "Ours is critic_coef/2; rl_games halves its value loss.",
}
"""What to know when carrying the value over."""

_RATE_SCHEDULE = re.compile(
    r"(^|_)(lr|learning_rate)_.*(sched|decay|anneal|warm)|(sched|decay|anneal|warm).*_(lr|learning_rate)(_|$)"
)
"""A second owner of the learning rate, whatever it is called."""


def section_types(cls: type) -> Iterator[tuple[str, type]]:
    """The fields of a config class that are always a section of their own."""
    hints = get_type_hints(cls)
    return (
        (f.name, hints[f.name]) for f in dataclasses.fields(cls) if dataclasses.is_dataclass(hints[f.name])
    )


@cache
def key_paths(cls: type = TrainConfig, prefix: str = "") -> tuple[str, ...]:
    """Every key with its dotted path, in the order of definition."""
    sections = dict(section_types(cls))
    paths: list[str] = []
    for field in dataclasses.fields(cls):
        paths.append(prefix + field.name)
        if field.name in sections:
            paths.extend(key_paths(sections[field.name], f"{prefix}{field.name}."))
    return tuple(paths)


def unknown_key(path: str, cls: type) -> str:
    """The error line for the key `path`, which the config class `cls` does not have."""
    prefix, _, key = path.rpartition(".")
    start = f"unknown key '{path}'."
    homes = [p for p in key_paths() if p.rpartition(".")[2] == key]
    if homes:
        return f"{start} It belongs at {' or '.join(repr(p) for p in homes)}."
    if key in OTHER_TRAINERS:
        ours = OTHER_TRAINERS[key]
        return " ".join(filter(None, [start, ours and f"Surefoot calls it '{ours}'.", NOTES.get(key)]))
    if _RATE_SCHEDULE.search(key):
        return f"{start} {_ONE_OWNER}"
    siblings = [f.name for f in dataclasses.fields(cls)]
    here = difflib.get_close_matches(key, siblings, n=1)
    elsewhere = difflib.get_close_matches(key, [p.rpartition(".")[2] for p in key_paths()], n=1)
    if here:
        return (
            f"{start} Did you mean '{prefix}.{here[0]}'?" if prefix else f"{start} Did you mean '{here[0]}'?"
        )
    if elsewhere:
        return f"{start} Did you mean '{next(p for p in key_paths() if p.endswith(elsewhere[0]))}'?"
    return f"{start} Known here: {', '.join(siblings)}."
