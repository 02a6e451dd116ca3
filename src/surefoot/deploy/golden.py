"""Golden inputs and outputs: what a policy does on random observations, to check an export by."""

from __future__ import annotations

import math
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from surefoot.deploy.policy_graph import PolicyGraph, deployed
from surefoot.deploy.random_observations import random_observations
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.distributions import Bernoulli, Categorical
from surefoot.types import Distribution

NUM_STEPS, NUM_ROWS = 4, 5
"""T and N of a golden file."""
NUM_CANDIDATES = 64
"""Sequences of which those with the clearest choices are kept."""

Golden = dict[str, NDArray[Any]]
"""[T, N, ...] for each input and output of a PolicyGraph, by name."""


@torch.no_grad()
def make_golden(policy: ActorCritic, graph: PolicyGraph, seed: int = 0) -> Golden:
    """T steps of N robots whose memories begin with zeros.

    The actions are those of the policy itself; `graph` gives the names only. Of counted actions the
    sequences are kept in which no choice is near a tie, which rounding would decide.
    """
    inference = deployed(policy)
    network, generator = inference.policy, torch.Generator().manual_seed(seed)
    num_rows = NUM_CANDIDATES if network.to_env.is_counted else NUM_ROWS
    hidden, margin = network.initial_hidden(num_rows), torch.full((num_rows,), math.inf)
    steps: list[list[Tensor]] = []
    for _ in range(NUM_STEPS):
        observations = random_observations(network, num_rows, generator)
        memory = [hidden["actor"]] if graph.state_size else []
        distribution, hidden = network.advance(network.inputs(observations, ("actor",)), hidden)
        margin = margin.minimum(_margin(distribution, num_rows))
        memory_after = [hidden["actor"]] if graph.state_size else []
        steps.append([*observations.values(), *memory, inference(observations), *memory_after])
    kept = margin.argsort(descending=True, stable=True)[:NUM_ROWS]
    names = [*graph.input_names, *graph.output_names]
    columns = zip(names, zip(*steps, strict=True), strict=True)
    return {name: torch.stack(column)[:, kept].numpy() for name, column in columns}


def _margin(distribution: Distribution, num_rows: int) -> Tensor:
    """[N], how far the nearest of a row's choices is from a tie; infinite where nothing is chosen."""
    if isinstance(distribution, Categorical):
        # a choice of one value has no rival: add one that never wins
        best = functional.pad(distribution.logits, (0, 1), value=-math.inf).topk(2).values
        return (best[..., 0] - best[..., 1]).amin(-1)
    if isinstance(distribution, Bernoulli):
        return distribution.logits.abs().amin(-1)
    return torch.full((num_rows,), math.inf)
