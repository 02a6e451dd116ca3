"""Policies as files for a robot: ONNX and TorchScript, checked against PyTorch before they are written.

Both hold the whole way from raw observations to the environment's actions (`deploy.policy_graph`). Beside
them stand `policy.json`, which describes inputs and outputs, and `golden.npz`, inputs with the outputs that
are right.
"""

from __future__ import annotations

import io
import json
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import surefoot
from surefoot.config import SurefootWarning
from surefoot.deploy.golden import Golden, make_golden
from surefoot.deploy.policy_graph import PolicyGraph, Port
from surefoot.errors import ConfigError, SurefootError, did_you_mean
from surefoot.networks.actor_critic import ActorCritic
from surefoot.training.evaluation import InferencePolicy, LoadedPolicy, load_policy

OPSET = 17
"""The oldest with layer normalisation: what runs on a robot is seldom new."""
TOLERANCE = 1e-4
"""Largest difference from PyTorch, in units of the largest output where that is above 1."""
INSTALL = "pip install 'surefoot[export]'"

Arrays = list[NDArray[Any]]
Run = Callable[[Arrays], Arrays]
"""An exported policy at work: its inputs to its outputs, in their order."""


@dataclass(frozen=True)
class Export:
    """What `export_policy` wrote."""

    files: list[Path]
    differences: dict[str, float | None]
    """Largest difference from PyTorch by format; None where it could not be checked."""


def as_onnx(policy: ActorCritic) -> PolicyGraph:
    """The policy as a module for `torch.onnx.export`, with `input_names`, `output_names` and
    `get_dummy_inputs()`.
    """
    return PolicyGraph(policy).eval()


def as_jit(policy: ActorCritic) -> nn.Module:
    """The policy in TorchScript, called with the inputs of a PolicyGraph in their order; N is free.

    Raises:
        ConfigError: a network of the user's own that cannot be traced.
    """
    return _trace(as_onnx(policy))


def export_policy(
    policy: ActorCritic | InferencePolicy | LoadedPolicy | Path | str,
    out_dir: Path | str,
    formats: Sequence[str] = ("onnx", "torchscript"),
    checkpoint: str | int = "best",
) -> Export:
    """Write `policy.onnx`, `policy.pt`, `policy.json` and `golden.npz`.

    Nothing is written unless every format gives PyTorch's outputs on the golden inputs, in two batch sizes.
    Without onnxruntime, policy.onnx is written unchecked, with a warning.

    Args:
        policy: Or a run, as for `load_policy`.
        out_dir: Made where it does not exist.
        formats: Of `onnx` and `torchscript`.
        checkpoint: Of a run: `best`, `last`, or an iteration.

    Raises:
        ConfigError: an unknown format, a library that is not installed, a network that cannot be exported,
            a directory that cannot be written.
        CheckpointError: no such run or checkpoint.
        SurefootError: an exported policy gives other actions than PyTorch.
    """
    for name in formats:
        if name not in WRITERS:
            raise ConfigError(
                f"format '{name}': expected {' or '.join(WRITERS)}.{did_you_mean(name, WRITERS)}"
            )
    if isinstance(policy, (str, Path)):
        policy = load_policy(policy, checkpoint)
    network = policy if isinstance(policy, ActorCritic) else policy.policy
    graph = as_onnx(network)
    golden = make_golden(network, graph)
    description = describe(graph, policy if isinstance(policy, LoadedPolicy) else None)
    contents: dict[str, bytes] = {}
    differences: dict[str, float | None] = {}
    for name in formats:
        file, write = WRITERS[name]
        contents[file], run = write(graph, description)
        differences[name] = None if run is None else difference(run, graph, golden, file)
    description["max_difference_from_pytorch"] = differences
    contents["policy.json"] = (json.dumps(description, indent=2) + "\n").encode()
    contents["golden.npz"] = _npz(golden)
    return Export([write_file(Path(out_dir) / file, data) for file, data in contents.items()], differences)


def describe(graph: PolicyGraph, loaded: LoadedPolicy | None = None) -> dict[str, Any]:
    """What a deployer must know, as plain data."""
    return {
        "surefoot": surefoot.__version__,
        "task": loaded and loaded.task,
        "iteration": loaded and loaded.iteration,
        "step_dt": loaded and loaded.spec.step_dt,
        "observation_groups": graph.groups,
        "inputs": [_describe_port(port) for port in graph.inputs],
        "outputs": [_describe_port(port) for port in graph.outputs],
        "hidden_size": graph.state_size,
        "action_space": " ".join(str(graph.policy.to_env.space).split()),
    }


def _describe_port(port: Port) -> dict[str, Any]:
    return {
        "name": port.name,
        "shape": ["N", *port.shape],
        "dtype": str(port.dtype).removeprefix("torch."),
    }


# ------------------------------------------------------------------ formats


