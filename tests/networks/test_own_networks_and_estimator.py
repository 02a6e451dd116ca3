"""Networks of the user's own, and the estimator inside the actor."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from surefoot.config import build_config, own_networks
from surefoot.errors import ConfigError
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import ActorConfig, CriticConfig, EstimatorConfig
from surefoot.types import EnvSpec


def box(size: int) -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(-np.inf, np.inf, (size,))


def make_spec() -> EnvSpec:
    return EnvSpec({"policy": box(5), "privileged": box(4)}, box(2), 6)


def build(
    actor: ActorConfig | None = None, own: dict[str, Any] | None = None, network: Any = "separate"
) -> ActorCritic:
    torch.manual_seed(0)
    actor = actor or ActorConfig(hidden_dims=[8])
    return ActorCritic(make_spec(), actor, CriticConfig(hidden_dims=[8]), network=network, own_networks=own)


# ---------------------------------------------------------------------- a network of one's own


class Wide(nn.Module):
    """Two layers, and what it was made with."""

    def __init__(self, num_inputs: int, width: int = 6, gain: float = 1.0) -> None:
        super().__init__()
        self.num_inputs, self.gain = num_inputs, gain
        self.layers = nn.Sequential(nn.Linear(num_inputs, 3), nn.Tanh(), nn.Linear(3, width))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * self.layers(x)


class Flat(Wide):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).sum(-1)


class Pair(Wide):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x), x


class Narrow(Wide):
    def __init__(self, num_inputs: int) -> None:
        super().__init__(num_inputs + 1)


class Summing(Wide):
    """Forgets which row is whose."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).sum(0, keepdim=True)


class NoModule:
    def __init__(self, num_inputs: int) -> None:
        self.num_inputs = num_inputs


def test_a_network_of_ones_own_takes_the_place_of_the_hidden_layers() -> None:
    actor = ActorConfig(kwargs={"width": 9, "gain": 2.0}, hidden_dims=[77])
    policy = build(actor, {"actor": Wide})
    assert isinstance(policy.actor.layers, Wide)
    assert (policy.actor.layers.num_inputs, policy.actor.layers.gain) == (5, 2.0)
    assert policy.num_actor_features == policy.action_head.linear.in_features == 9
    # the critic's are as configured
    assert policy.critic.layers[0].out_features == 8
    obs = {"policy": torch.randn(3, 5)}
    features = policy.actor.layers(obs["policy"])
    torch.testing.assert_close(policy.act(obs), policy.action_head.linear(features))


def test_the_critic_may_have_a_network_of_its_own() -> None:
    policy = build(own={"critic": Wide})
    assert isinstance(policy.critic.layers, Wide)
    assert policy.value_head.in_features == 6
    out = policy({"policy": torch.randn(7, 3, 5)}, torch.zeros(7, 3, 2))
    assert out.value.shape == (7, 3)
    assert {id(p) for p in policy.critic.layers.parameters()} <= {id(p) for p in policy.segments()["critic"]}


def test_a_shared_trunk_may_be_of_ones_own() -> None:
    policy = build(own={"actor": Wide}, network="shared")
    assert policy.value_head.in_features == policy.action_head.linear.in_features == 6


def test_a_network_of_ones_own_stands_behind_memory_and_estimator() -> None:
    actor = ActorConfig(rnn_type="gru", rnn_hidden_dim=7, estimator=EstimatorConfig("privileged"))
    policy = build(actor, {"actor": Wide})
    assert policy.actor.layers.num_inputs == 7 + 4


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Flat, r"actor.class_name my:Net: expected features \[..., F\] from inputs \[..., 5\], got \(4,\)"),
        (Pair, "actor.class_name my:Net.*got tuple"),
        (Summing, r"actor.class_name my:Net.*got \(1, 6\)"),
        (Narrow, "actor.class_name my:Net does not take inputs of width 5"),
        (NoModule, "actor.class_name my:Net: expected a torch.nn.Module, got NoModule"),
    ],
)
def test_a_network_of_ones_own_that_does_not_fit_is_refused_by_name(kind: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(ActorConfig(class_name="my:Net"), {"actor": kind})


def test_keyword_arguments_that_a_network_does_not_take_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"actor.class_name my:Net cannot be made.*'widht'"):
        build(ActorConfig(class_name="my:Net", kwargs={"widht": 9}), {"actor": Wide})


def test_trying_a_network_out_leaves_its_statistics_alone() -> None:
    class Counting(Wide):
        def __init__(self, num_inputs: int) -> None:
            super().__init__(num_inputs)
            self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

        def forward(self, x: Tensor) -> Tensor:
            self.passes += self.training
            return super().forward(x)

    layers = build(own={"actor": Counting}).actor.layers
    assert layers.passes.item() == 0
    assert layers.training


