"""The figures of the Go1 and the closed-form kinematics, against MuJoCo."""

from importlib.resources import files

import mujoco
import numpy as np
import pytest

from surefoot.tasks.go1 import robot
from surefoot.tasks.go1.model import load_model, variants, vary
from surefoot.tasks.go1.state import RobotState


@pytest.fixture(scope="module")
def model():
    return load_model()


def random_state(model, rng):
    data = mujoco.MjData(model)
    quaternion = rng.normal(size=4)
    data.qpos[:3] = rng.uniform(-1, 1, 3)
    data.qpos[3:7] = quaternion / np.linalg.norm(quaternion)
    data.qpos[7:] = rng.uniform(robot.JOINT_LOWER, robot.JOINT_UPPER)
    data.qvel[:] = rng.normal(size=18)
    mujoco.mj_forward(model, data)
    return data


def test_model_and_tables_name_the_same_robot(model):
    joints = [mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_JOINT, i) for i in range(1, model.njnt)]
    assert joints == [f"{name}_joint" for name in robot.JOINTS]
    assert [model.actuator(i).name for i in range(model.nu)] == list(robot.JOINTS)
    np.testing.assert_allclose(model.jnt_range[1:, 0], robot.JOINT_LOWER, rtol=1e-6)
    np.testing.assert_allclose(model.jnt_range[1:, 1], robot.JOINT_UPPER, rtol=1e-6)
    np.testing.assert_allclose(model.actuator_forcerange[:, 1], robot.EFFORT_LIMIT, rtol=1e-6)
    np.testing.assert_allclose(model.actuator_gainprm[:, 0], robot.KP)
    np.testing.assert_allclose(-model.actuator_biasprm[:, 2], robot.KD)


def test_total_mass_is_the_published_sum(model):
    # trunk 5.204 + four legs of hip 0.68, thigh 1.009 and calf 0.195862
    assert sum(model.body_mass) == pytest.approx(5.204 + 4 * (0.68 + 1.009 + 0.195862))


def test_armature_is_the_rotor_inertia_seen_through_the_gears(model):
    # 1.118e-4 times 6² for hip and thigh; the calf's gear ratio is 9
    assert model.dof_armature[6] == pytest.approx(0.00402631)
    assert model.dof_armature[8] == pytest.approx(1.118e-4 * 81, rel=1e-3)


def test_feet_just_touch_the_floor_in_the_stand_pose():
    qpos = np.zeros((1, 19))
    qpos[:, 2], qpos[:, 3], qpos[:, 7:] = robot.STAND_HEIGHT, 1.0, robot.STAND
    state = RobotState.from_physics(qpos, np.zeros((1, 18)))
    assert np.abs(state.foot_height).max() < 1e-3


def test_foot_positions_and_velocities_agree_with_mujoco(model):
    rng = np.random.default_rng(0)
    for _ in range(5):
        data = random_state(model, rng)
        state = RobotState.from_physics(data.qpos[None], data.qvel[None])
        for i, leg in enumerate(robot.LEGS):
            foot = model.geom(f"{leg}_foot").id
            velocity = np.zeros(6)
            mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_GEOM, foot, velocity, 0)
            height = data.geom_xpos[foot, 2] - robot.FOOT_RADIUS
            assert state.foot_height[0, i].item() == pytest.approx(height, abs=1e-5)
            assert state.foot_slip[0, i].item() == pytest.approx(np.hypot(velocity[3], velocity[4]), abs=1e-4)


def test_trunk_velocities_and_gravity_agree_with_mujoco(model):
    data = random_state(model, np.random.default_rng(1))
    state = RobotState.from_physics(data.qpos[None], data.qvel[None])
    rotation = data.xmat[model.body("trunk").id].reshape(3, 3)
    np.testing.assert_allclose(state.linear_velocity_b[0], rotation.T @ data.qvel[:3], atol=1e-5)
    np.testing.assert_allclose(state.gravity_b[0], rotation.T @ [0, 0, -1], atol=1e-5)
    assert state.yaw_rate.item() == pytest.approx((rotation @ data.qvel[3:6])[2], abs=1e-5)
    forward = rotation[:2, 0] / np.linalg.norm(rotation[:2, 0])
    assert state.linear_velocity_yaw[0, 0].item() == pytest.approx(forward @ data.qvel[:2], abs=1e-5)
    assert state.linear_velocity_yaw[0, 1].item() == pytest.approx(
        np.array([-forward[1], forward[0]]) @ data.qvel[:2], abs=1e-5
    )


def test_mirroring_swaps_sides_and_turns_hips_around():
    permutation, sign = robot.mirror_of(robot.JOINTS)
    mirrored = robot.STAND[permutation] * sign
    assert np.array_equal(mirrored, robot.STAND)  # the stand pose is symmetric
    assert [robot.JOINTS[i] for i in permutation[:3]] == ["FL_hip", "FL_thigh", "FL_calf"]
    assert sign[:3] == [-1, 1, 1]


def test_variants_span_friction_and_mass_and_leave_the_model_alone(model):
    robots = [vary(model, v) for v in variants(8)]
    trunk = model.body("trunk").id
    frictions = [r.pair_friction[0, 0] for r in robots]
    masses = sorted(r.body_mass[trunk] - model.body_mass[trunk] for r in robots)
    assert min(frictions) == pytest.approx(0.5)
    assert max(frictions) == pytest.approx(1.25)
    assert masses[0] == pytest.approx(-0.5)
    assert masses[-1] == pytest.approx(1.5)
    assert model.pair_friction[0, 0] == pytest.approx(0.8)


def test_accurate_model_collides_everywhere_but_only_where_it_should():
    accurate = load_model("accurate")
    assert accurate.opt.timestep == 0.002
    data = mujoco.MjData(accurate)
    data.qpos[7:] = robot.STAND
    data.qpos[2] = 0.277
    mujoco.mj_forward(accurate, data)
    assert data.ncon == 4  # four feet; no link touches another in the stand pose
    data.qpos[2] = 0.05  # the belly on the floor
    mujoco.mj_forward(accurate, data)
    assert data.ncon > 4


def test_notice_of_the_published_figures_lies_beside_the_model():
    text = (files("surefoot.tasks.go1") / "LICENSE-UNITREE.md").read_text()
    assert "HangZhou YuShu TECHNOLOGY" in text
    assert "Redistributions of source code must retain" in text
