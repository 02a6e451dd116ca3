"""From a TASK to environments and their preset."""

import sys
import textwrap

import gymnasium
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from surefoot.envs.check import check_env
from surefoot.errors import ConfigError
from surefoot.tasks import list_tasks, make, preset
from surefoot.tasks.resolve import BUNDLED
from surefoot.testing import TargetEnv


def one_line(caught):
    text = str(caught.value)
    assert "\n" not in text
    return text


# --- Gymnasium ids ---


@pytest.mark.parametrize("backend", ["auto", "sync", "async"])
@pytest.mark.parametrize("task", ["CartPole-v1", "Pendulum-v1"])
def test_a_gymnasium_id_becomes_environments_that_keep_the_contract(task, backend):
    env = make(task, 3, seed=4, backend=backend)
    assert env.num_envs == 3
    assert env.max_episode_length == {"CartPole-v1": 500, "Pendulum-v1": 200}[task]
    assert check_env(env, num_steps=20).is_ok
    env.close()


def test_auto_takes_the_vectorised_implementation_only_without_arguments():
    kinds = [
        type(make("CartPole-v1", 2)._envs).__name__,
        type(make("CartPole-v1", 2, kwargs={"sutton_barto_reward": True})._envs).__name__,
        type(make("Acrobot-v1", 2)._envs).__name__,
    ]
    assert kinds == ["CartPoleVectorEnv", "SyncVectorEnv", "SyncVectorEnv"]


def test_the_vectorised_cartpole_is_the_same_task_as_the_single_one():
    # From the same states, the same actions lead to the same states, rewards and ends.
    fast, slow = make("CartPole-v1", 4), make("CartPole-v1", 4, backend="sync")
    slow.reset(seed=1)
    fast.reset(seed=1)
    for inner, column in zip(slow._envs.envs, fast._envs.state.T, strict=True):
        inner.unwrapped.state = tuple(column)
    alive = torch.ones(4, dtype=torch.bool)
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        actions = torch.randint(2, (4,), generator=generator)
        a, b = fast.step(actions), slow.step(actions)
        assert torch.equal(a.rewards[alive], b.rewards[alive])
        assert torch.equal(a.terminated[alive], b.terminated[alive])
        alive &= ~a.terminated
        torch.testing.assert_close(a.observations["policy"][alive], b.observations["policy"][alive])
    assert not alive.any()


def test_keyword_arguments_reach_the_environment():
    env = make("Pendulum-v1", 1, kwargs={"g": 1.5, "max_episode_steps": 30}, backend="sync")
    assert env._envs.envs[0].unwrapped.g == 1.5
    assert env.max_episode_length == 30
    rendered = make("Pendulum-v1", 1, kwargs={"render_mode": "rgb_array"})
    assert hasattr(rendered, "render")


def test_the_seed_of_make_serves_the_first_reset():
    first = [make("Pendulum-v1", 2, seed=s).reset()["policy"] for s in (3, 3, 4)]
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first[0], first[2])


# --- errors ---


@pytest.mark.parametrize(
    ("task", "near"),
    [
        ("CartPol-v1", "CartPole-v1"),
        ("CartPole", "CartPole-v1"),
        ("go1walk", "go1-walk"),
        ("halfcheetah-v5", "HalfCheetah-v5"),
        ("pendulum-v1", "Pendulum-v1"),
    ],
)
def test_an_unknown_task_is_answered_with_the_nearest_name(task, near):
    for function in (lambda: make(task, 2), lambda: preset(task)):
        with pytest.raises(ConfigError) as caught:
            function()
        assert f"unknown task '{task}'. Did you mean '{near}'?" in one_line(caught)


def test_a_task_that_resembles_nothing_says_what_a_task_is():
    with pytest.raises(ConfigError, match=r"unknown task 'xyzzy'\. A task is one of"):
        make("xyzzy", 2)


@pytest.mark.parametrize("num_envs", [0, -3, 2.0, True, "8"])
def test_the_number_of_environments_must_be_a_positive_integer(num_envs):
    with pytest.raises(ConfigError, match=r"num_envs is .*at least 1"):
        make("CartPole-v1", num_envs)


def test_an_unknown_backend_is_refused():
    with pytest.raises(ConfigError, match=r"env\.backend is 'fast'; expected auto, sync, async or envpool"):
        make("CartPole-v1", 2, backend="fast")


def test_an_unknown_keyword_argument_is_answered_with_the_nearest_name():
    with pytest.raises(ConfigError) as caught:
        make("CartPole-v1", 2, kwargs={"sutton_barto": True})
    assert "env.kwargs.sutton_barto" in one_line(caught)
    assert "Did you mean 'sutton_barto_reward'?" in one_line(caught)


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "Box2D", None)
    monkeypatch.delitem(sys.modules, "gymnasium.envs.box2d", raising=False)
    with pytest.raises(ConfigError) as caught:
        make("LunarLander-v3", 2)
    assert "LunarLander-v3" in one_line(caught)
    assert "pip install" in one_line(caught)
    assert "box2d" in one_line(caught)


