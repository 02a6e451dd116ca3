"""Environments of every generation of RSL-RL's clients, in the form of the newest."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from surefoot.compat.rsl_rl.algorithms.ppo import FINAL_OBSERVATIONS
from surefoot.config import SurefootWarning
from surefoot.errors import EnvContractError

REQUIRED = ("num_envs", "num_actions", "get_observations", "step")


class EnvAdapter:
    """Steps a client's environment and brings what it returns into one form.

    | generation | `get_observations()` | `step()` |
    |---|---|---|
    | 1.0.2 | tensor, or None by `get_privileged_observations()` | (obs, privileged, rewards, dones, infos) |
    | 2.x | (tensor, extras), more groups in `extras["observations"]` | (obs, rewards, dones, extras) |
    | 3.0 and later | TensorDict or mapping, a tensor per group | (obs, rewards, dones, extras) |

    The tensor of older generations becomes the group `policy`, the privileged one `critic`.

    Args:
        env: The environment; it stays as it is.

    Raises:
        EnvContractError: it lacks something without which there is no training.
    """

    def __init__(self, env: Any) -> None:
        missing = [name for name in REQUIRED if not hasattr(env, name)]
        if missing:
            raise EnvContractError(
                f"the environment has no {', no '.join(missing)}; RSL-RL's interface needs it."
            )
        self.env = env
        self.num_envs = int(env.num_envs)
        self._device: torch.device | str | None = getattr(env, "device", None)
        self._has_privileged = False

    @property
    def device(self) -> torch.device | str:
        """Where actions go. Some environments do not say: where their observations are."""
        return "cpu" if self._device is None else self._device

    def first_observations(self) -> TensorDict:
        """The observations to build the algorithm from. Environments of versions 1 and 2 hold none before the
        runner has reset them; newer ones reset themselves.
        """
        observations = self.env.get_observations()
        if not _is_grouped(observations) and callable(getattr(self.env, "reset", None)):
            self.env.reset()
            observations = self.env.get_observations()
        return self._first_form(observations)

    def observations(self) -> TensorDict:
        """The present observations. To call it may reset the environments (MuJoCo Playground): it is done
        before a rollout, never within one.
        """
        return self._first_form(self.env.get_observations())

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        """One step.

        Returns:
            Observations; rewards [N], of a floating dtype; dones [N], of the environment's dtype; extras, a
            copy in which `time_outs` [N] is a tensor and final observations are mappings.

        Raises:
            EnvContractError: something has another form.
        """
        result = self.env.step(actions)
        if len(result) == 4:
            observations, rewards, dones, extras = result
            privileged = self._privileged() if self._has_privileged else None
        elif len(result) == 5:
            observations, privileged, rewards, dones, extras = result
            if isinstance(privileged, Tensor) and privileged.dim() < 2:
                raise EnvContractError(
                    "step() returned five values, the second of them one number per environment. RSL-RL's "
                    "form is (obs, rewards, dones, extras), or (obs, privileged_obs, rewards, dones, infos); "
                    "Gymnasium environments train with `surefoot train`."
                )
        else:
            raise EnvContractError(f"step() returned {len(result)} values; expected 4, or 5 (version 1.0.2).")
        extras = dict(extras or {})
        observations = self._grouped(observations, privileged, extras)
        rewards = self._per_env(rewards, "rewards")
        if not rewards.is_floating_point():
            rewards = rewards.to(torch.get_default_dtype())
        dones = self._per_env(dones, "dones")
        if extras.get("time_outs") is None:
            extras.pop("time_outs", None)
        else:
            extras["time_outs"] = self._per_env(extras["time_outs"], "extras['time_outs']", dones.device)
        for name in FINAL_OBSERVATIONS:
            if isinstance(extras.get(name), Tensor):
                extras[name] = {"policy": extras[name]}
            elif isinstance(extras.get(name), Mapping):
                extras[name] = dict(extras[name].items())
        return observations, rewards, dones, extras

    def randomize_episode_lengths(self) -> None:
        """Let the running episodes be of any age, so that not all end at once."""
        lengths, limit = (
            getattr(self.env, name, None) for name in ("episode_length_buf", "max_episode_length")
        )
        if lengths is None or limit is None:
            name = "episode_length_buf" if lengths is None else "max_episode_length"
            text = f"init_at_random_ep_len has no effect: the environment has no {name}."
            warnings.warn(text, SurefootWarning, stacklevel=3)
            return
        if isinstance(limit, Tensor) and limit.numel() > 1:
            ages = torch.rand(lengths.shape, device=lengths.device) * limit.to(lengths.device)
            self.env.episode_length_buf = ages.to(lengths.dtype)
        else:
            self.env.episode_length_buf = torch.randint_like(lengths, high=max(int(limit), 1))

    def _first_form(self, observations: Any) -> TensorDict:
        extras: Mapping[str, Any] = {}
        if isinstance(observations, tuple):
            observations, extras = observations
        privileged = None if _is_grouped(observations) else self._privileged()
        self._has_privileged = privileged is not None
        grouped = self._grouped(observations, privileged, extras)
        if self._device is None:
            self._device = next(iter(grouped.values())).device
        return grouped

    def _privileged(self) -> Any:
        get = getattr(self.env, "get_privileged_observations", None)
        return get() if callable(get) else None

    def _grouped(self, observations: Any, privileged: Any, extras: Mapping[str, Any]) -> TensorDict:
        if isinstance(observations, TensorDict) and observations.batch_size[:1] == (self.num_envs,):
            return observations
        groups: dict[str, Any]
        if _is_grouped(observations):
            groups = dict(observations.items())
        else:
            groups = {**(extras.get("observations") or {}), "policy": observations}
            if privileged is not None:
                groups["critic"] = privileged
        # a group of groups, which no model reads, stays as it is
        found = {
            name: x if _is_grouped(x) else torch.as_tensor(x) for name, x in groups.items() if x is not None
        }
        for name, x in found.items():
            if isinstance(x, Tensor) and x.shape[:1] != (self.num_envs,):
                raise EnvContractError(
                    f"the observation group '{name}' is {tuple(x.shape)}; expected ({self.num_envs}, ...)."
                )
        return TensorDict(found, batch_size=[self.num_envs])

    def _per_env(self, value: Any, name: str, device: torch.device | None = None) -> Tensor:
        """[N] from [N], [N, 1] or, for all alike, a single value."""
        x = torch.as_tensor(value, device=device)
        if x.shape == (self.num_envs, 1):
            return x.squeeze(1)
        if x.dim() == 0 and name.startswith("extras"):
            return x.expand(self.num_envs)
        if x.shape != (self.num_envs,):
            raise EnvContractError(
                f"step() returned {name} of shape {tuple(x.shape)}; expected ({self.num_envs},)."
            )
        return x


def _is_grouped(observations: Any) -> bool:
    return isinstance(observations, (Mapping, TensorDict))
