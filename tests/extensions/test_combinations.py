"""Every combination of RND, symmetry, auxiliary losses and AMP, with and without memory."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from surefoot.algorithm.ppo import PPO
from surefoot.config import build_config, build_extensions
from surefoot.networks.actor_critic import ActorCritic
from surefoot.types import EnvSpec, Observations, Step

NUM_ENVS, NUM_STEPS = 5, 4
SWAP = torch.tensor([1, 0, 2])


def mirror(obs: Observations | None, actions: Tensor | None) -> tuple[Any, Tensor | None]:
    """Swaps two observations, and two actions or the two values of one."""
    images = None if obs is None else {g: x[..., SWAP] for g, x in obs.items()}
    if actions is None:
        return images, None
    return images, actions[..., [1, 0]] if actions.is_floating_point() else 1 - actions


def demonstrations(step_dt: float) -> list[tuple[Tensor, float]]:
    return [((torch.arange(30).unsqueeze(-1) * step_dt + torch.arange(3)).sin(), 1.0)]


PARTS: dict[str, dict[str, Any]] = {
    "rnd": {"rnd_cfg": {"weight": 0.1}},
    "symmetry": {
        "symmetry_cfg": {
            "use_data_augmentation": True,
            "use_mirror_loss": True,
            "mirror": f"{__name__}:mirror",
        }
    },
    "auxiliary": {"enable_aux_loss": True},
    "amp": {
        "class_name": "PPOAMP",
        "amp_cfg": {
            "dataset": f"{__name__}:demonstrations",
            "obs_group": "privileged",
            "hidden_dims": [8],
            "replay_size": 50,
        },
    },
}
COMBINATIONS = [c for n in range(len(PARTS) + 1) for c in itertools.combinations(PARTS, n)]
ACTIONS: dict[str, gymnasium.Space[Any]] = {
    "gaussian": gymnasium.spaces.Box(-1.0, 1.0, (2,)),
    "discrete": gymnasium.spaces.Discrete(2),
}


def make_ppo(parts: tuple[str, ...], rnn_type: str | None, actions: str, seed: int = 1) -> PPO:
    network = {"hidden_dims": [8], "obs_normalization": True, "rnn_type": rnn_type, "rnn_hidden_dim": 5}
    estimator = {"estimator": {"target": "privileged", "hidden_dims": [4]}} if "auxiliary" in parts else {}
    algorithm: dict[str, Any] = {"num_learning_epochs": 2, "num_mini_batches": 2}
    for part in parts:
        algorithm |= PARTS[part]
    config = build_config({"actor": network | estimator, "critic": network, "algorithm": algorithm})
    box = gymnasium.spaces.Box(-np.inf, np.inf, (3,))
    spec = EnvSpec({"policy": box, "privileged": box}, ACTIONS[actions], NUM_ENVS, step_dt=0.02)
    torch.manual_seed(seed)
    policy = ActorCritic(
        spec, config.actor, config.critic, {"actor": ["policy"], "critic": ["policy", "privileged"]}
    )
    extensions = build_extensions(config)
    return PPO(policy, spec, config.algorithm, num_steps_per_env=NUM_STEPS, extensions=extensions, seed=seed)


def train(ppo: PPO, iterations: int, seed: int = 0) -> dict[str, Tensor]:
    data = torch.Generator().manual_seed(seed)

    def observe() -> dict[str, Tensor]:
        return {g: torch.randn(NUM_ENVS, 3, generator=data) for g in ("policy", "privileged")}

    obs, metrics = observe(), {}
    for _ in range(iterations):
        for _ in range(NUM_STEPS):
            ppo.act(obs)
            dice = torch.rand(NUM_ENVS, generator=data)
            final, obs = observe(), observe()
            ppo.process_env_step(Step(obs, final["policy"][:, 0], dice < 0.1, dice > 0.85, final))
        ppo.compute_returns(obs)
        metrics = ppo.update()
    return metrics


@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize("rnn_type", [None, "gru"])
@pytest.mark.parametrize("parts", COMBINATIONS, ids="+".join)
def test_the_combination_trains(parts: tuple[str, ...], rnn_type: str | None, actions: str) -> None:
    ppo = make_ppo(parts, rnn_type, actions)
    assert len(ppo.extensions) == len(parts)
    metrics = train(ppo, 2)
    assert all(bool(x.isfinite()) for x in metrics.values())
    assert all(bool(x.isfinite().all()) for x in ppo.state_dict().values())
    signs = {"rnd": "Rnd/error", "symmetry": "Symmetry/error", "auxiliary": "Aux/estimator"}
    for part, name in signs.items():
        assert (name in metrics) == (part in parts)


@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize("rnn_type", [None, "gru"])
def test_all_together_resume_bit_for_bit(rnn_type: str | None, actions: str) -> None:
    straight, again = (make_ppo(tuple(PARTS), rnn_type, actions, seed) for seed in (1, 2))
    train(straight, 2)
    again.load_state(straight.state())
    for ppo in (straight, again):
        train(ppo, 1, seed=7)
    expected, got = straight.state_dict(), again.state_dict()
    for name, tensor in expected.items():
        assert torch.equal(tensor, got[name]), name
