"""Worker processes: what ends them, what does not, and what is said of one that failed."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import gymnasium
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv

from surefoot.envs.gymnasium import GymnasiumVecEnv
from surefoot.envs.replicate import replicate
from surefoot.errors import EnvContractError
from surefoot.testing import GymConstant, GymTarget


class Faulty(GymTarget):
    """Fails in its third step as `how` says."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def step(self, action):
        if self.elapsed == 2 and self.how == "raise":
            raise ValueError("boom\n  in two lines")
        if self.elapsed == 2 and self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


def step_three_times(env) -> None:
    for _ in range(3):
        env.step(torch.zeros(env.num_envs, 1))


def message_of(env) -> str:
    env.reset(seed=0)
    with pytest.raises(EnvContractError) as caught:
        step_three_times(env)
    assert not multiprocessing.active_children()
    return str(caught.value)


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_an_error_is_one_line_with_the_file_and_line_that_raised_it(backend):
    text = message_of(replicate(lambda: Faulty("raise"), 2, backend=backend))
    line = next(
        i for i, x in enumerate(Path(__file__).read_text().splitlines(), 1) if "raise ValueError" in x
    )
    assert "raised ValueError in step(): boom in two lines" in text
    assert f'({__file__}:{line} in step: raise ValueError("boom\\n' in text
    assert "\n" not in text


def test_an_error_in_a_users_own_vector_environment_has_its_line_too():
    text = message_of(GymnasiumVecEnv(AsyncVectorEnv([lambda: Faulty("raise")] * 2)))
    assert "raised ValueError: boom in two lines" in text
    assert f"({__file__}:" in text


def test_a_killed_worker_is_named_with_its_signal_at_once():
    env = replicate(lambda: Faulty("fine"), 8, backend="async")
    env.reset(seed=0)
    os.kill(env._envs.processes[3].pid, signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(
        EnvContractError,
        match=r"environment 3 \(killed by SIGKILL\) ended during step\(\).*restart_workers: true",
    ):
        step_three_times(env)
    # seven others are alive; nobody waits for each of them
    assert time.monotonic() - start < 2
    assert not multiprocessing.active_children()


def test_a_worker_killed_while_it_makes_its_environment_is_named_and_the_others_end():
    parent = os.getpid()

    def factory():
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return GymTarget()

    with pytest.raises(EnvContractError, match=r"made its environment: .*killed by SIGKILL"):
        replicate(factory, 2, backend="async")
    assert not multiprocessing.active_children()


class OddActions(GymTarget):
    """Nothing that a policy can act on."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = gymnasium.spaces.Text(3)


def test_no_worker_outlives_an_environment_that_is_refused():
    with pytest.raises(EnvContractError, match="action"):
        replicate(OddActions, 2, backend="async")
    assert not multiprocessing.active_children()


def test_workers_leave_sigterm_to_the_trainer():
    env = replicate(lambda: GymConstant(5), 2, backend="async")
    env.reset(seed=0)
    for process in env._envs.processes:
        os.kill(process.pid, signal.SIGTERM)
    step = env.step(torch.zeros(2, dtype=torch.int64))
    assert step.rewards.tolist() == [1.0, 1.0]
    env.close()
    assert not multiprocessing.active_children()


class WithSimulator(gymnasium.Wrapper):
    """Starts a program, and ends it with SIGTERM."""

    def __init__(self, env):
        super().__init__(env)
        self.program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])

    def close(self):
        self.program.terminate()
        assert self.program.wait(timeout=10) == -signal.SIGTERM
        super().close()


def test_a_program_started_by_an_environment_can_still_be_ended_with_sigterm():
    env = replicate(lambda: WithSimulator(GymTarget()), 2, backend="async")
    start = time.monotonic()
    env.close()
    assert time.monotonic() - start < 10


def test_workers_end_quietly_with_the_environments_that_nobody_needs_any_more(capfd):
    env = replicate(GymTarget, 3, backend="async")
    processes = env._envs.processes
    del env
    gc.collect()
    assert [p.exitcode for p in processes] == [-signal.SIGKILL] * 3
    assert capfd.readouterr().err == ""


def test_a_worker_leaves_the_workers_of_another_environment_alone(capfd):
    gc.disable()
    try:
        forgotten = replicate(GymTarget, 2, backend="async")
        forgotten.itself = forgotten  # a circle, which only a collection ends
        processes = forgotten._envs.processes
        del forgotten

        def factory():
            gc.collect()
            return GymTarget()

        parent = os.getpid()
        env = replicate(lambda: factory() if os.getpid() != parent else GymTarget(), 2, backend="async")
        env.reset(seed=0)
        assert all(process.is_alive() for process in processes)
        env.close()
    finally:
        gc.enable()
        gc.collect()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("end", ["pass", "raise SystemExit(3)", "env.reset(); raise ValueError('mine')"])
def test_a_program_that_never_closes_its_environments_ends_and_leaves_no_worker(tmp_path, end):
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            f"""
            from surefoot.envs.replicate import replicate
            from surefoot.testing import GymTarget

            env = replicate(GymTarget, 2, backend="async")
            print(*[p.pid for p in env._envs.processes], flush=True)
            {end}
            """
        )
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == {"p": 0, "r": 3, "e": 1}[end[0]], done.stderr
    for pid in done.stdout.split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)
