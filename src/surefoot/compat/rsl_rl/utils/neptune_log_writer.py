"""Metrics to Neptune and TensorBoard."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch.utils.tensorboard.writer import SummaryWriter

from surefoot.compat.rsl_rl.utils.config_data import as_dict
from surefoot.compat.rsl_rl.utils.log_writer import LogWriter
from surefoot.errors import ConfigError

VARIABLES = ("NEPTUNE_USERNAME", "NEPTUNE_API_TOKEN")


class NeptuneLogWriter(SummaryWriter, LogWriter):
    """A run of Neptune beside TensorBoard's event file.

    Args:
        log_dir: Of the run; its last part names it.
        project_name: Project of the user `NEPTUNE_USERNAME`.

    Raises:
        ConfigError: the neptune package is not installed, or an environment variable of it is not set.
    """

    def __init__(self, log_dir: str, project_name: str) -> None:
        try:
            import neptune  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise ConfigError("logger 'neptune' needs the neptune package: pip install neptune.") from None
        missing = [name for name in VARIABLES if name not in os.environ]
        if missing:
            raise ConfigError(f"logger 'neptune' needs the environment variable {' and '.join(missing)}.")
        user, token = (os.environ[name] for name in VARIABLES)
        self.run: Any = neptune.init_run(project=f"{user}/{project_name}", api_token=token)
        self.run["log_dir"].append(os.path.basename(log_dir))
        super().__init__(log_dir, flush_secs=10)

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
        # a path of Neptune cannot be both a number and a folder
        name = f"{tag.removesuffix('/time')}_time" if tag.endswith("/time") else tag
        self.run[name].append(scalar_value, step=global_step)

    def store_config(self, env_cfg: dict[str, Any] | object, train_cfg: dict[str, Any]) -> None:
        self.run["train_cfg"] = as_dict(train_cfg)
        self.run["env_cfg"] = as_dict(env_cfg)

    def save_model(self, model_path: str, it: int) -> None:
        self.run[f"model/saved_model_{it}"].upload(model_path)

    def save_file(self, path: str) -> None:
        self.run[f"git_diff/{Path(path).stem}"].upload(path)

    def stop(self) -> None:
        self.close()
        self.run.stop()
