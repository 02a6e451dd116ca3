"""N simulations of one MuJoCo model, stepped together on the thread pool of `mujoco.rollout`.

Each thread owns one `MjData` that visits many rows, which is several times faster and far smaller than one
`MjData` per environment. Between calls an environment is nothing but its row of `state`, so resetting or
pushing a robot is writing into `qpos` or `qvel`.
"""

# pyright: reportAttributeAccessIssue=false
# mujoco has no type stubs
from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mujoco
import numpy as np
import torch
from mujoco import rollout
from numpy.typing import NDArray

from surefoot.errors import ConfigError

LARGEST_PLAUSIBLE = 1e4
"""m, rad, m/s or rad/s. A coordinate beyond it, or a NaN: the simulation of this row has diverged."""


def default_num_threads() -> int:
    """Cores this process may use, shared evenly among the processes of this machine (`LOCAL_WORLD_SIZE`)."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, cores // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


@contextmanager
def _without_warnings() -> Iterator[None]:
    """MuJoCo's default handler writes a log file into the working directory; divergence is reported by
    `step`.
    """
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda _: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


class BatchedPhysics:
    """N rows of MuJoCo state; row `i` runs on `models[i % len(models)]`.

    `qpos` [N, nq] and `qvel` [N, nv] are float64 views of the state: who writes there moves the robot.
    """

    def __init__(
        self,
        models: Sequence[mujoco.MjModel],
        num_envs: int,
        substeps: int,
        num_threads: int | None = None,
    ) -> None:
        first = models[0]
        num_threads = default_num_threads() if num_threads is None else num_threads
        if num_threads < 1:
            raise ConfigError(f"num_threads is {num_threads}; expected at least 1, or null for all cores.")
        width = 1 + first.nq + first.nv
        if mujoco.mj_stateSize(first, mujoco.mjtState.mjSTATE_FULLPHYSICS) != width:
            raise ConfigError("BatchedPhysics handles no models with activations, plugins or mocap bodies.")
        self.num_envs, self.substeps, self.num_threads = num_envs, substeps, num_threads
        self.state = np.zeros((num_envs, width))
        self.qpos = self.state[:, 1 : 1 + first.nq]
        self.qvel = self.state[:, 1 + first.nq :]
        self.qpos[:] = first.qpos0
        self._warmstart = np.zeros((num_envs, first.nv))
        self._trace = np.empty((num_envs, substeps, width))
        self._ctrl = np.empty((num_envs, substeps, first.nu))
        self._sensors = np.empty((num_envs, substeps, first.nsensordata))
        self._dt: float = first.opt.timestep
        for model in models:
            # a diverged row must stay visible: MuJoCo's own reset would put it back in silence
            model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
        self._models = [models[i % len(models)] for i in range(num_envs)]
        self._data = [mujoco.MjData(first) for _ in range(num_threads)]
        self._pool = rollout.Rollout(nthread=num_threads if num_threads > 1 else 0)

    def step(self, ctrl: np.ndarray) -> NDArray[np.bool_]:
        """Hold `ctrl` [N, nu] for `substeps` physics steps. Returns [N] bool: rows still plausible."""
        self._ctrl[:] = ctrl[:, None]
        with _without_warnings():
            self._pool.rollout(
                self._models,
                self._data,
                self.state,
                self._ctrl,
                skip_checks=True,
                nstep=self.substeps,
                initial_warmstart=self._warmstart,
                state=self._trace,
                sensordata=self._sensors,
            )
        previous = self._trace[:, -2] if self.substeps > 1 else self.state
        nv = self._warmstart.shape[1]
        # rollout does not return the solver's warm start; the last step's mean acceleration is as good
        np.subtract(self._trace[:, -1, -nv:], previous[:, -nv:], out=self._warmstart)
        self._warmstart /= self._dt
        self.state[:] = self._trace[:, -1]
        return np.abs(self.state[:, 1:]).max(1) < LARGEST_PLAUSIBLE  # False for NaN too

    def place(self, rows: NDArray[np.int64], qpos: np.ndarray, qvel: np.ndarray | float) -> None:
        """Put the rows `rows` [K] into a new state, with nothing left of the old one."""
        self.state[rows, 0] = 0.0
        self.qpos[rows] = qpos
        self.qvel[rows] = qvel
        self._warmstart[rows] = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"state": torch.tensor(self.state), "warmstart": torch.tensor(self._warmstart)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state[:] = state["state"].numpy()
        self._warmstart[:] = state["warmstart"].numpy()

    def close(self) -> None:
        """Stop the thread pool."""
        self._pool.close()
