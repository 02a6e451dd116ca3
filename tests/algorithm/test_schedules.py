"""Schedules: values by hand, the same curve however the iterations are split, and the adaptive rule."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hand_made import Task, Watcher, make_ppo
from hypothesis import given
from hypothesis import strategies as st

from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.schedules import ScheduleConfig, adapt_learning_rate, schedule_value
from surefoot.errors import ConfigError

BOUNDS = (1e-5, 1e-2)


@pytest.mark.parametrize(
    ("kl", "expected"),
    [
        (0.1, 1e-3 / 1.5),  # 6.667e-4
        (0.004, 1.5e-3),
        (0.0, 1e-3),
        (math.nan, 1e-3),
        (0.02, 1e-3),  # not above twice the target
        (0.005, 1e-3),  # not below half of it
        (0.01, 1e-3),
        (math.inf, 1e-3 / 1.5),
    ],
)
def test_the_adaptive_rule(kl: float, expected: float) -> None:
    rate = adapt_learning_rate(torch.tensor(1e-3), torch.tensor(kl), 0.01, BOUNDS)
    assert rate.item() == pytest.approx(expected, rel=1e-6)


@given(kls=st.lists(st.floats(0, 1), max_size=60), start=st.floats(1e-5, 1e-2))
def test_the_adaptive_rate_never_leaves_its_bounds(kls: list[float], start: float) -> None:
    rate = torch.tensor(start, dtype=torch.float64)
    for kl in kls:
        rate = adapt_learning_rate(rate, torch.tensor(kl), 0.01, BOUNDS)
        assert BOUNDS[0] <= rate.item() <= BOUNDS[1]


@pytest.mark.parametrize(("kl", "start", "bound"), [(1.0, 1.2e-5, 1e-5), (0.001, 9e-3, 1e-2)])
def test_the_adaptive_rate_stops_at_its_bounds(kl: float, start: float, bound: float) -> None:
    rate = adapt_learning_rate(torch.tensor(start), torch.tensor(kl), 0.01, BOUNDS)
    assert rate.item() == pytest.approx(bound)


@pytest.mark.parametrize(("kl", "start"), [(1.0, 1e-6), (0.001, 0.05)])
def test_a_rate_outside_the_bounds_is_not_thrown_across_them(kl: float, start: float) -> None:
    # slower must not speed up, faster must not slow down
    assert adapt_learning_rate(torch.tensor(start), torch.tensor(kl), 0.01, BOUNDS).item() == pytest.approx(
        start
    )


LINEAR = ScheduleConfig("linear", initial=1.0, final=0.2, horizon=10)
COSINE = ScheduleConfig("cosine", initial=1.0, final=0.2, horizon=10)
PIECEWISE = ScheduleConfig("piecewise", points=[(2, 1.0), (4, 0.5), (8, 0.1)])


@pytest.mark.parametrize(
    ("schedule", "iteration", "expected"),
    [
        (ScheduleConfig("fixed", initial=0.3), 7, 0.3),
        (ScheduleConfig("fixed"), 7, 5.0),  # the key that is scheduled
        (LINEAR, 0, 1.0),
        (LINEAR, 5, 0.6),  # half way from 1 to .2
        (LINEAR, 10, 0.2),
        (LINEAR, 11, 0.2),
        (COSINE, 0, 1.0),
        (COSINE, 5, 0.6),  # cos 90° = 0: half way
        (COSINE, 10 / 3, 0.8),  # cos 60° = ½: .2 + .8·¾
        (COSINE, 10, 0.2),
        (COSINE, 25, 0.2),
        (PIECEWISE, 0, 1.0),
        (PIECEWISE, 2, 1.0),
        (PIECEWISE, 3, 0.75),
        (PIECEWISE, 4, 0.5),
        (PIECEWISE, 6, 0.3),  # half way from .5 to .1
        (PIECEWISE, 8, 0.1),
        (PIECEWISE, 99, 0.1),
        (ScheduleConfig("linear"), 4, 4.8),  # from 5 to 0 over the default horizon of 100
    ],
)
def test_schedules_by_hand(schedule: ScheduleConfig, iteration: Any, expected: float) -> None:
    assert schedule_value(schedule, 5.0, 100, iteration) == pytest.approx(expected)


@pytest.mark.parametrize("points", [[(4, 1.0), (2, 0.5)], [(2, 1.0), (2, 0.5)]])
def test_the_points_of_a_schedule_must_rise(points: list[tuple[int, float]]) -> None:
    with pytest.raises(ConfigError, match="must rise"):
        ScheduleConfig("piecewise", points=points)


def test_points_and_piecewise_belong_together() -> None:
    with pytest.raises(ConfigError, match="points"):
        ScheduleConfig("piecewise")
    with pytest.raises(ConfigError, match="points"):
        ScheduleConfig("linear", points=[(0, 1.0)])


# ---------------------------------------------------------------------- through PPO


def rates(ppo: Any, iterations: int) -> list[float]:
    return [m["Loss/learning_rate"].item() for m in Task().run(ppo, iterations)]


@pytest.mark.parametrize("name", ["fixed", "constant"])
def test_a_fixed_rate_never_moves(name: Any) -> None:
    config = PPOConfig(schedule=name, learning_rate=3e-3, num_mini_batches=2, num_learning_epochs=4)
    assert rates(make_ppo(config), 4) == pytest.approx([3e-3] * 4, rel=1e-6)


def test_linear_falls_to_zero_at_max_iterations() -> None:
    config = PPOConfig(schedule="linear", learning_rate=1e-3, num_mini_batches=1, num_learning_epochs=1)
    # 1e-3 · (1 - i/4)
    assert rates(make_ppo(config, max_iterations=4), 4) == pytest.approx(
        [1e-3, 7.5e-4, 5e-4, 2.5e-4], rel=1e-6
    )


@pytest.mark.parametrize(
    "schedule", ["linear", "cosine", "adaptive", ScheduleConfig("piecewise", points=[(0, 1e-3), (7, 1e-4)])]
)
def test_the_curve_does_not_depend_on_stops_and_resumes(schedule: Any) -> None:
    config = PPOConfig(schedule=schedule, num_mini_batches=1, num_learning_epochs=2, clip_schedule=LINEAR)
    whole, first = make_ppo(config, max_iterations=10), make_ppo(config, max_iterations=10)
    # other defaults and another seed: the state brings its own
    second = make_ppo(config, max_iterations=99, seed=5)
    expected_task, task = Task(), Task()
    expected = [m["Loss/learning_rate"].item() for m in expected_task.run(whole, 10)]
    curve = [m["Loss/learning_rate"].item() for m in task.run(first, 5)]
    second.load_state(first.state())
    curve += [m["Loss/learning_rate"].item() for m in task.run(second, 5)]
    assert curve == expected
    assert second.objective.clip.item() == whole.objective.clip.item()
    assert second.iteration == 10


def test_clip_and_entropy_follow_their_schedules() -> None:
    config = PPOConfig(
        clip_schedule=ScheduleConfig("linear", final=0.1),
        entropy_coef=0.02,
        entropy_schedule=ScheduleConfig("linear"),
        num_mini_batches=1,
        num_learning_epochs=1,
    )
    ppo = make_ppo(config, max_iterations=4)
    seen = []
    for _ in range(3):
        Task().run(ppo)
        seen.append((ppo.objective.clip.item(), float(ppo.entropy_coef)))
    # ε: .2 → .1 over 4;  entropy: .02 → 0 over 4
    assert seen == [
        pytest.approx((0.2, 0.02)),
        pytest.approx((0.175, 0.015)),
        pytest.approx((0.15, 0.01)),
    ]


class TellsKL(Watcher):
    """Makes the policy seem to have moved: PPO's own KL is replaced through the old distribution."""

    def __init__(self, shift: float) -> None:
        super().__init__()
        self.shift = shift

    def prepare(self, rollout: Any, policy: Any) -> None:
        rollout.distribution["mean"].add_(self.shift)


