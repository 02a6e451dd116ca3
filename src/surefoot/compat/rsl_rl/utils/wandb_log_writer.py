"""Metrics to Weights & Biases and TensorBoard."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch.utils.tensorboard.writer import SummaryWriter

from surefoot.compat.rsl_rl.utils.config_data import as_dict
from surefoot.compat.rsl_rl.utils.log_writer import LogWriter
from surefoot.training.loggers import WandbLogger


class WandbLogWriter(SummaryWriter, LogWriter):
    """A run of Weights & Biases beside TensorBoard's event file. A resumed run goes on in the same chart.

    Args:
        log_dir: Of the run; its last part names it.
        project_name: Project. The user or team is `WANDB_USERNAME`, where that is set.

    Raises:
        ConfigError: the wandb package is not installed.
    """

    def __init__(self, log_dir: str, project_name: str) -> None:
        entity = os.environ.get("WANDB_USERNAME")
        # first: where wandb is missing, no event file is left behind
        self._wandb = WandbLogger(Path(log_dir), project_name, {"log_dir": log_dir}, entity)
        super().__init__(log_dir, flush_secs=10)
        self.logged_videos: set[str] = set()

    def add_scalar(
        self,
        tag: str,
        scalar_value: float,
        global_step: int | None = None,
        walltime: float | None = None,
        new_style: bool = False,
        double_precision: bool = False,
    ) -> None:
        super().add_scalar(tag, scalar_value, global_step, walltime, new_style, double_precision)
        self._wandb.run.log({tag: scalar_value}, step=global_step)

    def store_config(self, env_cfg: dict[str, Any] | object, train_cfg: dict[str, Any]) -> None:
        self._wandb.run.config.update(
            {"train_cfg": as_dict(train_cfg), "env_cfg": as_dict(env_cfg)}, allow_val_change=True
        )

    def save_model(self, model_path: str, it: int) -> None:
        self.save_file(model_path)

    def save_file(self, path: str) -> None:
        self._wandb.run.save(path, base_path=os.path.dirname(path))

    def save_video(self, video: Path, it: int) -> None:
        if video.name not in self.logged_videos:
            import wandb  # pyright: ignore[reportMissingImports]

            self._wandb.run.log({"video": wandb.Video(str(video), format="mp4")}, step=it)
            self.logged_videos.add(video.name)

    def stop(self) -> None:
        self.close()
        self._wandb.close()
