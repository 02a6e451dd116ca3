"""What counts as not set in a configuration of RSL-RL, and copies without it."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from surefoot.config.rsl_rl import known
from surefoot.errors import ConfigError

_OMEGACONF_MISSING = "???"
_MEANINGFUL_NONE = ("desired_kl",)


def is_unset(value: Any) -> bool:
    """Whether a value of a section stands for nothing: `{}`, or one of the sentinels for a missing value."""
    if isinstance(value, Mapping):
        return not value
    if isinstance(value, str):
        return value == _OMEGACONF_MISSING
    # by name: Isaac Lab copies configurations deeply, and a copy of a sentinel is not the sentinel
    return "MISSING" in type(value).__name__.upper()


def copied(train_cfg: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration of any generation, of which the containers are new, without what is not set."""
    cfg: dict[str, Any] = {}
    for key, value in train_cfg.items():
        if key in (*known.SECTIONS, "policy", "runner", "obs_groups"):
            if value is not None and not is_unset(value):
                if not isinstance(value, Mapping):
                    raise ConfigError(f"'{key}' is a {type(value).__name__}; expected a mapping.")
                cfg[key] = without_unset(value)
        elif not is_unset(value) or (isinstance(value, Mapping) and key not in known.SETTINGS):
            cfg[key] = _copy(value)
    if "policy" in cfg:
        # no key of it had a meaning of its own for None
        cfg["policy"] = {key: value for key, value in cfg["policy"].items() if value is not None}
    return {key: value for key, value in cfg.items() if key not in known.SECTIONS or value}


def without_unset(value: Any) -> Any:
    """A copy of containers, without what is not set, and with lists for tuples."""
    if isinstance(value, Mapping):
        parts = {key: without_unset(part) for key, part in value.items() if not is_unset(part)}
        return {key: part for key, part in parts.items() if not is_unset(part)}
    if isinstance(value, (list, tuple)):
        return [without_unset(part) for part in value]
    return value


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copy(part) for part in value)
    return value


def drop_none(section: MutableMapping[str, Any], keys: Sequence[str]) -> None:
    """Take out those of `keys` that are None, unless that is a value of its own."""
    for key in [k for k, value in section.items() if value is None and k in keys]:
        if key not in _MEANINGFUL_NONE:
            del section[key]
