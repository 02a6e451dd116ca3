"""The structure of the package as tests: where imports point, what `algorithm/` may hold, its length."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import surefoot

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "surefoot"
FILES = sorted(PACKAGE.rglob("*.py"))

# Imports point to a lower number, or stay on the same. The longest prefix of a module's name decides; 2.x are
# the steps within layer 2.
LAYERS = {
    "cli": 5,
    "__main__": 5,
    "compat": 5,
    "tasks": 5,
    "training": 4,
    "deploy": 4,
    "doctor": 4,
    "envs": 4,
    "config": 4,
    "testing": 4,
    "extensions": 3,
    "extensions.amp.ppo_amp": 3.5,
    "algorithm.ppo": 3,
    "algorithm.distillation": 3,
    "algorithm.diagnostics": 3,
    "algorithm.values": 2.4,
    "algorithm.allocate": 3,
    "algorithm.closed_form": 3,
    "algorithm.plain_networks": 2.2,
    "algorithm.compiled": 3,
    "algorithm": 1,
    "algorithm.extension": 2.3,
    "algorithm.rollout_storage": 2.2,
    "networks.actor_critic": 2.1,
    "networks": 1,
    "distributed": 1,
    "types": 0,
    "errors": 0,
    "importing": 0,
    "field_types": 0,
    "field_checks": 0,
}


def module_of(path: Path) -> str:
    """`algorithm.ppo` for src/surefoot/algorithm/ppo.py; empty for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer(module: str) -> float:
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        if (prefix := ".".join(parts[:length])) in LAYERS:
            return LAYERS[prefix]
    raise AssertionError(f"'{module}' stands in no layer; say in LAYERS where it belongs")


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and module (without `surefoot.`) of each import from the package, unless for types only."""
    tree = parse(path)
    for_types = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            head, _, module = name.partition(".")
            if head == "surefoot":
                yield node.lineno, as_module(module)


def as_module(name: str) -> str:
    """`algorithm.ppo.PPO` as the module `algorithm.ppo`."""
    parts = name.split(".")
    while parts and not (PACKAGE.joinpath(*parts).is_dir() or (PACKAGE / f"{'/'.join(parts)}.py").is_file()):
        parts.pop()
    return ".".join(parts)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down_only(path):
    own = module_of(path)
    for line, module in imports(path):
        if own == "" or module == "":
            continue
        same_part = own.split(".")[0] == module.split(".")[0]
        where = f"{path.relative_to(ROOT)}:{line} imports surefoot.{module}"
        assert layer(module) <= layer(own), (
            f"{where}: layer {layer(own)} must not import layer {layer(module)}"
        )
        if not same_part and layer(own) == 3:
            siblings = {own.split(".")[0], module.split(".")[0]} == {"extensions", "algorithm"}
            assert not (siblings and layer(module) == 3), (
                f"{where}: extensions and PPO do not know each other"
            )


def test_no_two_modules_import_each_other_in_a_circle():
    graph = {module_of(p): {m for _, m in top_level_imports(p)} for p in FILES}
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, "a circle of imports: " + " -> ".join([*trail, module])
        if module in done:
            return
        for imported in graph.get(module, ()):
            visit(imported, (*trail, module))
        done.add(module)

    for module in graph:
        visit(module, ())


def top_level_imports(path: Path) -> list[tuple[int, str]]:
    """Those that run when the module is imported."""
    lines = {n.lineno for n in parse(path).body if isinstance(n, (ast.Import, ast.ImportFrom))}
    return [(line, m) for line, m in imports(path) if line in lines and m and m != module_of(path)]


EXTRAS = [
    "imageio",
    "imageio_ffmpeg",
    "wandb",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "optuna",
    "matplotlib",
    "tensordict",
    "envpool",
]


def test_importing_surefoot_imports_neither_torch_nor_an_extra():
    heavy = ["torch", "gymnasium", "mujoco", "pydantic", "tensorboard", *EXTRAS]
    code = f"import surefoot, sys; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_only_tasks_import_mujoco_and_no_module_imports_an_extra_at_the_top():
    for path in FILES:
        for node in ast.walk(parse(path)):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
                for name in names:
                    head = name.partition(".")[0]
                    where = f"{path.relative_to(ROOT)}:{node.lineno} imports {head}"
                    assert head != "mujoco" or module_of(path).startswith("tasks"), where
                    # the RSL-RL layer as a whole needs tensordict
                    needs = head == "tensordict" and module_of(path).startswith("compat")
                    assert head not in EXTRAS or node.col_offset > 0 or needs, f"{where} before it is needed"


@pytest.mark.parametrize("name", surefoot.__all__)
def test_a_public_name_resolves(name):
    value = getattr(surefoot, name)
    assert value.__name__ == name
    assert name in dir(surefoot)


def test_an_unknown_public_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'PPPO'"):
        surefoot.PPPO  # noqa: B018


# --- algorithm/: no transfer to the host, no branch on a tensor

HOST_METHODS = {"item", "tolist", "cpu", "numpy"}
"""Methods that wait for the device and bring a tensor to the host."""
HOST_NAMES = re.compile(
    r"^(len|math|config|cfg|settings|shape|size|ndim|numel|num_\w+|(\w+_)?dims?|read_by_extensions)$"
)
"""What `int()`, `float()` and `bool()` may take in algorithm/: numbers from configs, lengths and shapes."""
TENSOR_TESTS = {
    "any",
    "all",
    "isnan",
    "isfinite",
    "isinf",
    "equal",
    "allclose",
    "is_nonzero",
    "gt",
    "lt",
    "ge",
    "le",
}
"""Results that are tensors: an `if`, `while`, `assert`, `not`, `and` or `or` on one is a hidden transfer."""


def algorithm_nodes() -> Iterator[tuple[str, ast.AST]]:
    for path in sorted((PACKAGE / "algorithm").glob("*.py")):
        if path.name == "state.py":  # saving and loading happen between iterations, with the host
            continue
        for node in ast.walk(parse(path)):
            yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", node


def names_in(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} | {
        n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)
    }


def is_host_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) or any(HOST_NAMES.match(name) for name in names_in(node))


def is_tensor_test(node: ast.AST) -> bool:
    """A call such as `x.any()` or `torch.isnan(x)`, alone or under `not`, `and`, `or` and comparisons."""
    if isinstance(node, ast.UnaryOp):
        return is_tensor_test(node.operand)
    if isinstance(node, ast.BoolOp):
        return any(is_tensor_test(value) for value in node.values)
    if isinstance(node, ast.Compare):
        return any(is_tensor_test(side) for side in [node.left, *node.comparators])
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in TENSOR_TESTS
    )


def transfers(where: str, node: ast.AST) -> str | None:
    """What in this node brings a tensor to the host, if anything."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in HOST_METHODS:
            return f"{where}: .{node.func.attr}()"
        if isinstance(node.func, ast.Attribute) and node.func.attr == "to" and "'cpu'" in ast.unparse(node):
            return f"{where}: .to('cpu')"
        converts = isinstance(node.func, ast.Name) and node.func.id in {"int", "float", "bool"}
        if converts and node.args and not is_host_number(node.args[0]):
            return f"{where}: {ast.unparse(node)}"
    if isinstance(node, (ast.If, ast.While, ast.IfExp, ast.Assert)) and is_tensor_test(node.test):
        return f"{where}: a branch on {ast.unparse(node.test)}"
    return None


