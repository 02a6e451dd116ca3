"""The adapter of Gymnasium's vector environments."""

import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from surefoot.envs.gymnasium import GymnasiumVecEnv
from surefoot.envs.replicate import replicate
from surefoot.errors import EnvContractError
from surefoot.testing import GymConstant, GymMasked, GymTarget, constant_gymnasium

MODES = list(AutoresetMode)


def sync(factory, num_envs=2, mode=AutoresetMode.SAME_STEP, **kwargs):
    return GymnasiumVecEnv(SyncVectorEnv([factory] * num_envs, autoreset_mode=mode), **kwargs)


class Recorder(gymnasium.Env):
    """Keeps the actions it is given, then spoils its array."""

    def __init__(self, action_space, observation_space=None, observation=None, reward=0.0):
        self.action_space = action_space
        self.observation_space = observation_space or spaces.Box(-1, 1, (1,))
        self.observation = self.observation_space.sample() if observation is None else observation
        self.reward, self.actions = reward, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation, {}

    def step(self, action):
        self.actions.append(np.array(action))
        if isinstance(action, np.ndarray) and action.flags.writeable:
            action *= 0
        return self.observation, self.reward, False, False, {}


# --- the end of an episode ---


def transitions(env, num_steps):
    """Per environment, its valid transitions: observation, reward, terminated, truncated, what followed."""
    last = env.reset(seed=3)["policy"].clone()
    found = [[] for _ in range(env.num_envs)]
    for _ in range(num_steps):
        step = env.step(torch.zeros(env.num_envs, dtype=torch.int64))
        for i in range(env.num_envs):
            if step.valid is not None and not step.valid[i]:
                assert not step.terminated[i]
                assert not step.truncated[i]
                assert step.rewards[i] == 0
                continue
            ended = bool(step.terminated[i] or step.truncated[i])
            after = step.observations["policy"][i]
            if ended:
                assert step.final_observations is not None
                assert step.final_known is None or step.final_known[i]
                after = step.final_observations["policy"][i]
            flags = (float(step.rewards[i]), bool(step.terminated[i]), bool(step.truncated[i]))
            found[i].append((last[i].tolist(), *flags, after.tolist()))
        last = step.observations["policy"].clone()
    return found


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.name)
def test_every_autoreset_mode_yields_the_same_valid_transitions(mode):
    # Environment i runs episodes of 3 + i steps; it observes [episode, step].
    found = transitions(constant_gymnasium(mode, num_envs=2, episode_length=3), 40)
    for i, rows in enumerate(found):
        length = 3 + i
        for k, row in enumerate(rows[:24]):
            episode, at = divmod(k, length)
            expected = ([episode, at], 1.0, False, at + 1 == length, [episode, at + 1])
            assert row == expected, f"environment {i}, transition {k}"


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.name)
@pytest.mark.parametrize("ends", ["truncated", "terminated"])
def test_flags_tell_the_time_limit_from_the_end_of_the_task(mode, ends):
    env = sync(lambda: GymConstant(2, ends=ends), mode=mode)
    env.reset(seed=0)
    env.step(torch.zeros(2, dtype=torch.int64))
    step = env.step(torch.zeros(2, dtype=torch.int64))
    assert step.terminated.tolist() == [ends == "terminated"] * 2
    assert step.truncated.tolist() == [ends == "truncated"] * 2


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_an_environment_with_one_observation_buffer_keeps_its_final_observation(backend):
    env = replicate(lambda: GymConstant(3, reuse_buffer=True), 2, backend=backend)
    env.reset(seed=0)
    for _ in range(3):
        step = env.step(torch.zeros(2, dtype=torch.int64))
    assert step.final_observations["policy"].tolist() == [[0, 3], [0, 3]]
    assert step.observations["policy"].tolist() == [[1, 0], [1, 0]]
    env.close()


def test_returned_tensors_are_not_overwritten_by_the_next_step():
    env = replicate(lambda: GymConstant(9, reuse_buffer=True), 2, backend="sync")
    first = env.reset(seed=0)["policy"]
    step = env.step(torch.zeros(2, dtype=torch.int64))
    env.step(torch.zeros(2, dtype=torch.int64))
    assert first.tolist() == [[0, 0], [0, 0]]
    assert step.observations["policy"].tolist() == [[0, 1], [0, 1]]


