"""Advantages through PPO: normalisation, equal advantages, and advantages computed anew each epoch."""

from __future__ import annotations

import pytest
import torch
from hand_made import Task, Watcher, make_ppo, make_spec
from torch import Tensor

from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.extension import Extension
from surefoot.algorithm.losses import clipped_value_loss
from surefoot.algorithm.ppo import PPO
from surefoot.algorithm.rollout_storage import RolloutStorage
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import CriticConfig
from surefoot.types import Step


def constant_critic(value: float) -> object:
    def prepare(policy: ActorCritic) -> None:
        with torch.no_grad():
            policy.value_head.weight.zero_()
            policy.value_head.bias.fill_(value)

    return prepare


class Rewards(Task):
    """Rewards that the test makes, no ends."""

    def __init__(self, make: object, seed: int = 0) -> None:
        super().__init__(seed, ends=0.0)
        self.make = make

    def transition(self, ppo: PPO, actions: Tensor) -> Step:
        step = super().transition(ppo, actions)
        step.rewards = self.make(step)  # type: ignore[operator]
        return step


@pytest.mark.parametrize("per_mini_batch", [False, True])
def test_a_single_sample_has_advantage_zero(per_mini_batch: bool) -> None:
    config = PPOConfig(num_mini_batches=1, normalize_advantage_per_mini_batch=per_mini_batch)
    watcher = Watcher()
    ppo = make_ppo(config, make_spec(1), num_steps=1, extensions=[watcher])
    (metrics,) = Task().run(ppo)
    assert all(seen["advantage"].tolist() == [0.0] for seen in watcher.seen)
    assert all(x.isfinite() for x in metrics.values())


def test_over_the_rollout_advantages_have_mean_zero_and_unbiased_deviation_one() -> None:
    ppo = make_ppo()
    Task().collect(ppo)
    raw = ppo.storage.returns - ppo.storage.values[:-1]
    advantages = ppo.storage.advantages
    assert advantages.mean().abs() < 1e-6
    assert advantages.std(unbiased=True).item() == pytest.approx(1.0, abs=1e-5)
    torch.testing.assert_close(advantages, (raw - raw.mean()) / (raw.std() + 1e-8), rtol=1e-4, atol=1e-5)
    metrics = ppo.update()
    assert metrics["Data/advantage_std"].item() == pytest.approx(raw.std().item(), rel=1e-5)


def test_per_mini_batch_each_one_is_normalised_on_its_own() -> None:
    watcher = Watcher()
    ppo = make_ppo(
        PPOConfig(num_mini_batches=3, normalize_advantage_per_mini_batch=True), extensions=[watcher]
    )
    (metrics,) = Task().run(ppo)
    for seen in watcher.seen:
        assert seen["advantage"].mean().abs() < 1e-6
        assert seen["advantage"].std().item() == pytest.approx(1.0, abs=1e-5)
    assert metrics["Data/advantage_std"].item() > 0


def test_over_the_rollout_a_mini_batch_keeps_its_own_mean() -> None:
    watcher = Watcher()
    Task().run(make_ppo(PPOConfig(num_mini_batches=3), extensions=[watcher]))
    assert any(seen["advantage"].mean().abs() > 1e-3 for seen in watcher.seen)


def test_returns_are_not_normalised() -> None:
    ppo = make_ppo(PPOConfig(gamma=0.0), prepare=constant_critic(0.0))  # type: ignore[arg-type]
    Rewards(lambda _: torch.tensor([1.0, 2.0, 3.0, 4.0])).collect(ppo)
    assert ppo.storage.returns[0].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert ppo.update()["Data/return_abs_max"].item() == 4.0


# ---------------------------------------------------------------------- recompute_advantages


def by_epoch(recompute: bool, **changes: object) -> tuple[list[dict[str, Tensor]], PPO]:
    """What each of three epochs saw, in the rollout's order of rows."""
    watcher = Watcher()
    config = PPOConfig(
        num_mini_batches=1,
        num_learning_epochs=3,
        recompute_advantages=recompute,
        learning_rate=0.01,
        schedule="fixed",
    )
    ppo = make_ppo(config, extensions=[watcher], **changes)  # type: ignore[arg-type]
    Task().run(ppo)
    return [
        {k: v[seen["index"].argsort()] for k, v in seen.items() if k != "index"} for seen in watcher.seen
    ], ppo


def test_without_recomputation_the_advantages_stay() -> None:
    (first, second, third), _ = by_epoch(False)
    for name in ("advantage", "returns", "old_value"):
        assert torch.equal(first[name], second[name])
        assert torch.equal(first[name], third[name])


@pytest.mark.parametrize("value_normalization", [False, True])
def test_recomputed_advantages_come_from_the_new_values_and_are_used(value_normalization: bool) -> None:
    (first, second, third), ppo = by_epoch(
        True, critic=CriticConfig(hidden_dims=[8], value_normalization=value_normalization)
    )
    for earlier, later in ((first, second), (second, third)):
        assert not torch.equal(earlier["advantage"], later["advantage"])
        # the reference of the value clip is the new V, so that a new epoch starts unclipped
        torch.testing.assert_close(later["old_value"], later["value"], rtol=1e-5, atol=1e-5)
    # log-probabilities stay those of the policy that acted
    assert torch.equal(first["old_log_prob"], third["old_log_prob"])
    assert ppo.storage.returns.isfinite().all()


def test_recomputation_uses_the_folded_rewards_and_the_whole_advantage_path() -> None:
    class Tenfold(Extension):
        folds = 0
        calls = 0

        def reward(self, rollout: RolloutStorage, reward: Tensor) -> Tensor:
            type(self).folds += 1
            return 10 * reward

        def advantage(self, rollout: RolloutStorage, advantage: Tensor) -> Tensor:
            type(self).calls += 1
            return advantage

    watcher = Watcher()
    config = PPOConfig(num_mini_batches=1, num_learning_epochs=3, recompute_advantages=True, gamma=0.0)
    ppo = make_ppo(config, extensions=[Tenfold(), watcher])
    task = Task()
    task.collect(ppo)
    expected = 10 * ppo.storage.rewards.flatten()
    ppo.update()
    assert (Tenfold.folds, Tenfold.calls) == (1, 3)
    for seen in watcher.seen:
        torch.testing.assert_close(seen["returns"], expected[seen["index"]], rtol=1e-4, atol=1e-4)


def test_the_value_clip_keeps_values_near_the_old_ones() -> None:
    old, returns = torch.zeros(3), torch.full((3,), 10.0)
    value = torch.tensor([0.1, 0.3, 0.3], requires_grad=True)
    clipped_value_loss(value, old, returns, 0.2).sum().backward()
    assert value.grad is not None
    # within ε the gradient is 2·(V - R); beyond it, towards the target, it is 0
    assert value.grad.tolist() == pytest.approx([2 * (0.1 - 10), 0.0, 0.0])
