"""Public bug reports on observations and environments: types, pictures, shapes, infos, workers that fail."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn

from surefoot.config import merge
from surefoot.envs.gymnasium import GymnasiumVecEnv
from surefoot.envs.replicate import replicate
from surefoot.errors import EnvContractError
from surefoot.testing import TargetEnv
from surefoot.training.on_policy_runner import OnPolicyRunner
from surefoot.types import Step

N = 4
SMALL: dict[str, Any] = {
    "num_steps_per_env": 32,
    "actor": {"hidden_dims": [8]},
    "critic": {"hidden_dims": [8]},
    "algorithm": {"num_mini_batches": 2, "num_learning_epochs": 1},
    "logger": "none",
}


def make_runner(environment: Any, **config: Any) -> OnPolicyRunner:
    return OnPolicyRunner(environment, merge(SMALL, config), quiet=True)


class Fixed(gymnasium.Env[Any, Any]):
    """Always the same observation, reward and info; the time limit is 5 steps."""

    def __init__(self, space: Any, value: Any, reward: Any = 1.0, info: Any = None) -> None:
        self.observation_space, self.action_space = space, spaces.Box(-1.0, 1.0, (1,))
        self.value, self.reward, self.info, self.elapsed = value, reward, info or {}, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.elapsed = 0
        return self.value, {}

    def step(self, action: Any) -> Any:
        self.elapsed += 1
        return self.value, self.reward, False, self.elapsed >= 5, self.info


# ------------------------------------------------------------------ O02: types of numbers


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (spaces.Box(-1, 1, (3,), np.float64), np.full(3, 0.5)),
        (spaces.Box(-9, 9, (3,), np.int64), np.full(3, 7)),
        (spaces.Box(0, 255, (3,), np.uint8), np.full(3, 200, np.uint8)),
        (spaces.MultiBinary(3), np.ones(3, bool)),
        (spaces.Box(-1, 1, (3,), np.float16), np.full(3, 0.5, np.float16)),
        (spaces.Box(-1, 1, (3,)), [0.0, 1.0, 0.5]),
        (spaces.Box(-1, 1, ()), 0.5),
    ],
    ids=lambda x: str(x) if isinstance(x, spaces.Space) else "",
)
def test_o02_observations_of_any_type_are_stored_as_float32_and_taken_at_inference(
    space: Any, value: Any
) -> None:
    runner = make_runner(replicate(lambda: Fixed(space, value), 2, backend="sync"))
    runner.learn(1)
    stored = runner.alg.storage.observations["policy"]
    assert stored.dtype == torch.float32
    assert torch.equal(stored[0, 0].double(), torch.as_tensor(np.asarray(value, np.float64)))
    policy = runner.get_inference_policy()
    given = np.stack([np.asarray(value)] * 2)
    assert torch.equal(policy(given), policy(given.astype(np.float32)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.uint8, torch.bool, torch.float16])
@pytest.mark.parametrize("name", ["policy", "rewards", "truncated"])
def test_o02_a_vec_env_may_return_any_type(name: str, dtype: torch.dtype) -> None:
    class Odd(TargetEnv):
        def step(self, actions: Tensor) -> Step:
            step = super().step(actions)
            if name == "policy":
                step.observations = {"policy": step.observations["policy"].to(dtype)}
            else:
                setattr(step, name, getattr(step, name).to(dtype))
            return step

    runner = make_runner(Odd(N))
    runner.learn(1)
    storage = runner.alg.storage
    assert storage.observations["policy"].dtype == storage.rewards.dtype == torch.float32
    assert storage.truncated.dtype == torch.bool


@pytest.mark.parametrize("reward", [1, np.float64(1), np.int64(1), np.array([1.0]), True, torch.tensor(1.0)])
@pytest.mark.parametrize("backend", ["sync", "async"])
def test_o02_a_reward_may_be_any_single_number(reward: Any, backend: Any) -> None:
    env = replicate(lambda: Fixed(spaces.Box(-1, 1, (3,)), np.zeros(3), reward), 2, backend=backend)
    env.reset(seed=1)
    rewards = env.step(torch.zeros(2, 1)).rewards
    env.close()
    assert rewards.dtype == torch.float32
    assert rewards.tolist() == [1.0, 1.0]


def test_o02_a_number_that_its_space_does_not_have_is_named() -> None:
    env = replicate(lambda: Fixed(spaces.Discrete(4), 9), 2, backend="sync")
    with pytest.raises(EnvContractError, match=r"environment 0 gave 9 in .*'policy'.*Discrete\(4\)"):
        env.reset(seed=1)


# ------------------------------------------------------------------ O03: pictures


def first_input(runner: OnPolicyRunner, kind: type[nn.Module]) -> Tensor:
    """What the first layer of this kind in the actor is given for the stored observations."""
    seen: list[Tensor] = []
    layer = next(m for m in runner.policy.actor.modules() if isinstance(m, kind))
    handle = layer.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    runner.policy.act({g: x[0] for g, x in runner.alg.storage.observations.items()})
    handle.remove()
    return seen[0]


@pytest.mark.parametrize(
    ("shape", "channels"),
    [((64, 64, 3), 3), ((3, 64, 64), 3), ((84, 84), 1), ((4, 84, 84), 4), ((84, 84, 1), 1)],
)
def test_o03_bytes_stay_bytes_and_are_divided_by_255_once(shape: tuple[int, ...], channels: int) -> None:
    space = spaces.Box(0, 255, shape, np.uint8)
    env = replicate(lambda: Fixed(space, np.full(shape, 255, np.uint8)), 2, backend="sync")
    runner = make_runner(env, actor={"obs_normalization": True})
    runner.learn(1)
    stored = runner.alg.storage.observations["policy"]
    assert stored.nbytes == stored.numel() == 33 * 2 * np.prod(shape)
    pixels = first_input(runner, nn.Conv2d)
    assert pixels.shape[1] == channels
    assert float(pixels.min()) == float(pixels.max()) == 1.0


def test_o03_floats_are_left_as_they_are() -> None:
    space = spaces.Box(0, 1, (64, 64, 3))
    env = replicate(lambda: Fixed(space, np.full((64, 64, 3), 0.5, np.float32)), 2, backend="sync")
    runner = make_runner(env, actor={"cnn": "nature"}, critic={"cnn": "nature"})
    runner.learn(1)
    assert first_input(runner, nn.Conv2d).unique().tolist() == [0.5]


def test_o03_pixels_that_are_flattened_are_scaled_too_and_small_tables_are_not() -> None:
    for shape, largest in (((16, 16), 1.0), ((7, 7, 3), 255.0)):
        space = spaces.Box(0, 255, shape, np.uint8)
        value = np.full(shape, 255, np.uint8)
        runner = make_runner(
            replicate(lambda s=space, v=value: Fixed(s, v), 2, backend="sync"),
            actor={"cnn": "flat"},
            critic={"cnn": "flat"},
        )
        runner.learn(1)
        assert float(first_input(runner, nn.Linear).max()) == largest


def test_o03_beside_a_picture_only_the_vector_is_normalised() -> None:
    parts = {"image": spaces.Box(0, 255, (36, 36, 3), np.uint8), "state": spaces.Box(-1, 1, (2,))}
    value = {"image": np.full((36, 36, 3), 255, np.uint8), "state": np.full(2, 0.5, np.float32)}
    runner = make_runner(
        replicate(lambda: Fixed(spaces.Dict(parts), value), 2, backend="sync"),
        actor={"obs_normalization": True},
    )
    runner.learn(1)
    assert runner.policy.inputs.normalizers["actor"].mean.shape == (2,)
    assert float(first_input(runner, nn.Conv2d).max()) == 1.0


@pytest.mark.parametrize("shape", [(64, 64, 64), (2, 64, 64, 3)])
def test_o03_a_layout_that_cannot_be_told_is_refused_with_the_shape(shape: tuple[int, ...]) -> None:
    space = spaces.Box(0, 255, shape, np.uint8)
    env = replicate(lambda: Fixed(space, np.zeros(shape, np.uint8)), 2, backend="sync")
    with pytest.raises(ValueError, match="'policy' has the shape") as caught:
        make_runner(env)
    assert str(shape) in str(caught.value)


# ------------------------------------------------------------------ O05: shapes


@pytest.mark.parametrize("name", ["rewards", "terminated", "truncated", "valid", "final_known"])
def test_o05_a_column_is_flattened_and_never_broadcast(name: str) -> None:
    class Column(TargetEnv):
        def step(self, actions: Tensor) -> Step:
            step = super().step(actions)
            step.valid = step.final_known = torch.ones(N, dtype=torch.bool)
            setattr(step, name, getattr(step, name).unsqueeze(-1))
            return step

    def rewards(env: Any) -> Tensor:
        runner = make_runner(env, env={"reward_scaling": True})
        runner.learn(1)
        return runner.alg.storage.rewards.clone()

    assert torch.equal(rewards(Column(N)), rewards(TargetEnv(N)))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *((name, s) for name in ("rewards", "dones", "time_outs") for s in ((N + 1,), (N, 2), (1,))),
        *((name, s) for name in ("rewards", "dones") for s in ((1, N), ())),
    ],
)
def test_o05_rsl_rls_form_takes_columns_and_refuses_everything_else(name: str, shape: Any) -> None:
    runner = make_runner(TargetEnv(N))
    ppo, obs = runner.alg, TargetEnv(N).reset(seed=1)

    def step(**changed: Tensor) -> None:
        given = {"rewards": torch.arange(4.0), "dones": torch.ones(N), "time_outs": torch.ones(N), **changed}
        ppo.act(obs)
        ppo.process_env_step(obs, given["rewards"], given["dones"], {"time_outs": given["time_outs"]})

    step(**{name: torch.arange(4.0).unsqueeze(-1)})
    assert ppo.storage.rewards[0].tolist() == [0.0, 1.0, 2.0, 3.0]
    with pytest.raises(EnvContractError) as caught:
        step(**{name: torch.ones(shape)})
    assert str(tuple(shape)) in str(caught.value)
    assert "(4,)" in str(caught.value)


@pytest.mark.parametrize("shape", [(N, 4), (1, 3), (3,), (N + 1, 3)])
def test_o05_observations_of_another_shape_are_refused_with_both(shape: tuple[int, ...]) -> None:
    class Wrong(TargetEnv):
        def step(self, actions: Tensor) -> Step:
            step = super().step(actions)
            step.observations = {"policy": torch.zeros(shape)}
            return step

    with pytest.raises(EnvContractError) as caught:
        make_runner(Wrong(N)).learn(1)
    assert str(shape) in str(caught.value)
    assert "(4, 3)" in str(caught.value)


def test_o05_a_single_environment_that_gives_another_shape_is_named_at_its_reset() -> None:
    env = replicate(lambda: Fixed(spaces.Box(-1, 1, (3,)), np.zeros((3, 1))), 2, backend="sync")
    with pytest.raises(EnvContractError, match=r"environment 0: reset\(\).*\(3, 1\); its space says \(3,\)"):
        env.reset(seed=1)


# ------------------------------------------------------------------ O06: infos of all kinds

LOGS: list[tuple[Any, dict[str, float]]] = [
    ({}, {}),
    (None, {}),
    ({"log": None}, {}),
    (
        {"log": {"a": torch.tensor(1.0), "b": 2, "c": "x", "d": torch.tensor([1.0, 2.0])}},
        {"a": 1, "b": 2, "d": 1.5},
    ),
    ({"episode": {"r": 1.0, "l": 3}}, {"r": 1, "l": 3}),
    ({"log": {3: 1.0, "deep": {"er": 1.0}}}, {"3": 1}),
    ({"log": "text"}, {}),
    ({"log": {"a": np.float32(1), "b": np.int64(2), "c": True}}, {"a": 1, "b": 2, "c": 1}),
    ({"a": "x", "b": None, "c": object(), 4: [1, [2]], "final_info": {"x": 1}}, {}),
]


@pytest.mark.parametrize(("info", "logged"), LOGS, ids=[str(i) for i in range(len(LOGS))])
@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_o06_any_info_trains_numbers_are_logged_and_the_rest_warns_at_most_once(
    info: Any, logged: dict[str, float], mode: AutoresetMode
) -> None:
    makers = [lambda: Fixed(spaces.Box(-1, 1, (3,)), np.zeros(3), info=info)] * 2
    runner = make_runner(GymnasiumVecEnv(SyncVectorEnv(makers, autoreset_mode=mode)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert runner.learn(2) == "finished"
    assert len(caught) <= 1
    found = {k.removeprefix("Episode/"): v for k, v in runner.metrics.items() if k.startswith("Episode/")}
    assert found == pytest.approx(logged)


@pytest.mark.parametrize(
    ("log", "logged"),
    [
        ({"a": 1, "b": torch.tensor([1.0, 3.0, 1.0, 3.0]), "c": "x"}, {"a": 1.0, "b": 2.0}),
        ({3: 1.0}, {"3": 1.0}),
        ({"a": float("nan")}, {"a": None}),
        ({"Loss/value": -5.0, "iteration": -5.0, "a": np.ones(4)}, {"a": 1.0}),
    ],
)
@pytest.mark.filterwarnings("ignore:step")
def test_o06_what_a_vec_env_logs_never_disturbs_training(log: Any, logged: dict[str, Any]) -> None:
    class Logging(TargetEnv):
        def step(self, actions: Tensor) -> Step:
            step = super().step(actions)
            step.log = log
            return step

    runner, plain = make_runner(Logging(N)), make_runner(TargetEnv(N))
    runner.learn(2)
    plain.learn(2)
    assert {k: v for k, v in runner.metrics.items() if k not in plain.metrics} == logged
    assert runner.metrics["iteration"] == 1
    assert runner.metrics["Loss/value"] == plain.metrics["Loss/value"]


# ------------------------------------------------------------------ O07: a worker that fails

FAILING = """
from surefoot.testing import GymTarget

