"""Distillation: what an update does to the student, what is remembered, what does not count; it learns."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ranks import run_ranks
from surefoot.algorithm.distillation import Distillation, DistillationConfig
from surefoot.errors import CheckpointError, ConfigError, EnvContractError
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import ActorConfig, CriticConfig, DistributionConfig
from surefoot.testing.environments import TinyEnv
from surefoot.types import EnvSpec, Step

N, T, D, A = 4, 6, 3, 2
GROUPS = {"policy": D, "privileged": D + 1}


def box(*shape: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, shape, np.float32)


def policy_on(group: str, spec: EnvSpec, rnn_type: Any = None, **actor: Any) -> ActorCritic:
    network: dict[str, Any] = {
        "hidden_dims": [8],
        "activation": "tanh",
        "rnn_type": rnn_type,
        "rnn_hidden_dim": 4,
    }
    configs = ActorConfig(**{**network, "last_layer_gain": 1.0, **actor}), CriticConfig(**network)
    return ActorCritic(spec, *configs, obs_groups={"actor": [group], "critic": [group]})


def build(
    rnn_type: Any = None,
    teacher_rnn: Any = None,
    num_envs: int = N,
    student: dict[str, Any] | None = None,
    **config: Any,
) -> Distillation:
    torch.manual_seed(0)
    spec = EnvSpec({g: box(d) for g, d in GROUPS.items()}, box(A), num_envs)
    student_policy = policy_on("policy", spec, rnn_type, **(student or {}))
    teacher = policy_on("privileged", spec, teacher_rnn)
    config = {"gradient_length": 4, "optimizer": "sgd", "learning_rate": 0.1, **config}
    return Distillation(student_policy, teacher, spec, DistillationConfig(**config), num_steps_per_env=T)


def transitions(
    seed: int = 0, num_envs: int = N, num_steps: int = T, end: float = 0.2
) -> list[dict[str, Any]]:
    """Made-up observations [N, ...], and which of them are an episode's last."""
    draw = torch.Generator().manual_seed(seed)
    return [
        {
            "obs": {g: torch.randn(num_envs, d, generator=draw) for g, d in GROUPS.items()},
            "dones": torch.rand(num_envs, generator=draw) < end,
        }
        for _ in range(num_steps)
    ]


def collect(alg: Distillation, steps: list[dict[str, Any]]) -> list[Tensor]:
    """A rollout of these steps; the student's actions."""
    actions = []
    for step in steps:
        actions.append(alg.act(step["obs"]))
        no = torch.zeros_like(step["dones"])
        valid = step.get("valid")
        alg.process_env_step(Step(step["obs"], torch.zeros(len(no)), step["dones"], no, valid=valid))
    alg.compute_returns(steps[0]["obs"])
    return actions


def weights(alg: Distillation) -> list[Tensor]:
    return [p.detach().clone() for p in alg.student.parameters()]


# ---------------------------------------------------------------------- what an update does


def reference(
    alg: Distillation, steps: list[dict[str, Any]], start: dict[str, Tensor], loss: Any, epochs: int
) -> list[float]:
    """The algorithm written out, step by step: the gradient is cut every 4 steps. Gives all steps' errors."""
    student, teacher = alg.student, alg.teacher
    hidden, wanted = teacher.initial_hidden(N), []
    with torch.no_grad():
        for step in steps:
            distribution, hidden = teacher.advance(teacher.inputs(step["obs"], ("actor",)), hidden)
            wanted.append(distribution.mode())
            hidden = {name: x * ~step["dones"][:, None] for name, x in hidden.items()}
    errors = []
    for _ in range(epochs):
        hidden, total = start, torch.zeros(())
        for t, step in enumerate(steps):
            distribution, hidden = student.advance(student.inputs(step["obs"], ("actor",)), hidden)
            error = loss(distribution.mode(), wanted[t])
            total = total + error
            errors.append(error.item())
            hidden = {name: x * ~step["dones"][:, None] for name, x in hidden.items()}
            if t % 4 == 3 or t == T - 1:
                student.zero_grad()
                total.backward()
                with torch.no_grad():
                    for p in student.parameters():
                        p -= 0.1 * (0.0 if p.grad is None else p.grad)
                hidden, total = {name: x.detach() for name, x in hidden.items()}, torch.zeros(())
    return errors


