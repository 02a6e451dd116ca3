"""Random network distillation under RSL-RL's names, over `surefoot.extensions.rnd`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from surefoot.algorithm.rollout_storage import RolloutStorage
from surefoot.compat.rsl_rl.extensions.duration import step_duration
from surefoot.compat.rsl_rl.modules.mlp import MLP
from surefoot.errors import ConfigError, did_you_mean
from surefoot.extensions.reward_scaling import RewardScaling
from surefoot.extensions.rnd import RND
from surefoot.networks.normalizers import RunningNormalizer

RND_STATE = "rnd_state"
"""The observation set whose novelty counts."""
SCHEDULE_KEYS = {
    "constant": ("mode",),
    "step": ("mode", "final_step", "final_value"),
    "linear": ("mode", "initial_step", "final_step", "final_value"),
}
"""What each mode of a weight schedule reads; RSL-RL passes over the others in silence."""


class DistanceRND(RND):
    """Surefoot's RND with RSL-RL's networks, and the Euclidean distance of their outputs as bonus.

    It is built before the environment is known: `setup` then only checks that the sizes agree.
    """

    activation_name: str
    num_states: int | None = None

    def build(self, size: int) -> None:
        if self.num_states is None:
            super().build(size)
            self.num_states = size
            if self.state_normalizer is not None:
                self.state_normalizer.clip = None
        elif size != self.num_states:
            raise ConfigError(
                f"RND: the observation groups {self.groups} of the set '{RND_STATE}' have {size} numbers "
                f"together, but num_states is {self.num_states}."
            )

    def network(self, size: int, hidden_dims: Sequence[int], num_outputs: int) -> nn.Sequential:
        return MLP(size, num_outputs, list(hidden_dims), self.activation_name)

    def error(self, predicted: Tensor, target: Tensor) -> Tensor:
        return torch.linalg.vector_norm(predicted - target, dim=-1)


class Statistics(nn.Module):
    """A running normaliser of Surefoot under the names that RSL-RL gives its tensors.

    Args:
        normalizer: Owned by the extension.
        shape: Of one row there: () for a number.
    """

    def __init__(self, normalizer: RunningNormalizer, shape: tuple[int, ...]) -> None:
        super().__init__()
        self._owner = (normalizer,)  # no submodule: its tensors have names of their own
        self.shape = (1, *shape)

    @property
    def normalizer(self) -> RunningNormalizer:
        return self._owner[0]

    @property
    def mean(self) -> Tensor:
        """[D]"""
        return self.normalizer.mean.to(self.normalizer.shift.dtype)

    @property
    def std(self) -> Tensor:
        """[D]; 1 before anything is counted."""
        known = self.normalizer.count > 0
        return torch.where(known, self.normalizer.std, 1.0).to(self.normalizer.shift.dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.normalizer(x)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        tensors = {"_mean": self.mean, "_var": self.std.square(), "_std": self.std}
        for name, x in tensors.items():
            destination[prefix + name] = x.reshape(self.shape)
        destination[prefix + "count"] = self.normalizer.count.clone()

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        wanted = [prefix + name for name in ("_mean", "_var", "count")]
        if absent := [key for key in wanted if key not in state_dict]:
            missing_keys.extend(absent)
            return
        mean, variance, count = (state_dict[key].detach() for key in wanted)
        own = self.normalizer
        if mean.shape != self.shape:
            error_msgs.append(
                f"{prefix}_mean has the shape {tuple(mean.shape)} in the checkpoint and {self.shape} here."
            )
            return
        with torch.no_grad():
            own.count.copy_(count)
            own.mean.copy_(mean.reshape(-1))
            own.m2.copy_(variance.reshape(-1).double() * own.count)
            known = own.count > 0
            own.shift.copy_(torch.where(known, own.mean, 0.0))
            own.scale.copy_(torch.where(known, 1 / (own.std + own.eps), 1.0))


class RewardStatistics(nn.Module):
    """The running deviation of the bonus' discounted return, under RSL-RL's names.

    Args:
        scaling: Owned by the extension.
    """

    def __init__(self, scaling: RewardScaling) -> None:
        super().__init__()
        self._owner = (scaling,)
        self.emp_norm = Statistics(scaling.statistics, ())
        # until the engine's `setup` knows better
        scaling.gamma = 0.99
        scaling.register_buffer("carry", torch.zeros(0))

    def forward(self, reward: Tensor) -> Tensor:
        """Rewards [N] of one step, counted while training and divided by the deviation so far."""
        scaling = self._owner[0]
        if not self.training:
            return reward * scaling.statistics.scale
        if scaling.carry.shape != reward.shape:
            scaling.carry = torch.zeros_like(reward)
        step = RolloutStorage(reward.shape[0], 1, {}, device=reward.device)
        step.is_first.zero_()  # where episodes end is not known here
        scaled = scaling.reward(step, reward.unsqueeze(0)).squeeze(0)
        scaling.learn(step)
        return scaled


class RandomNetworkDistillation(nn.Module):
    """RSL-RL's RND module: the owner of the native extension that the engine runs.

    Its own methods serve learning loops of clients. In the engine the bonus is that of the observation which
    really followed; a row whose final observation is not known gets none.

    Args:
        num_states: Numbers in the observation groups of the set `rnd_state`.
        obs_groups: Observation sets; `rnd_state` is read.
        num_outputs: Of predictor and target.
        predictor_hidden_dims, target_hidden_dims: Widths; -1 is `num_states`.
        activation: Between their layers.
        state_normalization: Normalise the observations by their running mean and deviation.
        reward_normalization: Divide the bonus by the running deviation of its discounted return.
        weight: Of the bonus, per environment step; `resolve_rnd_config` has multiplied the step's duration.
        weight_schedule: `{mode: constant}`, `{mode: step, final_step, final_value}` or `{mode: linear,
            initial_step, final_step, final_value}`, in environment steps.
        learning_rate: Of the predictor (Adam).
        device: Where it lives.
        num_learning_epochs, num_mini_batches: Passes over each rollout and mini-batches per pass, PPO's.

    Attributes:
        extension: For `surefoot.PPO`.

    Raises:
        ConfigError: the set `rnd_state` is missing, or a value cannot be used.
    """

    extension: DistanceRND

    def __init__(
        self,
        num_states: int,
        obs_groups: Mapping[str, Sequence[str]],
        num_outputs: int,
        predictor_hidden_dims: Sequence[int],
        target_hidden_dims: Sequence[int],
        activation: str = "elu",
        state_normalization: bool = False,
        reward_normalization: bool = False,
        weight: float = 0.0,
        weight_schedule: Mapping[str, Any] | None = None,
        learning_rate: float = 1e-3,
        device: torch.device | str = "cpu",
        *,
        num_learning_epochs: int = 5,
        num_mini_batches: int = 4,
    ) -> None:
        super().__init__()
        self.num_states, self.obs_groups, self.num_outputs = num_states, obs_groups, num_outputs
        self.state_normalization, self.reward_normalization = state_normalization, reward_normalization
        self.initial_weight, self.device = weight, device
        extension = DistanceRND(
            weight=weight,
            weight_schedule=_known_keys(weight_schedule),
            obs_groups=_rnd_groups(obs_groups),
            reward_normalization=reward_normalization,
            state_normalization=state_normalization,
            learning_rate=learning_rate,
            num_outputs=num_outputs,
            predictor_hidden_dims=list(predictor_hidden_dims),
            target_hidden_dims=list(target_hidden_dims),
            num_learning_epochs=num_learning_epochs,
            num_mini_batches=num_mini_batches,
        )
        extension.activation_name = activation
        extension.build(num_states)
        extension.to(device)
        # past nn.Module: the engine owns it, and its tensors stand below under RSL-RL's names
        object.__setattr__(self, "extension", extension)
        self.predictor, self.target = extension.predictor, extension.target
        self.target.eval()
        state, reward = extension.state_normalizer, extension.reward_scaling
        self.state_normalizer = nn.Identity() if state is None else Statistics(state, (num_states,))
        self.reward_normalizer = nn.Identity() if reward is None else RewardStatistics(reward)

    @property
    def optimizer(self) -> torch.optim.Adam:
        """Of the predictor."""
        return self.extension.optimizer

    @property
    def update_counter(self) -> int:
        """Environment steps so far."""
        return int(self.extension.num_steps)

    @update_counter.setter
    def update_counter(self, steps: int) -> None:
        self.extension.num_steps.fill_(steps)

    @property
    def weight(self) -> float:
        """Of the bonus now."""
        steps = torch.tensor(self.update_counter, dtype=torch.float64)
        return float(self.extension.schedule.weight(self.initial_weight, steps))

    def forward(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("RND has no forward pass of its own; call get_intrinsic_reward(obs).")

    def train(self, mode: bool = True) -> RandomNetworkDistillation:
        """As of any module, but the target never trains."""
        super().train(mode)
        self.target.eval()
        return self

    def get_rnd_state(self, obs: Mapping[str, Tensor]) -> Tensor:
        """The groups of the set `rnd_state` as one vector [N, D]."""
        return torch.cat([obs[group] for group in self.obs_groups[RND_STATE]], dim=-1)

    @torch.no_grad()
    def get_intrinsic_reward(self, obs: Mapping[str, Tensor]) -> Tensor:
        """The weighted bonus [N] of one more environment step."""
        self.extension.num_steps += 1
        state = self.extension.normalize(self.get_rnd_state(obs))
        error = self.extension.error(self.predictor(state), self.target(state))
        return self.weight * self.reward_normalizer(error)

    def compute_loss(self, obs: Mapping[str, Tensor]) -> Tensor:
        """0-d: the predictor's mean squared error."""
        with torch.no_grad():
            state = self.extension.normalize(self.get_rnd_state(obs))
            target = self.target(state)
        return nn.functional.mse_loss(self.predictor(state), target)

    def update_normalization(self, obs: Mapping[str, Tensor]) -> None:
        """Count the observations [R, ...]."""
        if self.extension.state_normalizer is not None:
            self.extension.state_normalizer.update(self.get_rnd_state(obs))


