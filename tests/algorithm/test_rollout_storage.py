"""The storage: what it keeps, in which type, and that nothing outside changes it afterwards."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hand_made import Task, box, make_ppo, make_spec
from torch import Tensor

from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.extension import Extension
from surefoot.algorithm.ppo import PPO
from surefoot.algorithm.rollout_storage import RolloutStorage
from surefoot.errors import ConfigError, EnvContractError
from surefoot.types import Step


def fill(storage: RolloutStorage, observations: list[dict[str, Tensor]], steps: list[Step]) -> None:
    for obs, step in zip(observations, steps, strict=False):
        n = storage.num_envs
        storage.add_action(obs, torch.zeros(n, 1), {"mean": torch.zeros(n, 1)})
        storage.add_transition(step)
    storage.end(observations[-1])


def plain(obs: dict[str, Tensor], **changes: Any) -> Step:
    no = torch.zeros(2, dtype=torch.bool)
    return Step(
        **({"observations": obs, "rewards": torch.zeros(2), "terminated": no, "truncated": no} | changes)
    )


def count(t: float) -> dict[str, Tensor]:
    """Observations [2, 1] that name the step and the environment."""
    return {"policy": torch.tensor([[t], [t + 0.5]])}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool])
def test_vectors_of_any_type_are_stored_as_float32(dtype: torch.dtype) -> None:
    storage = RolloutStorage(2, 1, {"policy": box(3)})
    obs = {"policy": torch.ones(2, 3, dtype=dtype)}
    fill(storage, [obs, obs], [plain(obs, rewards=torch.ones(2, dtype=torch.float64))])
    assert storage.observations["policy"].dtype == torch.float32
    assert storage.observations["policy"].unique().tolist() == [1.0]
    assert storage.rewards.dtype == torch.float32


def test_images_stay_uint8_and_counted_spaces_int64() -> None:
    spaces: dict[str, gymnasium.Space[Any]] = {
        "camera": gymnasium.spaces.Box(0, 255, (6, 5, 3), np.uint8),
        "gray": gymnasium.spaces.Box(0, 255, (6, 5), np.uint8),
        "byte": gymnasium.spaces.Box(0, 255, (4,), np.uint8),
        "choice": gymnasium.spaces.Discrete(4),
        "choices": gymnasium.spaces.MultiDiscrete([2, 3]),
        "bits": gymnasium.spaces.MultiBinary(3),
    }
    storage = RolloutStorage(2, 3, spaces)
    dtypes = {name: x.dtype for name, x in storage.observations.items()}
    assert dtypes == {
        "camera": torch.uint8,
        "gray": torch.uint8,
        "byte": torch.float32,
        "choice": torch.int64,
        "choices": torch.int64,
        "bits": torch.float32,
    }
    # one byte per pixel, T + 1 rows
    camera = storage.observations["camera"]
    assert camera.element_size() * camera.numel() == 4 * 2 * 6 * 5 * 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_ppo_learns_from_observations_of_any_number_type(dtype: torch.dtype) -> None:
    class Typed(Task):
        def observe(self, ppo: PPO) -> dict[str, Tensor]:
            return {g: (3 * x).to(dtype) for g, x in super().observe(ppo).items()}

        def transition(self, ppo: PPO, actions: Tensor) -> Step:
            step = super().transition(ppo, actions)
            step.rewards = step.rewards.to(dtype)
            return step

    ppo = make_ppo()
    Typed(ends=0.3).run(ppo, 2)
    assert all(x.isfinite().all() for x in ppo.policy.parameters())
    assert ppo.policy.act(Typed().observe(ppo)).dtype == torch.float32


def test_an_environment_that_reuses_its_buffers_trains_the_same_weights() -> None:
    class Reusing(Task):
        def __init__(self) -> None:
            super().__init__()
            self.buffers: dict[str, Tensor] = {}

        def reuse(self, name: str, x: Tensor) -> Tensor:
            return self.buffers.setdefault(name, x.clone()).copy_(x)

        def transition(self, ppo: PPO, actions: Tensor) -> Step:
            step = super().transition(ppo, actions)
            obs = {g: self.reuse(g, x) for g, x in step.observations.items()}
            final = {g: self.reuse(f"final.{g}", x) for g, x in (step.final_observations or {}).items()}
            names = ("rewards", "terminated", "truncated")
            return Step(obs, *(self.reuse(n, getattr(step, n)) for n in names), final)

    first, second = make_ppo(), make_ppo()
    Task().run(first, 2)
    Reusing().run(second, 2)
    for p, q in zip(first.policy.parameters(), second.policy.parameters(), strict=True):
        assert torch.equal(p, q)


class Reads(Extension):
    """Reads a group."""

    def __init__(self, group: str) -> None:
        super().__init__()
        self.group = group

    def observation_groups(self) -> tuple[str, ...]:
        return (self.group,)


def test_only_groups_that_something_reads_are_stored() -> None:
    spec = make_spec(4, {"policy": box(3), "critic": box(2), "camera": box(1000), "state": box(5)})
    assert list(make_ppo(spec=spec).storage.observations) == ["policy", "critic"]
    assert list(make_ppo(spec=spec, extensions=[Reads("state")]).storage.observations) == [
        "policy",
        "critic",
        "state",
    ]


def test_an_extension_that_reads_an_unknown_group_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'stat'.*'policy'"):
        make_ppo(extensions=[Reads("stat")])


def test_next_observations_are_the_final_ones_where_an_episode_ended() -> None:
    storage = RolloutStorage(2, 3, {"policy": box(1)}, keep_terminal=True)
    ended = torch.tensor([True, False])
    steps = [
        plain(count(1), truncated=ended, final_observations=count(10)),
        plain(count(2), terminated=~ended, final_observations=count(20)),
        plain(count(3), terminated=ended, final_observations=count(30), final_known=~ended),
    ]
    fill(storage, [count(t) for t in range(4)], steps)
    following = storage.next_observations["policy"].squeeze(-1)
    # environment 0: final 10 at t = 0; environment 1: final 20.5 at t = 1
    assert following[:, 0].tolist()[:2] == [10.0, 2.0]
    assert following[:, 1].tolist() == [1.5, 20.5, 3.5]
    assert storage.next_known.tolist() == [[True, True], [True, True], [False, True]]


def test_without_a_reader_only_time_limits_keep_their_final_observations() -> None:
    storage = RolloutStorage(2, 1, {"policy": box(1)})
    both = {"terminated": torch.tensor([True, False]), "truncated": torch.tensor([False, True])}
    fill(storage, [count(0), count(1)], [plain(count(1), final_observations=count(10), **both)])
    assert storage.final_index.tolist() == [1]
    assert storage.final_observations["policy"].tolist() == [[10.5]]


def test_a_row_is_first_after_an_end_an_invalid_row_and_at_the_start() -> None:
    storage = RolloutStorage(2, 2, {"policy": box(1)})
    steps = [
        plain(count(1), terminated=torch.tensor([True, False])),
        plain(count(2), valid=torch.tensor([False, True])),
    ]
    fill(storage, [count(t) for t in range(3)], steps)
    assert storage.is_first.tolist() == [[True, True], [True, False], [True, False]]
    storage.begin()
    assert storage.is_first[0].tolist() == [True, False]


def test_rows_of_the_next_rollout_are_valid_unless_it_says_otherwise() -> None:
    storage = RolloutStorage(2, 1, {"policy": box(1)})
    fill(storage, [count(0), count(1)], [plain(count(1), valid=torch.tensor([False, True]))])
    assert storage.valid.tolist() == [[False, True]]
    storage.begin()
    fill(storage, [count(1), count(2)], [plain(count(2))])
    assert storage.mask is None
    assert storage.valid.tolist() == [[True, True]]


def test_a_row_that_is_terminated_is_not_truncated_too() -> None:
    storage = RolloutStorage(2, 1, {"policy": box(1)})
    ends = {"terminated": torch.tensor([True, False]), "truncated": torch.tensor([True, True])}
    fill(storage, [count(0), count(1)], [plain(count(1), **ends)])
    assert (storage.terminated.tolist(), storage.truncated.tolist()) == ([[True, False]], [[False, True]])
    assert storage.is_first[1].tolist() == [True, True]


def test_a_rollout_that_is_full_or_too_short_is_named() -> None:
    ppo = make_ppo(num_steps=2)
    task = Task()
    obs = task.observe(ppo)
    ppo.act(obs)
    ppo.process_env_step(task.transition(ppo, torch.zeros(4, 2)))
    with pytest.raises(EnvContractError, match="1 of 2 steps"):
        ppo.compute_returns(obs)
    ppo.act(obs)
    ppo.process_env_step(task.transition(ppo, torch.zeros(4, 2)))
    with pytest.raises(EnvContractError, match=r"2 steps.*update"):
        ppo.act(obs)


def test_the_storage_is_allocated_once() -> None:
    ppo, task = make_ppo(), Task()
    task.run(ppo)
    fields = ("actions", "rewards", "terminated", "truncated", "valid")
    first = [getattr(ppo.storage, f).data_ptr() for f in fields]
    first += [x.data_ptr() for x in ppo.storage.observations.values()]
    task.run(ppo)
    second = [getattr(ppo.storage, f).data_ptr() for f in fields]
    assert first == second + [x.data_ptr() for x in ppo.storage.observations.values()]


@pytest.mark.parametrize("shape", [(4, 1), (3,), (), (4, 4)])
def test_rewards_of_another_shape_are_flattened_or_refused_and_never_broadcast(
    shape: tuple[int, ...],
) -> None:
    ppo = make_ppo(num_steps=1)
    task = Task()
    ppo.act(task.observe(ppo))
    step = task.transition(ppo, torch.zeros(4, 2))
    step.rewards = torch.ones(shape)
    if shape == (4, 1):
        ppo.process_env_step(step)
        assert ppo.storage.rewards[0].tolist() == [1.0] * 4
        return
    with pytest.raises(EnvContractError, match="4"):
        ppo.process_env_step(step)


def test_a_long_rollout_is_evaluated_in_blocks_of_rows() -> None:
    # more rows than one call takes; the values are those of single calls
    ppo = make_ppo(PPOConfig(num_mini_batches=1, num_learning_epochs=1), make_spec(700), num_steps=24)
    Task().collect(ppo)
    rows = ppo.storage.observations["policy"]
    with torch.no_grad():
        torch.testing.assert_close(
            ppo.storage.values, ppo.policy.value({"policy": rows}), rtol=1e-5, atol=1e-6
        )