class Failing(GymTarget):
    count = 0

    def step(self, action):
        self.count += 1
        if self.count == 256 + 69:  # the normalisers' warm-up comes first
            raise ValueError("boom")
        return super().step(action)
"""


def test_o07_the_workers_own_error_is_shown_and_nothing_stays(tmp_path: Path) -> None:
    """In the third rollout of 32 steps: two checkpoints are there by then."""
    (tmp_path / "failing.py").write_text(textwrap.dedent(FAILING))
    settings = ["env.backend=async", "num_steps_per_env=32", "save_interval=1", "eval_episodes=0"]
    sets = [x for key in settings for x in ("--set", key)]
    command = "-m surefoot train failing:Failing --num-envs 4 --iterations 9 --run-dir run --quiet"
    start = time.monotonic()
    done = subprocess.Popen(
        [sys.executable, *command.split(), *sets],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    _, errors = done.communicate(timeout=120)
    assert done.returncode == 1
    (line,) = [x for x in errors.splitlines() if x.startswith("error")]
    assert "ValueError" in line
    assert "boom" in line
    assert "failing.py" in line
    assert time.monotonic() - start < 100
    with pytest.raises(ProcessLookupError):  # the whole group is gone
        os.killpg(done.pid, 0)
    assert (tmp_path / "run" / "checkpoints" / "model_0.pt").exists()
    assert torch.load(tmp_path / "run" / "checkpoints" / "last.pt", weights_only=True)["iteration"] == 1
