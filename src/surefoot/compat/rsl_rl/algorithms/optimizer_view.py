"""The engine's flat optimiser as the torch optimiser that RSL-RL's clients and checkpoints know."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn

from surefoot.algorithm.optimizer import FlatOptimizer
from surefoot.errors import CheckpointError


class OptimizerView:
    """One group with every parameter of actor and critic; its state is cut out of the flat one.

    Args:
        flat: Whose state, rate and step these are.
        parameters: In RSL-RL's order; one that stands there twice (of a shared encoder) counts once.
        set_rate: Called with a rate that a client sets.
    """

    def __init__(
        self, flat: FlatOptimizer, parameters: Iterable[nn.Parameter], set_rate: Callable[[float], None]
    ) -> None:
        self._flat, self._parameters = flat, [*parameters]
        self._numbers = {p: i for i, p in enumerate(self._parameters)}  # of two places the last, as in torch
        self._group = _Group(self, set_rate)

    @property
    def param_groups(self) -> list[MutableMapping[str, Any]]:
        return [self._group]

    def zero_grad(self, set_to_none: bool = True) -> None:
        for p in self._parameters:
            p.grad = None if set_to_none or p.grad is None else torch.zeros_like(p.grad)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """One step on the parameters' own `.grad`, as a learning loop of the client's own left them."""
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._flat.flat_parameters]
        self._flat.gradient[:-3] = torch.cat([g.reshape(-1) for g in parts])
        self._flat.step(torch.zeros((), device=self._flat.rate.device))

    # ------------------------------------------------------------------ the state, parameter by parameter

    def state_dict(self) -> dict[str, Any]:
        """As torch's own optimiser over the same parameters would give it."""
        [flat] = self._flat.optimizer.param_groups[0]["params"]
        state = self._flat.optimizer.state.get(flat, {})
        if not float(state.get("step", 1)):
            state = {}  # nothing was learned yet; torch's own then has none either
        cut = {name: _cut(x, self._flat.flat_parameters, flat) for name, x in state.items()}
        places = {id(p): i for i, p in enumerate(self._flat.flat_parameters)}
        entries = {
            i: {name: parts[places[id(p)]] for name, parts in cut.items()}
            for p, i in self._numbers.items()
            if cut and id(p) in places
        }
        options = {k: v for k, v in self._flat.optimizer.param_groups[0].items() if k != "ratio"}
        # RSL-RL's is neither fused, nor is its rate a tensor
        own = {
            "fused": None,
            "lr": float(self._flat.rate),
            "params": [self._numbers[p] for p in self._parameters],
        }
        return {"state": entries, "param_groups": [{**options, **own}]}

    @torch.no_grad()
    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """The reverse, also of a file that RSL-RL wrote.

        Raises:
            CheckpointError: it is of another number of parameters, or of other shapes.
        """
        group = saved["param_groups"][0]
        theirs = [*dict.fromkeys(group["params"])]
        if len(theirs) != len(self._numbers):
            raise CheckpointError(
                f"the optimiser of the checkpoint has {len(theirs)} parameters, this one has "
                f"{len(self._numbers)}; load with load_cfg without 'optimizer' to start it anew."
            )
        numbers = dict(zip(self._numbers, theirs, strict=True))
        own = [saved["state"].get(numbers[p]) for p in self._flat.flat_parameters]
        state = {}
        if any(own):
            for p, entry in zip(self._flat.flat_parameters, own, strict=True):
                _check(p, entry)
            state = {name: _join(name, own) for name in own[0]}  # pyright: ignore[reportOptionalIterable]
        [flat_group] = self._flat.optimizer.state_dict()["param_groups"]
        kept = {
            k: v for k, v in group.items() if k in flat_group and k not in ("params", "fused", "lr", "ratio")
        }
        entry = {0: state} if state else {}
        self._flat.optimizer.load_state_dict({"state": entry, "param_groups": [{**flat_group, **kept}]})
        self._group["lr"] = group["lr"]


class _Group(dict[str, Any]):
    """A parameter group whose learning rate is the engine's."""

    def __init__(self, view: OptimizerView, set_rate: Callable[[float], None]) -> None:
        options = view._flat.optimizer.param_groups[0]  # pyright: ignore[reportPrivateUsage]
        super().__init__({k: v for k, v in options.items() if k != "ratio"} | {"params": view._parameters})  # pyright: ignore[reportPrivateUsage]
        self._rate, self._set_rate = view._flat.rate, set_rate  # pyright: ignore[reportPrivateUsage]

    def __getitem__(self, key: str) -> Any:
        return float(self._rate) if key == "lr" else super().__getitem__(key)

    def __setitem__(self, key: str, value: Any) -> None:
        if key == "lr":
            self._set_rate(float(value))
        else:
            super().__setitem__(key, value)


def _cut(x: Tensor, parameters: list[nn.Parameter], flat: nn.Parameter) -> list[Tensor]:
    """A field of the flat state for each parameter; counters are the same for all."""
    if x.shape != flat.shape:
        return [x.clone() for _ in parameters]
    parts = x.split([p.numel() for p in parameters])
    return [part.view_as(p).clone() for part, p in zip(parts, parameters, strict=True)]


def _join(name: str, entries: list[Any]) -> Tensor:
    parts = [torch.as_tensor(entry[name]) for entry in entries]
    if name == "step":
        return parts[0].float()
    return torch.cat([part.reshape(-1) for part in parts])


def _check(parameter: nn.Parameter, entry: Any) -> None:
    for name, x in (entry or {}).items():
        if isinstance(x, Tensor) and x.dim() and x.shape != parameter.shape:
            raise CheckpointError(
                f"the optimiser's '{name}' of a parameter is {tuple(x.shape)} in the checkpoint and "
                f"{tuple(parameter.shape)} here; it is of another network."
            )
    if entry is None:
        raise CheckpointError("the optimiser of the checkpoint lacks the state of some parameters.")
