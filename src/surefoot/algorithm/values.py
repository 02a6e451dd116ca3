"""Values and log-probabilities of a whole rollout, in a few large calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from surefoot.algorithm.rollout_storage import RolloutStorage
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.body import Body
from surefoot.networks.encoders import at_least_float32
from surefoot.networks.inputs import Inputs
from surefoot.networks.memory import forget
from surefoot.types import Hidden

BLOCK_ROWS = {"cpu": 2048, "other": 16384}
"""Rows per call: large enough to be fast, small enough to stay in a processor's cache, or in memory."""
BLOCK_NUMBERS = 2**24
"""Numbers of input per call, which matters for images."""


def rollout_values(policy: ActorCritic, rollout: RolloutStorage) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """V of every row [T+1, N] with the present weights; what stands for V(s') at a time limit [T, N]; and the
    critic's memory before row T [N, K].

    Keeps the critic's states where sequences may start.
    """
    inputs = _read_by("critic", policy, rollout.inputs)
    finals = _read_by("critic", policy, policy.inputs(rollout.final_observations, ("critic",)))
    memory: dict[str, Tensor] = {}
    if policy.value_body.state_size:
        values, final_values, memory = _recurrent_values(policy, rollout, inputs, finals)
    else:
        values, final_values = _in_blocks(policy.value_of, inputs, 2), _in_blocks(policy.value_of, finals, 1)
    bootstrap = values[:-1].clone()  # where the final observation is not known, V(s_t) stands in
    bootstrap.view(-1)[rollout.final_index] = final_values
    return values, bootstrap, memory


def behaviour_log_prob(policy: ActorCritic, rollout: RolloutStorage) -> Tensor:
    """Log-probability of the actions taken [T, N], under the distributions that they were drawn from."""

    def log_prob(rows: Inputs) -> Tensor:
        return policy.action_head.rebuild(rows).log_prob(rows["actions"])

    return _in_blocks(log_prob, {**rollout.distribution, "actions": rollout.actions}, 2)


@torch.no_grad()
def refresh_memory(policy: ActorCritic, rollout: RolloutStorage) -> dict[str, Tensor]:
    """The states of every memory where sequences start, and before row T [N, K], with the present weights.

    Nothing where sequences start with the rollout only. Elsewhere a sequence would start from what older
    weights remembered, and neither ratio nor KL would see how far the policy moved in what it brings along.
    """
    if len(rollout.starts) == 1:
        return {}
    first = {name: states[0] for name, states in rollout.hidden.items()}
    rollout.hidden, after = memory_along(policy, rollout, rollout.inputs, first)
    return after


def memory_along(
    policy: ActorCritic, rollout: RolloutStorage, inputs: Inputs, first: Hidden
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The states of every memory that the inputs [T+1, N, ...] leave behind, with the rollout's episodes.

    Args:
        policy: Whose memories.
        rollout: Says where episodes begin and sequences start.
        inputs: Of the rollout, or of a changed copy of it.
        first: State of each memory before row 0 [N, K].

    Returns:
        The states before the steps `rollout.starts`, [number of starts, N, K] each, and before row T [N, K].
    """
    kept: dict[str, Tensor] = {}
    after: dict[str, Tensor] = {}
    for name, state in first.items():
        body = policy.actor if name == "actor" else policy.value_body
        with body.low_precision(rollout.device):
            x = _in_blocks(body.encode, _read_by(name, policy, inputs), 2)
            wanted = {*rollout.starts, len(x) - 1}
            walk = enumerate(_walk(body, x, state, rollout.is_first))
            states = {t: before for t, (before, _, _) in walk if t in wanted}
        kept[name] = torch.stack([states[t] for t in rollout.starts])
        after[name] = states[len(x) - 1]
    return kept, after


def _recurrent_values(
    policy: ActorCritic, rollout: RolloutStorage, inputs: Inputs, finals: Inputs
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """A final observation is one step more in its episode, apart from the state that goes on."""
    body, name = policy.value_body, "critic" if policy.critic else "actor"
    assert body.memory is not None
    with body.low_precision(rollout.device):
        x, final_x = _in_blocks(body.encode, inputs, 2), _in_blocks(body.encode, finals, 1)
        outs: list[Tensor] = []
        final_outs = [final_x.new_zeros(0, body.memory.num_features)]
        ends, carry = rollout.finals.steps(), {}
        walk = _walk(body, x, rollout.hidden[name][0], rollout.is_first)
        for t, (before, out, state) in enumerate(walk):
            outs.append(out)
            if policy.critic is not None:
                rollout.keep_hidden(name, t, before)
            if t in ends:
                rows, part = ends[t]
                final_outs.append(body.memory.step(final_x[part], state[rows])[0])
            carry = {name: before}
        features = _in_blocks(lambda i: body.think(i["x"])[0], {"x": torch.stack(outs)}, 2)
        final_features = body.think(torch.cat(final_outs))[0]
    values = [policy.value_on(at_least_float32(f)) for f in (features, final_features)]
    # of a shared memory the actor's own walk has the state already
    return values[0], values[1], carry if policy.critic else {}


def _walk(body: Body, x: Tensor, state: Tensor, is_first: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The memory through encoded rows [T+1, N, E]: of each step the state before, the output, the state
    after.

    Only the memory goes step by step, all environments together: nothing is padded, whatever the ends.
    """
    assert body.memory is not None
    for row, starts in zip(x, is_first, strict=True):
        before = forget({"state": state}, starts)["state"]
        out, state = body.memory.step(row, before)
        yield before, out, state


def _read_by(network: str, policy: ActorCritic, inputs: Inputs) -> Inputs:
    """The part of the inputs that `actor` or `critic` reads."""
    return {name: inputs[name] for name in policy.inputs.names(network)}


def _in_blocks(function: Callable[[Inputs], Tensor], inputs: Inputs, num_leading: int) -> Tensor:
    """`function` of inputs with `num_leading` dimensions before each row's own, a block at a time."""
    lead = next(iter(inputs.values())).shape[:num_leading]
    rows = {name: x.flatten(0, num_leading - 1) for name, x in inputs.items()}
    numbers = sum(x.shape[1:].numel() for x in rows.values())
    most = BLOCK_ROWS["cpu" if next(iter(rows.values())).is_cpu else "other"]
    size = max(1, min(most, BLOCK_NUMBERS // max(numbers, 1)))
    parts = [x.split(size) for x in rows.values()]
    blocks = [function(dict(zip(rows, block, strict=True))) for block in zip(*parts, strict=True)]
    return torch.cat(blocks).unflatten(0, lead)
