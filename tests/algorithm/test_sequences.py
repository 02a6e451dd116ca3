"""Sequences for recurrent policies: every valid row once, cut where memory starts anew."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from surefoot.algorithm.sequences import (
    Sequences,
    cut_sequences,
    default_sequence_length,
    sequence_starts,
    starting_states,
)

law = settings(max_examples=100, deadline=None)


def pattern(seed: int, steps: int, envs: int) -> tuple[Tensor, Tensor]:
    """Random ends and invalid rows, related as the storage relates them."""
    generator = torch.Generator().manual_seed(seed)
    valid = torch.rand(steps, envs, generator=generator) > 0.15
    is_first = torch.rand(steps, envs, generator=generator) < 0.2
    is_first[1:] |= ~valid[:-1]
    return is_first, valid


def rows_of(cut: Sequences, b: int, envs: int) -> tuple[list[int], set[int]]:
    """Steps that sequence `b` learns from, and the environments of all its rows."""
    index, mask = cut.index[:, b], cut.mask[:, b]
    return (index[mask] // envs).tolist(), set((index % envs).tolist())


cases = {
    "seed": st.integers(0, 2**31),
    "steps": st.integers(1, 20),
    "envs": st.integers(1, 5),
    "length": st.integers(1, 20),
    "burn_in": st.integers(0, 6),
}


@law
@given(**cases)
def test_every_valid_row_is_in_exactly_one_sequence(
    seed: int, steps: int, envs: int, length: int, burn_in: int
) -> None:
    is_first, valid = pattern(seed, steps, envs)
    cut = cut_sequences(is_first, valid, length, min(burn_in, length))
    learned = cut.index[cut.mask].sort().values
    assert torch.equal(learned, valid.flatten().nonzero().squeeze(-1))


@law
@given(**cases)
def test_a_sequence_is_one_stretch_of_one_episode(
    seed: int, steps: int, envs: int, length: int, burn_in: int
) -> None:
    is_first, valid = pattern(seed, steps, envs)
    cut = cut_sequences(is_first, valid, length, min(burn_in, length))
    for b in range(cut.env.shape[0]):
        learned, env = rows_of(cut, b, envs)
        assert env == {int(cut.env[b])}
        assert learned == list(range(learned[0], learned[0] + len(learned)))
        assert len(learned) <= length
        first = int(cut.index[0, b]) // envs
        # memory starts anew at the first row at most, never inside
        assert not is_first[first + 1 : learned[-1] + 1, cut.env[b]].any()


@law
@given(**cases)
def test_a_sequence_starts_from_a_kept_state_or_with_an_episode(
    seed: int, steps: int, envs: int, length: int, burn_in: int
) -> None:
    burn_in = min(burn_in, length)
    is_first, valid = pattern(seed, steps, envs)
    cut = cut_sequences(is_first, valid, length, burn_in)
    starts = sequence_starts(steps, length, burn_in)
    for b in range(cut.env.shape[0]):
        first = int(cut.index[0, b]) // envs
        if cut.start[b] >= 0:
            assert first == starts[int(cut.start[b])]
        else:
            assert is_first[first, cut.env[b]]


def test_by_hand_with_burn_in() -> None:
    is_first = torch.zeros(8, 1, dtype=torch.bool)
    is_first[5] = True
    cut = cut_sequences(is_first, torch.ones(8, 1, dtype=torch.bool), length=4, burn_in=2)
    assert cut.index.t().tolist() == [[0, 1, 2, 3], [2, 3, 4, 4], [5, 6, 7, 7]]
    assert cut.mask.t().int().tolist() == [[1, 1, 1, 1], [0, 0, 1, 0], [1, 1, 1, 0]]
    assert cut.start.tolist() == [0, 1, -1]


def test_states_are_those_kept_and_zero_where_an_episode_begins() -> None:
    is_first = torch.zeros(4, 2, dtype=torch.bool)
    is_first[1, 1] = True
    cut = cut_sequences(is_first, torch.ones(4, 2, dtype=torch.bool), length=2)
    kept = torch.arange(1.0, 9.0).view(2, 2, 2)  # two starts, two environments, two numbers
    assert cut.env.tolist() == [0, 0, 1, 1, 1]
    assert starting_states(cut, kept).tolist() == [[1, 2], [5, 6], [3, 4], [0, 0], [7, 8]]


def test_nothing_valid_leaves_no_sequence() -> None:
    none = torch.zeros(3, 2, dtype=torch.bool)
    cut = cut_sequences(~none, none, length=2)
    assert cut.env.shape == (0,)
    assert cut.index.shape[1] == 0


@pytest.mark.parametrize(
    ("envs", "steps", "batches", "length"),
    [(4096, 24, 4, 24), (8, 256, 32, 4), (1, 2048, 32, 4), (8, 32, 1, 16), (2, 4, 8, 1)],
)
def test_the_default_length_is_the_rollout_or_sixteen_sequences_to_a_mini_batch(
    envs: int, steps: int, batches: int, length: int
) -> None:
    assert default_sequence_length(envs, steps, batches) == length
