"""The writer of versions 2.0 to 5.3, at its path of then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from surefoot.compat.rsl_rl.utils.config_data import by_part
from surefoot.compat.rsl_rl.utils.neptune_log_writer import NeptuneLogWriter
from surefoot.errors import ConfigError


class NeptuneSummaryWriter(NeptuneLogWriter):
    """As `NeptuneLogWriter`; `flush_secs` is taken and has no effect, `cfg` names the `neptune_project`."""

    def __init__(self, log_dir: str, flush_secs: int, cfg: Mapping[str, Any]) -> None:
        if not cfg.get("neptune_project"):
            raise ConfigError("logger 'neptune' needs neptune_project in the runner's configuration.")
        super().__init__(log_dir, cfg["neptune_project"])

    def log_config(self, env_cfg: Any, runner_cfg: Any, *parts: Any) -> None:
        """The environment's configuration and the runner's, with those of algorithm and policy after it."""
        self.store_config(env_cfg, by_part(runner_cfg, *parts))
