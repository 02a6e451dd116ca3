"""Any `gymnasium.vector.VectorEnv` as a VecEnv, in all three autoreset conventions.

What the conventions mean at a step that ends an episode (https://farama.org/Vector-Autoreset-Mode):

    NEXT_STEP  the observation is the final one; the next step only resets, and `valid` is False there
    SAME_STEP  the observation is already the new episode's; the final one is in `info["final_obs"]`
    DISABLED   the observation is the final one; we reset the ended rows and return the new episode's
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from torch import Tensor

from surefoot.distributed import global_index
from surefoot.envs.envpool import EnvPoolVectorEnv
from surefoot.envs.info import InfoLog, as_vector_info, final_observation, pick
from surefoot.envs.restarts import Restarts
from surefoot.envs.spaces import (
    check_action_space,
    check_counted,
    observation_groups,
    tensor_dtype,
    tensor_shape,
)
from surefoot.envs.state import State, has_state, load_state, save_state
from surefoot.envs.workers import WorkerErrors, end_workers, failure
from surefoot.errors import EnvContractError
from surefoot.networks.inputs import MASK_GROUP
from surefoot.types import MirrorMap, Observations, Step

_SEEDS_EACH = (SyncVectorEnv, AsyncVectorEnv, EnvPoolVectorEnv)
"""Vector environments with a seed for each environment, which reset single rows too."""
_NUMPY = {torch.float32: np.float32, torch.int64: np.int64, torch.uint8: np.uint8}


class GymnasiumVecEnv:
    """The adapter. Everything is cast once here: rewards and observations to float32, images stay uint8.

    An environment may define `step_dt` (seconds per step) and `mirror` (a MirrorMap) as attributes. The
    adapter has `state_dict` and `load_state_dict` only where every environment has them, and `render` only
    where the environment was made with `render_mode="rgb_array"`.
    """

    def __init__(
        self,
        envs: VectorEnv,
        device: torch.device | str = "cpu",
        seed: int | None = None,
        restarts: Restarts | None = None,
    ) -> None:
        """Wrap `envs`; `seed` serves the first `reset()` that is not given one; `restarts` stands behind the
        pipes of an AsyncVectorEnv.
        """
        self._envs, self._restarts = envs, restarts
        self._seed = seed
        self._mode = _autoreset_mode(envs)
        base = envs.unwrapped
        if isinstance(base, AsyncVectorEnv):
            base._raise_if_errors = WorkerErrors(base)  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
        self.num_envs = int(envs.num_envs)
        self.device = torch.device(device)
        self.action_space: spaces.Space[Any] = envs.single_action_space
        check_action_space(self.action_space)
        groups = observation_groups(envs.single_observation_space)
        self.observation_spaces: dict[str, spaces.Space[Any]] = {
            name: space for name, (_, space) in groups.items()
        }
        self._groups = [(n, path, tensor_dtype(space)) for n, (path, space) in groups.items()]
        self.max_episode_length: int | Tensor | None = _max_episode_steps(envs)
        self.step_dt: float | None = _attribute(envs, "step_dt")
        self.mirror: MirrorMap | None = _attribute(envs, "mirror")
        self._has_mask, self._gives_final = False, True
        if isinstance(self.action_space, (spaces.Discrete, spaces.MultiDiscrete)):
            self._find_action_mask()
        self._ended = np.zeros(self.num_envs, dtype=bool)
        self._last: Observations | None = None
        self._log = InfoLog(self.num_envs)
        if has_state(envs):
            self.state_dict, self.load_state_dict = self._state_dict, self._load_state_dict
        if envs.render_mode == "rgb_array":
            self.render = self._render

    def reset(self, seed: int | None = None, mask: Tensor | None = None) -> Observations:
        """Start new episodes; environment i gets its own seed, later episodes continue its generator."""
        if seed is None and self._last is None:
            seed = self._seed
        rows = None if mask is None else np.asarray(torch.as_tensor(mask).cpu(), dtype=bool).reshape(-1)
        if rows is not None and self._last is not None and not rows.all():
            return self._reset_rows(rows, seed)
        observation, info = self._call("reset", lambda: self._envs.reset(seed=self._seeds(seed)))
        self._ended[:] = False
        self._last = self._tensors(observation, as_vector_info(self._envs, info))
        return self._last

    def step(self, actions: Tensor) -> Step:
        """One step of every environment; the end of an episode is described at the top of this file."""
        sent = self._actions(actions)
        result = self._call("step", lambda: self._envs.step(sent))
        observation, reward, terminated, truncated, info = result
        info = as_vector_info(self._envs, info)
        terminated, truncated = self._flags(terminated), self._flags(truncated)
        ended = terminated | truncated
        lost = self._restarts.take_lost() if self._restarts is not None else None
        # The last observation of an episode needs no action mask: no action follows it.
        acting = None if self._mode is AutoresetMode.SAME_STEP else ~ended
        observations = self._tensors(observation, info, acting)
        step = Step(
            observations=observations,
            rewards=self._to_device(np.array(reward, dtype=np.float32).reshape(self.num_envs)),
            terminated=self._to_device(terminated),
            truncated=self._to_device(truncated),
            # Read at ended rows only; given at every step, it says that they are to be had here.
            final_observations=observations if self._gives_final else None,
            log=self._log.collect(info),
        )
        self._last = observations
        if self._mode is AutoresetMode.NEXT_STEP:
            if self._ended.any():
                step.valid = self._to_device(~self._ended)
            self._ended = ended
        elif self._mode is AutoresetMode.SAME_STEP:
            if lost is not None:
                # neither the reward of these rows nor what followed them is known
                step.valid = self._to_device(~lost)
                ended = ended & ~lost
                step.final_known = self._to_device(ended)
            if ended.any():
                step.final_observations, step.final_known = self._final_observations(
                    observations, info, ended
                )
                self._gives_final = step.final_observations is not None
        elif ended.any():
            self._last = step.observations = self._reset_rows(ended, None)
        return step

    @property
    def backend(self) -> str:
        """What steps the environments: `sync`, `async`, `envpool`, or `auto`: a VectorEnv of the task."""
        kinds = (("sync", SyncVectorEnv), ("async", AsyncVectorEnv), ("envpool", EnvPoolVectorEnv))
        return next((name for name, kind in kinds if isinstance(self._envs.unwrapped, kind)), "auto")

    @property
    def num_restarts(self) -> int:
        """Worker processes that were started again so far."""
        return 0 if self._restarts is None else self._restarts.count

    def close(self) -> None:
        """End the environments and their worker processes, also after a failure."""
        base = self._envs.unwrapped
        if isinstance(base, AsyncVectorEnv):
            waiting = getattr(base, "_state", None)
            if getattr(waiting, "value", "default") != "default" or None in base.parent_pipes:
                end_workers(base)
        try:
            self._envs.close()
        except (EOFError, OSError):
            end_workers(base)

    # --- towards numpy ---

    def _actions(self, actions: Tensor) -> np.ndarray[Any, Any]:
        """A fresh array of the space's dtype, inside its bounds; the environment may change it in place."""
        space = self.action_space
        expected = (self.num_envs, *(space.shape or ()))
        given = actions.detach().cpu().numpy()
        if np.issubdtype(space.dtype, np.integer) and given.dtype.kind == "f":
            given = np.rint(given)  # a cast would cut towards 0, which then came up twice as often
        sent = np.array(given, dtype=space.dtype, order="C")
        if sent.shape != expected:
            raise EnvContractError(f"step() got actions of shape {sent.shape}; expected {expected}.")
        if isinstance(space, spaces.Box):
            # float32 rounding may leave a bound by an ulp; np.clip passes NaN on.
            np.clip(sent, space.low, space.high, out=sent)
        return sent

    def _seeds(self, seed: int | None) -> Any:
        if seed is None or not isinstance(self._envs.unwrapped, _SEEDS_EACH):
            return seed
        # Gymnasium's seed+i would give run 2 all but one of the episodes of run 1.
        return [int(s) for s in np.random.SeedSequence(seed).generate_state(self.num_envs) >> 1]

    def _reset_rows(self, rows: np.ndarray[Any, Any], seed: int | None) -> Observations:
        assert self._last is not None, "a partial reset follows a full one"
        if not rows.any():
            return self._last
        base = self._envs.unwrapped
        if self._mode is not AutoresetMode.DISABLED and not isinstance(base, _SEEDS_EACH):
            raise EnvContractError(
                f"{type(base).__name__} cannot reset single rows; use the backend 'sync' or 'async'."
            )
        options = {"reset_mask": rows}
        observation, info = self._call(
            "reset", lambda: self._envs.reset(seed=self._seeds(seed), options=options)
        )
        fresh = self._tensors(observation, as_vector_info(self._envs, info), rows)
        self._ended = self._ended & ~rows
        mask = self._to_device(rows)
        last = self._last
        self._last = {
            g: torch.where(mask.view(-1, *[1] * (x.dim() - 1)), x, last[g]) for g, x in fresh.items()
        }
        return self._last

    def _call(self, method: str, run: Callable[[], Any]) -> Any:
        try:
            return run()
        except EnvContractError:
            self.close()
            raise
        except Exception as error:
            text = failure(self._envs.unwrapped, error, method)
            self.close()
            raise EnvContractError(text) from error

    # --- towards torch ---

    def _to_device(self, array: np.ndarray[Any, Any]) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self.device.type == "cpu" else tensor.to(self.device)

    def _flags(self, flags: Any) -> np.ndarray[Any, Any]:
        return np.array(flags, dtype=bool).reshape(self.num_envs)

    def _tensors(
        self, observation: Any, info: Mapping[str, Any], rows: np.ndarray[Any, Any] | None = None
    ) -> dict[str, Tensor]:
        """Fresh tensors of each group [N, ...]; of the action mask only `rows` need to be given."""
        tensors: dict[str, Tensor] = {}
        for name, path, dtype in self._groups:
            array = observation
            for key in path:
                array = array[key]
            values = np.array(array, dtype=_NUMPY[dtype], order="C")
            if dtype is torch.int64:
                check_counted(self.observation_spaces[name], values, name)
            tensors[name] = self._to_device(values)
        if self._has_mask:
            tensors[MASK_GROUP] = self._to_device(self._action_mask(info, rows))
        return tensors

    def _action_mask(
        self, info: Mapping[str, Any], rows: np.ndarray[Any, Any] | None
    ) -> np.ndarray[Any, Any]:
        mask = np.ones((self.num_envs, *tensor_shape(self.observation_spaces[MASK_GROUP])), dtype=np.float32)
        given = self._has_entry(info, MASK_GROUP)
        missing = ~given if rows is None else rows & ~given
        if missing.any():
            raise EnvContractError(
                f"environment {global_index(int(missing.argmax()), self.num_envs)} gave no "
                "info['action_mask']; give it at each step and reset."
            )
        for i in np.flatnonzero(given):
            mask[i] = info[MASK_GROUP][i]
        return mask

    def _has_entry(self, info: Mapping[str, Any], key: str) -> np.ndarray[Any, Any]:
        """[N], which environments gave `info[key]`."""
        return np.array(np.broadcast_to(info.get(f"_{key}", key in info), self.num_envs), dtype=bool)

    def _find_action_mask(self) -> None:
        _, info = self._call("reset", lambda: self._envs.reset())
        info = as_vector_info(self._envs, info)
        if MASK_GROUP not in info:
            return
        if MASK_GROUP in self.observation_spaces:
            raise EnvContractError(
                "'action_mask' is both an observation and an info entry; drop one of the two."
            )
        first = self._has_entry(info, MASK_GROUP).argmax()
        shape = np.shape(info[MASK_GROUP][first])
        self.observation_spaces[MASK_GROUP] = spaces.MultiBinary(shape)
        self._has_mask = True

    def _final_observations(
        self, observations: dict[str, Tensor], info: Mapping[str, Any], ended: np.ndarray[Any, Any]
    ) -> tuple[dict[str, Tensor] | None, Tensor]:
        """SAME_STEP: the final observations that the info holds, and where it held them."""
        source, given = final_observation(info)
        known = np.zeros_like(ended) if source is None else ended & given
        if not known.any():
            return None, self._to_device(known)
        arrays = {
            name: np.zeros((self.num_envs, *tensor_shape(self.observation_spaces[name])), dtype=_NUMPY[dtype])
            for name, _, dtype in self._groups
        }
        for i in np.flatnonzero(known):
            for name, path, _ in self._groups:
                value = pick(source, int(i), path)
                if value is None:
                    known[i] = False
                    break
                arrays[name][i] = value
        final = {name: self._to_device(array) for name, array in arrays.items()}
        if self._has_mask:
            final[MASK_GROUP] = observations[MASK_GROUP]
        return final, self._to_device(known)

    # --- optional parts of the contract ---

    def _state_dict(self) -> State:
        states = self._call("state_dict", lambda: save_state(self._envs))
        return {"envs": states, "ended": self._ended.tolist(), "observations": dict(self._last or {})}

    def _load_state_dict(self, state: State) -> None:
        ended = np.array(state["ended"], dtype=bool)
        self._call("load_state_dict", lambda: load_state(self._envs, state["envs"], ended))
        self._ended = ended
        self._last = {g: x.to(self.device) for g, x in state["observations"].items()} or None

    def _render(self) -> np.ndarray[Any, Any]:
        base = self._envs.unwrapped
        if isinstance(base, SyncVectorEnv):
            return np.asarray(base.envs[0].render())
        if isinstance(base, AsyncVectorEnv) and base.call("has_wrapper_attr", "surefoot_render_first")[0]:
            return np.asarray(base.call("surefoot_render_first")[0])
        frames = self._envs.render()
        assert frames is not None, "render_mode is rgb_array"
        return np.asarray(frames[0])


