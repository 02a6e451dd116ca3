"""EnvPool as a backend: episode ends, seeds, single rows, and what is said where it cannot be used.

`FakePool` does what EnvPool 1.2.5 was seen to do: no seeds in `reset`, only the rows asked for after
a partial reset, and a step of its own for each reset. EnvPool itself is tried where it is installed.
"""

import importlib.machinery
import importlib.util
import sys
import types

import numpy as np
import pytest
import torch
from gymnasium import spaces

import surefoot
from surefoot.envs.check import check_env
from surefoot.errors import ConfigError
from surefoot.training.hooks import Hook
from surefoot.training.on_policy_runner import OnPolicyRunner

IS_INSTALLED = importlib.util.find_spec("envpool") is not None
LIMIT = 6
"""Steps of an episode of the fake; environment 1 ends after 4 for real."""


class FakePool:
    observation_space = spaces.Box(-100, 100, (2,), np.float64)
    action_space = spaces.Box(-1, 1, (1,), np.float64)

    def __init__(self, num_envs, seed):
        self.rng = [np.random.default_rng(s) for s in seed]
        self.elapsed = np.zeros(num_envs, np.int32)
        self.start = np.zeros(num_envs)
        self.ended = np.zeros(num_envs, bool)

    def reset(self, env_id=None):
        rows = np.arange(len(self.rng)) if env_id is None else env_id
        self._begin(rows)
        return self._observations()[rows], self._info(rows)

    def step(self, actions):
        assert actions.dtype == np.float64
        resetting = np.flatnonzero(self.ended)
        self.elapsed += 1
        self._begin(resetting)
        rewards = np.where(self.elapsed > 0, actions[:, 0], 0.0).astype(np.float32)
        truncated = self.elapsed >= LIMIT
        terminated = (self.elapsed >= 4) & (np.arange(len(self.rng)) == 1)
        self.ended = truncated | terminated
        return self._observations(), rewards, terminated, truncated, self._info(np.arange(len(self.rng)))

    def _begin(self, rows):
        for i in rows:
            self.start[i] = self.rng[i].uniform(-1, 1)
        self.elapsed[rows] = 0
        self.ended[rows] = False

    def _observations(self):
        return np.stack([self.elapsed, self.start], axis=1).astype(np.float64)

    def _info(self, rows):
        ids = rows.astype(np.int32)
        return {"env_id": ids, "players": {"env_id": ids}, "elapsed_step": self.elapsed[rows]}


def make_spec(_, num_envs, max_episode_steps=LIMIT):
    assert num_envs > 0
    return types.SimpleNamespace(
        gymnasium_observation_space=FakePool.observation_space,
        gymnasium_action_space=FakePool.action_space,
        config=types.SimpleNamespace(max_episode_steps=max_episode_steps),
    )


def make_pool(_, env_type, num_envs, seed=None):
    assert env_type == "gymnasium"
    return FakePool(num_envs, range(num_envs) if seed is None else seed)


@pytest.fixture(autouse=True)
def _fake(monkeypatch):
    module = types.ModuleType("envpool")
    module.__spec__ = importlib.machinery.ModuleSpec("envpool", None)
    module.make, module.make_spec = make_pool, make_spec
    module.list_all_envs = lambda: ["Counting-v7", "Pendulum-v1"]
    monkeypatch.setitem(sys.modules, "envpool", module)


def make(num_envs=3, seed=5, **kwargs):
    return surefoot.make("Pendulum-v1", num_envs, backend="envpool", seed=seed, kwargs=kwargs)


def test_the_step_after_an_end_only_resets_and_is_no_row_to_learn_from():
    env = make()
    env.reset()
    steps = [env.step(torch.full((3, 1), 0.5)) for _ in range(6)]
    assert [bool(s.terminated[1]) for s in steps] == [False, False, False, True, False, False]
    assert [bool(s.truncated[0]) for s in steps] == [False] * 5 + [True]
    assert [s.valid is None or bool(s.valid[1]) for s in steps] == [True] * 4 + [False, True]
    assert float(steps[3].final_observations["policy"][1, 0]) == 4.0
    assert float(steps[4].observations["policy"][1, 0]) == 0.0
    assert steps[4].rewards.tolist() == [0.5, 0.0, 0.5]


def test_the_environment_keeps_the_contract():
    env = make()
    report = check_env(env)
    assert report.is_ok, str(report)
    assert not any("seed" in note for note in report.notes)
    assert env.max_episode_length == LIMIT


