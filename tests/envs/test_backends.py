"""One process or many: the same steps, and the real error when a worker fails."""

import multiprocessing
import os
import subprocess
import sys
import textwrap
import time

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from surefoot.envs import replicate as replicate_module
from surefoot.envs.gymnasium import GymnasiumVecEnv
from surefoot.envs.replicate import replicate
from surefoot.errors import EnvContractError
from surefoot.testing import GymConstant, GymTarget


class NotPicklableError(Exception):
    """Needs two arguments and holds a lambda: it cannot travel between processes."""

    def __init__(self, what, why):
        super().__init__(f"{what}: {why} (100% sure)")
        self.hook = lambda: None


class Failing(gymnasium.Env):
    """Raises, exits or is killed at step 5 where `is_bad`."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Box(-1, 1, (1,))

    def __init__(self, how):
        self.how, self.elapsed = how, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.elapsed += 1
        if self.elapsed == 5 and self.how == "raise":
            raise ValueError("boom at 50%")
        if self.elapsed == 5 and self.how == "odd":
            raise NotPicklableError("boom", "odd")
        if self.elapsed == 5 and self.how == "exit":
            os._exit(3)
        return np.zeros(2, np.float32), 0.0, False, False, {}


def makers(how, bad=2, num_envs=4):
    """Environment `bad` is made by the last call: a factory that counts would count in each process alone."""
    return [lambda i=i: Failing(how if i == bad else "fine") for i in range(num_envs)]


def step_ten_times(env):
    for _ in range(10):
        env.step(torch.zeros(env.num_envs, 1))


def run_until_it_fails(env):
    env.reset(seed=0)
    start = time.monotonic()
    with pytest.raises(EnvContractError) as caught:
        step_ten_times(env)
    assert time.monotonic() - start < 20
    assert not multiprocessing.active_children()
    env.close()  # closing again is no error
    return caught.value


@pytest.mark.parametrize("how", ["raise", "odd", "exit"])
def test_a_failing_worker_is_named_with_its_own_error_and_no_child_stays(how):
    text = str(run_until_it_fails(GymnasiumVecEnv(AsyncVectorEnv(makers(how)))))
    assert "environment 2" in text
    if how == "raise":
        assert "ValueError: boom at 50%" in text
    if how == "exit":
        assert "exit code 3" in text


@pytest.mark.parametrize("how", ["raise", "odd"])
def test_a_failing_replica_reports_every_kind_of_exception_from_a_worker(how):
    # Each worker fails at its step 5; the first to be read is named.
    text = str(run_until_it_fails(replicate(lambda: Failing(how), 2, backend="async")))
    assert "environment" in text
    assert "boom" in text
    assert "50%" in text or "100% sure" in text


def test_the_traceback_of_the_worker_is_the_cause_of_the_error():
    error = run_until_it_fails(GymnasiumVecEnv(AsyncVectorEnv(makers("raise"))))
    assert "in step" in str(error.__cause__)
    assert "boom at 50%" in str(error.__cause__)


@pytest.mark.parametrize("wrap", [False, True], ids=["vector environment", "replicas"])
def test_a_failure_in_this_process_names_the_environment_too(wrap):
    env = replicate(lambda: Failing("raise"), 3, backend="sync") if wrap else None
    text = str(run_until_it_fails(env or GymnasiumVecEnv(SyncVectorEnv(makers("raise")))))
    assert f"environment {0 if wrap else 2} raised ValueError" in text
    assert "boom" in text


def test_a_worker_that_cannot_make_its_environment_is_reported():
    parent = os.getpid()

    def factory():
        if os.getpid() != parent:
            raise RuntimeError("no licence")
        return GymTarget()

    with pytest.raises(EnvContractError, match="worker process ended while it made its environment"):
        replicate(factory, 2, backend="async")


def test_a_program_ends_soon_after_a_worker_fails_and_leaves_nothing(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            """
            import gymnasium, numpy as np, os, torch
            from surefoot.envs.replicate import replicate
            from surefoot.testing import GymTarget

            class Bad(GymTarget):
                def step(self, action):
                    if self.elapsed == 4:
                        raise ValueError("boom")
                    return super().step(action)

            env = replicate(Bad, 4, backend="async")
            print(*[p.pid for p in env._envs.processes], flush=True)
            env.reset(seed=0)
            while True:
                env.step(torch.zeros(4, 1))
            """
        )
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "boom" in done.stderr.splitlines()[-1]
    for pid in done.stdout.split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def rollout(env, num_steps):
    found = [env.reset(seed=7)["policy"]]
    generator = torch.Generator().manual_seed(0)
    for _ in range(num_steps):
        step = env.step(torch.rand(env.num_envs, 1, generator=generator) * 4 - 2)
        final = step.final_observations or {"policy": torch.zeros(0)}
        found += [step.observations["policy"], step.rewards, step.truncated, final["policy"]]
    env.close()
    return found


def test_both_backends_give_the_same_steps():
    runs = [rollout(replicate(GymTarget, 3, backend=backend), 25) for backend in ("sync", "async")]
    for a, b in zip(*runs, strict=True):
        assert torch.equal(a, b)


def test_one_seed_gives_one_sequence_and_another_seed_another():
    first, second = (rollout(replicate(GymTarget, 3, backend="sync"), 12) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_auto_takes_workers_only_for_slow_environments(monkeypatch):
    class Slow(GymTarget):
        def step(self, action):
            time.sleep(0.002)
            return super().step(action)

    monkeypatch.setattr(replicate_module.os, "cpu_count", lambda: 4)
    kinds = []
    for factory in (Slow, GymTarget, lambda: Failing("raise")):
        env = replicate(factory, 2)
        kinds.append(type(env._envs))
        env.close()
    assert kinds == [AsyncVectorEnv, SyncVectorEnv, SyncVectorEnv]


def test_workers_leave_ctrl_c_to_the_trainer():
    import signal

    env = replicate(lambda: GymConstant(5), 2, backend="async")
    env.reset(seed=0)
    for process in env._envs.processes:
        os.kill(process.pid, signal.SIGINT)
    step = env.step(torch.zeros(2, dtype=torch.int64))
    assert step.rewards.tolist() == [1.0, 1.0]
    env.close()
    assert not multiprocessing.active_children()


def test_what_a_worker_process_imports_needs_no_torch():
    code = "import sys, surefoot.envs.sub_env; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
