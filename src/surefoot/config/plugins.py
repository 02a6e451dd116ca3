"""Classes named in a configuration: extensions, hooks, and the user's own `package.module:Class`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

from torch import nn

from surefoot.algorithm.extension import Extension
from surefoot.config.schema import TrainConfig
from surefoot.config.validation import is_class_path
from surefoot.errors import ConfigError, did_you_mean

EXTENSIONS: dict[str, str] = {
    "RewardScaling": "surefoot.extensions.reward_scaling:RewardScaling",
    "EstimatorLoss": "surefoot.extensions.auxiliary:EstimatorLoss",
    "AuxiliaryPrediction": "surefoot.extensions.auxiliary:AuxiliaryPrediction",
    "RND": "surefoot.extensions.rnd:RND",
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
    if config.actor.estimator is not None and config.algorithm.enable_aux_loss:
        coef = config.algorithm.aux_loss_coef
        entries.append(("algorithm.enable_aux_loss", {"class_name": "EstimatorLoss", "coef": coef}))
    if config.algorithm.rnd_cfg is not None:
        entries.append(("algorithm.rnd_cfg", {"class_name": "RND", **config.algorithm.rnd_cfg}))
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
    if name not in known and not is_class_path(name):
        names = ", ".join([*known, "package.module:Class"])
        raise ConfigError(f'{key}.class_name = "{name}": expected {names}.{did_you_mean(name, known)}')
    cls = resolve_class(known.get(name, name), base, f"{key}.class_name")
    _check_arguments(cls, arguments, key)
    try:
        return cls(**arguments)
    except ConfigError as error:
        raise ConfigError(f"{key} ({name}): {error}") from error


def _check_arguments(cls: type, arguments: Mapping[str, Any], key: str) -> None:
    """A ConfigError for an argument that the constructor lacks, or that it needs and does not get."""
    parameters = inspect.signature(cls).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        for name in arguments:
            if name not in parameters:
                takes = ", ".join(parameters) or "no arguments"
                near = did_you_mean(name, parameters)
                raise ConfigError(f"unknown key '{key}.{name}'; {cls.__name__} takes {takes}.{near}")
    for name, parameter in parameters.items():
        is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if is_named and parameter.default is parameter.empty and name not in arguments:
            raise ConfigError(f"{key}: {cls.__name__} needs '{name}'.")


def resolve_class(path: str, base: type[C], key: str) -> type[C]:
    """The class at `package.module:Class`, a subclass of `base`; `key` is where the path was written."""
    start = f'{key} = "{path}"'
    if not is_class_path(path):
        raise ConfigError(f"{start}: expected package.module:Class.")
    module_name, _, attribute = path.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(
            f"{start}: there is no module '{error.name}'; it must be installed or in the current directory."
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = did_you_mean(part, [name for name in vars(found) if not name.startswith("_")])
            raise ConfigError(f"{start}: '{module_name}' has no '{attribute}'.{near}")
        found = getattr(found, part)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(f"{start}: expected a subclass of {base.__module__}.{base.__qualname__}.")
    return found
