"""torch.compile for PPO: what is compiled, when that pays, and what happens where it fails.

Compiled is a mini-batch up to the optimiser's step: forward pass, loss, backward pass, clipping and learning
rate in one graph; with several processes, the gradient alone. With CUDA graphs, acting and GAE are too, since
each kernel's launch counts there; on a CPU the guards of a graph cost more than acting itself. PPO does not
know: its methods are replaced by forms that give the same.
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

from surefoot import distributed
from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.mini_batches import padded
from surefoot.algorithm.optimizer import Decision
from surefoot.algorithm.ppo import PPO
from surefoot.networks.actor_critic import ActorCritic
from surefoot.types import Batch

OVERHEAD_S = 0.5e-3
"""What a compiled mini-batch saves whatever its size (two networks of 64-64 units on one core)."""
PER_ROW_S = 0.5e-6
"""What it saves for each of its rows."""
WORTH_S = 120.0
"""`auto` compiles where a run saves as much: several times what compiling takes when nothing is cached."""

REPLACED = ("advance", "gae", "gradient", "step")

R = TypeVar("R")


def estimated_saving(config: PPOConfig, num_rows: int, iterations: int) -> float:
    """Seconds that a run of `iterations` on rollouts of `num_rows` = N·T rows saves when compiled."""
    num_batches = config.num_batches(num_rows)
    each = OVERHEAD_S * num_batches + PER_ROW_S * num_rows
    return iterations * config.num_learning_epochs * each


def decide(ppo: PPO, num_rows: int, iterations: int) -> tuple[str, str]:
    """`off`, `default` or `cudagraph`, and why; nothing to say where that goes without saying.

    `auto` compiles where a compiler is there and `estimated_saving` comes to two minutes. It never chooses
    `cudagraph`.
    """
    config, device = ppo.config, ppo.spec.device
    why = "as configured"
    if config.compile_mode == "off":
        return "off", ""
    if config.compile_mode == "auto":
        saving = estimated_saving(config, num_rows, iterations)
        if saving < WORTH_S:
            return "off", ""
        why = f"it saves about {saving / 60:.0f} min of this run, whose first iterations take longer"
    if reason := obstacle(ppo) or missing_compiler(device):
        return "off", reason
    if config.compile_mode == "cudagraph" and device.type != "cuda":
        return "default", f"there are no CUDA graphs on the device '{device.type}'"
    return "default" if config.compile_mode == "auto" else config.compile_mode, why


def obstacle(ppo: PPO) -> str | None:
    """Why this algorithm cannot be compiled; None: it can."""
    if type(ppo.policy) is not ActorCritic:
        return "the policy is not Surefoot's"
    if ppo.policy.is_recurrent:
        return "the policy is recurrent"
    for name in ("gradient", "step"):
        if getattr(type(ppo), name) is not getattr(PPO, name):
            return f"{type(ppo).__name__} has its own {name}()"
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
    """Replace methods of `ppo` by compiled forms; by themselves where `mode` is `off`. Nothing is compiled
    before its first call.

    Args:
        ppo: Changed.
        mode: `off`, `default` or `cudagraph`.
        say: Gets one line where something goes on uncompiled, and why.
    """
    for name in REPLACED:
        ppo.__dict__.pop(name, None)
    if mode == "off":
        return
    if reason := obstacle(ppo):
        say(f"compile: off, {reason}")
        return
    graphs = mode == "cudagraph"
    options: dict[str, Any] = {"fullgraph": True, "dynamic": False}
    if graphs:
        options["mode"] = "reduce-overhead"

    def kept(function: Callable[..., Any]) -> Callable[..., Any]:
        graph = torch.compile(function, **options)
        # the next run of a CUDA graph overwrites the results of the last
        return (lambda *args: tree_map(torch.clone, graph(*args))) if graphs else graph

    name, form = _mini_batch(ppo, kept)
    forms = {name: ("the mini-batch", form)}
    if graphs:
        forms |= {"advance": ("acting", kept(ppo.advance)), "gae": ("GAE", kept(ppo.gae))}
    for name, (what, form) in forms.items():
        setattr(ppo, name, _or_eager(form, getattr(ppo, name), what, graphs, say))


def _mini_batch(
    ppo: PPO, compiled: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> tuple[str, Callable[[Batch], Any]]:
    """The method that is replaced, and its form."""
    optimizer, gradient_of = ppo.optimizer, _loss_gradient(ppo)
    if distributed.world_size() > 1:  # the reduction stands between gradient and clipping
        graph_of_gradient = compiled(gradient_of)

        @torch.no_grad()
        def gradient(batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
            found, kl, terms = graph_of_gradient(optimizer.data, batch)
            optimizer.gradient[:-3] = found
            return kl, terms

        return "gradient", _of_one_length(ppo, gradient, ppo.gradient)

    def learn(flat: Tensor, batch: Batch) -> tuple[Tensor, Decision, dict[str, Tensor]]:
        found, kl, terms = gradient_of(flat, batch)
        decision = optimizer.decide(found, kl, ppo.num_rows(batch))
        metrics = {"Loss/kl": kl, "Loss/grad_norm": decision.norm, "Loss/skipped_updates": decision.skipped}
        return found, decision, terms | metrics

    graph_of_learning = compiled(learn)

    @torch.no_grad()
    def step(batch: Batch) -> dict[str, Tensor]:
        optimizer.gradient[:-3], decision, metrics = graph_of_learning(optimizer.data, batch)
        optimizer.carry_out(decision)
        return metrics

    return "step", _of_one_length(ppo, step, ppo.step)


def _of_one_length(ppo: PPO, form: Callable[[Batch], R], eager: Callable[[Batch], R]) -> Callable[[Batch], R]:
    """`form`, given mini-batches of one length only.

    Else further graphs would be made, and which of them a mini-batch meets would depend on those before it;
    nothing says that they round alike, as a resumed run needs.
    """
    rows = ppo.spec.num_envs * ppo.storage.num_transitions_per_env
    length = -(-rows // ppo.num_batches)

    def call(batch: Batch) -> R:
        if batch.num_sampled == length:
            return form(batch)
        # rows that an extension added follow the sampled ones: no room for others; and none is to be copied
        if batch.num_sampled != len(batch.index) or not batch.num_sampled:
            return eager(batch)
        return form(padded(batch, length))

    return call


def _loss_gradient(ppo: PPO) -> Callable[[Tensor, Batch], tuple[Tensor, Tensor, dict[str, Tensor]]]:
    """A function of the flat parameters and a mini-batch: gradient, mean KL and terms to log."""
    optimizer = ppo.optimizer
    names = {id(p): name for name, p in ppo.named_parameters()}
    order = [(names[id(p)], p.shape) for p in optimizer.flat_parameters]

    def loss_of(flat: Tensor, batch: Batch) -> tuple[Tensor, tuple[Tensor, dict[str, Tensor]]]:
        parts = zip(order, flat.split(optimizer.sizes), strict=True)
        parameters = {name: part.view(shape) for (name, shape), part in parts}
        loss, kl, terms = torch.func.functional_call(ppo, parameters, (batch,))
        return loss, (kl, terms)

    def gradient_of(flat: Tensor, batch: Batch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        gradient, (kl, terms) = torch.func.grad(loss_of, has_aux=True)(flat, batch)
        return gradient, kl, terms

    return gradient_of


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
