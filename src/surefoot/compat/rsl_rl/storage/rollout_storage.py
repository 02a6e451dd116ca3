"""RolloutStorage: RSL-RL's view of a rollout that Surefoot's engine learns from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from surefoot.algorithm.sequences import default_sequence_length, sequence_starts
from surefoot.compat.rsl_rl.modules.rnn import HiddenState
from surefoot.compat.rsl_rl.storage.rollout import LOG_PROB, Rollout
from surefoot.compat.rsl_rl.utils.utils import split_and_pad_trajectories
from surefoot.errors import EnvContractError
from surefoot.types import Step


class RolloutIsFullError(EnvContractError, OverflowError):
    """A step too many; an OverflowError too, which RSL-RL's clients expect."""


@dataclass
class Transition:
    """One step of all environments, filled while it happens."""

    observations: Any = None
    """[N, ...] per group, before the step."""
    actions: Any = None
    """[N, A]"""
    rewards: Any = None
    """[N], without any bootstrap unless `time_outs` is None."""
    dones: Any = None
    """[N] of any dtype."""
    values: Any = None
    """[N, 1]"""
    actions_log_prob: Any = None
    """[N]"""
    distribution_params: Any = None
    """Tuple of [N, ...]."""
    privileged_actions: Any = None
    """[N, A], the teacher's."""
    hidden_states: tuple[HiddenState, HiddenState] = (None, None)
    """Of actor and critic before the step, [layers, N, H] or a pair of them."""
    time_outs: Any = None
    """[N] bool, where the clock ended the episode; None: `rewards` hold what followed already."""
    bootstrap: Any = None
    """[N], V(s') where the clock ended the episode."""
    final_observations: Any = None
    """[N, ...] per group, before the reset; None: not known."""

    def clear(self) -> None:
        """Empty all fields."""
        vars(self).update(vars(Transition()))


@dataclass
class Batch:
    """A mini-batch: flat [M, ...], or [T, envs, ...] with padded observations [T, trajectories, ...]."""

    observations: Any = None
    actions: Any = None
    values: Any = None
    advantages: Any = None
    returns: Any = None
    old_actions_log_prob: Any = None
    old_distribution_params: Any = None
    hidden_states: tuple[Any, Any] = (None, None)
    masks: Any = None
    privileged_actions: Any = None
    dones: Any = None


@dataclass
class _Memories:
    """Every step's hidden states of one network, [T, layers, N, H] each (two of an LSTM)."""

    rows: list[Tensor] = field(default_factory=list)

    def write(self, step: int, num_steps: int, state: HiddenState) -> None:
        parts = _parts(state)
        if not self.rows:
            self.rows = [p.new_zeros(num_steps, *p.shape) for p in parts]
        for row, part in zip(self.rows, parts, strict=True):
            row[step] = part

    def at(self, envs: Tensor, starts: Tensor) -> HiddenState:
        """[layers, trajectories, H] where `starts` [len(envs), T] is True, environment by environment."""
        if not self.rows:
            return None
        rows = [x[:, :, envs].permute(2, 0, 1, 3) for x in self.rows]
        parts = [x[starts].transpose(0, 1).contiguous() for x in rows]
        return parts[0] if len(parts) == 1 else (parts[0], parts[1])


