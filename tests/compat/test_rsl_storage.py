"""RSL-RL's rollout storage: its shapes and generators over Surefoot's rollout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rsl_parts import NUM_ACTIONS
from tensordict import TensorDict

from surefoot.compat.rsl_rl.storage import RolloutStorage

NUM_ENVS, NUM_STEPS = 6, 8


def step_of(num_envs: int, number: float, **given: Any) -> RolloutStorage.Transition:
    """A step that is told from others by its number."""
    step = RolloutStorage.Transition()
    step.observations = TensorDict(
        {"policy": torch.arange(num_envs).float().unsqueeze(1) + 100 * number}, batch_size=[num_envs]
    )
    step.actions = torch.full((num_envs, NUM_ACTIONS), number)
    step.values, step.rewards = torch.full((num_envs, 1), 10 * number), torch.full((num_envs,), number)
    step.actions_log_prob = torch.full((num_envs,), 0.1 * number)
    step.distribution_params = (
        torch.full((num_envs, NUM_ACTIONS), number),
        torch.ones(num_envs, NUM_ACTIONS),
    )
    step.dones = torch.zeros(num_envs)
    for name, value in given.items():
        setattr(step, name, value)
    return step


def make(num_envs: int = NUM_ENVS, num_steps: int = NUM_STEPS, kind: str = "rl") -> RolloutStorage:
    obs = TensorDict({"policy": torch.zeros(num_envs, 1)}, batch_size=[num_envs])
    return RolloutStorage(kind, num_envs, num_steps, obs, [NUM_ACTIONS])


def fill(storage: RolloutStorage, done_at: dict[int, list[int]] | None = None, **given: Any) -> None:
    for t in range(storage.num_transitions_per_env):
        dones = torch.zeros(storage.num_envs)
        dones[(done_at or {}).get(t, [])] = 1.0
        extra = {name: make_value(t) for name, make_value in given.items()}
        storage.add_transition(step_of(storage.num_envs, float(t), dones=dones, **extra))


def test_fields_have_the_shapes_of_rsl_rl() -> None:
    storage = make()
    assert storage.distribution_params is None
    fill(storage, {2: [1]})
    shapes = {
        name: tuple(getattr(storage, name).shape)
        for name in ("rewards", "dones", "values", "actions_log_prob", "returns", "advantages", "actions")
    }
    assert set(shapes.values()) == {(NUM_STEPS, NUM_ENVS, 1), (NUM_STEPS, NUM_ENVS, NUM_ACTIONS)}
    assert storage.observations.batch_size == torch.Size([NUM_STEPS, NUM_ENVS])
    assert storage.dones[2].squeeze(-1).tolist() == [0, 1, 0, 0, 0, 0]
    assert storage.dones.dtype == torch.uint8
    assert [p.shape[0] for p in storage.distribution_params or ()] == [NUM_STEPS, NUM_STEPS]
    assert torch.equal((storage.distribution_params or ())[0], storage.actions)


def test_values_returns_and_advantages_may_be_written() -> None:
    storage = make()
    fill(storage)
    storage.values[3] = torch.full((NUM_ENVS, 1), 7.0)
    storage.returns = torch.randn_like(storage.returns)
    storage.advantages = 2 * storage.returns
    assert storage.rollout.values[3].tolist() == [7.0] * NUM_ENVS
    assert torch.equal(storage.rollout.advantages, 2 * storage.rollout.returns)


@settings(max_examples=30, deadline=None)
@given(num_envs=st.integers(1, 7), num_steps=st.integers(1, 6), num_batches=st.integers(1, 4))
def test_c07_every_row_is_in_one_mini_batch_of_each_epoch(
    num_envs: int, num_steps: int, num_batches: int
) -> None:
    storage = make(num_envs, num_steps)
    fill(storage)
    batches = list(storage.mini_batch_generator(num_batches, num_epochs=2))
    assert len(batches) == 2 * num_batches
    everything = storage.observations["policy"].flatten().sort().values
    for epoch in (batches[:num_batches], batches[num_batches:]):
        rows = torch.cat([b.observations["policy"].flatten() for b in epoch])
        assert torch.equal(rows.sort().values, everything)
        for batch in epoch:
            assert torch.equal(batch.values, 10 * batch.actions[:, :1])
            assert torch.equal(batch.old_distribution_params[0], batch.actions)
            assert torch.equal((batch.observations["policy"] // 100), batch.actions[:, :1])


def test_c08_each_epoch_has_an_order_of_its_own() -> None:
    storage = make()
    fill(storage)
    orders = [b.observations["policy"].flatten() for b in storage.mini_batch_generator(1, num_epochs=2)]
    assert not torch.equal(*orders)


def test_sequences_are_cut_at_ends_and_stand_beside_their_environments() -> None:
    storage = make()
    fill(storage, {3: [0]}, hidden_states=lambda t: (torch.full((2, NUM_ENVS, 5), float(t)), None))
    first, second = storage.recurrent_mini_batch_generator(2, num_epochs=1)
    assert first.observations["policy"].shape == (NUM_STEPS, 4, 1)
    assert second.observations["policy"].shape == (NUM_STEPS, 3, 1)
    assert first.masks.sum(0).tolist() == [4, 4, 8, 8]
    # the end of environment 0 lies after step 3: its second sequence starts from what was there at step 4
    assert first.hidden_states[0][:, :, 0].tolist() == [[0.0, 4.0, 0.0, 0.0]] * 2
    assert first.hidden_states[1] is None
    seen = (first.observations["policy"][first.masks] % 100).unique().tolist()
    assert seen == [0.0, 1.0, 2.0]
    assert first.actions.shape == (NUM_STEPS, 3, NUM_ACTIONS)


def test_c07_no_environment_is_left_over_and_later_epochs_are_shuffled() -> None:
    storage = make(num_envs=7)
    fill(storage)
    batches = list(storage.recurrent_mini_batch_generator(3, num_epochs=4))
    assert len(batches) == 12
    orders = []
    for epoch in range(4):
        parts = batches[3 * epoch : 3 * epoch + 3]
        orders.append([int(x) for b in parts for x in b.observations["policy"][0].flatten()])
    assert all(sorted(order) == list(range(7)) for order in orders)
    assert len({tuple(order) for order in orders}) > 1


def test_memories_of_an_lstm_are_pairs() -> None:
    storage = make()
    pair = lambda t: (None, (torch.full((1, NUM_ENVS, 3), float(t)), torch.full((1, NUM_ENVS, 3), -float(t))))  # noqa: E731
    fill(storage, {1: [2]}, hidden_states=pair)
    (batch,) = storage.recurrent_mini_batch_generator(1, num_epochs=1)
    hidden, cell = batch.hidden_states[1]
    assert torch.equal(hidden, -cell)
    assert hidden[0, :, 0].tolist() == [0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0]


def test_distillation_goes_step_by_step() -> None:
    storage = make(kind="distillation")
    fill(storage, privileged_actions=lambda t: torch.full((NUM_ENVS, NUM_ACTIONS), -float(t)))
    batches = list(storage.generator())
    assert [b.privileged_actions[0, 0].item() for b in batches] == [-float(t) for t in range(NUM_STEPS)]
    assert batches[3].observations["policy"][0].item() == 300.0
    with pytest.raises(ValueError, match="distillation"):
        next(make().generator())
    with pytest.raises(ValueError, match="rl"):
        next(storage.mini_batch_generator(1))


def test_a_step_too_many_is_refused_and_clear_makes_room() -> None:
    storage = make()
    fill(storage)
    with pytest.raises(OverflowError, match="already holds 8 steps"):
        storage.add_transition(step_of(NUM_ENVS, 9.0))
    storage.clear()
    assert storage.step == 0
    storage.add_transition(step_of(NUM_ENVS, 9.0))
    assert storage.step == 1
    assert storage.actions[0, 0, 0] == 9.0


def test_c23_dtypes_are_kept_and_a_transition_can_be_emptied() -> None:
    obs = TensorDict(
        {"image": torch.zeros(2, 3, 4, 4, dtype=torch.uint8), "half": torch.zeros(2, 1).half()}, [2]
    )
    storage = RolloutStorage("rl", 2, 3, obs, [1])
    assert storage.observations["image"].dtype == torch.uint8
    assert storage.observations["half"].dtype == torch.float16
    step = step_of(2, 1.0)
    step.clear()
    assert step.actions is None
    assert step.hidden_states == (None, None)
