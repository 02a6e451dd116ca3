"""The gradient that is written down is the one that autograd finds."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
import torch
from hand_made import Task, make_ppo, make_spec
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.extension import Extension
from surefoot.algorithm.objectives import Clip
from surefoot.algorithm.ppo import PPO
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import ActorConfig, CriticConfig, DistributionConfig
from surefoot.types import Batch, PolicyOutput

CASES: dict[str, dict[str, Any]] = {
    "clipped": {"entropy_coef": 0.03, "value_loss_coef": 0.7},
    "squared": {"value_loss": "mse"},
    "small clip": {"clip_param": 0.01, "entropy_coef": 0.1},
}


def learned(case: str, std_type: Any) -> PPO:
    """A policy on its second rollout, after a first epoch, so that ratios leave the clip range."""
    actor = ActorConfig(hidden_dims=[8], distribution=DistributionConfig(std_type=std_type))
    config = PPOConfig(num_mini_batches=2, learning_rate=0.05, schedule="fixed", **CASES[case])
    ppo = make_ppo(config, actor=actor, dtype=torch.float64)
    task = Task(seed=2)
    task.run(ppo)
    task.collect(ppo)
    ppo._apply_schedules()  # pyright: ignore[reportPrivateUsage]
    return ppo


@pytest.mark.parametrize("std_type", ["scalar", "log"])
@pytest.mark.parametrize("case", CASES)
def test_it_is_the_gradient_of_the_whole_loss(case: str, std_type: str) -> None:
    ppo = learned(case, std_type)
    batches = ppo.storage.mini_batch_generator(2, 5, torch.Generator().manual_seed(1))
    outside = []
    for batch in batches:
        loss, _, kl, terms = ppo(batch)
        ppo.optimizer.differentiate(loss)
        expected = ppo.optimizer.gradient.clone()
        mine, logged = ppo.gradient(batch)
        torch.testing.assert_close(ppo.optimizer.gradient, expected, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(mine, kl, rtol=1e-9, atol=1e-12)
        assert logged.keys() == terms.keys()
        for name, value in terms.items():
            torch.testing.assert_close(logged[name].double(), value.double(), rtol=1e-9, atol=1e-12)
        outside.append(terms["Loss/clip_fraction"].item())
        ppo.optimizer.update(kl, len(batch.index))
    assert max(outside) > 0.1


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.01, 0.5))
def test_it_is_so_for_any_numbers(seed: int, clip: float) -> None:
    ppo = learned("clipped", "scalar")
    assert isinstance(ppo.objective, Clip)
    ppo.objective.clip.fill_(clip)
    generator = torch.Generator().manual_seed(seed)
    batch = next(iter(ppo.storage.mini_batch_generator(2, generator=generator)))
    for name in ("old_log_prob", "old_value", "advantage", "returns"):
        x = getattr(batch, name)
        setattr(batch, name, x + torch.randn(x.shape, generator=generator, dtype=x.dtype))
    ppo.optimizer.differentiate(ppo(batch)[0])
    expected = ppo.optimizer.gradient.clone()
    ppo.gradient(batch)
    torch.testing.assert_close(ppo.optimizer.gradient, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("field", ["advantage", "returns", "old_log_prob"])
def test_a_nan_is_passed_on(field: str) -> None:
    ppo = learned("clipped", "scalar")
    batch = next(iter(ppo.storage.mini_batch_generator(2)))
    setattr(batch, field, getattr(batch, field).index_fill(0, torch.tensor([0]), torch.nan))
    ppo.gradient(batch)
    assert ppo.optimizer.gradient.isnan().any()


def test_the_loss_of_a_subclass_is_what_is_learned() -> None:
    class Free(PPO):
        def _loss(self, batch: Batch, out: PolicyOutput) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
            loss, kl, terms = super()._loss(batch, out)
            return 0.0 * loss, kl, terms

    spec = make_spec()
    ppo = Free(ActorCritic(spec), spec, PPOConfig(num_mini_batches=2), num_steps_per_env=8)
    task = Task(seed=2)
    task.collect(ppo)
    ppo._apply_schedules()  # pyright: ignore[reportPrivateUsage]
    ppo.gradient(next(iter(ppo.storage.mini_batch_generator(2))))
    assert not ppo.optimizer.gradient.any()


def test_rows_that_an_extension_adds_are_left_to_autograd() -> None:
    class Doubled(Extension):
        def augment(self, batch: Batch, policy: ActorCritic) -> Batch:
            return batch.append(batch.observations, batch.actions + 1.0, torch.arange(len(batch.index)))

    ppo = make_ppo(extensions=[Doubled()])
    Task(seed=2).collect(ppo)
    ppo._apply_schedules()  # pyright: ignore[reportPrivateUsage]
    batch = ppo._augment(next(iter(ppo.storage.mini_batch_generator(2))))  # pyright: ignore[reportPrivateUsage]
    _, _, kl, terms = ppo(batch)
    logged_kl, logged = ppo.gradient(batch)
    assert torch.equal(logged_kl, kl)
    assert all(torch.equal(logged[name], x) for name, x in terms.items())


def test_other_losses_are_left_to_autograd() -> None:
    other: list[dict[str, Any]] = [
        {"config": PPOConfig(value_loss="huber")},
        {"config": PPOConfig(policy_objective="penalty", schedule="fixed")},
        {"critic": CriticConfig(hidden_dims=[8], value_normalization=True)},
        {"network": "shared", "spec": make_spec(4, 3, gymnasium.spaces.Discrete(3))},
    ]
    assert make_ppo().closed_form is not None
    assert all(make_ppo(**arguments).closed_form is None for arguments in other)
