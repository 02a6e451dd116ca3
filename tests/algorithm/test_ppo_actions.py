"""What is stored and what is sent: the raw sample and its image in the environment's action space."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hand_made import Task, Watcher, make_ppo, make_spec
from torch import Tensor

from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.ppo import PPO
from surefoot.networks.config import ActorConfig, DistributionConfig
from surefoot.types import Step

BOX = gymnasium.spaces.Box(np.array([-1, 0], np.float32), np.array([1, 5], np.float32))


def wide(class_name: Any = "auto", init_std: float = 10.0) -> ActorConfig:
    return ActorConfig(hidden_dims=[8], distribution=DistributionConfig(class_name, init_std=init_std))


def test_the_raw_sample_is_stored_and_its_log_probability_is_that_of_the_raw_sample() -> None:
    ppo = make_ppo(spec=make_spec(64, 3, BOX), actor=wide(), num_steps=2)
    task = Task()
    sent = [ppo.act(task.observe(ppo))]
    ppo.process_env_step(task.transition(ppo, sent[0]))
    sent.append(ppo.act(task.observe(ppo)))
    ppo.process_env_step(task.transition(ppo, sent[1]))
    ppo.compute_returns(task.observe(ppo))
    raw = ppo.storage.actions
    assert raw.abs().max() > 10  # a deviation of 10: far outside
    clipped = raw.clamp(-1, 1)
    expected = torch.stack([clipped[..., 0], 2.5 * (clipped[..., 1] + 1)], -1)
    torch.testing.assert_close(torch.stack(sent), expected)
    normal = torch.distributions.Normal(ppo.storage.distribution["mean"], ppo.storage.distribution["std"])
    torch.testing.assert_close(ppo.storage.actions_log_prob, normal.log_prob(raw).sum(-1))


SPACES: dict[str, tuple[gymnasium.Space[Any], ActorConfig]] = {
    "bounded": (BOX, wide()),
    "far away": (gymnasium.spaces.Box(300, 500, (1,)), wide()),
    "half-bounded": (
        gymnasium.spaces.Box(np.array([0, -np.inf], np.float32), np.array([np.inf, 2], np.float32)),
        wide(),
    ),
    "unbounded": (gymnasium.spaces.Box(-np.inf, np.inf, (2,)), wide()),
    "matrix": (gymnasium.spaces.Box(-2, 3, (2, 3)), wide()),
    "squashed": (BOX, wide("SquashedGaussian")),
    "discrete": (gymnasium.spaces.Discrete(3, start=-1), ActorConfig(hidden_dims=[8])),
}


@pytest.mark.parametrize("name", SPACES)
def test_the_environment_never_gets_an_action_outside_its_space(name: str) -> None:
    space, actor = SPACES[name]

    class Checked(Task):
        def transition(self, ppo: PPO, actions: Tensor) -> Step:
            for row in actions.numpy():
                assert space.contains(row)
            return super().transition(ppo, actions)

    ppo = make_ppo(spec=make_spec(8, 3, space), actor=actor)
    Checked().run(ppo, 2)
    assert all(x.isfinite().all() for x in ppo.policy.parameters())


def test_the_first_actions_lie_around_the_middle_of_a_far_away_box() -> None:
    space = gymnasium.spaces.Box(300, 500, (1,))
    ppo = make_ppo(spec=make_spec(1000, 3, space), num_steps=1)
    actions = ppo.act(Task().observe(ppo))
    assert 350 < actions.mean().item() < 450
    assert actions.std().item() > 30


@pytest.mark.parametrize("name", ["unbounded", "bounded", "squashed", "discrete"])
def test_an_environment_that_changes_the_action_in_place_does_not_change_what_is_stored(name: str) -> None:
    space, actor = SPACES[name]

    class Greedy(Task):
        def transition(self, ppo: PPO, actions: Tensor) -> Step:
            step = super().transition(ppo, actions)
            actions.mul_(0)
            return step

    runs = []
    for kind in (Task, Greedy):
        watcher = Watcher()
        ppo = make_ppo(
            PPOConfig(learning_rate=1e-12, schedule="fixed"),
            make_spec(8, 3, space),
            actor=actor,
            extensions=[watcher],
        )
        kind().run(ppo)
        assert all((seen["ratio"] - 1).abs().max() <= 1e-5 for seen in watcher.seen)
        runs.append(torch.cat([seen["actions"] for seen in watcher.seen]))
    assert torch.equal(*runs)


def test_actions_are_plain_tensors_that_may_be_changed_and_used_in_gradients() -> None:
    for space in (BOX, gymnasium.spaces.Box(-np.inf, np.inf, (2,))):
        ppo = make_ppo(spec=make_spec(4, 3, space))
        actions = ppo.act(Task().observe(ppo))
        assert not actions.is_inference()
        assert not actions.requires_grad
        actions += 1


def test_action_noise_is_a_stream_of_its_own() -> None:
    first, second = make_ppo(seed=3), make_ppo(seed=3)
    obs = Task().observe(first)
    torch.manual_seed(0)
    one = first.act(obs)
    torch.manual_seed(99)
    second.policy.act(obs, deterministic=False)  # somebody else draws from the global stream
    assert torch.equal(one, second.act(obs))
    other = make_ppo(seed=4)
    other.policy.load_state_dict(first.policy.state_dict())
    assert not torch.equal(one, other.act(obs))


def test_evaluation_never_changes_training() -> None:
    def train(interrupted: bool) -> dict[str, Tensor]:
        ppo, task = make_ppo(), Task()
        for _ in range(2):
            task.run(ppo)
            if interrupted:
                obs = {"policy": torch.ones(50, 3)}
                ppo.policy.act(obs)
                ppo.policy.act(obs, deterministic=False)
        return ppo.policy.state_dict()

    plain, interrupted = train(False), train(True)
    for name, tensor in plain.items():
        assert torch.equal(tensor, interrupted[name])
