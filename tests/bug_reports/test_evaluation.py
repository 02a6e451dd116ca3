"""Public bug reports on evaluation: what it does with the policy, and what it leaves as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import Tensor

import surefoot
from surefoot.config import merge
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import ActorConfig, DistributionConfig
from surefoot.testing import DiscreteTargetEnv, TargetEnv
from surefoot.training.hooks import Hook
from surefoot.training.on_policy_runner import OnPolicyRunner
from surefoot.types import EnvSpec

SMALL: dict[str, Any] = {
    "num_steps_per_env": 32,
    "actor": {"hidden_dims": [8], "obs_normalization": True},
    "critic": {"hidden_dims": [8], "obs_normalization": True},
    "algorithm": {"num_mini_batches": 2, "num_learning_epochs": 2},
    "logger": "none",
}
MULTI_BINARY, MULTI_DISCRETE = spaces.MultiBinary(3), spaces.MultiDiscrete([3, 2])
BOX, DISCRETE = spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(3, start=5)


# ------------------------------------------------------------------ V02: deterministic means the mode


def policy_with(space: Any, last_layer: list[float], distribution: dict[str, Any] | None = None) -> Any:
    """A policy whose last layer gives these numbers at every observation."""
    torch.manual_seed(0)
    spec = EnvSpec({"policy": spaces.Box(-1.0, 1.0, (2,))}, space, num_envs=4)
    actor = ActorConfig(hidden_dims=[4], distribution=DistributionConfig(**(distribution or {})))
    policy = ActorCritic(spec, actor)
    with torch.no_grad():
        policy.action_head.linear.weight.zero_()
        policy.action_head.linear.bias.copy_(torch.tensor(last_layer))
    return policy


@pytest.mark.parametrize(
    ("space", "last_layer", "distribution", "mode"),
    [
        (DISCRETE, [0.0, 1.0, 0.5], {}, 6),  # start 5: the arg-max is the second
        (MULTI_DISCRETE, [0.0, 0.1, 3.0, 2.0, 1.0], {}, [2, 0]),
        (MULTI_BINARY, [-1.0, 2.0, 0.1], {}, [0, 1, 1]),
        (BOX, [0.1, -0.2, 5.0], {}, [0.1, -0.2, 1.0]),  # the mean; clipped to the box
        (BOX, [0.1, -0.2, 5.0], {"class_name": "SquashedGaussian"}, torch.tensor([0.1, -0.2, 5.0]).tanh()),
        # α = β = 1 + softplus(0): the peak is the middle
        (BOX, [0.0] * 6, {"class_name": "Beta"}, [0.0, 0.0, 0.0]),
        (BOX, [0.1, -0.2, 5.0], {"std_type": "gsde"}, [0.1, -0.2, 1.0]),
        (BOX, [0.1, -0.2, 5.0], {"std_type": "state_dependent"}, [0.1, -0.2, 1.0]),
    ],
    ids=["discrete", "multi-discrete", "multi-binary", "gaussian", "squashed", "beta", "gsde", "by state"],
)
def test_v02_the_deterministic_action_is_the_mode_and_the_default(
    space: Any, last_layer: list[float], distribution: dict[str, Any], mode: Any
) -> None:
    policy = policy_with(space, last_layer, distribution)
    obs = {"policy": torch.rand(4, 2)}
    expected = torch.as_tensor(mode).expand(4, *space.shape)
    assert torch.allclose(policy.act(obs).double(), expected.double(), atol=1e-6)
    assert torch.equal(policy.act(obs), policy.act(obs))


@pytest.mark.parametrize("space", [BOX, DISCRETE, MULTI_DISCRETE, MULTI_BINARY], ids=type)
def test_v02_stochastic_actions_differ_and_a_seed_repeats_them(space: Any) -> None:
    spec = EnvSpec({"policy": spaces.Box(-1.0, 1.0, (2,))}, space, num_envs=64)
    policy, obs = ActorCritic(spec, ActorConfig(hidden_dims=[4])), {"policy": torch.rand(64, 2)}

    def sample(seed: int) -> Tensor:
        return policy.act(obs, deterministic=False, generator=torch.Generator().manual_seed(seed))

    assert torch.equal(sample(1), sample(1))
    assert not torch.equal(sample(1), sample(2))
    assert not torch.equal(sample(1), policy.act(obs))


def test_v02_evaluations_are_deterministic_unless_asked_and_then_seedable(tmp_path: Path) -> None:
    runner = OnPolicyRunner(TargetEnv(4), SMALL, tmp_path, quiet=True)
    runner.learn(1)

    def score(policy: Any, **how: Any) -> float:
        return surefoot.evaluate(policy, TargetEnv(4), episodes=8, **how)["mean_reward"]

    loaded = surefoot.load_policy(tmp_path, "last")
    for policy in (runner.policy, runner.get_inference_policy(), loaded):
        assert score(policy, seed=1) == score(policy, seed=1) == score(runner.policy, seed=1)
        sampled = score(policy, seed=1, deterministic=False)
        assert sampled != score(policy, seed=1)
        assert sampled == score(policy, seed=1, deterministic=False)
    obs = TargetEnv(4).reset(seed=3)
    assert torch.equal(loaded(obs), loaded(obs))
    sampling = runner.get_inference_policy(deterministic=False)
    assert not torch.equal(sampling(obs), sampling(obs))


# ------------------------------------------------------------------ V03: asking changes nothing


class Asking(Hook):
    """Uses the policy in the middle of training in every way that there is."""

    def __init__(self) -> None:
        self.asked = 0

    def after_iteration(self, runner: OnPolicyRunner, metrics: dict[str, Any]) -> None:
        self.use(runner)

    def before_iteration(self, runner: OnPolicyRunner, iteration: int) -> None:
        self.use(runner)

    def use(self, runner: OnPolicyRunner) -> None:
        self.asked += 1
        obs = type(runner.env)(3).reset(seed=9)
        for deterministic in (True, False):
            policy = runner.get_inference_policy(deterministic=deterministic, device="cpu")
            for _ in range(3):
                policy(obs)
            policy.reset(torch.tensor([True, False, True]))
            assert not policy.policy.training
        surefoot.evaluate(runner.policy, type(runner.env)(2), episodes=2, deterministic=False)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (TargetEnv, {}),
        (TargetEnv, {"actor": {"rnn_type": "gru", "rnn_hidden_dim": 4}}),
        (TargetEnv, {"critic": {"rnn_type": "lstm", "rnn_hidden_dim": 4}}),
        (TargetEnv, {"actor": {"distribution": {"std_type": "gsde", "gsde_interval": 5}}}),
        (DiscreteTargetEnv, {"algorithm": {"recompute_advantages": True}}),
    ],
    ids=["mlp", "gru", "lstm critic", "gsde", "discrete"],
)
def test_v03_training_goes_on_the_same_whether_a_policy_was_asked_for_or_not(
    kind: type[Any], changes: dict[str, Any]
) -> None:
    def train(is_asked: bool) -> tuple[dict[str, Tensor], Any]:
        runner = OnPolicyRunner(kind(4), merge(SMALL, changes), quiet=True)
        asking = Asking()
        runner.hooks += [asking] if is_asked else []
        runner.learn(1)
        if is_asked:
            asking.use(runner)
        runner.learn(2)
        assert (asking.asked > 0) == is_asked
        assert runner.policy.training
        assert all(p.device == runner.device and p.requires_grad for p in runner.policy.parameters())
        return {k: v.clone() for k, v in runner.alg.state_dict().items()}, runner.metrics

    (asked, _), (alone, _) = train(True), train(False)
    assert asked.keys() == alone.keys()
    assert [k for k in asked if not torch.equal(asked[k], alone[k])] == []


def test_v03_the_normaliser_goes_on_counting_after_a_policy_was_asked_for() -> None:
    runner = OnPolicyRunner(TargetEnv(4), SMALL, quiet=True)
    runner.learn(1)
    policy = runner.get_inference_policy()
    runner.learn(1)
    assert int(runner.policy.inputs.normalizers["actor"].count) == 2 * 4 * 32
    assert int(policy.policy.inputs.normalizers["actor"].count) == 4 * 32  # a copy of its moment


def test_v03_an_inference_policy_is_a_copy_on_the_device_asked_for() -> None:
    runner = OnPolicyRunner(TargetEnv(4), SMALL, quiet=True)
    policy = runner.get_inference_policy(device="cpu")
    assert policy.device == torch.device("cpu")
    ours = {p.data_ptr() for p in runner.policy.parameters()}
    assert not ours & {p.data_ptr() for p in policy.policy.parameters()}
