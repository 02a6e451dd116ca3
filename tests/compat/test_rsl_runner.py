"""The runner of the RSL-RL layer: its loop, checkpoints, policies for use, and processes."""

from __future__ import annotations

import copy
import itertools
import json
import os
import warnings
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from client_stubs import MAX_LENGTH, NUM_ACTIONS, NUM_ENVS, NUM_OBS, STEPS, Points, genesis_cfg, genesis_env
from tensordict import TensorDict
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ranks import run_ranks
from surefoot import distributed
from surefoot.compat.rsl_rl.models import MLPModel
from surefoot.compat.rsl_rl.runners import DistillationRunner, OnPolicyRunner
from surefoot.errors import CheckpointError, ConfigError, EnvContractError, NonFiniteError, SurefootError
from surefoot.training.loggers import read_records

pytestmark = pytest.mark.filterwarnings(
    "ignore:the value after a time limit:surefoot.config.advice.SurefootWarning"
)

HERE = __name__


class Env:
    """Points, as the newest clients offer them, with a state that can be saved; final observations too."""

    def __init__(self, num_envs: int = NUM_ENVS, seed: int = 0) -> None:
        self.points = Points(num_envs, seed)
        self.num_envs, self.num_actions, self.device = num_envs, NUM_ACTIONS, "cpu"
        self.max_episode_length, self.step_dt = MAX_LENGTH, 0.02
        self.spoil: Any = None

    @property
    def episode_length_buf(self) -> torch.Tensor:
        return self.points.length

    @episode_length_buf.setter
    def episode_length_buf(self, value: torch.Tensor) -> None:
        self.points.length = value

    def get_observations(self) -> TensorDict:
        return TensorDict({"policy": self.points.state, "critic": self.points.privileged}, [self.num_envs])

    def step(self, actions: torch.Tensor) -> tuple[Any, ...]:
        final, reward, terminated, truncated = self.points.push(actions)
        finals = {"policy": final, "critic": torch.cat([final, torch.ones(self.num_envs, 1)], 1)}
        extras = {
            "time_outs": truncated,
            "final_observations": finals,
            "log": {"Metrics/error": reward.abs().mean()},
        }
        returned = [self.get_observations(), reward, (terminated | truncated).float(), extras]
        return tuple(returned if self.spoil is None else self.spoil(returned))

    def state_dict(self) -> dict[str, Any]:
        points = self.points
        return {"state": points.state, "length": points.length, "generator": points.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.points.state, self.points.length = state["state"], state["length"]
        self.points.generator.set_state(state["generator"])


def config(**changes: Any) -> dict[str, Any]:
    cfg = genesis_cfg()
    cfg["obs_groups"] = {"actor": ["policy"], "critic": ["critic"]}
    for part in ("actor", "critic"):
        cfg[part]["obs_normalization"] = True
    return {**cfg, "run_name": "", "save_interval": 2, **changes}


def runner(log_dir: Path | None = None, env: Any = None, **changes: Any) -> OnPolicyRunner:
    return OnPolicyRunner(env or Env(), config(**changes), None if log_dir is None else str(log_dir))


def weights(of: OnPolicyRunner) -> dict[str, torch.Tensor]:
    parts = {"actor": of.alg.actor, "critic": of.alg.critic}
    return {f"{n}.{k}": x.clone() for n, m in parts.items() for k, x in m.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.pt"))


# ------------------------------------------------------------------ any algorithm of the protocol


class Minimal:
    """What RSL-RL's runner calls of an algorithm, and nothing more. Its policy has no spread."""

    learning_rate = 0.5

    def __init__(self, obs: Any, env: Any, cfg: dict[str, Any]) -> None:
        self.calls: list[str] = []
        self.cfg = cfg
        self.policy = MLPModel(obs, {"actor": ["policy"]}, "actor", env.num_actions, hidden_dims=[4])
        self.dones: list[torch.Tensor] = []

    @staticmethod
    def construct_algorithm(obs: Any, env: Any, cfg: dict[str, Any], _device: Any) -> Minimal:
        return Minimal(obs, env, cfg)

    def act(self, obs: TensorDict) -> torch.Tensor:
        self.calls.append("act")
        return self.policy(obs)

    def process_env_step(self, obs: TensorDict, rewards: Any, dones: Any, extras: Any) -> None:
        self.calls.append("process")
        self.dones.append(dones)

    def compute_returns(self, obs: TensorDict) -> None:
        self.calls.append("returns")

    def update(self) -> dict[str, float]:
        self.calls.append("update")
        return {"behavior": 0.5, "Extra/metric": 2.0}

    def train_mode(self) -> None:
        self.calls.append("train")

    def eval_mode(self) -> None:
        self.calls.append("eval")

    def save(self) -> dict[str, Any]:
        return {"policy_state_dict": self.policy.state_dict()}

    def load(self, loaded: dict[str, Any], load_cfg: Any, strict: bool) -> bool:
        self.policy.load_state_dict(loaded["policy_state_dict"], strict=strict)
        return True

    def get_policy(self) -> nn.Module:
        return self.policy


MINIMAL = {"algorithm": {"class_name": f"{HERE}:Minimal"}, "num_steps_per_env": 2, "save_interval": 2}


def minimal(log_dir: Path | None = None, env: Any = None, **changes: Any) -> OnPolicyRunner:
    return OnPolicyRunner(env or Env(), MINIMAL | changes, None if log_dir is None else str(log_dir))


def test_c11_an_algorithm_of_ones_own_with_a_deterministic_policy_runs(tmp_path):
    own = minimal(tmp_path)
    own.learn(3)
    assert own.alg.calls == ["train", *(["act", "process"] * 2 + ["returns", "update"]) * 3]
    assert files(tmp_path) == ["model_0.pt", "model_2.pt"]
    record = read_records(tmp_path / "metrics.jsonl")[-1]
    assert record["Loss/behavior"] == 0.5
    assert record["Extra/metric"] == 2.0
    assert record["Loss/learning_rate"] == 0.5
    assert "Policy/mean_std" not in record
    again = minimal()
    again.load(str(tmp_path / "model_2.pt"))
    again.learn(1)
    assert again.current_learning_iteration == 3
    own.eval_mode()
    assert own.alg.calls[-1] == "eval"


def test_the_configuration_of_the_caller_stays_and_further_keys_reach_the_runner():
    cfg = config(registry_name="x", algorithm={**genesis_cfg()["algorithm"], "rnd_cfg": None})
    before = copy.deepcopy(cfg)
    made = OnPolicyRunner(Env(), cfg)
    made.learn(1)
    assert cfg == before
    assert made.cfg["registry_name"] == "x"
    assert made.cfg["multi_gpu"] is None


def test_subclasses_and_replaced_methods_are_called(tmp_path):
    calls: list[Any] = []

    class Own(OnPolicyRunner):
        def save(self, path: Any, infos: Any = None, **kwargs: Any) -> None:
            calls.append(("save", os.path.basename(path)))
            super().save(path, {"mine": 1})

        def learn(self, *args: Any, **kwargs: Any) -> None:
            calls.append("learn")
            super().learn(*args, **kwargs)

    made = Own(Env(), MINIMAL, str(tmp_path))
    original = made.logger.log

    def log(*args: Any, **kwargs: Any) -> None:
        calls.append(("log", kwargs["it"], sorted(kwargs["loss_dict"])))
        original(*args, **kwargs)

    made.logger.log = log
    made.learn(num_learning_iterations=1, init_at_random_ep_len=True)
    assert calls == ["learn", ("log", 0, ["Extra/metric", "behavior"]), ("save", "model_0.pt")]
    assert made.load(str(tmp_path / "model_0.pt")) == {"mine": 1}


def test_names_of_older_generations_are_still_there(tmp_path):
    made = runner(tmp_path)
    made.learn(1)
    assert made.logger_type == "tensorboard"
    assert made.writer is made.logger.writer
    assert made.log_dir == str(tmp_path)
    assert (made.num_steps_per_env, made.save_interval) == (STEPS, 2)
    assert made.alg_cfg is made.cfg["algorithm"]
    assert made.tot_timesteps == STEPS * NUM_ENVS
    assert made.tot_time > 0
    assert made.disable_logs is False
    assert made.obs_normalizer is made.alg.actor.obs_normalizer
    assert made.empirical_normalization
    assert isinstance(minimal().obs_normalizer, nn.Identity)
    made.add_git_repo_to_log("train.py")
    assert made.git_status_repos[-1] == "train.py"
    assert (made.is_distributed, made.gpu_world_size, made.gpu_global_rank, made.gpu_local_rank) == (
        False,
        1,
        0,
        0,
    )


def test_a_subclass_may_keep_older_names_as_its_own():
    class Own(OnPolicyRunner):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.log_dir, self.writer, self.tot_timesteps = "mine", None, 7

    own = Own(Env(), MINIMAL)
    assert (own.log_dir, own.tot_timesteps) == ("mine", 7)
    own.learn(1)
    with pytest.raises(AttributeError, match="'Own' object has no attribute 'nothing'"):
        own.nothing  # noqa: B018


def test_a_learning_loop_of_ones_own_runs(tmp_path):
    """As subclasses copy it from RSL-RL."""

    class Own(OnPolicyRunner):
        def learn(self, num_learning_iterations: int, init_at_random_ep_len: bool = False) -> None:
            obs = self.env.get_observations().to(self.device)
            self.alg.train_mode()
            self.logger.init_logging_writer()
            start = self.current_learning_iteration
            for it in range(start, start + num_learning_iterations):
                for _ in range(self.cfg["num_steps_per_env"]):
                    obs, rewards, dones, extras = self.env.step(self.alg.act(obs))
                    self.alg.process_env_step(obs, rewards, dones, extras)
                    bonus = self.alg.intrinsic_rewards if self.cfg["algorithm"].get("rnd_cfg") else None
                    self.logger.process_env_step(rewards, dones, extras, bonus)
                self.alg.compute_returns(obs)
                losses = self.alg.update()
                self.current_learning_iteration = it
                self.logger.log(
                    it=it,
                    start_it=start,
                    total_it=start + num_learning_iterations,
                    collect_time=0.1,
                    learn_time=0.1,
                    loss_dict=losses,
                    learning_rate=self.alg.learning_rate,
                    action_std=self.alg.get_policy().output_std,
                    rnd_weight=self.alg.rnd.weight,
                )
            self.save(os.path.join(self.logger.log_dir, "model.pt"))
            self.logger.stop_logging_writer()

    rnd = {"weight": 5.0, "predictor_hidden_dims": [8], "target_hidden_dims": [8], "num_outputs": 2}
    groups = {"actor": ["policy"], "critic": ["critic"], "rnd_state": ["policy"]}
    cfg = config(algorithm={**genesis_cfg()["algorithm"], "rnd_cfg": rnd}, obs_groups=groups)
    Own(Env(), cfg, str(tmp_path)).learn(3)
    assert [record["iteration"] for record in read_records(tmp_path / "metrics.jsonl")] == [0, 1, 2]
    resumed = Own(Env(), cfg, str(tmp_path))
    resumed.load(tmp_path / "model.pt")
    assert resumed.current_learning_iteration == 2


def test_c13_without_a_directory_the_screen_shows_progress_and_nothing_is_written(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    minimal().learn(2)
    shown = capsys.readouterr().out
    assert "Learning iteration 1/2" in shown
    assert "Mean behavior: 0.5000" in shown
    assert not list(tmp_path.iterdir())


def test_c14_an_environment_without_cfg_trains():
    env = Env()
    assert not hasattr(env, "cfg")
    assert minimal(env=env).logger.env_cfg is None


def test_a_group_of_groups_that_no_model_reads_is_no_hindrance():
    class Nested(Env):
        def get_observations(self) -> TensorDict:
            camera = {"left": self.points.state, "right": self.points.state}
            return TensorDict({**super().get_observations(), "camera": camera}, [self.num_envs])

    made = runner(env=Nested())
    made.learn(1)
    assert made.get_inference_policy()(made.env.get_observations()).shape == (NUM_ENVS, NUM_ACTIONS)


def test_c02_a_buffer_that_the_environment_reuses_is_copied_before_it_changes():
    env = genesis_env()
    seen: list[torch.Tensor] = []
    original = env.step

    def step(actions: torch.Tensor) -> Any:
        seen.append(env.obs_buf.clone())
        return original(actions)

    env.step = step
    made = OnPolicyRunner(env, genesis_cfg())
    stored: list[torch.Tensor] = []
    returns = made.alg.compute_returns
    made.alg.compute_returns = lambda obs: (
        stored.append(made.alg.storage.observations["policy"].clone()),
        returns(obs),
    )
    made.learn(1)
    assert torch.equal(stored[0], torch.stack(seen))


# ------------------------------------------------------------------ numbers that are not finite


def spoiler(place: str, value: float, at: int = 3) -> Any:
    count = Counter[str]()

    def spoil(returned: list[Any]) -> list[Any]:
        count["steps"] += 1
        if count["steps"] == at:
            obs, rewards, dones, extras = returned
            obs["policy"] = obs["policy"].clone()  # what is returned, not where the points are
            where = {"obs": obs["policy"][2], "rewards": rewards[2:3], "dones": dones[2:3]}
            where["final"] = extras["final_observations"]["critic"][2]
            where[place][0] = value
        return returned

    return spoil


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    ("place", "words"),
    [("obs", "group 'policy' "), ("rewards", "reward is"), ("dones", "group 'dones'")],
)
def test_c09_infinity_and_nan_stop_the_run_with_the_weights_intact(tmp_path, place, value, words):
    made = runner(tmp_path)
    made.learn(1)
    before = weights(made)
    made.env.spoil = spoiler(place, value)
    with pytest.raises(NonFiniteError, match=f"environment 2: .*{words}.*step {STEPS + 3}") as error:
        made.learn(1)
    assert isinstance(error.value, ValueError)  # as in RSL-RL
    assert "on_nonfinite" not in str(error.value)
    assert same(before, weights(made))
    # what was collected until then is dropped, and training can go on
    made.learn(1)
    assert [record["iteration"] for record in read_records(tmp_path / "metrics.jsonl")] == [0, 1]


def test_c09_a_final_observation_that_would_be_used_is_looked_at():
    env = Env()
    original = env.points.push

    def push(actions: torch.Tensor) -> Any:
        final, reward, terminated, truncated = original(actions)
        final[truncated] = float("inf")
        return final, reward, terminated, truncated

    env.points.push = push
    with pytest.raises(NonFiniteError, match="final observation of group"):
        minimal(env=env, num_steps_per_env=3 * MAX_LENGTH).learn(1)


def test_check_for_nan_false_looks_at_nothing():
    env = Env()
    env.spoil = spoiler("rewards", float("inf"), at=2)
    minimal(env=env, check_for_nan=False).learn(1)


def test_c09_where_looking_would_cost_a_wait_it_is_done_once_per_rollout():
    env = Env()
    env.spoil = spoiler("obs", float("nan"), at=1)
    made = minimal(env=env)
    made._guard.guard._on_cpu = False  # as on an accelerator
    seen: list[Any] = []
    process = made.alg.process_env_step
    made.alg.process_env_step = lambda obs, *rest: (seen.append(obs["policy"].clone()), process(obs, *rest))
    with pytest.raises(
        NonFiniteError, match=r"environment 2: observation group 'policy' is not finite \(step 1\)"
    ):
        made.learn(1)
    assert len(seen) == 2
    assert all(x.isfinite().all() for x in seen)
    assert "returns" not in made.alg.calls


class HostReads(TorchDispatchMode):
    """Counts what makes the host wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        indices = args[1] if name.startswith("aten::index") and isinstance(args[1], (list, tuple)) else ()
        by_mask = any(isinstance(x, torch.Tensor) and x.dtype == torch.bool for x in indices)
        waits = ("_local_scalar_dense", "nonzero", "masked_select", "unique")
        self.count += by_mask or any(word in name for word in waits)
        return func(*args, **(kwargs or {}))


def host_reads(monkeypatch: pytest.MonkeyPatch, num_steps: int, num_epochs: int) -> int:
    """In the second iteration, but for the environment's own."""
    algorithm = {**genesis_cfg()["algorithm"], "num_learning_epochs": num_epochs}
    made = runner(None, None, num_steps_per_env=num_steps, algorithm=algorithm)
    made._guard.guard._on_cpu = False  # as on an accelerator
    made.learn(1)
    reads = HostReads()
    for name in ("cpu", "numpy", "tolist"):
        original = getattr(torch.Tensor, name)

        def counted(self: torch.Tensor, *args: Any, original: Any = original, **kwargs: Any) -> Any:
            reads.count += 1
            return original(self, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, counted)
    with reads:
        made.learn(1)
    monkeypatch.undo()
    return reads.count


def test_c24_the_host_waits_for_the_device_a_few_times_per_iteration_and_never_per_step(monkeypatch):
    few = host_reads(monkeypatch, num_steps=4, num_epochs=1)
    many = host_reads(monkeypatch, num_steps=16, num_epochs=4)
    assert many == few
    assert few <= 16


# ------------------------------------------------------------------ checkpoints


def test_c10_a_run_goes_on_with_the_next_iteration(tmp_path):
    made = runner(tmp_path)
    made.learn(3)
    assert made.current_learning_iteration == 2  # the number of the last one, as in RSL-RL
    made.learn(2)
    assert made.current_learning_iteration == 4
    resumed = runner(tmp_path)
    resumed.load(str(tmp_path / "model_4.pt"))
    assert resumed.current_learning_iteration == 4
    resumed.learn(2)
    records = read_records(tmp_path / "metrics.jsonl")
    assert [record["iteration"] for record in records] == list(range(7))
    assert [record["env_steps"] for record in records] == [STEPS * NUM_ENVS * (i + 1) for i in range(7)]
    assert all(a["wall_time_s"] < b["wall_time_s"] for a, b in itertools.pairwise(records))
    assert files(tmp_path) == [f"model_{i}.pt" for i in (0, 2, 4, 6)]


def test_c10_a_resumed_run_equals_one_that_was_never_stopped(tmp_path):
    torch.manual_seed(5)
    whole = runner(tmp_path / "whole")
    whole.learn(4)
    torch.manual_seed(5)
    runner(tmp_path / "parts").learn(2)
    torch.manual_seed(77)  # what a new process happens to begin with
    resumed = runner(tmp_path / "parts", Env(seed=9))
    resumed.load(str(tmp_path / "parts" / "model_1.pt"))
    torch.manual_seed(78)
    resumed.learn(2)
    assert same(weights(whole), weights(resumed))
    times = ("wall_time_s", "Perf/")
    for a, b in zip(
        *(read_records(tmp_path / name / "metrics.jsonl") for name in ("whole", "parts")), strict=True
    ):
        assert {k: v for k, v in a.items() if not k.startswith(times)} == {
            k: v for k, v in b.items() if not k.startswith(times)
        }


@pytest.mark.parametrize("rnn_type", ["gru", "lstm"])
def test_c10_a_resumed_memory_goes_on_with_the_episodes(tmp_path, rnn_type):
    def recurrent(name, **kwargs):
        cfg = config()
        for part in ("actor", "critic"):
            cfg[part] |= {"class_name": "RNNModel", "rnn_type": rnn_type, "rnn_hidden_dim": 4}
        torch.manual_seed(5)
        return OnPolicyRunner(Env(**kwargs), cfg, str(tmp_path / name))

    whole = recurrent("whole")
    whole.learn(2)
    recurrent("parts").learn(1)
    resumed = recurrent("parts", seed=9)
    resumed.load(str(tmp_path / "parts" / "model_0.pt"))
    resumed.learn(1)
    assert same(weights(whole), weights(resumed))


def test_a_policy_that_is_only_used_keeps_its_own_random_numbers(tmp_path):
    runner(tmp_path).learn(1)
    made = runner()
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    made.load(str(tmp_path / "model_0.pt"))
    made.get_inference_policy()
    assert torch.equal(torch.rand(3), expected)


def test_a_client_that_sets_the_iteration_goes_on_after_it(tmp_path):
    made = minimal(tmp_path)
    made.current_learning_iteration = 7
    made.learn(1)
    assert made.current_learning_iteration == 8
    made.current_learning_iteration = 0  # from the beginning
    made.learn(1)
    assert made.current_learning_iteration == 0


def test_checkpoints_of_rsl_rl_go_on_after_their_iteration(tmp_path):
    made = runner()
    made.learn(1)
    made.save(tmp_path / "first.pt", format="rsl_rl")
    saved = torch.load(tmp_path / "first.pt", weights_only=True)
    keys = {"actor_state_dict", "critic_state_dict", "optimizer_state_dict", "iter", "infos"}
    assert saved.keys() == keys
    again = runner()
    again.load(tmp_path / "first.pt")
    again.learn(1)
    assert again.current_learning_iteration == 1
    untrained = runner()
    untrained.save(tmp_path / "before.pt", format="rsl_rl")
    again.load(tmp_path / "before.pt")
    again.learn(1)
    assert again.current_learning_iteration == 0
    with pytest.raises(ConfigError, match="format 'onnx'; expected 'surefoot' or 'rsl_rl'"):
        made.save(tmp_path / "x.pt", format="onnx")


@pytest.mark.parametrize("form", ["rsl_rl", "surefoot"])
def test_the_real_rsl_rl_lib_goes_on_from_our_checkpoints_and_we_from_its(tmp_path, form):
    real = pytest.importorskip("rsl_rl.runners")
    made = runner()
    made.learn(2)
    made.save(tmp_path / "ours.pt", format=form)
    env = Env()
    env.cfg = {}  # it cannot do without
    theirs = real.OnPolicyRunner(env, config(), None, "cpu")
    theirs.load(str(tmp_path / "ours.pt"))
    obs = made.env.get_observations()
    torch.testing.assert_close(theirs.get_inference_policy()(obs), made.get_inference_policy()(obs))
    assert theirs.alg.learning_rate == pytest.approx(made.alg.learning_rate)
    theirs.learn(2)
    theirs.save(str(tmp_path / "theirs.pt"))

    back = runner()
    back.load(tmp_path / "theirs.pt")
    torch.testing.assert_close(back.get_inference_policy()(obs), theirs.get_inference_policy()(obs))
    back.learn(1)
    assert back.current_learning_iteration == theirs.current_learning_iteration + 1


def test_infos_come_back_as_they_were(tmp_path):
    import numpy as np

    infos = {
        "env_state": {"common_step_counter": np.int64(5), "levels": np.arange(3)},
        "name": "a",
        "t": (1, 2),
    }
    made = runner()
    made.save(tmp_path / "x.pt", infos)
    found = made.load(tmp_path / "x.pt")
    assert found["env_state"]["common_step_counter"] == 5
    assert np.array_equal(found["env_state"]["levels"], np.arange(3))
    assert found["t"] == (1, 2)
    with pytest.raises(CheckpointError, match=r"'infos\.env' is a Env"):
        made.save(tmp_path / "x.pt", {"env": Env()})
    assert made.load(tmp_path / "x.pt")["name"] == "a"  # the file that was there stays


def test_load_cfg_takes_parts(tmp_path):
    made = runner()
    made.learn(2)
    made.save(tmp_path / "x.pt")
    other = runner()
    before = weights(other)
    other.load(tmp_path / "x.pt", load_cfg={"actor": True})
    after, wanted = weights(other), weights(made)
    assert all(torch.equal(after[k], wanted[k] if k.startswith("actor.") else before[k]) for k in after)
    assert other.current_learning_iteration == 0


@pytest.mark.parametrize("form", [{"load_optimizer": False}, {"load_cfg": False}, {"load_cfg": True}])
def test_versions_1_to_3_say_whether_the_optimizer_is_loaded(tmp_path, form):
    made = runner(tmp_path)
    made.learn(1)
    made.alg.learning_rate = 0.25
    made.save(tmp_path / "x.pt")
    other = runner()
    other.load(tmp_path / "x.pt", **form)
    assert same(weights(made), weights(other))
    assert (other.alg.learning_rate == 0.25) == (form == {"load_cfg": True})
    assert other.current_learning_iteration == 0
    other.learn(1)
    assert other.current_learning_iteration == 1


def test_a_save_interval_of_0_keeps_the_last_iteration_only(tmp_path):
    minimal(tmp_path, save_interval=0).learn(3)
    assert files(tmp_path) == ["model_2.pt"]


def test_checkpoints_that_do_not_fit_or_are_damaged_are_named(tmp_path):
    runner(tmp_path).learn(1)
    path = tmp_path / "model_0.pt"
    wide = runner(None, None, actor={**config()["actor"], "hidden_dims": [32, 8]})
    with pytest.raises(CheckpointError, match=r"actor: the layer 'mlp\.0\.weight'.*\(16, 4\).*\(32, 4\)"):
        wide.load(path)
    half = tmp_path / "half.pt"
    half.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(CheckpointError, match=r"half\.pt is cut off"):
        runner().load(half)
    with pytest.raises(CheckpointError, match=r"there is no checkpoint .*nothing\.pt"):
        runner().load(tmp_path / "nothing.pt")


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("executed",)


def test_a_checkpoint_executes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"actor_state_dict": {}, "iter": 0, "infos": Evil()}, "x.pt")
    with pytest.raises(CheckpointError, match="nothing in it was executed"):
        runner().load("x.pt")
    assert not Path("executed").exists()