@pytest.mark.parametrize("rnn_type", [None, "gru", "lstm"])
@pytest.mark.parametrize("loss_type", ["mse", "huber"])
def test_an_update_is_backpropagation_through_gradient_length_steps_and_a_last_shorter_part(
    rnn_type: Any, loss_type: str
) -> None:
    alg = build(rnn_type, teacher_rnn="gru", loss_type=loss_type, num_learning_epochs=2)
    by_hand = copy.deepcopy(alg)
    steps = transitions()
    loss = {"mse": nn.functional.mse_loss, "huber": nn.functional.huber_loss}[loss_type]
    errors = reference(by_hand, steps, by_hand.student.initial_hidden(N), loss, epochs=2)
    collect(alg, steps)
    metrics = alg.update()
    torch.testing.assert_close(weights(alg), weights(by_hand))
    assert metrics["Loss/behavior"] == pytest.approx(np.mean(errors), rel=1e-5)
    assert metrics["Loss/skipped_updates"] == 0


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "rmsprop"])
def test_only_the_student_learns_and_what_the_mean_does_not_reach_stays(optimizer: str) -> None:
    alg = build(optimizer=optimizer)
    teacher = {k: x.clone() for k, x in alg.teacher.state_dict().items()}
    before = {name: p.detach().clone() for name, p in alg.student.named_parameters()}
    collect(alg, transitions())
    alg.update()
    assert all(torch.equal(x, teacher[k]) for k, x in alg.teacher.state_dict().items())
    stays = {name for name, p in alg.student.named_parameters() if torch.equal(p, before[name])}
    assert stays == {name for name in before if "std" in name or name.startswith(("critic", "value_head"))}


def test_a_step_is_never_longer_than_max_grad_norm() -> None:
    alg = build(max_grad_norm=1e-3, learning_rate=1.0, gradient_length=T)
    before = weights(alg)
    collect(alg, transitions())
    assert alg.update()["Loss/grad_norm"] > 1e-2
    moved = torch.cat([(a - b).flatten() for a, b in zip(weights(alg), before, strict=True)]).norm()
    assert moved == pytest.approx(1e-3, rel=1e-2)


def test_the_students_normaliser_is_frozen_during_the_update_and_counts_the_rollout_afterwards() -> None:
    alg = build(student={"obs_normalization": True, "obs_clip": None}, num_learning_epochs=2)
    frozen = build(student={"obs_normalization": False}, num_learning_epochs=2)
    frozen.student.load_state_dict(alg.student.state_dict(), strict=False)
    steps = transitions()
    for one in (alg, frozen):
        collect(one, steps)
        one.update()
    # until the first count the normaliser changes nothing
    own = dict(alg.student.named_parameters())
    for name, x in frozen.student.named_parameters():
        torch.testing.assert_close(x, own[name])
    normalizer = alg.student.inputs.normalizers["actor"]
    rows = torch.cat([step["obs"]["policy"] for step in steps])
    assert normalizer.count == T * N
    torch.testing.assert_close(normalizer.shift, rows.mean(0))


# ---------------------------------------------------------------------- memory


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
def test_memories_begin_anew_after_dones_of_any_dtype(dtype: torch.dtype) -> None:
    alg, by_steps = build("gru", teacher_rnn="gru"), build("gru", teacher_rnn="gru")
    steps = transitions(end=0.4)
    assert sum(int(s["dones"].sum()) for s in steps) > 3
    collect(by_steps, steps)
    for step in steps:
        alg.act(step["obs"])
        alg.process_env_step(step["obs"], torch.zeros(N), step["dones"].to(dtype), {})
    alg.compute_returns(steps[0]["obs"])
    alg.update()
    by_steps.update()
    torch.testing.assert_close(weights(alg), weights(by_steps), rtol=0, atol=0)


@pytest.mark.parametrize("teacher_rnn", ["gru", "lstm"])
def test_c05_a_recurrent_teacher_remembers_over_updates(teacher_rnn: str) -> None:
    alg = build(teacher_rnn=teacher_rnn)
    steps = transitions(num_steps=3 * T, end=0.05)
    teacher, hidden, wanted = copy.deepcopy(alg.teacher), alg.teacher.initial_hidden(N), []
    with torch.no_grad():
        for step in steps:
            distribution, hidden = teacher.advance(teacher.inputs(step["obs"], ("actor",)), hidden)
            wanted.append(distribution.mode())
            hidden = {name: x * ~step["dones"][:, None] for name, x in hidden.items()}
    for i in range(3):
        collect(alg, steps[i * T : (i + 1) * T])
        torch.testing.assert_close(alg.teacher_actions, torch.stack(wanted[i * T : (i + 1) * T]))
        alg.update()


