"""Public bug reports on long runs: collapse, a learning rate that is stuck, advantages that are stale."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from surefoot.algorithm.extension import Extension
from surefoot.algorithm.rollout_storage import RolloutStorage
from surefoot.algorithm.schedules import adapt_learning_rate
from surefoot.config import merge
from surefoot.networks.actor_critic import ActorCritic
from surefoot.testing import ConstantEnv, TargetEnv
from surefoot.training.guards import MAX_ITERATIONS_AT_BOUND
from surefoot.training.hooks import Hook
from surefoot.training.loggers import read_records
from surefoot.training.on_policy_runner import OnPolicyRunner
from surefoot.types import Batch, PolicyOutput

SMALL: dict[str, Any] = {
    "num_steps_per_env": 32,
    "actor": {"hidden_dims": [4]},
    "critic": {"hidden_dims": [4]},
    "algorithm": {"num_mini_batches": 1, "num_learning_epochs": 1},
    "logger": "none",
}


STD_TYPES = ("scalar", "log", "state_dependent", "gsde")


def make_runner(env: Any, run_dir: Path | None = None, eval_env: Any = None, **config: Any) -> OnPolicyRunner:
    return OnPolicyRunner(env, merge(SMALL, config), run_dir, eval_env=eval_env, quiet=True)


# ------------------------------------------------------------------ B01: collapse, growth without end


@pytest.mark.parametrize(
    ("std_type", "iterations"),
    [("scalar", 150), *(pytest.param(x, 500, marks=pytest.mark.slow) for x in STD_TYPES)],
)
def test_b01_the_std_grows_by_the_bonus_alone_and_stays_below_the_ceiling(
    std_type: str, iterations: int
) -> None:
    """The reward does not depend on the action: nothing but the entropy bonus moves the deviation."""
    distribution = {"std_type": std_type, "init_std": 1.0, "std_range": [0.1, 1.2]}
    runner = make_runner(
        ConstantEnv(2),
        actor={"distribution": distribution},
        algorithm={"entropy_coef": 0.01, "schedule": "fixed", "learning_rate": 0.01},
    )
    runner.learn(iterations)
    std = runner.metrics["Policy/mean_std"]
    assert 1.1 < std <= 1.2 + 1e-6
    assert all(torch.isfinite(x).all() for x in runner.policy.parameters())


def test_b01_a_collapse_can_be_seen_in_the_log(tmp_path: Path) -> None:
    make_runner(TargetEnv(4), tmp_path).learn(2)
    for record in read_records(tmp_path / "metrics.jsonl"):
        for key in (
            "Policy/mean_std",
            "Loss/entropy",
            "Loss/kl",
            "Loss/clip_fraction",
            "Loss/explained_variance",
            "Loss/grad_norm",
            "Loss/learning_rate",
            "Data/advantage_std",
            "Data/return_abs_max",
        ):
            assert math.isfinite(record[key]), key


class Worse(Hook):
    """Spoils the policy before iteration 3."""

    def before_iteration(self, runner: OnPolicyRunner, iteration: int) -> None:
        if iteration == 3:
            with torch.no_grad():
                runner.policy.action_head.linear.bias += 10.0


def test_b01_the_best_checkpoint_stays_when_the_evaluation_score_drops(tmp_path: Path) -> None:
    runner = make_runner(
        TargetEnv(4), tmp_path, TargetEnv(4), eval_interval=1, eval_episodes=8, hooks=[], save_interval=1
    )
    runner.hooks.append(Worse())
    runner.learn(6)
    scores = [r["Eval/mean_reward"] for r in read_records(tmp_path / "metrics.jsonl")]
    best = max(range(6), key=lambda i: scores[i])
    assert best < 3
    assert max(scores[3:]) < scores[best] - 1
    states = {
        name: torch.load(tmp_path / "checkpoints" / f"{name}.pt", weights_only=True)
        for name in ("best", "last")
    }
    assert states["best"]["iteration"] == best
    assert states["last"]["iteration"] == 5


class StepChange(TargetEnv):
    """A long flat phase, in which every action is worth the same, and then rewards a thousandfold."""

    phase = 0.0

    def judge(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        rewards, terminated = super().judge(actions)
        return rewards * self.phase, terminated


def test_b01_after_a_long_flat_phase_a_step_change_neither_breaks_nor_stalls_learning() -> None:
    """Adam's second moment has decayed to nothing by then."""
    env = StepChange(8)
    runner = make_runner(env, algorithm={"num_learning_epochs": 4, "num_mini_batches": 2})
    runner.learn(30)
    env.phase = 1000.0
    before = [x.detach().clone() for x in runner.policy.parameters()]
    runner.learn(15)
    assert runner.metrics["Loss/skipped_updates"] == 0
    assert runner.metrics["Loss/kl"] < 0.1
    assert any(not torch.equal(a, b) for a, b in zip(before, runner.policy.parameters(), strict=True))
    assert 0.05 < runner.metrics["Policy/mean_std"] < 3