class Scripted(VectorEnv):
    """A SAME_STEP vector environment whose info is written by the test."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, infos, space=None, ended=(True, False)):
        self.num_envs = 2
        self.single_observation_space = space or spaces.Box(-9, 9, (1,))
        self.single_action_space = spaces.Box(-1, 1, (1,))
        self.infos, self.ended = list(infos), np.array(ended)
        self.observation_value = self._batch(self.single_observation_space)

    def _batch(self, space):
        if isinstance(space, spaces.Dict):
            return {k: self._batch(s) for k, s in space.spaces.items()}
        return np.zeros((2, *space.shape))

    def reset(self, *, seed=None, options=None):
        return self.observation_value, {}

    def step(self, actions):
        return self.observation_value, np.zeros(2), np.zeros(2, bool), self.ended.copy(), self.infos.pop(0)


def scripted_step(info, **kwargs):
    env = GymnasiumVecEnv(Scripted([info], **kwargs))
    env.reset()
    return env.step(torch.zeros(2, 1))


def test_same_step_without_final_observation_says_that_it_is_not_known():
    step = scripted_step({})
    assert step.final_observations is None
    assert step.final_known.tolist() == [False, False]


def test_same_step_reads_the_mask_and_the_holes_of_final_obs():
    both = np.array([np.array([5.0]), None], dtype=object)
    step = scripted_step({"final_obs": both, "_final_obs": np.array([True, False])}, ended=(True, True))
    assert step.final_known.tolist() == [True, False]
    assert step.final_observations["policy"][0].tolist() == [5.0]
    masked_out = scripted_step({"final_obs": both, "_final_obs": np.array([False, False])})
    assert masked_out.final_known.tolist() == [False, False]


NESTED = spaces.Dict(
    {"arm": spaces.Dict({"q": spaces.Box(-9, 9, (2,))}), "cam": spaces.Box(0, 255, (2, 2, 3), np.uint8)}
)


@pytest.mark.parametrize("layout", ["array of dicts", "dict of object arrays", "dict of arrays"])
def test_final_observations_of_nested_dicts_are_found_in_any_layout(layout):
    q, cam = np.array([1.0, 2.0]), np.full((2, 2, 3), 200, np.uint8)
    if layout == "array of dicts":
        final = np.array([{"arm": {"q": q}, "cam": cam}, None], dtype=object)
    elif layout == "dict of object arrays":
        final = {
            "arm": {"q": np.array([None, None], dtype=object)},
            "cam": np.array([None, None], dtype=object),
        }
        final["arm"]["q"][0], final["cam"][0] = q, cam
    else:
        final = {"arm": {"q": np.stack([q, q])}, "cam": np.stack([cam, cam])}
    step = scripted_step({"final_obs": final, "_final_obs": np.array([True, False])}, space=NESTED)
    assert step.final_known.tolist() == [True, False]
    assert step.final_observations["arm.q"][0].tolist() == [1.0, 2.0]
    assert step.final_observations["cam"].dtype == torch.uint8
    assert int(step.final_observations["cam"][0].min()) == 200


def test_a_vector_environment_without_autoreset_metadata_is_refused():
    envs = SyncVectorEnv([GymConstant])
    envs.metadata = {}
    with pytest.raises(EnvContractError, match=r"autoreset_mode.*None.*NEXT_STEP"):
        GymnasiumVecEnv(envs)


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.name)
def test_single_environments_can_be_reset(mode):
    env = constant_gymnasium(mode, num_envs=3, episode_length=9)
    env.reset(seed=0)
    env.step(torch.zeros(3, dtype=torch.int64))
    after = env.reset(mask=torch.tensor([False, True, False]))["policy"]
    assert after.tolist() == [[0, 1], [1, 0], [0, 1]]
    assert env.reset(mask=torch.zeros(3))["policy"].tolist() == after.tolist()
    step = env.step(torch.zeros(3, dtype=torch.int64))
    assert step.observations["policy"].tolist() == [[0, 2], [1, 1], [0, 2]]
    assert step.valid is None


# --- actions ---


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_actions_arrive_inside_the_box_and_in_its_dtype(dtype):
    low, high = np.array([-1, 0.1], dtype), np.array([1, 0.3], dtype)
    env = sync(lambda: Recorder(spaces.Box(low, high, dtype=dtype)))
    env.reset()
    # 0.3 in float32 is above 0.3 in float64; a careless policy may be far outside.
    for action in ([-1.0, 0.3], [5.0, -5.0], [torch.inf, 0.1]):
        env.step(torch.tensor([action, action]))
    for inner in env._envs.envs:
        for action in inner.actions:
            assert action.dtype == dtype
            assert inner.action_space.contains(action)


def test_an_environment_that_changes_its_action_does_not_change_ours():
    env = sync(lambda: Recorder(spaces.Box(-1, 1, (2,))))
    env.reset()
    actions = torch.full((2, 2), 0.5)
    env.step(actions)
    assert actions.tolist() == [[0.5, 0.5], [0.5, 0.5]]


@pytest.mark.parametrize(
    ("space", "action"),
    [
        (spaces.Discrete(3, start=5), [5, 7]),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), [[[0, 1], [2, 3]], [[1, 2], [3, 4]]]),
        (spaces.MultiBinary((2, 3)), [[[0, 1, 0], [1, 1, 1]]] * 2),
        (spaces.Box(-np.inf, np.inf, (1,)), [[1e6], [-1e6]]),
        (spaces.Box(np.array([0.0], np.float32), np.array([np.inf], np.float32)), [[3.0], [1e6]]),
    ],
    ids=["Discrete", "MultiDiscrete", "MultiBinary", "unbounded", "half-bounded"],
)
def test_every_action_space_gets_its_own_shape(space, action):
    env = sync(lambda: Recorder(space))
    env.reset()
    env.step(torch.tensor(action))
    for i, inner in enumerate(env._envs.envs):
        assert space.contains(space.dtype.type(inner.actions[0]) if space.shape == () else inner.actions[0])
        np.testing.assert_array_equal(inner.actions[0], np.asarray(action)[i])


def test_actions_of_a_wrong_shape_are_refused_with_both_shapes():
    env = sync(lambda: Recorder(spaces.Box(-1, 1, (2,))))
    env.reset()
    with pytest.raises(EnvContractError, match=r"\(2, 3\); expected \(2, 2\)"):
        env.step(torch.zeros(2, 3))


def test_tuple_and_dict_action_spaces_are_refused_by_name():
    with pytest.raises(EnvContractError, match="action space is Tuple"):
        sync(lambda: Recorder(spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)])))


# --- observations and rewards ---


@pytest.mark.parametrize(
    ("space", "value", "dtype"),
    [
        (spaces.Box(-9, 9, (2,), np.float64), np.array([1.5, 2.5]), torch.float32),
        (spaces.Box(-9, 9, (2,), np.int64), np.array([1, 2]), torch.float32),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([1, 2], np.uint8), torch.float32),
        (spaces.Box(0, 1, (2,), bool), np.array([True, False]), torch.float32),
        (spaces.MultiBinary(2), np.array([1, 0], np.int8), torch.float32),
        (spaces.Box(0, 255, (4, 4, 3), np.uint8), np.full((4, 4, 3), 7, np.uint8), torch.uint8),
        (spaces.Discrete(3, start=2), np.int64(4), torch.int64),
        (spaces.MultiDiscrete([3, 4]), np.array([1, 3]), torch.int64),
        (spaces.Box(-9, 9, ()), np.float32(3), torch.float32),
    ],
    ids=[
        "float64",
        "int64",
        "uint8",
        "bool",
        "MultiBinary",
        "image",
        "Discrete",
        "MultiDiscrete",
        "scalar Box",
    ],
)
def test_observations_are_cast_once_at_the_border(space, value, dtype):
    env = sync(lambda: Recorder(spaces.Box(-1, 1, (1,)), space, value, reward=np.float64(0.1)))
    step_from = [env.reset()["policy"]]
    step = env.step(torch.zeros(2, 1))
    step_from.append(step.observations["policy"])
    for tensor in step_from:
        assert tensor.dtype == dtype
        assert tensor.shape == (2, *space.shape)
        np.testing.assert_array_equal(tensor[0].numpy(), value)
    assert step.rewards.dtype == torch.float32
    assert step.terminated.dtype == step.truncated.dtype == torch.bool


def test_integer_rewards_become_float32():
    env = sync(lambda: Recorder(spaces.Box(-1, 1, (1,)), reward=3))
    env.reset()
    rewards = env.step(torch.zeros(2, 1)).rewards
    assert rewards.dtype == torch.float32
    assert rewards.tolist() == [3.0, 3.0]


def test_nested_dicts_become_groups_with_dotted_names():
    value = {"arm": {"q": np.ones(2, np.float32)}, "cam": np.zeros((2, 2, 3), np.uint8)}
    env = sync(lambda: Recorder(spaces.Box(-1, 1, (1,)), NESTED, value))
    assert set(env.observation_spaces) == {"arm.q", "cam"}
    observations = env.reset()
    assert observations["arm.q"].tolist() == [[1, 1], [1, 1]]
    assert observations["cam"].shape == (2, 2, 2, 3)


@pytest.mark.parametrize(
    ("space", "kind"),
    [
        (spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (1,))]), "Tuple"),
        (spaces.Text(4), "Text"),
        (spaces.Sequence(spaces.Discrete(2)), "Sequence"),
        (spaces.Dict({"word": spaces.Text(4)}), "'word' is Text"),
    ],
)
def test_spaces_without_a_tensor_are_refused_by_name_and_with_a_way_out(space, kind):
    with pytest.raises(
        EnvContractError, match=f"{kind}.*expected Box.*[Ww]rap|{kind}.*expected Box.*Dict|{kind}.*with gym"
    ):
        sync(lambda: Recorder(spaces.Box(-1, 1, (1,)), space))


def test_the_action_mask_of_the_info_is_a_group_that_is_right_at_each_step():
    env = sync(GymMasked, num_envs=3)
    assert env.observation_spaces["action_mask"].shape == (4,)
    mask = env.reset(seed=1)["action_mask"]
    for _ in range(30):  # GymMasked raises if the mask belonged to another step
        step = env.step(mask.argmax(-1))
        mask = step.observations["action_mask"]
        assert mask.shape == (3, 4)
    assert "action_mask" not in sync(GymConstant).observation_spaces


# --- seeds and state ---


def test_environments_have_their_own_seeds_and_episodes_go_on_with_their_generators():
    env = sync(GymTarget, num_envs=3)
    goals = env.reset(seed=1)["policy"][:, 0]
    assert len(set(goals.tolist())) == 3
    later = [env.step(torch.zeros(3, 1)) for _ in range(10)][-1].observations["policy"][:, 0]
    assert len({*goals.tolist(), *later.tolist()}) == 6
    assert env.reset(seed=1)["policy"][:, 0].tolist() == goals.tolist()
    # Runs with neighbouring seeds share no environment.
    assert not {*goals.tolist()} & {*env.reset(seed=2)["policy"][:, 0].tolist()}


def test_the_seed_given_at_construction_serves_the_first_reset_only():
    first, second = (sync(GymTarget, seed=5) for _ in range(2))
    assert torch.equal(first.reset()["policy"], second.reset()["policy"])
    assert not torch.equal(first.reset()["policy"], sync(GymTarget, seed=5).reset()["policy"])


def record(env, num_steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    steps = [env.step(torch.rand(env.num_envs, 1, generator=generator)) for _ in range(num_steps)]
    return [torch.cat([s.observations["policy"], s.rewards.unsqueeze(-1)], -1) for s in steps]


def limited():
    return gymnasium.wrappers.TimeLimit(GymTarget(episode_length=1000), 7)


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_a_saved_environment_continues_exactly_also_in_a_new_process(backend, tmp_path):
    env = replicate(limited, 3, backend=backend)
    env.reset(seed=4)
    record(env, 5)
    torch.save(env.state_dict(), tmp_path / "state.pt")
    expected = record(env, 20, seed=1)
    env.close()
    new = replicate(limited, 3, backend=backend)
    new.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for a, b in zip(record(new, 20, seed=1), expected, strict=True):
        assert torch.equal(a, b)
    new.close()


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.name)
def test_a_state_saved_at_the_end_of_an_episode_continues_exactly(mode):
    env = sync(limited, mode=mode)
    env.reset(seed=4)
    record(env, 7)
    state = env.state_dict()
    expected = record(env, 10, seed=1)
    new = sync(limited, mode=mode)
    new.load_state_dict(state)
    for a, b in zip(record(new, 10, seed=1), expected, strict=True):
        assert torch.equal(a, b)


def test_state_dict_exists_only_where_it_tells_the_truth():
    assert hasattr(sync(GymTarget), "state_dict")
    assert hasattr(sync(GymTarget), "load_state_dict")
    assert not hasattr(sync(GymConstant), "state_dict")
    wrapped = gymnasium.wrappers.vector.NormalizeReward(SyncVectorEnv([GymTarget] * 2))
    assert not hasattr(GymnasiumVecEnv(wrapped), "state_dict")


# --- the rest of the contract ---


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_the_time_limit_and_the_step_time_are_found_behind_wrappers(backend):
    def factory():
        env = limited()
        env.unwrapped.step_dt = 0.02
        return env

    env = replicate(factory, 2, backend=backend)
    assert env.max_episode_length == 7
    assert env.step_dt == 0.02
    assert env.mirror is None
    env.close()


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_render_gives_the_first_environment_where_it_can(backend):
    env = replicate(lambda: GymTarget(render_mode="rgb_array"), 2, backend=backend)
    env.reset(seed=0)
    assert env.render().shape == (16, 16, 3)
    env.close()
    assert not hasattr(sync(GymTarget), "render")


INFOS = [
    None,
    {},
    {"log": None},
    {"log": {"a": torch.tensor(1.0), "b": 2, "c": 3.0}},
    {"log": {"d": torch.tensor([1.0, 2.0])}, "unrelated": Ellipsis},
    {"episode": {"r": 1.5, "l": 3}},
    {"log": {"Eval/speed": 0.5}},
]


@pytest.mark.parametrize("info", INFOS, ids=str)
def test_infos_of_every_kind_are_read_without_a_warning(info):
    class WithInfo(GymConstant):
        def step(self, action):
            return *super().step(action)[:4], dict(info or {})

    env = sync(lambda: WithInfo(3))
    env.reset(seed=0)
    logs = [env.step(torch.zeros(2, dtype=torch.int64)).log for _ in range(4)]
    for key, value in ((info or {}).get("log") or {}).items():
        name = key if "/" in key else f"Episode/{key}"
        for log in logs:  # the third step ends the episode: its info is in final_info
            assert torch.as_tensor(log[name]).mean().item() == pytest.approx(
                torch.as_tensor(value).float().mean().item()
            )
    if info == {"log": {"Eval/speed": 0.5}}:
        assert logs[2]["Eval/speed"].tolist() == [0.5, 0.5]


def test_what_is_not_a_number_is_left_out_of_the_log_with_one_warning():
    class WithText(GymConstant):
        def step(self, action):
            return *super().step(action)[:4], {"log": {"good": 1.0, "text": "x", "thing": object()}}

    env = sync(lambda: WithText(9))
    env.reset(seed=0)
    with pytest.warns(UserWarning, match="not numbers"):
        first = env.step(torch.zeros(2, dtype=torch.int64)).log
    second = env.step(torch.zeros(2, dtype=torch.int64)).log  # a second warning would be an error
    assert first == second == {"Episode/good": 1.0}


@pytest.mark.parametrize(
    "info", [None, [{"log": {"a": 1.0}}, {}], {"log": {"a": 1.0}}], ids=["None", "list", "dict"]
)
def test_a_vector_environment_may_return_no_info_a_list_or_plain_numbers(info):
    log = scripted_step(info, ended=(False, False)).log
    assert log == ({} if info is None else {"Episode/a": 1.0})


def test_old_final_infos_in_an_array_of_dicts_are_logged():
    final = np.array([{"episode": {"r": 4.0}}, None], dtype=object)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert scripted_step({"final_info": final}).log == {"Episode/r": 4.0}
