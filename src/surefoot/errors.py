"""Every error that Surefoot raises on purpose. The command line prints them as one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SurefootError(Exception):
    """Base of all errors that name a fault of the input or of the run, not of the code."""


class ConfigError(SurefootError, ValueError):
    """A configuration key, value or combination that cannot be used."""


class UnknownKeyError(ConfigError, TypeError):
    """A key that a class of RSL-RL's configuration does not take; there it would be a TypeError."""


class MissingKeyError(ConfigError, KeyError):
    """A key without which there is no run; in RSL-RL it would be a KeyError."""

    __str__ = Exception.__str__  # a KeyError shows its message in quotes


class EnvContractError(SurefootError, ValueError):
    """An environment that breaks the contract of `surefoot.envs.vec_env`."""


class CheckpointError(SurefootError):
    """A checkpoint or run directory that cannot be read, written or matched."""


class MisfitError(CheckpointError, RuntimeError):
    """A checkpoint of other layers or sizes than the network it is for; in PyTorch a RuntimeError."""


class MissingPartError(CheckpointError, KeyError):
    """A checkpoint without a part that is wanted of it; in RSL-RL a KeyError."""

    __str__ = Exception.__str__  # a KeyError shows its message in quotes


class NonFiniteError(SurefootError, ArithmeticError, ValueError):
    """A NaN or an infinity, named by where it appeared."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`" Did you mean 'x'?"` for the nearest known name, else an empty string."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean '{near[0]}'?" if near else ""
