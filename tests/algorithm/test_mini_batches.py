"""Every valid row is used once per epoch, in a new order each epoch."""

from __future__ import annotations

import pytest
import torch
from hand_made import Task, Watcher, make_ppo, make_spec
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.algorithm.config import PPOConfig
from surefoot.errors import ConfigError


def epochs_of(num_envs: int, num_steps: int, config: PPOConfig) -> list[list[torch.Tensor]]:
    """Row indices of each mini-batch of each epoch of one iteration."""
    watcher = Watcher()
    ppo = make_ppo(config, make_spec(num_envs), num_steps=num_steps, extensions=[watcher])
    Task().run(ppo)
    index = [seen["index"] for seen in watcher.seen]
    per_epoch = len(index) // config.num_learning_epochs
    return [index[i : i + per_epoch] for i in range(0, len(index), per_epoch)]


def test_the_usual_legged_rollout_gives_mini_batches_of_24576_rows() -> None:
    config = PPOConfig(num_mini_batches=4, num_learning_epochs=1)
    ppo = make_ppo(config, make_spec(4096, 1, 1), num_steps=24)
    Task().collect(ppo)
    assert [len(b.index) for b in ppo.storage.mini_batch_generator(ppo.num_batches)] == [24_576] * 4


def test_rows_that_do_not_divide_evenly_are_all_used() -> None:
    epochs = epochs_of(7, 3, PPOConfig(num_mini_batches=4, num_learning_epochs=3))
    for batches in epochs:
        assert [len(b) for b in batches] == [6, 5, 5, 5]
        assert sorted(torch.cat(batches).tolist()) == list(range(21))


def test_each_epoch_has_a_new_order() -> None:
    orders = [
        torch.cat(b).tolist() for b in epochs_of(7, 3, PPOConfig(num_mini_batches=4, num_learning_epochs=3))
    ]
    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert list(range(21)) not in orders


@settings(max_examples=10, deadline=None)
@given(envs=st.integers(1, 9), steps=st.integers(1, 7), batches=st.integers(1, 9))
def test_sizes_differ_by_at_most_one(envs: int, steps: int, batches: int) -> None:
    if batches > envs * steps:
        with pytest.raises(ConfigError):
            make_ppo(PPOConfig(num_mini_batches=batches), make_spec(envs), num_steps=steps)
        return
    (epoch,) = epochs_of(envs, steps, PPOConfig(num_mini_batches=batches, num_learning_epochs=1))
    sizes = [len(b) for b in epoch]
    assert len(sizes) == batches
    assert sum(sizes) == envs * steps
    assert max(sizes) - min(sizes) <= 1


def test_a_mini_batch_size_gives_as_many_mini_batches_as_are_needed() -> None:
    # 21 rows in pieces of at most 8: three of 7
    (epoch,) = epochs_of(7, 3, PPOConfig(mini_batch_size=8, num_learning_epochs=1))
    assert [len(b) for b in epoch] == [7, 7, 7]


def test_a_mini_batch_larger_than_the_rollout_is_the_whole_rollout() -> None:
    (epoch,) = epochs_of(3, 2, PPOConfig(mini_batch_size=1000, num_learning_epochs=1))
    assert [len(b) for b in epoch] == [6]


def test_a_given_permutation_is_used() -> None:
    ppo = make_ppo(num_steps=2)
    Task().collect(ppo)
    order = torch.tensor([5, 0, 7, 2, 1, 6, 4, 3])
    batches = list(ppo.storage.mini_batch_generator(3, permutation=order))
    assert torch.cat([b.index for b in batches]).tolist() == order.tolist()
    assert [len(b.index) for b in batches] == [3, 3, 2]


def test_the_rows_of_a_batch_belong_together() -> None:
    ppo = make_ppo(num_steps=3)
    Task().collect(ppo)
    rollout = ppo.storage
    for batch in rollout.mini_batch_generator(3):
        t, n = batch.index // 4, batch.index % 4
        assert torch.equal(batch.actions, rollout.actions[t, n])
        assert torch.equal(batch.observations["policy"], rollout.observations["policy"][t, n])
        assert torch.equal(batch.inputs["actor"], rollout.observations["policy"][t, n])
        assert torch.equal(batch.old_log_prob, rollout.actions_log_prob[t, n])
        assert torch.equal(batch.old_value, rollout.values[t, n])
        assert torch.equal(batch.advantage, rollout.advantages[t, n])
        assert torch.equal(batch.returns, rollout.returns[t, n])
        for name, x in batch.old_distribution.items():
            assert torch.equal(x, rollout.distribution[name][t, n])


def test_more_mini_batches_than_rows_are_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match=r"4.*2 environments.*1 steps.*2 rows"):
        make_ppo(PPOConfig(num_mini_batches=4), make_spec(2), num_steps=1)


def test_both_keys_together_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"num_mini_batches.*mini_batch_size"):
        PPOConfig(num_mini_batches=4, mini_batch_size=100)


def test_four_mini_batches_are_the_default() -> None:
    assert make_ppo(PPOConfig()).num_batches == 4
