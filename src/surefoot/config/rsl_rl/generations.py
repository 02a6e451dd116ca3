"""A configuration of any generation of RSL-RL, 1.0.2 to 5.x, in the form of 5.5.1.

| generation | form |
|---|---|
| 1.0.2 | `runner`, `policy`, `algorithm`; class names in `runner` |
| 2.x | flat; `policy`; `empirical_normalization` |
| 3.x | and `obs_groups` with the set `policy`; `actor_obs_normalization`, `state_dependent_std` |
| 4.x | `actor` and `critic`, or `student` and `teacher`; `stochastic`, `init_noise_std` |
| 5.x | `distribution_cfg` in place of those |
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from surefoot.config.advice import SurefootWarning
from surefoot.config.rsl_rl import known
from surefoot.config.rsl_rl.policies import (
    NOISE,
    Section,
    distribution,
    flatten_runner,
    is_own,
    policy_class,
    split_policy,
)
from surefoot.config.rsl_rl.unset import copied, drop_none
from surefoot.errors import ConfigError, MissingKeyError

_OLD_DEFAULTS = {
    "num_learning_epochs": 1,
    "num_mini_batches": 1,
    "gamma": 0.998,
    "entropy_coef": 0.0,
    "schedule": "fixed",
}
"""Of PPO before 3.0, where they differ from today's."""


def modernize(
    train_cfg: Mapping[str, Any], obs: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], list[str]]:
    """`train_cfg` in the form of RSL-RL 5.5.1, and one line for each thing that was changed.

    The argument is never changed; what is no container (classes, functions, tensors) is shared with it. In
    the sections, `{}` and the MISSING of dataclasses, Isaac Lab and OmegaConf count as not set, so does None
    where it is not a value of its own, and tuples become lists. Keys at the top level that nothing here reads
    stay as they are: clients keep their own there. What this returns comes back equal to itself.

    Args:
        train_cfg: Of any generation.
        obs: The observation groups that the environment gives, by name; with them it is checked that
            nothing is missing that a run needs.

    Raises:
        ConfigError: A policy class that nobody has.
        UnknownKeyError: A key that the class it is for does not take (a TypeError, as in RSL-RL).
        MissingKeyError: With `obs`, a key that a run needs is missing (a KeyError, as in RSL-RL).
    """
    if not isinstance(train_cfg, Mapping):
        raise ConfigError(f"expected a configuration mapping, got {type(train_cfg).__name__}.")
    notes: list[str] = []
    cfg = copied(train_cfg)
    flatten_runner(cfg, notes)
    known.check_top_level(cfg)
    is_before_3 = "policy" in cfg and "obs_groups" not in cfg
    normalizes = cfg.pop("empirical_normalization", None)
    if normalizes is not None:
        names = [name for name in ("actor", "critic", "student", "teacher") if name in cfg]
        if names or not is_own(cfg.get("policy", {})):
            names = names or policy_class(cfg.get("policy", {})).models
            notes.append(
                f"empirical_normalization -> {' and '.join(f'{n}.obs_normalization' for n in names)}"
            )
    split_policy(cfg, normalizes, notes)
    _name_algorithm(cfg, notes)
    for name in ("actor", "critic", "student", "teacher"):
        if name in cfg:
            _modernize_model(cfg[name], name, normalizes, notes)
    _modernize_algorithm(cfg, is_before_3, notes)
    # of a TensorDict, only `keys` are the names
    offered = None if obs is None else list(obs.keys())
    _modernize_groups(cfg, offered, notes)
    if offered is not None:
        _check_needs(cfg)
    return cfg, notes


# ------------------------------------------------------------------ models


def _modernize_model(model: Section, name: str, normalizes: bool | None, notes: list[str]) -> None:
    """One of the sections `actor`, `critic`, `student`, `teacher`, in place."""
    if "rnn_hidden_size" in model:
        model.setdefault("rnn_hidden_dim", model.pop("rnn_hidden_size"))
        notes.append(f"{name}.rnn_hidden_size -> {name}.rnn_hidden_dim")
    drop_none(model, (*known.MLP, *known.RNN, *known.CNN, *NOISE))
    if "class_name" not in model:
        inferred = "RNNModel" if "rnn_type" in model else "CNNModel" if "cnn_cfg" in model else "MLPModel"
        model["class_name"] = inferred
        notes.append(f"{name}.class_name is not given: {inferred}")
    kind = known.short_name(model["class_name"])
    if kind == "MLPModel" and "rnn_type" in model:
        kind = model["class_name"] = "RNNModel"
        notes.append(f"{name}.class_name MLPModel -> RNNModel, since {name}.rnn_type is given")
    if kind not in ("RNNModel", None) and "rnn_type" not in model:
        # mjlab gives the sizes of a memory that there is not
        idle = [key for key in ("rnn_hidden_dim", "rnn_num_layers") if model.pop(key, None) is not None]
        notes.extend(f"{name}.{key} has no effect with {kind}" for key in idle)
    _modernize_noise(model, name, notes)
    if name == "actor" and kind in known.MODELS and "distribution_cfg" not in model:
        model["distribution_cfg"] = distribution({}, 1.0)
        notes.append(
            "actor.distribution_cfg is not given, and PPO needs it: GaussianDistribution, init_std 1.0"
        )
    if normalizes is not None:
        model.setdefault("obs_normalization", bool(normalizes))
    if kind in known.MODELS:
        known.check_keys(model, name, known.MODELS[kind], kind)
    _check_distribution(model, name)


