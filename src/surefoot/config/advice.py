"""Warnings at the start of a run: combinations that rarely work, and settings without effect."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from typing import Any

from surefoot.algorithm.schedules import ScheduleConfig
from surefoot.config.schema import TrainConfig

FEW_STEPS = 32
"""A rollout of fewer steps sees little of an episode; with many environments the critic makes up for it."""
FEW_SAMPLES = 2048
LARGE_LEARNING_RATE = 1e-3
LARGE_CLIP = 0.2
_SCHEDULED = {"schedule": "learning_rate", "clip_schedule": "clip_param", "entropy_schedule": "entropy_coef"}


class SurefootWarning(UserWarning):
    """A configuration that can run, and probably does not do what was meant."""


def warn_about(config: TrainConfig) -> None:
    """Give each piece of `advice` as a SurefootWarning."""
    for text in advice(config):
        warnings.warn(text, SurefootWarning, stacklevel=2)


def advice(config: TrainConfig) -> list[str]:
    """One sentence for each thing that looks wrong; empty for a sound configuration."""
    return [*_risks(config), *(f"{key} has no effect {why}." for key, why in _without_effect(config))]


def _risks(config: TrainConfig) -> Iterator[str]:
    alg = config.algorithm
    if (
        alg.policy_objective == "clip"
        and alg.learning_rate > LARGE_LEARNING_RATE
        and alg.clip_param > LARGE_CLIP
    ):
        yield (
            f"algorithm.learning_rate {alg.learning_rate:g} is large together with algorithm.clip_param "
            f"{alg.clip_param:g}: the policy may move too far in one iteration; watch Loss/kl, or lower one "
            f"(usual: {LARGE_LEARNING_RATE:g} with {LARGE_CLIP:g})."
        )
    steps, samples = config.num_steps_per_env, config.num_envs * config.num_steps_per_env
    if steps < FEW_STEPS and samples < FEW_SAMPLES:
        yield (
            f"a rollout of {steps} steps in {config.num_envs} environments is only {samples} samples: raise "
            f"num_steps_per_env (a few dozen or more) or num_envs."
        )
    if config.actor.estimator is not None and not alg.enable_aux_loss:
        yield (
            "actor.estimator is set and nothing trains it: its prediction stays random. Set "
            "algorithm.enable_aux_loss: true."
        )
    size = alg.mini_batch_size
    if size is not None and size > samples:
        yield f"algorithm.mini_batch_size {size} is more than the {samples} samples of a rollout."


def _without_effect(config: TrainConfig) -> Iterator[tuple[str, str]]:
    """Keys that differ from their default where nothing reads them."""
    alg = config.algorithm
    value_loss = alg.value_loss or ("clipped" if alg.use_clipped_value_loss else "mse")
    is_clip = alg.policy_objective == "clip"
    shared = config.network == "shared"
    recurrent = config.actor.rnn_type or config.critic.rnn_type
    predicts = config.actor.estimator or config.actor.class_name or config.critic.class_name
    distribution = config.actor.distribution
    name, gsde = distribution.class_name, distribution.std_type == "gsde"
    backend = config.env.backend
    rules = [
        (alg, "algorithm.huber_delta", value_loss != "huber", f"with value_loss '{value_loss}'"),
        (alg, "algorithm.use_clipped_value_loss", alg.value_loss is not None, "where value_loss is set"),
        (alg, "algorithm.kl_beta", is_clip, "with policy_objective 'clip'"),
        (alg, "algorithm.desired_kl", not alg.is_adaptive, "unless schedule is 'adaptive'"),
        (alg, "algorithm.lr_bounds", not alg.is_adaptive, "unless schedule is 'adaptive'"),
        (alg, "algorithm.sequence_length", not recurrent, "without rnn_type"),
        (alg, "algorithm.burn_in", not recurrent, "without rnn_type"),
        (alg, "algorithm.enable_aux_loss", not predicts, "without actor.estimator or a network of your own"),
        (alg, "algorithm.aux_loss_coef", not alg.enable_aux_loss, "without enable_aux_loss"),
        (config.critic, "critic.rnn_type", shared, "with network 'shared': actor.rnn_type is used"),
        (config.critic, "critic.cnn", shared, "with network 'shared': actor.cnn is used"),
        (distribution, "actor.distribution.init_std", name == "Beta", "with class_name 'Beta'"),
        (distribution, "actor.distribution.std_type", name == "Beta", "with class_name 'Beta'"),
        (distribution, "actor.distribution.gsde_interval", not gsde, "unless std_type is 'gsde'"),
        (alg, "algorithm.critic_learning_rate", shared, "with network 'shared'"),
        (config.critic, "critic.hidden_dims", shared, "with network 'shared': actor.hidden_dims is used"),
        (config.actor, "actor.obs_clip", not config.actor.obs_normalization, "without obs_normalization"),
        (config.critic, "critic.obs_clip", not config.critic.obs_normalization, "without obs_normalization"),
        (config.env, "env.restart_workers", backend in ("sync", "envpool"), f"with env.backend '{backend}'"),
        (config, "eval_interval", config.eval_episodes == 0, "with eval_episodes 0"),
    ]
    for section, path, is_idle, why in rules:
        if is_idle and _differs(section, path.rpartition(".")[2]):
            yield path, why
    yield from _idle_schedule_keys(config)


def _idle_schedule_keys(config: TrainConfig) -> Iterator[tuple[str, str]]:
    alg = config.algorithm
    idle = {"fixed": ("final", "horizon"), "piecewise": ("initial", "final", "horizon")}
    for key, base in _SCHEDULED.items():
        schedule = getattr(alg, key)
        if not isinstance(schedule, ScheduleConfig):
            continue
        for name in idle.get(schedule.type, ()):
            if _differs(schedule, name):
                yield f"algorithm.{key}.{name}", f"with type '{schedule.type}'"
        is_read = base == "learning_rate" and alg.critic_learning_rate is not None  # their ratio
        starts_elsewhere = schedule.points is not None or schedule.initial not in (None, getattr(alg, base))
        if starts_elsewhere and not is_read and _differs(alg, base):
            yield f"algorithm.{base}", f"where algorithm.{key} has a first value of its own"


def _differs(section: Any, name: str) -> bool:
    field = next(f for f in dataclasses.fields(section) if f.name == name)
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return getattr(section, name) != default
