"""RSL-RL's helper functions, its logger and its writers."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import nn

import surefoot.compat.rsl_rl.algorithms as algorithms
from surefoot.compat.rsl_rl import utils
from surefoot.compat.rsl_rl.utils.logger import Logger
from surefoot.compat.rsl_rl.utils.neptune_utils import NeptuneSummaryWriter
from surefoot.compat.rsl_rl.utils.wandb_utils import WandbSummaryWriter
from surefoot.config import SurefootWarning
from surefoot.errors import ConfigError, NonFiniteError

# ------------------------------------------------------------------ names


class Outer:
    class Inner:
        pass

    @staticmethod
    def function() -> None: ...


HERE = __name__


@pytest.mark.parametrize(
    "path", ["rsl_rl.algorithms:PPO", "rsl_rl.algorithms.PPO", "rsl_rl.algorithms.ppo.PPO", "PPO"]
)
def test_a_name_below_rsl_rl_leads_into_the_layer_without_the_door(path):
    assert utils.resolve_callable(path) is algorithms.PPO


@pytest.mark.parametrize("colon", [":", "."])
def test_names_are_found_by_path(colon):
    assert utils.resolve_callable(f"{HERE}{colon}Outer.Inner") is Outer.Inner
    assert utils.resolve_callable(f"{HERE}{colon}Outer.function") is Outer.function
    assert utils.resolve_callable(len) is len
    assert utils.string_to_callable(f"{HERE}{colon}Outer") is Outer


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("no_such_module:Thing", ImportError, "no_such_module"),
        ("no_such_module.Thing", ImportError, "no_such_module"),
        ("rsl_rl.algorithms:Thing", AttributeError, "Thing"),
        ("rsl_rl.algorithms.Thing", AttributeError, "Thing"),
        ("PPPO", ValueError, "Could not resolve 'PPPO'. Did you mean 'PPO'"),
        (None, TypeError, "Expected callable or string"),
        (["PPO"], TypeError, "Expected callable or string"),
    ],
)
def test_what_is_not_found_is_said(name, error, words):
    with pytest.raises(error, match=words):
        utils.resolve_callable(name)


def test_a_module_that_cannot_be_imported_is_not_taken_for_one_that_is_missing(tmp_path, monkeypatch):
    (tmp_path / "needs_more.py").write_text("import no_such_module_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
        utils.resolve_callable("needs_more.Thing")


def test_resolve_class_leaves_the_configuration_as_it_is():
    cfg = {"class_name": f"{HERE}:Outer", "sizes": [1, 2]}
    before = copy.deepcopy(cfg)
    found, arguments = utils.resolve_class(cfg)
    arguments["sizes"].append(3)
    assert found is Outer
    assert cfg == before
    with pytest.raises(ConfigError, match="a class_name is missing beside sizes"):
        utils.resolve_class({"sizes": 1})


def test_c29_every_layer_has_an_activation_of_its_own():
    for name in (
        "elu",
        "selu",
        "relu",
        "lrelu",
        "tanh",
        "sigmoid",
        "softplus",
        "gelu",
        "swish",
        "mish",
        "identity",
    ):
        assert isinstance(utils.resolve_nn_activation(name.upper()), nn.Module)
        assert utils.resolve_nn_activation(name) is not utils.resolve_nn_activation(name)
    assert isinstance(utils.resolve_nn_activation("crelu"), nn.CELU)  # as in every checkpoint that has it
    with pytest.raises(ValueError, match=r"no activation 'relo'.* Did you mean 'relu'"):
        utils.resolve_nn_activation("relo")


def test_optimizers_by_name():
    assert utils.resolve_optimizer("Adam") is torch.optim.Adam
    assert utils.resolve_optimizer("rmsprop") is torch.optim.RMSprop
    with pytest.raises(ValueError, match=r"no optimizer 'adamm'.* Did you mean 'adam'"):
        utils.resolve_optimizer("adamm")


def test_get_param():
    assert [utils.get_param(x, 1) for x in ([1, 2], (3, 4), 5)] == [2, 4, 5]


def test_compile_model(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda model, mode: (model, mode))
    model = nn.Linear(2, 2)
    assert utils.compile_model(model) is model
    assert utils.compile_model(model, "default") == (model, "default")
    with pytest.raises(ValueError, match="'reduce-overhead' records CUDA graphs"):
        utils.compile_model(model, "reduce-overhead")


# ------------------------------------------------------------------ observation sets

OBS = {"policy": 0, "critic": 0, "camera": 0}


def test_observation_sets_are_filled_by_name_and_then_by_policy(capsys):
    given_groups = {"actor": ("policy", "camera")}
    with pytest.warns(SurefootWarning, match="does not say what 'rnd_state' reads: it gets 'policy'"):
        resolved = utils.resolve_obs_groups(OBS, given_groups, ["actor", "critic", "rnd_state"])
    assert resolved == {"actor": ["policy", "camera"], "critic": ["critic"], "rnd_state": ["policy"]}
    assert given_groups == {"actor": ("policy", "camera")}
    assert "rnd_state: policy  (not in obs_groups)" in capsys.readouterr().out


def test_g07_a_critic_that_may_miss_a_group_is_a_warning_one_that_cannot_is_none():
    offered = TensorDict({"policy": torch.zeros(3, 2), "privileged": torch.zeros(3, 4)}, [3])
    with pytest.warns(SurefootWarning, match=r"what 'critic' reads: .* offers 'policy', 'privileged'"):
        utils.resolve_obs_groups(offered, {"actor": ["policy"]}, ["actor", "critic"])
    assert utils.resolve_obs_groups({"policy": 0}, {}, ["actor", "critic"])["critic"] == ["policy"]
    with pytest.raises(ConfigError, match=r"offers 'policy', 'privileged'.* Did you mean 'privileged'"):
        utils.resolve_obs_groups(offered, {"critic": ["priviledged"]}, ["critic"])


@pytest.mark.parametrize(
    ("obs", "groups", "words"),
    [
        (
            OBS,
            {"critic": []},
            "obs_groups.critic is empty; the environment offers 'policy', 'critic', 'camera'",
        ),
        (OBS, {"critic": ["privileged"]}, "obs_groups.critic wants the observation group 'privileged'"),
        (OBS, {"actor": ["polcy"]}, "Did you mean 'policy'"),
        ({"state": 0}, {"actor": ["state"]}, "obs_groups has no 'rnd_state'.* but 'state'"),
    ],
)
def test_g07_a_group_that_is_not_offered_is_named_with_who_wants_it_and_what_there_is(obs, groups, words):
    with pytest.raises(ValueError, match=words):
        utils.resolve_obs_groups(obs, groups, ["actor", "rnd_state"])


# ------------------------------------------------------------------ what environments return


@pytest.mark.parametrize(
    "values", [([torch.nan, 0.0], "NaN values"), ([-torch.inf, torch.nan], "NaN and Inf values")]
)
@pytest.mark.parametrize("place", ["observation group 'camera'", "rewards", "dones"])
def test_c09_nan_and_infinity_are_found_and_named(values, place):
    numbers, kind = values
    parts = {name: torch.zeros(2) for name in ("observation group 'camera'", "rewards", "dones")}
    utils.check_nan({"camera": parts["observation group 'camera'"]}, parts["rewards"], torch.zeros(2).bool())
    parts[place] = torch.tensor(numbers)
    obs, rewards, dones = parts.values()
    with pytest.raises(ValueError, match=f"{place}.*{kind}") as error:
        utils.check_nan({"policy": torch.zeros(2, dtype=torch.uint8), "camera": obs}, rewards, dones)
    assert isinstance(error.value, NonFiniteError)


def test_whole_numbers_are_finite():
    utils.check_nan(
        {"image": torch.zeros(2, dtype=torch.uint8)}, torch.zeros(2).long(), torch.zeros(2).bool()
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(1, 4), st.data())
def test_trajectories_come_back_from_their_padding(num_steps, num_envs, data):
    ends = data.draw(st.lists(st.booleans(), min_size=num_steps * num_envs, max_size=num_steps * num_envs))
    dones = torch.tensor(ends).view(num_steps, num_envs, 1)
    x = torch.arange(1, num_steps * num_envs + 1).view(num_steps, num_envs)
    padded, mask = utils.split_and_pad_trajectories(
        TensorDict({"x": x}, batch_size=[num_steps, num_envs]), dones
    )
    assert isinstance(padded, TensorDict)
    assert padded["x"].dtype == x.dtype
    assert mask.sum() == x.numel()
    assert torch.equal(padded["x"] != 0, mask)  # zeros on padding, and nowhere else
    # an episode ends in the last row of its column, or the rollout does
    lengths = mask.sum(0)
    assert mask.shape[1] == num_envs + int(dones[:-1].sum())
    assert torch.all(mask == (torch.arange(num_steps).unsqueeze(1) < lengths))
    back = utils.unpad_trajectories(padded, mask)
    assert torch.equal(back["x"], x)
    assert torch.equal(utils.unpad_trajectories(padded["x"], mask), x)


def test_trajectories_by_hand():
    x = torch.arange(10.0).view(5, 2)
    dones = torch.zeros(5, 2)
    dones[1, 0] = 1
    padded, mask = utils.split_and_pad_trajectories(x, dones)
    # environment 0 in two parts, [0, 2] and [4, 6, 8]; environment 1 as a whole
    assert padded.t().tolist() == [[0, 2, 0, 0, 0], [4, 6, 8, 0, 0], [1, 3, 5, 7, 9]]
    assert mask.sum(0).tolist() == [2, 3, 5]


def test_gradients_are_averaged_in_buckets_of_bounded_size(monkeypatch):
    sizes: list[int] = []

    def all_sum(x: torch.Tensor) -> torch.Tensor:
        sizes.append(x.numel() * 4)
        return x.mul_(2)  # two processes with the same gradients

    monkeypatch.setattr("surefoot.distributed.all_sum", all_sum)
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in ((3,), (100, 7), (2, 2), (1,))]
    for i, p in enumerate(parameters[:3]):
        p.grad = torch.full_like(p, i + 1.0)
    parameters[1].grad = parameters[1].grad.t().contiguous().t()  # not laid out in order
    kilobyte = 1 / 1024
    utils.reduce_gradients_in_buckets(parameters, world_size=2, bucket_mb=kilobyte)
    assert max(sizes) <= 1024
    assert sum(sizes) == 4 * (3 + 700 + 4)
    for i, p in enumerate(parameters[:3]):
        assert torch.all(p.grad == i + 1.0)
    assert parameters[3].grad is None


# ------------------------------------------------------------------ the state of the code


def test_the_state_of_a_repository_is_kept_once(tmp_path):
    repository, run = tmp_path / "project", tmp_path / "run"
    repository.mkdir()
    script = repository / "train.py"
    script.write_text("lr = 1\n")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "first"]):
        subprocess.run(["git", *command], cwd=repository, check=True)
    script.write_text("lr = 2\n")
    files = utils.store_code_state(run, [str(script), str(tmp_path / "nowhere" / "x.py")])
    assert files == [str(run / "git" / "project.diff")]
    text = (run / "git" / "project.diff").read_text()
    assert "+lr = 2" in text
    assert "--- git commit ---" in text
    assert utils.store_code_state(run, [script]) == []


# ------------------------------------------------------------------ Logger

CFG = {"num_steps_per_env": 2, "algorithm": {"class_name": "PPO"}}


class ListWriter(utils.LogWriter):
    """Keeps what it is given; `logger: {class_name: ...}` makes it."""

    last: Any = None

    def __init__(self, log_dir: str, project: str = "") -> None:
        self.log_dir, self.project = log_dir, project
        self.scalars: dict[str, tuple[float, int]] = {}
        self.calls: list[Any] = []
        ListWriter.last = self

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.scalars[tag] = (scalar_value, global_step)

    def store_config(self, env_cfg: Any, train_cfg: dict[str, Any]) -> None:
        self.calls.append(("config", env_cfg, copy.deepcopy(train_cfg)))

    def save_video(self, video: Any, it: int) -> None:
        self.calls.append(("video", video.name, it))

    def save_model(self, model_path: str, it: int) -> None:
        self.calls.append(("model", model_path, it))

    def stop(self) -> None:
        self.calls.append("stop")


OPEN: list[Logger] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close_files()


def logger(log_dir: Any = None, env_cfg: Any = None, **cfg: Any) -> Logger:
    directory = None if log_dir is None else str(log_dir)
    OPEN.append(Logger(directory, {**CFG, **cfg}, env_cfg, 3, False, 1, 0, "cpu"))
    return OPEN[-1]


def iteration(log: Logger, it: int = 0, extras: Any = (), **arguments: Any) -> None:
    for step_extras in extras or ({}, {}):
        log.process_env_step(torch.ones(3), torch.tensor([True, False, False]), step_extras)
    settings = {"start_it": 0, "total_it": 4, "collect_time": 0.5, "learn_time": 0.25, "learning_rate": 1e-3}
    log.log(
        it=it,
        loss_dict={"value": 2.0},
        action_std=torch.full((3, 2), 0.5),
        rnd_weight=None,
        **settings | arguments,
    )


def test_records_and_scalars_have_the_names_of_both_libraries(tmp_path):
    log = logger(tmp_path, logger={"class_name": f"{HERE}:ListWriter", "project": "p"})
    log.init_logging_writer()
    iteration(log)
    writer = ListWriter.last
    assert (writer.log_dir, writer.project) == (str(tmp_path), "p")
    values = {tag: value for tag, (value, _) in writer.scalars.items()}
    assert values["Loss/value"] == 2.0
    assert values["Loss/learning_rate"] == 1e-3
    assert values["Policy/mean_std"] == 0.5
    assert values["Perf/total_fps"] == 6 / 0.75
    assert values["Train/mean_reward"] == 1.0  # environment 0 ended twice, after a step each
    assert writer.scalars["Train/mean_reward/time"] == (1.0, 0)  # after 0.75 s
    record = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert record["env_steps"] == 6
    assert record["Train/episodes"] == 2
    assert {tag for tag in values if not tag.endswith("/time")} == record.keys() - {"iteration"}


def test_c22_what_is_under_episode_and_under_log_is_logged(tmp_path):
    log = logger(tmp_path, logger=f"{HERE}:ListWriter")
    log.init_logging_writer()
    first = {
        "episode": {"rew_a": torch.tensor(1.0)},
        "log": {"Metrics/error": 4.0, "b": torch.tensor([[1], [3]])},
    }
    second = {"episode": {"rew_a": 3, "none": torch.zeros(0), "text": "x"}, "log": {"c": None}}
    iteration(log, extras=(first, second))
    values = {tag: value for tag, (value, _) in ListWriter.last.scalars.items()}
    assert values["Episode/rew_a"] == 2.0
    assert values["Metrics/error"] == 4.0
    assert values["Episode/b"] == 2.0
    assert not {"Episode/none", "Episode/text", "Episode/c"} & values.keys()


def test_writers_are_told_of_configuration_models_videos_and_the_end(tmp_path):
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "a.mp4").touch()
    (tmp_path / "wandb" / "run" / "media").mkdir(parents=True)
    (
        tmp_path / "wandb" / "run" / "media" / "a_1234.mp4"
    ).touch()  # what the service keeps of it is not another
    log = logger(tmp_path, {"task": "walk"}, logger={"class_name": f"{HERE}:ListWriter"}, run_name="r")
    before = copy.deepcopy(log.cfg)
    log.init_logging_writer()
    iteration(log, it=3)
    log.save_model("model_3.pt", 3)
    log.stop_logging_writer()
    assert log.cfg == before
    expected = [
        ("config", {"task": "walk"}, before),
        ("video", "a.mp4", 3),
        ("model", "model_3.pt", 3),
        "stop",
    ]
    assert ListWriter.last.calls == expected


def test_c13_the_screen_shows_progress_without_a_directory(capsys):
    log = logger(run_name="first try")
    log.init_logging_writer()
    assert log.writer is None
    iteration(log, extras=({"log": {"Metrics/error": 4.0}}, {}))
    shown = capsys.readouterr().out
    for words in (
        "Learning iteration 0/4",
        "Mean reward: 1.00",
        "Metrics/error: 4.0000",
        "Run name: first try",
        "ETA: 0:00:02",
    ):
        assert words in shown
    iteration(log, extras=({"log": {"Metrics/error": 4.0}}, {}), print_minimal=True)
    assert "Metrics/error" not in capsys.readouterr().out


def test_a_small_number_is_not_shown_as_zero(capsys):
    log = logger(None)
    iteration(log, learning_rate=1e-5)
    assert "Mean learning rate: 1.0e-05\n" in capsys.readouterr().out
    iteration(log, learning_rate=0.0)
    assert "Mean learning rate: 0.0000\n" in capsys.readouterr().out


def test_c11_a_policy_without_spread_is_logged(capsys):
    log = logger()
    log.process_env_step(torch.ones(3), torch.zeros(3), {})
    log.log(0, 0, 1, 0.1, 0.1, {"behavior": 0.1}, 1e-3, None)
    assert "action std" not in capsys.readouterr().out


def test_only_the_first_process_writes(tmp_path, capsys):
    log = Logger(str(tmp_path), dict(CFG), None, 3, True, 2, 1, "cpu")
    log.init_logging_writer()
    iteration(log)
    assert capsys.readouterr().out == ""
    assert not list(tmp_path.iterdir())
    assert log.tot_timesteps == 6


def test_a_resumed_log_drops_what_came_after_the_checkpoint(tmp_path):
    for first in (0, 2):
        log = logger(tmp_path, logger="none")
        log.first_iteration = first
        log.init_logging_writer()
        for it in range(first, first + 4):
            iteration(log, it)
        log.stop_logging_writer()
    numbers = [
        json.loads(line)["iteration"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()
    ]
    assert numbers == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        (None, "tensorboard"),
        ("Tensorboard", "tensorboard"),
        ("wandb", "wandb"),
        ({"class_name": "WandbLogWriter", "project_name": "x"}, "WandbLogWriter"),
        ({"class_name": ListWriter}, "ListWriter"),
        ("none", "none"),
    ],
)
def test_logger_type_is_what_older_clients_read(settings, kind):
    assert logger(logger=settings).logger_type == kind


def test_intrinsic_rewards_are_counted_apart(tmp_path):
    log = logger(tmp_path, logger=f"{HERE}:ListWriter", algorithm={"rnd_cfg": {"weight": 1.0}})
    log.init_logging_writer()
    for _ in range(2):
        log.process_env_step(torch.ones(3), torch.ones(3), {}, torch.full((3,), 0.25))
    log.log(0, 0, 1, 0.1, 0.1, {}, 1e-3, None, rnd_weight=0.5)
    values = {tag: value for tag, (value, _) in ListWriter.last.scalars.items()}
    assert values["Rnd/mean_extrinsic_reward"] == values["Train/mean_reward"] == 1.0
    assert values["Rnd/mean_intrinsic_reward"] == 0.25
    assert values["Rnd/weight"] == 0.5


def test_buffers_of_the_last_episodes():
    log = logger()
    for length in (1, 2):
        for i in range(length):
            log.process_env_step(torch.ones(3), torch.full((3,), i == length - 1), {})
    log.finish_iteration()
    assert list(log.rewbuffer) == list(log.lenbuffer) == [1, 1, 1, 2, 2, 2]
    state = copy.deepcopy(log.state_dict())
    other = logger()
    other.load_state_dict(state)
    assert other.rewbuffer == log.rewbuffer


# ------------------------------------------------------------------ services


class Wandb(ModuleType):
    """As far as the writer calls it."""

    Error = RuntimeError

    def __init__(self) -> None:
        super().__init__("wandb")
        self.calls: list[Any] = []

    def init(self, **arguments: Any) -> Any:
        self.calls.append(("init", arguments))
        note = lambda name: lambda *args, **kwargs: self.calls.append((name, *args, kwargs))  # noqa: E731
        config = SimpleNamespace(update=note("config"))
        return SimpleNamespace(log=note("log"), save=note("save"), finish=note("finish"), config=config)

    def Video(self, path: str, format: str) -> str:  # noqa: N802
        return f"video {path}"


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Wandb:
    module = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setenv("WANDB_USERNAME", "me")
    return module


@pytest.mark.parametrize(
    "settings",
    [
        {"logger": "wandb", "wandb_project": "go2"},
        {"logger": {"class_name": "WandbLogWriter", "project_name": "go2"}},
    ],
)
def test_weights_and_biases(tmp_path, wandb, settings):
    log = logger(tmp_path, SimpleNamespace(decimation=4), **settings)
    log.init_logging_writer()
    iteration(log, it=1)
    (tmp_path / "a.mp4").touch()
    iteration(log, it=2)
    log.save_model(str(tmp_path / "model_2.pt"), 2)
    log.stop_logging_writer()
    by_name: dict[str, list[Any]] = {}
    for name, *arguments in wandb.calls:
        by_name.setdefault(name, []).append(arguments)
    ((start,),) = by_name["init"]
    assert (start["project"], start["entity"], start["name"]) == ("go2", "me", tmp_path.name)
    assert by_name["config"][0][0]["env_cfg"] == {"decimation": 4}
    assert [{"Loss/value": 2.0}, {"step": 1}] in by_name["log"]
    assert not any("Train/mean_reward/time" in arguments[0] for arguments in by_name["log"])
    assert sum("video" in arguments[0] for arguments in by_name["log"]) == 1
    assert by_name["save"][-1][0].endswith("model_2.pt")
    assert len(by_name["finish"]) == 1
    assert list(tmp_path.glob("events.out.tfevents.*"))


def test_a_service_that_does_not_answer_does_not_stop_the_run(tmp_path, wandb, monkeypatch):
    def refuse(**_: Any) -> None:
        raise wandb.Error("no network")

    monkeypatch.setattr(wandb, "init", refuse)
    log = logger(tmp_path, logger="wandb", wandb_project="go2")
    with pytest.warns(
        UserWarning, match=r"logger 'wandb' is off: .*no network\. Training goes on with TensorBoard"
    ):
        log.init_logging_writer()
    iteration(log)
    assert list(tmp_path.glob("events.out.tfevents.*"))


def test_services_that_are_not_installed_or_not_set_up_are_named(tmp_path, monkeypatch):
    for name in ("wandb", "neptune"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"pip install 'surefoot\[wandb\]'"):
        utils.WandbLogWriter(str(tmp_path), "p")
    with pytest.raises(ConfigError, match="pip install neptune"):
        utils.NeptuneLogWriter(str(tmp_path), "p")
    with pytest.raises(ConfigError, match="needs the name of a project: wandb_project"):
        logger(tmp_path, logger="wandb").init_logging_writer()
    with pytest.raises(ConfigError, match="wandb_project"):
        WandbSummaryWriter(str(tmp_path), 10, {})
    with pytest.raises(ConfigError, match="neptune_project"):
        NeptuneSummaryWriter(str(tmp_path), 10, {})
    assert not list(tmp_path.glob("events*"))


def test_the_writer_of_versions_2_to_5_3(tmp_path, wandb):
    writer = WandbSummaryWriter(str(tmp_path), flush_secs=10, cfg={"wandb_project": "go2"})
    writer.log_config({"a": 1}, {"seed": 1}, {"gamma": 0.99}, {"activation": "elu"})
    writer.stop()
    (config,) = [call[1] for call in wandb.calls if call[0] == "config"]
    assert config["train_cfg"]["alg_cfg"] == {"gamma": 0.99}


def test_neptune(tmp_path, monkeypatch):
    kept: dict[str, list[Any]] = {}

    class Run(dict):
        def __getitem__(self, path: str) -> Any:
            note = lambda x, **_: kept.setdefault(path, []).append(x)  # noqa: E731
            return SimpleNamespace(append=note, upload=note)

        def __setitem__(self, path: str, value: Any) -> None:
            kept[path] = value

        def stop(self) -> None:
            kept["stop"] = True  # pyright: ignore[reportArgumentType]

    module = ModuleType("neptune")
    module.init_run = lambda **arguments: kept.update(start=arguments) or Run()
    monkeypatch.setitem(sys.modules, "neptune", module)
    monkeypatch.delenv("NEPTUNE_API_TOKEN", raising=False)
    monkeypatch.setenv("NEPTUNE_USERNAME", "me")
    log = logger(tmp_path, {"a": 1}, logger="neptune", neptune_project="go2")
    with pytest.raises(ConfigError, match="NEPTUNE_API_TOKEN"):
        log.init_logging_writer()
    log.stop_logging_writer()
    monkeypatch.setenv("NEPTUNE_API_TOKEN", "t")
    log.init_logging_writer()
    iteration(log)
    log.save_model("model_0.pt", 0)
    log.stop_logging_writer()
    assert kept["start"] == {"project": "me/go2", "api_token": "t"}
    assert kept["Loss/value"] == [2.0]
    assert kept["Train/mean_reward_time"] == [1.0]
    assert kept["model/saved_model_0"] == ["model_0.pt"]
    assert kept["env_cfg"] == {"a": 1}
    assert kept["stop"]
