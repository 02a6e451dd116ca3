"""The whole state of a module tree: parameters, buffers, optimisers and generators, as tensors and plain
data.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from surefoot.errors import CheckpointError


def collect_state(module: nn.Module) -> dict[str, Any]:
    """Everything needed to go on from here. Extensions need no code of their own for it."""
    return {
        "tensors": {k: v.detach().clone() for k, v in module.state_dict().items()},
        # an optimiser hands out its live moments, which the next step would change
        "optimizers": {
            p: {"kind": _kind(o), **copy.deepcopy(o.state_dict())}
            for p, o in _attributes(module, torch.optim.Optimizer)
        },
        "generators": {path: g.get_state() for path, g in _attributes(module, torch.Generator)},
    }


def restore_state(module: nn.Module, state: dict[str, Any], counters: Sequence[str] = ()) -> None:
    """The reverse of `collect_state`, into a module built with the same configuration.

    Args:
        module: Restored.
        state: Of `collect_state`, and whatever the caller added.
        counters: Entries of `state` that the caller restores afterwards; checked here with all others.

    Raises:
        CheckpointError: naming the first entry that is missing, unknown or of another shape; nothing has
            been changed then.
    """
    optimizers = dict(_attributes(module, torch.optim.Optimizer))
    generators = dict(_attributes(module, torch.Generator))
    check_tensors(module.state_dict(), state["tensors"])
    for name in counters:
        if type(state.get(name)) is not int or state[name] < 0:
            raise CheckpointError(f"the checkpoint has '{name}' = {state.get(name)!r:.40}; expected a count.")
    for path, optimizer in optimizers.items():
        _check_optimizer(path, optimizer, _of(state["optimizers"], path, "optimiser"))
    for path, generator in generators.items():
        _check_generator(path, generator, _of(state["generators"], path, "generator"))

    module.load_state_dict(state["tensors"])
    for path, optimizer in optimizers.items():
        saved = {k: v for k, v in state["optimizers"][path].items() if k != "kind"}
        optimizer.load_state_dict(copy.deepcopy(saved))
    for path, generator in generators.items():
        generator.set_state(state["generators"][path].cpu())


def check_tensors(own: dict[str, Any], saved: dict[str, Any]) -> None:
    """Raise a CheckpointError that names the first difference in names or shapes."""
    for name in [*own, *saved]:
        if name not in saved:
            raise CheckpointError(f"the checkpoint lacks '{name}'; it was made with another configuration.")
        if name not in own:
            raise CheckpointError(f"the checkpoint holds '{name}', which this configuration does not build.")
        if not isinstance(saved[name], Tensor):
            raise CheckpointError(
                f"'{name}' is of type {type(saved[name]).__name__} in the checkpoint; expected a tensor."
            )
        if own[name].shape != saved[name].shape:
            raise CheckpointError(
                f"'{name}' has shape {tuple(saved[name].shape)} in the checkpoint and "
                f"{tuple(own[name].shape)} here; use the configuration and environment it was made with."
            )


def _check_optimizer(path: str, optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Raise a CheckpointError where `saved` is of another kind, or has other groups of parameters."""
    here, kind = _kind(optimizer), saved["kind"]
    if kind != here:
        raise CheckpointError(
            f"the optimiser '{path}' is {kind} in the checkpoint and {here} here; use the configuration it "
            "was made with."
        )
    theirs, ours = (
        [len(group["params"]) for group in groups]
        for groups in (saved["param_groups"], optimizer.param_groups)
    )
    if theirs != ours:
        raise CheckpointError(
            f"the optimiser '{path}' has groups of {theirs} parameters in the checkpoint and of {ours} here; "
            "use the configuration it was made with."
        )


def _check_generator(path: str, generator: torch.Generator, saved: Any) -> None:
    """Raise a CheckpointError where `saved` is no state of such a generator."""
    try:
        torch.Generator(generator.device).set_state(saved.cpu())
    except (AttributeError, RuntimeError, TypeError) as error:
        raise CheckpointError(
            f"the generator '{path}' cannot take its state in the checkpoint ({str(error).splitlines()[0]})."
        ) from error


def _of(states: dict[str, Any], path: str, kind: str) -> Any:
    if path not in states:
        raise CheckpointError(
            f"the checkpoint lacks the {kind} '{path}'; it was made with another configuration."
        )
    return states[path]


def _attributes(module: nn.Module, kind: type) -> Iterator[tuple[str, Any]]:
    """Attributes of `kind`, also inside lists and dicts, anywhere in the tree, with their path."""
    for prefix, part in module.named_modules():
        for name, value in vars(part).items():
            path = f"{prefix}.{name}" if prefix else name
            if isinstance(value, kind):
                yield path, value
            elif isinstance(value, list | tuple):
                yield from ((f"{path}.{i}", v) for i, v in enumerate(value) if isinstance(v, kind))
            elif isinstance(value, dict):
                yield from ((f"{path}.{k}", v) for k, v in value.items() if isinstance(v, kind))


def _kind(optimizer: torch.optim.Optimizer) -> str:
    """The name of its class, or of PyTorch's where that is one of Surefoot's: files outlive ours."""
    return next(k.__name__ for k in type(optimizer).__mro__ if not k.__module__.startswith("surefoot."))
