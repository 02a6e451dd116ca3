"""The mirror map of go1-walk against the physics: mirrored robots move as mirror images."""

import mujoco
import numpy as np
import torch

from surefoot.tasks.go1 import make_env
from surefoot.tasks.go1.model import load_model
from surefoot.tasks.go1.robot import JOINT_LOWER, JOINT_UPPER, JOINTS, LEGS, mirror_of
from surefoot.tasks.physics import BatchedPhysics

JOINT_PERMUTATION, JOINT_SIGN = mirror_of(JOINTS)


def symmetric_model():
    """The Go1 without the small asymmetries of its trunk and calves, and with a solver that converges:
    projected Gauss-Seidel visits the contacts in a fixed order, which is not symmetric.
    """
    model = load_model()
    model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
    model.opt.iterations, model.opt.tolerance = 100, 1e-14
    for name in ("trunk", *(f"{leg}_calf" for leg in LEGS)):
        body = model.body(name).id
        model.body_ipos[body, 1] = 0.0
        model.body_iquat[body] = (
            [0.0, np.sqrt(0.5), 0.0, np.sqrt(0.5)] if name == "trunk" else [1.0, 0.0, 0.0, 0.0]
        )
    mujoco.mj_setConst(model, mujoco.MjData(model))
    return model


def mirror_qpos(qpos):
    joints = qpos[:, 7:][:, JOINT_PERMUTATION] * JOINT_SIGN
    return np.hstack([qpos[:, :3] * [1, -1, 1], qpos[:, 3:7] * [1, -1, 1, -1], joints])


def mirror_qvel(qvel):
    joints = qvel[:, 6:][:, JOINT_PERMUTATION] * JOINT_SIGN
    return np.hstack([qvel[:, :3] * [1, -1, 1], qvel[:, 3:6] * [-1, 1, -1], joints])


def mirrored_pair(num_pairs):
    """An environment whose second half is the mirror image of its first."""
    env = make_env(2 * num_pairs, evaluation=True, num_threads=1)
    env._physics = BatchedPhysics([symmetric_model()], 2 * num_pairs, 2, 1)
    env.reset()
    rng = np.random.default_rng(3)
    qpos = env._physics.qpos[:num_pairs].copy()
    qpos[:, 2] += 0.02 * rng.random(num_pairs)
    qpos[:, 3:7] += 0.1 * rng.normal(size=(num_pairs, 4))
    qpos[:, 3:7] /= np.linalg.norm(qpos[:, 3:7], axis=1, keepdims=True)
    qpos[:, 7:] = np.clip(qpos[:, 7:] + 0.2 * rng.normal(size=(num_pairs, 12)), JOINT_LOWER, JOINT_UPPER)
    qvel = rng.normal(size=(num_pairs, 18))
    rows = np.arange(2 * num_pairs)
    env._physics.place(rows, np.vstack([qpos, mirror_qpos(qpos)]), np.vstack([qvel, mirror_qvel(qvel)]))
    command = rng.normal(size=(num_pairs, 3))
    env._command[:] = np.vstack([command, command * [1, -1, -1]])
    phase = rng.random(num_pairs)
    env._phase[:] = np.hstack([phase, (phase + 0.5) % 1.0])
    return env


def test_mirrored_robots_stay_mirror_images_of_each_other():
    env, generator = mirrored_pair(16), torch.Generator().manual_seed(0)
    is_up = torch.ones(16, dtype=torch.bool)
    for _ in range(5):
        action = 0.5 * torch.randn(16, 12, generator=generator)
        step = env.step(torch.cat([action, env.mirror.mirror_actions(action)]))
        is_up &= ~step.terminated[:16]  # a new episode draws a command of its own
        for group, obs in step.observations.items():
            mirrored = env.mirror.mirror_observations({group: obs[:16]})[group]
            torch.testing.assert_close(mirrored[is_up], obs[16:][is_up], atol=2e-3, rtol=1e-3)
        torch.testing.assert_close(step.rewards[:16], step.rewards[16:], atol=1e-4, rtol=1e-3)
        assert step.observations["privileged"][:, 4:8].any()  # contacts took part
        assert torch.equal(step.terminated[:16], step.terminated[16:])
    assert is_up.sum() > 12


def test_mirroring_twice_changes_nothing():
    env = make_env(2, num_threads=1)
    obs = env.reset()
    twice = env.mirror.mirror_observations(env.mirror.mirror_observations(obs))
    for group in obs:
        assert torch.equal(twice[group], obs[group])
    action = torch.randn(2, 12)
    assert torch.equal(env.mirror.mirror_actions(env.mirror.mirror_actions(action)), action)


def test_a_robot_in_the_mirror_sees_itself_turn_the_other_way():
    env = make_env(1, evaluation=True, num_threads=1)
    env.reset()
    env._command[:] = [1.0, 0.3, 0.7]
    obs = {g: torch.from_numpy(o) for g, o in env._observe(env._motion()).items()}
    mirrored = env.mirror.mirror_observations(obs)["policy"]
    # command entries follow gyro (3) and gravity (3); scales are 2, 2 and 1
    torch.testing.assert_close(mirrored[0, 6:9], torch.tensor([2.0, -0.6, -0.7]))