@pytest.fixture
def my_module(monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that can be imported by name, as a user's would be."""
    module = ModuleType("my_networks")
    vars(module).update(Wide=Wide, NoModule=NoModule)
    monkeypatch.setitem(sys.modules, "my_networks", module)
    return "my_networks"


def test_a_configuration_names_networks_of_ones_own(my_module: str) -> None:
    config = build_config(
        {
            "actor": {"class_name": f"{my_module}:Wide", "kwargs": {"width": 9}},
            "critic": {"class_name": f"{my_module}:Wide"},
        }
    )
    found = own_networks(config)
    assert found == {"actor": Wide, "critic": Wide}
    policy = ActorCritic(make_spec(), config.actor, config.critic, own_networks=found)
    assert policy.num_actor_features == 9
    assert policy.value_head.in_features == 6


def test_a_configuration_without_them_names_none() -> None:
    assert own_networks(build_config({})) == {}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_networks:NoModule", "critic.class_name.*my_networks:NoModule.*subclass of torch.*Module"),
        ("my_networks:Wise", "critic.class_name.*no 'Wise'.*Did you mean 'Wide'"),
        ("my_other_networks:Wide", "critic.class_name.*no module 'my_other_networks'"),
        ("Wide", "critic.class_name.*package.module:name"),
    ],
)
@pytest.mark.usefixtures("my_module")
def test_a_class_that_cannot_be_used_is_named(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        own_networks(build_config({"critic": {"class_name": name}}))


# ---------------------------------------------------------------------- estimator


def estimating(target: Any = "privileged", **changes: Any) -> ActorConfig:
    estimator = EstimatorConfig(target, hidden_dims=[16])
    return ActorConfig(hidden_dims=[8], last_layer_gain=1.0, estimator=estimator, **changes)


@pytest.mark.parametrize(
    ("target", "width"),
    [("privileged", 4), (["privileged", 0, 4], 4), (["privileged", 1, 3], 2), (["policy", 4, 5], 1)],
)
def test_the_estimate_joins_the_input_of_the_hidden_layers(target: Any, width: int) -> None:
    policy = build(estimating(target))
    assert policy.actor.layers[0].in_features == 5 + width
    out = policy({"policy": torch.randn(7, 3, 5)}, torch.zeros(7, 3, 2))
    assert out.estimate is not None
    assert out.estimate.shape == (7, 3, width)
    # what it predicts is not needed to act
    assert policy.act({"policy": torch.randn(3, 5)}).shape == (3, 2)


def test_without_an_estimator_there_is_no_estimate() -> None:
    assert build()({"policy": torch.randn(3, 5)}, torch.zeros(3, 2)).estimate is None


@pytest.mark.parametrize("rnn_type", [None, "gru"])
def test_the_estimator_learns_from_its_own_loss_only(rnn_type: Any) -> None:
    policy = build(estimating(rnn_type=rnn_type))
    out = policy({"policy": torch.randn(7, 3, 5)}, torch.zeros(7, 3, 2))
    assert policy.actor.estimator is not None
    parameters = list(policy.actor.estimator.parameters())
    policys = torch.autograd.grad(
        (out.log_prob + out.entropy + out.value).sum(), parameters, allow_unused=True, retain_graph=True
    )
    assert policys == (None,) * len(parameters)
    gradients = torch.autograd.grad(out.estimate.sum(), parameters)
    assert all(g.abs().sum() > 0 for g in gradients)


def test_the_policy_reads_the_estimate() -> None:
    policy, obs = build(estimating()), {"policy": torch.randn(3, 5)}
    before = policy.act(obs)
    assert policy.actor.estimator is not None
    with torch.no_grad():
        policy.actor.estimator[-1].bias += 1.0
    assert not torch.allclose(policy.act(obs), before)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("privilged", "actor.estimator.*'privilged'.*Did you mean 'privileged'"),
        (["privilged", 0, 2], "actor.estimator.*'privilged'.*Did you mean 'privileged'"),
        (["privileged", 4, 6], "actor.estimator.*'privileged'.*empty"),
        (["privileged", 3, 10], "actor.estimator.*'privileged'.*too long"),
    ],
)
def test_an_estimator_of_what_does_not_exist_is_refused(target: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(estimating(target))


@pytest.mark.parametrize(
    "target",
    [
        [],
        ["privileged"],
        ["privileged", 1],
        ["privileged", 2, 2],
        ["privileged", -1, 2],
        [0, 1, 2],
        ["a", 0, 1.5],
    ],
)
def test_a_target_of_another_form_is_refused(target: list[Any]) -> None:
    with pytest.raises(ConfigError, match=r"expected GROUP or \[GROUP, start, stop\]"):
        EstimatorConfig(target)
