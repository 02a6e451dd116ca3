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
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from surefoot.config.advice import SurefootWarning
from surefoot.config.rsl_rl import known
from surefoot.errors import ConfigError, MissingKeyError, UnknownKeyError, did_you_mean

Section = dict[str, Any]

_OMEGACONF_MISSING = "???"
_MEANINGFUL_NONE = ("desired_kl",)
_NOISE = {
    "stochastic": "distribution_cfg",
    "init_noise_std": "distribution_cfg.init_std",
    "noise_std_type": "distribution_cfg.std_type",
    "state_dependent_std": "distribution_cfg.class_name",
}
"""Keys of 4.x and before, and what replaced them."""


@dataclass(frozen=True)
class _Policy:
    """What a policy class from before 4.0 was made of."""

    models: tuple[str, str]
    init_std: float
    """Default of `init_noise_std`."""
    is_recurrent: bool = False
    has_images: bool = False


_POLICIES = {
    "ActorCritic": _Policy(("actor", "critic"), 1.0),
    "ActorCriticRecurrent": _Policy(("actor", "critic"), 1.0, is_recurrent=True),
    "ActorCriticCNN": _Policy(("actor", "critic"), 1.0, has_images=True),
    "StudentTeacher": _Policy(("student", "teacher"), 0.1),
    "StudentTeacherRecurrent": _Policy(("student", "teacher"), 0.1, is_recurrent=True),
}
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
        obs: The observation groups that the environment gives, by name; with them it is checked that those
            named in `obs_groups` exist, and that nothing is missing that a run needs.

    Raises:
        ConfigError: A policy class of one's own from before 4.0; a group that does not exist.
        UnknownKeyError: A key that the class it is for does not take (a TypeError, as in RSL-RL).
        MissingKeyError: With `obs`, a key that a run needs is missing (a KeyError, as in RSL-RL).
    """
    if not isinstance(train_cfg, Mapping):
        raise ConfigError(f"expected a configuration mapping, got {type(train_cfg).__name__}.")
    notes: list[str] = []
    cfg = _copied(train_cfg)
    _flatten_runner(cfg, notes)
    known.check_top_level(cfg)
    is_before_3 = "policy" in cfg and "obs_groups" not in cfg
    normalizes = cfg.pop("empirical_normalization", None)
    if normalizes is not None:
        names = [name for name in ("actor", "critic", "student", "teacher") if name in cfg]
        names = names or _policy_class(cfg.get("policy", {})).models
        notes.append(f"empirical_normalization -> {' and '.join(f'{n}.obs_normalization' for n in names)}")
    _split_policy(cfg, normalizes, notes)
    _name_algorithm(cfg, notes)
    for name in ("actor", "critic", "student", "teacher"):
        if name in cfg:
            _modernize_model(cfg[name], name, normalizes, notes)
    _modernize_algorithm(cfg, is_before_3, notes)
    # of a TensorDict, only `keys` are the names
    offered = None if obs is None else list(obs.keys())
    _modernize_groups(cfg, offered, notes)
    if offered is not None:
        _check_needs(cfg, offered)
    return cfg, notes


# ------------------------------------------------------------------ what is set at all


def is_unset(value: Any) -> bool:
    """Whether a value of a section stands for nothing: `{}`, or one of the sentinels for a missing value."""
    if isinstance(value, Mapping):
        return not value
    # by name: Isaac Lab copies configurations deeply, and a copy of a sentinel is not the sentinel
    return (isinstance(value, str) and value == _OMEGACONF_MISSING) or "MISSING" in type(
        value
    ).__name__.upper()


def _copied(train_cfg: Mapping[str, Any]) -> Section:
    cfg: Section = {}
    for key, value in train_cfg.items():
        if key in (*known.SECTIONS, "policy", "runner", "obs_groups"):
            if value is not None and not is_unset(value):
                if not isinstance(value, Mapping):
                    raise ConfigError(f"'{key}' is a {type(value).__name__}; expected a mapping.")
                cfg[key] = _section(value)
        elif not is_unset(value) or (isinstance(value, Mapping) and key not in known.SETTINGS):
            cfg[key] = _copy(value)
    if "policy" in cfg:
        # no key of it had a meaning of its own for None
        cfg["policy"] = {key: value for key, value in cfg["policy"].items() if value is not None}
    return {key: value for key, value in cfg.items() if key not in known.SECTIONS or value}


def _section(value: Any) -> Any:
    """A copy of containers, without what is not set, and with lists for tuples."""
    if isinstance(value, Mapping):
        parts = {key: _section(part) for key, part in value.items() if not is_unset(part)}
        return {key: part for key, part in parts.items() if not is_unset(part)}
    if isinstance(value, (list, tuple)):
        return [_section(part) for part in value]
    return value


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copy(part) for part in value)
    return value


def _drop_none(section: MutableMapping[str, Any], keys: tuple[str, ...]) -> None:
    for key in [k for k, value in section.items() if value is None and k in keys]:
        if key not in _MEANINGFUL_NONE:
            del section[key]


# ------------------------------------------------------------------ before 4.0


def _flatten_runner(cfg: Section, notes: list[str]) -> None:
    runner = cfg.pop("runner", None)
    if runner is None:
        return
    for key, section in (("policy_class_name", "policy"), ("algorithm_class_name", "algorithm")):
        if runner.get(key) is not None:
            cfg.setdefault(section, {}).setdefault("class_name", runner[key])
            notes.append(f"runner.{key} -> {section}.class_name")
        runner.pop(key, None)
    for key, value in runner.items():
        if key in cfg and cfg[key] != value:
            notes.append(f"runner.{key} = {value!r} is not used: at the top level it is {cfg[key]!r}")
    cfg.update({key: value for key, value in runner.items() if key not in cfg})
    notes.append(f"runner: its keys ({', '.join(runner)}) -> top level")


def _policy_class(policy: Mapping[str, Any]) -> _Policy:
    given = policy.get("class_name", "ActorCritic")
    name = known.short_name(given)
    if name not in _POLICIES:
        raise ConfigError(
            f"policy.class_name = {given!r}: expected {', '.join(_POLICIES)}."
            f"{did_you_mean(str(given), _POLICIES)} Since RSL-RL 4.0 actor and critic are two models: name a "
            "class of your own in actor.class_name and critic.class_name."
        )
    return _POLICIES[name]


def _split_policy(cfg: Section, normalizes: bool | None, notes: list[str]) -> None:
    """`policy` as two models."""
    policy = cfg.pop("policy", None)
    if policy is None:
        return
    present = [name for name in known.SECTIONS[1:] if name in cfg]
    if present:
        notes.append(f"policy is not used: {' and '.join(present)} say the same in the newer form")
        return
    kind = _policy_class(policy)
    class_name = policy.pop("class_name", None)
    if "rnn_hidden_size" in policy:
        policy.setdefault("rnn_hidden_dim", policy.pop("rnn_hidden_size"))
    _check_policy_keys(policy)
    moved: dict[str, list[str]] = {}
    first, second = kind.models
    recurrent = {first: kind.is_recurrent, second: kind.is_recurrent and second == "critic"}
    recurrent[second] |= kind.is_recurrent and bool(policy.get("teacher_recurrent"))
    for name in kind.models:
        model: Section = {"class_name": "RNNModel" if recurrent[name] else "MLPModel"}
        takes = {f"{name}_hidden_dims": "hidden_dims", "activation": "activation"}
        takes[f"{name}_obs_normalization"] = "obs_normalization"
        if recurrent[name]:
            takes |= {key: key for key in known.RNN}
        if kind.has_images and f"{name}_cnn_cfg" in policy:
            model["class_name"] = "CNNModel"
            takes[f"{name}_cnn_cfg"] = "cnn_cfg"
        for old, new in takes.items():
            if old in policy:
                model[new] = _section(policy[old])
                moved.setdefault(old, []).append(f"{name}.{new}")
        model.setdefault("obs_normalization", bool(normalizes))
        cfg[name] = model
    cfg[first]["distribution_cfg"] = _distribution(policy, kind.init_std)
    targets = " and ".join(f"{name} ({cfg[name]['class_name']})" for name in kind.models)
    notes.append(f"policy, a {class_name or 'ActorCritic'} -> {targets}")
    moved |= {old: [f"{first}.{new}"] for old, new in _NOISE.items() if old in policy}
    for old in policy:
        if old in moved:
            notes.append(f"policy.{old} -> {' and '.join(moved[old])}")
        elif old != "teacher_recurrent":
            notes.append(f"policy.{old} has no effect with {class_name or 'ActorCritic'}")


def _check_policy_keys(policy: Mapping[str, Any]) -> None:
    names = ("actor", "critic", "student", "teacher")
    parts = [f"{name}_{part}" for name in names for part in ("hidden_dims", "obs_normalization", "cnn_cfg")]
    takes = [*parts, "activation", *list(_NOISE)[1:], *known.RNN, "teacher_recurrent"]
    for key in policy:
        if key not in takes:
            raise UnknownKeyError(f"unknown key 'policy.{key}'.{known.nearest(key, takes, 'policy')}")


def _distribution(section: Mapping[str, Any], init_std: float) -> Section:
    """`distribution_cfg` for the keys that it replaced."""
    by_state = bool(section.get("state_dependent_std"))
    return {
        "class_name": "HeteroscedasticGaussianDistribution" if by_state else "GaussianDistribution",
        "init_std": section.get("init_noise_std", init_std),
        "std_type": section.get("noise_std_type", "scalar"),
    }


# ------------------------------------------------------------------ models


def _modernize_model(model: Section, name: str, normalizes: bool | None, notes: list[str]) -> None:
    """One of the sections `actor`, `critic`, `student`, `teacher`, in place."""
    if "rnn_hidden_size" in model:
        model.setdefault("rnn_hidden_dim", model.pop("rnn_hidden_size"))
        notes.append(f"{name}.rnn_hidden_size -> {name}.rnn_hidden_dim")
    _drop_none(model, (*known.MLP, *known.RNN, *known.CNN, *_NOISE))
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
        model["distribution_cfg"] = _distribution({}, 1.0)
        notes.append(
            "actor.distribution_cfg is not given, and PPO needs it: GaussianDistribution, init_std 1.0"
        )
    if normalizes is not None:
        model.setdefault("obs_normalization", bool(normalizes))
    if kind in known.MODELS:
        known.check_keys(model, name, known.MODELS[kind], kind)
    distribution = model.get("distribution_cfg")
    if isinstance(distribution, dict):
        if "class_name" not in distribution:
            raise ConfigError(
                f"{name}.distribution_cfg has no class_name; expected {', '.join(known.DISTRIBUTIONS)} or a "
                "class of your own."
            )
        kind = known.short_name(distribution["class_name"])
        if kind in known.DISTRIBUTIONS:
            _drop_none(distribution, known.DISTRIBUTIONS[kind])
            known.check_keys(distribution, f"{name}.distribution_cfg", known.DISTRIBUTIONS[kind], kind)


def _modernize_noise(model: Section, name: str, notes: list[str]) -> None:
    """4.x: `stochastic` and the keys beside it."""
    noise = {key: model.pop(key) for key in _NOISE if key in model}
    if not noise:
        return
    if "distribution_cfg" in model:
        notes.extend(f"{name}.{key} is not used: there is {name}.distribution_cfg" for key in noise)
    elif noise.get("stochastic", True):
        model["distribution_cfg"] = _distribution(noise, 1.0)
        notes.extend(f"{name}.{key} -> {name}.{_NOISE[key]}" for key in noise)
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
    _drop_none(algorithm, (*known.PPO, *known.DISTILLATION, "amp_cfg"))
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


def _check_needs(cfg: Mapping[str, Any], offered: list[str]) -> None:
    models = {
        "PPO": ("actor", "critic"),
        "PPOAMP": ("actor", "critic"),
        "Distillation": ("student", "teacher"),
    }
    kind = known.short_name(cfg["algorithm"]["class_name"]) if "algorithm" in cfg else None
    for key in ("num_steps_per_env", "save_interval", "algorithm", *models.get(kind or "", ())):
        if key not in cfg:
            raise MissingKeyError(f"the configuration has no '{key}', which {kind or 'every run'} needs.")
    for name, groups in cfg["obs_groups"].items():
        for group in groups:
            if group not in offered:
                raise ConfigError(
                    f"obs_groups.{name} wants the observation group '{group}', which the environment does "
                    f"not give; it has {sorted(offered)}.{did_you_mean(group, offered)}"
                )
