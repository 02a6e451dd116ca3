"""Commands as a person types them: help, one-line errors, exit codes, precedence."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from surefoot.cli import COMMANDS, cli
from surefoot.config import load_yaml


def assert_one_line_error(result: Result, code: int, *words: str) -> None:
    assert result.exit_code == code, result.output
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.output
    for word in words:
        assert word in result.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(surefoot, command):
    for flag in ("--help", "-h"):
        result = surefoot(f"{command} {flag}")
        assert result.exit_code == 0
        assert "Example" in result.output
        assert f"surefoot {command}" in result.output


def test_help_lists_every_command_with_what_it_does():
    output = CliRunner().invoke(cli, ["--help"], terminal_width=80).output
    assert all(f"  {command} " in output for command in COMMANDS)
    assert not [line for line in output.splitlines()[1:] if line.endswith("...")]


def test_help_imports_no_torch_and_is_quick():
    code = (
        "import sys; from surefoot.cli import cli\n"
        f"for line in ([], *[[c] for c in {COMMANDS}]):\n"
        "    try: cli([*line, '--help'])\n"
        "    except SystemExit: pass\n"
        "print([m for m in ('torch', 'gymnasium', 'pydantic', 'yaml', 'rich') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"

    seconds = []
    for _ in range(3):
        start = time.monotonic()
        subprocess.run([sys.executable, "-m", "surefoot", "--help"], capture_output=True, check=True)
        seconds.append(time.monotonic() - start)
    assert min(seconds) < 0.7


def test_version(surefoot):
    import surefoot as package

    assert surefoot("--version").output == f"surefoot {package.__version__}\n"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("trian CartPole-v1", ["'trian'", "Did you mean 'train'?"]),
        ("doctr", ["'doctr'", "There are: train, eval"]),
        ("train", ["TASK or --resume", "neither"]),
        ("train CartPole-v1 --resume last", ["both"]),
        ("train CartPole-v1 --iteration 3", ["--iteration", "--help"]),
        ("train NoSuchTask-v0", ["'NoSuchTask-v0'"]),
        ("train CartPol-v1", ["Did you mean 'CartPole-v1'?"]),
        ("train go1-wlak", ["Did you mean 'go1-walk'?"]),
        ("train no_such_module:make", ["no_such_module"]),
        ("train CartPole-v1 --set algorithm.learning_rat=1e-3", ["Did you mean 'algorithm.learning_rate'?"]),
        ("train CartPole-v1 --set learning_rate=1e-3", ["'algorithm.learning_rate'"]),
        ("train CartPole-v1 --set actor.rnn_typ=gru", ["'actor.rnn_typ'"]),
        (
            "train CartPole-v1 --set algorithm.num_mini_batches=0",
            ["algorithm.num_mini_batches = 0", "at least 1"],
        ),
        ("train CartPole-v1 --set algorithm.gamma", ["KEY=VALUE"]),
        ("train CartPole-v1 --set env.kwargs.foo=1", ["env.kwargs.foo"]),
        ("train CartPole-v1 --nproc 2 --set extensions=[{class_name:NoSuch}]", ["extensions.0", "NoSuch"]),
        ("train CartPole-v1 --set hooks=[{class_name:x.y}]", ["hooks.0", "x.y"]),
        ("train CartPole-v1 --num-envs 0", ["--num-envs", "0"]),
        ("train CartPole-v1 --num-envs 3 --nproc 2", ["num_envs (3)", "nproc (2)"]),
        ("train CartPole-v1 --iterations 0", ["--iterations"]),
        ("train CartPole-v1 --iterations many", ["--iterations", "many"]),
        ("train CartPole-v1 --iterations 3 --minutes 2", ["exclude"]),
        ("train CartPole-v1 --device gpu", ["auto, cpu, cuda"]),
        ("train CartPole-v1 --config missing.yaml", ["missing.yaml"]),
        ("train --resume nowhere", ["nowhere"]),
        ("train --resume last", ["no run with a checkpoint"]),
        ("train --resume last --seed 3", ["--seed", "--resume"]),
        ("eval .", ["no checkpoint"]),
        ("eval nowhere", ["nowhere"]),
        ("eval . --checkpoint newest", ["newest", "best, last"]),
        ("eval . --episodes 0", ["--episodes"]),
        ("play . --video film.png", ["film.png", ".mp4"]),
        ("export nowhere", ["nowhere"]),
        ("export . --format tflite", ["tflite", "onnx", "rsl_rl"]),
        ("check NoSuchTask-v0", ["'NoSuchTask-v0'"]),
        ("config Pendulum", ["Pendulum-v1"]),
    ],
)
def test_bad_input_is_one_line_with_the_way_out_and_exit_code_2(surefoot, line, words, tmp_path):
    assert_one_line_error(surefoot(line), 2, *words)
    assert list(tmp_path.iterdir()) == []


def test_a_run_directory_that_cannot_be_written_is_one_line(surefoot, tmp_path):
    (tmp_path / "file").write_text("")
    result = surefoot("train CartPole-v1 --run-dir file/run")
    assert_one_line_error(result, 2, "'file' is a file", "--run-dir")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(
    not Path("/proc/self").exists(), reason="needs a place that takes no directory, even of root"
)
def test_a_place_that_takes_no_directory_is_one_line(surefoot, tmp_path):
    result = surefoot("train CartPole-v1 --run-dir /proc/run --iterations 1")
    assert_one_line_error(result, 2, "cannot write in '/proc'", "--run-dir")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_checkpoint_is_one_line(surefoot, tmp_path):
    (tmp_path / "model_0.pt").write_bytes(b"not a checkpoint")
    assert_one_line_error(surefoot("eval model_0.pt"), 2, "model_0.pt")


def test_several_faults_of_a_file_are_counted(surefoot, tmp_path):
    (tmp_path / "run.yaml").write_text("algorithm: {gama: 0.9, lam: 2}\nnum_envs: x\n")
    assert_one_line_error(surefoot("config CartPole-v1 --config run.yaml"), 2, "num_envs", "2 more")
    with_debug = surefoot("config CartPole-v1 --config run.yaml --debug")
    assert with_debug.exit_code == 2
    assert all(
        key in with_debug.stderr for key in ("algorithm.gama", "algorithm.lam", "num_envs", "Traceback")
    )


FAILING = Path(__file__).parent / "failing_task.py"


def test_a_fault_of_the_environment_is_one_line_with_its_words_and_exit_code_1(surefoot, tmp_path):
    shutil.copy(FAILING, tmp_path / "broken_task.py")
    line = "train broken_task:make --num-envs 8 --set env.backend=sync --set eval_episodes=0 --quiet"
    assert_one_line_error(surefoot(line), 1, "boom at step 40")


# --- precedence


def resolved(surefoot, line: str) -> dict:
    result = surefoot(f"config {line}")
    assert result.exit_code == 0, result.output
    return load_yaml(result.stdout)


def test_defaults_give_way_to_the_preset_the_file_set_and_named_options(surefoot, tmp_path):
    (tmp_path / "run.yaml").write_text("seed: 5\nnum_envs: 32\nalgorithm: {gamma: 0.5, lam: 0.5}\n")
    preset = resolved(surefoot, "CartPole-v1")
    assert preset["actor"]["hidden_dims"] == [64, 64]
    config = resolved(
        surefoot,
        "CartPole-v1 --config run.yaml --set algorithm.lam=0.6 --set seed=6 --set num_envs=64 --seed 7",
    )
    assert config["actor"] == preset["actor"]
    assert (config["algorithm"]["gamma"], config["algorithm"]["lam"]) == (0.5, 0.6)
    assert (config["seed"], config["num_envs"]) == (7, 64)


def test_a_resolved_file_repeats_itself_whatever_the_preset_says(surefoot, tmp_path):
    config = resolved(surefoot, "go1-walk --seed 3 --set env.kwargs={} --set extensions=[]")
    (tmp_path / "config.yaml").write_text(surefoot("config go1-walk --seed 3 --set extensions=[]").stdout)
    again = resolved(surefoot, "CartPole-v1 --config config.yaml")
    assert {**again, "env": None} == {**config, "env": None}
    assert resolved(surefoot, "go1-walk --config config.yaml") == again


def test_a_set_of_mini_batch_size_ends_the_presets_count(surefoot, tmp_path):
    (tmp_path / "run.yaml").write_text("algorithm: {num_mini_batches: 4}\n")
    config = resolved(surefoot, "Pendulum-v1 --config run.yaml")
    assert (config["algorithm"]["num_mini_batches"], config["algorithm"]["mini_batch_size"]) == (4, None)
    config = resolved(surefoot, "Pendulum-v1 --config run.yaml --set algorithm.mini_batch_size=64")
    assert (config["algorithm"]["num_mini_batches"], config["algorithm"]["mini_batch_size"]) == (None, 64)


def test_the_example_file_serves_a_bundled_task(surefoot):
    example = Path(__file__).parents[2] / "config" / "example_config.yaml"
    config = resolved(surefoot, f"go1-walk --config {example}")
    assert config["actor"]["hidden_dims"] == [512, 256, 128]


def test_tasks_lists_the_bundled_and_the_tuned(surefoot):
    output = surefoot("tasks").output
    assert all(name in output for name in ("go1-walk", "CartPole-v1", "Pendulum-v1"))


def test_check_passes_a_good_task_and_fails_a_bad_one(surefoot, tmp_path):
    good = surefoot("check CartPole-v1 --throughput 0.2")
    assert good.exit_code == 0
    assert "keeps the contract" in good.output
    assert "as configured" in good.output
    assert "steps/s" not in surefoot("check Pendulum-v1 --throughput 0").output.split("keeps the contract")[1]
    shutil.copy(FAILING, tmp_path / "bad_task.py")
    bad = surefoot("check bad_task:make")
    assert bad.exit_code == 1
    assert "boom" in bad.output
