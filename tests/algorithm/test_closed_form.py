"""The gradient that is written down is the one that autograd finds."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
import torch
from hand_made import Task, box, make_ppo, make_spec
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.extension import Extension
from surefoot.algorithm.objectives import Clip
from surefoot.algorithm.ppo import PPO
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import ActorConfig, CriticConfig, DistributionConfig
from surefoot.networks.heads import GaussianHead
from surefoot.types import Batch, MirrorMap, PolicyOutput

CASES: dict[str, dict[str, Any]] = {
    "clipped": {"entropy_coef": 0.03, "value_loss_coef": 0.7},
    "squared": {"value_loss": "mse"},
    "huber": {"value_loss": "huber", "huber_delta": 0.3},
    "small clip": {"clip_param": 0.01, "entropy_coef": 0.1},
}
NETWORKS: dict[str, dict[str, Any]] = {
    "elu": {},
    "tanh": {"activation": "tanh", "hidden_dims": [8, 6]},
    "relu": {"activation": "relu"},
    "leaky_relu": {"activation": "leaky_relu"},
    "none": {"hidden_dims": []},
    "mirrored": {"mirror": True},
    "asymmetric": {},
    "discrete": {},
    "multi-discrete": {},
    "masked": {},
    # their gradient is autograd's
    "silu": {"activation": "silu"},
    "layer_norm": {"layer_norm": True},
}


MIRROR = MirrorMap(
    {"policy": (torch.tensor([1, 0, 2]), torch.tensor([1.0, 1.0, -1.0]))},
    (torch.tensor([1, 0, 2]), torch.tensor([-1.0, -1.0, 1.0])),
)
SPACES: dict[str, tuple[dict[str, Any], Any]] = {
    "asymmetric": ({"policy": box(3), "critic": box(5)}, 3),
    "discrete": ({"policy": box(3)}, gymnasium.spaces.Discrete(3)),
    "multi-discrete": ({"policy": box(3)}, gymnasium.spaces.MultiDiscrete([3, 3])),
    "masked": ({"policy": box(3), "action_mask": box(4)}, gymnasium.spaces.Discrete(4)),
}


def learned(case: str = "clipped", std_type: Any = "scalar", network: str = "elu", **critic: Any) -> PPO:
    """A policy on its second rollout, after a first epoch, so that ratios leave the clip range."""
    shape = {"hidden_dims": [8], **NETWORKS[network]}
    actor = ActorConfig(
        **shape,
        distribution=DistributionConfig(std_type=std_type),
        last_activation="tanh" if network == "tanh" else None,
    )
    shape.pop("mirror", None)
    config = PPOConfig(num_mini_batches=2, learning_rate=0.05, schedule="fixed", **CASES[case])
    observations, actions = SPACES.get(network, ({"policy": box(3)}, 3))
    ppo = make_ppo(
        config,
        make_spec(4, observations, actions, MIRROR),
        actor=actor,
        critic=CriticConfig(**shape, **critic),
        dtype=torch.float64,
    )
    if isinstance(ppo.policy.action_head, GaussianHead):
        ppo.policy.action_head.std_param.data.copy_(torch.tensor([0.3, 0.5, 0.9]))
    task = Task(seed=2)
    task.run(ppo)
    task.collect(ppo)
    ppo._apply_schedules()  # pyright: ignore[reportPrivateUsage]
    return ppo


@pytest.mark.parametrize(
    ("case", "std_type", "network", "critic"),
    [
        *((case, std_type, "elu", {}) for case in CASES for std_type in ("scalar", "log")),
        *(("clipped", "log", network, {}) for network in NETWORKS if network != "elu"),
        ("clipped", "scalar", "mirrored", {"value_normalization": True}),
        ("clipped", "scalar", "silu", {"value_normalization": True}),
    ],
)
def test_it_is_the_gradient_of_the_whole_loss(
    case: str, std_type: str, network: str, critic: dict[str, Any]
) -> None:
    ppo = learned(case, std_type, network, **critic)
    assert ppo.closed_form is not None
    assert (ppo.closed_form.networks is None) == (network in ("silu", "layer_norm"))
    batches = ppo.storage.mini_batch_generator(2, 5, torch.Generator().manual_seed(1))
    outside = []
    for batch in batches:
        loss, kl, terms = ppo(batch)
        ppo.optimizer.differentiate(loss)
        expected = ppo.optimizer.gradient.clone()
        ppo.optimizer.gradient[:-3].fill_(torch.nan)
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
    ppo = learned()
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
    ppo = learned()
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
    _, kl, terms = ppo(batch)
    logged_kl, logged = ppo.gradient(batch)
    assert torch.equal(logged_kl, kl)
    assert all(torch.equal(logged[name], x) for name, x in terms.items())


def test_other_losses_are_left_to_autograd() -> None:
    other: list[dict[str, Any]] = [
        {"config": PPOConfig(policy_objective="penalty", schedule="fixed")},
        {"network": "shared"},
        {"spec": make_spec(4, 3, gymnasium.spaces.MultiBinary(3))},
        {"spec": make_spec(4, 3, gymnasium.spaces.MultiDiscrete([2, 3]))},
        {"actor": ActorConfig(distribution=DistributionConfig(std_type="state_dependent"))},
    ]
    assert make_ppo().closed_form is not None
    assert all(make_ppo(**arguments).closed_form is None for arguments in other)


@pytest.mark.filterwarnings("ignore:Full backward hook")  # the observations need no gradient
@pytest.mark.parametrize("kind", ["forward", "pre", "backward", "parameter"])
def test_hooks_see_what_goes_through(kind: str) -> None:
    ppo, seen = learned(network="tanh"), []
    layer = ppo.policy.actor.layers[0]

    def see(*_: object) -> None:
        seen.append(kind)

    register = {
        "forward": layer.register_forward_hook,
        "pre": layer.register_forward_pre_hook,
        "backward": layer.register_full_backward_hook,
        "parameter": layer.weight.register_hook,
    }
    handle = register[kind](see)
    batch = next(iter(ppo.storage.mini_batch_generator(2)))
    ppo.gradient(batch)
    assert seen
    expected = ppo.optimizer.gradient.clone()
    handle.remove()
    seen.clear()
    ppo.gradient(batch)
    assert not seen
    torch.testing.assert_close(ppo.optimizer.gradient, expected, rtol=1e-9, atol=1e-12)


def test_an_activation_that_was_replaced_is_learned_with() -> None:
    ppo = learned()
    ppo.policy.actor.layers[1] = torch.nn.SiLU()
    batch = next(iter(ppo.storage.mini_batch_generator(2)))
    ppo.differentiate(batch)
    expected = ppo.optimizer.gradient.clone()
    ppo.gradient(batch)
    torch.testing.assert_close(ppo.optimizer.gradient, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("network", ["elu", "mirrored", "masked"])
def test_layers_alone_need_no_autograd(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ppo = learned(network=network)
    monkeypatch.setattr(ppo.optimizer, "differentiate", pytest.fail)
    ppo.gradient(next(iter(ppo.storage.mini_batch_generator(2))))
    assert ppo.optimizer.gradient.any()
