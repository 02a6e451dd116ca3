"""Every kind of network with every kind of action, trunk, objective and precision: all pairs of choices."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hand_made import Task, assert_same_weights, box, make_ppo, make_spec, weights_of
from torch import Tensor

from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.extension import Extension
from surefoot.algorithm.ppo import PPO
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import ActorConfig, CnnConfig, CriticConfig, DistributionConfig
from surefoot.types import Batch, PolicyOutput, Step

spaces = gymnasium.spaces

CHOICES: dict[str, list[Any]] = {
    "network": ["mlp", "cnn", "gru", "lstm", "cnn+gru"],
    "actions": [
        "Gaussian",
        "state_dependent",
        "gsde",
        "SquashedGaussian",
        "Beta",
        "Categorical",
        "MultiCategorical",
        "Bernoulli",
        "masked",
        "masked multi",
    ],
    "trunk": ["separate", "shared", "asymmetric"],
    "objective": ["clip", "penalty"],
    "mixed_precision": [False, True],
}
ACTION_SPACES: dict[str, gymnasium.Space[Any]] = {
    "Categorical": spaces.Discrete(4, start=5),
    "MultiCategorical": spaces.MultiDiscrete([3, 2, 4]),
    "Bernoulli": spaces.MultiBinary(3),
    "masked": spaces.Discrete(4),
    "masked multi": spaces.MultiDiscrete([3, 3]),
}


def all_pairs() -> list[dict[str, Any]]:
    """Few cases in which every two choices of different kinds meet at least once (greedy)."""
    names = list(CHOICES)
    cases = [dict(zip(names, values, strict=True)) for values in product(*CHOICES.values())]

    def pairs(case: dict[str, Any]) -> set[Any]:
        return {(a, case[a], b, case[b]) for a, b in combinations(names, 2)}

    missing = set().union(*map(pairs, cases))
    chosen = []
    while missing:
        best = max(cases, key=lambda case: len(pairs(case) & missing))
        chosen.append(best)
        missing -= pairs(best)
    return chosen


class First(Extension):
    """How far the first mini-batch of an update is from the rollout."""

    def __init__(self) -> None:
        super().__init__()
        self.log_ratio: list[float] = []
        self.kl: list[float] = []

    def loss(self, batch: Batch, out: PolicyOutput, policy: ActorCritic) -> dict[str, Tensor]:
        mask = torch.ones_like(batch.index, dtype=torch.bool) if batch.mask is None else batch.mask
        log_ratio = (out.log_prob - batch.old_log_prob)[mask]
        kl = policy.action_head.rebuild(batch.old_distribution).kl(out.distribution)[mask]
        self.log_ratio.append(log_ratio.abs().max().item())
        self.kl.append(kl.mean().abs().item())
        for x in (out.log_prob, out.entropy, out.value, out.actor_features, kl):
            assert x.dtype == torch.float32
        return {}


def build(case: dict[str, Any], seed: int = 1) -> tuple[PPO, First]:
    network, actions = case["network"], case["actions"]
    groups: dict[str, gymnasium.Space[Any]] = {"policy": box(3)}
    actor_groups = ["policy"]
    if "cnn" in network:
        groups["camera"] = spaces.Box(0, 255, (9, 9, 2), np.uint8)
        actor_groups.append("camera")
    critic_groups = [*actor_groups]
    if case["trunk"] == "asymmetric":
        groups["privileged"] = box(2)
        critic_groups.append("privileged")
    action_space = ACTION_SPACES.get(actions, spaces.Box(-2, 1, (2,)))
    if "masked" in actions:
        groups["action_mask"] = spaces.MultiBinary(4 if actions == "masked" else (2, 3))
    rnn = network.removeprefix("cnn").removeprefix("+")
    size = {
        "hidden_dims": [8],
        "obs_normalization": True,
        "rnn_type": rnn if rnn in ("gru", "lstm") else None,
        "rnn_hidden_dim": 6,
        "cnn": CnnConfig([4], [3], [2], 8) if "cnn" in network else None,
    }
    std_type = actions if actions in ("state_dependent", "gsde") else "scalar"
    family = actions if actions in ("SquashedGaussian", "Beta") else "auto"
    distribution = DistributionConfig(family, std_type=std_type)
    first = First()
    ppo = make_ppo(
        PPOConfig(
            num_mini_batches=2,
            num_learning_epochs=2,
            schedule="fixed",
            policy_objective=case["objective"],
            use_mixed_precision=case["mixed_precision"],
            entropy_coef=0.01,
        ),
        make_spec(6, groups, action_space),
        actor=ActorConfig(**size, distribution=distribution),  # type: ignore[arg-type]
        critic=CriticConfig(**size),  # type: ignore[arg-type]
        obs_groups={"actor": actor_groups, "critic": critic_groups},
        network="shared" if case["trunk"] == "shared" else "separate",
        extensions=[first],
        seed=seed,
    )
    return ppo, first


CASES = all_pairs()


def test_the_cases_cover_all_pairs() -> None:
    assert len(CASES) < 80
    assert {case["actions"] for case in CASES if case["network"] == "lstm"} == set(CHOICES["actions"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(map(str, case.values())))
def test_it_trains_starts_at_ratio_one_and_resumes(case: dict[str, Any]) -> None:
    ppo, first = build(case)
    task = Task(1, ends=0.15)
    ppo.warm_up([task.observe(ppo)])
    limits = (0.05, 1e-4) if case["mixed_precision"] else (1e-5, 1e-6)
    for _ in range(2):
        first.log_ratio.clear()
        first.kl.clear()
        before = weights_of(ppo)
        metrics = task.run(ppo)[0]
        assert first.log_ratio[0] <= limits[0]
        assert first.kl[0] <= limits[1]
        assert all(value.isfinite() for value in metrics.values())
        assert metrics["Loss/skipped_updates"] == 0
        after = weights_of(ppo)
        moved = [not torch.equal(before[name], x) for name, x in after.items() if "head" in name]
        assert any(moved)
        assert all(x.isfinite().all() for x in after.values() if x.is_floating_point())
    action = ppo.policy.act(task.observe(ppo))
    assert all(ppo.spec.action_space.contains(a) for a in action.numpy().astype(ppo.spec.action_space.dtype))

    other, _ = build(case, seed=2)
    other.load_state(ppo.state())
    for one in (ppo, other):
        Task(9).run(one)
    assert_same_weights(weights_of(ppo), weights_of(other))


def test_masked_actions_are_never_taken_nor_counted() -> None:
    ppo, _ = build({**CASES[0], "network": "gru", "actions": "masked multi"})
    task = Task(2)
    task.collect(ppo)
    rollout = ppo.storage
    allowed = rollout.observations["action_mask"][:-1].bool()
    assert allowed.gather(-1, rollout.actions.unsqueeze(-1)).all()
    shares = ppo.policy.action_head.rebuild(rollout.distribution).params["logits"].softmax(-1)
    assert (shares[~allowed] == 0).all()


def test_a_gsde_rollout_keeps_its_noise_and_the_next_one_draws_another() -> None:
    ppo, _ = build({**CASES[0], "network": "mlp", "actions": "gsde", "trunk": "separate"})
    obs = Task(1).observe(ppo)
    noise = []
    for _ in range(2):
        for _ in range(ppo.storage.num_transitions_per_env):
            ppo.act(obs)
            none = torch.zeros(6, dtype=torch.bool)
            ppo.process_env_step(Step(obs, torch.zeros(6), none, none))
        ppo.compute_returns(obs)
        rollout = ppo.storage
        deviation = rollout.actions - rollout.distribution["mean"]
        torch.testing.assert_close(deviation, deviation[:1].expand_as(deviation))
        noise.append(deviation[0].clone())
        ppo.update()
    assert not torch.allclose(*noise, atol=1e-2)
