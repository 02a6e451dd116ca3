"""Pictures of the Go1 without a display."""

import numpy as np
import pytest

from surefoot.errors import SurefootError
from surefoot.tasks.go1 import make_env


@pytest.fixture
def env():
    env = make_env(1, evaluation=True, num_threads=1)
    env.reset()
    env._command[:] = [1.0, 0.0, 0.0]
    try:
        env.render()
    except SurefootError as e:
        pytest.skip(str(e))
    yield env
    env.close()


def share_near(picture, rgb):
    return (np.abs(picture.astype(int) - rgb).max(2) < 40).mean()


def test_render_shows_the_robot_before_the_floor(env):
    picture = env.render()
    assert picture.shape == (480, 640, 3)
    assert picture.dtype == np.uint8
    assert share_near(picture, (190, 90, 30)) > 1e-3  # an orange thigh
    assert share_near(picture, (190, 190, 195)) > 0.2  # the floor


def test_camera_follows_the_robot(env):
    before = env.render()
    env._physics.qpos[0, :2] += 20.0  # ten whole tiles of the checkered floor
    after = env.render()
    assert share_near(after, (190, 90, 30)) == pytest.approx(share_near(before, (190, 90, 30)), rel=0.2)


def test_command_arrow_shows_only_when_there_is_one(env):
    with_arrow = env.render()
    env._command[:] = 0.0
    without = env.render()
    green = (np.argmax(with_arrow, 2) == 1).mean()
    assert green > (np.argmax(without, 2) == 1).mean() + 5e-4


def test_rendering_leaves_the_simulation_alone(env):
    before = env._physics.state.copy()
    env.render()
    assert np.array_equal(env._physics.state, before)
