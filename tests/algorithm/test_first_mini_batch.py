"""Before the first optimiser step the policy is the one that collected: the ratio is 1 and the KL is 0."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
import torch
from hand_made import (
    Task,
    Watcher,
    assert_same_weights,
    box,
    make_ppo,
    make_spec,
    normalizers_of,
    weights_of,
)
from torch import Tensor

from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.ppo import PPO
from surefoot.networks.config import ActorConfig, CriticConfig, DistributionConfig
from surefoot.types import MirrorMap, Step

SWAP = (torch.tensor([1, 0, 2]), torch.tensor([1.0, 1.0, -1.0]))
MIRROR = MirrorMap({"policy": SWAP}, (torch.tensor([1, 0]), torch.ones(2)))
NORMALISED = {"hidden_dims": [8], "obs_normalization": True}


def actor(**changes: Any) -> ActorConfig:
    return ActorConfig(**(NORMALISED | changes))


POLICIES: dict[str, dict[str, Any]] = {
    "gaussian": {},
    "log std": {"actor": actor(distribution=DistributionConfig(std_type="log", init_std=0.3))},
    "tanh mean": {"actor": actor(last_activation="tanh")},
    "layer norm": {"actor": actor(layer_norm=True)},
    "squashed": {
        "actor": actor(distribution=DistributionConfig("SquashedGaussian")),
        "spec": make_spec(16, 3, gymnasium.spaces.Box(-2, 1, (2,))),
    },
    "categorical": {"spec": make_spec(16, 3, gymnasium.spaces.Discrete(5))},
    "mirror": {"actor": actor(mirror=True), "spec": make_spec(16, 3, 2, mirror=MIRROR)},
    "shared": {"network": "shared"},
    "popart": {"critic": CriticConfig(**NORMALISED, value_normalization=True)},
    "per mini-batch": {"normalize_advantage_per_mini_batch": True},
    "large network": {"actor": actor(hidden_dims=[256, 128, 64])},
}


@pytest.mark.parametrize("name", POLICIES)
def test_ratio_is_one_and_kl_is_zero_before_the_first_step(name: str) -> None:
    parts = {
        "actor": ActorConfig(**NORMALISED),
        "critic": CriticConfig(**NORMALISED),
        "spec": make_spec(16, 3, 2),
    } | POLICIES[name]
    per_mini_batch = parts.pop("normalize_advantage_per_mini_batch", False)
    config = PPOConfig(num_learning_epochs=2, normalize_advantage_per_mini_batch=per_mini_batch)
    watcher = Watcher()
    ppo = make_ppo(config, extensions=[watcher], **parts)
    rates: list[float] = []
    update = ppo.optimizer.update
    ppo.optimizer.update = lambda *a: (update(*a), rates.append(ppo.learning_rate.item()))[0]  # type: ignore[method-assign,func-returns-value]
    # the statistics of the normaliser move a long way between iterations
    task = Task(shift=5.0, spread=3.0)
    ppo.warm_up([task.observe(ppo) for _ in range(4)])
    for _ in range(3):
        rate = ppo.learning_rate.item()
        watcher.seen.clear()
        rates.clear()
        task.run(ppo)
        first = watcher.seen[0]
        assert (first["ratio"] - 1).abs().max() <= 1e-5
        assert first["kl"].mean().abs() <= 1e-6
        assert rates[0] == rate
        assert watcher.seen[-1]["kl"].mean() > 1e-6  # it does learn


def test_large_logits_do_not_look_like_a_policy_that_moved() -> None:
    def sharpen(policy: Any) -> None:
        with torch.no_grad():
            policy.action_head.linear.weight.mul_(5000)

    watcher = Watcher()
    spec = make_spec(64, 3, gymnasium.spaces.Discrete(5))
    config = PPOConfig(num_mini_batches=7, num_learning_epochs=1, learning_rate=1e-12)
    ppo = make_ppo(config, spec, extensions=[watcher], prepare=sharpen)
    (metrics,) = Task().run(ppo)
    for seen in watcher.seen:
        assert (seen["ratio"] - 1).abs().max() <= 1e-4
        assert seen["kl"].mean().abs() <= 1e-6
        assert seen["kl"].min() >= 0
    assert metrics["Loss/learning_rate"].item() == pytest.approx(1e-12)


def test_a_policy_that_does_not_move_is_never_clipped() -> None:
    watcher = Watcher()
    config = PPOConfig(learning_rate=1e-12, schedule="fixed")
    ppo = make_ppo(config, make_spec(16), actor=actor(), extensions=[watcher])
    before = weights_of(ppo)
    (metrics,) = Task(shift=5.0, spread=3.0).run(ppo)
    assert metrics["Loss/clip_fraction"].item() == 0.0
    assert metrics["Loss/kl"].abs().item() <= 1e-7
    for seen in watcher.seen:
        assert (seen["ratio"] - 1).abs().max() <= 1e-5
    for name, parameter in ppo.policy.named_parameters():
        torch.testing.assert_close(parameter, before[f"policy.{name}"], rtol=0, atol=1e-9)


def statistics_of(ppo: PPO) -> dict[str, Tensor]:
    parts = normalizers_of(ppo).items()
    return {f"{name}.{key}": x.clone() for name, part in parts for key, x in part.state_dict().items()}


def test_normalisers_are_frozen_from_the_first_action_to_the_end_of_the_update() -> None:
    class Frozen(Watcher):
        def loss(self, batch: Any, out: Any, policy: Any) -> dict[str, Tensor]:
            seen.append(statistics_of(ppo))
            return {}

    seen: list[dict[str, Tensor]] = []
    ppo = make_ppo(actor=actor(), critic=CriticConfig(**NORMALISED), extensions=[Frozen()])
    task = Task(shift=5.0)
    for _ in range(2):
        start = statistics_of(ppo)
        seen.clear()
        task.collect(ppo)
        ppo.policy.act(task.observe(ppo))
        ppo.policy.value(task.observe(ppo))
        assert_same_weights(start, statistics_of(ppo))
        ppo.update()
        assert len(seen) == 4
        for during in seen:
            assert_same_weights(start, during)
        assert not torch.equal(statistics_of(ppo)["actor.mean"], start["actor.mean"])


def test_normalisers_count_each_row_once_whatever_the_epochs() -> None:
    spec = make_spec(6, {"policy": box(3), "critic": box(2)})
    config = PPOConfig(num_learning_epochs=5)
    ppo = make_ppo(config, spec, num_steps=7, actor=actor(), critic=CriticConfig(**NORMALISED))
    task = Task()
    ppo.warm_up([task.observe(ppo) for _ in range(10)])
    assert [n.count.item() for n in normalizers_of(ppo).values()] == [0, 0]
    task.run(ppo, 2)
    assert [n.count.item() for n in normalizers_of(ppo).values()] == [2 * 6 * 7] * 2


def test_the_first_update_replaces_the_provisional_statistics() -> None:
    ppo = make_ppo(actor=actor())
    ppo.warm_up([{"policy": torch.full((4, 3), 1000.0)}])
    normalizer = normalizers_of(ppo)["actor"]
    assert normalizer(torch.full((1, 3), 1000.0)).tolist() == [[0.0] * 3]
    Task().collect(ppo)
    rows = ppo.storage.observations["policy"][:-1].reshape(-1, 3).double().clone()
    ppo.update()
    torch.testing.assert_close(normalizer.mean, rows.mean(0))
    centred = normalizer(rows.float())
    assert centred.mean(0).abs().max() < 1e-5


def test_act_and_value_change_no_state() -> None:
    spec = make_spec(4, {"policy": box(3), "critic": box(2)})
    ppo = make_ppo(spec=spec, actor=actor(), critic=CriticConfig(**NORMALISED))
    task = Task()
    task.run(ppo)
    before = weights_of(ppo)
    obs = task.observe(ppo)
    for deterministic in (True, False):
        ppo.policy.act(obs, deterministic, torch.Generator().manual_seed(0))
    ppo.policy.value(obs)
    ppo.policy(obs, torch.zeros(4, 2))
    assert_same_weights(before, weights_of(ppo))


def test_popart_leaves_every_value_as_it_was_and_learns_in_units_of_the_return() -> None:
    class LargeRewards(Task):
        def transition(self, ppo: PPO, actions: Tensor) -> Step:
            step = super().transition(ppo, actions)
            step.rewards = 1000 * step.rewards
            return step

    critic = CriticConfig(hidden_dims=[8], value_normalization=True)
    ppo = make_ppo(PPOConfig(num_mini_batches=2, value_loss="mse"), critic=critic)
    task = LargeRewards()
    for _ in range(3):
        task.collect(ppo)
        after = ppo.policy.value({"policy": ppo.storage.observations["policy"]}).detach()
        rounding = 1e-6 * ppo.storage.returns.abs().max().item()
        torch.testing.assert_close(after, ppo.storage.values, rtol=1e-4, atol=rounding)
        assert ppo.update()["Loss/value"].item() < 100  # returns are of size 1e4: 1e8 in their own units
