"""The training loop: what a run does, records, and refuses."""

from __future__ import annotations

import copy
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn

import surefoot
from surefoot import NonFiniteError
from surefoot.algorithm.extension import Extension
from surefoot.config import SurefootWarning, build_config
from surefoot.errors import CheckpointError, ConfigError
from surefoot.testing import ConstantEnv, ReusedBufferEnv, TargetEnv
from surefoot.training.checkpoint import load_checkpoint, named_tensors
from surefoot.training.hooks import Hook, StopAfter
from surefoot.training.loggers import read_records
from surefoot.training.on_policy_runner import OnPolicyRunner
from surefoot.types import Step

N, T = 64, 32
CONFIG: dict[str, Any] = {
    "num_steps_per_env": T,
    "actor": {"hidden_dims": [16]},
    "critic": {"hidden_dims": [16]},
    "algorithm": {"num_learning_epochs": 2, "num_mini_batches": 2},
    "logger": "none",
}


def make_runner(environment: Any = None, run_dir: Path | None = None, **config: Any) -> OnPolicyRunner:
    return OnPolicyRunner(environment or TargetEnv(N), CONFIG | config, run_dir, quiet=True)


def records(run_dir: Path) -> list[dict[str, Any]]:
    return read_records(run_dir / "metrics.jsonl")


# ------------------------------------------------------------------ learning and what it leaves behind


def test_it_learns() -> None:
    env = TargetEnv(N)
    runner = make_runner(env, algorithm={"learning_rate": 3e-3})
    before = surefoot.evaluate(runner.policy, TargetEnv(8), 8, seed=1)["mean_reward"]
    assert runner.learn(12) == "finished"
    after = surefoot.evaluate(runner.policy, TargetEnv(8), 8, seed=1)["mean_reward"]
    assert after > before / 2  # rewards are negative


def test_a_run_leaves_the_files_of_the_design(tmp_path: Path) -> None:
    make_runner(run_dir=tmp_path, logger="tensorboard").learn(3)
    names = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    events = {n for n in names if n.startswith("events.out.tfevents.")}
    assert len(events) == 1
    assert names - events == {
        "config.yaml",
        "manifest.json",
        "metrics.jsonl",
        "checkpoints/model_0.pt",
        "checkpoints/model_2.pt",
        "checkpoints/best.pt",
        "checkpoints/last.pt",
    }


def test_without_a_run_directory_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runner = make_runner()
    runner.learn(1)
    assert not list(tmp_path.iterdir())
    assert runner.metrics["iteration"] == 0
    with pytest.raises(CheckpointError, match="needs a path"):
        runner.save()
    assert runner.save(tmp_path / "here.pt").is_file()


