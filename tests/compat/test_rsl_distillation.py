"""RSL-RL's Distillation over Surefoot's: parity with 5.5.1, teachers from PPO, memory, older clients."""

from __future__ import annotations

import copy
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("tensordict")

from tensordict import TensorDict

from surefoot.compat.rsl_rl.algorithms import PPO, Distillation
from surefoot.compat.rsl_rl.models import MLPModel
from surefoot.compat.rsl_rl.modules import StudentTeacher
from surefoot.compat.rsl_rl.runners import DistillationRunner, OnPolicyRunner
from surefoot.compat.rsl_rl.storage import RolloutStorage
from surefoot.config import SurefootWarning
from surefoot.errors import CheckpointError, ConfigError, EnvContractError

N, T, A = 4, 6, 2
SETS = {"student": ["policy"], "teacher": ["policy", "privileged"]}
GAUSSIAN = {"class_name": "GaussianDistribution", "init_std": 0.5}
RNN: dict[str, Any] = {"rnn_type": "gru", "rnn_hidden_dim": 5}


def observations(seed: int = 0, num_envs: int = N) -> TensorDict:
    draw = torch.Generator().manual_seed(seed)
    groups = {"policy": 3, "privileged": 2}
    rows = {g: torch.randn(num_envs, d, generator=draw) for g, d in groups.items()}
    return TensorDict(rows, batch_size=[num_envs])


def make(
    package: str = "surefoot.compat.rsl_rl",
    student: dict[str, Any] | None = None,
    teacher: dict[str, Any] | None = None,
    num_steps: int = T,
    **config: Any,
) -> Any:
    """The algorithm of Surefoot's layer, or of RSL-RL itself."""
    models, storages = import_module(f"{package}.models"), import_module(f"{package}.storage")
    torch.manual_seed(0)
    made = []
    for name, changes in (("student", student or {}), ("teacher", teacher or {})):
        kwargs = {"hidden_dims": [8], **changes}
        kind = models.RNNModel if "rnn_type" in kwargs else models.MLPModel
        made.append(kind(observations(), SETS, name, A, **kwargs))
    storage = storages.RolloutStorage("distillation", N, num_steps, observations(), [A])
    config = {"gradient_length": 3, **config}
    algorithm = import_module(f"{package}.algorithms").Distillation(*made, storage, **config)
    algorithm.train_mode()
    return algorithm


def collect(alg: Any, seed: int = 0, end: float = 0.2, dtype: torch.dtype = torch.bool) -> list[Tensor]:
    """A rollout; what the teacher would have done."""
    draw, wanted = torch.Generator().manual_seed(seed), []
    for t in range(alg.storage.num_transitions_per_env):
        alg.act(observations(100 * seed + t))
        wanted.append(alg.transition.privileged_actions)
        dones = (torch.rand(N, generator=draw) < end).to(dtype)
        alg.process_env_step(observations(100 * seed + t + 1), torch.zeros(N), dones, {})
    alg.compute_returns(observations())
    return wanted


# ---------------------------------------------------------------------- parity with RSL-RL 5.5.1


@pytest.mark.parametrize(
    "student", [{}, RNN, {**RNN, "rnn_type": "lstm", "rnn_num_layers": 2}], ids=["mlp", "gru", "lstm"]
)
@pytest.mark.parametrize(
    "config",
    [
        {"num_learning_epochs": 2, "max_grad_norm": 0.1},
        {"loss_type": "huber", "optimizer": "sgd", "learning_rate": 0.1},
    ],
    ids=["adam", "sgd"],
)
def test_updates_are_those_of_rsl_rl(student: dict[str, Any], config: dict[str, Any]) -> None:
    pytest.importorskip("rsl_rl.algorithms")
    student = {**student, "obs_normalization": True, "distribution_cfg": GAUSSIAN}
    torch.set_default_dtype(torch.float64)
    try:
        ours, theirs = (make(p, student, **config) for p in ("surefoot.compat.rsl_rl", "rsl_rl"))
        for name in ("student", "teacher"):
            getattr(ours, name).load_state_dict(getattr(theirs, name).state_dict())
        for seed in range(3):
            losses = []
            for alg in (ours, theirs):
                collect(alg, seed, dtype=torch.long)
                losses.append(alg.update()["behavior"])
            assert losses[0] == pytest.approx(losses[1], rel=1e-6)
        for name, x in theirs.student.state_dict().items():
            torch.testing.assert_close(ours.student.state_dict()[name], x, rtol=1e-7, atol=1e-8, msg=name)
        assert ours.student.obs_normalizer.count == 3 * N * T
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("leaving", [False, True])
def test_checkpoints_pass_between_rsl_rl_and_surefoot(leaving: bool) -> None:
    pytest.importorskip("rsl_rl.algorithms")
    packages = ["surefoot.compat.rsl_rl", "rsl_rl"]
    student = {**RNN, "distribution_cfg": GAUSSIAN}
    source, other = (make(p, student) for p in (packages if leaving else packages[::-1]))
    collect(source)
    source.update()
    saved = copy.deepcopy(source.save())
    assert other.load(saved, None, True)
    assert other.teacher_loaded
    for alg in (source, other):
        alg.student.reset()
        alg.last_hidden_states = (None, None)  # RSL-RL starts its update there, wherever it acted from
        collect(alg, 1)
        alg.update()
    for name, x in source.student.state_dict().items():
        torch.testing.assert_close(other.student.state_dict()[name], x, rtol=1e-4, atol=1e-5, msg=name)