def resolve_rnd_config(
    alg_cfg: dict[str, Any], obs: Mapping[str, Tensor], obs_groups: Mapping[str, Sequence[str]], env: Any
) -> dict[str, Any]:
    """Complete `alg_cfg["rnd_cfg"]` for `RandomNetworkDistillation`.

    The weight is per second, as RSL-RL means it: it is multiplied by the duration of an environment step.

    Args:
        alg_cfg: The keys of `algorithm`; changed in place, its own `rnd_cfg` stays as it is.
        obs: Observations [N, ...] by group.
        obs_groups: Observation sets.
        env: Says how long its steps are, if it knows.

    Raises:
        ConfigError: the set `rnd_state` is missing, or one of its groups, or a group is not of vectors.
    """
    if alg_cfg.get("rnd_cfg") is None:
        alg_cfg["rnd_cfg"] = None
        return alg_cfg
    num_states = 0
    for group in _rnd_groups(obs_groups):
        if group not in obs.keys():  # noqa: SIM118 - a TensorDict iterates over its rows
            known = sorted(obs.keys())
            raise ConfigError(
                f"RND wants the observation group '{group}' of the set '{RND_STATE}', which the environment "
                f"does not give; it has {known}.{did_you_mean(group, known)}"
            )
        if obs[group].dim() != 2:
            raise ConfigError(
                f"RND reads vectors only, but the observation group '{group}' has the shape "
                f"{tuple(obs[group].shape)}."
            )
        num_states += obs[group].shape[-1]
    rnd_cfg = dict(alg_cfg["rnd_cfg"])
    rnd_cfg["weight"] = rnd_cfg.get("weight", 0.0) * step_duration(env, "rnd_cfg.weight")
    alg_cfg["rnd_cfg"] = rnd_cfg | {"num_states": num_states, "obs_groups": obs_groups}
    for key, default in (("num_learning_epochs", 5), ("num_mini_batches", 4)):
        alg_cfg["rnd_cfg"].setdefault(key, alg_cfg.get(key, default))
    return alg_cfg


def _rnd_groups(obs_groups: Mapping[str, Sequence[str]]) -> list[str]:
    if not obs_groups.get(RND_STATE):
        raise ConfigError(
            f"RND needs the observation set '{RND_STATE}' in obs_groups, which has {sorted(obs_groups)}; add "
            f"for example {RND_STATE}: [policy]."
        )
    return list(obs_groups[RND_STATE])


def _known_keys(schedule: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if schedule is None:
        return None
    read = SCHEDULE_KEYS.get(schedule.get("mode", "constant"))
    return {key: value for key, value in schedule.items() if read is None or key in read}