def test_making_a_runner_writes_nothing(tmp_path: Path) -> None:
    make_runner(run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_config_file_repeats_the_run(tmp_path: Path) -> None:
    runner = make_runner(run_dir=tmp_path)
    runner.learn(1)
    config = build_config(yaml.safe_load((tmp_path / "config.yaml").read_text()))
    assert config == runner.config
    assert config.num_envs == N


def test_the_manifest_says_with_what(tmp_path: Path) -> None:
    OnPolicyRunner(TargetEnv(N), CONFIG, tmp_path, task="my:Task", quiet=True).learn(1)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["task"] == "my:Task"
    assert manifest["seed"] == 1
    assert manifest["determinism"] == "exact"
    assert manifest["version"] == surefoot.__version__
    assert manifest["versions"]["torch"] == torch.__version__
    assert {"command", "device", "threads", "processes", "python", "git", "started"} <= manifest.keys()


def test_the_caller_s_config_stays_as_it_is() -> None:
    config = copy.deepcopy(CONFIG)
    OnPolicyRunner(TargetEnv(N), config, quiet=True).learn(1)
    assert config == CONFIG


def test_a_directory_with_another_run_is_not_written_over(tmp_path: Path) -> None:
    make_runner(run_dir=tmp_path).learn(1)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(CheckpointError, match="already holds a run"):
        make_runner(run_dir=tmp_path).learn(1)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_an_unwritable_run_directory_costs_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    runner = make_runner(run_dir=tmp_path / "file" / "run")
    with pytest.warns(UserWarning, match="training goes on without files"):
        assert runner.learn(1) == "finished"


# ------------------------------------------------------------------ the record


def test_the_record_counts_and_averages(tmp_path: Path) -> None:
    # constant reward 1, episodes of 10 steps: every episode returns 10
    make_runner(ConstantEnv(N), tmp_path).learn(2)
    first, second = records(tmp_path)
    assert (first["iteration"], second["iteration"]) == (0, 1)
    assert (first["env_steps"], second["env_steps"]) == (N * T, 2 * N * T)
    assert second["wall_time_s"] > first["wall_time_s"] > 0
    assert first["Train/mean_reward"] == first["Train/mean_episode_length"] == 10
    assert (first["Train/episodes"], second["Train/episodes"]) == (3 * N, 3 * N)  # 64 steps: 6 episodes
    assert first["Data/samples_used"] == N * T
    assert (first["Data/truncations"], first["Data/terminations"]) == (3 * N, 0)
    assert first["Data/bootstrap"] == "final"
    assert first["Loss/kl_kind"] == "exact"
    assert first["Loss/skipped_updates"] == first["Data/quarantined"] == 0
    speed = N * T / (first["Perf/collection_time"] + first["Perf/learning_time"])
    assert first["Perf/total_fps"] == pytest.approx(speed)


def test_no_finished_episode_is_null_not_zero(tmp_path: Path) -> None:
    make_runner(ConstantEnv(N, episode_length=50), tmp_path).learn(1)
    assert records(tmp_path)[0]["Train/mean_reward"] is None


def test_tensorboard_tags_are_the_keys(tmp_path: Path) -> None:
    make_runner(run_dir=tmp_path, logger=["tensorboard"]).learn(1)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    record = records(tmp_path)[0]
    numbers = {k for k, v in record.items() if isinstance(v, (int, float)) and k != "iteration"}
    assert set(events.Tags()["scalars"]) == numbers


class Bonus(Extension):
    """Adds 100 to every reward, and logs."""

    def reward(self, rollout: Any, reward: Tensor) -> Tensor:
        return reward + 100

    def learn(self, rollout: Any) -> dict[str, Tensor]:
        return {"Bonus/size": torch.tensor(100.0), "Bonus/broken": torch.tensor(float("nan"))}


def test_the_reward_is_the_environment_s_and_extensions_add_their_own_keys(tmp_path: Path) -> None:
    make_runner(ConstantEnv(N), tmp_path, extensions=[{"class_name": f"{__name__}:Bonus"}]).learn(1)
    record = records(tmp_path)[0]
    assert record["Train/mean_reward"] == 10
    assert record["Bonus/size"] == 100
    assert record["Bonus/broken"] is None


class LoggingEnv(ConstantEnv):
    """Puts `entries` into every step's log."""

    def __init__(self, entries: Any) -> None:
        super().__init__(N)
        self.entries = entries

    def step(self, actions: Tensor) -> Step:
        step = super().step(actions)
        step.log = self.entries
        return step


@pytest.mark.parametrize("entries", [{}, None, {"log": None}, {"text": "x", "nested": {"a": 1}}])
def test_what_is_no_number_is_left_out_with_at_most_one_warning(tmp_path: Path, entries: Any) -> None:
    runner = make_runner(LoggingEnv(entries), tmp_path)
    if entries:
        with pytest.warns(UserWarning, match="left out") as caught:
            runner.learn(1)
        assert len(caught) == 1
    else:
        runner.learn(1)
    assert not {"log", "text", "nested"} & records(tmp_path)[0].keys()


def test_numbers_of_the_environment_are_logged_and_never_hide_ours(tmp_path: Path) -> None:
    entries = {
        "a": torch.tensor(1.0),
        "b": 2,
        "per_env": torch.arange(N),
        "Loss/value": -1.0,
        "Eval/error": 0.5,
    }
    make_runner(LoggingEnv(entries), tmp_path).learn(1)
    record = records(tmp_path)[0]
    assert (record["a"], record["b"], record["per_env"]) == (1, 2, (N - 1) / 2)
    assert record["Loss/value"] >= 0
    assert record["Train/error"] == 0.5


def documented() -> list[re.Pattern[str]]:
    """The keys of docs/metrics.md, `…` standing for any name."""
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    keys = re.findall(r"^\| `([^`]+)`", text, re.MULTILINE)
    return [re.compile(re.escape(key).replace("…", ".+")) for key in keys]


def test_every_logged_key_is_documented(tmp_path: Path) -> None:
    env = LoggingEnv({"Eval/linear_velocity_error": torch.zeros(N)})
    env.observation_spaces = TargetEnv(N).observation_spaces
    config = CONFIG | {
        "eval_interval": 1,
        "eval_episodes": 2,
        "env": {"reward_scaling": True},
        "extensions": [{"class_name": "AuxiliaryPrediction", "target": "policy"}],
        "critic": {"hidden_dims": [16], "value_normalization": True},
        "algorithm": {"policy_objective": "penalty", "schedule": "fixed"},
    }
    OnPolicyRunner(env, config, tmp_path, eval_env=LoggingEnv({"Eval/height": 1.0}), quiet=True).learn(2)
    patterns = documented()
    assert len(patterns) > 25
    keys = {key for record in records(tmp_path) for key in record}
    assert [key for key in keys if not any(p.fullmatch(key) for p in patterns)] == []


# ------------------------------------------------------------------ checkpoints of a run


def test_checkpoints_follow_the_interval_and_old_ones_go(tmp_path: Path) -> None:
    make_runner(run_dir=tmp_path, save_interval=2, keep_checkpoints=3).learn(10)
    names = sorted(p.name for p in (tmp_path / "checkpoints").glob("model_*.pt"))
    assert names == ["model_6.pt", "model_8.pt", "model_9.pt"]
    assert load_checkpoint(tmp_path / "checkpoints" / "last.pt")["iteration"] == 9


def test_interval_zero_saves_only_at_the_end(tmp_path: Path) -> None:
    make_runner(run_dir=tmp_path, save_interval=0).learn(3)
    assert [p.name for p in (tmp_path / "checkpoints").glob("model_*.pt")] == ["model_2.pt"]


def test_a_checkpoint_holds_only_finite_tensors_and_plain_data(tmp_path: Path) -> None:
    make_runner(run_dir=tmp_path).learn(1)
    state = torch.load(tmp_path / "checkpoints" / "last.pt", weights_only=True)
    assert {
        "format",
        "task",
        "iteration",
        "env_steps",
        "config",
        "algorithm",
        "env",
        "episodes",
        "best",
    } <= state.keys()
    assert all(t.isfinite().all() for _, t in named_tensors(state["algorithm"]) if t.is_floating_point())


class Scripted(Hook):
    """Says how good the policy is."""

    def __init__(self, key: str, values: list[float]) -> None:
        self.key, self.values = key, values

    def after_iteration(self, runner: OnPolicyRunner, metrics: dict[str, Any]) -> None:
        metrics[self.key] = self.values[metrics["iteration"]]


def test_best_stays_when_the_score_drops(tmp_path: Path) -> None:
    runner = make_runner(run_dir=tmp_path, save_interval=0)
    runner.hooks.append(Scripted("Train/mean_reward", [1.0, 3.0, 2.0, math.nan]))
    runner.learn(4)
    assert load_checkpoint(tmp_path / "checkpoints" / "best.pt")["iteration"] == 1
    assert load_checkpoint(tmp_path / "checkpoints" / "last.pt")["iteration"] == 3
    assert records(tmp_path)[3]["Train/mean_reward"] is None


def test_where_a_run_evaluates_the_evaluation_decides(tmp_path: Path) -> None:
    config = CONFIG | {"eval_interval": 2, "eval_episodes": 4, "save_interval": 0}
    runner = OnPolicyRunner(TargetEnv(N), config, tmp_path, eval_env=TargetEnv(4), quiet=True)
    runner.hooks.append(Scripted("Train/mean_reward", [9.0, 8.0, 7.0]))
    runner.learn(3)
    evaluated = [r["iteration"] for r in records(tmp_path) if "Eval/mean_reward" in r]
    assert evaluated == [1, 2]  # every second, and the last
    best = load_checkpoint(tmp_path / "checkpoints" / "best.pt")
    scores = {r["iteration"]: r["Eval/mean_reward"] for r in records(tmp_path) if "Eval/mean_reward" in r}
    assert best["iteration"] == max(scores, key=lambda i: scores[i])
    assert best["best"]["value"] == max(scores.values())


def test_without_an_interval_there_is_one_evaluation_at_the_end(tmp_path: Path) -> None:
    config = CONFIG | {"eval_episodes": 4}
    OnPolicyRunner(TargetEnv(N), config, tmp_path, eval_env=TargetEnv(4), quiet=True).learn(2)
    assert ["Eval/mean_reward" in r for r in records(tmp_path)] == [False, True]


def test_evaluating_does_not_change_training() -> None:
    weights = []
    for eval_env in (None, TargetEnv(4)):
        config = CONFIG | {"eval_interval": 1, "eval_episodes": 4}
        runner = OnPolicyRunner(TargetEnv(N), config, eval_env=eval_env, quiet=True)
        runner.learn(2)
        weights.append(runner.alg.state_dict())
    assert all(torch.equal(weights[0][k], weights[1][k]) for k in weights[0])


def test_the_environments_of_training_do_not_serve_evaluation() -> None:
    env = TargetEnv(N)
    with pytest.raises(ConfigError, match="eval_env is env"):
        OnPolicyRunner(env, CONFIG, eval_env=env)


# ------------------------------------------------------------------ hooks


class Diary(Hook):
    """Writes down when it is called."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.calls: list[str] = []
        self.stop_at = stop_at

    def on_start(self, runner: OnPolicyRunner) -> None:
        self.calls.append("start")

    def before_iteration(self, runner: OnPolicyRunner, iteration: int) -> None:
        self.calls.append(f"before {iteration}")

    def after_iteration(self, runner: OnPolicyRunner, metrics: dict[str, Any]) -> bool:
        metrics["mine"] = 1.5
        self.calls.append(f"after {metrics['iteration']}")
        return metrics["iteration"] == self.stop_at

    def on_end(self, runner: OnPolicyRunner, reason: str) -> None:
        self.calls.append(f"end: {reason}")


def test_hooks_are_called_in_order_and_their_keys_are_logged(tmp_path: Path) -> None:
    runner = make_runner(run_dir=tmp_path)
    runner.hooks.append(diary := Diary(stop_at=1))
    assert runner.learn(5) == "stopped: Diary"
    assert diary.calls == ["start", "before 0", "after 0", "before 1", "after 1", "end: stopped: Diary"]
    assert [r["mine"] for r in records(tmp_path)] == [1.5, 1.5]
    assert (tmp_path / "checkpoints" / "model_1.pt").exists()


def test_hooks_hear_of_a_failure() -> None:
    class Failing(Hook):
        def before_iteration(self, runner: OnPolicyRunner, iteration: int) -> None:
            raise ZeroDivisionError("boom")

    runner = make_runner()
    runner.hooks += [diary := Diary(), Failing()]
    with pytest.raises(ZeroDivisionError, match="boom"):
        runner.learn(1)
    assert diary.calls[-1] == "end: failed"


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"iterations": 2}, "stopped: 2 iterations"),
        ({"steps": 2 * N * T}, f"stopped: {2 * N * T} steps"),
        ({"minutes": 1e-9}, "stopped: 1e-09 minutes"),
    ],
)
def test_limits_stop_a_run(limits: dict[str, Any], reason: str) -> None:
    runner = make_runner(hooks=[{"class_name": "StopAfter", **limits}])
    assert runner.learn(10) == reason
    assert runner.iteration == (1 if "minutes" in limits else 2)


def test_a_limit_is_per_call_in_minutes_and_refuses_nonsense() -> None:
    hook = StopAfter(minutes=1e-9)
    runner = make_runner()
    runner.hooks.append(hook)
    runner.learn(5)
    hook.minutes = 1000.0
    assert runner.learn(1) == "finished"
    for nonsense in ({}, {"minutes": 0}, {"steps": -1}):
        with pytest.raises(ConfigError, match="StopAfter"):
            StopAfter(**nonsense)  # pyright: ignore[reportArgumentType]


def test_an_unknown_hook_or_argument_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match=r"hooks\.0\.class_name = \"StopAftr\".*Did you mean 'StopAfter'"):
        make_runner(hooks=[{"class_name": "StopAftr"}])
    with pytest.raises(ConfigError, match=r"unknown key 'hooks\.0\.minuts'.*Did you mean 'minutes'"):
        make_runner(hooks=[{"class_name": "StopAfter", "minuts": 5}])


# ------------------------------------------------------------------ environments with faults


class FaultyEnv(TargetEnv):
    """At one step one number is not finite."""

    def __init__(self, at: int, where: str, value: float = math.inf, **kwargs: Any) -> None:
        super().__init__(N, **kwargs)
        self.at, self.where, self.value, self.count = at, where, value, 0

    def step(self, actions: Tensor) -> Step:
        step = super().step(actions)
        self.count += 1
        if self.count == self.at:
            if self.where == "reward":
                step.rewards[1] = self.value
            else:
                step.observations["policy"][1, 0] = self.value
        return step


@pytest.mark.parametrize("where", ["reward", "observation"])
def test_an_infinity_stops_the_run_by_name_and_the_checkpoint_stays_good(tmp_path: Path, where: str) -> None:
    runner = make_runner(FaultyEnv(T + 4, where), tmp_path, save_interval=1)
    source = "reward is inf" if where == "reward" else r"'policy' \(feature 0\) is inf"
    with pytest.raises(NonFiniteError, match=rf"environment 1: .*{source} \(step 36\)"):
        runner.learn(3)
    state = load_checkpoint(tmp_path / "checkpoints" / "last.pt")
    assert state["iteration"] == 0
    assert len(records(tmp_path)) == 1


@pytest.mark.parametrize("where", ["reward", "observation"])
def test_quarantine_trains_on_with_finite_normalisers(where: str) -> None:
    config = {"on_nonfinite": "quarantine", "actor": {"hidden_dims": [16], "obs_normalization": True}}
    env = FaultyEnv(1024 // N + 4, where)  # the fourth step after the warm-up
    runner = make_runner(env, **config)
    runner.learn(1)
    # step 20 ends an episode: a bad reward there spoils one row, a bad observation the ten of the next
    assert runner.metrics["Data/quarantined"] == (1 if where == "reward" else 10)
    runner.learn(2)
    for name, tensor in runner.alg.state_dict().items():
        assert not tensor.is_floating_point() or tensor.isfinite().all(), name


def test_statistics_are_those_of_the_finite_rows() -> None:
    means = []
    for at in (10**9, 4):
        env = FaultyEnv(at, "observation", episode_length=1000)
        runner = make_runner(
            env, on_nonfinite="quarantine", actor={"hidden_dims": [16], "obs_normalization": True}
        )
        runner.learn(1)
        storage = runner.alg.storage
        observed = storage.observations["policy"][:-1][storage.valid]
        normalizer = runner.policy.inputs.normalizers["actor"]
        assert torch.allclose(normalizer.mean, observed.double().mean(0), atol=1e-5)
        assert int(normalizer.count) == len(observed)
        means.append(len(observed))
    assert means[1] < means[0]


def test_rewards_are_clipped_for_learning_and_logged_as_they_are(tmp_path: Path) -> None:
    runner = make_runner(ConstantEnv(N), tmp_path, env={"reward_clip": 0.25})
    runner.learn(1)
    assert runner.alg.storage.rewards.max() == 0.25
    assert records(tmp_path)[0]["Train/mean_reward"] == 10


def test_a_time_limit_that_is_never_reported_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="report it as 'truncated'"):
        make_runner(ConstantEnv(N, ends="terminated")).learn(1)
    make_runner(ConstantEnv(N)).learn(1)  # warnings are errors here


def test_reused_buffers_make_no_difference() -> None:
    states = []
    for kind in (TargetEnv, ReusedBufferEnv):
        runner = make_runner(kind(N))
        runner.learn(2)
        states.append((runner.metrics["Train/mean_reward"], runner.alg.state_dict()))
    assert states[0][0] == states[1][0]
    assert all(torch.equal(states[0][1][k], states[1][1][k]) for k in states[0][1])


def test_more_environments_in_the_config_than_there_are_is_said() -> None:
    with pytest.warns(
        SurefootWarning, match="num_envs 4096 has no effect here: the environment given has 64"
    ):
        make_runner(num_envs=4096)


# ------------------------------------------------------------------ weights that are not finite


def test_a_parameter_set_to_nan_is_named_with_the_iteration(tmp_path: Path) -> None:
    runner = make_runner(run_dir=tmp_path)
    runner.learn(2)
    last = (tmp_path / "checkpoints" / "last.pt").read_bytes()
    with torch.no_grad():
        runner.policy.action_head.std_param.fill_(math.nan)
    with pytest.raises(
        NonFiniteError, match=r"'policy\.action_head\.std_param' is not finite at iteration 2"
    ):
        runner.learn(1)
    assert (tmp_path / "checkpoints" / "last.pt").read_bytes() == last


class BrokenLoss(Extension):
    """Its loss is NaN in iterations `first` to `last`."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__()
        self.first, self.last, self.iteration = first, last, 0
        self.weight = nn.Parameter(torch.ones(1))

    def policy_parameters(self) -> list[nn.Parameter]:
        return [self.weight]

    def loss(self, batch: Any, out: Any, policy: Any) -> dict[str, Tensor]:
        broken = self.first <= self.iteration <= self.last
        return {"Broken/loss": (self.weight * (math.nan if broken else 1.0)).sum()}

    def learn(self, rollout: Any) -> dict[str, Tensor]:
        self.iteration += 1
        return {}


def broken(first: int, last: int) -> list[dict[str, Any]]:
    return [{"class_name": f"{__name__}:BrokenLoss", "first": first, "last": last}]


@pytest.mark.filterwarnings("ignore:.*surefoot fault")
def test_skipped_updates_are_counted_and_training_goes_on(tmp_path: Path) -> None:
    make_runner(run_dir=tmp_path, extensions=broken(1, 1)).learn(4)  # 4 updates an iteration
    assert [r["Loss/skipped_updates"] for r in records(tmp_path)] == [0, 4, 0, 0]


@pytest.mark.filterwarnings("ignore:.*surefoot fault")
def test_ten_skipped_in_a_row_stop_the_run_with_the_checkpoint_intact(tmp_path: Path) -> None:
    runner = make_runner(run_dir=tmp_path, extensions=broken(2, 99), save_interval=2)
    with pytest.raises(NonFiniteError, match="12 updates in a row were skipped up to iteration 4"):
        runner.learn(10)
    assert len(records(tmp_path)) == 5  # what led to it is in the log
    state = load_checkpoint(tmp_path / "checkpoints" / "last.pt")
    assert state["iteration"] == 2
    assert all(t.isfinite().all() for _, t in named_tensors(state["algorithm"]) if t.is_floating_point())


@pytest.mark.filterwarnings("ignore:.*surefoot fault")
def test_a_rollback_goes_on_once_at_half_the_learning_rate(tmp_path: Path) -> None:
    settings = {"on_skipped": "rollback", "algorithm": CONFIG["algorithm"] | {"schedule": "fixed"}}
    runner = make_runner(run_dir=tmp_path, extensions=broken(1, 3), **settings)
    with pytest.warns(UserWarning, match="going back to the last good weights at half the learning rate"):
        assert runner.learn(6) == "finished"
    rates = [r["Loss/learning_rate"] for r in records(tmp_path)]
    assert rates == pytest.approx([1e-3] * 4 + [5e-4] * 2)
    again = make_runner(run_dir=tmp_path, extensions=broken(0, 0), **settings)
    again.load(tmp_path)
    again.learn(1)
    assert again.metrics["Loss/learning_rate"] == pytest.approx(5e-4)


@pytest.mark.filterwarnings("ignore:.*surefoot fault")
def test_a_second_series_after_a_rollback_stops(tmp_path: Path) -> None:
    runner = make_runner(run_dir=tmp_path, extensions=broken(1, 99), on_skipped="rollback")
    with pytest.warns(UserWarning, match="going back"), pytest.raises(NonFiniteError, match="in a row"):
        runner.learn(20)


# ------------------------------------------------------------------ threads


def test_threads_are_the_run_s_while_it_trains_and_the_caller_s_afterwards() -> None:
    seen: list[int] = []

    class Look(Hook):
        def before_iteration(self, runner: OnPolicyRunner, iteration: int) -> None:
            seen.append(torch.get_num_threads())

    before = torch.get_num_threads()
    for threads in (2, None):
        runner = make_runner(num_threads=threads)
        runner.hooks.append(Look())
        runner.learn(1)
    assert seen == [2, 1]
    assert torch.get_num_threads() == before
