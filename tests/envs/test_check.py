"""The pre-flight finds each way to spoil training, in one line."""

import re

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from surefoot.envs.check import check_env
from surefoot.envs.gymnasium import GymnasiumVecEnv
from surefoot.testing import (
    ConstantEnv,
    DiscreteTargetEnv,
    GymMasked,
    ReusedBufferEnv,
    TargetEnv,
    constant_gymnasium,
)
from surefoot.types import MirrorMap, Step


class Broken(TargetEnv):
    """A TargetEnv whose steps are changed by the test."""

    def __init__(self, change=lambda step: step, **kwargs):
        super().__init__(**kwargs)
        self.change = change

    def step(self, actions):
        return self.change(super().step(actions))


def changed(**fields):
    def change(step):
        for name, make in fields.items():
            setattr(step, name, make(step))
        return step

    return change


def problems(env, **kwargs):
    return check_env(env, **kwargs).problems


@pytest.mark.parametrize(
    "env",
    [
        TargetEnv(groups={"policy": 3, "privileged": 5}),
        ConstantEnv(),
        DiscreteTargetEnv(start=2),
        ReusedBufferEnv(),
        constant_gymnasium("NextStep"),
        constant_gymnasium("SameStep"),
        constant_gymnasium("Disabled"),
    ],
    ids=lambda env: type(env).__name__,
)
def test_an_environment_that_keeps_the_contract_passes(env):
    report = check_env(env)
    assert report.is_ok, str(report)
    assert report.truncated > 0
    assert report.terminated == 0
    assert report.steps_per_second > 0
    assert "keeps the contract" in str(report)


def test_an_action_mask_is_obeyed_when_actions_are_sampled():
    assert check_env(GymnasiumVecEnv(SyncVectorEnv([GymMasked] * 2))).is_ok


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (changed(rewards=lambda _: torch.zeros(3)), r"rewards of shape \(3,\)"),
        (
            changed(rewards=lambda _: torch.full((4,), torch.nan)),
            "rewards of environment 0 is not finite at step 1",
        ),
        (
            changed(observations=lambda _: {"policy": torch.full((4, 3), torch.inf)}),
            "'policy' of environment 0 is not finite",
        ),
        (
            changed(final_observations=lambda s: s.observations.copy()),
            "equals the observation after the reset",
        ),
        (changed(valid=lambda _: torch.zeros(4, dtype=torch.bool)), "valid is False for environment 0"),
        (changed(observations=lambda _: {}), "no observation group 'policy'"),
        (lambda _: None, "returned NoneType; expected a surefoot.Step"),
        (lambda _: 1 / 0, "raised ZeroDivisionError"),
    ],
    ids=["reward shape", "reward nan", "obs inf", "final", "valid", "group", "no step", "raises"],
)
def test_each_breach_is_one_clear_line(change, found):
    lines = problems(Broken(change))
    assert len(lines) == 1
    assert "\n" not in lines[0]
    assert re.search(found, lines[0])


def test_a_seed_that_is_not_used_is_found():
    class Unseeded(TargetEnv):
        def reset(self, seed=None, mask=None):
            return super().reset(None, mask)

    assert "the seed is not used" in problems(Unseeded())[0]


def test_results_that_cannot_be_repeated_are_noted():
    noise = iter(range(10**9))
    report = check_env(Broken(changed(rewards=lambda s: s.rewards + next(noise))))
    assert any("cannot be repeated" in note for note in report.notes)


def test_a_state_that_leaves_something_out_is_found():
    class Forgetful(TargetEnv):
        def state_dict(self):
            return {k: v for k, v in super().state_dict().items() if k != "generator"}

        def load_state_dict(self, state):
            super().load_state_dict({**state, "generator": self.generator.get_state()})

    assert "does not continue where state_dict() was taken" in problems(Forgetful(episode_length=7))[0]


def test_a_state_that_a_checkpoint_cannot_hold_is_found():
    class Objects(TargetEnv):
        def state_dict(self):
            return {**super().state_dict(), "rng": np.random.default_rng()}

    assert "cannot go into a checkpoint" in problems(Objects())[0]


def mirrored(permutation, sign):
    env = TargetEnv(num_actions=1)
    env.mirror = MirrorMap(
        {"policy": (torch.tensor(permutation), torch.tensor(sign))}, (torch.tensor([0]), torch.tensor([-1.0]))
    )
    return env


def test_a_mirror_map_must_be_its_own_inverse():
    assert not problems(mirrored([0, 1, 2], [-1.0, 1.0, 1.0]))
    assert "not its own inverse at entries [0, 1, 2]" in problems(mirrored([1, 2, 0], [1.0, 1.0, 1.0]))[0]
    assert "not its own inverse at entries [0, 1]" in problems(mirrored([1, 0, 2], [-1.0, 1.0, 1.0]))[0]
    assert "has 2 entries; expected 3" in problems(mirrored([1, 0], [1.0, 1.0]))[0]


def test_what_could_not_be_checked_is_noted():
    report = check_env(ConstantEnv(episode_length=10_000), num_steps=20)
    assert any("no episode ended in 20 steps" in note for note in report.notes)


def test_a_time_limit_reported_as_termination_is_noted():
    def limit_as_termination(step: Step) -> Step:
        step.terminated, step.truncated = step.truncated, torch.zeros_like(step.truncated)
        return step

    report = check_env(Broken(limit_as_termination))
    assert any("max_episode_length (10) as terminated, none as truncated" in note for note in report.notes)
    assert report.terminated > 0


def test_unknown_final_observations_and_wide_dtypes_are_noted():
    no_final = changed(
        final_observations=lambda _: None,
        observations=lambda s: {"policy": s.observations["policy"].double()},
    )
    notes = " ".join(check_env(Broken(no_final)).notes)
    assert "time limits came without a final observation" in notes
    assert "is float64" in notes


def test_observations_out_of_their_bounds_are_noted():
    env = TargetEnv()
    env.observation_spaces["policy"] = spaces.Box(-0.1, 0.1, (3,))
    assert any("leaves the bounds" in note for note in check_env(env).notes)


def test_what_is_no_vec_env_is_told_what_it_lacks():
    class Half:
        num_envs = 2

        def reset(self):
            return {}

    assert "Half lacks" in problems(Half())[0]
    assert "step()" in problems(Half())[0]
