"""The preset of go1-walk teaches the robot to walk, and the gait holds in a finer simulation."""

import pytest

from surefoot.tasks import preset
from surefoot.tasks.go1 import make_env
from surefoot.training.evaluation import evaluate
from surefoot.training.on_policy_runner import OnPolicyRunner

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def policy():
    config = preset("go1-walk") | {"nproc": 1, "logger": "none", "eval_interval": None}
    env = make_env(config["num_envs"], seed=1)
    runner = OnPolicyRunner(env, config, device="cpu")
    runner.learn(config["max_iterations"])
    env.close()
    return runner.get_inference_policy()


@pytest.fixture(scope="module")
def scores(policy):
    """By physics: 64 robots, 20 s each, under random commands."""
    return {
        physics: evaluate(policy, make_env(64, evaluation=True, physics=physics), episodes=64, seed=1)
        for physics in ("fast", "accurate")
    }


def test_go1_follows_random_commands_and_stays_up(scores):
    assert scores["fast"]["linear_velocity_error"] <= 0.15
    assert scores["fast"]["yaw_rate_error"] <= 0.20
    assert scores["fast"]["fall_rate"] <= 0.05


def test_go1_walks_as_well_in_the_accurate_simulation(scores):
    fast, accurate = scores["fast"], scores["accurate"]
    assert accurate["linear_velocity_error"] == pytest.approx(fast["linear_velocity_error"], abs=0.03)
    assert accurate["fall_rate"] <= 0.05
