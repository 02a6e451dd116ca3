"""The measurement of throughput: what is tried, what is recommended, and that it never fails a check."""

from types import SimpleNamespace

import pytest
import torch

from surefoot import tasks
from surefoot.envs import throughput
from surefoot.envs.throughput import Throughput, ThroughputReport, candidates, measure
from surefoot.testing import ConstantEnv

STEP_S = {"sync": 0.001, "async": 0.0004}
"""Of an environment of the simulated backends."""


class Clock:
    """Time that passes when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(throughput, "time", SimpleNamespace(perf_counter=clock))
    return clock


def simulated(clock, making_s=0.0, valid=1.0):
    """A maker of environments whose making and whose steps take simulated time."""

    class Timed(ConstantEnv):
        backend = ""

        def step(self, actions):
            clock.now += self.num_envs * STEP_S[self.backend]
            step = super().step(actions)
            if valid < 1.0:
                step.valid = torch.arange(self.num_envs) < valid * self.num_envs
            return step

    def make(backend, num_envs):
        clock.now += making_s * num_envs
        env = Timed(num_envs)
        env.backend = backend
        return env

    return make


def policy(clock, act_s=0.002):
    def act(observations):
        clock.now += act_s
        return torch.zeros(len(observations["policy"]), 1)

    return lambda _: act


def test_each_backend_is_tried_with_more_and_with_fewer_environments(monkeypatch):
    monkeypatch.setattr(throughput.os, "cpu_count", lambda: 4)
    tried = candidates("sync", ("sync", "async"), 8)
    assert tried[0] == ("sync", 8)
    assert set(tried) == {("sync", n) for n in (2, 8, 32)} | {("async", n) for n in (2, 8)}
    assert candidates("auto", ("auto",), 1) == [("auto", 1), ("auto", 4)]


def test_what_is_measured_are_seconds_of_the_environment_and_of_the_policy(clock):
    report = measure([("sync", 8), ("async", 8)], simulated(clock), policy(clock), 1.0)
    first, second = report.found
    assert report.configured is first
    assert (first.step_s, first.act_s) == (pytest.approx(0.008), pytest.approx(0.002))
    assert first.steps_per_s == pytest.approx(8 / 0.010)
    assert second.steps_per_s == pytest.approx(8 / 0.0052)
    assert report.recommended is second
    assert "1.9 times as fast: --set env.backend=async" in str(report)
    assert "--num-envs" not in str(report)
    assert clock.now == pytest.approx(1.0, abs=0.05)


def test_rows_that_only_reset_are_not_counted(clock):
    (found,) = measure([("sync", 8)], simulated(clock, valid=0.75), policy(clock), 0.5).found
    assert found.valid == 0.75
    assert found.steps_per_s == pytest.approx(6 / 0.010)


def test_what_would_take_too_long_to_make_is_left_out(clock):
    tries = [("sync", 8), ("sync", 80), ("sync", 2)]
    report = measure(tries, simulated(clock, making_s=0.05), policy(clock), 3.0)
    assert [x.num_envs for x in report.found] == [8, 2]
    assert "no time for sync 80" in str(report)


def test_the_configured_combination_is_measured_even_if_that_takes_longer(clock):
    report = measure([("sync", 8), ("async", 8)], simulated(clock, making_s=1.0), policy(clock), 0.5)
    assert [(x.backend, x.num_envs) for x in report.found] == [("sync", 8)]


def test_what_fails_is_noted_and_the_rest_is_measured(clock):
    def make(backend, num_envs):
        if backend == "sync":
            raise RuntimeError("no\nlicence")
        return simulated(clock)(backend, num_envs)

    report = measure([("sync", 8), ("async", 8)], make, policy(clock), 1.0)
    assert report.configured is None
    assert report.notes == ["sync with 8 environments: RuntimeError: no licence"]
    assert "--set env.backend=async --num-envs 8" in str(report)
    assert str(measure([("sync", 1)], make, policy(clock), 1.0)).startswith("note: sync with 1 env")


def test_auto_is_named_as_what_it_turns_out_to_be_and_measured_once():
    def make(backend, num_envs):
        return tasks.make("Pendulum-v1", num_envs, backend=backend)

    def sampled(env):
        return lambda _: torch.zeros(env.num_envs, 1)

    report = measure([("auto", 2), ("sync", 2)], make, sampled, 0.1)
    assert [x.backend for x in report.found] == ["sync"]


def test_the_fewest_environments_that_are_about_as_fast_are_recommended():
    few, many, most = (
        Throughput("sync", n, step_s, 0.0) for n, step_s in ((2, 0.01), (8, 0.02), (32, 0.078))
    )
    assert [round(x.steps_per_s) for x in (few, many, most)] == [200, 400, 410]
    report = ThroughputReport([few, most, many], few)
    assert report.recommended is many
    assert "2.0 times as fast: --num-envs 8 (and num_steps_per_env" in str(report)
    # without need nothing is changed
    assert ThroughputReport([most, many], most).recommended is most
    assert "nothing that was tried is more than 11% faster" in str(ThroughputReport([most, many], most))


@pytest.mark.parametrize(
    ("task", "kwargs", "expected"),
    [
        ("go1-walk", {}, ("auto",)),
        ("Pendulum-v1", {}, ("sync", "async")),
        ("CartPole-v1", {}, ("auto", "sync", "async")),
        ("CartPole-v1", {"sutton_barto_reward": True}, ("sync", "async")),
        ("surefoot.testing:GymTarget", {}, ("sync", "async")),
    ],
)
def test_the_backends_of_a_task(task, kwargs, expected):
    assert tuple(b for b in tasks.backends(task, kwargs) if b != "envpool") == expected