@pytest.mark.parametrize(
    ("shift", "steps", "expected"),
    [
        # std 1, two actions: KL = 2 · shift²/2 = shift²;  .1 and .004 with one mini-batch
        (0.1**0.5, 1, 1e-3 / 1.5),
        (0.004**0.5, 1, 1.5e-3),
        (0.01**0.5, 1, 1e-3),
    ],
)
def test_the_rate_adapts_per_mini_batch_before_the_step(shift: float, steps: int, expected: float) -> None:
    config = PPOConfig(num_mini_batches=1, num_learning_epochs=steps, learning_rate=1e-3)
    (metrics,) = Task().run(make_ppo(config, extensions=[TellsKL(shift)]))
    assert metrics["Loss/learning_rate"].item() == pytest.approx(expected, rel=1e-5)


def test_the_rate_used_by_a_step_is_the_one_just_adapted() -> None:
    # plain gradient descent moves by rate times gradient: KL .1 cuts the first step by 1.5
    def step(schedule: Any) -> float:
        config = PPOConfig(
            num_mini_batches=1, num_learning_epochs=1, optimizer="sgd", schedule=schedule, max_grad_norm=1e9
        )
        ppo = make_ppo(config, extensions=[TellsKL(0.1**0.5)])
        before = ppo.policy.value_head.weight.detach().clone()
        Task().run(ppo)
        return (ppo.policy.value_head.weight - before).norm().item()

    assert step("fixed") / step("adaptive") == pytest.approx(1.5, rel=1e-4)


