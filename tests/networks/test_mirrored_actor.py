"""actor.mirror: the policy commutes with the environment's left-right symmetry."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from surefoot.errors import ConfigError
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import ActorConfig, CriticConfig, DistributionConfig
from surefoot.types import EnvSpec, MirrorMap

# observations: two legs of two joints each, and a sideways velocity; actions: hip and knee of each leg
OBSERVATION = (torch.tensor([2, 3, 0, 1, 4]), torch.tensor([-1.0, 1.0, -1.0, 1.0, -1.0]))
ACTION = (torch.tensor([2, 3, 0, 1]), torch.tensor([-1.0, 1.0, -1.0, 1.0]))
MAP = MirrorMap({"policy": OBSERVATION}, ACTION)


def build(mirror: MirrorMap | None = MAP, actions: Any = None, **changes: Any) -> ActorCritic:
    torch.manual_seed(0)
    spaces = {"policy": gymnasium.spaces.Box(-np.inf, np.inf, (5,))}
    spec = EnvSpec(spaces, actions or gymnasium.spaces.Box(-1, 1, (4,)), num_envs=4, mirror=mirror)
    settings = {"hidden_dims": [16, 8], "mirror": True, "last_layer_gain": 1.0} | changes
    policy = ActorCritic(spec, ActorConfig(**settings), CriticConfig(hidden_dims=[8]))
    with torch.no_grad():
        for p in policy.parameters():
            p += 0.1 * torch.randn_like(p)
    return policy


POLICY = build()


def assert_symmetric(policy: ActorCritic, obs: Tensor) -> None:
    mirrored = MAP.mirror_observations({"policy": obs})
    assert torch.equal(policy.act(mirrored), MAP.mirror_actions(policy.act({"policy": obs})))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), rows=st.integers(1, 40), scale=st.floats(0.01, 100))
def test_the_action_of_the_mirror_image_is_the_mirror_image_of_the_action(
    seed: int, rows: int, scale: float
) -> None:
    obs = scale * torch.randn(rows, 5, generator=torch.Generator().manual_seed(seed))
    assert_symmetric(POLICY, obs)


@pytest.mark.parametrize(
    "changes",
    [
        {"obs_normalization": True},
        {"last_activation": "tanh"},
        {"layer_norm": True},
        {"distribution": DistributionConfig("SquashedGaussian")},
        {"hidden_dims": []},
        {"hidden_dims": [256, 128, 64]},
    ],
)
def test_the_symmetry_holds_with_every_part_of_the_actor(changes: dict[str, Any]) -> None:
    policy = build(**changes)
    # statistics that are not symmetric themselves
    policy.inputs.update({"policy": 3 * torch.randn(100, 5) + torch.arange(5)})
    assert_symmetric(policy, torch.randn(64, 5))


def test_the_mean_is_that_of_the_policy_and_its_mirror_image_by_hand() -> None:
    policy = build(hidden_dims=[])
    w, b = policy.action_head.linear.weight, policy.action_head.linear.bias
    obs = torch.randn(3, 5)
    direct = obs @ w.T + b
    image = MAP.mirror_actions(MAP.mirror_observations({"policy": obs})["policy"] @ w.T + b)
    distribution = policy.action_distribution(policy.inputs({"policy": obs}))
    torch.testing.assert_close(distribution.mode(), (direct + image) / 2)


def test_the_deviation_is_symmetric_too() -> None:
    policy = build()
    with torch.no_grad():
        policy.action_head.std_param.copy_(torch.tensor([0.1, 0.2, 0.3, 0.4]))
    std = policy.action_distribution(policy.inputs({"policy": torch.randn(3, 5)})).params["std"]
    # legs are averaged: (.1 + .3) / 2 and (.2 + .4) / 2
    torch.testing.assert_close(std[0], torch.tensor([0.2, 0.3, 0.2, 0.3]))


def test_the_gradient_reaches_every_parameter_of_the_actor() -> None:
    policy = build()
    out = policy({"policy": torch.randn(7, 5)}, torch.randn(7, 4))
    gradients = torch.autograd.grad(out.log_prob.sum(), policy.segments()["actor"])
    assert all(g.abs().sum() > 0 for g in gradients)
    assert out.actor_features.shape == (7, 8)


def test_a_rollout_with_two_leading_dimensions_is_mirrored_row_by_row() -> None:
    policy = build()
    obs = torch.randn(6, 4, 5)
    whole = policy.action_distribution(policy.inputs({"policy": obs})).mode()
    row = policy.action_distribution(policy.inputs({"policy": obs[2]})).mode()
    torch.testing.assert_close(whole[2], row)


def test_without_a_map_it_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"actor\.mirror.*no mirror map"):
        build(mirror=None)


def test_a_map_that_lacks_a_group_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"actor\.mirror.*'policy'"):
        build(mirror=MirrorMap({"other": OBSERVATION}, ACTION))


def test_a_discrete_action_space_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"actor\.mirror.*Box"):
        build(actions=gymnasium.spaces.Discrete(4))


def test_the_mirror_image_of_a_mirror_image_is_the_original() -> None:
    obs, actions = torch.randn(5, 5), torch.randn(5, 4)
    twice = MAP.mirror_observations(MAP.mirror_observations({"policy": obs}))["policy"]
    assert torch.equal(twice, obs)
    assert torch.equal(MAP.mirror_actions(MAP.mirror_actions(actions)), actions)


@pytest.mark.parametrize(
    ("observation", "action"),
    [
        # a cycle of three is not its own inverse
        ((torch.tensor([1, 2, 0, 3, 4]), torch.ones(5)), ACTION),
        (OBSERVATION, (torch.tensor([1, 2, 0, 3]), torch.ones(4))),
        # a sign on one side of a swap only
        ((OBSERVATION[0], torch.tensor([-1.0, 1.0, 1.0, 1.0, -1.0])), ACTION),
        # of another width
        ((torch.tensor([1, 0]), torch.ones(2)), ACTION),
        (OBSERVATION, (torch.tensor([1, 0]), torch.ones(2))),
    ],
)
def test_a_map_that_is_no_mirror_is_refused(
    observation: tuple[Tensor, Tensor], action: tuple[Tensor, Tensor]
) -> None:
    with pytest.raises(ConfigError, match="mirror"):
        build(mirror=MirrorMap({"policy": observation}, action))


def test_shared_trunk_and_mirror_train_together() -> None:
    spaces = {"policy": gymnasium.spaces.Box(-np.inf, np.inf, (5,))}
    spec = EnvSpec(spaces, gymnasium.spaces.Box(-1, 1, (4,)), num_envs=4, mirror=MAP)
    policy = ActorCritic(spec, ActorConfig(hidden_dims=[8], mirror=True), network="shared")
    out = policy({"policy": torch.randn(7, 5)}, torch.randn(7, 4))
    assert out.value.shape == (7,)
    assert_symmetric(policy, torch.randn(9, 5))