def _trace(graph: PolicyGraph) -> torch.jit.ScriptModule:
    with warnings.catch_warnings():
        # of its age, and of branches on shapes; what they could spoil, the check in two batch sizes shows
        warnings.simplefilter("ignore")
        try:
            traced: Any = torch.jit.trace(graph, graph.get_dummy_inputs(), check_trace=False)
        except (RuntimeError, TypeError, ValueError) as error:
            raise _cannot_export("TorchScript", error) from error
    return traced


def write_torchscript(graph: PolicyGraph, description: dict[str, Any]) -> tuple[bytes, Run]:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(_trace(graph), buffer, {"surefoot": json.dumps(description)})
        buffer.seek(0)
        module: Any = torch.jit.load(buffer)

    def run(arrays: Arrays) -> Arrays:
        with torch.no_grad():
            outputs = module(*map(torch.from_numpy, arrays))
        return [x.numpy() for x in (outputs if isinstance(outputs, tuple) else (outputs,))]

    return buffer.getvalue(), run


def write_onnx(graph: PolicyGraph, description: dict[str, Any]) -> tuple[bytes, Run | None]:
    """By PyTorch's tracing exporter, whatever its default: that one keeps the weights inside of the file, has
    a free N with memories too in every version from 2.6, and takes a fraction of the other's time.
    """
    try:
        import onnx
    except ImportError as error:
        raise ConfigError(f"policy.onnx needs onnx: {INSTALL}, or --format torchscript.") from error
    names = [*graph.input_names, *graph.output_names]
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = Path(directory) / "policy.onnx"
        try:
            torch.onnx.export(
                graph,
                graph.get_dummy_inputs(),
                str(file),
                dynamo=False,
                opset_version=OPSET,
                input_names=graph.input_names,
                output_names=graph.output_names,
                dynamic_axes={name: {0: "N"} for name in names},
            )
        except (RuntimeError, TypeError, ValueError) as error:
            raise _cannot_export("ONNX", error) from error
        model = onnx.load(str(file))
    onnx.helper.set_model_props(model, {"surefoot": json.dumps(description)})
    content = model.SerializeToString()
    try:
        import onnxruntime
    except ImportError:
        text = f"policy.onnx was not checked against PyTorch: onnxruntime is not installed ({INSTALL})."
        warnings.warn(text, SurefootWarning, stacklevel=3)
        return content, None
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def run(arrays: Arrays) -> Arrays:
        outputs: Any = session.run(None, dict(zip(graph.input_names, arrays, strict=True)))
        return outputs

    return content, run


WRITERS: dict[str, tuple[str, Callable[[PolicyGraph, dict[str, Any]], tuple[bytes, Run | None]]]] = {
    "onnx": ("policy.onnx", write_onnx),
    "torchscript": ("policy.pt", write_torchscript),
}
"""File and writer of each format; a writer gives the file's content and the policy read back from it."""


def _cannot_export(what: str, error: Exception) -> ConfigError:
    lines = str(error).strip().splitlines() or ["no message"]
    return ConfigError(
        f"the policy cannot be exported to {what}: {type(error).__name__}: {lines[0].rstrip('.')}. A network "
        f"of your own (actor.class_name) can only hold what {what} has, and the same for every input."
    )


# ------------------------------------------------------------------ checks


def difference(run: Run, graph: PolicyGraph, golden: Golden, file: str) -> float:
    """The largest difference of an exported policy from its golden outputs, in batches of N and of 1.

    Raises:
        SurefootError: it is above the tolerance, or the policy does not run in both sizes.
    """
    worst = 0.0
    for step in range(len(golden[graph.input_names[0]])):
        for rows in (slice(None), slice(1)):
            try:
                outputs = run([golden[name][step][rows] for name in graph.input_names])
            except Exception as error:
                raise _wrong(file, f"does not run: {' '.join(str(error).split())[:200]}") from error
            for name, output in zip(graph.output_names, outputs, strict=True):
                expected = golden[name][step][rows].astype(np.float64)
                if output.shape != expected.shape:
                    raise _wrong(file, f"gives {name} of shape {output.shape}, not {expected.shape}")
                found = float(np.abs(output - expected).max(initial=0.0))
                allowed = TOLERANCE * max(1.0, float(np.abs(expected).max(initial=0.0)))
                # a NaN is never within the tolerance
                if not found <= allowed:
                    raise _wrong(file, f"differs from PyTorch by {found:.3g} in {name}, above {allowed:.1g}")
                worst = max(worst, found)
    return worst


def _wrong(file: str, what: str) -> SurefootError:
    return SurefootError(
        f"{file} {what}; nothing was written. A network of your own (actor.class_name) must do the same with "
        "every input and every number of rows: what depends on their values is fixed in an export."
    )


def _npz(golden: Golden) -> bytes:
    """As np.savez, for arrays of any name: its own arguments are names too."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as files:
        for name, array in golden.items():
            with files.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
    return archive.getvalue()


def write_file(path: Path, content: bytes) -> Path:
    """Write a file whole or not at all.

    Raises:
        ConfigError: the disk refuses.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}.") from error
    return path