# ------------------------------------------------------------------ B02: a learning rate at its bound


@pytest.mark.parametrize(
    ("kl", "rate", "expected"),
    [
        (0.0, 1e-3, 1e-3),
        (math.nan, 1e-3, 1e-3),
        (0.1, 1e-3, 6.667e-4),
        (math.inf, 1e-3, 6.667e-4),
        (0.004, 1e-3, 1.5e-3),
        (0.01, 1e-3, 1e-3),
        (0.1, 1.2e-5, 1e-5),
        (0.004, 9e-3, 1e-2),
        (0.1, 1e-5, 1e-5),
        (0.004, 1e-2, 1e-2),
    ],
)
def test_b02_the_adaptive_rule_moves_as_it_should_and_never_on_nothing(
    kl: float, rate: float, expected: float
) -> None:
    adapted = adapt_learning_rate(torch.tensor(rate), torch.tensor(kl), 0.01, (1e-5, 1e-2))
    assert float(adapted) == pytest.approx(expected, rel=1e-3)


def test_b02_the_first_iteration_does_not_throw_the_rate_to_its_floor() -> None:
    """The KL of the first mini-batch is that of a policy that has not moved, with observations normalised."""
    runner = make_runner(
        TargetEnv(16), actor={"obs_normalization": True}, algorithm={"num_learning_epochs": 2}
    )
    runner.learn(1)
    assert 5e-4 < runner.metrics["Loss/learning_rate"] < 2e-3


class Deaf(TargetEnv):
    """What the policy does makes no difference: the KL is 0, and the rate stays where it is."""

    def judge(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros(self.num_envs), torch.zeros(self.num_envs, dtype=torch.bool)


def test_b02_a_rate_at_its_ceiling_is_warned_of_once_in_a_real_run() -> None:
    runner = make_runner(Deaf(2), algorithm={"learning_rate": 2e-3, "lr_bounds": [1e-5, 2e-3]})
    with pytest.warns(UserWarning, match=r"adaptive learning rate has been at its bound 0\.002") as caught:
        runner.learn(MAX_ITERATIONS_AT_BOUND + 10)
    assert len(caught) == 1


class PoisonedReturns(Extension):
    """Makes every loss of the second iteration NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.iteration = 0

    def prepare(self, rollout: RolloutStorage, policy: ActorCritic) -> None:
        self.iteration += 1

    def advantage(self, rollout: RolloutStorage, advantage: Tensor) -> Tensor:
        return advantage * math.nan if self.iteration == 2 else advantage


def test_b02_what_is_no_number_leaves_the_rate_and_the_weights_and_is_counted() -> None:
    runner = make_runner(TargetEnv(4), extensions=[{"class_name": f"{__name__}:PoisonedReturns"}])
    runner.learn(1)
    before = [x.detach().clone() for x in runner.policy.parameters()]
    rate = runner.metrics["Loss/learning_rate"]
    runner.learn(1)
    assert runner.metrics["Loss/skipped_updates"] == 1
    assert runner.metrics["Loss/learning_rate"] == rate
    assert all(torch.equal(a, b) for a, b in zip(before, runner.policy.parameters(), strict=True))


# ------------------------------------------------------------------ B03: recomputed advantages


class Advantages(Extension):
    """Keeps the advantage that the loss was given, row by row of the rollout, epoch by epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[Tensor] = []
        self.old_values: list[Tensor] = []

    def loss(self, batch: Batch, out: PolicyOutput, policy: ActorCritic) -> dict[str, Tensor]:
        order = batch.index.flatten().argsort()
        self.epochs.append(batch.advantage.flatten()[order].clone())
        self.old_values.append(batch.old_value.flatten()[order].clone())
        return {}


@pytest.mark.parametrize("rnn_type", [None, "gru"])
@pytest.mark.parametrize("per_mini_batch", [False, True])
@pytest.mark.parametrize("is_on", [True, False])
def test_b03_recomputed_advantages_are_those_that_the_loss_gets(
    is_on: bool, per_mini_batch: bool, rnn_type: str | None
) -> None:
    runner = make_runner(
        TargetEnv(4),
        critic={"rnn_type": rnn_type, "rnn_hidden_dim": 4},
        algorithm={
            "num_learning_epochs": 3,
            "recompute_advantages": is_on,
            "normalize_advantage_per_mini_batch": per_mini_batch,
            "learning_rate": 0.01,
        },
        extensions=[{"class_name": f"{__name__}:Advantages"}],
    )
    runner.learn(1)
    (spy,) = runner.alg.extensions
    assert isinstance(spy, Advantages)
    changed = [not torch.allclose(a, spy.epochs[0]) for a in spy.epochs[1:]]
    moved = [not torch.allclose(a, spy.old_values[0]) for a in spy.old_values[1:]]
    assert changed == moved == [is_on, is_on]
