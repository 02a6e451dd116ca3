"""From a rollout to sequences for recurrent policies: cut where memory starts anew, padded, masked."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from surefoot import distributed


@dataclass(frozen=True)
class Sequences:
    """B pieces of a rollout of at most L steps. No piece holds an episode's end except at its own end."""

    index: Tensor
    """[L, B] position t·N+n in the rollout; padding repeats the last step."""
    mask: Tensor
    """[L, B] bool: rows to learn from; False on padding, on burn-in and on invalid rows."""
    env: Tensor
    """[B] which environment."""
    length: Tensor
    """[B] steps, burn-in included."""
    start: Tensor
    """[B] which of `sequence_starts` the piece begins at, or -1 where an episode begins inside."""


def default_sequence_length(num_envs: int, num_steps: int, num_batches: int) -> int:
    """The whole rollout where there are environments enough; else so that each mini-batch, over all
    processes, gets sixteen sequences: the rows of one are much alike, and few of them make a noisy gradient.
    """
    own_share = -(-16 // distributed.world_size())
    return max(1, min(num_steps, num_envs * num_steps // num_batches // own_share))


def sequence_starts(num_steps: int, length: int, burn_in: int) -> list[int]:
    """Steps of a rollout before which the state of every memory is kept."""
    return [max(t - burn_in, 0) for t in range(0, num_steps, length)]


def cut_sequences(is_first: Tensor, valid: Tensor, length: int, burn_in: int = 0) -> Sequences:
    """Every valid row in exactly one sequence.

    Args:
        is_first: [T, N] bool, where memory starts from zero.
        valid: [T, N] bool.
        length: Rows to learn from in one sequence, at most.
        burn_in: Steps before them that only bring the memory up to date.
    """
    num_steps, num_envs = valid.shape
    step = torch.arange(num_steps, device=valid.device)
    # environment by environment, so that a piece ends where the next one starts
    begins = (is_first | (step % length == 0).unsqueeze(-1)).t().flatten()
    first = begins.nonzero().squeeze(-1)
    size = torch.diff(first, append=first.new_tensor([valid.numel()]))
    counts = valid.t().flatten()[first]
    first, size = first[counts], size[counts]
    env, begin = first // num_steps, first % num_steps

    # burn-in reaches back to the kept state, but not beyond the episode's start
    kept = (begin // length * length - burn_in).clamp(min=0)
    episode = torch.where(is_first, step.unsqueeze(-1), -1).cummax(0).values[begin, env]
    context = torch.maximum(kept, episode)
    start = torch.where(kept >= episode, begin // length, -1)

    at = context + torch.arange(length + burn_in, device=valid.device).unsqueeze(-1)
    inside = at < begin + size
    index = torch.minimum(at, begin + size - 1) * num_envs + env
    mask = inside & (at >= begin) & valid.flatten()[index]
    longest = inside.any(1).nonzero().shape[0]
    return Sequences(index[:longest], mask[:longest], env, begin + size - context, start)


def starting_states(sequences: Sequences, kept: Tensor) -> Tensor:
    """[B, K] from the states that were kept, [number of starts, N, K]: zeros where an episode begins."""
    states = kept[sequences.start.clamp(min=0), sequences.env]
    return states.masked_fill((sequences.start < 0).unsqueeze(-1), 0.0)
