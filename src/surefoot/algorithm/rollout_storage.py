"""RolloutStorage: the rows of one rollout, allocated once and written in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import torch
from torch import Tensor

from surefoot.algorithm.mini_batches import flat_mini_batches, sequence_mini_batches
from surefoot.algorithm.sequences import Sequences, sequence_starts
from surefoot.algorithm.stored import FinalObservations, as_vector, rows_like, stored_dtype, write_row
from surefoot.errors import EnvContractError
from surefoot.types import Batch, Hidden, Observations, Step


class RolloutStorage:
    """T steps of N environments.

    While collecting: `observations[g]` [T+1, N, ...], `actions` [T, N, A] (raw), `distribution` (its
    parameters, [T, N, ...] each), `rewards`, `terminated`, `truncated`, `valid` [T, N], `is_first` [T+1, N]
    (the row starts an episode or follows an invalid one). PPO adds `actions_log_prob`, `values` [T+1, N],
    `advantages`, `returns` [T, N] and the normalised `inputs`. Final observations are kept sparsely:
    `final_index` [K] (t·N+n) and `final_observations[g]` [K, ...]. `hidden` is the state of each memory
    before the steps `starts`, [number of starts, N, K] each.

    Args:
        num_envs: N.
        num_transitions_per_env: T.
        observation_spaces: The groups that something reads; no other is stored.
        keep_terminal: Also keep the final observations of terminated rows, not only of truncated ones.
        device: Where the rows live.
        dtype: Of everything that is not an integer.
        sequence_length: Steps of a recurrent policy's sequences, at most; None: T.
        burn_in: Steps before a sequence that only bring the memory up to date.
    """

    actions: Tensor
    distribution: dict[str, Tensor]
    inputs: dict[str, Tensor]
    actions_log_prob: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor

    def __init__(
        self,
        num_envs: int,
        num_transitions_per_env: int,
        observation_spaces: Mapping[str, gymnasium.Space[Any]],
        keep_terminal: bool = False,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        sequence_length: int | None = None,
        burn_in: int = 0,
    ) -> None:
        self.num_envs, self.num_transitions_per_env = num_envs, num_transitions_per_env
        self.keep_terminal, self.device, self.dtype = keep_terminal, torch.device(device), dtype
        rows = (num_transitions_per_env, num_envs)
        self.observations: dict[str, Tensor] = {
            g: torch.zeros(
                rows[0] + 1, num_envs, *(s.shape or ()), dtype=stored_dtype(s, dtype), device=device
            )
            for g, s in observation_spaces.items()
        }
        self.rewards = torch.zeros(rows, dtype=dtype, device=device)
        self.terminated = torch.zeros(rows, dtype=torch.bool, device=device)
        self.truncated = torch.zeros(rows, dtype=torch.bool, device=device)
        self.valid = torch.ones(rows, dtype=torch.bool, device=device)
        self.is_first = torch.zeros(rows[0] + 1, num_envs, dtype=torch.bool, device=device)
        self.is_first[-1] = True
        written = (self.rewards, self.terminated, self.truncated, self.valid, self.is_first[1:])
        self._rows = list(zip(*(x.unbind() for x in written), strict=True))
        self.distribution = {}
        self.sequence_length, self.burn_in = sequence_length or num_transitions_per_env, burn_in
        self.starts = sequence_starts(num_transitions_per_env, self.sequence_length, burn_in)
        self.hidden: dict[str, Tensor] = {}
        self.finals = FinalObservations(self.observations)
        self.begin()

    # ------------------------------------------------------------------ collection

    def begin(self) -> None:
        """Start the next rollout where the last one ended."""
        self.step, self.all_valid, self.offers_final = 0, True, False
        self.is_first[0] = self.is_first[-1]
        self.finals.clear()
        self._next_observations: dict[str, Tensor] | None = None
        self.inputs = {}
        self.sequences: Sequences | None = None

    def add_action(
        self,
        observations: Observations,
        actions: Tensor,
        params: Mapping[str, Tensor],
        hidden: Hidden | None = None,
    ) -> None:
        """The first half of row `step`: what the policy saw [N, ...], did [N, A] and remembered before."""
        if self.step >= self.num_transitions_per_env:
            raise EnvContractError(
                f"the rollout already holds {self.step} steps; call compute_returns() and update() first."
            )
        if not (self.distribution or self.step):
            num_steps = self.num_transitions_per_env
            self.actions = rows_like(actions, num_steps, self.dtype)
            self.distribution = {n: rows_like(x, num_steps, self.dtype) for n, x in params.items()}
        write_row(self.observations, self.step, observations)
        self.actions[self.step] = actions
        for name, value in params.items():
            self.distribution[name][self.step] = value
        for name, state in (hidden or {}).items():
            self.keep_hidden(name, self.step, state)

    def keep_hidden(self, name: str, t: int, state: Tensor) -> None:
        """The state of one memory [N, K] before step `t`; kept only where a sequence may start."""
        if name not in self.hidden:
            self.hidden[name] = state.new_zeros(len(self.starts), *state.shape)
        for i, start in enumerate(self.starts):
            if start == t:
                self.hidden[name][i] = state

    def add_transition(self, step: Step) -> None:
        """The second half: what followed. All is copied, since an environment may reuse its buffers."""
        rewards, terminated, truncated, valid, starts = self._rows[self.step]
        rewards.copy_(as_vector(step.rewards, self.num_envs, "rewards"))
        terminated.copy_(as_vector(step.terminated, self.num_envs, "terminated"))
        truncated.copy_(as_vector(step.truncated, self.num_envs, "truncated"))
        torch.logical_or(terminated, truncated, out=starts)
        torch.gt(truncated, terminated, out=truncated)  # and not terminated
        if step.final_observations is not None:
            self._keep_final(self.step, step, terminated | truncated)
        if step.valid is None:
            valid.fill_(True)
        else:
            self.all_valid = False
            starts |= ~valid.copy_(as_vector(step.valid, self.num_envs, "valid"))
        self.step += 1

    def end(self, last_observations: Observations) -> None:
        """The observation after the last step, row T."""
        if self.step != self.num_transitions_per_env:
            raise EnvContractError(f"the rollout holds {self.step} of {self.num_transitions_per_env} steps.")
        write_row(self.observations, self.step, last_observations)

    def _keep_final(self, t: int, step: Step, ended: Tensor) -> None:
        assert step.final_observations is not None
        self.offers_final = True
        keep = ended if self.keep_terminal else self.truncated[t]
        if step.final_known is not None:
            keep = keep & as_vector(step.final_known, self.num_envs, "final_known")
        self.finals.add(t, keep, step.final_observations)

    # ------------------------------------------------------------------ reading

    @property
    def final_index(self) -> Tensor:
        """[K] positions t·N+n of the rows whose final observation is known."""
        return self.finals.index

    @property
    def final_observations(self) -> dict[str, Tensor]:
        """[K, ...] per group, in the order of `final_index`."""
        return self.finals.observations

    @property
    def next_observations(self) -> dict[str, Tensor]:
        """[T, N, ...] per group: what followed each row, the true final observation where an episode ended.

        Meaningless where `next_known` is False. Needs `keep_terminal` for terminated rows.
        """
        if self._next_observations is None:
            self._next_observations = self.finals.following()
        return self._next_observations

    @property
    def next_known(self) -> Tensor:
        """[T, N] bool."""
        known = ~(self.terminated | self.truncated) & self.valid
        known.view(-1)[self.final_index] = True
        return known

    @property
    def mask(self) -> Tensor | None:
        """`valid`, or None where every row is."""
        return None if self.all_valid else self.valid

    def valid_rows(self) -> Tensor:
        """[R] positions of the rows to train on."""
        if self.all_valid:
            return torch.arange(self.num_envs * self.num_transitions_per_env, device=self.device)
        return self.valid.flatten().nonzero().squeeze(-1)

    def mini_batch_generator(
        self,
        num_mini_batches: int,
        num_epochs: int = 1,
        generator: torch.Generator | None = None,
        permutation: Tensor | None = None,
    ) -> Iterator[Batch]:
        """Every valid row once per epoch, in a new random order each epoch; sizes differ by at most one.

        Args:
            num_mini_batches: Per epoch.
            num_epochs: Passes over the rollout.
            generator: Source of the order.
            permutation: A given order [R] of positions, instead of a random one.
        """
        return flat_mini_batches(self, num_mini_batches, num_epochs, generator, permutation)

    def recurrent_mini_batch_generator(
        self, num_mini_batches: int, num_epochs: int = 1, generator: torch.Generator | None = None
    ) -> Iterator[Batch]:
        """Sequences [L, B, ...] for recurrent policies: every valid row once per epoch, the sequences in a
        new random order each epoch; their numbers differ by at most one.
        """
        return sequence_mini_batches(self, num_mini_batches, num_epochs, generator)
