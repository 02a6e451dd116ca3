"""Public bug reports on logging: places that cannot be written to, and statistics over resets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gymnasium.vector import AutoresetMode

from surefoot.extensions.reward_scaling import RewardScaling
from surefoot.testing import constant_gymnasium
from surefoot.training.on_policy_runner import OnPolicyRunner


@pytest.mark.parametrize("mode", ["offline", pytest.param("disabled", marks=pytest.mark.slow)])
def test_l03_wandb_offline_or_disabled_outside_of_git_trains_to_the_end(tmp_path: Path, mode: str) -> None:
    pytest.importorskip("wandb")
    command = (
        "-m surefoot train surefoot.testing:GymConstant --num-envs 2 --iterations 2 --run-dir run --quiet "
        "--set num_steps_per_env=32 --set eval_episodes=0 --set logger=[tensorboard,wandb]"
    )
    done = subprocess.run(
        [sys.executable, *command.split()],
        cwd=tmp_path,
        env={**os.environ, "WANDB_MODE": mode, "WANDB_SILENT": "true", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2


def test_l04_return_statistics_are_the_same_in_all_autoreset_modes() -> None:
    """Reward 1, a time limit after 3 steps: the running return is 1, 1.99, 2.9701 and begins anew."""

    def statistics(mode: AutoresetMode, steps: int) -> tuple[int, float, float]:
        config: dict[str, Any] = {
            "num_steps_per_env": steps,
            "actor": {"hidden_dims": [4]},
            "critic": {"hidden_dims": [4]},
            "algorithm": {"num_mini_batches": 1, "num_learning_epochs": 1, "gamma": 0.99},
            "env": {"reward_scaling": True},
        }
        runner = OnPolicyRunner(constant_gymnasium(mode, 1, 3), config, quiet=True)
        runner.learn(2)
        (scaling,) = runner.alg.extensions
        assert isinstance(scaling, RewardScaling)
        return int(scaling.statistics.count), float(scaling.statistics.mean), float(scaling.statistics.std)

    # 12 episodes in each: a NEXT_STEP episode takes a row more, which only resets
    same = statistics(AutoresetMode.SAME_STEP, 36)
    assert statistics(AutoresetMode.NEXT_STEP, 48) == pytest.approx(same)
    assert statistics(AutoresetMode.DISABLED, 36) == pytest.approx(same)
    assert same[0] == 2 * 36
    assert same[1] == pytest.approx((1 + 1.99 + 2.9701) / 3, rel=1e-6)