def test_steps_beyond_the_last_whole_gradient_length_are_learned_from_too() -> None:
    """RSL-RL 5.5.1 keeps their loss and never uses it."""
    counts, alg = [], make(num_steps=7, num_learning_epochs=2)
    step = alg.optimizer.step
    alg.optimizer.step = lambda: counts.append(1) or step()
    collect(alg)
    alg.update()
    assert len(counts) == 2 * 3


# ---------------------------------------------------------------------- defects


@pytest.mark.parametrize("rnn_type", ["gru", "lstm"])
def test_c05_a_recurrent_teacher_remembers_over_updates(rnn_type: str) -> None:
    alg = make(teacher={**RNN, "rnn_type": rnn_type})
    alone = copy.deepcopy(alg.teacher)
    for seed in range(3):
        wanted = collect(alg, seed, end=0.0)
        for t, actions in enumerate(wanted):
            torch.testing.assert_close(actions, alone(observations(100 * seed + t)).detach())
        alg.update()


def test_c11_a_deterministic_student_is_trained_and_logged(tmp_path: Path) -> None:
    runner = DistillationRunner(Env(), config(distribution=None), str(tmp_path), "cpu")
    runner.load(teacher_file(tmp_path))
    runner.learn(2)
    assert runner.alg.student.distribution is None
    assert (tmp_path / "model_1.pt").is_file()


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
def test_dones_of_any_dtype_end_memories(dtype: torch.dtype) -> None:
    algs = [make(student=RNN, teacher=RNN) for _ in range(2)]
    for alg, kind in zip(algs, (torch.bool, dtype), strict=True):
        collect(alg, end=0.5, dtype=kind)
        alg.update()
    for a, b in zip(algs[0].student.parameters(), algs[1].student.parameters(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(algs[0].student.get_hidden_state(), algs[1].student.get_hidden_state())


def test_c02_an_environment_may_write_over_its_observations() -> None:
    alg, obs = make(), observations()
    first = obs["policy"].clone()
    alg.act(obs)
    obs["policy"].zero_()
    alg.process_env_step(obs, torch.zeros(N), torch.zeros(N), {})
    assert torch.equal(alg.storage.observations["policy"][0], first)


# ---------------------------------------------------------------------- a teacher from PPO


class Env:
    """The reward is high where the action is the mean of the privileged numbers; episodes of 5 steps."""

    num_envs, num_actions, max_episode_length, device = N, A, 5, "cpu"

    def __init__(self) -> None:
        self.episode_length_buf, self.count = torch.zeros(N, dtype=torch.long), 0

    def get_observations(self) -> TensorDict:
        return observations(self.count)

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        reward = -(actions - self.get_observations()["privileged"]).square().sum(-1)
        self.count += 1
        self.episode_length_buf += 1
        ended = self.episode_length_buf >= 5
        self.episode_length_buf[ended] = 0
        return self.get_observations(), reward, ended.long(), {}


def config(width: int = 8, distribution: Any = GAUSSIAN, **algorithm: Any) -> dict[str, Any]:
    return {
        "num_steps_per_env": T,
        "save_interval": 10,
        "obs_groups": SETS,
        "algorithm": {"class_name": "Distillation", "gradient_length": 3, **algorithm},
        "student": {"class_name": "MLPModel", "hidden_dims": [8], "distribution_cfg": distribution},
        "teacher": {"class_name": "MLPModel", "hidden_dims": [width]},
    }


def teacher_file(folder: Path) -> str:
    """A checkpoint of one iteration of PPO, whose actor reads what the teacher will."""
    ppo = {
        **{key: value for key, value in config().items() if key not in ("student", "teacher")},
        "obs_groups": {"actor": SETS["teacher"], "critic": SETS["teacher"]},
        "algorithm": {"class_name": "PPO"},
        "actor": {"class_name": "MLPModel", "hidden_dims": [8], "distribution_cfg": GAUSSIAN},
        "critic": {"class_name": "MLPModel", "hidden_dims": [8]},
    }
    runner = OnPolicyRunner(Env(), ppo, None, "cpu")
    assert isinstance(runner.alg, PPO)
    runner.learn(1)
    path = folder / "teacher.pt"
    runner.save(path)
    torch.save(runner.alg.actor(observations()).detach(), folder / "actions.pt")
    return str(path)


def test_b05_without_a_teacher_nothing_is_learned() -> None:
    with pytest.raises(ConfigError, match="call load\\(\\) with the teacher's checkpoint"):
        DistillationRunner(Env(), config(), None, "cpu").learn(1)


def test_b05_the_actor_of_ppo_becomes_the_teacher(tmp_path: Path) -> None:
    runner = DistillationRunner(Env(), config(), None, "cpu")
    student = copy.deepcopy(runner.alg.student.state_dict())
    runner.load(teacher_file(tmp_path))
    torch.testing.assert_close(runner.alg.teacher(observations()), torch.load(tmp_path / "actions.pt"))
    for name, x in runner.alg.student.state_dict().items():
        assert torch.equal(x, student[name])
    assert runner.current_learning_iteration == 0
    runner.learn(1)


def test_b05_a_teacher_of_another_width_names_the_layer_and_both_shapes(tmp_path: Path) -> None:
    path = teacher_file(tmp_path)
    runner = DistillationRunner(Env(), config(width=9), None, "cpu")
    with pytest.raises(
        CheckpointError, match=r"teacher: the layer 'mlp.0.weight' has the shape \(8, 5\).*\(9, 5\)"
    ):
        runner.load(path)
    assert not runner.alg.teacher_loaded


def test_a_saved_distillation_goes_on(tmp_path: Path) -> None:
    runner = DistillationRunner(Env(), config(), None, "cpu")
    runner.load(teacher_file(tmp_path))
    runner.learn(2)
    runner.save(tmp_path / "student.pt")
    resumed = DistillationRunner(Env(), config(), None, "cpu")
    resumed.load(tmp_path / "student.pt")
    assert resumed.current_learning_iteration == 1
    for name, x in runner.alg.student.state_dict().items():
        assert torch.equal(x, resumed.alg.student.state_dict()[name])
    resumed.learn(1)


def test_a_checkpoint_that_does_not_fit_changes_nothing() -> None:
    source, alg = make(student=RNN), make(student=RNN)
    collect(source)
    source.update()
    saved, before = source.save(), copy.deepcopy(alg.save())
    for broken, message in (
        ({k: v for k, v in saved.items() if k != "teacher_state_dict"}, "lacks 'teacher_state_dict'"),
        (
            {**saved, "optimizer_state_dict": make().save()["optimizer_state_dict"]},
            "load_cfg without 'optimizer'",
        ),
    ):
        with pytest.raises(CheckpointError, match=message):
            alg.load(broken, None, True)
    for name, x in before["student_state_dict"].items():
        assert torch.equal(x, alg.student.state_dict()[name])
    assert not alg.teacher_loaded
    assert not alg.load(saved, {"student": True}, True)
    assert not alg.teacher_loaded


# ---------------------------------------------------------------------- configuration, attributes


def test_only_the_students_groups_are_stored() -> None:
    alg = Distillation.construct_algorithm(observations(), Env(), {**config(), "multi_gpu": None}, "cpu")
    assert set(alg.storage.observations.keys()) == {"policy"}


@pytest.mark.parametrize("key", ["rnd_cfg", "symmetry_cfg"])
def test_rnd_and_symmetry_are_refused(key: str) -> None:
    cfg = {**config(**{key: {"weight": 1.0}}), "multi_gpu": None}
    with pytest.raises(ConfigError, match=f"algorithm.{key} does not go together with Distillation"):
        Distillation.construct_algorithm(observations(), Env(), cfg, "cpu")


def test_bad_values_name_their_key_and_unused_ones_are_reported() -> None:
    with pytest.raises(ValueError, match="loss_type"):
        make(loss_type="l1")
    with pytest.warns(SurefootWarning, match=r"\['clip_param'\] have no effect"):
        make(clip_param=0.2, rnd_cfg=None)


def test_an_incomplete_rollout_is_refused() -> None:
    alg = make()
    with pytest.raises(EnvContractError, match=f"holds 0 of {T} steps"):
        alg.update()


def test_attributes_may_be_changed_between_iterations() -> None:
    alg = make()
    alg.learning_rate, alg.gradient_length = 1e-2, T
    counts, step = [], alg.optimizer.step
    alg.optimizer.step = lambda: counts.append(1) or step()
    collect(alg)
    alg.update()
    assert (alg.optimizer.param_groups[0]["lr"], len(counts), alg.num_updates) == (1e-2, 1, 1)


def test_mixed_precision_trains_and_auto_is_off_on_the_cpu() -> None:
    assert make(use_mixed_precision="auto").use_mixed_precision is False
    alg = make(student=RNN, use_mixed_precision=True)
    before = copy.deepcopy(alg.student.state_dict())
    collect(alg)
    alg.update()
    assert not torch.equal(before["mlp.0.weight"], alg.student.mlp[0].weight)
    assert alg.student.mlp[0].weight.dtype == torch.float32


def test_a_students_class_of_the_clients_own_is_called_as_it_is() -> None:
    class Doubled(MLPModel):
        def forward(self, *args: Any, **kwargs: Any) -> Tensor:
            return 2 * super().forward(*args, **kwargs)

    alg = make()
    storage = RolloutStorage("distillation", N, T, observations(), [A])
    student = Doubled(observations(), SETS, "student", A, hidden_dims=[8])
    doubled = Distillation(
        student, copy.deepcopy(alg.teacher), storage, gradient_length=3, learning_rate=1e-9
    )
    wanted = torch.stack(collect(doubled))
    with torch.no_grad():
        expected = (student(doubled.storage.observations) - wanted).square().mean().item()
    assert doubled.update()["behavior"] == pytest.approx(expected, rel=1e-4)


def test_a_students_memory_of_another_form_is_refused() -> None:
    class Remembering(MLPModel):
        is_recurrent = True

    storage = RolloutStorage("distillation", N, T, observations(), [A])
    student = Remembering(observations(), SETS, "student", A, hidden_dims=[8])
    with pytest.raises(ConfigError, match="Remembering has a memory and is no RNNModel"):
        Distillation(student, make().teacher, storage)


def test_the_policy_of_2_3_to_3_trains_as_its_two_models() -> None:
    policy = StudentTeacher(
        observations(), {"policy": ["policy"], "teacher": ["policy"]}, A, student_hidden_dims=[8]
    )
    alg = Distillation(policy, gradient_length=3, learning_rate=1e-2)
    alg.init_storage("distillation", N, T, observations(), [A])
    alg.train_mode()
    assert alg.policy is policy
    losses = []
    for _ in range(5):
        collect(alg)
        losses.append(alg.update()["behavior"])
    assert losses[-1] < losses[0]


def test_the_policy_that_older_clients_read_holds_both_models(tmp_path: Path) -> None:
    runner = DistillationRunner(Env(), config(), None, "cpu")
    runner.load(teacher_file(tmp_path))
    policy, obs = runner.alg.policy, observations()
    assert policy.loaded_teacher
    torch.testing.assert_close(policy.act_inference(obs), runner.alg.student(obs))
    torch.testing.assert_close(policy.evaluate(obs), runner.alg.teacher(obs))
    assert make().policy is not None  # a deterministic student stands for itself


def test_a_learning_loop_of_the_clients_own_finds_what_rsl_rl_has() -> None:
    class Own(Distillation):
        def update(self) -> dict[str, float]:
            self.num_updates += 1
            self.student.reset(hidden_state=self.last_hidden_states[0])
            for batch in self.storage.generator():
                loss = self.loss_fn(self.student(batch.observations), batch.privileged_actions)
                self.optimizer.zero_grad()
                loss.backward()
                self.reduce_parameters()
                self.optimizer.step()
                self.student.reset(batch.dones.view(-1))
            self.last_hidden_states = self.student.get_hidden_state(), None
            self.storage.clear()
            return {"behavior": loss.item()}  # pyright: ignore[reportPossiblyUnboundVariable]

    parts = make()
    alg = Own(parts.student, parts.teacher, parts.storage, learning_rate=1e-2, loss_type="huber")
    losses = []
    for _ in range(5):
        collect(alg)
        losses.append(alg.update()["behavior"])
    assert losses[-1] < losses[0]
    assert alg.num_updates == 5
