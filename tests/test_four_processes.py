"""Four processes on two simulated nodes, with every extension there is: one policy, four seeds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ranks import run_ranks
from surefoot.algorithm.losses import masked_mean
from surefoot.algorithm.ppo import PPO
from surefoot.config import build_config, build_extensions, own_networks
from surefoot.config.plugins import EXTENSIONS
from surefoot.networks.actor_critic import ActorCritic
from surefoot.types import Batch, EnvSpec, MirrorMap, PolicyOutput, Step

WORLD, NUM_ENVS, NUM_STEPS, ITERATIONS = 4, 7, 6, 20


class Guessing(nn.Module):
    """A network with a loss of its own."""

    def __init__(self, num_inputs: int) -> None:
        super().__init__()
        self.layers, self.guess = nn.Linear(num_inputs, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        features = self.layers(x).tanh()
        self.guessed = self.guess(features).squeeze(-1)
        return features

    def aux_losses(self, batch: Batch, out: PolicyOutput) -> dict[str, Tensor]:
        return {"guess": masked_mean((self.guessed - batch.returns).square(), batch.mask)}


def demonstrations(step_dt: float) -> list[tuple[Tensor, float]]:
    phase = torch.arange(40).unsqueeze(-1) * step_dt + torch.arange(4)
    return [(phase.sin(), 1.0), (phase.cos(), 2.0)]


def make_ppo(seed: int, rnn_type: str | None) -> PPO:
    here = __name__
    network: dict[str, Any] = {"hidden_dims": [8], "obs_normalization": True, "rnn_type": rnn_type}
    network |= {"rnn_hidden_dim": 6}
    actor = {"class_name": f"{here}:Guessing", "estimator": {"target": "privileged", "hidden_dims": [8]}}
    config = build_config(
        {
            "obs_groups": {"actor": ["policy"], "critic": ["policy", "privileged"]},
            "actor": network | actor,
            "critic": network | {"value_normalization": True},
            "algorithm": {
                "class_name": "PPOAMP",
                "num_learning_epochs": 2,
                "num_mini_batches": 2,
                "enable_aux_loss": True,
                "rnd_cfg": {"weight": 0.1},
                "symmetry_cfg": {"use_data_augmentation": True, "use_mirror_loss": True},
                "amp_cfg": {
                    "dataset": f"{here}:demonstrations",
                    "obs_group": "privileged",
                    "hidden_dims": [8],
                    "replay_size": 70,
                },
            },
            "env": {"reward_scaling": True},
            "extensions": [{"class_name": "AuxiliaryPrediction", "target": "privileged"}],
        }
    )
    bound = np.inf
    spec = EnvSpec(
        {
            "policy": gymnasium.spaces.Box(-bound, bound, (5,)),
            "privileged": gymnasium.spaces.Box(-bound, bound, (4,)),
        },
        gymnasium.spaces.Box(-1.0, 1.0, (2,)),
        NUM_ENVS,
        step_dt=0.02,
        mirror=MirrorMap(
            {
                "policy": (torch.tensor([1, 0, 2, 3, 4]), torch.ones(5)),
                "privileged": (torch.tensor([1, 0, 3, 2]), torch.tensor([1.0, 1.0, -1.0, -1.0])),
            },
            (torch.tensor([1, 0]), torch.ones(2)),
        ),
    )
    torch.manual_seed(seed)
    policy = ActorCritic(
        spec, config.actor, config.critic, config.obs_groups, own_networks=own_networks(config)
    )
    extensions = build_extensions(config)
    assert {type(e).__name__ for e in extensions} == set(EXTENSIONS), "an extension is missing here"
    return PPO(policy, spec, config.algorithm, num_steps_per_env=NUM_STEPS, extensions=extensions, seed=seed)


def train(rank: int, folder: Path) -> None:
    # two nodes of two processes, as torchrun announces them
    os.environ |= {"LOCAL_RANK": str(rank % 2), "GROUP_RANK": str(rank // 2), "LOCAL_WORLD_SIZE": "2"}
    found: dict[str, Any] = {}
    for rnn_type in (None, "gru"):
        ppo = make_ppo(seed=1 + rank, rnn_type=rnn_type)
        data = torch.Generator().manual_seed(rank)
        obs = observe(data)
        for _ in range(ITERATIONS):
            for _ in range(NUM_STEPS):
                actions = ppo.act(obs)
                dice = torch.rand(NUM_ENVS, generator=data)
                final, obs = observe(data), observe(data)
                reward = -(actions - final["policy"][:, :2]).square().sum(-1)
                ppo.process_env_step(Step(obs, reward, dice < 0.1, dice > 0.9, final))
            ppo.compute_returns(obs)
            ppo.update()
        buffers = {name for name, x in ppo.named_buffers() if x.shape[:1] == (NUM_ENVS,)}
        found[f"{rnn_type}"] = {k: x.clone() for k, x in ppo.state_dict().items() if k not in buffers}
    found["seeds"] = [
        g.initial_seed() for g in (ppo.action_generator, ppo.shuffle_generator, ppo.extension_generator)
    ]
    same = make_ppo(seed=1, rnn_type=None)
    found["seeds of one run"] = same.action_generator.initial_seed()
    torch.save(found, folder / f"{rank}.pt")


def observe(data: torch.Generator) -> dict[str, Tensor]:
    return {
        "policy": torch.randn(NUM_ENVS, 5, generator=data),
        "privileged": torch.randn(NUM_ENVS, 4, generator=data),
    }


@pytest.mark.slow
def test_four_processes_with_every_extension_stay_equal_bit_for_bit(tmp_path: Path) -> None:
    run_ranks(train, tmp_path, num_ranks=WORLD)
    first, *others = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(WORLD))
    for rnn_type in ("None", "gru"):
        assert any("discriminator" in name for name in first[rnn_type])
        for other in others:
            assert other[rnn_type].keys() == first[rnn_type].keys()
            for name, tensor in first[rnn_type].items():
                assert torch.equal(tensor, other[rnn_type][name]), (rnn_type, name)
    assert len({found["seeds of one run"] for found in (first, *others)}) == WORLD
