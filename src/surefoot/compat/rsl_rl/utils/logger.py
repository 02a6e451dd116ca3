"""Logger: what is logged of an iteration, and where it goes: files, services, the screen.

Nothing is read from the device before the iteration ends. `metrics.jsonl` holds the same keys as a run of
Surefoot's own, so that its tools read runs of both kinds.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import surefoot.compat.rsl_rl
from surefoot import distributed
from surefoot.compat.rsl_rl.utils.code_state import store_code_state
from surefoot.compat.rsl_rl.utils.console import iteration_block, tell
from surefoot.compat.rsl_rl.utils.log_writer import LogWriter
from surefoot.compat.rsl_rl.utils.utils import resolve_callable
from surefoot.compat.rsl_rl.utils.wandb_log_writer import WandbLogWriter
from surefoot.errors import ConfigError
from surefoot.training.env_log import EnvLog
from surefoot.training.episodes import WINDOW, EpisodeStatistics
from surefoot.training.loggers import JsonlLogger, finite_or_none
from surefoot.training.recording import average_over_processes, to_numbers
from surefoot.types import Step

SERVICES = {"wandb": "WandbLogWriter", "neptune": "NeptuneLogWriter"}
"""Writers that a plain name in `logger` stands for; their project is in `<name>_project`."""


class Logger:
    """Collects what happens in an iteration and hands it on.

    Args:
        log_dir: Where files go; None: only the screen.
        cfg: The runner's configuration.
        env_cfg: The environment's, for services that show it; None where it has none.
        num_envs: N of this process.
        is_distributed: Whether there are other processes.
        gpu_world_size: Number of processes.
        gpu_global_rank: Number of this one; only 0 writes.
        device: Of the algorithm.

    Attributes:
        writer: TensorBoard's or a LogWriter; None before the first iteration, without a `log_dir`, or with
            `logger: none`.
        tot_timesteps: Environment steps over all processes.
        tot_time: Seconds of collecting and learning.
        first_iteration: What follows it in the files of an earlier run in `log_dir` is dropped.
        git_status_repos: A file in each repository whose state is kept with the run.
    """

    def __init__(
        self,
        log_dir: str | None,
        cfg: dict[str, Any],
        env_cfg: dict[str, Any] | object,
        num_envs: int,
        is_distributed: bool,
        gpu_world_size: int,
        gpu_global_rank: int,
        device: torch.device | str,
    ) -> None:
        self.log_dir, self.cfg, self.env_cfg = log_dir, cfg, env_cfg
        self.num_envs, self.device = num_envs, device
        self.gpu_world_size = gpu_world_size
        self.disable_logs = is_distributed and gpu_global_rank != 0
        self.git_status_repos: list[str] = [str(surefoot.compat.rsl_rl.__file__)]
        self.tot_timesteps, self.tot_time = 0, 0.0
        self.first_iteration = 0
        self.writer: Any = None
        self._metrics: JsonlLogger | None = None
        self._total_envs: int | None = None
        self._statistics: dict[str, Any] | None = None

        place, rows = torch.device(device), cfg.get("num_steps_per_env", 24)
        self.episodes = EpisodeStatistics(num_envs, rows, place)
        self.intrinsic = (
            EpisodeStatistics(num_envs, rows, place) if cfg.get("algorithm", {}).get("rnd_cfg") else None
        )
        self._env_log = EnvLog()
        self._nothing = torch.zeros(num_envs, dtype=torch.bool, device=place)

    # ------------------------------------------------------------------ an iteration

    def process_env_step(
        self,
        rewards: Tensor,
        dones: Tensor,
        extras: Mapping[str, Any],
        intrinsic_rewards: Tensor | None = None,
    ) -> None:
        """Count one step.

        Args:
            rewards: [N] of the environment.
            dones: [N] of any dtype.
            extras: Of the environment; what stands under `episode` and under `log` is averaged.
            intrinsic_rewards: [N] of an extension, counted apart from those of the environment. Those of a
                whole rollout [T, N] are not of this step; `process_intrinsic_rewards` counts them.
        """
        step = Step({}, rewards, dones > 0, self._nothing, log=_log_of(extras))
        self.episodes.record(step)
        self._env_log.add(step)
        if self.intrinsic is not None and intrinsic_rewards is not None and intrinsic_rewards.dim() == 1:
            self.intrinsic.record(Step({}, intrinsic_rewards, step.terminated, self._nothing))

    def process_intrinsic_rewards(self, rewards: Tensor, dones: Sequence[Tensor]) -> None:
        """Count those of a whole rollout, where they come at its end.

        Args:
            rewards: [T, N].
            dones: T times [N].
        """
        if self.intrinsic is not None:
            for row, ended in zip(rewards, dones, strict=True):
                self.intrinsic.record(Step({}, row, ended > 0, self._nothing))

    def finish_iteration(self) -> dict[str, Any]:
        """What was counted, over all processes; every process must call it, before `log`."""
        episodes, _ = self.episodes.finish_iteration()
        if self.intrinsic is not None:
            own, _ = self.intrinsic.finish_iteration()
            episodes["Rnd/mean_extrinsic_reward"] = episodes["Train/mean_reward"]
            episodes["Rnd/mean_intrinsic_reward"] = own["Train/mean_reward"]
        logged = average_over_processes(to_numbers(self._env_log.finish_iteration()))
        if self._total_envs is None:
            self._total_envs = sum(distributed.gather_objects(self.num_envs))
        self._statistics = {**episodes, **logged}
        return self._statistics

    def log(
        self,
        it: int,
        start_it: int,
        total_it: int,
        collect_time: float,
        learn_time: float,
        loss_dict: Mapping[str, Tensor | float],
        learning_rate: Tensor | float,
        action_std: Tensor | None,
        rnd_weight: Tensor | float | None = None,
        print_minimal: bool = False,
        width: int = 80,
        pad: int = 40,
    ) -> None:
        """Write one iteration to the screen, to the files and to the service.

        Args:
            it: Its number.
            start_it: The first one of this call of `learn`.
            total_it: The number after its last one.
            collect_time: Seconds.
            learn_time: Seconds.
            loss_dict: Logged as `Loss/<key>`; a key with a slash is logged as it is.
            learning_rate: After it.
            action_std: Of any shape; None where the policy has no spread.
            rnd_weight: Of the intrinsic reward, where there is one.
            print_minimal: Whether to leave out what the environment logs.
            width: Of the block on the screen.
            pad: Of its first column.
        """
        statistics = self.finish_iteration() if self._statistics is None else self._statistics
        self._statistics = None
        num_steps = self.cfg["num_steps_per_env"] * (self._total_envs or self.num_envs)
        self.tot_timesteps += num_steps
        self.tot_time += collect_time + learn_time
        if self.disable_logs:
            return
        learned: dict[str, Any] = {k if "/" in k else f"Loss/{k}": x for k, x in loss_dict.items()}
        learned["Loss/learning_rate"] = learning_rate
        if action_std is not None:
            learned.setdefault("Policy/mean_std", action_std.mean())
        if rnd_weight is not None:
            learned["Rnd/weight"] = rnd_weight
        record = {
            "iteration": it,
            "env_steps": self.tot_timesteps,
            "wall_time_s": self.tot_time,
            **to_numbers(learned),
            "Perf/total_fps": num_steps / (collect_time + learn_time),
            "Perf/collection_time": collect_time,
            "Perf/learning_time": learn_time,
            **statistics,
        }
        self._write(record, it)
        left = (collect_time + learn_time) * (total_it - it - 1)
        record = {**record, "run_name": self.cfg.get("run_name")}
        tell(iteration_block(record, f"Learning iteration {it}/{total_it}", left, print_minimal, width, pad))

    def _write(self, record: Mapping[str, Any], it: int) -> None:
        try:
            if self._metrics is not None:
                self._metrics.log(record, it)
        except OSError as error:
            warnings.warn(f"metrics.jsonl cannot be written ({error}). Training goes on.", stacklevel=3)
        if self.writer is None:
            return
        for tag, value in record.items():
            if tag != "iteration" and finite_or_none(value) is not None:
                self.writer.add_scalar(tag, value, it)
        if not isinstance(self.writer, WandbLogWriter):  # steps of another kind have no place in its charts
            for tag in ("Train/mean_reward", "Train/mean_episode_length"):
                if record[tag] is not None:
                    self.writer.add_scalar(f"{tag}/time", record[tag], int(self.tot_time))
        if isinstance(self.writer, LogWriter) and type(self.writer).save_video is not LogWriter.save_video:
            directory = Path(self.log_dir or ".")
            for video in directory.rglob("*.mp4"):
                if not SERVICES.keys() & set(video.relative_to(directory).parts):  # their own copies
                    self.writer.save_video(video, it)

    # ------------------------------------------------------------------ the places

    @property
    def logger_type(self) -> str:
        """What `logger` names: `tensorboard`, `wandb`, `neptune`, `none`, or the class of a writer."""
        settings = self.cfg.get("logger") or "tensorboard"
        if isinstance(settings, str):
            return settings.lower() if settings.lower() in (*SERVICES, "tensorboard", "none") else settings
        name = settings.get("class_name")
        return name if isinstance(name, str) else getattr(name, "__name__", str(name))

    def init_logging_writer(self) -> None:
        """Open the files and the service, and keep the state of the code."""
        if self.log_dir is None or self.disable_logs:
            return
        directory = Path(self.log_dir)
        directory.mkdir(parents=True, exist_ok=True)
        self.writer = self._open_writer(self.log_dir)
        self._metrics = JsonlLogger(directory / "metrics.jsonl", self.first_iteration)
        files = self._store_code_state()
        if isinstance(self.writer, LogWriter):
            self.writer.store_config(self.env_cfg, self.cfg)
            for path in files:
                self.writer.save_file(path)

    def _open_writer(self, log_dir: str) -> Any:
        kind = self.logger_type
        if kind == "none":
            return None
        if kind != "tensorboard":
            try:
                return self._open_service(log_dir, kind)
            except OSError as error:  # a service that does not answer should not stop a run
                text = f"logger '{kind}' is off: {error}. Training goes on with TensorBoard."
                warnings.warn(text, stacklevel=4)
        from torch.utils.tensorboard.writer import SummaryWriter

        return SummaryWriter(log_dir, flush_secs=10, purge_step=self.first_iteration or None)

    def _open_service(self, log_dir: str, kind: str) -> Any:
        settings = self.cfg["logger"]
        if kind in SERVICES:
            project = self.cfg.get(f"{kind}_project")
            if not project:
                raise ConfigError(f"logger '{kind}' needs the name of a project: {kind}_project.")
            settings = {"class_name": SERVICES[kind], "project_name": project}
        elif isinstance(settings, str):
            settings = {"class_name": settings}
        arguments = copy.deepcopy({k: v for k, v in settings.items() if k != "class_name"})
        return resolve_callable(settings["class_name"])(log_dir=log_dir, **arguments)

    def save_model(self, path: str, it: int) -> None:
        """Hand a checkpoint to the service."""
        if isinstance(self.writer, LogWriter):
            self.writer.save_model(path, it)

    def stop_logging_writer(self) -> None:
        """The run is over: close the files and the service."""
        self.close_files()
        if isinstance(self.writer, LogWriter):
            self.writer.stop()

    def close_files(self) -> None:
        """As after an error: what a service is told of the end, it sees for itself."""
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
        if self.writer is not None and not isinstance(self.writer, LogWriter):
            self.writer.close()

    def _store_code_state(self) -> list[str]:
        """The files that tell the state of the repositories involved."""
        if self.log_dir is None or self.disable_logs:
            return []
        return store_code_state(self.log_dir, self.git_status_repos)

    # ------------------------------------------------------------------ for clients and checkpoints

    @property
    def rewbuffer(self) -> deque[float]:
        """Returns of the last finished episodes, as of the last iteration."""
        return deque(self.episodes.state_dict()["returns"], maxlen=WINDOW)

    @property
    def lenbuffer(self) -> deque[int]:
        """Their lengths."""
        return deque(self.episodes.state_dict()["lengths"], maxlen=WINDOW)

    def state_dict(self) -> dict[str, Any]:
        """Counters and episode statistics, for a checkpoint."""
        state = {"tot_timesteps": self.tot_timesteps, "tot_time": self.tot_time}
        kept = {"episodes": self.episodes, "intrinsic": self.intrinsic}
        return state | {name: part.state_dict() for name, part in kept.items() if part is not None}

    def forget_running_episodes(self) -> None:
        """The environments were reset: what unfinished episodes have collected counts for nothing."""
        for part in (self.episodes, self.intrinsic):
            if part is not None:
                part.forget_running()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.tot_timesteps, self.tot_time = state["tot_timesteps"], state["tot_time"]
        self.episodes.load_state_dict(state["episodes"])
        if self.intrinsic is not None and "intrinsic" in state:
            self.intrinsic.load_state_dict(state["intrinsic"])


def _log_of(extras: Mapping[str, Any]) -> dict[str, float | Tensor]:
    """The numbers that an environment logs, by tag. Both places count: what an older part of a simulation
    puts under `episode` does not hide what a newer one puts under `log`.
    """
    found: dict[str, float | Tensor] = {}
    for place in ("log", "episode"):
        for key, value in (extras.get(place) or {}).items():
            tag = key if "/" in key else f"Episode/{key}"
            if isinstance(value, Tensor):
                if value.numel():
                    found[tag] = value if value.is_floating_point() else value.float()
            elif isinstance(value, (np.ndarray, list, tuple)):
                if np.size(value):
                    found[tag] = float(np.mean(value))
            elif value is not None:
                with contextlib.suppress(TypeError, ValueError):  # text is nothing to average
                    found[tag] = float(value)
    return found
