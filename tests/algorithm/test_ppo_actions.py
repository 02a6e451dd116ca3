"""What is stored and what is sent: the raw sample and its image in the environment's action space."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hand_made import Task, make_ppo, make_spec
from torch import Tensor

from surefoot.algorithm.ppo import PPO
from surefoot.networks.config import ActorConfig, DistributionConfig
from surefoot.types import Step

BOX = gymnasium.spaces.Box(np.array([-1, 0], np.float32), np.array([1, 5], np.float32))


def wide(class_name: Any = "auto", init_std: float = 10.0) -> ActorConfig:
    return ActorConfig(hidden_dims=[8], distribution=DistributionConfig(class_name, init_std=init_std))


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
