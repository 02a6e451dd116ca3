"""Reward terms, terminations and commands of go1-walk, with numbers by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from surefoot.tasks.go1 import commands, rewards, terminations
from surefoot.tasks.go1.motion import Motion
from surefoot.tasks.go1.robot import STAND, STAND_HEIGHT
from surefoot.tasks.go1.state import RobotState


def array(row):
    return np.array([row], np.float32)


@pytest.fixture
def standing():
    """One robot that stands still and is asked to."""
    qpos = np.zeros((1, 19))
    qpos[:, 2], qpos[:, 3], qpos[:, 7:] = STAND_HEIGHT - 0.001, 1.0, STAND
    zeros = array([0.0] * 12)
    return Motion(
        state=RobotState.from_physics(qpos, np.zeros((1, 18))),
        command=array([0.0, 0.0, 0.0]),
        phase=np.zeros(1, np.float32),
        action=zeros,
        previous_action=zeros,
        torque=zeros,
    )


def with_state(motion, **changes):
    return replace(motion, state=replace(motion.state, **changes))


def test_standing_still_on_request_earns_everything_and_costs_nothing(standing):
    values = {name: term(standing).item() for name, (_, term) in rewards.TERMS.items()}
    gains = {"linear_velocity", "yaw_rate", "trot", "pose"}
    assert all(values[name] == pytest.approx(1.0) for name in gains)
    assert all(values[name] == pytest.approx(0.0, abs=1e-6) for name in values.keys() - gains)


def test_tracking_falls_to_one_over_e_at_half_a_unit_of_error(standing):
    # 0.5² / 0.25 = 1
    moving = replace(standing, command=array([0.3, 0.4, 0.5]))
    assert rewards.linear_velocity(moving).item() == pytest.approx(math.exp(-1))
    assert rewards.yaw_rate(moving).item() == pytest.approx(math.exp(-1))


def test_trot_wants_diagonal_legs_in_the_air_in_turn(standing):
    forward = replace(standing, command=array([1.0, 0.0, 0.0]))
    # at phase 0 FR and RL should swing; all four stand without slip: half of the legs do right
    assert rewards.trot(forward).item() == pytest.approx(0.5)
    lifted = with_state(
        forward,
        foot_height=array([0.07, 0.0, 0.0, 0.035]),
        contact=array([0.0, 1.0, 1.0, 0.0]),
    )
    # (1 + 1 + 1 + 0.5) / 4
    assert rewards.trot(lifted).item() == pytest.approx(0.875)
    half_a_cycle_later = replace(lifted, phase=np.array([0.5], np.float32))
    assert rewards.trot(half_a_cycle_later).item() == pytest.approx(0.0)


def test_a_slipping_foot_earns_less(standing):
    slipping = with_state(standing, foot_slip=array([math.sqrt(0.1)] * 4))
    assert rewards.trot(slipping).item() == pytest.approx(math.exp(-1))


def test_penalties_are_what_their_names_say(standing):
    tilted = with_state(standing, gravity_b=array([0.6, 0.0, -0.8]), height=np.array([0.20]))
    assert rewards.tilt(tilted).item() == pytest.approx(0.36)
    assert rewards.crouching(tilted).item() == pytest.approx(0.06)
    jerky = replace(standing, action=array([0.5] * 12))
    assert rewards.action_rate(jerky).item() == pytest.approx(3.0)
    bent = with_state(standing, joint_pos=array([-1.063, *STAND[1:]]))
    assert rewards.joint_limits(bent).item() == pytest.approx(0.2, abs=1e-6)


@pytest.mark.parametrize(
    ("gravity_z", "height", "is_over"), [(-0.8, 0.25, False), (-0.4, 0.25, True), (-1.0, 0.14, True)]
)
def test_a_fall_is_a_tilt_over_60_degrees_or_a_trunk_below_15_cm(standing, gravity_z, height, is_over):
    state = with_state(standing, gravity_b=array([0.0, 0.0, gravity_z]), height=np.array([height])).state
    assert any(term(state).item() for term in terminations.TERMS.values()) == is_over


def test_commands_fill_their_ranges_with_the_asked_shares():
    generator = torch.Generator().manual_seed(0)
    command, steps = commands.draw(20000, commands.CommandConfig(), 0.02, generator)
    stands = (command == 0).all(1)
    straight = (command[:, 1:] == 0).all(1) & ~stands
    assert stands.mean() == pytest.approx(0.10, abs=0.01)
    assert straight.mean() == pytest.approx(0.25, abs=0.01)
    assert command[:, 0].min() >= -1.0
    assert command[:, 0].max() <= 1.5
    assert np.abs(command[:, 1]).max() <= 0.5
    assert steps.min() >= 150
    assert steps.max() <= 400


def test_evaluation_commands_switch_every_five_seconds_and_never_stand():
    command, steps = commands.draw(1000, commands.EVALUATION, 0.02, torch.Generator().manual_seed(0))
    assert (steps == 250).all()
    assert (command != 0).all()
