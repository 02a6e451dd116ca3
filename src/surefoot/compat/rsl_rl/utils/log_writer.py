"""LogWriter: where metrics go, as a class of the user's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any


class LogWriter(ABC):
    """A place for metrics, named by `logger: {class_name: package.module:Class, **arguments}`.

    It is made with `log_dir` and the arguments. Only `add_scalar` must be there.
    """

    @abstractmethod
    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        """Take one number of an iteration."""

    def store_config(self, env_cfg: dict[str, Any] | object, train_cfg: dict[str, Any]) -> None:  # noqa: B027
        """Take the configurations of environment and training; once, at the start."""

    def save_model(self, model_path: str, it: int) -> None:  # noqa: B027
        """Take a checkpoint file."""

    def save_file(self, path: str) -> None:  # noqa: B027
        """Take any other file."""

    def save_video(self, video: Path, it: int) -> None:  # noqa: B027
        """Take a video file of the run; it is offered again at every iteration."""

    def stop(self) -> None:  # noqa: B027
        """The run is over."""
