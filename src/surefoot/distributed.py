"""Communication between processes: no-ops on one, so that there is one code path for one and for many."""

from __future__ import annotations

import hashlib
import os
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

BLOCK_NUMBERS = 2**23
"""Numbers that are copied to float64 at once."""


def init_from_env(device: torch.device) -> None:
    """Join the process group that `torchrun` announces, unless a group exists or there is none to join."""
    if device.type == "cuda" and device.index is not None:
        # collectives and kernels that are told no device take the current one
        torch.cuda.set_device(device)
    if "WORLD_SIZE" in os.environ and int(os.environ["WORLD_SIZE"]) > 1 and not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        start = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        if start == 0:
            dist.init_process_group(backend)
            return
        # all starts share torchrun's store (PyTorch 2.13), and would find the addresses of dead processes
        store, rank, world_size = next(rendezvous("env://"))
        store = PrefixStore(f"start_{start}", store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)


def shutdown() -> None:
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if world_size() > 1 else 0


def is_main() -> bool:
    """Whether this process writes files and speaks to the user."""
    return rank() == 0


def global_index(env: int, num_envs: int) -> int:
    """Number of an environment among those of all processes, of which each has `num_envs`.

    It serves messages; before the process group is joined, the rank is the one that `torchrun` announces.
    """
    joined = dist.is_available() and dist.is_initialized()
    return env + num_envs * (rank() if joined else int(os.environ.get("RANK", "0")))


def is_first(text: str) -> bool:
    """Whether no other process has asked this about `text`. No collective: the others need not ask at all."""
    if world_size() == 1:
        return True
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    try:
        return distributed_c10d._get_default_store().add(f"is_first/{digest}", 1) == 1  # pyright: ignore[reportPrivateUsage]
    except RuntimeError:
        return True  # the process that keeps the count is gone


def stream_seed(seed: int, stream: str, rank: int = 0) -> int:
    """Seed of an independent random stream ("weights", "actions", ...) of a run and of one process."""
    digest = hashlib.blake2b(f"{seed}/{stream}/{rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generator(seed: int, stream: str, device: torch.device, rank: int = 0) -> torch.Generator:
    return torch.Generator(device=device).manual_seed(stream_seed(seed, stream, rank))


def broadcast_module(module: nn.Module) -> None:
    """Give every process the parameters and buffers of process 0."""
    if world_size() > 1:
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.data, src=0)


def all_sum(x: Tensor) -> Tensor:
    """Sum of `x` over processes, in place."""
    if world_size() > 1:
        dist.all_reduce(x)
    return x


def mean(x: Tensor) -> Tensor:
    """Mean of `x` over processes, in place."""
    return all_sum(x).div_(world_size()) if world_size() > 1 else x


def gather_objects(obj: Any) -> list[Any]:
    """`obj` of every process, in rank order, on every process."""
    if world_size() == 1:
        return [obj]
    gathered: list[Any] = [None] * world_size()
    dist.all_gather_object(gathered, obj)
    return gathered


def moments(x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Count, mean and sum of squared deviations of the rows of `x` [R, ...] over all processes, in float64.

    Rows where `mask` [R] is False count for nothing, whatever they hold. The parts of the processes are
    merged exactly (Chan et al. 1983, eq. 2.1), in rank order, so that every process gets the same bits.
    """
    parts = blocks(x)
    masks = [None] * len(parts) if mask is None else mask.tensor_split(len(parts))
    count, mean, m2 = reduce(merge_moments, map(_own_moments, parts, masks))
    if world_size() == 1:
        return count, mean, m2
    packed = torch.cat([count.reshape(1), mean.reshape(-1), m2.reshape(-1)])
    parts = [torch.empty_like(packed) for _ in range(world_size())]
    dist.all_gather(parts, packed)
    count, mean, m2 = (torch.zeros_like(t) for t in (count, mean, m2))
    for part in parts:
        other_mean, other_m2 = (t.view_as(mean) for t in part[1:].chunk(2))
        count, mean, m2 = merge_moments((count, mean, m2), (part[0], other_mean, other_m2))
    return count, mean, m2


def blocks(x: Tensor) -> tuple[Tensor, ...]:
    """The rows [R, ...] in parts of bounded size, at least one; a copy of all may be too much."""
    return x.tensor_split(max(1, -(-x.numel() // BLOCK_NUMBERS)))


def _own_moments(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    rows = x.double()
    if mask is None:
        count = torch.full((), float(x.shape[0]), dtype=torch.float64, device=x.device)
        mean = rows.sum(0) / count.clamp(min=1)
        return count, mean, (rows - mean).square().sum(0)
    keep = mask.reshape(-1, *[1] * (x.dim() - 1))
    count = mask.sum(dtype=torch.float64)
    mean = torch.where(keep, rows, 0.0).sum(0) / count.clamp(min=1)
    return count, mean, torch.where(keep, (rows - mean).square(), 0.0).sum(0)


def merge_moments(
    a: tuple[Tensor, Tensor, Tensor], b: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Count, mean and squared deviations of two samples together (Chan et al. 1983, eq. 2.1)."""
    count = a[0] + b[0]
    weight = b[0] / count.clamp(min=1)
    delta = b[1] - a[1]
    return count, a[1] + delta * weight, a[2] + b[2] + delta.square() * a[0] * weight


def minimize(
    loss: Tensor,
    optimizer: torch.optim.Optimizer,
    max_norm: float | None = None,
    is_due: Tensor | bool = True,
) -> Tensor:
    """One optimiser step of an extension's own networks, averaged over processes. Returns the gradient norm.

    With a gradient that is not finite on any process, or where `is_due` (0-d, alike on all) is False, no
    process makes the step. Parameters that the loss reaches on no process stay, also from weight decay.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    gradients = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
    is_reached = torch.tensor([g is not None for g in found]).to(gradients[0])
    flat = mean(torch.cat([*(g.reshape(-1) for g in gradients), is_reached]))
    *parts, is_reached = flat.split([*(p.numel() for p in parameters), len(parameters)])
    norm = torch.linalg.vector_norm(flat[: -len(parameters)])
    scale = torch.ones_like(norm) if max_norm is None else (max_norm / (norm + 1e-6)).clamp(max=1)
    is_made = norm.isfinite() & is_due
    before = [{name: t.clone() for name, t in _of(optimizer, p).items()} for p in parameters]
    for parameter, gradient in zip(parameters, parts, strict=True):
        parameter.grad = torch.where(is_made, gradient * scale, 0.0).view_as(parameter)
    optimizer.step()
    for parameter, old, reached in zip(parameters, before, is_reached > 0, strict=True):
        for name, tensor in _of(optimizer, parameter).items():
            # a state begins with zeros
            tensor.copy_(torch.where(is_made & reached, tensor, old.get(name, 0.0)))
    return norm


def _of(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """What a step changes of a parameter: itself and its state."""
    state = {k: v for k, v in optimizer.state[parameter].items() if isinstance(v, Tensor)}
    return {"parameter": parameter.detach(), **state}
