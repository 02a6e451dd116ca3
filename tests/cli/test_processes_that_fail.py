"""Runs of several processes that are killed, interrupted, restarted or started twice at once."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch
from command_line import records, start, wait_for

from surefoot import distributed
from surefoot.cli import REPORT_VARIABLE, launch, session
from surefoot.cli.session import make_run_dir
from surefoot.cli.train import default_run_dir
from surefoot.config import build_config

TINY = (
    "--num-envs 4 --set num_steps_per_env=32 --set eval_episodes=0 --set save_interval=1 "
    "--set env.backend=sync --set logger=none --set num_threads=1 --quiet"
)

TASK = """
import os, signal, time, warnings
from pathlib import Path
import gymnasium, numpy as np


class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    count = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.count += 1
        self.fail()
        return np.zeros(2, np.float32), 1.0, self.count % 5 == 0, False, {}

    def fail(self):
        pass


class KilledOnce(Env):
    "In the first start, process 1 is killed once a file has something in it."

    def fail(self):
        is_first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        if is_first and os.environ["RANK"] == "1":
            if any(p.stat().st_size for p in Path().glob(os.environ["KILL_WHEN"])):
                os.kill(os.getpid(), signal.SIGKILL)


class Warns(Env):
    def fail(self):
        if self.count == 2:
            warnings.warn("the same everywhere")
            if os.environ["RANK"] == "1":
                warnings.warn("process 1 alone")


class CrashesOnce(Env):
    def fail(self):
        if self.count == 3:
            try:
                Path("crashed").touch(exist_ok=False)  # of two workers at once, only one
            except FileExistsError:
                return
            raise ValueError("boom")


class Slow(Env):
    def fail(self):
        time.sleep(0.01)
