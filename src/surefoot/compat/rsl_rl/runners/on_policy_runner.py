"""OnPolicyRunner: RSL-RL's training loop. Collect, learn, log, save, for any algorithm of its protocol."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from surefoot import distributed
from surefoot.compat.rsl_rl.algorithms.ppo import FINAL_OBSERVATIONS
from surefoot.compat.rsl_rl.checkpoints import load_checkpoint
from surefoot.compat.rsl_rl.env_adapter import EnvAdapter
from surefoot.compat.rsl_rl.modules.client_policy import ClientActor
from surefoot.compat.rsl_rl.runners import progress
from surefoot.compat.rsl_rl.runners.export import export_jit, export_onnx
from surefoot.compat.rsl_rl.runners.inference import InferencePolicy
from surefoot.compat.rsl_rl.runners.step_guard import StepGuard
from surefoot.compat.rsl_rl.utils import resolve_callable
from surefoot.compat.rsl_rl.utils.console import tell
from surefoot.compat.rsl_rl.utils.logger import Logger
from surefoot.config.rsl_rl import modernize
from surefoot.errors import CheckpointError, ConfigError
from surefoot.training.checkpoint import from_plain, to_plain, write_whole
from surefoot.training.recording import Stopwatch
from surefoot.training.threads import num_threads, threads

OF_LOGGER = (
    "log_dir",
    "writer",
    "logger_type",
    "disable_logs",
    "tot_timesteps",
    "tot_time",
    "git_status_repos",
)
OF_CFG = {"num_steps_per_env": "num_steps_per_env", "save_interval": "save_interval", "alg_cfg": "algorithm"}


class OnPolicyRunner:
    """Trains an algorithm on a client's environments.

    Args:
        env: Of any generation (`EnvAdapter`); it stays as it is.
        train_cfg: Configuration of any generation (`modernize`); it stays as it is.
        log_dir: Where checkpoints and metrics go; None: nothing is written, the screen shows the progress.
        device: Of the algorithm. Of several processes, each names its own, or just `cuda`.

    Attributes:
        env: As given.
        cfg: The configuration in the newest form, with all further keys of the client's.
        alg: The algorithm.
        logger: What is logged, and where it goes.
        current_learning_iteration: Number of the last iteration, from 0; 0 before the first, too.
        is_distributed: Whether there are other processes, `gpu_world_size` together.
    """

    alg: Any

    def __init__(
        self,
        env: Any,
        train_cfg: Mapping[str, Any],
        log_dir: str | Path | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.env, self.device = env, device
        self._adapter = EnvAdapter(env)
        observations = self._adapter.first_observations()
        self.cfg, notes = modernize(train_cfg, observations)
        self._configure_multi_gpu()
        for note in notes:
            tell(note)
        self._observations = observations.to(self.device)
        algorithm = resolve_callable(self.cfg["algorithm"]["class_name"])
        self.alg = algorithm.construct_algorithm(  # pyright: ignore[reportFunctionMemberAccess]
            self._observations, env, self.cfg, self.device
        )
        self.logger = Logger(
            log_dir=None if log_dir is None else str(log_dir),
            cfg=self.cfg,
            env_cfg=getattr(env, "cfg", None),
            num_envs=env.num_envs,
            is_distributed=self.is_distributed,
            gpu_world_size=self.gpu_world_size,
            gpu_global_rank=self.gpu_global_rank,
            device=self.device,
        )
        place = torch.device(self.device)
        self._guard = StepGuard(env.num_envs, place)
        self._stopwatch = Stopwatch(place)
        self._last_iteration = self._num_done = 0
        self._saved_progress: Mapping[str, Any] | None = None

    # ------------------------------------------------------------------ the loop

    def learn(self, num_learning_iterations: int, init_at_random_ep_len: bool = False) -> None:
        """Train for this many further iterations.

        Args:
            num_learning_iterations: A resumed run goes on with the iteration after the last one.
            init_at_random_ep_len: Whether running episodes begin at random ages, so that not all end at once.

        Raises:
            NonFiniteError: the environment returned a NaN or an infinity, unless `check_for_nan` is False.
            EnvContractError: it returned something of another form.
        """
        with threads(_num_threads(self.cfg)):
            self._learn(num_learning_iterations, init_at_random_ep_len)

    def _learn(self, num_learning_iterations: int, init_at_random_ep_len: bool) -> None:
        observations = self._begin(init_at_random_ep_len)
        start = self._num_done
        try:
            for it in range(start, start + num_learning_iterations):
                observations = self._iterate(observations, it, start, start + num_learning_iterations)
            if num_learning_iterations and self._writes_files and not self._is_saved():
                self.save(self._numbered_path())
        except BaseException:
            self.logger.close_files()
            raise
        self.logger.stop_logging_writer()

    def _begin(self, init_at_random_ep_len: bool) -> TensorDict:
        """Everything before the first iteration of this call; returns the present observations."""
        is_back = False
        if self._saved_progress is not None:
            is_back = progress.restore(self._saved_progress, self.logger, self.env, self.alg)
            self._saved_progress = None
        if init_at_random_ep_len and not is_back:
            self._adapter.randomize_episode_lengths()
        observations = self._adapter.observations().to(self.device)
        storage = getattr(self.alg, "storage", None)
        if getattr(storage, "step", 0):  # an earlier call failed in mid-rollout
            storage.clear()  # pyright: ignore[reportOptionalMemberAccess]
        self.train_mode()
        if self.is_distributed:
            self.alg.broadcast_parameters()
        if callable(warm_up := getattr(self.alg, "warm_up", None)):
            warm_up(observations)
        self.logger.first_iteration = self._num_done
        self.logger.init_logging_writer()
        return observations

    def _iterate(self, observations: TensorDict, it: int, start: int, total: int) -> TensorDict:
        """One iteration: T steps, one update, one record, perhaps a checkpoint."""
        self._stopwatch.start()
        observations, dones = self._collect(observations)
        self._stopwatch.mark()
        self.alg.compute_returns(observations)
        if self._has_rnd and self.alg.intrinsic_rewards.dim() == 2:  # known only now, of the whole rollout
            self.logger.process_intrinsic_rewards(self.alg.intrinsic_rewards, dones)
        losses = self.alg.update()
        self._stopwatch.mark()
        self._last_iteration, self._num_done = it, it + 1
        self.logger.finish_iteration()
        collect_time, learn_time = self._stopwatch.read()
        self.logger.log(
            it=it,
            start_it=start,
            total_it=total,
            collect_time=collect_time,
            learn_time=learn_time,
            loss_dict=losses,
            learning_rate=self.alg.learning_rate,
            action_std=self._action_std(),
            rnd_weight=self.alg.rnd.weight if self._has_rnd else None,
        )
        if self._writes_files and self._is_saved():
            try:
                self.save(self._numbered_path())
            except CheckpointError as error:  # a full disk should not end a run of hours
                warnings.warn(f"{error} Training goes on.", stacklevel=3)
        return observations

    @torch.no_grad()
    def _collect(self, observations: TensorDict) -> tuple[TensorDict, list[Tensor]]:
        """T steps of all environments into the algorithm's storage; returns the observations that followed
        the last one, and the dones [N] of each.
        """
        ends: list[Tensor] = []
        for _ in range(self.cfg["num_steps_per_env"]):
            actions = self.alg.act(observations)
            observations, rewards, dones, extras = self._adapter.step(actions.to(self._adapter.device))
            observations = observations.to(self.device)
            rewards, dones = rewards.to(self.device), dones.to(self.device)
            for name in ("time_outs", *FINAL_OBSERVATIONS):
                if extras.get(name) is not None:
                    extras[name] = _moved(extras[name], self.device)
            if self.cfg.get("check_for_nan", True):
                observations = self._guard.check(observations, rewards, dones, extras)
            self.alg.process_env_step(observations, rewards, dones, extras)
            intrinsic = self.alg.intrinsic_rewards if self._has_rnd else None
            self.logger.process_env_step(rewards, dones, extras, intrinsic)
            ends.append(dones.clone() if self._has_rnd else dones)
        self._guard.finish_rollout()
        return observations, ends

    def _action_std(self) -> Tensor | None:
        """None for a deterministic policy."""
        policy = self.alg.get_policy()
        return (
            None if getattr(policy, "distribution", policy) is None else getattr(policy, "output_std", None)
        )

    @property
    def _has_rnd(self) -> bool:
        return bool(self.cfg["algorithm"].get("rnd_cfg"))

    # ------------------------------------------------------------------ checkpoints

    @property
    def current_learning_iteration(self) -> int:
        """Number of the last iteration: 2 after `learn(3)`, as in RSL-RL, whose scripts name files by it.

        RSL-RL's next `learn` begins with that very number and so does one iteration twice. Here `learn` goes
        on with the next one. A client that sets the number itself means that of a checkpoint, after which
        the next follows; 0 means the beginning.
        """
        return self._last_iteration

    @current_learning_iteration.setter
    def current_learning_iteration(self, number: int) -> None:
        self._last_iteration = number
        self._num_done = number + 1 if number > 0 else 0

    def save(self, path: str | Path, infos: dict[str, Any] | None = None, format: str = "surefoot") -> None:
        """Write a checkpoint: whole, or not at all.

        Args:
            path: The file.
            infos: Of the client; `load` returns it.
            format: `surefoot` holds what RSL-RL 5.5.1 reads and what a resumed run needs beside it;
                `rsl_rl` nothing but the former.

        Raises:
            CheckpointError: it cannot be written, or holds more than tensors and plain data.
        """
        if format not in ("surefoot", "rsl_rl"):
            raise ConfigError(f"save: format '{format}'; expected 'surefoot' or 'rsl_rl'.")
        saved = {**self.alg.save(), "iter": self._last_iteration, "infos": infos}
        if format == "surefoot":
            saved[progress.KEY] = progress.collect(self._num_done, self.logger, self.env, self.alg)
        else:
            saved = {key: part for key, part in saved.items() if not key.startswith("surefoot")}
        write_whole(Path(path), to_plain(saved))
        self.logger.save_model(str(path), self._last_iteration)

    def load(
        self,
        path: str | Path,
        load_cfg: dict[str, bool] | bool | None = None,
        strict: bool = True,
        map_location: str | None = None,
        load_optimizer: bool = True,
    ) -> Any:
        """Take a checkpoint of any generation; nothing in it is executed.

        Args:
            path: The file.
            load_cfg: Which parts: `actor`, `critic`, `optimizer`, `iteration`, `rnd`; or `student`,
                `teacher`. Default: all.
            strict: Whether every parameter must be there.
            map_location: Where its tensors go before they are copied.
            load_optimizer: The second argument of versions 1 to 3: whether the optimiser's state is a part.

        Returns:
            The `infos` that were saved.

        Raises:
            CheckpointError: it cannot be read, or does not fit, and then where.
        """
        if load_cfg is False or not load_optimizer:
            load_cfg = dict.fromkeys(("actor", "critic", "student", "teacher", "rnd", "iteration"), True)
        elif load_cfg is True:
            load_cfg = None
        loaded = load_checkpoint(path, map_location, splits_policy=not self._is_of_client)
        if self.alg.load(loaded, load_cfg, strict):
            self.current_learning_iteration = loaded.get("iter", 0)
            self._saved_progress = loaded.get(progress.KEY)
            if self._saved_progress is not None:
                self._num_done = self._saved_progress["iterations"]
            elif loaded.get("optimizer_state_dict", {}).get("state"):  # RSL-RL saves after the iteration
                self._num_done = self._last_iteration + 1
        return from_plain(loaded.get("infos"))

    @property
    def _is_of_client(self) -> bool:
        """Whether the policy is of a class from before version 4 that is the client's own."""
        return isinstance(getattr(self.alg, "actor", None), ClientActor)

    def _is_saved(self) -> bool:
        """Whether the last iteration is one of those that `save_interval` names; 0: only the very last is."""
        interval = self.cfg["save_interval"]
        return interval > 0 and self._last_iteration % interval == 0

    def _numbered_path(self) -> str:
        return os.path.join(self.logger.log_dir or "", f"model_{self._last_iteration}.pt")

    @property
    def _writes_files(self) -> bool:
        return self.logger.log_dir is not None and not self.logger.disable_logs

    # ------------------------------------------------------------------ use

    def get_inference_policy(self, device: torch.device | str | None = None) -> InferencePolicy:
        """An independent copy of the policy in evaluation mode: observations to actions, without noise."""
        return InferencePolicy(self.alg.get_policy(), self._observations, device)

    def export_policy_to_jit(self, path: str | Path, filename: str = "policy.pt") -> None:
        """Write the policy as TorchScript into the directory `path`: normaliser and memory inside."""
        export_jit(self.alg.get_policy(), Path(path) / filename)

    def export_policy_to_onnx(
        self, path: str | Path, filename: str = "policy.onnx", verbose: bool = False
    ) -> None:
        """Write the policy as ONNX into the directory `path`: normaliser inside, the memory as an input and
        an output, for any number of environments.
        """
        export_onnx(self.alg.get_policy(), Path(path) / filename, verbose)

    def add_git_repo_to_log(self, repo_file_path: str) -> None:
        """Keep the state of the repository around that file with the run."""
        self.logger.git_status_repos.append(repo_file_path)

    def train_mode(self) -> None:
        self.alg.train_mode()

    def eval_mode(self) -> None:
        self.alg.eval_mode()

    # ------------------------------------------------------------------ processes

    def _configure_multi_gpu(self) -> None:
        """Join the processes that `torchrun` announces, on GPUs or the CPU; a group may exist already."""
        place = torch.device(self.device)
        if place.type == "cuda" and place.index is None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            self.device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        distributed.init_from_env(torch.device(self.device))
        self.gpu_world_size, self.gpu_global_rank = distributed.world_size(), distributed.rank()
        self.is_distributed = self.gpu_world_size > 1
        self.gpu_local_rank = int(os.environ.get("LOCAL_RANK", "0")) if self.is_distributed else 0
        self.cfg["multi_gpu"] = (
            {
                "global_rank": self.gpu_global_rank,
                "local_rank": self.gpu_local_rank,
                "world_size": self.gpu_world_size,
            }
            if self.is_distributed
            else None
        )

    # ------------------------------------------------------------------ names of older generations

    def __getattr__(self, name: str) -> Any:
        """What versions before 5 keep in the runner itself, unless a subclass has its own of that name."""
        if name in OF_LOGGER:
            return getattr(self.logger, name)
        if name in OF_CFG:
            return self.cfg[OF_CFG[name]]
        if name == "obs_normalizer":  # a part of the policy since 3.0
            return getattr(self.alg.get_policy(), name, None) or nn.Identity()
        if name == "empirical_normalization":
            return not isinstance(self.obs_normalizer, nn.Identity)
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")


def _moved(x: Any, device: torch.device | str) -> Any:
    """A tensor, or a mapping of tensors, on `device`."""
    return {name: part.to(device) for name, part in x.items()} if isinstance(x, dict) else x.to(device)


def _num_threads(cfg: Mapping[str, Any]) -> int:
    """1 where all models are small perceptrons, which more only slow down; else what PyTorch chose."""
    models = [cfg[name] for name in ("actor", "critic", "student", "teacher") if name in cfg]
    if any(key in model for model in models for key in ("rnn_type", "cnn_cfg")):
        return torch.get_num_threads()
    return num_threads(model.get("hidden_dims", (256, 256, 256)) for model in models)
