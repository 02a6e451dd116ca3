"""The preset of go1-amp teaches the robot to follow commands in a trot that no reward describes."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow

MEASURE = Path(__file__).parents[2] / "benchmarks" / "gait_style.py"


@pytest.fixture(scope="module")
def gait_style():
    spec = importlib.util.spec_from_file_location("gait_style", MEASURE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["gait_style"] = module  # where its dataclass looks for its annotations
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("amp") / "run"
    command = [sys.executable, "-m", "surefoot", "train", "go1-amp", "--run-dir", str(folder), "--quiet"]
    subprocess.run([*command, "--set", "logger=none"], check=True)
    return folder


def test_the_robot_follows_commands_in_a_gait_close_to_the_reference(run, gait_style):
    gait, errors = gait_style.of_run(str(run), robots=64, seconds=20.0, seed=1)
    assert errors["linear_velocity_error"] <= 0.15
    assert errors["yaw_rate_error"] <= 0.20
    assert gait.distance(gait_style.of_clips(["trot_forward_0.5", "trot_forward_1.0"])) <= 0.3


def test_the_discriminator_does_not_saturate(run):
    last = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][-20:]
    accuracy = np.mean([0.5 * (m["Amp/accuracy_demo"] + m["Amp/accuracy_policy"]) for m in last])
    assert 0.55 <= accuracy <= 0.95