def test_a_recurrent_student_goes_on_with_what_its_new_weights_remember() -> None:
    alg = build("gru", learning_rate=1e-4, gradient_length=T)
    steps = transitions(end=0.0)
    collect(alg, steps)
    alg.update()
    hidden = alg.student.initial_hidden(N)
    for step in steps:
        _, hidden = alg.student.advance(alg.student.inputs(step["obs"], ("actor",)), hidden)
    torch.testing.assert_close(alg.hidden["actor"], hidden["actor"].detach(), rtol=1e-2, atol=1e-3)
    start = alg.hidden["actor"].clone()
    collect(alg, steps)
    # the second rollout is learned from that state on
    assert torch.equal(alg.storage.hidden["actor"][0], start)


# ---------------------------------------------------------------------- rows and steps that do not count


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_rows_that_are_not_valid_have_no_effect(data: st.DataObject) -> None:
    rows = st.lists(st.booleans(), min_size=N, max_size=N)
    valid = [torch.tensor(data.draw(rows)) for _ in range(T)]
    rnn_type = data.draw(st.sampled_from([None, "gru"]))
    results = []
    for rubbish in (0.0, 1e3):
        alg = build(rnn_type, student={"obs_normalization": True})
        steps = transitions(end=0.0)
        for step, mask in zip(steps, valid, strict=True):
            step["valid"] = mask
            step["obs"] = {g: torch.where(mask[:, None], x, rubbish) for g, x in step["obs"].items()}
        for _ in range(2):
            collect(alg, steps)
            metrics = alg.update()
        results.append([*weights(alg), metrics["Loss/behavior"]])
    torch.testing.assert_close(*results)


def test_without_any_valid_row_momentum_alone_moves_nothing() -> None:
    alg = build(optimizer="adam")
    collect(alg, transitions())
    alg.update()
    before = weights(alg)
    collect(alg, [{**step, "valid": torch.zeros(N, dtype=torch.bool)} for step in transitions()])
    metrics = alg.update()
    assert all(torch.equal(a, b) for a, b in zip(before, weights(alg), strict=True))
    assert metrics["Loss/skipped_updates"] == 0
    assert metrics["Loss/behavior"] == 0


def test_a_step_that_would_not_be_finite_is_left_out_and_counted() -> None:
    alg, shorter = build(optimizer="adam"), build(optimizer="adam")
    steps = transitions()
    collect(alg, steps)
    collect(shorter, steps)
    alg.storage.actions[1, 0] = torch.inf
    shorter.storage.valid[:4] = False
    assert alg.update()["Loss/skipped_updates"] == 1
    shorter.update()
    # the second part, steps 4 and 5, is learned from
    torch.testing.assert_close(weights(alg), weights(shorter))


# ---------------------------------------------------------------------- resuming, processes


@pytest.mark.parametrize("rnn_type", [None, "gru"])
def test_it_goes_on_bit_for_bit(rnn_type: Any) -> None:
    alg = build(rnn_type, teacher_rnn="lstm", optimizer="adam", student={"obs_normalization": True})
    for seed in range(2):
        collect(alg, transitions(seed))
        alg.update()
    resumed = build(rnn_type, teacher_rnn="lstm", optimizer="adam", student={"obs_normalization": True})
    resumed.load_state(copy.deepcopy(alg.state()))
    acted = [collect(one, transitions(2)) for one in (alg, resumed)]
    assert torch.equal(torch.stack(acted[0]), torch.stack(acted[1]))
    for one in (alg, resumed):
        one.update()
    for name, x in alg.state()["tensors"].items():
        assert torch.equal(x, resumed.state()["tensors"][name]), name
    assert resumed.iteration == 3


def test_a_state_of_other_networks_is_refused() -> None:
    with pytest.raises(CheckpointError, match="checkpoint lacks 'actor'"):
        build("gru").load_state(build().state())


