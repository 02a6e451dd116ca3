"""The optimiser step: clipping by hand, shared and frozen parameters, and steps that are not made."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from hand_made import Task, assert_same_weights, make_ppo, weights_of
from torch import Tensor, nn

from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.extension import Extension
from surefoot.algorithm.optimizer import FlatOptimizer
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import ActorConfig, DistributionConfig
from surefoot.types import Batch, PolicyOutput

SGD: dict[str, Any] = {"optimizer": "sgd", "schedule": "fixed", "learning_rate": 1.0}
ZERO = torch.zeros(())


def parameter(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values))


def push(optimizer: FlatOptimizer, loss: Tensor) -> tuple[float, float]:
    """One step; returns the gradient norm and whether it was skipped."""
    optimizer.differentiate(loss)
    norm, _, skipped = optimizer.update(ZERO, 1)
    return norm.item(), skipped.item()


def test_actor_and_critic_are_clipped_each_on_its_own() -> None:
    a, c = parameter(0.0, 0.0), parameter(0.0)
    optimizer = FlatOptimizer({"actor": [a], "critic": [c]}, PPOConfig(**SGD, max_grad_norm=1.0))
    # gradients (3, 4) of norm 5 and .5: only the first is scaled, by 1/5
    norm, _ = push(optimizer, 3 * a[0] + 4 * a[1] + 0.5 * c[0])
    assert a.tolist() == pytest.approx([-0.6, -0.8], rel=1e-5)
    assert c.tolist() == pytest.approx([-0.5], rel=1e-5)
    # the norm of both before clipping: √(25 + .25)
    assert norm == pytest.approx(math.sqrt(25.25), rel=1e-5)


def test_joint_clipping_scales_all_by_one_factor() -> None:
    a, c = parameter(0.0, 0.0), parameter(0.0)
    optimizer = FlatOptimizer(
        {"actor": [a], "critic": [c]}, PPOConfig(**SGD, max_grad_norm=1.0, grad_clip="joint")
    )
    # √(3² + 4² + 12²) = 13
    norm, _ = push(optimizer, 3 * a[0] + 4 * a[1] + 12 * c[0])
    assert a.tolist() == pytest.approx([-3 / 13, -4 / 13], rel=1e-5)
    assert c.tolist() == pytest.approx([-12 / 13], rel=1e-5)
    assert norm == pytest.approx(13.0, rel=1e-5)


def test_gradients_below_the_norm_are_left_as_they_are() -> None:
    a = parameter(1.0)
    optimizer = FlatOptimizer({"actor": [a]}, PPOConfig(**SGD, max_grad_norm=1.0))
    push(optimizer, 0.25 * a[0])
    assert a.tolist() == [0.75]


def test_a_parameter_without_gradient_counts_as_zero() -> None:
    used, unused = parameter(1.0), parameter(1.0)
    optimizer = FlatOptimizer({"actor": [used, unused]}, PPOConfig(**SGD))
    norm, skipped = push(optimizer, 0.5 * used[0])
    assert (used.item(), unused.item(), norm, skipped) == (0.5, 1.0, 0.5, 0.0)


def test_a_parameter_in_several_segments_is_stepped_once() -> None:
    shared = parameter(1.0)
    optimizer = FlatOptimizer({"actor": [shared], "critic": [shared]}, PPOConfig(**SGD))
    push(optimizer, 0.25 * shared[0])
    assert shared.item() == 0.75


def test_a_matrix_and_a_bias_keep_their_values_and_shapes() -> None:
    layer = nn.Linear(3, 2)
    before = copy.deepcopy(layer.state_dict())
    FlatOptimizer({"actor": layer.parameters()}, PPOConfig())
    assert_same_weights(before, layer.state_dict())


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "rmsprop"])
def test_each_optimiser_equals_torchs_own(optimizer: Any) -> None:
    mine, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
    theirs.load_state_dict(mine.state_dict())
    config = PPOConfig(schedule="fixed", learning_rate=0.01, optimizer=optimizer, max_grad_norm=1e9)
    flat = FlatOptimizer({"actor": mine.parameters()}, config)
    kinds = {
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "sgd": torch.optim.SGD,
        "rmsprop": torch.optim.RMSprop,
    }
    reference = kinds[optimizer](theirs.parameters(), lr=0.01)
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    for _ in range(5):
        push(flat, mine(x).square().mean())
        reference.zero_grad()
        theirs(x).square().mean().backward()
        reference.step()
    for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "rmsprop"])
def test_each_optimiser_leaves_a_non_finite_step_out(optimizer: Any) -> None:
    weight = parameter(1.0)
    flat = FlatOptimizer({"actor": [weight]}, PPOConfig(schedule="fixed", optimizer=optimizer))
    push(flat, weight[0].square())
    before = weight.item()
    assert push(flat, weight[0] * torch.inf)[1] == 1
    assert weight.item() == before


# ---------------------------------------------------------------------- through PPO


def test_a_shared_trunk_is_optimised_once() -> None:
    ppo = make_ppo(PPOConfig(num_mini_batches=2), network="shared")
    parameters = list(ppo.policy.parameters())
    assert sum(p.numel() for p in parameters) == sum(
        p.numel() for g in ppo.optimizer.optimizer.param_groups for p in g["params"]
    )
    assert len({p.data_ptr() for p in parameters}) == len(parameters)
    before = [p.detach().clone() for p in parameters]
    Task().run(ppo)
    assert all(not torch.equal(p, b) for p, b in zip(parameters, before, strict=True))


@pytest.mark.parametrize(
    ("network", "grad_clip", "expected"),
    [("shared", "separate", [1.0]), ("separate", "joint", [1.0]), ("separate", "separate", [1.0, 1.0])],
)
def test_what_is_clipped_together(network: Any, grad_clip: Any, expected: list[float]) -> None:
    # every gradient is far above the norm, so that each group of parameters moves by exactly 1 · rate
    def enlarge(policy: ActorCritic) -> None:
        with torch.no_grad():
            policy.value_head.bias.fill_(1000.0)

    config = PPOConfig(
        num_mini_batches=1, num_learning_epochs=1, optimizer="sgd", learning_rate=1.0, schedule="fixed",
        grad_clip=grad_clip, max_grad_norm=1.0, value_loss="mse",
    )  # fmt: skip
    ppo = make_ppo(config, network=network, extensions=[LargeLoss()], prepare=enlarge)
    segments = ppo.policy.segments()
    before = {name: [p.detach().clone() for p in ps] for name, ps in segments.items()}
    (metrics,) = Task().run(ppo)
    moves = [
        math.sqrt(sum(float((p - b).detach().square().sum()) for p, b in zip(ps, before[name], strict=True)))
        for name, ps in segments.items()
    ]
    if grad_clip == "joint" or network == "shared":
        moves = [math.hypot(*moves)]
    assert moves == pytest.approx(expected, rel=1e-3)
    assert metrics["Loss/grad_norm"].item() > 100


class LargeLoss(Extension):
    """A large, smooth pull on the actor."""

    def loss(self, batch: Batch, out: PolicyOutput, policy: ActorCritic) -> dict[str, Tensor]:
        return {"Aux/large": 1000 * (out.distribution.mode() - 1).square().mean()}


def test_a_frozen_parameter_stays() -> None:
    def freeze(policy: ActorCritic) -> None:
        policy.actor.layers[0].weight.requires_grad_(False)
        policy.action_head.std_param.requires_grad_(False)

    ppo = make_ppo(prepare=freeze)
    before = weights_of(ppo)
    Task().run(ppo, 2)
    after = weights_of(ppo)
    for name in ("policy.actor.layers.0.weight", "policy.action_head.std_param"):
        assert torch.equal(before[name], after[name])
    assert not torch.equal(before["policy.actor.layers.0.bias"], after["policy.actor.layers.0.bias"])


# ---------------------------------------------------------------------- steps that are not made


def test_a_bad_reward_skips_updates_and_leaves_the_weights_as_they_were() -> None:
    ppo = make_ppo()
    Task().run(ppo)
    before = {k: v.detach().clone() for k, v in ppo.policy.named_parameters()}
    task = Task()
    task.collect(ppo)
    ppo.storage.returns.fill_(math.nan)
    metrics = ppo.update()
    assert metrics["Loss/skipped_updates"].item() == 4
    for name, p in ppo.policy.named_parameters():
        assert torch.equal(p, before[name])


# ---------------------------------------------------------------------- std


def test_the_std_stays_below_its_ceiling() -> None:
    actor = ActorConfig(hidden_dims=[8], distribution=DistributionConfig(init_std=1.0, std_range=(0.1, 1.1)))
    ppo = make_ppo(
        PPOConfig(entropy_coef=1.0, learning_rate=0.01, schedule="fixed"), actor=actor, num_steps=4
    )
    for metrics in Task().run(ppo, 10):
        assert metrics["Policy/mean_std"].item() <= 1.1 + 1e-6
    assert ppo.policy.action_head.std_param.max().item() == pytest.approx(1.1)


def test_above_max_kl_the_rest_of_an_iteration_changes_nothing() -> None:
    def trained(max_kl: float | None, epochs: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        config = PPOConfig(
            learning_rate=0.02,
            schedule="fixed",
            num_mini_batches=2,
            num_learning_epochs=epochs,
            max_kl=max_kl,
        )
        ppo = make_ppo(config)
        (metrics,) = Task().run(ppo)
        return weights_of(ppo), metrics

    # the KL of each mini-batch is that before its step: 0 at the first, so exactly one step is made
    stopped, metrics = trained(1e-9, 5)
    assert metrics["Loss/stopped_updates"] == 9
    assert metrics["Loss/skipped_updates"] == 0
    free, free_metrics = trained(None, 5)
    assert free_metrics["Loss/stopped_updates"] == 0
    name = "policy.actor.layers.0.weight"
    start = weights_of(make_ppo(PPOConfig()))[name]
    assert 0 < (stopped[name] - start).abs().max() <= 0.02 * 1.001
    assert (free[name] - start).abs().max() > 0.02


def test_max_kl_starts_anew_in_each_iteration() -> None:
    config = PPOConfig(learning_rate=0.02, schedule="fixed", num_mini_batches=2, max_kl=1e-9)
    ppo = make_ppo(config)
    for metrics in Task().run(ppo, 3):
        assert metrics["Loss/stopped_updates"] == 9
