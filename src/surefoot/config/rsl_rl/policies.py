"""Policies from before RSL-RL 4.0, which held two networks, as two models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from surefoot.config.rsl_rl import known
from surefoot.config.rsl_rl.unset import without_unset
from surefoot.errors import ConfigError, UnknownKeyError, did_you_mean

Section = dict[str, Any]

NOISE = {
    "stochastic": "distribution_cfg",
    "init_noise_std": "distribution_cfg.init_std",
    "noise_std_type": "distribution_cfg.std_type",
    "state_dependent_std": "distribution_cfg.class_name",
}
"""Keys of 4.x and before, and what replaced them."""


EMPIRICAL = "empirical_normalization"


@dataclass(frozen=True)
class PolicyClass:
    """What a policy class from before 4.0 was made of."""

    models: tuple[str, str]
    init_std: float
    """Default of `init_noise_std`."""
    is_recurrent: bool = False
    has_images: bool = False


_POLICIES = {
    "ActorCritic": PolicyClass(("actor", "critic"), 1.0),
    "ActorCriticRecurrent": PolicyClass(("actor", "critic"), 1.0, is_recurrent=True),
    "ActorCriticCNN": PolicyClass(("actor", "critic"), 1.0, has_images=True),
    "StudentTeacher": PolicyClass(("student", "teacher"), 0.1),
    "StudentTeacherRecurrent": PolicyClass(("student", "teacher"), 0.1, is_recurrent=True),
}


def flatten_runner(cfg: Section, notes: list[str]) -> None:
    """What stands under `runner` at the top level, in place."""
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


def policy_class(policy: Mapping[str, Any]) -> PolicyClass:
    """That of a section `policy`.

    Raises:
        ConfigError: Nobody has it.
    """
    given = policy.get("class_name", "ActorCritic")
    name = known.short_name(given)
    if name not in _POLICIES:
        raise ConfigError(
            f"policy.class_name = {given!r}: expected {', '.join(_POLICIES)}."
            f"{did_you_mean(str(given), _POLICIES)} A class of your own is named by its path, "
            "package.module:Class."
        )
    return _POLICIES[name]


def is_own(policy: Mapping[str, Any]) -> bool:
    """Whether a section `policy` names a class of the client's own, by its path or as the class itself."""
    return known.short_name(policy.get("class_name", "ActorCritic")) is None


def split_policy(cfg: Section, normalizes: bool | None, notes: list[str]) -> None:
    """`policy` as two models, in place; `normalizes` is the old setting for both, None: not given.

    One of a class of the client's own stays, with `normalizes` as its `empirical_normalization`.
    """
    policy = cfg.pop("policy", None)
    if policy is None:
        return
    present = [name for name in known.SECTIONS[1:] if name in cfg]
    if present:
        notes.append(f"policy is not used: {' and '.join(present)} say the same in the newer form")
        return
    if is_own(policy):
        cfg["policy"] = {**policy} if normalizes is None else {**policy, EMPIRICAL: normalizes}
        return
    kind = policy_class(policy)
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
                model[new] = without_unset(policy[old])
                moved.setdefault(old, []).append(f"{name}.{new}")
        model.setdefault("obs_normalization", bool(normalizes))
        cfg[name] = model
    cfg[first]["distribution_cfg"] = distribution(policy, kind.init_std)
    targets = " and ".join(f"{name} ({cfg[name]['class_name']})" for name in kind.models)
    notes.append(f"policy ({class_name or 'ActorCritic'}) -> {targets}")
    moved |= {old: [f"{first}.{new}"] for old, new in NOISE.items() if old in policy}
    for old in policy:
        if old in moved:
            notes.append(f"policy.{old} -> {' and '.join(moved[old])}")
        elif old != "teacher_recurrent":
            notes.append(f"policy.{old} has no effect with {class_name or 'ActorCritic'}")


def _check_policy_keys(policy: Mapping[str, Any]) -> None:
    names = ("actor", "critic", "student", "teacher")
    parts = [f"{name}_{part}" for name in names for part in ("hidden_dims", "obs_normalization", "cnn_cfg")]
    takes = [*parts, "activation", *list(NOISE)[1:], *known.RNN, "teacher_recurrent"]
    for key in policy:
        if key not in takes:
            raise UnknownKeyError(f"unknown key 'policy.{key}'.{known.nearest(key, takes, 'policy')}")


def distribution(section: Mapping[str, Any], init_std: float) -> Section:
    """`distribution_cfg` for the keys that it replaced."""
    by_state = bool(section.get("state_dependent_std"))
    return {
        "class_name": "HeteroscedasticGaussianDistribution" if by_state else "GaussianDistribution",
        "init_std": section.get("init_noise_std", init_std),
        "std_type": section.get("noise_std_type", "scalar"),
    }
