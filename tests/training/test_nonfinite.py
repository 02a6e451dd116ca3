"""A NaN or an infinity from the environment, or in the weights."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
import torch
from torch import Tensor, nn

from surefoot.algorithm.rollout_storage import RolloutStorage
from surefoot.errors import NonFiniteError
from surefoot.training.nonfinite import NonFiniteGuard, check_parameters
from surefoot.types import Step

NAN, INF = float("nan"), float("inf")
CPU = torch.device("cpu")


def make_step(
    obs: list[float] | Tensor,
    rewards: list[float] | None = None,
    terminated: list[int] | None = None,
    truncated: list[int] | None = None,
    **fields: Any,
) -> Step:
    """One feature per environment, unless `obs` is a tensor [N, D]."""
    observations = obs if isinstance(obs, Tensor) else torch.tensor(obs).unsqueeze(-1)
    n = len(observations)
    return Step(
        observations={"policy": observations, "count": torch.zeros(n, dtype=torch.int64)},
        rewards=torch.tensor(rewards or [0.0] * n),
        terminated=torch.tensor(terminated or [0] * n).bool(),
        truncated=torch.tensor(truncated or [0] * n).bool(),
        **fields,
    )


def test_a_finite_step_passes_as_it_is() -> None:
    guard, step = NonFiniteGuard("raise", 2, CPU), make_step([1.0, 2.0])
    assert guard.check(step) is step
    assert int(guard.finish_iteration()) == 0


def test_a_sum_that_overflows_is_no_fault() -> None:
    step = NonFiniteGuard("raise", 2, CPU).check(make_step([3e38, 3e38]))
    assert step.observations["policy"].min() > 2e38


def test_the_error_names_environment_group_feature_and_step() -> None:
    guard = NonFiniteGuard("raise", 3, CPU)
    guard.check(make_step(torch.zeros(3, 4)))
    bad = torch.zeros(3, 4)
    bad[1, 2] = INF
    with pytest.raises(NonFiniteError, match=r"environment 1: .*'policy' \(feature 2\) is inf \(step 2\)"):
        guard.check(make_step(bad))


def test_a_reward_that_is_not_finite_is_named() -> None:
    with pytest.raises(NonFiniteError, match=r"environment 1: reward is nan"):
        NonFiniteGuard("raise", 2, CPU).check(make_step([0.0, 0.0], [1.0, NAN]))


def test_a_bad_reset_is_named() -> None:
    with pytest.raises(NonFiniteError, match=r"environment 0: .*'policy'"):
        NonFiniteGuard("raise", 2, CPU).check_reset({"policy": torch.tensor([[NAN], [0.0]])})


def test_a_final_observation_matters_only_where_its_value_is_used() -> None:
    guard = NonFiniteGuard("raise", 2, CPU)
    final = {"policy": torch.tensor([[NAN], [0.0]]), "count": torch.zeros(2, dtype=torch.int64)}
    running = guard.check(make_step([0.0, 0.0], final_observations=final))
    assert running.final_observations is final  # nothing ended: it is not read
    fallen = guard.check(make_step([0.0, 0.0], terminated=[1, 0], final_observations=final))
    assert fallen.final_known is not None
    assert fallen.final_known.tolist() == [False, False]
    with pytest.raises(NonFiniteError, match="final observation of group 'policy'"):
        guard.check(make_step([0.0, 0.0], truncated=[1, 0], final_observations=final))


def test_quarantine_lasts_from_the_fault_to_the_reset() -> None:
    guard = NonFiniteGuard("quarantine", 2, CPU)
    rows = [
        guard.check(make_step([0.0, 0.0], [1.0, 1.0])),
        guard.check(make_step([0.0, NAN], [1.0, 1.0])),  # last finite row: its reward is good
        guard.check(make_step([0.0, NAN], [1.0, NAN])),
        guard.check(make_step([0.0, 5.0], [1.0, 1.0])),  # finite again, but the episode is spoilt
        guard.check(make_step([0.0, 6.0], [1.0, 1.0], terminated=[0, 1])),  # reset
        guard.check(make_step([0.0, 7.0], [1.0, 1.0])),
    ]

    def column(name: str) -> list[bool]:
        values = [getattr(r, name) for r in rows]
        return [True if v is None else bool(v[1]) for v in values]

    assert column("valid") == [True, True, False, False, False, True]
    assert column("truncated") == [False, True, False, False, False, False]
    assert all(r.valid is None or bool(r.valid[0]) for r in rows)
    assert int(guard.finish_iteration()) == 3
    for row in rows:
        assert row.rewards.isfinite().all()
        assert row.observations["policy"].isfinite().all()
    assert rows[1].observations["policy"][1].item() == 0.0


def test_a_row_that_was_cut_has_no_known_final_observation() -> None:
    guard = NonFiniteGuard("quarantine", 2, CPU)
    final = {"policy": torch.ones(2, 1), "count": torch.zeros(2, dtype=torch.int64)}
    known = torch.tensor([True, True])
    step = guard.check(make_step([NAN, 0.0], truncated=[0, 1], final_observations=final, final_known=known))
    assert step.truncated.tolist() == [True, True]
    assert step.final_known is not None
    assert step.final_known.tolist() == [False, True]


def test_an_episode_that_ends_by_itself_keeps_its_end() -> None:
    guard = NonFiniteGuard("quarantine", 1, CPU)
    step = guard.check(make_step([NAN], [1.0], terminated=[1]))
    assert (step.terminated.tolist(), step.truncated.tolist()) == ([True], [False])
    assert step.valid is not None
    assert step.valid.tolist() == [True]  # the new episode starts badly, the old one was good
    assert guard.check(make_step([0.0])).valid.tolist() == [False]  # pyright: ignore[reportOptionalMemberAccess]


def test_after_a_row_that_only_resets_the_environment_is_back() -> None:
    guard = NonFiniteGuard("quarantine", 1, CPU)
    valid, reset = torch.tensor([True]), torch.tensor([False])
    guard.check(make_step([NAN], terminated=[1], valid=valid))  # next-step autoreset: still the old episode
    guard.check(make_step([1.0], valid=reset))
    assert guard.check(make_step([2.0], valid=valid)).valid.tolist() == [True]  # pyright: ignore[reportOptionalMemberAccess]


def test_a_bad_reward_cuts_the_row_before_it() -> None:
    spec = {"policy": gymnasium.spaces.Box(-1, 1, (1,))}
    storage = RolloutStorage(2, 4, spec)
    guard = NonFiniteGuard("quarantine", 2, CPU)
    for rewards in ([1.0, 1.0], [1.0, INF]):
        step = guard.check(make_step([0.0, 0.0], rewards), storage)
        storage.add_action(step.observations, torch.zeros(2, 1), {})
        storage.add_transition(step)
    assert storage.truncated[:2].tolist() == [[False, True], [False, False]]
    assert storage.valid[:2].tolist() == [[True, True], [True, False]]
    assert storage.rewards[:2].tolist() == [[1.0, 1.0], [1.0, 0.0]]


def test_away_environments_stay_away_after_a_resume() -> None:
    first, second = NonFiniteGuard("quarantine", 2, CPU), NonFiniteGuard("quarantine", 2, CPU)
    first.check(make_step([0.0, NAN]))
    second.load_state_dict(first.state_dict())
    assert second.check(make_step([0.0, 1.0])).valid.tolist() == [True, False]  # pyright: ignore[reportOptionalMemberAccess]


def test_a_parameter_that_is_not_finite_is_named_with_the_iteration() -> None:
    module = nn.Linear(2, 2)
    check_parameters(module, 3)
    with torch.no_grad():
        module.bias[1] = NAN
    with pytest.raises(NonFiniteError, match=r"'bias' is not finite at iteration 7"):
        check_parameters(module, 7)


class OtherDevice(NonFiniteGuard):
    """The accelerator's path, on the CPU."""

    def __init__(self, mode: str, num_envs: int) -> None:
        super().__init__(mode, num_envs, CPU)
        self._on_cpu = False


