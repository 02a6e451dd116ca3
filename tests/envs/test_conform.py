"""The border: what an environment returns is cast and flattened once, or refused by name."""

import time
from collections.abc import MutableMapping

import numpy as np
import pytest
import torch
from gymnasium import spaces

from surefoot.envs.conform import conform_observations, conform_step
from surefoot.errors import EnvContractError
from surefoot.testing import TargetEnv
from surefoot.types import Step

N = 4


class LikeTensorDict(MutableMapping):
    """A mapping whose length is the batch size, as a TensorDict's is."""

    def __init__(self, data):
        self.data = dict(data)

    def __getitem__(self, key):
        return self.data[key]

    def __setitem__(self, key, value):
        self.data[key] = value

    def __delitem__(self, key):
        del self.data[key]

    def __iter__(self):
        return iter(self.data)

    def __len__(self):
        return N


@pytest.fixture
def env():
    return TargetEnv(N, groups={"policy": 3, "privileged": 2})


@pytest.fixture
def step(env):
    env.reset(seed=0)
    return env.step(torch.zeros(N, 1))


def test_a_step_that_is_right_passes_through_untouched(env, step):
    step.log = {"speed": 1.0, "error": torch.tensor(2.0)}
    assert conform_step(env, step) is step
    observations = env.reset()
    assert conform_observations(env, observations) is observations


VECTORS = {
    "column": lambda x: x.view(N, 1),
    "float64": lambda x: x.double(),
    "int64": lambda x: x.long(),
    "numpy": lambda x: x.numpy(),
    "numpy column": lambda x: x.numpy().reshape(N, 1),
    "list": lambda x: x.tolist(),
}


@pytest.mark.parametrize("form", VECTORS)
@pytest.mark.parametrize("name", ["rewards", "terminated", "truncated", "valid", "final_known"])
def test_vectors_of_any_dtype_and_columns_are_accepted(env, step, name, form):
    value = (
        torch.tensor([1.0, 0.0, 0.0, 1.0]) if name == "rewards" else torch.tensor([True, False, False, True])
    )
    setattr(step, name, VECTORS[form](value))
    got = getattr(conform_step(env, step), name)
    assert got.dtype == value.dtype
    assert got.shape == (N,)
    assert torch.equal(got, value)


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        (torch.zeros(N + 1), r"\(5,\)"),
        (torch.zeros(N, 2), r"\(4, 2\)"),
        (torch.zeros(1), r"\(1,\)"),
        (torch.zeros(1, N), r"\(1, 4\)"),
        (0.0, "a single rewards value"),
        (torch.tensor(0.0), "a single rewards value"),
    ],
)
def test_nothing_is_broadcast_and_both_shapes_are_named(env, step, value, shape):
    step.rewards = value
    with pytest.raises(EnvContractError, match=rf"{shape}.*expected \(4,\)"):
        conform_step(env, step)


def test_a_single_flag_is_refused(env, step):
    step.truncated = False
    with pytest.raises(EnvContractError, match=r"single truncated value.*one value per environment"):
        conform_step(env, step)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.uint8, torch.bool, torch.float16])
def test_observations_of_any_dtype_become_float32(env, dtype):
    observations = {"policy": torch.ones(N, 3, dtype=dtype), "privileged": np.ones((N, 2))}
    got = conform_observations(env, observations)
    assert {x.dtype for x in got.values()} == {torch.float32}
    assert got["policy"].sum() == 3 * N


def test_a_mapping_whose_length_is_the_batch_size_is_read_by_its_keys(env):
    got = conform_observations(env, LikeTensorDict(env.reset(seed=0)))
    assert type(got) is dict
    assert torch.equal(got["policy"], env.reset(seed=0)["policy"])


def test_missing_and_extra_groups_are_named(env):
    observations = env.reset()
    with pytest.raises(
        EnvContractError, match=r"no observation group 'policy'.*got \['polcy'.*Did you mean 'polcy'"
    ):
        conform_observations(env, {"polcy": observations["policy"], "privileged": observations["privileged"]})
    with pytest.raises(EnvContractError, match="group 'extra', which observation_spaces does not declare"):
        conform_observations(env, {**observations, "extra": torch.zeros(N, 1)})


