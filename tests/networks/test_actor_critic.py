"""ActorCritic: which groups feed which network, actions for the environment, and the trunk."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from surefoot.errors import ConfigError
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import ActorConfig, CriticConfig, DistributionConfig
from surefoot.types import EnvSpec


def box(size: int) -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(-np.inf, np.inf, (size,))


def build(
    groups: dict[str, Any] | None = None,
    obs_groups: dict[str, list[str]] | None = None,
    actions: Any = None,
    network: Any = "separate",
    actor: ActorConfig | None = None,
    critic: CriticConfig | None = None,
) -> ActorCritic:
    torch.manual_seed(0)
    spec = EnvSpec(groups or {"policy": box(3)}, actions or box(2), num_envs=4)
    actor = actor or ActorConfig(hidden_dims=[8])
    return ActorCritic(spec, actor, critic or CriticConfig(hidden_dims=[8]), obs_groups, network)


@pytest.mark.parametrize(
    ("groups", "actor", "critic"),
    [
        (["policy"], ["policy"], ["policy"]),
        (["policy", "critic"], ["policy"], ["critic"]),
        (["actor", "critic"], ["actor"], ["critic"]),
        (["actor", "policy"], ["actor"], ["policy"]),
        (["policy", "privileged"], ["policy"], ["policy"]),
        (["joints", "camera"], ["joints", "camera"], ["joints", "camera"]),
        (["joints", "action_mask"], ["joints"], ["joints"]),
        (["joints", "critic"], ["joints", "critic"], ["critic"]),
    ],
)
def test_the_group_of_that_name_else_policy_else_all(
    groups: list[str], actor: list[str], critic: list[str]
) -> None:
    policy = build({g: box(2) for g in groups}, actions=gymnasium.spaces.Discrete(2))
    assert policy.groups == {"actor": actor, "critic": critic}


def test_groups_may_be_chosen() -> None:
    policy = build(
        {"policy": box(3), "privileged": box(2)}, {"actor": ["policy"], "critic": ["privileged", "policy"]}
    )
    assert policy.groups["critic"] == ["privileged", "policy"]
    assert policy.actor.layers[0].in_features == 3
    assert policy.critic.layers[0].in_features == 5


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (
            {"critic": ["privilegd"]},
            r"critic.*'privilegd'.*'policy', 'privileged'.*Did you mean 'privileged'",
        ),
        ({"actor": ["camera"]}, r"actor.*'camera'.*'policy'"),
        ({"aktor": ["policy"]}, r"aktor.*Did you mean 'actor'"),
        ({"actor": []}, r"actor is empty.*'policy'"),
    ],
)
def test_a_group_that_does_not_exist_is_named_with_those_that_do(
    wanted: dict[str, list[str]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build({"policy": box(3), "privileged": box(2)}, wanted)


def test_only_an_action_mask_is_no_observation() -> None:
    with pytest.raises(ConfigError, match="action_mask"):
        build({"action_mask": box(3)})


def test_the_actor_does_not_see_the_critics_groups() -> None:
    policy = build({"policy": box(3), "critic": box(2)})
    obs = {"policy": torch.ones(4, 3), "critic": torch.ones(4, 2)}
    other = obs | {"critic": torch.full((4, 2), 5.0)}
    assert torch.equal(policy.act(obs), policy.act(other))
    assert not torch.equal(policy.value(obs), policy.value(other))
    # and acting does not need them
    assert torch.equal(policy.act({"policy": obs["policy"]}), policy.act(obs))


def test_groups_are_concatenated_in_the_order_given() -> None:
    policy = build(
        {"a": box(1), "b": box(2)},
        {"actor": ["b", "a"], "critic": ["a", "b"]},
        actor=ActorConfig(hidden_dims=[]),
    )
    with torch.no_grad():
        policy.action_head.linear.weight.copy_(torch.tensor([[1.0, 10.0, 100.0]] * 2))
        policy.action_head.linear.bias.zero_()
    result = policy.act({"a": torch.tensor([[3.0]]), "b": torch.tensor([[1.0, 2.0]])})
    assert result.tolist() == [[321.0, 321.0]]


def test_discrete_observations_feed_the_network() -> None:
    policy = build(
        {"where": gymnasium.spaces.Discrete(5, start=2), "what": gymnasium.spaces.MultiDiscrete([2, 3])}
    )
    assert policy.actor.layers[0].in_features == 10
    obs = {"where": torch.tensor([2, 6]), "what": torch.tensor([[0, 2], [1, 0]])}
    assert policy.act(obs).shape == (2, 2)
    assert policy.value(obs).shape == (2,)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("normalise", [False, True])
def test_observations_of_any_number_type_are_accepted(dtype: torch.dtype, normalise: bool) -> None:
    policy = build(
        actor=ActorConfig(hidden_dims=[8], obs_normalization=normalise),
        critic=CriticConfig(hidden_dims=[8], obs_normalization=normalise),
    )
    obs = torch.ones(4, 3)
    expected = policy.act({"policy": obs})
    assert torch.equal(policy.act({"policy": obs.to(dtype)}), expected)
    assert policy.value({"policy": obs.to(dtype)}).dtype == torch.float32


# ---------------------------------------------------------------------- acting


def test_the_same_observation_gives_the_same_deterministic_action() -> None:
    policy = build()
    obs = {"policy": torch.randn(4, 3)}
    assert torch.equal(policy.act(obs), policy.act(obs))
    mean = policy.action_distribution(policy.inputs(obs)).mode()
    assert torch.equal(policy.act(obs), mean)


def test_stochastic_actions_differ_and_are_seedable() -> None:
    policy = build()
    obs = {"policy": torch.randn(4, 3)}
    one, two = (policy.act(obs, False, torch.Generator().manual_seed(s)) for s in (1, 2))
    assert not torch.equal(one, two)
    assert torch.equal(one, policy.act(obs, False, torch.Generator().manual_seed(1)))


def test_the_deterministic_discrete_action_is_the_arg_max() -> None:
    policy = build(actions=gymnasium.spaces.Discrete(3, start=10))
    with torch.no_grad():
        policy.action_head.linear.bias.copy_(torch.tensor([0.0, 1.0, 0.5]))
        policy.action_head.linear.weight.zero_()
    assert policy.act({"policy": torch.zeros(4, 3)}).tolist() == [11] * 4


def test_the_deterministic_squashed_action_is_the_squashed_mean() -> None:
    actor = ActorConfig(hidden_dims=[], distribution=DistributionConfig("SquashedGaussian"))
    policy = build(actions=gymnasium.spaces.Box(-1, 1, (2,)), actor=actor)
    with torch.no_grad():
        policy.action_head.linear.bias.copy_(torch.tensor([0.5, -2.0]))
    result = policy.act({"policy": torch.zeros(1, 3)})
    torch.testing.assert_close(result, torch.tensor([[0.5, -2.0]]).tanh())


def test_the_first_actions_are_centred_whatever_the_observation() -> None:
    policy = build(actor=ActorConfig())
    assert policy.act({"policy": 3 * torch.randn(100, 3)}).abs().max() < 0.2


def test_a_single_observation_and_a_rollout_of_them_are_evaluated_alike() -> None:
    policy = build()
    obs = torch.randn(6, 4, 3)
    with torch.no_grad():
        torch.testing.assert_close(policy.value({"policy": obs})[2], policy.value({"policy": obs[2]}))


def test_forward_tells_everything_about_given_actions() -> None:
    policy = build()
    obs, actions = {"policy": torch.randn(4, 3)}, torch.randn(4, 2)
    out = policy(obs, actions)
    torch.testing.assert_close(out.log_prob, out.distribution.log_prob(actions))
    torch.testing.assert_close(out.value, policy.value(obs))
    assert out.entropy.shape == out.log_prob.shape == out.value.shape == (4,)
    assert out.actor_features.shape == out.critic_features.shape == (4, 8)


def test_acting_needs_no_gradient() -> None:
    assert not build().act({"policy": torch.ones(4, 3)}).requires_grad


# ---------------------------------------------------------------------- trunk


def names(parameters: list[Tensor], policy: ActorCritic) -> set[str]:
    by_id = {id(p): n for n, p in policy.named_parameters()}
    return {by_id[id(p)] for p in parameters}


def test_separate_networks_share_no_parameter() -> None:
    policy = build()
    segments = policy.segments()
    actor, critic = (names(segments[s], policy) for s in ("actor", "critic"))
    assert not actor & critic
    assert actor | critic == {n for n, _ in policy.named_parameters()}
    assert "action_head.std_param" in actor
    assert "value_head.weight" in critic


def test_a_shared_trunk_serves_both_heads() -> None:
    policy = build(network="shared")
    assert policy.critic is None
    assert list(policy.segments()) == ["actor"]
    assert names(policy.segments()["actor"], policy) == {n for n, _ in policy.named_parameters()}
    out = policy({"policy": torch.randn(4, 3)}, torch.zeros(4, 2))
    assert out.actor_features is out.critic_features
    out.value.sum().backward()
    assert policy.actor.layers[0].weight.grad.abs().sum() > 0


def test_a_shared_trunk_with_different_groups_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"shared.*\['policy'\].*\['critic'\].*separate"):
        build({"policy": box(3), "critic": box(2)}, network="shared")


def test_a_network_without_hidden_layers_is_linear() -> None:
    policy = build(actor=ActorConfig(hidden_dims=[]), critic=CriticConfig(hidden_dims=[]))
    assert policy.action_head.linear.in_features == 3
    assert policy.value({"policy": torch.randn(4, 3)}).shape == (4,)


def test_equal_treatment_of_equal_groups_is_done_once() -> None:
    same = build(
        actor=ActorConfig(hidden_dims=[8], obs_normalization=True),
        critic=CriticConfig(hidden_dims=[8], obs_normalization=True),
    )
    obs = {"policy": torch.ones(4, 3)}
    assert list(same.inputs(obs)) == ["actor"]
    other = build(
        actor=ActorConfig(hidden_dims=[8], obs_normalization=True),
        critic=CriticConfig(hidden_dims=[8], obs_normalization=False),
    )
    assert list(other.inputs(obs)) == ["actor", "critic"]


def test_reset_of_a_policy_without_memory_does_nothing() -> None:
    policy = build()
    policy.reset()
    policy.reset(torch.ones(4, dtype=torch.bool))


@pytest.mark.parametrize(
    "actions",
    [gymnasium.spaces.Dict({"a": box(1)}), gymnasium.spaces.Tuple([box(1)]), gymnasium.spaces.Text(4)],
)
def test_an_action_space_without_a_head_is_refused_by_name(actions: Any) -> None:
    with pytest.raises(ConfigError, match=type(actions).__name__):
        build(actions=actions)


def test_a_mask_of_actions_is_no_input() -> None:
    groups = {"policy": box(2), "action_mask": box(3)}
    with pytest.raises(ConfigError, match=r"obs_groups.actor: 'action_mask'.*never"):
        build(groups, {"actor": ["policy", "action_mask"]}, actions=gymnasium.spaces.Discrete(3))