"""


def start_task(directory: Path, line: str, program: str = "surefoot", **env: str) -> subprocess.Popen[str]:
    (directory / "task.py").write_text(TASK)
    return start(directory, line, program, **env)


# --- the launcher, with processes that do not train


def wait_of_launcher(tmp_path: Path, *programs: str) -> int:
    """Python programs as processes 0, 1, ...; `report` is the path of the report."""
    report = tmp_path / "report"
    prelude = f"import os, signal, sys, time; from pathlib import Path; report = Path({str(report)!r})\n"
    processes = [
        subprocess.Popen([sys.executable, "-c", prelude + textwrap.dedent(p)], start_new_session=True)
        for p in programs
    ]
    return launch._wait(processes, report)


def test_after_ctrl_c_process_0_has_the_time_to_save(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "GRACE_S", 0.2)
    saving = f"time.sleep(1); Path({str(tmp_path / 'saved')!r}).touch(); sys.exit(130)"
    assert wait_of_launcher(tmp_path, saving, "sys.exit(130)") == 130
    assert (tmp_path / "saved").exists()


def test_a_save_that_fails_after_ctrl_c_is_a_failure(tmp_path, capfd):
    failing = "time.sleep(0.5); report.write_text('2\\nerror: disk full\\n'); sys.exit(2)"
    assert wait_of_launcher(tmp_path, failing, "sys.exit(130)") == 2
    assert capfd.readouterr().err == "error: disk full\n"


def test_the_others_end_soon_after_a_process_was_killed_and_it_alone_is_named(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(launch, "GRACE_S", 0.5)
    start = time.monotonic()
    loses = "time.sleep(0.3); report.write_text('1\\nerror: RuntimeError: connection closed\\n'); sys.exit(1)"
    killed = "os.kill(os.getpid(), 9)"
    assert wait_of_launcher(tmp_path, loses, killed, "time.sleep(60)") == 1
    assert time.monotonic() - start < 10
    assert capfd.readouterr().err == "error: process 1 was ended by SIGKILL.\n"


def test_an_error_is_the_cause_where_another_process_crashes_over_it_later(tmp_path, capfd):
    fails = "report.write_text('2\\nerror: bad gamma\\n'); time.sleep(0.6); sys.exit(2)"
    crashes = "time.sleep(0.5); os.kill(os.getpid(), signal.SIGSEGV)"
    # the report must be there while both still run
    assert wait_of_launcher(tmp_path, fails, "time.sleep(0.3)\n" + crashes) == 2
    assert capfd.readouterr().err == "error: bad gamma\n"


def test_a_process_that_ends_without_a_word_is_named_with_its_exit_code(tmp_path, capfd):
    assert wait_of_launcher(tmp_path, "pass", "os._exit(7)") == 7
    assert capfd.readouterr().err == "error: process 1 ended with exit code 7.\n"


def test_the_launcher_knows_of_an_error_before_the_process_group_ends(tmp_path, monkeypatch, surefoot):
    """Else the others, which fail because the group ended, may be first to report."""
    report = tmp_path / "report"
    monkeypatch.setenv(REPORT_VARIABLE, str(report))
    known: list[str] = []
    monkeypatch.setattr(distributed, "shutdown", lambda: known.append(report.read_text()))
    (tmp_path / "task_that_crashes.py").write_text(TASK.replace("pass", "raise ValueError('boom')"))
    monkeypatch.syspath_prepend(tmp_path)
    result = surefoot(f"train task_that_crashes:Env {TINY} --debug")
    assert result.exit_code == 1
    assert result.output == ""
    code, _, text = known[0].partition("\n")
    assert code == "1"
    assert "Traceback" in text
    assert text.splitlines()[-1].startswith("error: environment 0 raised ValueError in step(): boom (")


# --- real runs


def test_a_killed_process_is_one_line_and_the_run_ends(tmp_path):
    process = start_task(
        tmp_path, f"train task:KilledOnce --nproc 2 {TINY}", KILL_WHEN="runs/*/*/config.yaml"
    )
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors == "error: process 1 was ended by SIGKILL.\n"


@pytest.mark.parametrize("launcher", ["surefoot", "torchrun"])
@pytest.mark.slow
def test_warnings_of_all_processes_are_shown_once(tmp_path, launcher):
    torchrun = "torch.distributed.run --standalone --nproc-per-node 2 -m surefoot"
    program, nproc = ("surefoot", "--nproc 2") if launcher == "surefoot" else (torchrun, "")
    process = start_task(tmp_path, f"train task:Warns {nproc} --iterations 1 --run-dir run {TINY}", program)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert errors.count("warning: the same everywhere\n") == 1
    assert errors.count("warning: process 1 alone\n") == 1


def test_sigterm_to_the_whole_process_group_saves_a_run_with_worker_processes(tmp_path):
    process = start_task(tmp_path, f"train task:Slow --run-dir run {TINY} --set env.backend=async")
    wait_for(tmp_path / "run" / "checkpoints" / "model_1.pt", process)
    os.killpg(process.pid, signal.SIGTERM)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, (output, errors)
    assert "Traceback" not in errors
    last = records(tmp_path / "run")[-1]["iteration"]
    assert (tmp_path / "run" / "checkpoints" / f"model_{last}.pt").exists()
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_an_error_in_a_worker_is_one_line_with_its_file_and_line(tmp_path):
    (tmp_path / "task_that_crashes.py").write_text(TASK.replace("pass", "raise ValueError('boom')"))
    process = start_task(tmp_path, f"train task_that_crashes:Env {TINY} --set env.backend=async")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.count("\n") == 1, errors
    assert "raised ValueError in step(): boom" in errors
    assert f"({tmp_path}/task_that_crashes.py:" in errors


def test_a_worker_that_crashes_is_started_again_and_its_traceback_is_shown(tmp_path):
    workers = "--set env.backend=async --set env.restart_workers=true"
    line = f"train task:CrashesOnce --iterations 2 --run-dir run {TINY} {workers}"
    process = start_task(tmp_path, line)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    first, *trace = errors.splitlines()
    assert re.match(r"warning: environment \d raised ValueError in step\(\): boom .*A new environment", first)
    assert trace[0] == "Traceback (most recent call last):"
    assert '    raise ValueError("boom")' in [line.rstrip() for line in trace]
    assert [r["Data/restarts"] for r in records(tmp_path / "run")] == [1, 0]


# --- one directory for one run


def test_two_runs_of_one_second_get_a_directory_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = default_run_dir("task", build_config({}))
    made: list[Path] = []
    threads = [threading.Thread(target=lambda: made.append(make_run_dir(path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(p.name for p in made) == sorted([path.name, *(f"{path.name}_{i}" for i in range(2, 9))])


def test_resume_last_is_decided_once_for_all_processes(tmp_path, surefoot, monkeypatch):
    (tmp_path / "task.py").write_text(TASK)
    monkeypatch.syspath_prepend(tmp_path)
    assert surefoot(f"train task:Env --iterations 1 {TINY}").exit_code == 0
    given: list[list[str]] = []
    monkeypatch.setattr(launch, "launch", lambda arguments, _: given.append(arguments) or 0)
    assert surefoot("train --resume last --nproc 2 --iterations 2").exit_code == 0
    (checkpoint,) = (p.relative_to(tmp_path) for p in tmp_path.glob("runs/*/*/checkpoints/last.pt"))
    assert given[0][-2:] == ["--resume", str(checkpoint)]


def test_two_processes_cannot_be_sent_to_one_gpu(surefoot):
    result = surefoot(f"train CartPole-v1 --nproc 2 --device cuda:0 {TINY}")
    assert result.exit_code == 2
    assert "--device cuda:0: all 2 processes would share that GPU" in result.stderr


def test_a_process_makes_its_gpu_the_current_one(monkeypatch):
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    for device in (torch.device("cuda", 1), torch.device("cuda"), torch.device("cpu")):
        distributed.init_from_env(device)
    assert chosen == [torch.device("cuda", 1)]


# --- torchrun restarts a run by itself

TORCHRUN = "torch.distributed.run --standalone --nproc-per-node 2 --max-restarts 1 -m surefoot"


@pytest.mark.slow
def test_a_run_restarted_by_torchrun_goes_on_from_its_last_checkpoint(tmp_path):
    kill_when = "runs/*/*/checkpoints/model_2.pt"
    process = start_task(
        tmp_path, f"train task:KilledOnce --iterations 5 {TINY}", TORCHRUN, KILL_WHEN=kill_when
    )
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    (run,) = (tmp_path / "runs" / "task_KilledOnce").iterdir()
    assert [r["iteration"] for r in records(run)] == [0, 1, 2, 3, 4]
    (session,) = json.loads((run / "manifest.json").read_text())["sessions"]
    assert session["iteration"] == 3
    assert not list(run.glob(".torchelastic*"))


@pytest.mark.slow
def test_a_run_killed_before_its_first_checkpoint_starts_anew_where_it_was(tmp_path):
    line = f"train task:KilledOnce --iterations 3 --run-dir run {TINY} --set save_interval=100"
    process = start_task(tmp_path, line, TORCHRUN, KILL_WHEN="run/config.yaml")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert [r["iteration"] for r in records(tmp_path / "run")] == [0, 1, 2]
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["sessions"][0]["iteration"] == 0


@pytest.fixture
def torchrun(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job/7")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    return monkeypatch


def test_a_directory_refused_at_the_first_start_is_refused_after_a_restart(surefoot, tmp_path, torchrun):
    (tmp_path / "task.py").write_text(TASK)
    torchrun.syspath_prepend(tmp_path)
    assert surefoot(f"train task:Env --iterations 1 --run-dir run {TINY}").exit_code == 0
    for restarts in ("0", "1"):
        torchrun.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
        result = surefoot(f"train task:Env --iterations 2 --run-dir run {TINY}")
        assert result.exit_code == 2
        assert "already holds a run" in result.stderr
    assert len(records(tmp_path / "run")) == 1


def test_a_restart_finds_the_directory_of_this_launch_alone(tmp_path, torchrun):
    runs = [tmp_path / name for name in ("a", "b", "c")]
    for run in runs:
        run.mkdir()
    now = tmp_path / "now"
    (runs[0] / str(session.start_mark())).touch()
    # the first start of a launch that has the id of an earlier one
    assert session.earlier_start(now, is_default=True) is None
    torchrun.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert session.earlier_start(now, is_default=True) is None
    (runs[1] / str(session.start_mark())).touch()
    assert session.earlier_start(now, is_default=True) == runs[1]
    assert session.earlier_start(runs[1], is_default=False) == runs[1]
    assert session.earlier_start(runs[2], is_default=False) is None
    torchrun.setenv("TORCHELASTIC_RUN_ID", "job/8")
    assert session.earlier_start(now, is_default=True) is None
    torchrun.delenv("TORCHELASTIC_RUN_ID")
    assert session.start_mark() is None


def test_a_restart_of_a_resumed_run_goes_on_from_where_the_restart_found_it(surefoot, tmp_path, torchrun):
    (tmp_path / "task.py").write_text(TASK)
    torchrun.syspath_prepend(tmp_path)
    assert surefoot(f"train task:Env --iterations 3 --run-dir run {TINY}").exit_code == 0
    (tmp_path / "run" / str(session.start_mark())).touch()
    torchrun.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    # the file of iteration 0 was given; iterations 1 and 2 are done already
    result = surefoot("train --resume run/checkpoints/model_0.pt --iterations 3")
    assert result.exit_code == 0
    assert "nothing to do" in result.output
