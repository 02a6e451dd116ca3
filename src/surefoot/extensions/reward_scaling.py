"""Reward scaling: by a constant, or by the running deviation of the discounted return."""

from __future__ import annotations

import torch
from torch import Tensor

from surefoot.algorithm.config import Weight
from surefoot.algorithm.discounted import discounted_sum
from surefoot.algorithm.extension import Extension
from surefoot.algorithm.rollout_storage import RolloutStorage
from surefoot.errors import ConfigError
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.normalizers import RunningNormalizer
from surefoot.types import EnvSpec, Stats


class RewardScaling(Extension):
    """Divide rewards by the deviation of the running discounted return, so that values are of order 1.

    The return starts anew after each episode's end and skips rows that are only an autoreset. Statistics are
    refreshed once per iteration, after the update; the first rollout is scaled by its own. Source: "reward
    scaling" in Engstrom et al. 2020, arXiv:2005.12729, section 3.

    Args:
        scale: A constant factor to use instead.
        clip: Scaled rewards are clipped to ± this.
        episodic: False: the return goes on over the ends of episodes.
    """

    carry: Tensor

    def __init__(self, scale: Weight | None = None, clip: Weight = 10.0, episodic: bool = True) -> None:
        super().__init__()
        if (scale is not None and scale <= 0) or clip <= 0:
            raise ConfigError(f"RewardScaling: scale {scale} and clip {clip} must be above 0.")
        self.scale, self.clip, self.episodic = scale, clip, episodic
        self.statistics = RunningNormalizer(1, clip=None, eps=1e-4)

    def setup(self, spec: EnvSpec, policy: ActorCritic) -> None:
        self.gamma = spec.gamma
        self.register_buffer("carry", torch.zeros(spec.num_envs))

    def reward(self, rollout: RolloutStorage, reward: Tensor) -> Tensor:
        if self.scale is not None:
            return reward * self.scale
        self.returns = self._running_returns(rollout, reward)
        self.mask = rollout.valid.flatten()
        own = RunningNormalizer(1, clip=None, eps=1e-4).to(reward.device)
        own.update(self.returns, self.mask)
        factor = torch.where(self.statistics.count > 0, self.statistics.scale, own.scale)
        return (reward * factor).clamp(-self.clip, self.clip)

    def learn(self, rollout: RolloutStorage) -> Stats:
        if self.scale is not None:
            return {}
        self.statistics.update(self.returns, self.mask)
        return {"Reward/scale": self.statistics.scale.squeeze(0).clone()}

    def _running_returns(self, rollout: RolloutStorage, reward: Tensor) -> Tensor:
        """Discounted sum of the rewards so far in each episode, [T·N, 1]; advances the carry."""
        decay = torch.full_like(reward, self.gamma)
        if self.episodic:
            decay = decay.masked_fill(rollout.is_first[:-1], 0.0)
        else:  # no time passes on a row that is only an autoreset
            decay = decay.masked_fill(~rollout.valid, 1.0)
        first = torch.where(rollout.valid, reward, 0.0)
        first[0] += decay[0] * self.carry
        # a forward sum is the backward one over reversed time
        returns = discounted_sum(first.flip(0), decay.flip(0)).flip(0)
        # a sum that overflowed would otherwise stay for ever where no episode ends
        starts_anew = rollout.is_first[-1] | ~returns[-1].isfinite()
        self.carry.copy_(torch.where(starts_anew, 0.0, returns[-1]))
        return returns.reshape(-1, 1)
