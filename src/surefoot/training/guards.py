"""Faults that a run would only show late: skipped updates, hidden time limits, outliers, idle rates."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.ppo import PPO
from surefoot.algorithm.schedules import ScheduleConfig
from surefoot.distributed import global_index
from surefoot.errors import NonFiniteError

MAX_SKIPPED_UPDATES = 10
"""Skipped updates in a row after which a run stops."""
MIN_EPISODES = 3
"""Episodes that ended at the maximum length before the time-limit warning is given."""
MAX_ITERATIONS_AT_BOUND = 50
"""Iterations at a bound of the learning rate before a warning."""
OUTLIER_RATIO = 1e4
"""A reward this many times larger than any before it is reported."""


class SkippedUpdateGuard:
    """Acts when many updates in a row were skipped, because each would have made the weights non-finite.

    Args:
        alg: Watched, and rolled back.
        mode: `stop`, or `rollback`: once, to the weights of the last iteration without a skipped update, at
            half the learning rate; then stop.
    """

    def __init__(self, alg: PPO, mode: str) -> None:
        self._alg, self._mode = alg, mode
        self._per_iteration = alg.num_batches * alg.config.num_learning_epochs
        self._in_a_row = 0
        self._good: dict[str, Any] | None = None
        self._has_rolled_back = False

    def look(self, skipped: float, iteration: int) -> None:
        """After an iteration that skipped this many updates.

        Raises:
            NonFiniteError: too many in a row.
        """
        if skipped == 0:
            self._in_a_row = 0
            if self._mode == "rollback" and not self._has_rolled_back:
                self._good = self._learned()
            return
        # where at least one update succeeded, no more than the skipped ones can have followed one another
        self._in_a_row = int(skipped) + (self._in_a_row if skipped >= self._per_iteration else 0)
        if self._in_a_row < MAX_SKIPPED_UPDATES:
            return
        fault = (
            f"{self._in_a_row} updates in a row were skipped up to iteration {iteration}, for each would "
            "have made the weights non-finite"
        )
        if self._good is None:
            advice = "" if self._mode == "rollback" else ", or set on_skipped: rollback"
            raise NonFiniteError(
                f"{fault}; the last good checkpoint is intact. Lower learning_rate, look for huge rewards "
                f"(env.reward_clip){advice}."
            )
        warnings.warn(
            f"{fault}; going back to the last good weights at half the learning rate.", stacklevel=2
        )
        # environments and random streams went on: where they are, and what the policy remembers, stays
        self._alg.load_state({**self._alg.state(), **self._good})
        self._in_a_row, self._good = 0, None
        self._halve_learning_rate()

    def _halve_learning_rate(self) -> None:
        """Both where it is now and in the schedule that will set it."""
        self._has_rolled_back = True
        config = self._alg.config
        schedule: Any = config.schedule
        if isinstance(schedule, ScheduleConfig):
            schedule = replace(
                schedule,
                initial=None if schedule.initial is None else schedule.initial / 2,
                final=schedule.final / 2,
                points=None if schedule.points is None else [(i, x / 2) for i, x in schedule.points],
            )
        self._alg.config = replace(config, learning_rate=config.learning_rate / 2, schedule=schedule)
        self._alg.learning_rate.div_(2)

    def _learned(self) -> dict[str, Any]:
        state = self._alg.state()
        return {"tensors": state["tensors"], "optimizers": state["optimizers"]}

    def state_dict(self) -> dict[str, Any]:
        """The good weights are left out where they are the present ones, which a checkpoint holds anyway."""
        return {
            "in_a_row": self._in_a_row,
            "has_rolled_back": self._has_rolled_back,
            "has_good": self._good is not None,
            "good": self._good if self._in_a_row else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """After the algorithm was restored."""
        self._in_a_row = state["in_a_row"]
        self._good = state["good"]
        if state["has_good"] and self._good is None:
            self._good = self._learned()
        if state["has_rolled_back"] and not self._has_rolled_back:
            rate = self._alg.learning_rate.clone()
            self._halve_learning_rate()
            self._alg.learning_rate.copy_(rate)  # restored already, with the algorithm


class TimeLimitWatch:
    """Warns once where episodes end at the maximum length and no time limit was ever reported."""

    def __init__(self, max_episode_length: int | Tensor | None, num_envs: int) -> None:
        if max_episode_length is None:
            self._limits = None
        else:
            self._limits = np.broadcast_to(torch.as_tensor(max_episode_length).cpu().numpy(), (num_envs,))
        self._episodes, self._at_limit = 0, 0

    def look(self, episodes: list[tuple[int, int]], truncations: float) -> None:
        """After an iteration.

        Args:
            episodes: (environment, length) of those that finished.
            truncations: Time limits reported in it.
        """
        if self._limits is None:
            return
        if truncations:
            self._limits = None
            return
        self._episodes += len(episodes)
        # some simulators let the clock run out one step late
        ends = [(length, self._limits[env]) for env, length in episodes if length > 1]
        self._at_limit += sum(limit <= length <= limit + 1 for length, limit in ends)
        if self._at_limit >= max(MIN_EPISODES, 0.1 * self._episodes):
            self._limits = None
            warnings.warn(
                f"{self._at_limit} of {self._episodes} episodes ended exactly at max_episode_length, and "
                "always as 'terminated': if a clock ends them, report it as 'truncated' (RSL-RL: "
                "extras['time_outs']), or the last state is learned to be worth 0.",
                stacklevel=2,
            )


class RewardWatch:
    """Warns once of a reward far beyond all others, with its size and environment."""

    def __init__(self) -> None:
        self._largest, self._warned = 0.0, False

    def look(self, rewards: np.ndarray[Any, Any]) -> None:
        """After an iteration, with its rewards [T, N]."""
        if self._warned or not rewards.size:
            return
        size = np.abs(rewards)
        usual, largest = self._largest, float(size.max())
        self._largest = max(usual, largest)
        if largest > OUTLIER_RATIO * usual:
            usual = max(usual, float(np.quantile(size, 0.99, method="lower")))
        if 0 < usual < largest / OUTLIER_RATIO:
            self._warned = True
            step, env = np.unravel_index(int(size.argmax()), size.shape)
            warnings.warn(
                f"environment {global_index(int(env), size.shape[1])} gave a reward of "
                f"{rewards[step, env]:.4g}; rewards are usually within ±{usual:.4g}. If that is a fault of "
                "the simulation, set env.reward_clip.",
                stacklevel=2,
            )


class LearningRateWatch:
    """Warns once where the adaptive learning rate stays at a bound, or has no KL to adapt to."""

    def __init__(self, config: PPOConfig) -> None:
        self._bounds = config.lr_bounds if config.is_adaptive else None
        self._at_bound = 0

    def look(self, learning_rate: float | None, kl: float | None) -> None:
        """After an iteration, with its `Loss/learning_rate` and `Loss/kl`."""
        if self._bounds is None or learning_rate is None:
            return
        low, high = self._bounds
        fault = None
        is_low, is_high = learning_rate <= low * 1.001, learning_rate >= high * 0.999
        self._at_bound = self._at_bound + 1 if is_low or is_high else 0
        if kl is None:
            fault = (
                "Loss/kl is not finite: the adaptive learning rate does not move; see Loss/skipped_updates."
            )
        elif self._at_bound >= MAX_ITERATIONS_AT_BOUND and low < high:
            advice = "every update is too large: lower num_learning_epochs or init_std"
            if is_high:
                advice = "the policy hardly changes: do the actions reach the environment?"
            fault = (
                f"the adaptive learning rate has been at its bound {learning_rate:g} for {self._at_bound} "
                f"iterations: {advice}. Or widen algorithm.lr_bounds."
            )
        if fault:
            self._bounds = None
            warnings.warn(fault, stacklevel=2)