def learn_as_rank(rank: int, folder: Path) -> None:
    alg = build("gru", num_envs=2)
    steps = transitions()
    mine = slice(2 * rank, 2 * rank + 2)
    valid = torch.tensor([True, rank == 0])  # the ranks have different numbers of rows
    for step in steps:
        step["obs"] = {g: x[mine] for g, x in step["obs"].items()}
        step["dones"], step["valid"] = step["dones"][mine], valid
    collect(alg, steps)
    alg.update()
    torch.save(weights(alg), folder / f"{rank}.pt")


def test_two_processes_learn_what_one_learns_from_all_rows(tmp_path: Path) -> None:
    alg = build("gru")
    steps = [{**step, "valid": torch.tensor([True, True, True, False])} for step in transitions()]
    collect(alg, steps)
    alg.update()
    run_ranks(learn_as_rank, tmp_path)
    for rank in range(2):
        torch.testing.assert_close(torch.load(tmp_path / f"{rank}.pt"), weights(alg))


# ---------------------------------------------------------------------- errors


def test_actions_without_a_mean_are_refused() -> None:
    spec = EnvSpec({"policy": box(D), "privileged": box(D)}, spaces.Discrete(3), N)
    with pytest.raises(ConfigError, match=r"actions that are numbers; got Discrete\(3\)"):
        Distillation(policy_on("policy", spec), policy_on("privileged", spec), spec)


def test_an_incomplete_rollout_is_refused() -> None:
    alg = build()
    alg.act(transitions()[0]["obs"])
    with pytest.raises(EnvContractError, match=f"holds 0 of {T} steps"):
        alg.compute_returns(transitions()[0]["obs"])


def test_a_bad_number_names_its_key() -> None:
    with pytest.raises(ConfigError, match="gradient_length"):
        DistillationConfig(gradient_length=0)


# ---------------------------------------------------------------------- it learns


class RecallEnv(TinyEnv):
    """Reward -|action - goal|; `full` shows the goal always, `glimpse` only in an episode's first step."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, episode_length=5, groups={"full": 1, "glimpse": 2})

    def judge(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        return -(actions - self.goal).abs().sum(-1), torch.zeros(self.num_envs, dtype=torch.bool)

    def draw_goals(self) -> Tensor:
        return torch.rand(self.goal.shape, generator=self.generator) * 1.6 - 0.8

    def observe(self) -> dict[str, Tensor]:
        is_first = (self.elapsed == 0).unsqueeze(-1).float()
        return {"full": self.goal.clone(), "glimpse": torch.cat([self.goal * is_first, is_first], -1)}


def mean_reward(env: RecallEnv, policy: ActorCritic) -> float:
    policy.reset()
    obs, rewards = env.reset(seed=1), []
    for _ in range(10):
        step = env.step(policy.act(obs))
        policy.reset(step.starts)
        obs = step.observations
        rewards.append(step.rewards.mean().item())
    policy.reset()
    return float(np.mean(rewards))


def test_a_student_that_sees_less_learns_to_remember_what_its_teacher_sees() -> None:
    torch.manual_seed(0)
    env = RecallEnv(32)
    spec = EnvSpec(env.observation_spaces, env.action_space, env.num_envs)
    teacher = policy_on("full", spec, hidden_dims=[])
    with torch.no_grad():  # it does what it sees
        teacher.action_head.linear.weight.fill_(1.0)
        teacher.action_head.linear.bias.zero_()
    rnn: dict[str, Any] = {
        "rnn_hidden_dim": 16,
        "hidden_dims": [16],
        "distribution": DistributionConfig(init_std=0.1),
    }
    student = policy_on("glimpse", spec, "gru", **rnn)
    config = DistillationConfig(
        gradient_length=5, learning_rate=5e-3, num_learning_epochs=2, max_grad_norm=1.0
    )
    alg = Distillation(student, teacher, spec, config, num_steps_per_env=10)
    before = mean_reward(env, student)
    losses, obs = [], env.reset(seed=0)
    for _ in range(60):
        for _ in range(10):
            step = env.step(alg.act(obs))
            alg.process_env_step(step)
            obs = step.observations
        alg.compute_returns(obs)
        losses.append(alg.update()["Loss/behavior"].item())
    assert mean_reward(env, teacher) == 0
    assert losses[-1] < 0.05 * losses[0]
    assert mean_reward(env, student) > max(-0.1, 0.3 * before)