def _check_distribution(model: Section, name: str) -> None:
    cfg = model.get("distribution_cfg")
    if not isinstance(cfg, dict):
        return
    if "class_name" not in cfg:
        raise ConfigError(
            f"{name}.distribution_cfg has no class_name; expected {', '.join(known.DISTRIBUTIONS)} or a "
            "class of your own."
        )
    kind = known.short_name(cfg["class_name"])
    if kind in known.DISTRIBUTIONS:
        drop_none(cfg, known.DISTRIBUTIONS[kind])
        known.check_keys(cfg, f"{name}.distribution_cfg", known.DISTRIBUTIONS[kind], kind)


def _modernize_noise(model: Section, name: str, notes: list[str]) -> None:
    """4.x: `stochastic` and the keys beside it."""
    noise = {key: model.pop(key) for key in NOISE if key in model}
    if not noise:
        return
    if "distribution_cfg" in model:
        notes.extend(f"{name}.{key} is not used: there is {name}.distribution_cfg" for key in noise)
    elif noise.get("stochastic", True):
        model["distribution_cfg"] = distribution(noise, 1.0)
        notes.extend(f"{name}.{key} -> {name}.{NOISE[key]}" for key in noise)
    else:
        notes.extend(
            f"{name}.{key} -> no {name}.distribution_cfg, since it is not stochastic" for key in noise
        )


# ------------------------------------------------------------------ algorithm and observation groups


def _name_algorithm(cfg: Section, notes: list[str]) -> None:
    if "algorithm" not in cfg and not any(name in cfg for name in known.SECTIONS[1:]):
        return
    algorithm = cfg.setdefault("algorithm", {})
    if algorithm.get("class_name") is None:
        algorithm["class_name"] = "Distillation" if "student" in cfg else "PPO"
        notes.append(f"algorithm.class_name is not given: {algorithm['class_name']}")


def _modernize_algorithm(cfg: Section, is_before_3: bool, notes: list[str]) -> None:
    algorithm = cfg.get("algorithm")
    if algorithm is None:
        return
    drop_none(algorithm, (*known.PPO, *known.DISTILLATION, "amp_cfg"))
    symmetry = algorithm.get("symmetry_cfg")
    if isinstance(symmetry, dict) and symmetry.get("data_augmentation_func") is None:
        del algorithm["symmetry_cfg"]
        warnings.warn(
            "algorithm.symmetry_cfg has no data_augmentation_func: symmetry is off. Name a function there, "
            "as package.module:function, or leave symmetry_cfg out.",
            SurefootWarning,
            stacklevel=3,
        )
    kind = known.short_name(algorithm["class_name"])
    if kind == "Distillation":
        for key in [k for k in ("rnd_cfg", "symmetry_cfg") if algorithm.get(k)]:
            raise ConfigError(f"algorithm.{key} is for PPO; Distillation does not take it: leave it out.")
        # RSL-RL takes and ignores whatever else belongs to PPO
        for key in [k for k in algorithm if k in known.PPO and k not in known.DISTILLATION]:
            del algorithm[key]
            notes.append(f"algorithm.{key} has no effect with Distillation")
    if kind in known.ALGORITHMS:
        known.check_keys(algorithm, "algorithm", known.ALGORITHMS[kind], kind)
    if is_before_3 and kind == "PPO":
        notes.extend(
            f"algorithm.{key} is not given: today's default counts; before RSL-RL 3.0 it was {old!r}"
            for key, old in _OLD_DEFAULTS.items()
            if key not in algorithm
        )


def _modernize_groups(cfg: Section, offered: list[str] | None, notes: list[str]) -> None:
    groups = cfg.setdefault("obs_groups", {})
    for name, value in groups.items():
        if isinstance(value, str):
            groups[name] = [value]
            notes.append(f"obs_groups.{name} = {value!r} -> [{value!r}]")
        elif not isinstance(value, list):
            raise ConfigError(f"obs_groups.{name} = {value!r}: expected a list of observation groups.")
    first, second = ("student", "teacher") if "student" in cfg else ("actor", "critic")
    if "policy" not in groups or first not in cfg or first in groups:
        return
    cfg["obs_groups"] = {first if name == "policy" else name: value for name, value in groups.items()}
    notes.append(f"obs_groups.policy -> obs_groups.{first}")
    # before 4.0 a set that is not named was the policy's
    others = [second, "rnd_state"] if "rnd_cfg" in cfg.get("algorithm", {}) else [second]
    for name in others:
        if offered is not None and name not in groups and name not in offered:
            cfg["obs_groups"][name] = list(groups["policy"])
            notes.append(f"obs_groups.{name} is not given: {groups['policy']}, as for the policy")


def _check_needs(cfg: Mapping[str, Any]) -> None:
    models = {
        "PPO": ("actor", "critic"),
        "PPOAMP": ("actor", "critic"),
        "Distillation": ("student", "teacher"),
    }
    kind = known.short_name(cfg["algorithm"]["class_name"]) if "algorithm" in cfg else None
    needed = () if "policy" in cfg else models.get(kind or "", ())
    for key in ("num_steps_per_env", "save_interval", "algorithm", *needed):
        if key not in cfg:
            raise MissingKeyError(f"the configuration has no '{key}', which {kind or 'every run'} needs.")
