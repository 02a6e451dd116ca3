"""torch.compile for PPO: what is compiled, when that pays, and what happens where it fails.

Compiled are the gradient of a mini-batch's loss (forward pass, loss and backward pass in one graph), the
policy while acting, and GAE. PPO does not know: its methods are replaced by forms that give the same.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.ppo import PPO
from surefoot.networks.actor_critic import ActorCritic
from surefoot.types import Batch, Distribution, Hidden, Observations

OVERHEAD_S = 0.5e-3
"""What a compiled mini-batch saves whatever its size (two networks of 64-64 units on one core)."""
PER_ROW_S = 1e-6
"""What it saves for each of its rows."""
WORTH_S = 60.0
"""`auto` compiles where a run saves as much: three times what compiling takes when nothing is cached."""

R = TypeVar("R")


def estimated_saving(config: PPOConfig, num_rows: int, iterations: int) -> float:
    """Seconds that a run of `iterations` on rollouts of `num_rows` = N·T rows saves when compiled."""
    num_batches = config.num_batches(num_rows)
    each = OVERHEAD_S * num_batches + PER_ROW_S * num_rows
    return iterations * config.num_learning_epochs * each


def decide(ppo: PPO, num_rows: int, iterations: int) -> tuple[str, str]:
    """`off`, `default` or `cudagraph`, and why.

    `auto` compiles where a compiler is there and `estimated_saving` comes to a minute. It never chooses
    `cudagraph`.
    """
    config, device = ppo.config, ppo.spec.device
    if config.compile_mode == "off":
        return "off", "as configured"
    if reason := obstacle(ppo) or missing_compiler(device):
        return "off", reason
    if config.compile_mode == "cudagraph" and device.type != "cuda":
        return "default", f"there are no CUDA graphs on the device '{device.type}'"
    if config.compile_mode != "auto":
        return config.compile_mode, "as configured"
    saving = estimated_saving(config, num_rows, iterations)
    if saving < WORTH_S:
        return "off", f"it would save about {saving:.0f} s of this run, not the {WORTH_S:.0f} that repay it"
    return "default", f"it saves about {saving:.0f} s of this run"


def obstacle(ppo: PPO) -> str | None:
    """Why this algorithm cannot be compiled; None: it can."""
    if type(ppo.policy) is not ActorCritic:
        return "the policy is not Surefoot's"
    if ppo.policy.is_recurrent:
        return "the policy is recurrent"
    if type(ppo).gradient is not PPO.gradient:
        return f"{type(ppo).__name__} has a gradient of its own"
    return None


def missing_compiler(device: torch.device) -> str | None:
    """Why nothing can be compiled for `device`; None: it can."""
    if device.type == "cuda":
        return None if importlib.util.find_spec("triton") else "triton is not installed"
    if device.type != "cpu":
        return f"not on the device '{device.type}'"
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++"]
    if sys.platform == "win32":
        names.append("cl")
    if any(shutil.which(name) for name in names):
        return None
    return f"no C++ compiler ({', '.join(names)}) is on the path"


def compile_ppo(ppo: PPO, mode: str, say: Callable[[str], None]) -> None:
    """Replace `ppo.gradient`, `ppo.advance` and `ppo.gae` by compiled forms; by themselves where `mode` is
    `off`. Nothing is compiled before its first call.

    Args:
        ppo: Changed.
        mode: `off`, `default` or `cudagraph`.
        say: Gets one line where something goes on uncompiled, and why.
    """
    for name in ("gradient", "advance", "gae"):
        ppo.__dict__.pop(name, None)
    if mode == "off":
        return
    if reason := obstacle(ppo):
        say(f"compile: off, {reason}")
        return
    graphs = mode == "cudagraph"
    options: dict[str, Any] = {"fullgraph": True, **({"mode": "reduce-overhead"} if graphs else {})}
    # closures of PPO's methods: what is compiled must not be replaced by itself
    eager: dict[str, Callable[..., Any]] = {"gradient": ppo.gradient, "advance": ppo.advance, "gae": ppo.gae}
    graph_of_loss = torch.compile(_loss_gradient(ppo), **options)
    graph_of_policy = torch.compile(eager["advance"], **options)
    graph_of_gae = torch.compile(eager["gae"], **options)

    def gradient(batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        with torch.no_grad():
            found, kl, terms = graph_of_loss(ppo.optimizer.data, batch)
            ppo.optimizer.gradient[:-3] = found
        return _kept((kl, terms), graphs)

    def advance(obs: Observations, hidden: Hidden) -> tuple[Distribution, Hidden]:
        return graph_of_policy(obs, hidden)

    def gae(*args: Any) -> tuple[Tensor, Tensor]:
        return _kept(graph_of_gae(*args), graphs)

    compiled = {"gradient": gradient, "advance": advance, "gae": gae}
    for name, what in (("gradient", "the mini-batch"), ("advance", "acting"), ("gae", "GAE")):
        setattr(ppo, name, _or_eager(compiled[name], eager[name], what, graphs, say))


def _loss_gradient(ppo: PPO) -> Callable[[Tensor, Batch], tuple[Tensor, Tensor, dict[str, Tensor]]]:
    """A function of the flat parameters and a mini-batch: gradient, mean KL and terms to log."""
    optimizer = ppo.optimizer
    names = {id(p): name for name, p in ppo.named_parameters()}
    order = [(names[id(p)], p.shape) for p in optimizer.flat_parameters]

    def loss_of(flat: Tensor, batch: Batch) -> tuple[Tensor, tuple[Tensor, dict[str, Tensor]]]:
        parts = zip(order, flat.split(optimizer.sizes), strict=True)
        parameters = {name: part.view(shape) for (name, shape), part in parts}
        loss, _, kl, terms = torch.func.functional_call(ppo, parameters, (batch,))
        return loss, (kl, terms)

    def gradient_of(flat: Tensor, batch: Batch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        gradient, (kl, terms) = torch.func.grad(loss_of, has_aux=True)(flat, batch)
        return gradient, kl, terms

    return gradient_of


def _kept(results: R, is_graph: bool) -> R:
    """Results that the next run of a CUDA graph does not overwrite."""
    return tree_map(lambda x: x.clone(), results) if is_graph else results


def _or_eager(
    compiled: Callable[..., R], eager: Callable[..., R], what: str, is_graph: bool, say: Callable[[str], None]
) -> Callable[..., R]:
    """`compiled` until it fails once, then `eager`, from that same call on."""
    has_failed = False

    def call(*args: Any) -> R:
        nonlocal has_failed
        if not has_failed:
            try:
                if is_graph:
                    torch.compiler.cudagraph_mark_step_begin()
                return compiled(*args)
            except Exception as error:  # noqa: BLE001 - a compiler fails in many ways; eager repeats the call
                has_failed = True
                say(f"compile: {what} goes on uncompiled: {_first_line(error)}")
        return eager(*args)

    return call


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # a line that ends so only announces the next
    stop = 1 + next((i for i, line in enumerate(lines) if not line.endswith(":")), 0)
    return f"{type(error).__name__}: {' '.join(lines[:stop]) or 'no message'}"