class RolloutStorage:
    """A rollout in RSL-RL's shapes, [T, N, 1] where Surefoot has [T, N].

    Args:
        training_type: `rl` or `distillation`.
        num_envs: N.
        num_transitions_per_env: T.
        obs: One tensor [N, ...] per group.
        actions_shape: Of one environment's action.
        device: Where the rows live.

    Attributes:
        rollout: What the engine learns from; tensors here are views of it where shapes allow.
        keeps_memories: Keep the hidden states of every step, which only a learning loop of the client's own
            reads; the engine needs those at the starts of sequences.
        gamma: Discount of what `rewards` hold beyond the environment's; the algorithm sets it.
    """

    Transition = Transition
    Batch = Batch

    def __init__(
        self,
        training_type: str,
        num_envs: int,
        num_transitions_per_env: int,
        obs: Mapping[str, Tensor],
        actions_shape: Sequence[int],
        device: torch.device | str = "cpu",
    ) -> None:
        self.training_type, self.device, self.actions_shape = training_type, device, actions_shape
        self.num_envs, self.num_transitions_per_env = num_envs, num_transitions_per_env
        self.rollout = Rollout(num_envs, num_transitions_per_env, dict(obs.items()), device)
        actions = torch.zeros(num_envs, *actions_shape, dtype=self.rollout.dtype, device=device)
        self.rollout.actions = actions.new_zeros(num_transitions_per_env, *actions.shape)
        if training_type == "distillation":
            self.privileged_actions = torch.zeros_like(self.rollout.actions)
        self.keeps_memories, self.gamma = True, 0.0
        self._rewards = torch.zeros_like(self.rollout.bootstrap).unsqueeze(-1)
        self._memories = (_Memories(), _Memories())

    def cut_sequences(self, num_mini_batches: int) -> None:
        """Shorter sequences where there are fewer environments than mini-batches of whole ones."""
        if self.num_envs < num_mini_batches:
            num_steps = self.num_transitions_per_env
            length = default_sequence_length(self.num_envs, num_steps, num_mini_batches)
            self.rollout.sequence_length = length
            self.rollout.starts = sequence_starts(num_steps, length, 0)

    # ------------------------------------------------------------------ collection

    @property
    def step(self) -> int:
        """Steps stored so far."""
        return self.rollout.step

    def clear(self) -> None:
        """Start the next rollout."""
        self.rollout.begin()

    def keep_observations(self, obs: Mapping[str, Tensor]) -> TensorDict:
        """Copy observations [N, ...] at once, since the environment may write over them; gives the copy."""
        self._check_room()
        row = self.rollout.step
        with torch.inference_mode(False), torch.no_grad():
            for group, rows in self.rollout.observations.items():
                rows[row] = obs[group]
        kept = {group: rows[row] for group, rows in self.rollout.observations.items()}
        return TensorDict(kept, batch_size=[self.num_envs])

    def add_transition(self, transition: Transition) -> None:
        """Store one step.

        Raises:
            RolloutIsFullError: the rollout holds T steps already.
        """
        self._check_room()
        with torch.inference_mode(False), torch.no_grad():
            self._add(transition)

    def _check_room(self) -> None:
        if self.rollout.step >= self.num_transitions_per_env:
            raise RolloutIsFullError(
                f"the rollout already holds {self.rollout.step} steps; call clear() before the next one."
            )

    def _add(self, given: Transition) -> None:
        rollout, t = self.rollout, self.rollout.step
        params = {}
        if self.training_type == "rl":
            rollout.values[t] = given.values.reshape(-1)
            rollout.actions_log_prob[t] = given.actions_log_prob.reshape(-1)
            params = {str(i): p.detach() for i, p in enumerate(given.distribution_params)}
            params[LOG_PROB] = rollout.actions_log_prob[t]
            self._allocate(params)
        else:
            self.privileged_actions[t] = given.privileged_actions
        rollout.add_action(given.observations, given.actions, params, self._memories_before(given))
        dones = given.dones.reshape(-1) != 0
        truncated = torch.zeros_like(dones)
        if given.time_outs is not None:
            truncated = dones & given.time_outs
            rollout.bootstrap[t] = torch.where(truncated, given.bootstrap.reshape(-1), 0.0)
        finals = given.final_observations
        rewards = given.rewards.reshape(-1)
        rollout.add_transition(Step(given.observations, rewards, dones & ~truncated, truncated, finals))
        self._rewards[t, :, 0] = rollout.rewards[t] + self.gamma * rollout.bootstrap[t]

    def _allocate(self, params: Mapping[str, Tensor]) -> None:
        # `actions` stand there from the start, so that they may be read
        for name, x in params.items():
            if name not in self.rollout.distribution:
                self.rollout.distribution[name] = x.new_zeros(self.num_transitions_per_env, *x.shape)

    def _memories_before(self, given: Transition) -> dict[str, Tensor]:
        """[N, K] of each recurrent network before the step."""
        rows = {}
        for name, memory, state in zip(("actor", "critic"), self._memories, given.hidden_states, strict=True):
            if state is not None:
                rows[name] = flat_state(state).to(self.rollout.dtype)
                if self.keeps_memories:
                    memory.write(self.rollout.step, self.num_transitions_per_env, state)
            elif name in self.rollout.hidden:  # forgotten since the last rollout
                rows[name] = torch.zeros_like(self.rollout.hidden[name][0])
        return rows

    # ------------------------------------------------------------------ reading

    @property
    def observations(self) -> TensorDict:
        """[T, N, ...] per group."""
        rows = {group: x[:-1] for group, x in self.rollout.observations.items()}
        return TensorDict(rows, batch_size=[self.num_transitions_per_env, self.num_envs])

    @property
    def actions(self) -> Tensor:
        return self.rollout.actions

    @property
    def rewards(self) -> Tensor:
        """[T, N, 1], with what stands for the rest of an episode that the clock ended. What is written into
        it before the returns are computed counts.
        """
        return self._rewards

    @rewards.setter
    def rewards(self, x: Tensor) -> None:
        self._rewards.copy_(x)

    def take_rewards(self) -> None:
        """Let the rollout have what a client has written into `rewards`."""
        rollout = self.rollout
        # exactly 0 where nothing was written
        rollout.rewards += self._rewards.squeeze(-1) - (rollout.rewards + self.gamma * rollout.bootstrap)

    @property
    def dones(self) -> Tensor:
        """[T, N, 1] uint8."""
        return (self.rollout.terminated | self.rollout.truncated).byte().unsqueeze(-1)

    @property
    def distribution_params(self) -> tuple[Tensor, ...] | None:
        """[T, N, ...] each; None before the first step."""
        kept = self.rollout.distribution
        return tuple(x for name, x in kept.items() if name != LOG_PROB) if kept else None

    @property
    def values(self) -> Tensor:
        """[T, N, 1]"""
        return self.rollout.values[: self.num_transitions_per_env].unsqueeze(-1)

    @values.setter
    def values(self, x: Tensor) -> None:
        self.rollout.values[: self.num_transitions_per_env] = x.squeeze(-1)

    @property
    def actions_log_prob(self) -> Tensor:
        return self.rollout.actions_log_prob.unsqueeze(-1)

    @property
    def returns(self) -> Tensor:
        return self.rollout.returns.unsqueeze(-1)

    @returns.setter
    def returns(self, x: Tensor) -> None:
        self.rollout.returns = x.squeeze(-1)

    @property
    def advantages(self) -> Tensor:
        return self.rollout.advantages.unsqueeze(-1)

    @advantages.setter
    def advantages(self, x: Tensor) -> None:
        self.rollout.advantages = x.squeeze(-1)

    @property
    def saved_hidden_state_a(self) -> list[Tensor] | None:
        """[T, layers, N, H] before every step, of an LSTM both; None where none is kept."""
        return self._memories[0].rows or None

    @property
    def saved_hidden_state_c(self) -> list[Tensor] | None:
        """The critic's."""
        return self._memories[1].rows or None

    # ------------------------------------------------------------------ mini-batches

    def generator(self) -> Iterator[Batch]:
        """One batch per step, in order, for distillation."""
        self._check_type("distillation")
        for t, observations in enumerate(self.observations):
            yield Batch(
                observations=observations,
                privileged_actions=self.privileged_actions[t],
                dones=self.dones[t],
            )

    def mini_batch_generator(self, num_mini_batches: int, num_epochs: int = 8) -> Iterator[Batch]:
        """Every row once per epoch, in a new order each time; none is left over."""
        self._check_type("rl")
        for batch in self.rollout.mini_batch_generator(num_mini_batches, num_epochs):
            params = [x for name, x in batch.old_distribution.items() if name != LOG_PROB]
            yield Batch(
                observations=TensorDict(dict(batch.observations), batch_size=[batch.num_sampled]),
                actions=batch.actions,
                values=batch.old_value.unsqueeze(-1),
                advantages=batch.advantage.unsqueeze(-1),
                returns=batch.returns.unsqueeze(-1),
                old_actions_log_prob=batch.old_log_prob.unsqueeze(-1),
                old_distribution_params=tuple(params),
            )

    def recurrent_mini_batch_generator(self, num_mini_batches: int, num_epochs: int = 8) -> Iterator[Batch]:
        """Whole environments, cut into episodes and padded: in their order, then in a new one each epoch."""
        self._check_type("rl")
        order = torch.arange(self.num_envs, device=self.rollout.device)
        for epoch in range(num_epochs):
            if epoch:
                order = order[torch.randperm(self.num_envs, device=self.rollout.device)]
            for envs in order.tensor_split(num_mini_batches):
                yield self._of_environments(envs)

    def _of_environments(self, envs: Tensor) -> Batch:
        dones = self.dones[:, envs]
        observations, masks = split_and_pad_trajectories(self.observations[:, envs], dones)
        starts = torch.cat([torch.ones_like(dones[:1]), dones[:-1]]).squeeze(-1).bool()
        states = [memory.at(envs, starts.t()) for memory in self._memories]
        return Batch(
            observations=observations,
            actions=self.actions[:, envs],
            values=self.values[:, envs],
            advantages=self.advantages[:, envs],
            returns=self.returns[:, envs],
            old_actions_log_prob=self.actions_log_prob[:, envs],
            old_distribution_params=tuple(p[:, envs] for p in self.distribution_params or ()),
            hidden_states=(states[0], states[1]),
            masks=masks,
        )

    def _check_type(self, wanted: str) -> None:
        if self.training_type != wanted:
            raise ValueError(f"this storage is for '{self.training_type}', and '{wanted}' reads it.")


def flat_state(state: HiddenState) -> Tensor:
    """Hidden states [layers, N, H], or a pair of them, as rows [N, K]: all layers, an LSTM's cells last."""
    layers = torch.cat(_parts(state))
    return layers.transpose(0, 1).reshape(layers.shape[1], -1)


def layered_state(rows: Tensor, rnn: nn.RNNBase) -> Tensor | tuple[Tensor, Tensor]:
    """The reverse of `flat_state`: what `rnn` takes."""
    layers = rows.view(rows.shape[0], -1, rnn.hidden_size).transpose(0, 1).contiguous()
    if not isinstance(rnn, nn.LSTM):
        return layers
    hidden, cells = layers.tensor_split(2)
    return hidden, cells


def _parts(state: HiddenState) -> tuple[Tensor, ...]:
    if state is None:
        return ()
    return state if isinstance(state, tuple) else (state,)