def test_the_algorithm_never_waits_for_the_device():
    found = [text for where, node in algorithm_nodes() if (text := transfers(where, node))]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        "x.item()",
        "x.cpu()",
        "x.to('cpu')",
        "loss.tolist()",
        "float(kl)",
        "bool(mask.any())",
        "int(x[0])",
        "if mask.any(): pass",
        "while not x.isfinite().all(): pass",
        "y = 1 if torch.isnan(x) else 2",
        "assert a and torch.equal(x, y)",
        "if x.max().gt(3): pass",
    ],
)
def test_the_rule_sees_each_form_of_transfer(code):
    assert any(transfers("here", node) for node in ast.walk(ast.parse(code)))


@pytest.mark.parametrize(
    "code", ["int(config.num_envs)", "float(0.5)", "int(x.shape[0])", "if mask is None: pass"]
)
def test_the_rule_lets_python_numbers_pass(code):
    assert not any(transfers("here", node) for node in ast.walk(ast.parse(code)))


def test_the_reading_path_fits_into_one_sitting():
    path = [
        "types",
        "algorithm/returns",
        "algorithm/losses",
        "algorithm/rollout_storage",
        "networks/actor_critic",
        "algorithm/extension",
        "algorithm/ppo",
    ]
    lengths = {name: len((PACKAGE / f"{name}.py").read_text(encoding="utf-8").splitlines()) for name in path}
    assert sum(lengths.values()) <= 1200, lengths


# --- communication between processes