def _autoreset_mode(envs: VectorEnv) -> AutoresetMode:
    mode = envs.metadata.get("autoreset_mode")
    name = str(getattr(mode, "value", mode)).replace("_", "").lower()
    for known in AutoresetMode:
        if known.value.lower() == name:
            return known
    raise EnvContractError(
        f"metadata['autoreset_mode'] of {type(envs.unwrapped).__name__} is {mode!r}; expected one of "
        f"{', '.join(f'AutoresetMode.{m.name}' for m in AutoresetMode)}. Set it in the class: without "
        "it, the last step of an episode cannot be told from the first of the next."
    )


def _attribute(envs: VectorEnv, name: str) -> Any:
    """Attribute `name` of the first environment behind `envs`, or None."""
    base = envs.unwrapped
    if isinstance(base, SyncVectorEnv):
        env = base.envs[0]
        return env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else None
    if isinstance(base, AsyncVectorEnv):
        return base.get_attr(name)[0] if base.call("has_wrapper_attr", name)[0] else None
    return getattr(base, name, None)


def _max_episode_steps(envs: VectorEnv) -> int | None:
    limit = _attribute(envs, "_max_episode_steps")
    if limit is None and envs.spec is not None:
        limit = envs.spec.max_episode_steps
    return int(limit) if isinstance(limit, (int, np.integer)) else None
