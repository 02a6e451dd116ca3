"""`import rsl_rl` leads into the layer when it is asked to, for scripts, modules and installed programs."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner

import surefoot.compat.rsl_rl as layer
from surefoot.cli import cli
from surefoot.compat.rsl_rl.client import run_client
from surefoot.errors import ConfigError

DEEP = {
    "rsl_rl.env": ["VecEnv"],
    "rsl_rl.env.vec_env": ["VecEnv"],
    "rsl_rl.runners": ["OnPolicyRunner", "DistillationRunner", "AMPRunner"],
    "rsl_rl.runners.on_policy_runner": ["OnPolicyRunner"],
    "rsl_rl.runners.distillation_runner": ["DistillationRunner"],
    "rsl_rl.runners.amp_runner": ["AMPRunner"],
    "rsl_rl.algorithms": ["PPO", "Distillation"],
    "rsl_rl.algorithms.ppo": ["PPO"],
    "rsl_rl.algorithms.distillation": ["Distillation"],
    "rsl_rl.models": ["MLPModel", "RNNModel", "CNNModel"],
    "rsl_rl.models.mlp_model": ["MLPModel"],
    "rsl_rl.models.rnn_model": ["RNNModel"],
    "rsl_rl.models.cnn_model": ["CNNModel"],
    "rsl_rl.modules": [
        *("MLP", "CNN", "RNN", "HiddenState", "EmpiricalNormalization", "GaussianDistribution"),
        *("HeteroscedasticGaussianDistribution", "BetaDistribution", "ActorCritic", "ActorCriticRecurrent"),
        *("ActorCriticCNN", "StudentTeacher", "StudentTeacherRecurrent"),
    ],
    "rsl_rl.modules.distribution": ["Distribution", "GaussianDistribution"],
    "rsl_rl.modules.normalization": ["EmpiricalNormalization", "EmpiricalDiscountedVariationNormalization"],
    "rsl_rl.modules.rnd": ["RandomNetworkDistillation"],
    "rsl_rl.networks": ["MLP", "CNN", "Memory", "EmpiricalNormalization"],
    "rsl_rl.storage": ["RolloutStorage"],
    "rsl_rl.storage.rollout_storage": ["RolloutStorage"],
    "rsl_rl.extensions": [
        *("RandomNetworkDistillation", "Symmetry", "resolve_rnd_config", "resolve_symmetry_config")
    ],
    "rsl_rl.utils": [
        *("check_nan", "compile_model", "get_param", "reduce_gradients_in_buckets", "resolve_callable"),
        *("resolve_class", "resolve_nn_activation", "resolve_obs_groups", "resolve_optimizer"),
        *("split_and_pad_trajectories", "unpad_trajectories", "store_code_state", "string_to_callable"),
        *("LogWriter", "WandbLogWriter", "NeptuneLogWriter"),
    ],
    "rsl_rl.utils.utils": ["resolve_callable", "split_and_pad_trajectories", "store_code_state"],
    "rsl_rl.utils.logger": ["Logger"],
    "rsl_rl.utils.wandb_utils": ["WandbSummaryWriter"],
    "rsl_rl.utils.neptune_utils": ["NeptuneSummaryWriter"],
}
"""What clients import."""


@pytest.mark.usefixtures("door")
@pytest.mark.parametrize("module", DEEP)
def test_a_path_that_clients_import_leads_into_the_layer(module):
    found = importlib.import_module(module)
    assert found is importlib.import_module(module.replace("rsl_rl", "surefoot.compat.rsl_rl", 1))
    assert found.__spec__.name.startswith("surefoot.compat.rsl_rl")
    for name in DEEP[module]:
        assert getattr(found, name) is not None


@pytest.mark.usefixtures("door")
def test_the_package_is_one_and_the_same_under_both_names():
    import rsl_rl
    from rsl_rl import runners

    assert rsl_rl is layer
    assert runners is layer.runners
    assert Path(rsl_rl.__file__).is_file()
    assert "runners" in {info.name for info in pkgutil.iter_modules(rsl_rl.__path__)}
    assert importlib.util.find_spec("rsl_rl.models") is not None
    assert importlib.util.find_spec("rsl_rl.nothing") is None
    with pytest.raises(ModuleNotFoundError, match=r"rsl_rl\.nothing"):
        importlib.import_module("rsl_rl.nothing")


@pytest.mark.usefixtures("door")
@pytest.mark.parametrize("name", ["rsl-rl-lib", "rsl_rl_lib", "RSL.rl-lib"])
def test_the_distribution_has_the_version_of_the_interface(name):
    assert metadata.version(name) == layer.__version__ == "5.5.1"
    found = metadata.distribution(name)
    assert found.metadata["Name"] == "rsl-rl-lib"
    assert found.read_text("top_level.txt") == "rsl_rl\n"
    assert found.requires is None
    assert "rsl-rl-lib" in {d.metadata["Name"] for d in metadata.distributions()}
    assert metadata.version("surefoot")


@pytest.mark.usefixtures("door")
def test_installing_twice_is_once():
    layer.install()
    assert sum(type(finder).__name__ == "_Door" for finder in sys.meta_path) == 1


def test_a_real_rsl_rl_that_is_imported_already_is_an_error(monkeypatch):
    module = type(sys)("rsl_rl")
    module.__file__ = "site-packages/rsl_rl/__init__.py"
    monkeypatch.setitem(sys.modules, "rsl_rl", module)
    before = list(sys.meta_path)
    with pytest.raises(
        ConfigError, match=r"already imported, from site-packages/rsl_rl/__init__.py; call install"
    ):
        layer.install()
    assert sys.meta_path == before


def test_nothing_of_that_name_is_shipped():
    names = {path.name for path in Path(layer.__file__).parents[3].iterdir() if path.is_dir()}
    assert "rsl_rl" not in names


def test_without_tensordict_one_line_says_what_to_install():
    code = "import sys; sys.modules['tensordict'] = None; sys.argv = ['surefoot', 'rsl-rl', 'x.py']\n"
    code += "from surefoot.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert (
        result.stderr
        == "error: the RSL-RL layer needs the tensordict package: pip install 'surefoot[rsl-rl]'.\n"
    )


# ------------------------------------------------------------------ clients as they stand

SCRIPT = """
import sys
from importlib.metadata import version
import helper
import rsl_rl.env.vec_env

