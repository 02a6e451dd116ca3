"""Long runs hold what they hold after a few iterations: as many tensors, and hardly more memory."""

from __future__ import annotations

import gc
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from surefoot.config.plugins import EXTENSIONS
from surefoot.envs.vec_env import VecEnv
from surefoot.tasks import make
from surefoot.testing import TargetEnv
from surefoot.training.hooks import Hook
from surefoot.training.loggers import read_records
from surefoot.training.on_policy_runner import OnPolicyRunner
from surefoot.types import Batch, MirrorMap, PolicyOutput

MEGABYTE = 2**20
STATM = Path("/proc/self/statm")


class Own(nn.Sequential):
    """A network of one's own with a loss of its own."""

    def __init__(self, num_inputs: int) -> None:
        super().__init__(nn.Linear(num_inputs, 4), nn.Tanh())

    def aux_losses(self, batch: Batch, out: PolicyOutput) -> dict[str, Tensor]:
        return {"size": out.actor_features.square().mean()}


def motion(step_dt: float | None) -> list[tuple[Tensor, float]]:  # noqa: ARG001 - as AMP calls it
    """Demonstrations for AMP."""
    return [(torch.linspace(0, 1, 24).view(8, 3), 1.0)]


class Memory(Hook):
    """Live tensors and resident bytes after some of the iterations."""

    def __init__(self, warm_up: int, interval: int) -> None:
        self.warm_up, self.interval = warm_up, interval
        self.tensors: list[int] = []
        self.resident: list[int] = []

    def after_iteration(self, runner: OnPolicyRunner, metrics: dict[str, Any]) -> None:
        if runner.iteration >= self.warm_up and runner.iteration % self.interval == 0:
            gc.collect()
            # the type alone is looked at: some objects of other libraries answer isinstance() with a warning
            self.tensors.append(sum(issubclass(type(x), Tensor) for x in gc.get_objects()))
            self.resident.append(resident_bytes())

    @property
    def growth(self) -> float:
        """Megabytes from the first look to the highest."""
        return (max(self.resident) - self.resident[0]) / MEGABYTE


def resident_bytes() -> int:
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if STATM.exists() else 0


def make_env() -> TargetEnv:
    env = TargetEnv(4, 6, groups={"policy": 3, "privileged": 2})
    env.mirror = MirrorMap(
        {name: (torch.arange(n), -torch.ones(n)) for name, n in env.dims.items()},
        (torch.arange(1), -torch.ones(1)),
    )
    env.step_dt = 0.02
    return env


def soak_config(rnn_type: str | None, with_extensions: bool) -> dict[str, Any]:
    network = {"hidden_dims": [4], "rnn_type": rnn_type, "rnn_hidden_dim": 4, "obs_normalization": True}
    algorithm: dict[str, Any] = {"num_learning_epochs": 1, "num_mini_batches": 1, "schedule": "fixed"}
    config = {
        "num_steps_per_env": 3,
        "max_iterations": 3000,
        "save_interval": 20,
        "keep_checkpoints": 2,
        "eval_interval": 40,
        "eval_episodes": 2,
        "actor": {**network},
        "critic": {**network, "value_normalization": True},
        "algorithm": algorithm,
    }
    if with_extensions:
        config["actor"]["class_name"] = f"{__name__}:Own"
        config["actor"]["estimator"] = {"target": "privileged", "hidden_dims": [4]}
        config["env"] = {"reward_scaling": True}
        algorithm["enable_aux_loss"] = True
        config["extensions"] = [{"class_name": "AuxiliaryPrediction", "target": "privileged"}]
        algorithm["rnd_cfg"] = {
            "num_outputs": 2,
            "predictor_hidden_dims": [4],
            "target_hidden_dims": [4],
            "num_mini_batches": 1,
            "value_head": True,
        }
        algorithm["class_name"] = "PPOAMP"
        algorithm["amp_cfg"] = {
            "dataset": f"{__name__}:motion",
            "obs_group": "policy",
            "hidden_dims": [4],
            "replay_size": 64,
            "disc_num_mini_batches": 1,
        }
        algorithm["symmetry_cfg"] = {"use_data_augmentation": True, "use_mirror_loss": True}
    return config


def run(
    env: VecEnv, config: dict[str, Any], directory: Path, iterations: int, eval_env: VecEnv
) -> tuple[Memory, OnPolicyRunner]:
    """Train with files and evaluations; what was held from the fifth part of the run on."""
    memory = Memory(warm_up=iterations // 5, interval=max(iterations // 25, 10))
    runner = OnPolicyRunner(env, config, directory, eval_env=eval_env, quiet=True)
    runner.hooks.append(memory)
    assert runner.learn(iterations) == "finished"
    assert len(read_records(directory / "metrics.jsonl")) == iterations
    assert len(memory.tensors) > 5
    return memory, runner


def assert_flat(memory: Memory) -> None:
    changes = [b - a for a, b in pairwise(memory.tensors)]
    assert not any(changes), f"live tensors: {memory.tensors}"
    assert memory.growth < 20, f"resident memory grew by {memory.growth:.1f} MB"


@pytest.mark.filterwarnings("ignore::surefoot.config.SurefootWarning")
def test_a_recurrent_run_with_every_extension_holds_no_more_with_time(tmp_path: Path) -> None:
    memory, runner = run(make_env(), soak_config("gru", True), tmp_path, 80, make_env())
    assert_flat(memory)
    used = {type(extension).__name__ for extension in runner.alg.extensions}
    assert used == set(EXTENSIONS), "a built-in extension is missing here"


@pytest.mark.slow
@pytest.mark.parametrize("rnn_type", ["gru", "lstm", None])
@pytest.mark.filterwarnings("ignore::surefoot.config.SurefootWarning")
def test_3000_iterations_with_every_extension_hold_no_more_with_time(
    tmp_path: Path, rnn_type: str | None
) -> None:
    assert_flat(run(make_env(), soak_config(rnn_type, True), tmp_path, 3000, make_env())[0])


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.filterwarnings("ignore::surefoot.config.SurefootWarning")
def test_3000_iterations_of_gymnasium_environments_hold_no_more_with_time(
    tmp_path: Path, backend: Any
) -> None:
    env, eval_env = (make("surefoot.testing:GymTarget", 2, backend=backend, seed=seed) for seed in (1, 2))
    try:
        assert_flat(run(env, soak_config(None, False), tmp_path, 3000, eval_env)[0])
    finally:
        env.close()
        eval_env.close()
