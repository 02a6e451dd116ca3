"""Random network distillation: a bonus for observations that have not been seen often."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from annotated_types import Ge, Interval
from torch import Tensor, nn

from surefoot import distributed
from surefoot.algorithm.config import Rate, Weight
from surefoot.algorithm.extension import Extension
from surefoot.algorithm.losses import masked_mean
from surefoot.algorithm.returns import gae
from surefoot.algorithm.rollout_storage import RolloutStorage
from surefoot.errors import ConfigError
from surefoot.extensions.reward_scaling import RewardScaling
from surefoot.extensions.weight_schedule import WeightSchedule
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import Activation, NetworkConfig
from surefoot.networks.encoders import as_vector, make_mlp, space_of, vector_size
from surefoot.networks.normalizers import RunningNormalizer
from surefoot.types import EnvSpec, Observations, Stats

Count = Annotated[int, Ge(1)]
Share = Annotated[float, Interval(ge=0, le=1)]
STATE_CLIP = 5.0
"""Normalised observations are clipped to ± this (Burda et al. 2018, section 2.4)."""


class RND(Extension):
    """Random network distillation (Burda et al. 2018, arXiv:1810.12894).

    A predictor learns the outputs of a fixed random target network on what the agent has seen; where it is
    still wrong, the observation is new. The bonus of a step is `weight` times the mean squared error on the
    observation that really followed, before any reset. Rows that do not know it, or are only an autoreset,
    get no bonus and teach nothing. Normalisers are refreshed once per iteration, after the update.

    Args:
        weight: Of the bonus, per environment step; never multiplied by the step's duration. Raise: explores
            more, and longer at the cost of the task.
        weight_schedule: `{mode: constant | step | linear, initial_step, final_step, final_value}`, in steps
            of each environment; default: constant.
        obs_groups: Observation groups whose novelty counts, vectors; default: the actor's.
        reward_normalization: Divide the error by the running deviation of its discounted return.
        state_normalization: Normalise the observations by their running mean and deviation, to ± 5.
        learning_rate: Of the predictor and the bonus' critic (Adam). Raise: novelty wears off sooner.
        num_outputs: Of target and predictor.
        predictor_hidden_dims, target_hidden_dims: Widths; -1 is the number of inputs. The bonus' critic has
            the predictor's.
        activation: Of all of them.
        num_learning_epochs: Passes over each rollout.
        num_mini_batches: Per pass.
        sample_fraction: Of each mini-batch, what the predictor learns from. Lower: novelty lasts longer, as
            with more environments.
        episodic: False: discounted returns of the bonus go on over the ends of episodes, so that dying costs
            what could still be found. Ends are ends for a bonus that shares the task's critic.
        value_head: Give the bonus its own critic, which reads `obs_groups`; its advantage is added.
        gamma: Discount of the bonus per environment step; another than the task's needs `value_head`.
        lam: λ of the bonus' own advantage estimation, with `value_head`.

    Raises:
        ConfigError: arguments do not fit together; in `setup`, the environment does not give a group.
    """

    num_steps: Tensor
    """0-d int64: steps of each environment so far."""

    def __init__(
        self,
        *,
        weight: Weight = 1.0,
        weight_schedule: Mapping[str, Any] | None = None,
        obs_groups: Sequence[str] | None = None,
        reward_normalization: bool = True,
        state_normalization: bool = True,
        learning_rate: Rate = 1e-3,
        num_outputs: Count = 16,
        predictor_hidden_dims: Sequence[int] = (128, 128),
        target_hidden_dims: Sequence[int] = (128, 128),
        activation: Activation = "elu",
        num_learning_epochs: Count = 1,
        num_mini_batches: Count = 4,
        sample_fraction: Annotated[float, Interval(gt=0, le=1)] = 1.0,
        episodic: bool = True,
        value_head: bool = False,
        gamma: Share | None = None,
        lam: Share = 0.95,
    ) -> None:
        super().__init__()
        self.weight, self.schedule = weight, WeightSchedule.of(weight_schedule or {})
        self.wanted_groups, self.has_value_head = obs_groups, value_head
        self.normalizes_reward, self.normalizes_state = reward_normalization, state_normalization
        self.learning_rate, self.num_outputs = learning_rate, num_outputs
        self.activation: Activation = activation
        self.hidden_dims = {"predictor": predictor_hidden_dims, "target": target_hidden_dims}
        self.num_learning_epochs, self.num_mini_batches = num_learning_epochs, num_mini_batches
        self.sample_fraction, self.episodic, self.gamma, self.lam = sample_fraction, episodic, gamma, lam
        self._check_arguments()
        self.register_buffer("num_steps", torch.zeros((), dtype=torch.int64))

    def _check_arguments(self) -> None:
        for network, dims in self.hidden_dims.items():
            if not isinstance(dims, list | tuple) or not all(map(_is_width, dims)):
                raise ConfigError(
                    f"RND: {network}_hidden_dims {dims!r}: expected a list of whole numbers of at least 1, "
                    "or -1."
                )
        if self.wanted_groups is not None and not isinstance(self.wanted_groups, list | tuple):
            raise ConfigError(f"RND: obs_groups {self.wanted_groups!r}: expected a list of names.")
        if self.gamma is not None and not self.has_value_head:
            raise ConfigError("RND: gamma, a discount of its own, needs value_head: true.")
        if not (self.episodic or self.has_value_head):
            raise ConfigError("RND: episodic: false, returns that go on over ends, needs value_head: true.")

    def setup(self, spec: EnvSpec, policy: ActorCritic) -> None:
        self.groups = list(policy.groups["actor"] if self.wanted_groups is None else self.wanted_groups)
        spaces = spec.observation_spaces
        self.spaces = {group: space_of(spaces, group, "RND: obs_groups") for group in self.groups}
        self.build(sum(vector_size(space, group) for group, space in self.spaces.items()))
        self.discount = spec.gamma if self.gamma is None else self.gamma
        if self.reward_scaling is not None:
            self.reward_scaling.setup(dataclasses.replace(spec, gamma=self.discount), policy)
        self.generator = spec.generator
        self.is_new = True  # only then the count is looked at: that waits for the device

    def build(self, size: int) -> None:
        """Networks, normalisers and optimiser for observations [..., size]; part of `setup`."""
        self.state_normalizer = RunningNormalizer(size, STATE_CLIP) if self.normalizes_state else None
        self.reward_scaling = RewardScaling(episodic=self.episodic) if self.normalizes_reward else None
        self.target = self.network(size, self.hidden_dims["target"], self.num_outputs).requires_grad_(False)
        self.predictor = self.network(size, self.hidden_dims["predictor"], self.num_outputs)
        learned = [*self.predictor.parameters()]
        if self.has_value_head:
            self.value = self.network(size, self.hidden_dims["predictor"], 1)
            learned += self.value.parameters()
        self.optimizer = torch.optim.Adam(learned, self.learning_rate)

    def observation_groups(self) -> Sequence[str]:
        return self.groups

    def network(self, size: int, hidden_dims: Sequence[int], num_outputs: int) -> nn.Sequential:
        """[..., size] to [..., num_outputs]."""
        widths = [size if width == -1 else width for width in hidden_dims]
        hidden = make_mlp(size, NetworkConfig(hidden_dims=widths, activation=self.activation))
        return nn.Sequential(*hidden, nn.Linear(widths[-1] if widths else size, num_outputs))

    # ------------------------------------------------------------------ the bonus

    def reward(self, rollout: RolloutStorage, reward: Tensor) -> Tensor:
        self.mask = rollout.next_known & rollout.valid
        self.next_state = self._concatenate(rollout.next_observations)
        if self.is_new and self.state_normalizer is not None and not self.state_normalizer.count:
            # the first rollout is normalised by itself; its observations are counted after the update
            self.state_normalizer.warm_up([self.next_state.flatten(0, 1)])
        self.is_new = False
        self.inputs = self.normalize(self.next_state)
        self.targets = self.target(self.inputs)
        error = torch.where(self.mask, self.error(self.predictor(self.inputs), self.targets), 0.0)
        bonus = error if self.reward_scaling is None else self.reward_scaling.reward(rollout, error)
        steps = self.num_steps + torch.arange(reward.shape[0], device=reward.device)
        weight = self.schedule.weight(self.weight, steps)
        self.bonus = weight.unsqueeze(-1) * bonus
        self.stats = {
            "Rnd/error": masked_mean(error, self.mask),
            "Rnd/reward": masked_mean(self.bonus, self.mask),
            "Rnd/weight": weight[-1],
        }
        return reward if self.has_value_head else reward + self.bonus

    def advantage(self, rollout: RolloutStorage, advantage: Tensor) -> Tensor:
        if not self.has_value_head:
            return advantage
        self.states = self.normalize(self._concatenate(rollout.observations))
        value = self.value(self.states).squeeze(-1)
        never = torch.zeros_like(rollout.terminated)
        ends = (rollout.terminated, rollout.truncated) if self.episodic else (never, never)
        # where a time limit's final observation is not known, V(s_t) stands in, as for the task's own value
        following = self.value(self.inputs).squeeze(-1)
        bootstrap = torch.where(self.mask, following, value[:-1])
        own, self.returns = gae(self.bonus, value, *ends, bootstrap, self.discount, self.lam, rollout.valid)
        return advantage + own

    def error(self, predicted: Tensor, target: Tensor) -> Tensor:
        """The bonus of outputs [..., F] before it is normalised and weighted: [...]."""
        return (predicted - target).square().mean(-1)

    # ------------------------------------------------------------------ learning

    def learn(self, rollout: RolloutStorage) -> Stats:
        rows = self.mask.numel()
        losses: list[Tensor] = []
        value_losses: list[Tensor] = []
        for _ in range(self.num_learning_epochs):
            order = torch.randperm(rows, generator=self.generator, device=rollout.device)
            for batch in order.chunk(self.num_mini_batches):
                loss = self._predictor_loss(batch[: math.ceil(self.sample_fraction * len(batch))])
                losses.append(loss.detach())
                if self.has_value_head:
                    value_losses.append(self._value_loss(batch, rollout.mask))
                    loss = loss + value_losses[-1]
                distributed.minimize(loss, self.optimizer)
        self.stats["Rnd/loss"] = torch.stack(losses).mean()
        if value_losses:
            self.stats["Rnd/value_loss"] = torch.stack(value_losses).detach().mean()
        if self.reward_scaling is not None:
            self.stats["Rnd/scale"] = self.reward_scaling.learn(rollout)["Reward/scale"]
        if self.state_normalizer is not None:
            self.state_normalizer.update(self.next_state.flatten(0, 1), self.mask.flatten())
        self.num_steps += rollout.num_transitions_per_env
        means = distributed.mean(torch.stack([x.float() for x in self.stats.values()]))
        return dict(zip(self.stats, means.unbind(), strict=True))

    def _predictor_loss(self, rows: Tensor) -> Tensor:
        """Mean squared error over the positions `rows` [K] whose next observation is known."""
        inputs, targets = (x.flatten(0, 1)[rows] for x in (self.inputs, self.targets))
        return masked_mean((self.predictor(inputs) - targets).square().mean(-1), self.mask.flatten()[rows])

    def _value_loss(self, rows: Tensor, mask: Tensor | None) -> Tensor:
        states, returns = (x.flatten(0, 1)[rows] for x in (self.states[:-1], self.returns))
        error = (self.value(states).squeeze(-1) - returns).square()
        return masked_mean(error, None if mask is None else mask.flatten()[rows])

    # ------------------------------------------------------------------ parts

    def normalize(self, state: Tensor) -> Tensor:
        """Of states [..., D], what the networks see."""
        return state if self.state_normalizer is None else self.state_normalizer(state)

    def _concatenate(self, observations: Observations) -> Tensor:
        """The groups as one vector [..., D]."""
        return torch.cat([as_vector(space, observations[g]) for g, space in self.spaces.items()], -1)


def _is_width(x: object) -> bool:
    return type(x) is int and (x >= 1 or x == -1)
