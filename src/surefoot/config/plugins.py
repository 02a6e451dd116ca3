"""Classes named in a configuration: extensions, hooks, and the user's own `package.module:Class`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, TypeVar, get_type_hints

from torch import nn

from surefoot.algorithm.extension import Extension
from surefoot.config.schema import TrainConfig
from surefoot.errors import ConfigError, did_you_mean
from surefoot.field_checks import convert
from surefoot.field_types import is_plain
from surefoot.importing import import_object, is_import_path

EXTENSIONS: dict[str, str] = {
    "RewardScaling": "surefoot.extensions.reward_scaling:RewardScaling",
    "EstimatorLoss": "surefoot.extensions.auxiliary:EstimatorLoss",
    "AMP": "surefoot.extensions.amp.amp:AMP",
    "AuxiliaryPrediction": "surefoot.extensions.auxiliary:AuxiliaryPrediction",
    "PolicyLosses": "surefoot.extensions.auxiliary:PolicyLosses",
    "RND": "surefoot.extensions.rnd:RND",
    "Symmetry": "surefoot.extensions.symmetry:Symmetry",
}
"""Short names of the built-in extensions."""

C = TypeVar("C")


def build_extensions(config: TrainConfig) -> list[Extension]:
    """The extensions of a configuration; those behind keys of `env` first, since they scale its reward."""
    entries: list[tuple[str, dict[str, Any]]] = []
    if config.env.reward_scaling:
        entries.append(("env.reward_scaling", {"class_name": "RewardScaling"}))
    elif config.env.reward_scale != 1.0:
        entries.append(
            ("env.reward_scale", {"class_name": "RewardScaling", "scale": config.env.reward_scale})
        )
    if config.algorithm.amp_cfg is not None:
        entries.append(("algorithm.amp_cfg", {"class_name": "AMP", "config": config.algorithm.amp_cfg}))
    if config.algorithm.enable_aux_loss:
        coef = config.algorithm.aux_loss_coef
        names = ["EstimatorLoss"] if config.actor.estimator is not None else []
        if any(hasattr(network, "aux_losses") for network in own_networks(config).values()):
            names.append("PolicyLosses")
        entries += [("algorithm.enable_aux_loss", {"class_name": name, "coef": coef}) for name in names]
    if config.algorithm.rnd_cfg is not None:
        entries.append(("algorithm.rnd_cfg", {"class_name": "RND", **config.algorithm.rnd_cfg}))
    if config.algorithm.symmetry_cfg is not None:
        entries.append(
            ("algorithm.symmetry_cfg", {"class_name": "Symmetry", **config.algorithm.symmetry_cfg})
        )
    entries += [(f"extensions.{i}", entry) for i, entry in enumerate(config.extensions)]
    return [build(entry, Extension, key, EXTENSIONS) for key, entry in entries]


def own_networks(config: TrainConfig) -> dict[str, Any]:
    """The user's network classes, by `actor` and `critic`."""
    networks = {"actor": config.actor, "critic": config.critic}
    return {
        name: resolve_class(network.class_name, nn.Module, f"{name}.class_name")
        for name, network in networks.items()
        if network.class_name is not None
    }


def build(entry: Mapping[str, Any], base: type[C], key: str, known: Mapping[str, str] | None = None) -> C:
    """The instance that `{class_name: ..., argument: value, ...}` describes; `key` says where it stands."""
    arguments = dict(entry)
    name: str = arguments.pop("class_name")
    known = known or {}
    if name not in known and not is_import_path(name):
        names = ", ".join([*known, "package.module:Class"])
        raise ConfigError(f'{key}.class_name = "{name}": expected {names}.{did_you_mean(name, known)}')
    cls = resolve_class(known.get(name, name), base, f"{key}.class_name")
    _check_arguments(cls, arguments, key)
    try:
        return cls(**arguments)
    except ConfigError as error:
        raise ConfigError(f"{key} ({name}): {error}") from error


def _check_arguments(cls: type, arguments: Mapping[str, Any], key: str) -> None:
    """A ConfigError for an argument that the constructor lacks, or needs and does not get, or that is not of
    the plain type (number, text, ...) that it is annotated with.
    """
    parameters = inspect.signature(cls).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        for name in arguments:
            if name not in parameters:
                takes = ", ".join(parameters) or "no arguments"
                near = did_you_mean(name, parameters)
                raise ConfigError(f"unknown key '{key}.{name}'; {cls.__name__} takes {takes}.{near}")
    for name, hint in _annotations(cls).items():
        if name in arguments and (fault := convert(hint, arguments[name], f"{key}.{name}")[1]):
            raise ConfigError(fault)
    for name, parameter in parameters.items():
        is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if is_named and parameter.default is parameter.empty and name not in arguments:
            raise ConfigError(f"{key}: {cls.__name__} needs '{name}'.")


def _annotations(cls: type) -> dict[str, Any]:
    """Those of the constructor that are plain types; none where a name in them cannot be found."""
    try:
        hints = get_type_hints(cls.__init__, include_extras=True)
    except (NameError, AttributeError, TypeError):
        return {}
    return {name: hint for name, hint in hints.items() if is_plain(hint)}


def resolve_class(path: str, base: type[C], key: str) -> type[C]:
    """The class at `package.module:Class`, a subclass of `base`; `key` is where the path was written."""
    found = import_object(path, key)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(f'{key} = "{path}": expected a subclass of {base.__module__}.{base.__qualname__}.')
    return found
