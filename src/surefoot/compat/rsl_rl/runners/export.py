"""A model as a TorchScript or ONNX file, through the modules it makes of itself, checked against PyTorch."""

from __future__ import annotations

import importlib
import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from surefoot.config import SurefootWarning
from surefoot.deploy.export import INSTALL, TOLERANCE, write_file
from surefoot.errors import ConfigError, SurefootError

OPSET = 18

Outputs = Sequence[Tensor]


def export_jit(policy: Any, path: Path) -> None:
    """Write what `policy.as_jit()` makes as TorchScript.

    Raises:
        SurefootError: it gives other actions than PyTorch; nothing was written.
    """
    module: nn.Module = policy.as_jit().cpu().eval()
    inputs, buffer = _jit_inputs(policy), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of TorchScript's age
        scripted: Any = torch.jit.script(module)
        torch.jit.save(scripted, buffer)
        buffer.seek(0)
        loaded: Any = torch.jit.load(buffer)
    if inputs is not None:
        with torch.no_grad():
            _compare(_as_tuple(loaded(*inputs)), _as_tuple(module(*inputs)), path)
    write_file(path, buffer.getvalue())


def _jit_inputs(policy: Any) -> tuple[Any, ...] | None:
    """Random inputs for the models that we know; None for those of the user."""
    vectors, images = getattr(policy, "obs_dim", None), getattr(policy, "obs_channels_2d", None)
    if vectors is None:
        return None
    inputs: tuple[Any, ...] = (torch.randn(2, vectors),)
    if images is None:
        return inputs
    sizes = zip(images, policy.obs_dims_2d, strict=True)
    return *inputs, [torch.rand(2, channels, *size) for channels, size in sizes]


def export_onnx(policy: Any, path: Path, verbose: bool = False) -> None:
    """Write what `policy.as_onnx()` makes as ONNX. With its `dynamic_axes` the batch may have any size.

    Raises:
        ConfigError: onnx is not installed.
        SurefootError: it gives other actions than PyTorch; nothing was written.
    """
    try:
        importlib.import_module("onnx")
    except ImportError as error:
        raise ConfigError(f"export_policy_to_onnx needs onnx: {INSTALL}.") from error
    module: Any = policy.as_onnx(verbose=verbose)
    module = module.cpu().eval()
    buffer = io.BytesIO()
    axes = getattr(module, "dynamic_axes", None)
    with warnings.catch_warnings():
        # of this exporter's age, and of branches on shapes; what they could spoil, the check shows
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            module.get_dummy_inputs(),
            buffer,  # pyright: ignore[reportArgumentType] - the exporter by tracing takes it
            # the exporter by tracing: weights stay in the one file, and it is there in every PyTorch from 2.6
            dynamo=False,
            opset_version=OPSET,
            verbose=verbose,
            input_names=module.input_names,
            output_names=module.output_names,
            dynamic_axes=axes,
        )
    _check_onnx(buffer.getvalue(), module, (1,) if axes is None else (1, 3), path)
    write_file(path, buffer.getvalue())


def _check_onnx(content: bytes, module: Any, batch_sizes: Sequence[int], path: Path) -> None:
    try:
        import onnxruntime
    except ImportError:
        text = f"{path.name} was not checked against PyTorch: onnxruntime is not installed ({INSTALL})."
        warnings.warn(text, SurefootWarning, stacklevel=4)
        return
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    for size in batch_sizes:
        dummies = module.get_dummy_inputs() if size == 1 else module.get_dummy_inputs(size)
        inputs = [torch.randn_like(x) if x.is_floating_point() else x for x in dummies]
        named = {name: x.numpy() for name, x in zip(module.input_names, inputs, strict=True)}
        names = {port.name for port in session.get_inputs()}  # an input without effect is left out
        outputs: Any = session.run(None, {name: x for name, x in named.items() if name in names})
        with torch.no_grad():
            expected = _as_tuple(module(*inputs))
        _compare([torch.as_tensor(x) for x in outputs], expected, path)


def _as_tuple(outputs: Any) -> Outputs:
    return outputs if isinstance(outputs, (tuple, list)) else (outputs,)


def _compare(found: Outputs, expected: Outputs, path: Path) -> None:
    for own, wanted in zip(found, expected, strict=True):
        scale = max(1.0, float(wanted.abs().max())) if wanted.numel() else 1.0
        if own.shape != wanted.shape or not torch.allclose(own, wanted, rtol=0, atol=TOLERANCE * scale):
            raise SurefootError(
                f"{path.name} gives other actions than PyTorch; nothing was written. What the model does may "
                "not depend on the values of its inputs."
            )
