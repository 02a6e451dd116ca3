"""Settings of go1-walk; in a config file they stand under `env.kwargs`."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from surefoot.errors import ConfigError, did_you_mean
from surefoot.tasks.go1 import rewards
from surefoot.tasks.go1.commands import CommandConfig
from surefoot.tasks.go1.model import Physics


@dataclass(frozen=True)
class Go1Config:
    """What can be changed about the task without writing code."""

    physics: Physics = "fast"
    """`fast` for training; `accurate` to check a policy in a finer simulation with every collision."""
    num_threads: int | None = None
    """Physics threads; null: the cores of this machine divided by its training processes."""
    episode_length_s: float = 20.0
    """s until the clock ends an episode."""
    commands: CommandConfig = field(default_factory=CommandConfig)
    """How velocity commands are drawn in training."""
    num_variants: int = 8
    """Robots of different friction, mass and centre of mass in training; 1 switches the randomisation off."""
    push_speed: float = 0.5
    """m/s, largest sudden change of the trunk's horizontal velocity in training; 0 switches pushes off."""
    push_interval_s: float = 5.0
    """s between pushes of a robot, on average."""
    sensor_noise: float = 1.0
    """Multiplies the sensor noise in training."""
    reward_weights: dict[str, float] = field(default_factory=dict)
    """Replace weights of `rewards.TERMS` by name."""
    fall_reward: float = rewards.FALL
    """Reward at the step of a fall."""

    def __post_init__(self) -> None:
        if self.physics not in ("fast", "accurate"):
            raise ConfigError(f"physics is '{self.physics}'; expected 'fast' or 'accurate'.")
        for name in self.reward_weights:
            if name not in rewards.TERMS:
                raise ConfigError(
                    f"reward_weights: unknown term '{name}'; the terms are {', '.join(rewards.TERMS)}."
                    + did_you_mean(name, rewards.TERMS)
                )

    @staticmethod
    def from_kwargs(kwargs: dict[str, Any]) -> Go1Config:
        """From plain data, as it stands in a config file."""
        kwargs = dict(kwargs)
        _check_keys("go1-walk", kwargs, Go1Config)
        if isinstance(kwargs.get("commands"), dict):
            _check_keys("commands", kwargs["commands"], CommandConfig)
            kwargs["commands"] = CommandConfig(**kwargs["commands"])
        return Go1Config(**kwargs)


def _check_keys(where: str, given: dict[str, Any], config: type) -> None:
    known = [f.name for f in fields(config)]
    for key in given:
        if key not in known:
            raise ConfigError(
                f"{where}: unknown setting '{key}'; the settings are {', '.join(known)}."
                + did_you_mean(key, known)
            )
