"""OnPolicyRunner: the training loop. Collect, learn, record; the rest are hooks and helpers beside it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

import torch

from surefoot import distributed
from surefoot.config import TrainConfig
from surefoot.envs.conform import conform_observations, conform_step
from surefoot.envs.vec_env import VecEnv
from surefoot.errors import CheckpointError, ConfigError, NonFiniteError
from surefoot.training import resume
from surefoot.training.action_masks import ActionMaskGuard
from surefoot.training.build import build_algorithm, resolve_config
from surefoot.training.checkpoint import find_checkpoint, load_checkpoint
from surefoot.training.compilation import Compilation
from surefoot.training.devices import available_device, observations_to, step_to
from surefoot.training.drift import DriftWatch
from surefoot.training.env_log import EnvLog
from surefoot.training.env_spec import check_fits
from surefoot.training.episodes import EpisodeStatistics
from surefoot.training.eval_hook import EvaluationHook
from surefoot.training.evaluation import InferencePolicy
from surefoot.training.faults import FaultRecorder
from surefoot.training.guards import LearningRateWatch, RewardWatch, SkippedUpdateGuard, TimeLimitWatch
from surefoot.training.hooks import Hook, build_hooks, end_hooks
from surefoot.training.interrupt import Interrupts
from surefoot.training.nonfinite import NonFiniteGuard, check_parameters
from surefoot.training.recording import RunFiles, Stopwatch, average_over_processes, to_numbers
from surefoot.training.saving import CheckpointFiles
from surefoot.training.threads import training_threads
from surefoot.types import Observations, Step

WARM_UP_SAMPLES = 1024
"""Observations behind the provisional statistics of the normalisers."""


class OnPolicyRunner:
    """Trains a policy with PPO on a batch of environments.

    Args:
        env: The environments of this process.
        config: A TrainConfig, or a mapping for one.
        run_dir: Where the run's files go; None: nothing is written.
        device: Of the algorithm; `auto`: where the environments are.
        eval_env: Separate environments for evaluation at `eval_interval` and at the end.
        task: What `env` is, as on the command line; kept in the run's files.
        quiet: No progress on the screen.

    Attributes:
        iteration: Iterations done.
        env_steps: Environment steps done, over all processes.
        metrics: The record of the last iteration.
        hooks: Called in this order; append to it.
    """

    def __init__(
        self,
        env: VecEnv,
        config: TrainConfig | Mapping[str, Any] | None = None,
        run_dir: Path | str | None = None,
        device: torch.device | str = "auto",
        eval_env: VecEnv | None = None,
        *,
        task: str | None = None,
        quiet: bool = False,
    ) -> None:
        if eval_env is env:
            raise ConfigError(
                "eval_env is env: evaluating would reset the episodes of training; make another."
            )
        self.env, self.task, self.quiet = env, task, quiet
        self.run_dir = None if run_dir is None else Path(run_dir)
        self.device = available_device(env.device if device == "auto" else device)
        distributed.init_from_env(self.device)
        self.total_envs = sum(distributed.gather_objects(env.num_envs))
        self.config = resolve_config({} if config is None else config, self.total_envs)
        self.alg = build_algorithm(env, self.config, self.device)
        self.policy = self.alg.policy
        if eval_env is not None:
            check_fits(self.policy, eval_env)

        self.iteration, self.env_steps, self.wall_time_s = 0, 0, 0.0
        self.last_iteration = 0
        self.metrics: dict[str, Any] = {}
        self.observations: Observations | None = None
        self.is_continued = False
        self.hooks: list[Hook] = build_hooks(self.config)
        self.files, self.checkpoints, self.compilation = RunFiles(), CheckpointFiles(), Compilation()
        has_evaluation = distributed.gather_objects(eval_env is not None)[0]
        self.evaluation = EvaluationHook(eval_env) if has_evaluation else None

        num_envs, num_steps = env.num_envs, self.config.num_steps_per_env
        self.episodes = EpisodeStatistics(num_envs, num_steps, self.device)
        self.env_log = EnvLog()
        self.guard = NonFiniteGuard(self.config.on_nonfinite, num_envs, self.device)
        self.masks = ActionMaskGuard(env.action_space, self.device)
        self.faults, self.drift = FaultRecorder(self.alg), DriftWatch(num_envs)
        self.skips = SkippedUpdateGuard(self.alg, self.config.on_skipped)
        self._time_limits = TimeLimitWatch(env.max_episode_length, num_envs)
        self._outliers, self._rates = RewardWatch(), LearningRateWatch(self.config.algorithm)
        self._restarts = 0
        self._stopwatch = Stopwatch(self.device)
        self._interrupts = Interrupts()

    # ------------------------------------------------------------------ the loop

    def learn(self, num_learning_iterations: int) -> str:
        """Train for this many further iterations.

        Returns:
            `finished`, `stopped: <why>` (a hook asked for it) or `interrupted` (Ctrl-C, SIGTERM).
        """
        if not isinstance(num_learning_iterations, Integral) or num_learning_iterations < 0:
            raise ConfigError(
                f"learn({num_learning_iterations!r}): expected a whole number of iterations, at least 0."
            )
        self.last_iteration = self.iteration + num_learning_iterations
        resume.claim_run_dir(self)
        reason = "failed"
        hooks = [*self.hooks, self.compilation, self.files, self.checkpoints]
        with Interrupts() as self._interrupts, training_threads(self.config):
            self._started = time.perf_counter() - self.wall_time_s
            try:
                for hook in hooks:
                    hook.on_start(self)
                self._begin()
                reason = self._train()
            finally:
                end_hooks(hooks, self, reason)
        return reason

    def _train(self) -> str:
        reason = None
        while self.iteration < self.last_iteration and reason is None:
            for hook in self.hooks:
                hook.before_iteration(self, self.iteration)
            check_parameters(self.alg, self.iteration)
            self._stopwatch.start()
            observations = self._collect()
            self._stopwatch.mark()
            self.alg.compute_returns(observations)
            bootstrap = self.alg.bootstrap
            self.faults.before_update()
            stats = self.alg.update()
            self._stopwatch.mark()
            self.metrics = self._record(stats, bootstrap)
            self.faults.after_update(self, self.metrics)
            self.drift.check(self.alg, self.iteration)
            self.iteration += 1
            reason = self._after_iteration(self.metrics)
        return reason or "finished"

    @torch.no_grad()
    def _collect(self) -> Observations:
        """T steps of all environments into the rollout storage; returns what followed the last one."""
        assert self.observations is not None
        for _ in range(self.config.num_steps_per_env):
            actions = self.alg.act(self.observations)
            step = self._step(actions)
            self.alg.process_env_step(step)
            self.observations = step.observations
        try:
            self.guard.finish_rollout()
        except NonFiniteError as error:
            raise self.faults.with_rollout(error, self) from error
        self.masks.finish_rollout()
        return self.observations

    def _step(self, actions: torch.Tensor) -> Step:
        """One step of the environments: held against the contract, guarded, counted."""
        step = step_to(conform_step(self.env, self.env.step(actions.to(self.env.device))), self.device)
        try:
            step = self.guard.check(step, self.alg.storage)
        except NonFiniteError as error:
            raise self.faults.with_step(error, self, step, actions) from error
        self.masks.check(step.observations, step)
        self.episodes.record(step)
        self.env_log.add(step)
        clip = self.config.env.reward_clip
        return step if clip is None else replace(step, rewards=step.rewards.clamp(-clip, clip))

    def _record(self, stats: Mapping[str, torch.Tensor], bootstrap: str) -> dict[str, Any]:
        """Everything that is logged of an iteration; the one place where the device is read."""
        episodes, finished = self.episodes.finish_iteration()
        restarts, self._restarts = self._restarts, getattr(self.env, "num_restarts", 0)
        lost = torch.stack(
            [self.guard.finish_iteration(), torch.tensor(self._restarts - restarts).to(self.device)]
        )
        quarantined, restarted = distributed.all_sum(lost).unbind()
        own = to_numbers({**stats, "Data/quarantined": quarantined, "Data/restarts": restarted})
        logged = average_over_processes(to_numbers(self.env_log.finish_iteration()))
        collection_time, learning_time = self._stopwatch.read()
        num_steps = self.config.num_steps_per_env * self.total_envs
        self.env_steps += num_steps
        self.wall_time_s = time.perf_counter() - self._started
        self._time_limits.look(finished, own["Data/truncations"] or 0)
        self._outliers.look(self.episodes.rewards())
        self._rates.look(own["Loss/learning_rate"], own["Loss/kl"])
        record = {
            "iteration": self.iteration,
            "env_steps": self.env_steps,
            "wall_time_s": self.wall_time_s,
            **episodes,
            **own,
            "Loss/kl_kind": self.policy.action_head.kl_kind,
            "Data/bootstrap": bootstrap,
            "Perf/total_fps": num_steps / (collection_time + learning_time),
            "Perf/collection_time": collection_time,
            "Perf/learning_time": learning_time,
        }
        return record | {key: value for key, value in logged.items() if key not in record}

    def _after_iteration(self, metrics: dict[str, Any]) -> str | None:
        """Evaluate, ask the hooks, log, then save, so that a checkpoint is never ahead of the log."""
        if self.evaluation:
            self.evaluation.after_iteration(self, metrics)
        stopping = [hook for hook in self.hooks if hook.after_iteration(self, metrics)]
        reason = self._agree(stopping)
        is_last = reason is not None or self.iteration == self.last_iteration
        if self.evaluation and is_last and reason != "interrupted":
            self.evaluation.evaluate(self, metrics)
        self.files.after_iteration(self, metrics)
        self.skips.look(metrics["Loss/skipped_updates"] or 0, metrics["iteration"])
        self.checkpoints.after_iteration(self, metrics)
        return reason

    def _agree(self, stopping: list[Hook]) -> str | None:
        """One decision of all processes: why to stop, or None."""
        flags = torch.tensor(
            [self._interrupts.requested, bool(stopping)], dtype=torch.int32, device=self.device
        )
        is_interrupted, is_stopped = distributed.all_sum(flags).tolist()
        if is_interrupted:
            return "interrupted"
        if is_stopped:
            reasons = [hook.reason or type(hook).__name__ for hook in stopping]
            return f"stopped: {', '.join(reasons) or 'another process'}"
        return None

    # ------------------------------------------------------------------ the start

    def _begin(self) -> None:
        """Reset the environments, unless the run goes on from where they are; at iteration 0 warm up."""
        check_parameters(self.alg, self.iteration)  # the environments would be blamed for what they are sent
        if self.alg.storage.step:
            # an earlier call failed in mid-rollout: where that left the environments is not known
            self.alg.storage.begin()
            self.observations = None
        if self.observations is None:
            stream = "env" if self.iteration == 0 else f"env/{self.iteration}"
            observations = conform_observations(self.env, self.env.reset(seed=self.stream_seed(stream)))
            self.observations = self.guard.check_reset(observations_to(observations, self.device))
            self.masks.check(self.observations)
            self.episodes.forget_running()
            self.policy.reset()
            self.alg.storage.is_first[0] = True
            if self.iteration == 0:
                self._warm_up()
        self.is_continued = True

    @torch.no_grad()
    def _warm_up(self) -> None:
        """Let the normalisers see the initial policy's observations before anything is learned."""
        if not len(self.policy.inputs.normalizers):
            return
        generator = distributed.generator(self.config.seed, "warm-up", self.device, distributed.rank())
        truncations = torch.zeros((), device=self.device)

        def observations() -> Iterator[Observations]:
            for _ in range(math.ceil(WARM_UP_SAMPLES / self.total_envs)):
                assert self.observations is not None
                yield self.observations
                actions = self.policy.act(self.observations, deterministic=False, generator=generator)
                step = self._step(actions)
                truncations.add_(step.truncated.sum())
                self.policy.reset(step.starts)
                self.observations = step.observations
                self.env_steps += self.total_envs

        self.alg.warm_up(observations())
        self._time_limits.look([], float(truncations))  # iteration 0 counts the episodes, not these
        self.policy.reset()

    # ------------------------------------------------------------------ for users

    def save(self, path: Path | str | None = None) -> Path:
        """Write a checkpoint to `path`, or as `model_<iteration>.pt` of the run. Every process calls it."""
        if path is not None:
            return self.checkpoints.save(self, Path(path))
        if self.run_dir is None:
            raise CheckpointError("save() needs a path: this runner was made without run_dir.")
        return self.checkpoints.save_numbered(self, self.run_dir)

    def load(self, path: Path | str) -> None:
        """Go on from a checkpoint: a file, a run directory, or `last`.

        Raises:
            CheckpointError: it cannot be read, or does not fit this runner, which then stays as it was.
        """
        file = find_checkpoint(path)
        resume.restore(self, load_checkpoint(file), file)

    def state(self) -> dict[str, Any]:
        """Everything needed to go on, as tensors and plain data. Every process must call it."""
        return resume.collect(self)

    def get_inference_policy(
        self, deterministic: bool = True, device: torch.device | str | None = None
    ) -> InferencePolicy:
        """A frozen copy of the policy, on `device` or where it trains: a callable from observations to
        actions, apart from training.
        """
        return InferencePolicy(self.policy, deterministic, self.config.seed, device)

    @property
    def is_interrupted(self) -> bool:
        """Whether a signal asked this process to stop."""
        return self._interrupts.requested

    def stream_seed(self, stream: str) -> int:
        """Seed of a random stream of this run and process, small enough for any environment."""
        return distributed.stream_seed(self.config.seed, stream, distributed.rank()) % 2**31
