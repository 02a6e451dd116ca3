"""Three iterations at a fixed seed: these numbers hold through every refactor.

They change only together with a reason in the commit that changes them. All is float64 from weights that are
written here, so that neither the order of a sum nor the machine matters.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
import torch
from hand_made import Task, box, make_ppo, make_spec

from surefoot.algorithm.config import PPOConfig
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import ActorConfig, CriticConfig, DistributionConfig

NORMALISED: dict[str, Any] = {"hidden_dims": [16, 8], "obs_normalization": True}
CASES: dict[str, dict[str, Any]] = {
    "clip": {
        "config": PPOConfig(entropy_coef=0.01),
        "actor": ActorConfig(**NORMALISED),
        "critic": CriticConfig(**NORMALISED),
    },
    "penalty": {
        "config": PPOConfig(
            policy_objective="penalty", schedule="linear", value_loss="mse", grad_clip="joint"
        ),
        "actor": ActorConfig(
            **NORMALISED,
            activation="tanh",
            distribution=DistributionConfig("SquashedGaussian", std_type="log"),
        ),
        "critic": CriticConfig(**NORMALISED, value_normalization=True),
        "spec": make_spec(8, 3, box(2, -1, 2)),
    },
    "shared categorical": {
        "config": PPOConfig(
            normalize_advantage_per_mini_batch=True,
            recompute_advantages=True,
            value_loss="huber",
            schedule="fixed",
        ),
        "actor": ActorConfig(**NORMALISED, layer_norm=True),
        "spec": make_spec(8, 3, gymnasium.spaces.Discrete(3)),
        "network": "shared",
    },
}
GOLDEN: dict[str, dict[str, float]] = {
    "clip": {
        "weights": 10.109640124446347,
        "surrogate": -0.028511258283310754,
        "value": 28.974758367202355,
        "entropy": 2.537183394610959,
        "kl": 0.019504503175368164,
        "clip_fraction": 0.2625,
        "grad_norm": 2.9807385561732067,
        "learning_rate": 0.00011561019943888411,
    },
    "penalty": {
        "weights": 9.499164770266601,
        "surrogate": -0.008872636706908004,
        "value": 1.524457491467537,
        "entropy": 1.0386368469045082,
        "kl": 0.0009148222306750956,
        "clip_fraction": 0.003125,
        "grad_norm": 3.527313883406714,
        "learning_rate": 0.0008,
    },
    "shared categorical": {
        "weights": 7.743697245127457,
        "surrogate": 0.0010305218335178471,
        "value": 2.4201656216396144,
        "entropy": 1.0514073657063352,
        "kl": 0.000581721369469745,
        "clip_fraction": 0.0,
        "grad_norm": 2.1104851502893265,
        "learning_rate": 0.001,
    },
}


def fill(policy: ActorCritic) -> None:
    """Weights that no library chose."""
    with torch.no_grad():
        for name, p in policy.named_parameters():
            if not name.endswith("std_param"):
                p.copy_(0.3 * torch.sin(torch.arange(1.0, p.numel() + 1, dtype=torch.float64)).view_as(p))


def three_iterations(case: dict[str, Any]) -> dict[str, float]:
    parts = {"spec": make_spec(8, 3, 2)} | case
    ppo = make_ppo(**parts, max_iterations=10, dtype=torch.float64, prepare=fill)
    task = Task(shift=0.5, spread=0.5, ends=0.1)
    ppo.warm_up([task.observe(ppo) for _ in range(4)])
    metrics = task.run(ppo, 3)[-1]
    weights = torch.cat([p.detach().double().flatten() for p in ppo.policy.parameters()])
    # a checksum that any exchange or change of a weight alters
    checksum = (weights * torch.linspace(1, 2, len(weights), dtype=torch.float64)).sum()
    names = ("surrogate", "value", "entropy", "kl", "clip_fraction", "grad_norm", "learning_rate")
    return {"weights": checksum.item()} | {name: metrics[f"Loss/{name}"].item() for name in names}


@pytest.mark.parametrize("name", CASES)
def test_three_iterations_give_the_golden_numbers(name: str) -> None:
    assert three_iterations(CASES[name]) == pytest.approx(GOLDEN[name], rel=1e-5, abs=1e-5)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in CASES:
        print(f'    "{case}": {three_iterations(CASES[case])},')  # noqa: T201