def test_observations_of_a_wrong_shape_are_refused_with_both_shapes(env):
    with pytest.raises(EnvContractError, match=r"'policy' of shape \(4, 2\); expected \(4, 3\)"):
        conform_observations(env, {**env.reset(), "policy": torch.zeros(N, 2)})
    with pytest.raises(EnvContractError, match=r"'policy' of shape \(3,\); expected \(4, 3\)"):
        conform_observations(env, {**env.reset(), "policy": torch.zeros(3)})


def test_what_is_no_mapping_or_no_step_is_refused_with_a_way_out(env):
    with pytest.raises(EnvContractError, match=r"tuple.*groups 'policy', 'privileged'.*without an info"):
        conform_observations(env, (env.reset(), {}))
    with pytest.raises(EnvContractError, match=r"returned tuple; expected a surefoot\.Step"):
        conform_step(env, (env.reset(), 0, 0, 0))
    with pytest.raises(EnvContractError, match="'policy' as NoneType; expected a tensor"):
        conform_observations(env, {**env.reset(), "policy": None})


def test_final_observations_are_held_to_the_same_contract(env, step):
    step.final_observations = {"policy": torch.zeros(N, 3)}
    with pytest.raises(
        EnvContractError, match=r"final_observations returned no observation group 'privileged'"
    ):
        conform_step(env, step)


def test_images_stay_uint8_and_floats_in_their_place_are_refused(env):
    env.observation_spaces = {"image": spaces.Box(0, 255, (8, 8, 3), np.uint8)}
    image = torch.full((N, 8, 8, 3), 255, dtype=torch.uint8)
    assert conform_observations(env, {"image": image})["image"].dtype == torch.uint8
    with pytest.raises(EnvContractError, match=r"float32, but its space says uint8"):
        conform_observations(env, {"image": image.float() / 255})


LOGS = {
    "none": (None, {}),
    "empty": ({}, {}),
    "numbers": ({"a": 1, "b": np.float64(2.0), "c": True}, {"a": 1.0, "b": 2.0, "c": 1.0}),
    "tensors": ({"a": torch.tensor(1), "b": torch.tensor([1.0, 2.0])}, {"a": 1.0, "b": [1.0, 2.0]}),
    "arrays": ({"a": np.array([1, 2])}, {"a": [1.0, 2.0]}),
}


@pytest.mark.parametrize("kind", LOGS)
def test_numbers_of_every_kind_are_logged(env, step, kind):
    step.log, expected = LOGS[kind]
    got = conform_step(env, step).log
    assert {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in got.items()} == expected


@pytest.mark.parametrize("odd", ["text", None, {"nested": 1}, [1, 2]], ids=str)
def test_what_cannot_be_logged_is_left_out_with_one_warning(env, step, odd):
    step.log = {"good": 1.0, "odd": odd}
    with pytest.warns(UserWarning, match=r"left out what is not a number.*'odd'"):
        assert conform_step(env, step).log == {"good": 1.0}
    assert conform_step(env, step).log == {"good": 1.0}  # a second warning would be an error


class Forwarding:
    """A wrapper that forwards every attribute, and changes the groups."""

    def __init__(self, env):
        self._env = env
        self.observation_spaces = {"policy": env.observation_spaces["policy"]}

    def __getattr__(self, name):
        return getattr(self._env, name)


def test_a_forwarding_wrapper_has_its_own_contract(env):
    conform_observations(env, env.reset())
    outer = Forwarding(env)
    assert list(conform_observations(outer, {"policy": torch.zeros(N, 3)})) == ["policy"]
    assert len(conform_observations(env, env.reset())) == 2


def test_the_check_of_a_step_costs_microseconds(env, step):
    best = 1.0
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(100):
            conform_step(env, step)
        best = min(best, (time.perf_counter() - start) / 100)
    assert best < 100e-6  # about 5e-6 on an idle core; the bound only catches a check that reads values


def test_a_step_with_all_fields_of_other_kinds_becomes_a_whole_step(env):
    observations = {"policy": np.zeros((N, 3)), "privileged": np.zeros((N, 2), np.int32)}
    odd = Step(
        observations,
        np.zeros((N, 1)),
        np.zeros(N, int),
        [False, True, False, True],
        observations,
        [1, 1, 0, 1],
    )
    got = conform_step(env, odd)
    assert conform_step(env, got) is got
    assert got.truncated.tolist() == [False, True, False, True]
    assert got.final_known.tolist() == [True, True, False, True]
