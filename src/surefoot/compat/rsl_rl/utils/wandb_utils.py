"""The writer of versions 2.0 to 5.3, at its path of then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from surefoot.compat.rsl_rl.utils.config_data import by_part
from surefoot.compat.rsl_rl.utils.wandb_log_writer import WandbLogWriter
from surefoot.errors import ConfigError


class WandbSummaryWriter(WandbLogWriter):
    """As `WandbLogWriter`; `flush_secs` is taken and has no effect, and `cfg` names the `wandb_project`."""

    def __init__(self, log_dir: str, flush_secs: int, cfg: Mapping[str, Any]) -> None:
        if not cfg.get("wandb_project"):
            raise ConfigError("logger 'wandb' needs wandb_project in the runner's configuration.")
        super().__init__(log_dir, cfg["wandb_project"])

    def log_config(self, env_cfg: Any, runner_cfg: Any, *parts: Any) -> None:
        """The environment's configuration and the runner's, with those of algorithm and policy after it."""
        self.store_config(env_cfg, by_part(runner_cfg, *parts))
