"""From a rollout to mini-batches: rows in random order, or sequences for recurrent policies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from surefoot.algorithm.sequences import cut_sequences, starting_states
from surefoot.algorithm.stored import GatheredObservations
from surefoot.networks.inputs import LENGTHS
from surefoot.types import Batch, Hidden

if TYPE_CHECKING:
    from surefoot.algorithm.rollout_storage import RolloutStorage

FIELDS = ("actions", "old_log_prob", "old_value", "advantage", "returns", "index")
"""Of a mini-batch, a tensor with a row for each of its rows."""
LARGE = 2**26
"""Bytes of a field of the rollout above which it is gathered for each mini-batch, not for the whole epoch."""


def flat_mini_batches(
    rollout: RolloutStorage,
    num_mini_batches: int,
    num_epochs: int,
    generator: torch.Generator | None,
    permutation: Tensor | None,
) -> Iterator[Batch]:
    """As `RolloutStorage.mini_batch_generator`."""
    rows, fields = rollout.valid_rows(), _fields(rollout)
    # one gather per epoch, the mini-batches are slices of it; no second copy of what is large
    late = {name: x for name, x in fields.items() if x.dtype == torch.uint8 or x.nbytes > LARGE}
    early = {name: x for name, x in fields.items() if name not in late}
    for _ in range(num_epochs):
        order = permutation
        if order is None:
            order = rows[torch.randperm(rows.shape[0], generator=generator, device=rollout.device)]
        parts = [x.index_select(0, order).tensor_split(num_mini_batches) for x in early.values()]
        for index, *gathered in zip(order.tensor_split(num_mini_batches), *parts, strict=True):
            part = dict(zip(early, gathered, strict=True))
            yield _batch(rollout, part | {name: x[index] for name, x in late.items()}, index)


def sequence_mini_batches(
    rollout: RolloutStorage, num_mini_batches: int, num_epochs: int, generator: torch.Generator | None
) -> Iterator[Batch]:
    """As `RolloutStorage.recurrent_mini_batch_generator`."""
    if rollout.sequences is None:
        length, burn_in = rollout.sequence_length, rollout.burn_in
        rollout.sequences = cut_sequences(rollout.is_first[:-1], rollout.valid, length, burn_in)
    cut = rollout.sequences
    states = {name: starting_states(cut, kept) for name, kept in rollout.hidden.items()}
    fields = _fields(rollout)
    for _ in range(num_epochs):
        order = torch.randperm(cut.env.shape[0], generator=generator, device=rollout.device)
        for part in order.tensor_split(num_mini_batches):
            chosen = part[cut.length[part].argsort(descending=True, stable=True)]
            index = cut.index[:, chosen]
            gathered = {name: x[index] for name, x in fields.items()}
            gathered[f"inputs.{LENGTHS}"] = cut.length[chosen]
            hidden = {name: x[chosen] for name, x in states.items()}
            yield _batch(rollout, gathered, index, cut.mask[:, chosen], hidden)


def padded(batch: Batch, num_rows: int) -> Batch:
    """A flat mini-batch of `num_rows` rows, by copies of its first that `mask` leaves out."""
    missing = num_rows - batch.num_sampled

    def grow(x: Tensor) -> Tensor:
        return torch.cat([x, x[:1].expand(missing, *x.shape[1:])])

    grown = {name: grow(getattr(batch, name)) for name in FIELDS}
    return replace(
        batch,
        **grown,
        observations=GatheredObservations(batch.rollout.observations, grown["index"]),
        old_distribution={name: grow(x) for name, x in batch.old_distribution.items()},
        inputs={name: grow(x) for name, x in batch.inputs.items()},
        num_sampled=num_rows,
        mask=torch.arange(num_rows, device=batch.index.device) < batch.num_sampled,
    )


def _fields(rollout: RolloutStorage) -> dict[str, Tensor]:
    """What every mini-batch holds, [T·N, ...] each."""
    t = rollout.num_transitions_per_env
    fields = {
        "actions": rollout.actions,
        "old_log_prob": rollout.actions_log_prob,
        "old_value": rollout.values[:t],
        "advantage": rollout.advantages,
        "returns": rollout.returns,
    }
    fields |= {f"distribution.{name}": x for name, x in rollout.distribution.items()}
    fields |= {f"inputs.{name}": x[:t] for name, x in rollout.inputs.items()}
    return {name: x.flatten(0, 1) for name, x in fields.items()}


def _batch(
    rollout: RolloutStorage,
    fields: dict[str, Tensor],
    index: Tensor,
    mask: Tensor | None = None,
    hidden: Hidden | None = None,
) -> Batch:
    def part(prefix: str) -> dict[str, Tensor]:
        return {k.removeprefix(prefix): fields.pop(k) for k in [*fields] if k.startswith(prefix)}

    return Batch(
        old_distribution=part("distribution."),
        inputs=part("inputs."),
        observations=GatheredObservations(rollout.observations, index),
        actions=fields["actions"],
        old_log_prob=fields["old_log_prob"],
        old_value=fields["old_value"],
        advantage=fields["advantage"],
        returns=fields["returns"],
        index=index,
        num_sampled=index.shape[-1],
        rollout=rollout,
        mask=mask,
        hidden=hidden or {},
    )
