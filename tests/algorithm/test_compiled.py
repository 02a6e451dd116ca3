"""Compiled PPO: the same results, chosen where it pays, and never the end of a run."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium
import pytest
import torch
from hand_made import Task, assert_same_weights, box, make_ppo, make_spec, weights_of
from torch._dynamo.utils import counters

from surefoot.algorithm import compiled
from surefoot.algorithm.compiled import compile_ppo, decide, missing_compiler
from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.extension import Extension
from surefoot.algorithm.ppo import PPO
from surefoot.algorithm.schedules import ScheduleConfig
from surefoot.errors import ConfigError
from surefoot.extensions.auxiliary import EstimatorLoss
from surefoot.extensions.rnd import RND
from surefoot.extensions.symmetry import Symmetry
from surefoot.networks.config import ActorConfig, CriticConfig, DistributionConfig, EstimatorConfig
from surefoot.types import Batch, MirrorMap, PolicyOutput, Step

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
needs_compiler = pytest.mark.skipif(missing_compiler(CPU) is not None, reason="no C++ compiler")
# 8 · 4 rows in mini-batches of 11, 11 and 10
CONFIG = PPOConfig(num_mini_batches=3, num_learning_epochs=2, entropy_coef=0.01, compile="off")


def swapped(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(size).flip(0), torch.ones(size)


MIRROR = MirrorMap({"policy": swapped(3)}, swapped(2))
RECURRENT: dict[str, Any] = {"hidden_dims": [8], "rnn_type": "gru", "rnn_hidden_dim": 8}
CASES: dict[str, Callable[[], PPO]] = {
    "Gaussian": lambda: make_ppo(replace(CONFIG, entropy_schedule=ScheduleConfig(type="linear"))),
    "discrete": lambda: make_ppo(CONFIG, make_spec(4, 3, gymnasium.spaces.Discrete(3)), network="shared"),
    "symmetry": lambda: make_ppo(
        replace(CONFIG, schedule="linear"),
        make_spec(4, 3, 2, MIRROR),
        extensions=[Symmetry(use_data_augmentation=True, use_mirror_loss=True)],
    ),
    "Beta, shared, values normalised": lambda: make_ppo(
        replace(CONFIG, value_loss="huber"),
        make_spec(4, 3, box(2, -1, 1)),
        network="shared",
        actor=ActorConfig(hidden_dims=[8], distribution=DistributionConfig(class_name="Beta")),
        critic=CriticConfig(hidden_dims=[8], value_normalization=True),
    ),
    "masked, penalty": lambda: make_ppo(
        replace(CONFIG, policy_objective="penalty", schedule="fixed", max_kl=0.05),
        make_spec(4, {"policy": box(3), "action_mask": box(5, 0, 1)}, gymnasium.spaces.MultiDiscrete([2, 3])),
    ),
    "state-dependent deviation, estimator": lambda: make_ppo(
        CONFIG,
        make_spec(4, {"policy": box(3), "privileged": box(2)}),
        actor=ActorConfig(
            hidden_dims=[8],
            distribution=DistributionConfig(std_type="state_dependent"),
            estimator=EstimatorConfig(target="privileged", hidden_dims=[4]),
        ),
        obs_groups={"actor": ["policy"], "critic": ["policy", "privileged"]},
        extensions=[EstimatorLoss()],
    ),
    "RND": lambda: make_ppo(replace(CONFIG, normalize_advantage_per_mini_batch=True), extensions=[RND()]),
}


def run(ppo: PPO) -> list[dict[str, torch.Tensor]]:
    return Task(seed=3).run(ppo, 3)


def assert_alike(ours: PPO, theirs: PPO) -> None:
    history, reference = run(ours), run(theirs)
    for mine, other in zip(history, reference, strict=True):
        assert mine.keys() == other.keys()
        for name, value in other.items():
            torch.testing.assert_close(mine[name], value, rtol=1e-5, atol=1e-5, msg=lambda m: f"{name}: {m}")  # noqa: B023
    weights = weights_of(theirs)
    for name, value in weights_of(ours).items():
        torch.testing.assert_close(value, weights[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_what_is_compiled_does_what_it_replaces(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    said: list[str] = []
    ppo = CASES[case]()
    compile_ppo(ppo, "default", said.append)
    assert_alike(ppo, CASES[case]())
    assert said == []


@needs_compiler
@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the compiler's own
@pytest.mark.parametrize("case", CASES)
def test_three_iterations_are_those_of_eager(case: str) -> None:
    torch.compiler.reset()
    counters.clear()
    said: list[str] = []
    ppo = CASES[case]()
    compile_ppo(ppo, "default", said.append)
    assert_alike(ppo, CASES[case]())
    assert said == []
    # of mini-batches there are two lengths; nothing is compiled once more
    assert counters["stats"]["unique_graphs"] <= 2


class Gaps(Task):
    """As of environments that spend a step on each reset: ever other numbers of valid rows."""

    def transition(self, ppo: PPO, actions: torch.Tensor) -> Step:
        valid = torch.rand(ppo.spec.num_envs, generator=self.generator) < 0.8
        return replace(super().transition(ppo, actions), valid=valid)


def with_gaps() -> PPO:
    return make_ppo(CONFIG, num_steps=16)


def test_mini_batches_of_other_lengths_are_filled_up_and_learned_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lengths: list[int] = []

    def compiler(function: Any, **_: Any) -> Any:
        return lambda flat, batch: lengths.append(len(batch.actions)) or function(flat, batch)

    monkeypatch.setattr(torch, "compile", compiler)
    ours, theirs = with_gaps(), with_gaps()
    compile_ppo(ours, "default", pytest.fail)
    history, reference = Gaps(seed=3).run(ours, 4), Gaps(seed=3).run(theirs, 4)
    for mine, other in zip(history, reference, strict=True):
        for name, value in other.items():
            torch.testing.assert_close(mine[name], value, rtol=1e-5, atol=1e-5)
    for name, value in weights_of(theirs).items():
        torch.testing.assert_close(weights_of(ours)[name], value, rtol=1e-5, atol=1e-5)
    assert set(lengths) == {22}  # 4 · 16 rows by 3


def test_added_rows_and_mini_batches_without_a_row_are_learned_from_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)

    def made() -> PPO:
        return make_ppo(replace(CONFIG, schedule="fixed"), make_spec(4, 3, 2, MIRROR), extensions=[
            Symmetry(use_data_augmentation=True)
        ])  # fmt: skip

    class Nothing(Task):
        def transition(self, ppo: PPO, actions: torch.Tensor) -> Step:
            return replace(super().transition(ppo, actions), valid=torch.zeros(4, dtype=torch.bool))

    for task in (Gaps, Nothing):
        ours, theirs = made(), made()
        compile_ppo(ours, "default", pytest.fail)
        task(seed=3).run(ours, 2)
        task(seed=3).run(theirs, 2)
        for name, value in weights_of(theirs).items():
            torch.testing.assert_close(weights_of(ours)[name], value, rtol=1e-5, atol=1e-5)


@needs_compiler
@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the compiler's own
def test_a_compiled_run_resumes_bit_for_bit_whatever_its_rollouts_hold() -> None:
    torch.compiler.reset()
    counters.clear()
    straight, task = with_gaps(), Gaps(seed=3)
    compile_ppo(straight, "default", pytest.fail)
    task.run(straight, 3)
    state, seen = copy.deepcopy(straight.state()), task.generator.get_state()
    task.run(straight, 3)
    # of full mini-batches, should there be one, and of those that were filled up
    assert counters["stats"]["unique_graphs"] <= 2
    torch.compiler.reset()
    resumed = with_gaps()
    compile_ppo(resumed, "default", pytest.fail)
    resumed.load_state(state)
    task.generator.set_state(seen)
    task.run(resumed, 3)
    assert_same_weights(weights_of(straight), weights_of(resumed))


def test_a_recurrent_policy_stays_as_it_is_and_says_so() -> None:
    said: list[str] = []
    ppo = make_ppo(CONFIG, actor=ActorConfig(**RECURRENT), critic=CriticConfig(**RECURRENT))
    compile_ppo(ppo, "default", said.append)
    Task().run(ppo)
    assert said == ["compile: off, the policy is recurrent"]


def test_a_gradient_of_a_subclass_is_not_replaced() -> None:
    class Halved(PPO):
        def gradient(self, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            result = super().gradient(batch)
            self.optimizer.gradient.mul_(0.5)
            return result

    said: list[str] = []
    ppo = make_ppo(CONFIG)
    ppo.__class__ = Halved
    compile_ppo(ppo, "default", said.append)
    assert said == ["compile: off, Halved has its own gradient()"]
    assert "gradient" not in vars(ppo)


class Odd(Extension):
    """Asks the numbers themselves, which no graph can."""

    def loss(self, batch: Batch, out: PolicyOutput, policy: Any) -> dict[str, torch.Tensor]:
        return {"Aux/odd": out.value.mean() * float(out.value.detach().sum() > 0)}


@needs_compiler
@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the compiler's own
def test_what_cannot_be_compiled_goes_on_eagerly_with_a_line_that_says_why() -> None:
    said: list[str] = []
    ppo = make_ppo(CONFIG, extensions=[Odd()])
    compile_ppo(ppo, "default", said.append)
    assert_alike(ppo, make_ppo(CONFIG, extensions=[Odd()]))
    (line,) = said
    assert line.startswith("compile: the mini-batch goes on uncompiled: ")
    assert "\n" not in line


@pytest.mark.filterwarnings("default")  # the compiler's own
def test_a_compiler_that_fails_never_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_function: Any, **_: Any) -> Any:
        def call(*_: Any) -> Any:
            raise RuntimeError("C++ compile error\nof many lines")

        return call

    monkeypatch.setattr(torch, "compile", broken)
    said: list[str] = []
    ppo = make_ppo(CONFIG)
    compile_ppo(ppo, "cudagraph", said.append)
    assert_alike(ppo, make_ppo(CONFIG))
    assert said == [
        f"compile: {what} goes on uncompiled: RuntimeError: C++ compile error"
        for what in ("acting", "GAE", "the mini-batch")
    ]


def test_an_error_of_the_users_own_is_raised_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Extension):
        def loss(self, batch: Batch, out: PolicyOutput, policy: Any) -> dict[str, torch.Tensor]:
            raise ConfigError("mine")

    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    ppo = make_ppo(CONFIG, extensions=[Broken()])
    compile_ppo(ppo, "default", lambda _: None)
    with pytest.raises(ConfigError, match="mine"):
        Task().run(ppo)


def test_off_undoes_it() -> None:
    ppo = make_ppo(CONFIG)
    compile_ppo(ppo, "default", lambda _: None)
    compile_ppo(ppo, "off", lambda _: None)
    assert not set(compiled.REPLACED) & set(vars(ppo))


def test_auto_compiles_where_the_run_is_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "missing_compiler", lambda _: None)
    config = PPOConfig(num_learning_epochs=10, mini_batch_size=64)

    def decided(compile_: Any, iterations: int, device: torch.device = CPU) -> tuple[str, str]:
        ppo = make_ppo(replace(config, compile=compile_))
        ppo.spec = replace(ppo.spec, device=device)
        return decide(ppo, 2048, iterations)

    # 2048 rows: 10 · (32 · 0.5 ms + 1.024 ms) = 0.17 s an iteration
    assert decided("auto", 690)[0] == "off"
    assert decided("cudagraph", 1, CUDA)[0] == "cudagraph"
    assert decided("auto", 720) == (
        "default",
        "it saves about 2 min of this run, whose first iterations take longer",
    )
    assert decided("auto", 1) == decided(False, 10**6) == ("off", "")
    assert decided(True, 1) == ("default", "as configured")
    assert decided("cudagraph", 1)[0] == "default"


def test_without_a_compiler_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    mode, why = decide(make_ppo(PPOConfig(compile="default")), 2048, 10**6)
    assert mode == "off"
    assert why == "no C++ compiler (no-such-compiler) is on the path"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("mode", ["off", "cudagraph"])
def test_an_iteration_reads_the_gpu_at_most_three_times(mode: str) -> None:
    spec = replace(make_spec(64, 8, 4), device=CUDA)
    ppo = make_ppo(CONFIG, spec, prepare=lambda policy: policy.to(CUDA) and None)
    compile_ppo(ppo, mode, lambda _: None)
    generator = torch.Generator(device=CUDA).manual_seed(1)

    def iterate() -> None:
        never = torch.zeros(64, dtype=torch.bool, device=CUDA)
        obs = {"policy": torch.randn(64, 8, device=CUDA, generator=generator)}
        for _ in range(ppo.storage.num_transitions_per_env):
            ppo.act(obs)
            ppo.process_env_step(obs, torch.zeros(64, device=CUDA), never, {})
        ppo.compute_returns(obs)
        ppo.update()

    iterate()  # compiles, and gives the optimiser its state
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.ones((), device=CUDA).item()  # the counter counts
            iterate()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert 1 <= sum("synchroniz" in str(w.message) for w in caught) <= 1 + 3
