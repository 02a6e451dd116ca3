"""RolloutStorage: the rows of one rollout, allocated once and written in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import torch
from torch import Tensor

from surefoot.algorithm.stored import GatheredObservations, stored_dtype
from surefoot.errors import EnvContractError
from surefoot.types import Batch, Observations, Step


class RolloutStorage:
    """T steps of N environments.

    While collecting: `observations[g]` [T+1, N, ...], `actions` [T, N, A] (raw), `distribution` (its
    parameters, [T, N, ...] each), `rewards`, `terminated`, `truncated`, `valid` [T, N], `is_first` [T+1, N]
    (the row starts an episode or follows an invalid one). PPO adds `actions_log_prob`, `values` [T+1, N],
    `advantages`, `returns` [T, N] and the normalised `inputs`. Final observations are kept sparsely:
    `final_index` [K] (t·N+n) and `final_observations[g]` [K, ...].

    Args:
        num_envs: N.
        num_transitions_per_env: T.
        observation_spaces: The groups that something reads; no other is stored.
        keep_terminal: Also keep the final observations of terminated rows, not only of truncated ones.
        device: Where the rows live.
        dtype: Of everything that is not an integer.
    """

    actions: Tensor
    distribution: dict[str, Tensor]
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
        self.distribution, self.inputs = {}, {}
        self._final: list[tuple[Tensor, dict[str, Tensor]]] = []
        self.begin()

    # ------------------------------------------------------------------ collection

    def begin(self) -> None:
        """Start the next rollout where the last one ended."""
        self.step, self.all_valid, self.offers_final = 0, True, False
        self.is_first[0] = self.is_first[-1]
        self._final.clear()
        self._next_observations: dict[str, Tensor] | None = None

    def add_action(self, observations: Observations, actions: Tensor, params: Mapping[str, Tensor]) -> None:
        """The first half of row `step`: what the policy saw [N, ...] and did [N, A]."""
        if self.step >= self.num_transitions_per_env:
            raise EnvContractError(
                f"the rollout already holds {self.step} steps; call compute_returns() and update() first."
            )
        if not self.distribution:
            self._allocate_actions(actions, params)
        self._write_observations(self.step, observations)
        self.actions[self.step] = actions
        for name, value in params.items():
            self.distribution[name][self.step] = value

    def add_transition(self, step: Step) -> None:
        """The second half: what followed. Everything is copied, since an environment may reuse its
        buffers.
        """
        t = self.step
        terminated, truncated = (
            self._rows(step.terminated, "terminated"),
            self._rows(step.truncated, "truncated"),
        )
        self.rewards[t] = self._rows(step.rewards, "rewards")
        self.terminated[t] = terminated
        torch.logical_and(truncated, ~terminated, out=self.truncated[t])
        ended = torch.logical_or(terminated, truncated)
        if step.valid is None:
            self.valid[t] = True
            self.is_first[t + 1] = ended
        else:
            self.valid[t] = step.valid
            self.all_valid = False
            self.is_first[t + 1] = ended | ~step.valid
        if step.final_observations is not None:
            self._keep_final(t, step, ended)
        self.step += 1

    def end(self, last_observations: Observations) -> None:
        """The observation after the last step, row T."""
        if self.step != self.num_transitions_per_env:
            raise EnvContractError(f"the rollout holds {self.step} of {self.num_transitions_per_env} steps.")
        self._write_observations(self.step, last_observations)

    def _allocate_actions(self, actions: Tensor, params: Mapping[str, Tensor]) -> None:
        def allocate(x: Tensor) -> Tensor:
            dtype = self.dtype if x.is_floating_point() else x.dtype
            return torch.zeros(self.num_transitions_per_env, *x.shape, dtype=dtype, device=self.device)

        self.actions = allocate(actions)
        self.distribution = {name: allocate(value) for name, value in params.items()}

    def _rows(self, x: Tensor, name: str) -> Tensor:
        """[N] from [N] or [N, 1]."""
        if x.shape not in ((self.num_envs,), (self.num_envs, 1)):
            raise EnvContractError(f"{name} have the shape {tuple(x.shape)}; expected ({self.num_envs},).")
        return x.reshape(self.num_envs)

    def _write_observations(self, t: int, observations: Observations) -> None:
        for group, rows in self.observations.items():
            rows[t] = observations[group]

    def _keep_final(self, t: int, step: Step, ended: Tensor) -> None:
        assert step.final_observations is not None
        self.offers_final = True
        keep = ended if self.keep_terminal else self.truncated[t]
        if step.final_known is not None:
            keep = keep & step.final_known
        rows = keep.nonzero().squeeze(-1)
        if rows.shape[0]:
            finals = {g: step.final_observations[g].index_select(0, rows) for g in self.observations}
            self._final.append((rows + t * self.num_envs, finals))

    # ------------------------------------------------------------------ reading

    @property
    def final_index(self) -> Tensor:
        """[K] positions t·N+n of the rows whose final observation is known."""
        if not self._final:
            return torch.zeros(0, dtype=torch.int64, device=self.device)
        return torch.cat([index for index, _ in self._final])

    @property
    def final_observations(self) -> dict[str, Tensor]:
        """[K, ...] per group, in the order of `final_index`."""
        if not self._final:
            return {g: x[0, :0] for g, x in self.observations.items()}
        return {g: torch.cat([finals[g] for _, finals in self._final]) for g in self.observations}

    @property
    def next_observations(self) -> dict[str, Tensor]:
        """[T, N, ...] per group: what followed each row, the true final observation where an episode ended.

        Meaningless where `next_known` is False. Needs `keep_terminal` for terminated rows.
        """
        if self._next_observations is None:
            index, finals = self.final_index, self.final_observations
            self._next_observations = {g: x[1:].clone() for g, x in self.observations.items()}
            for group, rows in self._next_observations.items():
                rows.flatten(0, 1)[index] = finals[group].to(rows.dtype)
        return self._next_observations

    @property
    def next_known(self) -> Tensor:
        """[T, N] bool."""
        known = ~(self.terminated | self.truncated) & self.valid
        known.view(-1)[self.final_index] = True
        return known

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
        rows = self.valid_rows()
        fields = self._fields()
        for _ in range(num_epochs):
            if permutation is None:
                order = rows[torch.randperm(rows.shape[0], generator=generator, device=self.device)]
            else:
                order = permutation
            # one gather per epoch; the mini-batches are slices of it
            gathered = {name: x.flatten(0, 1)[order] for name, x in fields.items()}
            start = 0
            for index in order.tensor_split(num_mini_batches):
                stop = start + index.shape[0]
                yield self._batch({name: x[start:stop] for name, x in gathered.items()}, index)
                start = stop

    def _fields(self) -> dict[str, Tensor]:
        t = self.num_transitions_per_env
        fields = {
            "actions": self.actions,
            "old_log_prob": self.actions_log_prob,
            "old_value": self.values[:t],
            "advantage": self.advantages,
            "returns": self.returns,
        }
        fields |= {f"distribution.{name}": x for name, x in self.distribution.items()}
        return fields | {f"inputs.{name}": x[:t] for name, x in self.inputs.items()}

    def _batch(self, fields: dict[str, Tensor], index: Tensor) -> Batch:
        def part(prefix: str) -> dict[str, Tensor]:
            return {k.removeprefix(prefix): fields.pop(k) for k in [*fields] if k.startswith(prefix)}

        return Batch(
            old_distribution=part("distribution."),
            inputs=part("inputs."),
            observations=GatheredObservations(self.observations, index),
            index=index,
            num_sampled=index.shape[0],
            rollout=self,
            **fields,
        )