def test_on_an_accelerator_the_fault_waits_for_the_end_of_the_rollout() -> None:
    guard = OtherDevice("raise", 2)
    for obs in ([0.0, 0.0], [0.0, NAN], [0.0, 0.0]):
        step = guard.check(make_step(obs))
        assert step.observations["policy"].isfinite().all()
        assert step.valid is None
    with pytest.raises(NonFiniteError, match=r"environment 1: .*'policy' is not finite \(step 2\)"):
        guard.finish_rollout()


def test_on_an_accelerator_a_clean_rollout_passes_and_quarantine_is_the_same() -> None:
    guard = OtherDevice("raise", 2)
    guard.check(make_step([0.0, 0.0]))
    guard.finish_rollout()
    quick, slow = NonFiniteGuard("quarantine", 2, CPU), OtherDevice("quarantine", 2)
    for obs, ended in ([0.0, NAN], [0, 0]), ([0.0, 1.0], [0, 1]), ([0.0, 1.0], [0, 0]):
        a, b = (g.check(make_step(obs, terminated=ended)) for g in (quick, slow))
        assert torch.equal(a.truncated, b.truncated)
        assert b.valid is not None
        assert torch.equal(torch.ones(2).bool() if a.valid is None else a.valid, b.valid)
    assert int(quick.finish_iteration()) == int(slow.finish_iteration()) == 1