print("client", __name__, sys.argv, version("rsl-rl-lib"), rsl_rl.env.VecEnv.__module__)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A client in a directory of its own, with a module beside its script."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "train.py").write_text(SCRIPT)
    (tmp_path / "scripts" / "helper.py").touch()
    (tmp_path / "client").mkdir()
    (tmp_path / "client" / "__main__.py").write_text(SCRIPT.replace("import helper\n", ""))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("door", "project")
def test_a_script_runs_as_python_runs_it(capsys):
    run_client(["scripts/train.py", "--num_envs", "8", "--help"])
    expected = f"client __main__ {['scripts/train.py', '--num_envs', '8', '--help']} 5.5.1 "
    assert capsys.readouterr().out == expected + "surefoot.compat.rsl_rl.env.vec_env\n"


@pytest.mark.usefixtures("door", "project")
def test_a_module_runs_as_python_m_runs_it(capsys):
    run_client(["-m", "client", "--help"])
    assert "client __main__" in (out := capsys.readouterr().out)
    assert "'--help'] 5.5.1" in out


@pytest.mark.usefixtures("door")
def test_a_program_of_an_installed_package_runs(monkeypatch):
    entry = metadata.EntryPoint("train-robots", "builtins:print", "console_scripts")
    monkeypatch.setattr("surefoot.compat.rsl_rl.client.entry_points", lambda **_: [entry])
    with pytest.raises(SystemExit):
        run_client(["train-robots", "Go1", "--resume"])
    assert sys.argv == ["train-robots", "Go1", "--resume"]
    with pytest.raises(ConfigError, match=r"no script 'train-robot' here.* Did you mean 'train-robots'"):
        run_client(["train-robot"])


def test_the_command_line_runs_clients(project):
    light = SCRIPT.replace("import helper\nimport rsl_rl.env.vec_env\n", "import rsl_rl\n")
    light += "import warnings; warnings.warn('careful')\n"
    (project / "train.py").write_text(light.replace("rsl_rl.env.VecEnv.__module__", "rsl_rl.__name__"))

    def surefoot(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    for door in (["surefoot", "rsl-rl"], ["surefoot.compat.rsl_rl"]):
        result = surefoot(*door, "train.py", "--help")
        assert result.stdout == "client __main__ ['train.py', '--help'] 5.5.1 surefoot.compat.rsl_rl\n", (
            result.stderr
        )
        assert result.stderr == "warning: careful\n"
    (project / "fails.py").write_text(
        "import sys\nif len(sys.argv) > 1:\n    sys.exit(7)\nraise RuntimeError('mine')\n"
    )
    failed = surefoot("surefoot", "rsl-rl", "fails.py")
    assert failed.returncode == 1
    assert "Traceback" in failed.stderr
    assert failed.stderr.endswith("RuntimeError: mine\n")
    assert surefoot("surefoot", "rsl-rl", "fails.py", "x").returncode == 7


CHILD = """
import subprocess, sys

ask = "import rsl_rl, importlib.metadata as m; print('child', rsl_rl.__name__, m.version('rsl-rl-lib'))"
subprocess.run([sys.executable, "-c", ask], check=True)
"""


def test_processes_that_a_client_starts_find_the_door_open(project, monkeypatch):
    """As torchrun's and torchrunx's workers do, and the user's own `sitecustomize` runs there too."""
    (project / "train.py").write_text(CHILD)
    (project / "own").mkdir()
    (project / "own" / "sitecustomize.py").write_text("print('own')\n")
    monkeypatch.setenv("PYTHONPATH", str(project / "own"))
    command = [sys.executable, "-m", "surefoot.compat.rsl_rl", "train.py"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stdout == "own\nown\nchild surefoot.compat.rsl_rl 5.5.1\n", result.stderr


@pytest.mark.usefixtures("door", "project")
@pytest.mark.parametrize("before", ["somewhere", None])
def test_the_environment_is_as_before_when_the_client_has_ended(before, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if before is not None:
        monkeypatch.setenv("PYTHONPATH", before)
    run_client(["scripts/train.py"])
    assert os.environ.get("PYTHONPATH") == before


@pytest.mark.parametrize("line", ["rsl-rl", "rsl-rl nothing.py", "rsl-rl -m"])
def test_a_client_that_is_not_there_is_one_line(line, monkeypatch):
    monkeypatch.setattr("surefoot.compat.rsl_rl.client.install", lambda: None)
    result = CliRunner().invoke(cli, line.split())
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
