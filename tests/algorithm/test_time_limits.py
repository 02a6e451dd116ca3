"""Time limits, terminations and invalid rows through PPO, with a critic that repeats its observation."""

from __future__ import annotations

import pytest
import torch
from hand_made import Task, advantage_of, make_identity_critic, make_ppo, make_spec, see
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.ppo import PPO
from surefoot.types import Step

RAW = PPOConfig(gamma=0.9, lam=0.8, num_mini_batches=1, num_learning_epochs=1)


def test_nan_in_final_observations_of_rows_that_did_not_end_has_no_effect() -> None:
    ppo = make_identity_critic(RAW, num_envs=2)
    over = torch.tensor([False, True])
    for t in range(3):
        ppo.act(see(1.0, 1.0))
        ppo.process_env_step(
            Step(see(1.0, 1.0), torch.ones(2), over & False, over & (t == 1), see(float("nan"), 7.0))
        )
    ppo.compute_returns(see(1.0, 1.0))
    assert ppo.storage.returns.isfinite().all()
    assert ppo.storage.returns[1, 1].item() == pytest.approx(1 + 0.9 * 7)


def test_terminated_wins_over_truncated_in_the_storage_too() -> None:
    ppo = make_identity_critic(RAW, num_steps=1)
    ppo.act(see(10))
    ppo.process_env_step(Step(see(5), torch.ones(1), torch.tensor([True]), torch.tensor([True]), see(100)))
    ppo.compute_returns(see(5))
    assert ppo.storage.returns.item() == 1.0
    metrics = ppo.update()
    assert metrics["Data/terminations"].item() == 1
    assert metrics["Data/truncations"].item() == 0


def test_the_lambda_chain_stops_at_a_time_limit() -> None:
    ppo = make_identity_critic(RAW, num_steps=2)
    for t, reward in enumerate([0.0, 1000.0]):
        ppo.act(see(0))
        ppo.process_env_step(
            Step(see(0), torch.tensor([reward]), torch.tensor([False]), torch.tensor([t == 0]), see(0))
        )
    ppo.compute_returns(see(0))
    assert advantage_of(ppo).flatten().tolist() == [0.0, 1000.0]


# ---------------------------------------------------------------------- rows that are only an autoreset


class AutoresetTask(Task):
    """An ended row is followed by an invalid one, with a reward and an action that mean nothing."""

    def __init__(self, junk: float, seed: int = 0) -> None:
        super().__init__(seed, ends=0.25)
        self.junk = junk
        self.resetting: Tensor | None = None

    def transition(self, ppo: PPO, actions: Tensor) -> Step:
        step = super().transition(ppo, torch.zeros_like(actions))
        resetting = torch.zeros_like(step.terminated) if self.resetting is None else self.resetting
        step.terminated &= ~resetting
        step.truncated &= ~resetting
        step.rewards = torch.where(resetting, self.junk, step.rewards)
        step.valid = ~resetting
        self.resetting = step.terminated | step.truncated
        return step


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**31), junk=st.sampled_from([1e9, -1e9, float("inf"), float("nan")]))
def test_the_reward_of_an_invalid_row_changes_nothing(seed: int, junk: float) -> None:
    def train(reward: float) -> PPO:
        ppo = make_ppo(PPOConfig(num_mini_batches=2, num_learning_epochs=1))
        AutoresetTask(reward, seed).run(ppo, 2)
        return ppo

    plain, junked = train(0.0), train(junk)
    for name, tensor in plain.state_dict().items():
        assert torch.equal(tensor, junked.state_dict()[name]), name


@pytest.mark.parametrize("per_mini_batch", [False, True])
@pytest.mark.parametrize("junk", [1e12, float("nan")])
def test_the_observation_of_an_invalid_row_changes_nothing(junk: float, per_mini_batch: bool) -> None:
    def train(junk: float) -> PPO:
        config = PPOConfig(num_mini_batches=2, normalize_advantage_per_mini_batch=per_mini_batch)
        ppo = make_ppo(config, num_steps=3)
        task = Task(ends=0.0)
        obs = task.observe(ppo)
        for t in range(3):
            ppo.act(obs)
            step = task.transition(ppo, torch.zeros(4, 2))
            step.rewards = step.observations["policy"][:, 0]
            over, resetting = (torch.tensor([t == k, False, False, False]) for k in (0, 1))
            if t == 0:
                # the observation that the invalid row, t = 1, starts from
                step.observations = {"policy": torch.where(over[:, None], junk, step.observations["policy"])}
            step.terminated, step.valid = over, ~resetting
            ppo.process_env_step(step)
            obs = step.observations
        ppo.compute_returns(obs)
        ppo.update()
        return ppo

    plain, junked = train(0.0), train(junk)
    for name, tensor in plain.state_dict().items():
        assert torch.equal(tensor, junked.state_dict()[name]), name


def test_invalid_rows_are_in_no_mini_batch_and_in_no_count() -> None:
    ppo = make_ppo(PPOConfig(num_mini_batches=2), make_spec(num_envs=6))
    task = AutoresetTask(0.0)
    task.collect(ppo)
    rollout = ppo.storage
    assert not rollout.valid.all()
    rows = torch.cat([b.index for b in rollout.mini_batch_generator(2)])
    assert sorted(rows.tolist()) == rollout.valid.flatten().nonzero().flatten().tolist()
    expected = {
        "Data/samples_used": rollout.valid.sum().item(),
        "Data/terminations": rollout.terminated.sum().item(),
        "Data/truncations": rollout.truncated.sum().item(),
    }
    metrics = ppo.update()
    assert {name: metrics[name].item() for name in expected} == expected


@pytest.mark.parametrize("per_mini_batch", [False, True])
def test_a_rollout_with_fewer_valid_rows_than_mini_batches_is_learned_from(per_mini_batch: bool) -> None:
    config = PPOConfig(num_mini_batches=4, normalize_advantage_per_mini_batch=per_mini_batch)
    ppo = make_ppo(config, make_spec(num_envs=2), num_steps=4)
    obs = {"policy": torch.ones(2, 3)}
    for t in range(4):
        ppo.act(obs)
        no = torch.zeros(2, dtype=torch.bool)
        valid = torch.tensor([t == 0, t == 3])
        ppo.process_env_step(Step(obs, torch.tensor([1.0, 2.0]), no, no, valid=valid))
    ppo.compute_returns(obs)
    metrics = ppo.update()
    assert metrics["Data/samples_used"].item() == 2
    assert all(x.isfinite() for x in metrics.values())
    assert all(x.isfinite().all() for x in ppo.policy.parameters())


def test_an_invalid_row_without_an_ended_row_before_it_still_ends_the_chain() -> None:
    ppo = make_identity_critic(RAW, num_steps=2)
    no = torch.tensor([False])
    for reward, valid in [(1.0, True), (1000.0, False)]:
        ppo.act(see(0))
        ppo.process_env_step(Step(see(0), torch.tensor([reward]), no, no, valid=torch.tensor([valid])))
    ppo.compute_returns(see(0))
    assert ppo.storage.returns[0].item() == pytest.approx(1.0)  # 1 + γ·V = 1 + 0