def test_each_environment_has_its_own_seed_and_one_seed_gives_one_sequence():
    starts = [make(seed=seed).reset()["policy"][:, 1].tolist() for seed in (5, 5, 6)]
    assert starts[0] == starts[1]
    assert len({*starts[0], *starts[2]}) == 6


def test_a_reset_without_a_seed_goes_on_with_the_generators():
    env = make()
    starts = [env.reset()["policy"][:, 1], env.reset()["policy"][:, 1]]
    assert not torch.equal(*starts)


def test_single_rows_are_reset_and_the_others_stay():
    env = make()
    env.reset()
    for _ in range(4):
        before = env.step(torch.zeros(3, 1)).observations["policy"]
    after = env.reset(mask=torch.tensor([False, True, True]))["policy"]
    assert after[:, 0].tolist() == [4.0, 0.0, 0.0]
    assert torch.equal(after[0], before[0])
    step = env.step(torch.zeros(3, 1))
    assert step.valid is None  # the end of row 1 was answered by the reset
    assert step.observations["policy"][:, 0].tolist() == [5.0, 1.0, 1.0]


@pytest.mark.filterwarnings("ignore:a rollout of 10 steps")
def test_training_leaves_out_the_rows_that_only_reset():
    rows = []

    class Look(Hook):
        def after_iteration(self, runner, metrics):
            rows.append(int((~runner.alg.storage.valid).sum()))
            return False

    config = {
        "num_steps_per_env": 10,
        "actor": {"hidden_dims": [4]},
        "critic": {"hidden_dims": [4]},
        "algorithm": {"num_mini_batches": 1, "num_learning_epochs": 1},
        "eval_episodes": 0,
    }
    runner = OnPolicyRunner(make(), {**config, "num_envs": 3}, quiet=True)
    runner.hooks.append(Look())
    runner.learn(1)
    # rows 0 and 2 end at step 6, row 1 at 4 and, after a reset, at 9; each is followed by a reset
    assert rows == [4]


def test_an_id_that_only_envpool_has_needs_no_backend():
    env = surefoot.make("Counting-v7", 2)
    assert env.reset()["policy"].shape == (2, 2)
    with pytest.raises(ConfigError, match="unknown task 'Countin-v7'"):
        surefoot.make("Countin-v7", 2)


@pytest.mark.parametrize(
    ("task", "kwargs", "said"),
    [
        ("Acrobot-v1", {}, "EnvPool has no environment 'Acrobot-v1'"),
        ("Pendulum-v1", {"seed": 3}, r"env\.kwargs\.seed: Surefoot sets it"),
        ("Pendulum-v1", {"nonsense": 3}, r"cannot make 'Pendulum-v1' with env\.kwargs.*nonsense"),
        ("go1-walk", {}, "'go1-walk' is a factory"),
    ],
)
def test_what_envpool_cannot_do_is_one_line(task, kwargs, said):
    with pytest.raises(ConfigError, match=said) as caught:
        surefoot.make(task, 2, backend="envpool", kwargs=kwargs)
    assert "\n" not in str(caught.value)


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", {}.get)
    with pytest.raises(ConfigError, match=r"pip install 'surefoot\[envs\]'"):
        surefoot.make("Pendulum-v1", 2, backend="envpool")


def test_a_package_that_cannot_be_imported_is_one_line(monkeypatch):
    def fail(_):
        raise FileNotFoundError("could not find tasks.json\ntried everywhere")

    monkeypatch.setattr("surefoot.envs.envpool.importlib.import_module", fail)
    with pytest.raises(
        ConfigError, match=r"EnvPool cannot be imported: FileNotFoundError: could not find tasks\.json$"
    ):
        surefoot.make("Pendulum-v1", 2, backend="envpool")


@pytest.mark.skipif(not IS_INSTALLED, reason="needs EnvPool")
def test_the_real_pool_keeps_the_contract_and_counts_episodes_as_gymnasium_does(monkeypatch):
    monkeypatch.delitem(sys.modules, "envpool")
    env = surefoot.make("CartPole-v1", 4, backend="envpool", seed=1)
    report = check_env(env)
    assert report.is_ok, str(report)
    # pushed to one side all the while, a pole falls after 8 to 11 steps, wherever it began
    lengths = []
    for backend in ("envpool", "sync"):
        policy = torch.ones(4, dtype=torch.int64)
        env = surefoot.make("CartPole-v1", 4, backend=backend, seed=1)
        result = surefoot.evaluate(lambda _, policy=policy: policy, env, episodes=100, seed=3)
        lengths.append(result["mean_episode_length"])
        assert result["mean_reward"] == result["mean_episode_length"]
        env.close()
    assert lengths[0] == pytest.approx(lengths[1], abs=0.5)
