"""Finished episodes of an iteration. Nothing is read back from the device before the iteration ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from surefoot import distributed
from surefoot.types import Step

WINDOW = 100
"""Finished episodes behind `Train/mean_reward`."""


class EpisodeStatistics:
    """Returns and lengths of finished episodes, over all processes.

    Args:
        num_envs: N of this process.
        num_rows: Steps that are kept on the device before they are read, at least 1.
        device: Where the steps are.
    """

    def __init__(self, num_envs: int, num_rows: int, device: torch.device) -> None:
        self._rewards = torch.zeros(num_rows, num_envs, device=device)
        self._ended = torch.zeros(num_rows, num_envs, dtype=torch.bool, device=device)
        self._valid = torch.ones(num_rows, num_envs, dtype=torch.bool, device=device)
        self._row, self._all_valid = 0, True
        self._return = np.zeros(num_envs)
        self._length = np.zeros(num_envs, dtype=np.int64)
        self._finished: list[tuple[int, float, int, int]] = []
        self._returns: deque[float] = deque(maxlen=WINDOW)
        self._lengths: deque[int] = deque(maxlen=WINDOW)

    def record(self, step: Step) -> None:
        """Count one step. An invalid row adds nothing, but an end there still starts a new episode."""
        if self._row == self._rewards.shape[0]:
            self._read()
        row = self._row
        self._rewards[row] = step.rewards
        torch.logical_or(step.terminated, step.truncated, out=self._ended[row])
        if step.valid is not None:
            self._valid[row], self._all_valid = step.valid, False
        self._row += 1

    def finish_iteration(self) -> tuple[dict[str, Any], list[tuple[int, int]]]:
        """The `Train/` metrics of all processes, and (environment, length) of the episodes of this one."""
        self._read()
        own, self._finished = self._finished, []
        gathered = distributed.gather_objects((len(own), [e[:3] for e in own[-WINDOW:]]))
        # by time, so that the window holds the last episodes of all processes, not those of the last one
        episodes = sorted((e for _, part in gathered for e in part), key=lambda e: e[0])
        self._returns.extend(e[1] for e in episodes)
        self._lengths.extend(e[2] for e in episodes)
        metrics = {
            "Train/mean_reward": float(np.mean(self._returns)) if self._returns else None,
            "Train/mean_episode_length": float(np.mean(self._lengths)) if self._lengths else None,
            "Train/episodes": sum(count for count, _ in gathered),
        }
        return metrics, [(e[3], e[2]) for e in own]

    def rewards(self) -> np.ndarray[Any, Any]:
        """[T, N] of the iteration just finished, zero where not valid."""
        return self._last_rewards

    def forget_running(self) -> None:
        """Every environment was reset: what its unfinished episode has collected counts for nothing."""
        self._row = 0
        self._return[:] = 0
        self._length[:] = 0

    def state_dict(self) -> dict[str, Any]:
        """Between iterations, when every step has been read."""
        return {
            "returns": list(self._returns),
            "lengths": list(self._lengths),
            "running_return": self._return,
            "running_length": self._length,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._returns = deque(state["returns"], maxlen=WINDOW)
        self._lengths = deque(state["lengths"], maxlen=WINDOW)
        if len(state["running_return"]) == len(self._return):
            self._return, self._length = np.array(state["running_return"]), np.array(state["running_length"])

    def _read(self) -> None:
        """Transfer the recorded steps and find the episodes that ended in them, in float64."""
        rows, self._row = self._row, 0
        ended = self._ended[:rows].cpu().numpy()
        valid = self._valid[:rows].cpu().numpy().copy()
        rewards = np.where(valid, self._rewards[:rows].cpu().numpy(), 0.0).astype(np.float64)
        self._last_rewards = rewards
        if not self._all_valid:
            self._valid[:], self._all_valid = True, True
        if rows == 0:
            return
        returns = self._return + rewards.cumsum(0)
        lengths = self._length + valid.cumsum(0)
        # every end, environment by environment in order of time; an episode is the difference of two ends
        env, time = ended.T.nonzero()
        first = np.diff(env, prepend=-1) != 0
        episode_return = returns[time, env] - np.where(first, 0.0, np.roll(returns[time, env], 1))
        episode_length = lengths[time, env] - np.where(first, 0, np.roll(lengths[time, env], 1))
        for i in np.lexsort((env, time)):
            if valid[time[i], env[i]]:
                self._finished.append(
                    (int(time[i]), float(episode_return[i]), int(episode_length[i]), int(env[i]))
                )
        last = np.diff(env, append=-1) != 0
        self._return, self._length = returns[-1].copy(), lengths[-1].copy()
        self._return[env[last]] -= returns[time[last], env[last]]
        self._length[env[last]] -= lengths[time[last], env[last]]
