"""States in which nothing is allowed are found and named; trial actions obey their masks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from surefoot.envs.gymnasium import GymnasiumVecEnv
from surefoot.envs.trial import SampledActions
from surefoot.errors import EnvContractError
from surefoot.testing.gymnasium_environments import GymMasked
from surefoot.training.action_masks import ActionMaskGuard
from surefoot.types import Step

law = settings(max_examples=30, deadline=None)
spaces = gymnasium.spaces
CPU = torch.device("cpu")
# only the kind of the device is asked: the flags then wait for the end of the rollout
ACCELERATOR = torch.device("cuda")
FREE, EMPTY = [1, 1, 1], [0, 0, 0]


def masks(*rows: list[int], dtype: torch.dtype = torch.int8) -> dict[str, Tensor]:
    return {"action_mask": torch.tensor(rows, dtype=dtype)}


def step(
    *rows: list[int],
    terminated: tuple[int, ...] = (),
    truncated: tuple[int, ...] = (),
    invalid: tuple[int, ...] | None = None,
) -> Step:
    """Ends and invalid rows by their number."""

    def at(which: tuple[int, ...]) -> Tensor:
        return torch.tensor([i in which for i in range(len(rows))])

    valid = None if invalid is None else ~at(invalid)
    return Step(masks(*rows), torch.zeros(len(rows)), at(terminated), at(truncated), valid=valid)


def check(guard: ActionMaskGuard, *steps: Step) -> None:
    for s in steps:
        guard.check(s.observations, s)


def guard_of(space: Any = None, device: torch.device = CPU) -> ActionMaskGuard:
    return ActionMaskGuard(space or spaces.Discrete(3), device)


# ---------------------------------------------------------------------- the guard


def test_a_row_without_an_action_is_named_with_its_step() -> None:
    guard = guard_of()
    guard.check(masks(FREE, FREE))
    check(guard, step(FREE, FREE), step(FREE, [0, 0, 1]))
    with pytest.raises(EnvContractError, match=r"environment 1 gave an action_mask.*no action at step 3"):
        check(guard, step(FREE, EMPTY))


def test_a_reset_without_an_action_is_named() -> None:
    with pytest.raises(EnvContractError, match=r"environment 0.*at step 0"):
        guard_of().check(masks(EMPTY, FREE))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.float32])
def test_a_mask_may_be_of_any_number_type(dtype: torch.dtype) -> None:
    guard_of().check(masks(FREE, [0, 1, 0], dtype=dtype))
    with pytest.raises(EnvContractError, match="environment 1"):
        guard_of().check(masks(FREE, EMPTY, dtype=dtype))


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_after_an_end_there_may_be_no_action_if_the_next_step_only_resets(end: str) -> None:
    ends: Any = {end: (1,)}
    guard = guard_of()
    check(guard, step(FREE, EMPTY, **ends), step(FREE, FREE, invalid=(1,)), step(FREE, FREE, invalid=()))
    # and that reset has to offer one again
    with pytest.raises(EnvContractError, match=r"environment 1.*at step 5"):
        check(guard, step(FREE, EMPTY, **ends), step(FREE, EMPTY, invalid=(1,)))


@pytest.mark.parametrize("invalid", [None, (), (0,)])
def test_after_an_end_there_must_be_an_action_if_the_next_step_counts(invalid: Any) -> None:
    guard = guard_of()
    check(guard, step(FREE, EMPTY, terminated=(1,)))
    with pytest.raises(EnvContractError, match=r"environment 1.*at step 2"):
        check(guard, step(FREE, FREE, invalid=invalid))


def test_an_end_is_forgotten_after_one_step() -> None:
    guard = guard_of()
    check(guard, step(EMPTY, FREE, terminated=(0,)), step(FREE, FREE, invalid=(0,)))
    check(guard, *[step(FREE, FREE, invalid=())] * 3)


def test_a_reset_ends_what_was_open() -> None:
    guard = guard_of()
    check(guard, step(EMPTY, FREE, terminated=(0,)))
    guard.check(masks(FREE, FREE))
    check(guard, step(FREE, FREE))


def test_each_of_several_actions_needs_a_value() -> None:
    guard = guard_of(spaces.MultiDiscrete([2, 3]))
    guard.check(masks([0, 1, 1, 0, 0], [1, 0, 0, 0, 1]))
    with pytest.raises(EnvContractError, match="environment 1"):
        guard.check(masks([0, 1, 1, 0, 0], [1, 1, 0, 0, 0]))
    with pytest.raises(EnvContractError, match="environment 0"):
        guard.check(masks([0, 0, 1, 1, 1], [1, 1, 0, 0, 1]))


@law
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 5),
)
def test_a_mask_passes_if_every_action_has_a_value(sizes: list[int], seed: int, rows: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, sum(sizes), generator=generator) < 0.7
    bad = [i for i, row in enumerate(mask) if not all(part.any() for part in row.split(sizes))]
    guard = guard_of(spaces.MultiDiscrete(sizes))
    if bad:
        with pytest.raises(EnvContractError, match=f"environment {bad[0]} "):
            guard.check({"action_mask": mask})
    else:
        guard.check({"action_mask": mask})


@pytest.mark.parametrize("space", [spaces.MultiBinary(3), spaces.Box(-1, 1, (3,))])
def test_bits_that_must_all_stay_zero_are_an_action(space: Any) -> None:
    guard = guard_of(space)
    guard.check(masks(EMPTY, EMPTY))
    check(guard, step(EMPTY, EMPTY))
    guard.finish_rollout()


def test_without_a_mask_there_is_nothing_to_check() -> None:
    guard = guard_of()
    guard.check({"policy": torch.zeros(2, 3)})
    guard.finish_rollout()


def test_on_an_accelerator_the_fault_is_told_at_the_end_of_the_rollout() -> None:
    guard = guard_of(device=ACCELERATOR)
    guard.check(masks(FREE, FREE))
    check(guard, step(FREE, EMPTY), step(FREE, FREE))
    with pytest.raises(EnvContractError, match=r"environment 1.*no action in this rollout"):
        guard.finish_rollout()
    # told once
    check(guard, step(FREE, FREE))
    guard.finish_rollout()


def test_on_an_accelerator_an_end_is_carried_into_the_next_rollout() -> None:
    for invalid, is_bad in [((0,), False), ((), True)]:
        guard = guard_of(device=ACCELERATOR)
        check(guard, step(EMPTY, FREE, terminated=(0,)))
        guard.finish_rollout()
        check(guard, step(FREE, FREE, invalid=invalid))
        if is_bad:
            with pytest.raises(EnvContractError, match="environment 0"):
                guard.finish_rollout()
        else:
            guard.finish_rollout()


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_an_honest_environment_passes_the_guard(mode: AutoresetMode) -> None:
    env = GymnasiumVecEnv(SyncVectorEnv([GymMasked] * 3, autoreset_mode=mode))
    guard, actions = ActionMaskGuard(env.action_space, CPU), SampledActions(env, seed=0)
    observations = env.reset(seed=0)
    guard.check(observations)
    resets = 0
    for _ in range(20):
        # GymMasked raises on an action that its mask forbids
        after = env.step(actions.sample(observations))
        guard.check(after.observations, after)
        observations, resets = after.observations, resets + int((after.terminated | after.truncated).sum())
    assert resets >= 3
    env.close()


# ---------------------------------------------------------------------- trial actions


def sampler(space: Any, num_envs: int, seed: int = 0) -> SampledActions:
    env: Any = SimpleNamespace(action_space=space, num_envs=num_envs, device=CPU)
    return SampledActions(env, seed)


@law
@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=3), seed=st.integers(0, 2**31))
def test_trial_actions_obey_the_masks_of_several_choices(sizes: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    allowed = [torch.rand(n, generator=generator) < 0.5 for n in sizes]
    for part in allowed:
        part[int(torch.randint(len(part), (), generator=generator))] = True
    start = np.arange(len(sizes)) - 1
    space = spaces.MultiDiscrete(sizes, start=start)
    actions = sampler(space, 300, seed).sample({"action_mask": torch.cat(allowed).expand(300, -1)})
    assert actions.dtype == torch.int64
    assert all(space.contains(a) for a in actions.numpy())
    for column, part, first in zip(actions.unbind(1), allowed, start, strict=True):
        assert set((column - first).tolist()) == set(part.nonzero().flatten().tolist())


def test_trial_actions_obey_the_mask_of_a_table_of_choices() -> None:
    space = spaces.MultiDiscrete(np.array([[2, 3], [2, 2]]), start=np.array([[5, 0], [0, -1]]))
    mask = torch.tensor([0, 1, 1, 0, 0, 1, 0, 0, 1])
    actions = sampler(space, 20).sample({"action_mask": mask.expand(20, -1)})
    assert actions.tolist() == [[[6, 0], [0, 0]]] * 20


def test_trial_actions_obey_the_mask_of_a_single_choice() -> None:
    actions = sampler(spaces.Discrete(3, start=4), 3).sample({"action_mask": torch.eye(3, dtype=torch.int8)})
    assert actions.tolist() == [4, 5, 6]


@pytest.mark.parametrize("shape", [4, (2, 2)])
def test_trial_actions_leave_forbidden_bits_zero(shape: Any) -> None:
    space = spaces.MultiBinary(shape)
    mask = torch.tensor([1, 0, 0, 1], dtype=torch.int8)
    actions = sampler(space, 100).sample({"action_mask": mask.expand(100, -1)})
    assert all(space.contains(a.astype(np.int8)) for a in actions.numpy())
    # every bit that may be 1 is 1 somewhere, and 0 somewhere
    assert actions.flatten(1).any(0).tolist() == [True, False, False, True]
    assert not actions.flatten(1).all(0).any()


def test_trial_actions_differ_by_row_and_are_seeded() -> None:
    space, mask = spaces.MultiDiscrete([5, 5]), {"action_mask": torch.ones(50, 10)}
    one, again, other = (sampler(space, 50, seed).sample(mask) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert len(set(map(tuple, one.tolist()))) > 5


def test_without_a_mask_trial_actions_are_those_of_the_space() -> None:
    space = spaces.MultiDiscrete([2, 3])
    actions = sampler(space, 200).sample({})
    assert actions.amin(0).tolist() == [0, 0]
    assert actions.amax(0).tolist() == [1, 2]
