"""Memory: sequences are steps, one row of numbers per environment, and what a policy remembers."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from surefoot.errors import ConfigError, EnvContractError
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import ActorConfig, CriticConfig, NetworkConfig
from surefoot.networks.memory import Memory, forget
from surefoot.types import EnvSpec

law = settings(max_examples=30, deadline=None)
KINDS = [("gru", 1), ("gru", 2), ("lstm", 1), ("lstm", 2)]


def memory(rnn_type: Any, num_layers: int = 1, init: Any = "default", hidden: int = 5) -> Memory:
    torch.manual_seed(0)
    config = NetworkConfig(
        rnn_type=rnn_type, rnn_hidden_dim=hidden, rnn_num_layers=num_layers, init=init, hidden_dims=[]
    )
    return Memory(3, config).double()


def normal(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ---------------------------------------------------------------------- sequences


@pytest.mark.parametrize("init", ["default", "orthogonal"])
@pytest.mark.parametrize(("rnn_type", "num_layers"), KINDS)
def test_a_sequence_is_remembered_as_its_steps(rnn_type: str, num_layers: int, init: str) -> None:
    part = memory(rnn_type, num_layers, init)
    x, start = normal(6, 4, 3), normal(4, part.state_size, seed=1)
    out, after = part(x, start)
    state = start
    for step in range(6):
        single, state = part.step(x[step], state)
        torch.testing.assert_close(single, out[step], rtol=0, atol=1e-12)
    torch.testing.assert_close(state, after, rtol=0, atol=1e-12)
    assert out.shape == (6, 4, 5)
    assert after.shape == (4, part.state_size)


@law
@given(kind=st.sampled_from(KINDS), cut=st.integers(1, 5), seed=st.integers(0, 2**31))
def test_a_sequence_cut_in_two_is_the_whole(kind: tuple[str, int], cut: int, seed: int) -> None:
    part = memory(*kind)
    x, start = normal(6, 4, 3, seed=seed), normal(4, part.state_size, seed=seed + 1)
    whole, after = part(x, start)
    first, between = part(x[:cut], start)
    second, end = part(x[cut:], between)
    torch.testing.assert_close(torch.cat([first, second]), whole, rtol=0, atol=1e-12)
    torch.testing.assert_close(end, after, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("rnn_type", "num_layers"), KINDS)
def test_each_row_of_the_state_is_one_environments(rnn_type: str, num_layers: int) -> None:
    part = memory(rnn_type, num_layers)
    x, start = normal(6, 4, 3), normal(4, part.state_size, seed=1)
    out, after = part(x, start)
    order = torch.tensor([2, 0, 3])
    picked, picked_after = part(x[:, order], start[order])
    torch.testing.assert_close(picked, out[:, order], rtol=0, atol=1e-12)
    torch.testing.assert_close(picked_after, after[order], rtol=0, atol=1e-12)


@pytest.mark.parametrize("num_layers", [1, 2])
def test_the_state_of_a_gru_holds_its_layers_side_by_side(num_layers: int) -> None:
    part, x = memory("gru", num_layers), normal(6, 4, 3)
    start = normal(4, part.state_size, seed=1)
    assert part.state_size == 5 * num_layers
    layers = torch.stack(start.split(5, -1))
    expected, states = part.rnn(x, layers)
    out, after = part(x, start)
    assert torch.equal(out, expected)
    assert torch.equal(after, torch.cat(states.unbind(), -1))


@pytest.mark.parametrize("num_layers", [1, 2])
def test_the_state_of_an_lstm_holds_outputs_then_cells(num_layers: int) -> None:
    part, x = memory("lstm", num_layers), normal(6, 4, 3)
    start = normal(4, part.state_size, seed=1)
    assert part.state_size == 5 * num_layers * 2
    outputs, cells = torch.stack(start.split(5, -1)).chunk(2)
    expected, (h, c) = part.rnn(x, (outputs, cells))
    out, after = part(x, start)
    assert torch.equal(out, expected)
    assert torch.equal(after, torch.cat([*h.unbind(), *c.unbind()], -1))


@pytest.mark.parametrize("rnn_type", ["gru", "lstm"])
def test_no_sequence_gives_no_output(rnn_type: str) -> None:
    part = memory(rnn_type)
    out, after = part(normal(6, 0, 3), normal(0, part.state_size))
    assert out.shape == (6, 0, 5)
    assert after.shape == (0, part.state_size)
    single, _ = part.step(normal(0, 3), normal(0, part.state_size))
    assert single.shape == (0, 5)


@pytest.mark.parametrize(("rnn_type", "gates"), [("gru", 3), ("lstm", 4)])
def test_each_gate_starts_orthogonal(rnn_type: str, gates: int) -> None:
    part = memory(rnn_type, init="orthogonal")
    parameters = dict(part.rnn.named_parameters())
    gate_weights = parameters["weight_hh_l0"].split(5)
    assert len(gate_weights) == gates
    for gate in gate_weights:
        torch.testing.assert_close(gate @ gate.T, torch.eye(5, dtype=torch.float64), atol=1e-6, rtol=0)
    biases = torch.stack([parameters[f"bias_{k}_l0"] for k in ("ih", "hh")]).sum(0)
    # an LSTM begins by remembering: its forget gate, the second, is open
    expected = torch.zeros(gates, 5).double()
    if rnn_type == "lstm":
        expected[1] = 1.0
    assert torch.equal(biases, expected.flatten())


# ---------------------------------------------------------------------- forgetting


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8, torch.float32])
def test_forgetting_zeros_exactly_the_rows_that_start(dtype: torch.dtype) -> None:
    hidden = {"actor": normal(4, 5), "critic": normal(4, 2, seed=1)}
    before = {name: x.clone() for name, x in hidden.items()}
    after = forget(hidden, torch.tensor([0, 1, 0, 1]).to(dtype))
    for name, x in after.items():
        assert not x[[1, 3]].any()
        assert torch.equal(x[[0, 2]], before[name][[0, 2]])
        assert torch.equal(hidden[name], before[name])


def test_forgetting_a_state_that_is_not_finite_leaves_zeros() -> None:
    hidden = {"actor": torch.full((2, 3), torch.nan)}
    assert forget(hidden, torch.tensor([True, True]))["actor"].tolist() == [[0.0] * 3] * 2


# ---------------------------------------------------------------------- in a policy


def build(
    rnn_type: Any = "gru",
    critic_rnn: Any = None,
    network: Any = "separate",
    num_layers: int = 1,
    actions: Any = None,
) -> ActorCritic:
    torch.manual_seed(0)
    box = gymnasium.spaces.Box(-np.inf, np.inf, (3,))
    actor = ActorConfig(
        hidden_dims=[8],
        rnn_type=rnn_type,
        rnn_hidden_dim=5,
        rnn_num_layers=num_layers,
        last_layer_gain=1.0,
    )
    critic = CriticConfig(hidden_dims=[8], rnn_type=critic_rnn, rnn_hidden_dim=7)
    return ActorCritic(EnvSpec({"policy": box}, actions or box, num_envs=4), actor, critic, network=network)


def observations(steps: int, num_envs: int = 4) -> list[dict[str, Tensor]]:
    x = torch.randn(steps, num_envs, 3, generator=torch.Generator().manual_seed(0))
    return [{"policy": step} for step in x]


def test_the_memory_of_each_network_has_its_own_size() -> None:
    assert {name: x.shape for name, x in build("lstm", "gru").initial_hidden(6).items()} == {
        "actor": (6, 10),
        "critic": (6, 7),
    }
    assert list(build("gru", None).initial_hidden(6)) == ["actor"]
    assert list(build(None, "gru").initial_hidden(6)) == ["critic"]
    assert list(build("gru", "gru", "shared").initial_hidden(6)) == ["actor"]
    assert build(None).initial_hidden(6) == {}
    assert [build(a, c).is_recurrent for a, c in [("gru", None), (None, "gru"), (None, None)]] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(("rnn_type", "num_layers"), KINDS)
def test_a_policy_remembers_between_its_actions(rnn_type: str, num_layers: int) -> None:
    policy, steps = build(rnn_type, num_layers=num_layers), observations(5)
    hidden: Any = policy.initial_hidden(4)
    for obs in steps:
        with torch.no_grad():
            distribution, hidden = policy.advance(policy.inputs(obs, ("actor",)), hidden)
        assert torch.equal(policy.act(obs), distribution.mode())
    # the same observation again, and another action: the history counts
    assert not torch.equal(policy.act(steps[0]), policy.act(steps[0]))


def test_a_sequence_is_evaluated_as_the_actions_were_taken() -> None:
    policy, steps = build("lstm", "gru").double(), observations(5)
    x = torch.stack([obs["policy"] for obs in steps]).double()
    out = policy({"policy": x}, torch.zeros(5, 4, 3).double(), policy.initial_hidden(4))
    taken = torch.stack([policy.act({"policy": step}) for step in x])
    torch.testing.assert_close(out.distribution.mode(), taken, rtol=0, atol=1e-12)
    torch.testing.assert_close(out.value, policy.value({"policy": x}, policy.initial_hidden(4)))


def test_reset_forgets_everything() -> None:
    policy, steps = build(), observations(3)
    first = policy.act(steps[0])
    policy.act(steps[1])
    policy.reset()
    assert torch.equal(policy.act(steps[0]), first)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_reset_forgets_only_the_episodes_that_ended(dtype: torch.dtype) -> None:
    policy, steps = build("lstm"), observations(3)
    first = policy.act(steps[0])
    policy.act(steps[1])
    going_on = copy.deepcopy(policy).act(steps[0])
    policy.reset(torch.tensor([0, 1, 0, 1]).to(dtype))
    result = policy.act(steps[0])
    torch.testing.assert_close(result[[1, 3]], first[[1, 3]])
    torch.testing.assert_close(result[[0, 2]], going_on[[0, 2]])
    assert not torch.allclose(first, going_on)


def test_another_number_of_environments_needs_a_reset() -> None:
    policy = build()
    policy.act(observations(1)[0])
    with pytest.raises(EnvContractError, match=r"remembers 4 environments.*act in 2; call reset\(\)"):
        policy.act(observations(1, num_envs=2)[0])
    policy.reset()
    assert policy.act(observations(1, num_envs=2)[0]).shape == (2, 3)


def test_a_copy_of_a_policy_remembers_for_itself() -> None:
    policy, steps = build(), observations(4)
    policy.act(steps[0])
    copied = copy.deepcopy(policy)
    expected = [policy.act(obs) for obs in steps[1:3]]
    policy.reset()
    assert [torch.equal(copied.act(obs), e) for obs, e in zip(steps[1:3], expected, strict=True)] == [
        True
    ] * 2


def test_acting_on_a_policy_whose_critic_alone_remembers_changes_nothing() -> None:
    policy, obs = build(None, "gru"), observations(1)[0]
    assert torch.equal(policy.act(obs), policy.act(obs))
    assert policy.value(obs).shape == (4,)


def test_a_value_depends_on_what_the_critic_remembers() -> None:
    policy, obs = build(None, "lstm"), observations(1)[0]
    hidden = {"critic": torch.randn(4, 14, generator=torch.Generator().manual_seed(1))}
    fresh = policy.value(obs)
    torch.testing.assert_close(policy.value(obs, policy.initial_hidden(4)), fresh)
    assert not torch.allclose(policy.value(obs, hidden), fresh)


def test_evaluating_and_advancing_leave_the_policys_own_memory_alone() -> None:
    policy, steps = build(), observations(3)
    policy.act(steps[0])
    untouched = copy.deepcopy(policy)
    policy(steps[2], torch.zeros(4, 3), policy.initial_hidden(4))
    policy.advance(policy.inputs(steps[2]), policy.initial_hidden(4))
    assert torch.equal(policy.act(steps[1]), untouched.act(steps[1]))


def test_a_mirrored_actor_has_no_memory() -> None:
    with pytest.raises(ConfigError, match="mirror and rnn_type exclude each other"):
        ActorConfig(mirror=True, rnn_type="gru")


# ---------------------------------------------------------------------- our own GRU layer


@law
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    layers=st.integers(1, 2),
    seed=st.integers(0, 2**31),
)
def test_without_padding_the_gru_is_torchs_with_all_its_gradients(
    lengths: list[int], layers: int, seed: int
) -> None:
    torch.manual_seed(seed)
    config = NetworkConfig(rnn_type="gru", rnn_hidden_dim=4, rnn_num_layers=layers)
    memory = Memory(3, config).double()
    longest_first = torch.tensor(sorted(lengths, reverse=True))
    x = torch.randn(int(longest_first[0]), len(lengths), 3, dtype=torch.float64, requires_grad=True)
    state = torch.randn(len(lengths), memory.state_size, dtype=torch.float64, requires_grad=True)
    inside = (torch.arange(x.shape[0]).unsqueeze(-1) < longest_first).unsqueeze(-1)
    weight = torch.randn(*x.shape[:2], 4, dtype=torch.float64)
    results = []
    for known in (None, longest_first):
        out = torch.where(inside, memory(x, state, known)[0], 0.0)
        results.append((out, *torch.autograd.grad((out * weight).sum(), [x, state, *memory.parameters()])))
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