def test_a_full_disk_does_not_end_a_run_but_the_last_checkpoint_must_be_there(tmp_path, monkeypatch):
    def refuse(path: Any, _: Any) -> None:
        raise CheckpointError(f"cannot write {path}: no space left.")

    monkeypatch.setattr("surefoot.compat.rsl_rl.runners.on_policy_runner.write_whole", refuse)
    made = minimal(tmp_path)
    with pytest.warns(UserWarning, match=r"model_0\.pt: no space left. Training goes on"):
        made.learn(1)
    with pytest.raises(CheckpointError, match=r"model_1\.pt"):
        made.learn(1)


def test_tensorboard_and_surefoots_records_hold_the_same(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    runner(tmp_path).learn(2)
    record = read_records(tmp_path / "metrics.jsonl")[-1]
    events = EventAccumulator(str(tmp_path)).Reload()
    tags = {tag for tag in events.Tags()["scalars"] if not tag.endswith("/time")}
    assert tags == {k for k, x in record.items() if x is not None and k != "iteration"}
    for tag in ("Train/mean_reward", "Loss/value", "Loss/kl", "Metrics/error", "Policy/mean_std"):
        assert events.Scalars(tag)[-1].value == pytest.approx(record[tag], rel=1e-5)
    assert record["Train/episodes"] > 0


def test_intrinsic_rewards_of_a_rollout_are_logged_beside_those_of_the_environment(tmp_path):
    rnd = {"weight": 5.0, "predictor_hidden_dims": [8], "target_hidden_dims": [8], "num_outputs": 2}
    groups = {"actor": ["policy"], "critic": ["critic"], "rnd_state": ["policy"]}
    algorithm = {**genesis_cfg()["algorithm"], "rnd_cfg": rnd}
    runner(tmp_path, None, algorithm=algorithm, obs_groups=groups).learn(2)
    record = read_records(tmp_path / "metrics.jsonl")[-1]
    assert record["Rnd/mean_extrinsic_reward"] == record["Train/mean_reward"] < 0
    assert record["Rnd/mean_intrinsic_reward"] > 0
    assert record["Rnd/weight"] > 0


# ------------------------------------------------------------------ use


def test_c15_a_policy_for_use_is_independent_of_training():
    made = runner()
    made.learn(1)
    policy = made.get_inference_policy(device="cpu")
    assert made.alg.actor.training
    assert not policy.training
    obs = made.env.get_observations()
    before = policy(obs)
    assert not before.requires_grad
    made.learn(1)
    assert torch.equal(policy(obs), before)
    with torch.no_grad():
        next(policy.parameters()).zero_()
    assert not torch.equal(next(made.alg.actor.parameters()), next(policy.parameters()))
    assert policy.obs_dim == NUM_OBS
    assert policy.is_recurrent is False
    with pytest.raises(AttributeError, match="nothing"):
        policy.nothing  # noqa: B018


RECURRENT = {"class_name": "RNNModel", "rnn_type": "gru", "rnn_hidden_dim": 8}


def test_c15_a_recurrent_policy_keeps_a_memory_of_its_own():
    cfg = config()
    made = OnPolicyRunner(Env(), {**cfg, "actor": {**cfg["actor"], **RECURRENT}})
    made.learn(1)
    state = made.alg.actor.get_hidden_state().clone()
    policy, obs = made.get_inference_policy(), made.env.get_observations()
    first, second = policy(obs), policy(obs)
    assert not torch.equal(first, second)
    assert torch.equal(made.alg.actor.get_hidden_state(), state)
    policy.reset(torch.arange(NUM_ENVS) == 0)
    third = policy(obs)
    torch.testing.assert_close(third[0], first[0])
    assert not torch.allclose(third[1], first[1])
    policy.reset()
    torch.testing.assert_close(policy(obs), first)


def test_observations_for_use_may_have_any_form():
    made = runner(None, None, obs_groups={"actor": ["policy", "critic"], "critic": ["critic"]})
    policy, obs = made.get_inference_policy(), made.env.get_observations()
    expected = policy(obs)
    groups = dict(obs.items())
    assert torch.equal(policy(groups), expected)
    assert torch.equal(policy.act_inference(torch.cat([groups["policy"], groups["critic"]], 1)), expected)
    torch.testing.assert_close(policy({name: x[1] for name, x in groups.items()}), expected[1])
    torch.testing.assert_close(policy(torch.cat([groups["policy"][1], groups["critic"][1]])), expected[1])
    with pytest.raises(
        EnvContractError, match=r"reads policy \(4\), critic \(5\) side by side, 9 numbers; got 4"
    ):
        policy(groups["policy"])


@pytest.mark.parametrize("memory", [{}, RECURRENT, {**RECURRENT, "rnn_type": "lstm"}])
def test_c27_exports_hold_normaliser_and_memory_and_take_any_number_of_robots(tmp_path, memory):
    onnxruntime = pytest.importorskip("onnxruntime")
    cfg = config()
    made = OnPolicyRunner(Env(), {**cfg, "actor": {**cfg["actor"], **memory}})
    made.learn(1)
    made.export_policy_to_onnx(str(tmp_path / "exported"))
    made.export_policy_to_jit(str(tmp_path / "exported"), filename="own.pt")
    policy = made.get_inference_policy()
    session = onnxruntime.InferenceSession(str(tmp_path / "exported" / "policy.onnx"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.load(str(tmp_path / "exported" / "own.pt"))
    for num_robots in (1, 5):
        policy.reset()
        scripted.reset()
        states = {x.name: torch.zeros(1, num_robots, 8) for x in session.get_inputs()[1:]}
        for _ in range(2):
            obs = torch.randn(num_robots, NUM_OBS)
            expected = policy(obs)
            torch.testing.assert_close(scripted(obs), expected, rtol=0, atol=1e-5)
            named = {"obs": obs.numpy(), **{name: x.numpy() for name, x in states.items()}}
            actions, *after = session.run(None, named)
            torch.testing.assert_close(torch.as_tensor(actions), expected, rtol=0, atol=1e-5)
            states = dict(zip(states, map(torch.as_tensor, after), strict=True))


def test_c27_an_export_that_acts_otherwise_is_refused(tmp_path):
    pytest.importorskip("onnxruntime")

    class Branching(nn.Module):
        input_names, output_names = ("obs",), ("actions",)

        def get_dummy_inputs(self, batch_size: int = 1) -> tuple[torch.Tensor, ...]:
            return (torch.zeros(batch_size, 2),)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if bool((x == 0).all()) else x - 1

    own = minimal()
    own.alg.policy = SimpleNamespace(as_onnx=lambda **_: Branching())
    with pytest.raises(SurefootError, match="other actions than PyTorch"):
        own.export_policy_to_onnx(str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_student_needs_a_teacher():
    model = {"class_name": "MLPModel", "hidden_dims": [8]}
    cfg = {
        "num_steps_per_env": 2,
        "save_interval": 2,
        "obs_groups": {"student": ["policy"], "teacher": ["critic"]},
        "algorithm": {"class_name": "Distillation"},
        "student": {**model, "distribution_cfg": {"class_name": "GaussianDistribution"}},
        "teacher": model,
    }
    made = DistillationRunner(Env(), cfg)
    with pytest.raises(ValueError, match="Teacher model parameters not loaded"):
        made.learn(1)


# ------------------------------------------------------------------ several processes


def train_as_rank(rank: int, directory: str) -> None:
    """With another number of environments in each process, in a group that exists already."""
    warnings.simplefilter("ignore")
    torch.manual_seed(rank)
    env = Env(num_envs=4 + 2 * rank, seed=rank)
    made = OnPolicyRunner(env, config(), directory)
    assert (made.is_distributed, made.gpu_world_size, made.gpu_global_rank) == (True, 2, rank)
    assert made.cfg["multi_gpu"] == {"global_rank": rank, "local_rank": 0, "world_size": 2}
    made.learn(2)
    own = [len(made.logger.rewbuffer), *(float(x.double().sum()) for x in weights(made).values())]
    theirs = distributed.gather_objects(own)
    assert theirs[0] == theirs[1]
    if rank == 0:  # alone, while the other waits for nothing
        policy = made.get_inference_policy()
        policy(env.get_observations())
        made.eval_mode()
        made.alg.get_policy().update_normalization(env.get_observations())
        assert files(Path(directory)) == ["model_0.pt", "model_1.pt"]
    resumed = OnPolicyRunner(Env(num_envs=4 + 2 * rank), config(), directory)
    resumed.load(os.path.join(directory, "model_1.pt"))
    resumed.learn(1)


def test_c26_a_group_of_processes_that_exists_already_is_used():
    dist = torch.distributed
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        minimal().learn(1)
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_c21_c25_c26_processes_on_the_cpu_train_one_policy_and_log_all_environments(tmp_path):
    run_ranks(train_as_rank, str(tmp_path))
    records = read_records(tmp_path / "metrics.jsonl")
    assert [record["env_steps"] for record in records] == [STEPS * 10, STEPS * 20, STEPS * 30]
    # both processes' episodes: one alone has 4 or 6 environments, of which each ends at least once
    assert records[0]["Train/episodes"] >= 10
    assert json.dumps(records[-1])


# ------------------------------------------------------------------ threads


@pytest.mark.parametrize(
    ("actor", "wanted"),
    [
        ({"hidden_dims": [256, 128, 64]}, 1),
        ({"hidden_dims": [512, 256, 128]}, 2),
        ({"class_name": "RNNModel", "hidden_dims": [8], "rnn_type": "gru", "rnn_hidden_dim": 8}, 2),
    ],
)
def test_small_perceptrons_learn_in_one_thread(actor: dict[str, Any], wanted: int) -> None:
    env, seen, before = Env(), [], torch.get_num_threads()
    env.spoil = lambda returned: seen.append(torch.get_num_threads()) or returned
    cfg = config()
    cfg["actor"] = {**cfg["actor"], **actor}
    try:
        torch.set_num_threads(2)
        OnPolicyRunner(env, cfg, None).learn(1)
        assert set(seen) == {wanted}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