@pytest.mark.parametrize("schedule", ["adaptive", "linear", "fixed"])
def test_a_critic_rate_of_its_own_keeps_its_ratio(schedule: Any) -> None:
    config = PPOConfig(
        learning_rate=1e-3,
        critic_learning_rate=4e-3,
        schedule=schedule,
        num_mini_batches=2,
        num_learning_epochs=3,
    )
    ppo = make_ppo(config, max_iterations=5)
    for _ in range(3):
        Task().run(ppo)
        actor, critic = (float(g["lr"]) for g in ppo.optimizer.optimizer.param_groups)
        assert critic / actor == pytest.approx(4.0, rel=1e-5)
        assert actor == pytest.approx(ppo.learning_rate.item(), rel=1e-6)
    if schedule == "fixed":
        assert critic == pytest.approx(4e-3, rel=1e-6)


def test_a_critic_rate_moves_the_critic_only() -> None:
    def moves(critic_rate: float | None) -> tuple[float, float]:
        config = PPOConfig(
            learning_rate=1e-3, critic_learning_rate=critic_rate, schedule="fixed", num_mini_batches=1,
            num_learning_epochs=1, optimizer="sgd", max_grad_norm=1e9,
        )  # fmt: skip
        ppo = make_ppo(config)
        heads = [ppo.policy.action_head.linear.weight, ppo.policy.value_head.weight]
        before = [w.detach().clone() for w in heads]
        Task().run(ppo)
        actor, critic = ((w - b).norm().item() for w, b in zip(heads, before, strict=True))
        return actor, critic

    (actor, critic), (same, faster) = moves(None), moves(4e-3)
    assert same == actor
    assert faster == pytest.approx(4 * critic, rel=1e-4)


@pytest.mark.parametrize("desired_kl", [None, 0.0, -1.0])
def test_the_adaptive_schedule_needs_a_desired_kl(desired_kl: float | None) -> None:
    with pytest.raises(ConfigError, match="desired_kl"):
        PPOConfig(schedule="adaptive", desired_kl=desired_kl)
    PPOConfig(schedule="fixed", desired_kl=desired_kl)


def test_rate_bounds_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ConfigError, match="lr_bounds"):
        PPOConfig(lr_bounds=(1e-2, 1e-5))
