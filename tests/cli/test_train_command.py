"""`train`, `eval`, `play` and their run directory, from the outside."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

from command_line import records, start, wait_for

from surefoot.cli.session import Plan, _iterations
from surefoot.cli.train import default_run_dir
from surefoot.config import build_config, load_yaml

TINY = (
    "--num-envs 4 --set num_steps_per_env=32 --set eval_episodes=2 --set save_interval=1 "
    "--set env.backend=sync"
)


def test_a_run_is_trained_evaluated_repeated_and_continued(surefoot, tmp_path):
    result = surefoot(f"train CartPole-v1 --iterations 2 {TINY}")
    assert result.exit_code == 0, result.output
    (run,) = (tmp_path / "runs" / "CartPole-v1").iterdir()
    assert run.name.endswith("_seed1")
    assert f"surefoot eval {run.relative_to(tmp_path)}" in result.output
    assert "over 2 episodes" in result.output
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["task"] == "CartPole-v1"

    # the saved configuration repeats the run
    again = surefoot(f"train CartPole-v1 --iterations 2 --config {run}/config.yaml --run-dir again --quiet")
    assert (again.exit_code, again.output) == (0, "")
    assert load_yaml(run / "config.yaml") == load_yaml(tmp_path / "again" / "config.yaml")
    losses = [[r["Loss/surrogate"] for r in records(path)] for path in (run, tmp_path / "again")]
    assert losses[0] == losses[1]

    # iterations count the whole run
    resumed = surefoot("train --resume again --iterations 3")
    assert resumed.exit_code == 0, resumed.output
    assert [r["iteration"] for r in records(tmp_path / "again")] == [0, 1, 2]
    done = surefoot("train --resume again --iterations 3")
    assert done.exit_code == 0
    assert "nothing to do" in done.output

    # the newest run that has a checkpoint, not the newest directory
    (tmp_path / "runs" / "CartPole-v1" / "2999-01-01_00-00-00_seed1" / "checkpoints").mkdir(parents=True)
    evaluation = surefoot("eval last --episodes 3 --json --checkpoint 0")
    assert evaluation.exit_code == 0, evaluation.output
    measured = json.loads(evaluation.stdout)
    assert measured["episodes"] == 3
    assert {"mean_reward", "std_reward", "mean_episode_length"} <= set(measured)
    assert surefoot("eval last --episodes 3 --json --checkpoint 0").stdout == evaluation.stdout
    sampled = json.loads(surefoot("eval last --episodes 3 --json --checkpoint 0 --stochastic").stdout)
    assert sampled["mean_reward"] != measured["mean_reward"]
    missing = surefoot("eval last --checkpoint 77")
    assert missing.exit_code == 2
    assert "77" in missing.stderr

    # a directory with a run in it is not written over
    occupied = surefoot(f"train CartPole-v1 --iterations 1 --run-dir again {TINY}")
    assert occupied.exit_code == 2
    assert "--resume again" in occupied.stderr
    assert len(records(tmp_path / "again")) == 3


def test_steps_and_minutes_end_a_run_early_and_leave_the_horizon(surefoot, tmp_path):
    config = build_config({"num_envs": 10, "num_steps_per_env": 100, "max_iterations": 50})
    plan = Plan("x", config, tmp_path)
    assert _iterations(plan) == 50
    assert _iterations(Plan("x", config, tmp_path, steps=3001)) == 4
    assert _iterations(Plan("x", config, tmp_path, iterations=70)) == 70

    result = surefoot(f"train CartPole-v1 --minutes 0.0001 --run-dir short {TINY}")
    assert result.exit_code == 0, result.output
    assert "stopped: 0.0001 minutes (1 iterations" in result.output
    assert (tmp_path / "short" / "checkpoints" / "last.pt").exists()
    assert len(records(tmp_path / "short")) == 1
    assert load_yaml(tmp_path / "short" / "config.yaml")["max_iterations"] > 1


def test_the_run_directory_carries_task_time_seed_and_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = default_run_dir("my.module:make/x", build_config({"seed": 4}))
    assert path.parent == Path("runs/my.module_make_x")
    assert path.name.endswith("_seed4")
    named = default_run_dir("t", build_config({"experiment_name": "study", "run_name": "wide"}))
    assert named.parent == Path("runs/study")
    assert named.name.endswith("_seed1_wide")
    path.mkdir(parents=True)
    assert not default_run_dir("my.module:make/x", build_config({"seed": 4})).exists()


def test_play_draws_a_film_strip_of_a_bundled_task(surefoot, tmp_path):
    result = surefoot(
        "train go1-walk --iterations 1 --num-envs 64 --nproc 1 --run-dir go1 --set eval_episodes=0 "
        "--set num_steps_per_env=32 --quiet"
    )
    assert (result.exit_code, result.output) == (0, "")
    result = surefoot("play go1 --seconds 0.5")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "go1" / "play.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert "play.png" in result.output


# --- real processes: what a runner inside this process cannot show


def test_ctrl_c_saves_and_exits_with_130_and_the_run_goes_on(tmp_path, surefoot):
    process = start(tmp_path, f"train CartPole-v1 --run-dir run {TINY}")
    wait_for(tmp_path / "run" / "checkpoints" / "model_1.pt", process)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, (output, errors)
    assert "Traceback" not in errors
    assert "surefoot train --resume run" in output
    done = len(records(tmp_path / "run"))
    assert (tmp_path / "run" / "checkpoints" / f"model_{done - 1}.pt").exists()
    assert surefoot(f"train --resume run --iterations {done + 2} --quiet").exit_code == 0
    assert [r["iteration"] for r in records(tmp_path / "run")] == list(range(done + 2))


def test_two_processes_share_the_environments_and_end_together(tmp_path):
    process = start(tmp_path, f"train CartPole-v1 --nproc 2 {TINY}")
    wait_for(tmp_path / "runs" / "CartPole-v1", process)
    (run,) = (tmp_path / "runs" / "CartPole-v1").iterdir()
    wait_for(run / "checkpoints" / "model_1.pt", process)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, (output, errors)
    assert "Traceback" not in errors
    assert output.count("interrupted after") == 1
    # 4 environments x 32 steps each iteration, whatever the number of processes
    assert records(run)[1]["env_steps"] - records(run)[0]["env_steps"] == 128
    assert json.loads((run / "manifest.json").read_text())["processes"] == 2


def test_an_error_in_one_of_two_processes_is_one_line(tmp_path):
    shutil.copy(Path(__file__).parent / "failing_task.py", tmp_path / "failing_task.py")
    line = f"train failing_task:make --nproc 2 --quiet {TINY}"
    process = start(tmp_path, line)
    _, errors = process.communicate(timeout=90)
    assert process.returncode == 1
    assert errors.count("\n") == 1, errors
    assert "boom at step 40" in errors


def test_a_bad_configuration_is_found_before_processes_are_started(tmp_path):
    process = start(tmp_path, "train CartPole-v1 --nproc 2 --set algorithm.gama=0.9")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert errors == "error: unknown key 'algorithm.gama'. Did you mean 'algorithm.gamma'?\n"
    assert list(tmp_path.iterdir()) == []
