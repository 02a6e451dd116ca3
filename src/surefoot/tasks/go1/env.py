"""The batched environment of go1-walk: N robots that follow velocity commands at 50 Hz.

Read `step` first: push, simulate, judge, choose commands, observe, reset. What is judged and observed stands
in the tables of `rewards`, `terminations` and `observations`. Inside, everything is numpy: on a CPU its calls
cost a fraction of torch's, which counts when a batch has a few hundred robots. Tensors appear at the border.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surefoot.errors import ConfigError
from surefoot.tasks.go1 import commands, observations, rewards, terminations
from surefoot.tasks.go1.config import Go1Config
from surefoot.tasks.go1.model import load_model, substeps, variants, vary
from surefoot.tasks.go1.motion import Motion, is_moving
from surefoot.tasks.go1.robot import EFFORT_LIMIT, JOINTS, KD, KP, STAND, STAND_HEIGHT, Array, mirror_of
from surefoot.tasks.go1.state import RobotState, component_major
from surefoot.tasks.physics import BatchedPhysics
from surefoot.types import MirrorMap, Step

if TYPE_CHECKING:
    from surefoot.tasks.go1.render import Go1Renderer

STEP_DT = 0.02
"""s, one action."""
ACTION_SCALE = 0.5
"""rad of joint target per unit of action."""
GAIT_FREQUENCY = 2.0
"""Hz, of the trot clock."""

Rows = NDArray[np.int64]
"""Indices [K] of some of the robots."""
Groups = dict[str, Array]
"""Observations by group, each [N, D]."""


class Go1Env:
    """N Go1 robots under velocity commands; a `VecEnv`.

    Actions [N, 12] are offsets of the joint targets from the stand pose, in units of `ACTION_SCALE`.
    """

    def __init__(
        self,
        num_envs: int,
        config: Go1Config | None = None,
        *,
        seed: int = 1,
        evaluation: bool = False,
        device: torch.device | str = "cpu",
        groups: Mapping[str, dict[str, observations.Entry]] = observations.GROUPS,
    ) -> None:
        self.config = config = config or Go1Config()
        self.num_envs, self.is_evaluation = num_envs, evaluation
        self.device = torch.device(device)
        self.step_dt = STEP_DT
        self.max_episode_length = round(config.episode_length_s / STEP_DT)
        self._groups = {g: observations.ObservationGroup(e) for g, e in groups.items()}
        self.observation_spaces: dict[str, gymnasium.Space[Any]] = {
            name: gymnasium.spaces.Box(-np.inf, np.inf, (group.size,), np.float32)
            for name, group in self._groups.items()
        }
        self.action_space: gymnasium.Space[Any] = gymnasium.spaces.Box(-np.inf, np.inf, (12,), np.float32)
        self.action_names = JOINTS
        self.observation_names = {name: group.names for name, group in self._groups.items()}
        mirrors = {name: _as_tensors(*group.mirror()) for name, group in self._groups.items()}
        self.mirror = MirrorMap(mirrors, _as_tensors(*mirror_of(JOINTS)))

        model = load_model(config.physics)
        is_randomised = not evaluation and config.num_variants > 1
        models = [vary(model, v) for v in variants(config.num_variants)] if is_randomised else [model]
        self._physics = BatchedPhysics(models, num_envs, substeps(model, STEP_DT), config.num_threads)
        self._commands = commands.EVALUATION if evaluation else config.commands
        self._weights = {name: config.reward_weights.get(name, w) for name, (w, _) in rewards.TERMS.items()}
        self._generator = torch.Generator().manual_seed(seed)
        self._renderer: Go1Renderer | None = None

        self._episode_step = np.zeros(num_envs, np.int64)
        self._command = np.zeros((num_envs, 3), np.float32)
        self._command_steps = np.zeros(num_envs, np.int64)
        self._phase = np.zeros(num_envs, np.float32)
        self._action = np.zeros((num_envs, 12), np.float32)
        self._observations: Groups = {}

    def reset(self, seed: int | None = None, mask: Tensor | None = None) -> dict[str, Tensor]:
        """Start new episodes. A full reset in training spreads the robots over the episode length, so that
        their time limits do not all come at once.
        """
        if seed is not None:
            self._generator.manual_seed(seed)
        is_full = mask is None or not self._observations
        rows = np.arange(self.num_envs) if mask is None or is_full else np.flatnonzero(mask.cpu().numpy())
        self._start_episodes(rows)
        if is_full and not self.is_evaluation:
            self._episode_step[:] = self._uniform(self.num_envs) * self.max_episode_length
        new = self._observe(self._motion(rows))
        self._observations = new if is_full else _replaced(self._observations, rows, new)
        return self._out(self._observations)

    def step(self, actions: Tensor) -> Step:
        action = component_major(actions.detach().cpu().numpy())  # a copy
        self._push()
        target = STAND + ACTION_SCALE * action
        is_plausible = self._physics.step(target)
        self._episode_step += 1
        advanced = (self._phase + np.float32(GAIT_FREQUENCY * STEP_DT)) % 1.0
        self._phase = np.where(is_moving(self._command), advanced, self._phase)
        is_broken = ~is_plausible
        if is_broken.any():  # nothing of a diverged simulation may reach rewards or observations
            self._place_standing(np.flatnonzero(is_broken))

        motion = self._motion(previous_action=self._action, action=action, target=target)
        terminated = is_broken
        for term in terminations.TERMS.values():
            terminated = terminated | term(motion.state)
        truncated = (self._episode_step >= self.max_episode_length) & ~terminated
        reward, log = self._judge(motion, terminated, is_plausible)
        self._action = action
        self._change_commands()
        now = self._observe(self._motion(state=motion.state))

        ended = np.flatnonzero(terminated | truncated)
        final = now if len(ended) else None
        if len(ended):
            self._start_episodes(ended)
            now = _replaced(now, ended, self._observe(self._motion(ended)))
        self._observations = now
        return Step(
            observations=self._out(now),
            rewards=self._tensor(reward),
            terminated=self._tensor(terminated),
            truncated=self._tensor(truncated),
            final_observations=None if final is None else self._out(final),
            final_known=None if final is None else self._tensor(is_plausible),
            log=log,
        )

    def _judge(
        self, m: Motion, terminated: NDArray[np.bool_], is_plausible: NDArray[np.bool_]
    ) -> tuple[Array, dict[str, float | Tensor]]:
        """Reward [N] and the log of this step. A robot whose simulation diverged earns nothing."""
        terms = np.stack([self._weights[n] * term(m) for n, (_, term) in rewards.TERMS.items()])
        terms *= is_plausible
        reward = np.maximum(terms.sum(0), 0) * STEP_DT + self.config.fall_reward * terminated
        error = m.command[:, :2] - m.state.linear_velocity_yaw[:, :2]
        log: dict[str, float | Tensor] = {
            "Eval/linear_velocity_error": self._tensor(np.hypot(error[:, 0], error[:, 1])),
            "Eval/yaw_rate_error": self._tensor(np.abs(m.command[:, 2] - m.state.yaw_rate)),
        }
        for name, mean in zip(self._weights, terms.mean(1).tolist(), strict=True):
            log[f"Episode/{name}"] = mean
        return reward.astype(np.float32), log

    def _motion(
        self,
        rows: Rows | slice = slice(None),
        *,
        state: RobotState | None = None,
        action: Array | None = None,
        previous_action: Array | None = None,
        target: Array | None = None,
    ) -> Motion:
        """The motion of the given rows, at rest where no action is given."""
        if state is None:
            state = RobotState.from_physics(self._physics.qpos[rows], self._physics.qvel[rows])
        action = self._action[rows] if action is None else action
        torque = np.zeros_like(action)
        if target is not None:
            wanted = KP * (target - state.joint_pos) - KD * state.joint_vel
            torque = np.maximum(np.minimum(wanted, EFFORT_LIMIT), -EFFORT_LIMIT)
        return Motion(
            state=state,
            command=self._command[rows],
            phase=self._phase[rows],
            action=action,
            previous_action=action if previous_action is None else previous_action,
            torque=torque,
        )

    def _observe(self, m: Motion) -> Groups:
        obs = {name: group.assemble(m) for name, group in self._groups.items()}
        if not self.is_evaluation and self.config.sensor_noise:
            noise = 2 * self._uniform(*obs["policy"].shape) - 1
            obs["policy"] += noise * (self._groups["policy"].noise * self.config.sensor_noise)
        return obs

    def _start_episodes(self, rows: Rows) -> None:
        self._place_standing(rows)
        if not self.is_evaluation:
            self._disturb_start(rows)
        self._episode_step[rows] = 0
        self._action[rows] = 0.0
        self._phase[rows] = 0.0 if self.is_evaluation else self._uniform(len(rows))
        self._command[rows], self._command_steps[rows] = self._draw_commands(len(rows))

    def _place_standing(self, rows: Rows) -> None:
        qpos = np.zeros((len(rows), 19))
        qpos[:, 2], qpos[:, 3], qpos[:, 7:] = STAND_HEIGHT, 1.0, STAND
        self._physics.place(rows, qpos, 0.0)

    def _disturb_start(self, rows: Rows) -> None:
        """Any heading, joints and velocities a little off, so that the first steps are not all the same."""
        unit = 2 * self._uniform(len(rows), 31) - 1
        half_yaw = 0.5 * np.pi * unit[:, 0]
        self._physics.qpos[rows, 3], self._physics.qpos[rows, 6] = np.cos(half_yaw), np.sin(half_yaw)
        self._physics.qpos[rows, 7:] += 0.1 * unit[:, 1:13]
        self._physics.qvel[rows] = unit[:, 13:] * ([0.3] * 6 + [0.5] * 12)

    def _draw_commands(self, count: int) -> tuple[Array, NDArray[np.int64]]:
        return commands.draw(count, self._commands, STEP_DT, self._generator)

    def _change_commands(self) -> None:
        self._command_steps -= 1
        rows = np.flatnonzero(self._command_steps <= 0)
        if len(rows):
            self._command[rows], self._command_steps[rows] = self._draw_commands(len(rows))

    def _push(self) -> None:
        if self.is_evaluation or not self.config.push_speed:
            return
        rows = np.flatnonzero(self._uniform(self.num_envs) < STEP_DT / self.config.push_interval_s)
        self._physics.qvel[rows, :2] += (2 * self._uniform(len(rows), 2) - 1) * self.config.push_speed

    def _uniform(self, *shape: int) -> Array:
        """Random numbers in [0, 1)."""
        return torch.rand(*shape, generator=self._generator).numpy()

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def _out(self, groups: Groups) -> dict[str, Tensor]:
        return {g: self._tensor(o) for g, o in groups.items()}

    def render(self) -> np.ndarray:
        """Robot 0 as uint8 [height, width, 3]; the camera follows, an arrow shows the command."""
        if self._renderer is None:
            from surefoot.tasks.go1.render import Go1Renderer

            self._renderer = Go1Renderer()
        return self._renderer.render(self._physics.qpos[0], self._command[0])

    def state_dict(self) -> dict[str, Any]:
        """Everything that a bit-exact continuation needs, the last observations included."""
        return {
            **{name: torch.tensor(getattr(self, name)) for name in _STATE},
            "physics": self._physics.state_dict(),
            "generator": self._generator.get_state(),
            "observations": {g: torch.tensor(o) for g, o in self._observations.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        count = len(state["_phase"])
        if count != self.num_envs:
            raise ConfigError(
                f"The saved state holds {count} robots and this environment has {self.num_envs}; use the "
                "same num_envs and number of processes."
            )
        for name in _STATE:
            setattr(self, name, state[name].cpu().numpy().copy())
        # the order in memory decides the order of sums, and with it the last bit of a reward
        self._action = component_major(self._action)
        self._physics.load_state_dict(state["physics"])
        self._generator.set_state(state["generator"].cpu())
        self._observations = {g: o.cpu().numpy().copy() for g, o in state["observations"].items()}

    def close(self) -> None:
        self._physics.close()
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None


_STATE = ("_episode_step", "_command", "_command_steps", "_phase", "_action")


def _as_tensors(permutation: list[int], sign: list[float]) -> tuple[Tensor, Tensor]:
    return torch.tensor(permutation), torch.tensor(sign)


def _replaced(groups: Groups, rows: Rows, new: Groups) -> Groups:
    """A copy with the given rows taken from `new` [K, D]."""
    copies = {g: o.copy() for g, o in groups.items()}
    for g, copy in copies.items():
        copy[rows] = new[g]
    return copies