COLLECTIVES = {
    f"dist.{name}"
    for name in (
        "all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all", "barrier",
        "broadcast", "broadcast_object_list", "gather", "gather_object", "monitored_barrier", "recv",
        "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list", "send",
    )
}  # fmt: skip
"""Calls of torch.distributed that wait for other processes."""
TRAINING_PATH = {
    "algorithm",
    "extensions",
    "networks.normalizers",
    "training.drift",
    "training.episodes",
    "training.eval_hook",
    "training.on_policy_runner",
    "training.recording",
    "training.resume",
    "training.saving",
    "cli.session",
    "compat.rsl_rl",
    "testing.extension_suite",
}
"""What runs on every process at the same time. Nothing else may wait for another process: evaluation,
inference, export and logging also run on a single one."""


@cache
def communicating() -> set[str]:
    """Functions of `surefoot.distributed` that wait for other processes, also through one another."""
    functions = {
        n.name: calls(n) for n in parse(PACKAGE / "distributed.py").body if isinstance(n, ast.FunctionDef)
    }
    found = {name for name, called in functions.items() if called & COLLECTIVES}
    while more := {name for name, called in functions.items() if called & found} - found:
        found |= more
    return found


def calls(tree: ast.AST) -> set[str]:
    """What is called in the tree, as written."""
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


def communication(tree: ast.AST) -> set[str]:
    """Uses of communicating functions in a module, and of torch.distributed in any form."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            written = ast.unparse(node)
            owner = ast.unparse(node.value).rpartition(".")[2]
            if written == "torch.distributed" or (owner == "distributed" and node.attr in communicating()):
                found.add(written)
        elif isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names}
            if node.module == "surefoot.distributed":
                found |= names & communicating()
            elif node.module == "torch":
                found |= {"torch.distributed"} if "distributed" in names else set()
            elif (node.module or "").startswith("torch.distributed"):
                found.add("torch.distributed")
        elif isinstance(node, ast.Import) and any(a.name.startswith("torch.distributed") for a in node.names):
            found.add("torch.distributed")
    return found


def test_the_communicating_functions_are_found():
    waiting = {"all_sum", "mean", "gather_objects", "moments", "minimize", "broadcast_module"}
    assert waiting <= communicating()
    assert communicating().isdisjoint({"rank", "world_size", "is_main", "generator", "merge_moments"})


def test_only_the_training_path_waits_for_other_processes():
    faults = []
    for path in FILES:
        module, found = module_of(path), communication(parse(path))
        is_training = any(f"{module}.".startswith(f"{part}.") for part in TRAINING_PATH)
        if module != "distributed" and found and ("torch.distributed" in found or not is_training):
            faults.append(f"{module}: {sorted(found)}")
    assert faults == []


@pytest.mark.parametrize(
    "code",
    [
        "from surefoot import distributed\ndistributed.gather_objects(x)",
        "from surefoot.distributed import all_sum as total",
        "import surefoot.distributed\nsurefoot.distributed.mean(x)",
        "import torch.distributed as dist\ndist.barrier()",
        "from torch.distributed import barrier",
        "torch.distributed.all_reduce(x)",
        "from torch import distributed",
        "f = distributed.moments",
    ],
)
def test_the_rule_sees_each_form_of_communication(code):
    assert communication(ast.parse(code))


@pytest.mark.parametrize("code", ["x.mean()", "distributed.rank()", "x.gather(0, i)", "pipe.send(x)"])
def test_the_rule_lets_other_calls_pass(code):
    assert not communication(ast.parse(code))


# --- classes: abstract or final

ABSTRACT = {
    "Checked", "Extension", "Hook", "Objective", "Distribution", "VecEnv", "Logger", "SurefootError",
    "NetworkConfig", "ConfigError", "CheckpointError",
}  # fmt: skip
"""Classes made to be subclassed. Errors are a hierarchy by nature."""


def test_no_concrete_class_of_the_package_is_subclassed():
    classes: dict[str, tuple[Path, ast.ClassDef]] = {
        node.name: (path, node)
        for path in FILES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ClassDef)
    }
    for path, node in classes.values():
        if module_of(path).startswith("compat"):
            continue
        for base in node.bases:
            name = ast.unparse(base).partition("[")[0].rpartition(".")[2]
            if name in classes and not is_abstract(classes[name][1]):
                raise AssertionError(
                    f"{path.relative_to(ROOT)}:{node.lineno}: {node.name} subclasses the concrete {name}; "
                    "wrap or compose it"
                )


def is_abstract(node: ast.ClassDef) -> bool:
    bases = {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}
    return node.name in ABSTRACT or bool(bases & {"ABC", "Protocol"})


# --- what must not stand in any file


def test_no_print_no_eval_no_path_of_a_machine():
    for path in FILES:
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"print", "eval", "exec"}, (
                    f"{path}:{node.lineno}: {node.func.id}()"
                )
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"(?<![\w./])/(home|root|work|tmp)/\w", text), f"{path}: a path of some machine"
