"""What environments return, in every form that clients have, reaches the algorithm in one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from surefoot.compat.rsl_rl.env import VecEnv
from surefoot.compat.rsl_rl.env_adapter import EnvAdapter
from surefoot.config import SurefootWarning
from surefoot.errors import EnvContractError

N, A = 3, 2
OBS = torch.arange(12.0).view(N, 4)
REWARDS = torch.tensor([1.0, 2.0, 3.0])
DONES = torch.tensor([False, True, False])


def env(step: Any, observations: Any = OBS, **attributes: Any) -> Any:
    return SimpleNamespace(
        num_envs=N,
        num_actions=A,
        get_observations=lambda: observations,
        step=lambda _: step,
        **attributes,
    )


def step(returned: tuple[Any, ...], observations: Any = OBS) -> tuple[TensorDict, Any, Any, dict[str, Any]]:
    adapter = EnvAdapter(env(returned, observations))
    adapter.first_observations()
    return adapter.step(torch.zeros(N, A))


@pytest.mark.parametrize(
    "observations",
    [OBS, {"policy": OBS}, TensorDict({"policy": OBS}, batch_size=[N]), TensorDict({"policy": OBS}, [])],
)
def test_observations_of_any_form_become_groups(observations):
    obs, *_ = step((observations, REWARDS, DONES, {}), observations)
    assert list(obs.keys()) == ["policy"]
    assert obs.batch_size == (N,)
    assert torch.equal(obs["policy"], OBS)


def test_further_groups_come_from_extras_and_from_the_privileged_observations():
    extras = {"observations": {"critic": OBS + 1, "rnd_state": OBS + 2, "teacher": None}}
    obs, *_ = step((OBS, REWARDS, DONES, extras), (OBS, extras))
    assert sorted(obs.keys()) == ["critic", "policy", "rnd_state"]
    obs, *_ = step((OBS, OBS + 3, REWARDS, DONES, {}))
    assert torch.equal(obs["critic"], OBS + 3)
    obs, *_ = step((OBS, None, REWARDS, DONES, {}))
    assert list(obs.keys()) == ["policy"]


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.int64, torch.uint8, torch.float32])
@pytest.mark.parametrize("column", [False, True])
def test_dones_keep_their_dtype_and_lose_a_column(dtype, column):
    dones = DONES.to(dtype)
    *_, found, _ = step((OBS, REWARDS, dones.unsqueeze(1) if column else dones, {}))
    assert found.dtype == dtype
    assert torch.equal(found, dones)


@pytest.mark.parametrize(
    "time_outs",
    [
        DONES,
        DONES.float(),
        DONES.int(),
        DONES.unsqueeze(1),
        DONES.numpy(),
        DONES.tolist(),
        np.array([[0], [1], [0]]),
    ],
)
def test_c22_time_outs_of_any_type_and_shape(time_outs):
    extras = {"time_outs": time_outs}
    *_, found = step((OBS, REWARDS, DONES, extras))
    assert found["time_outs"].shape == (N,)
    assert torch.equal(found["time_outs"] > 0, DONES)
    assert extras["time_outs"] is time_outs  # the environment's own mapping stays


@pytest.mark.parametrize("extras", [None, {}, {"time_outs": None}])
def test_absent_time_outs_stay_absent(extras):
    *_, found = step((OBS, REWARDS, DONES, extras))
    assert "time_outs" not in found


@pytest.mark.parametrize(
    "rewards", [REWARDS, REWARDS.unsqueeze(1), REWARDS.int(), REWARDS.numpy(), [1, 2, 3]]
)
def test_rewards_become_numbers_per_environment(rewards):
    _, found, *_ = step((OBS, rewards, DONES, {}))
    assert found.is_floating_point()
    assert torch.equal(found.float(), REWARDS)


def test_a_group_of_groups_stays_as_it_is():
    obs, *_ = step(({"policy": OBS, "camera": {"left": OBS}}, REWARDS, DONES, {}), {"policy": OBS})
    assert torch.equal(obs["camera", "left"], OBS)


def test_final_observations_of_older_environments_become_a_group():
    *_, extras = step((OBS, REWARDS, DONES, {"terminal_obs": OBS + 5}))
    assert torch.equal(extras["terminal_obs"]["policy"], OBS + 5)


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ((OBS, REWARDS.expand(N, N), DONES, {}), r"rewards of shape \(3, 3\); expected \(3,\)"),
        ((OBS, REWARDS, DONES[:2], {}), r"dones of shape \(2,\)"),
        ((OBS[:2], REWARDS, DONES, {}), r"group 'policy' is \(2, 4\)"),
        ((OBS, REWARDS, DONES, {"time_outs": torch.zeros(2)}), r"time_outs'\] of shape \(2,\)"),
        ((OBS, REWARDS, DONES), "returned 3 values"),
        ((OBS, REWARDS, DONES, DONES, {}), "Gymnasium environments train with `surefoot train`"),
    ],
)
def test_another_shape_is_named(returned, words):
    with pytest.raises(EnvContractError, match=words):
        step(returned)


def test_what_an_environment_lacks_is_named():
    with pytest.raises(EnvContractError, match="no num_actions, no step"):
        EnvAdapter(SimpleNamespace(num_envs=N, get_observations=lambda: OBS))


def test_an_environment_that_names_no_device_has_that_of_its_observations():
    adapter = EnvAdapter(env(None))
    adapter.first_observations()
    assert adapter.device == torch.device("cpu")
    assert EnvAdapter(env(None, device="cuda:1")).device == "cuda:1"


def test_old_environments_are_reset_once_before_they_are_asked():
    resets = []
    old = env(None, reset=lambda: resets.append(1))
    adapter = EnvAdapter(old)
    adapter.first_observations()
    adapter.observations()
    assert len(resets) == 1
    new = env(None, {"policy": OBS}, reset=lambda: resets.append(1))
    EnvAdapter(new).first_observations()
    assert len(resets) == 1


# ------------------------------------------------------------------ init_at_random_ep_len


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32])
@pytest.mark.parametrize("limit", [50, 50.0, torch.tensor(50), torch.tensor([50, 10, 50])])
def test_running_episodes_begin_at_any_age_in_the_dtype_of_the_environment(dtype, limit):
    toy = env(None, episode_length_buf=torch.full((N,), -1).to(dtype), max_episode_length=limit)
    for _ in range(20):
        EnvAdapter(toy).randomize_episode_lengths()
        assert toy.episode_length_buf.dtype == dtype
        assert torch.all((toy.episode_length_buf >= 0) & (toy.episode_length_buf < torch.as_tensor(limit)))


@pytest.mark.parametrize("missing", ["episode_length_buf", "max_episode_length"])
def test_random_ages_without_what_they_need_are_a_warning(missing):
    attributes = {"episode_length_buf": torch.zeros(N), "max_episode_length": 5}
    del attributes[missing]
    with pytest.warns(SurefootWarning, match=f"the environment has no {missing}"):
        EnvAdapter(env(None, **attributes)).randomize_episode_lengths()


def test_vec_env_asks_for_its_two_methods_only():
    class Incomplete(VecEnv):
        def step(self, actions: torch.Tensor) -> Any:
            return None

    with pytest.raises(TypeError, match="get_observations"):
        Incomplete()  # pyright: ignore[reportAbstractUsage]

    class Complete(Incomplete):
        def get_observations(self) -> TensorDict:
            return TensorDict({}, [])

    Complete()