# --- factories ---


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current directory with a module of factories in it."""
    (tmp_path / "my_tasks.py").write_text(
        textwrap.dedent(
            """
            import gymnasium
            from gymnasium.vector import SyncVectorEnv
            from surefoot.testing import DiscreteTargetEnv, GymTarget, TargetEnv

            def single(length=10):
                return GymTarget(length)

            def vector(num_envs, length=10):
                return SyncVectorEnv([lambda: GymTarget(length)] * num_envs)

            def batch(num_envs, seed, evaluation, device, scale=1.0):
                env = TargetEnv(num_envs, seed=seed)
                env.seen = (seed, evaluation, str(device), scale)
                return env

            def wrong_count(num_envs):
                return TargetEnv(num_envs + 1)

            def wrong_kind(num_envs):
                return GymTarget()

            def nothing(num_envs):
                return None

            def not_an_env():
                return 3

            def needs(thing):
                return GymTarget()

            class OwnEnv(GymTarget):
                pass

            class OwnVector(SyncVectorEnv):
                def __init__(self, num_envs=2):
                    super().__init__([GymTarget] * num_envs)

            number = 7
            """
        )
    )
    (tmp_path / "needs_package.py").write_text("import a_package_that_is_not_there\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != ""])
    monkeypatch.delitem(sys.modules, "my_tasks", raising=False)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("task", ["single", "vector", "batch", "OwnEnv", "OwnVector"])
def test_a_factory_in_the_current_directory_makes_a_task(task):
    env = make(f"my_tasks:{task}", 3)
    assert env.num_envs == 3
    assert check_env(env).is_ok
    env.close()


@pytest.mark.usefixtures("here")
def test_a_single_environment_is_replicated_with_its_arguments_in_either_backend():
    for backend, kind in (("sync", SyncVectorEnv), ("async", AsyncVectorEnv)):
        env = make("my_tasks:single", 2, backend=backend, kwargs={"length": 4})
        assert type(env._envs) is kind
        env.reset()
        assert [env.step(torch.zeros(2, 1)).truncated.all().item() for _ in range(4)] == [False] * 3 + [True]
        env.close()


@pytest.mark.usefixtures("here")
def test_a_factory_is_given_seed_evaluation_and_device_where_it_asks():
    env = make("my_tasks:batch", 2, seed=9, evaluation=True, kwargs={"scale": 0.5})
    assert env.seen == (9, True, "cpu", 0.5)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("task", "text"),
    [
        ("my_task:single", r"no module 'my_task'.*Did you mean 'my_tasks'"),
        ("my_tasks:singel", r"has no 'singel'.*Did you mean 'single'"),
        ("my_tasks:number", r"is not callable: 'number'"),
        ("my_tasks:wrong_count", r"asked for 2 environments and returned 3"),
        ("my_tasks:wrong_kind", r"takes num_envs but returned a single GymTarget"),
        ("my_tasks:nothing", r"returned NoneType, which lacks num_envs"),
        ("my_tasks:needs", r"needs env\.kwargs\.thing"),
        ("needs_package:make", r"needs the package 'a_package_that_is_not_there'.*pip install"),
    ],
)
def test_a_factory_that_cannot_be_used_is_one_clear_line(task, text):
    with pytest.raises(ConfigError, match=text) as caught:
        make(task, 2)
    one_line(caught)


@pytest.mark.usefixtures("here")
def test_an_unknown_argument_of_a_factory_is_named():
    with pytest.raises(ConfigError, match=r"env\.kwargs\.lenght.*Did you mean 'length'"):
        make("my_tasks:single", 2, kwargs={"lenght": 3})
    with pytest.raises(ConfigError, match=r"env\.kwargs\.scal.*Did you mean 'scale'"):
        make("my_tasks:batch", 2, kwargs={"scal": 3})


# --- presets ---


@pytest.mark.usefixtures("here")
def test_presets_are_own_general_or_empty():
    general = preset("Acrobot-v1")
    assert general["num_envs"] * general["num_steps_per_env"] == 2048
    assert preset("my_tasks:single") == preset("my_tasks:OwnVector") == general
    assert preset("my_tasks:batch") == preset("surefoot.testing:TargetEnv") == {}
    assert preset("CartPole-v1") != general


def test_every_preset_is_a_valid_configuration():
    from surefoot.config import build_config

    for task in ("Acrobot-v1", *(t for t in list_tasks() if t not in BUNDLED)):
        build_config(preset(task))


@pytest.mark.parametrize(("task", "budget"), [("CartPole-v1", 100_000), ("Pendulum-v1", 200_000)])
def test_the_tuned_presets_stay_within_their_budget_of_steps(task, budget):
    config = preset(task)
    num_envs = config["num_envs"]
    warm_up = -(-1024 // num_envs) * num_envs
    steps = config["max_iterations"] * config["num_steps_per_env"] * num_envs + warm_up
    assert 0.97 * budget < steps <= budget


def test_the_list_of_tasks_names_the_bundled_ones_and_the_presets():
    tasks = list_tasks()
    assert {"go1-walk", "CartPole-v1", "Pendulum-v1"} <= set(tasks)
    assert all(about and "\n" not in about for about in tasks.values())


def test_gymnasium_is_what_is_asked_for_ids_with_a_module():
    with pytest.raises(ConfigError, match="no module 'no_such_module'"):
        make("no_such_module:Env-v0", 1)
    gymnasium.register("SurefootToy-v0", entry_point="surefoot.testing:GymTarget")
    try:
        assert make("surefoot.testing:SurefootToy-v0", 2).num_envs == 2
        assert isinstance(make("surefoot.testing:TargetEnv", 2), TargetEnv)
    finally:
        del gymnasium.registry["SurefootToy-v0"]
