"""The policy's optimiser: parameters and gradients in one flat buffer each, everything decided on the
device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from surefoot import distributed
from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.light_adam import LightAdam
from surefoot.algorithm.schedules import adapt_learning_rate

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
}
FUSED = ("adam", "adamw", "sgd")
"""Those with a kernel that itself leaves out a step."""


class Decision(NamedTuple):
    """What an update does, before it is done; all 0-d."""

    rate: Tensor
    stopped: Tensor
    norm: Tensor
    """Of the gradient before clipping."""
    skipped: Tensor
    """1.0 where the step would put a non-finite number into the weights."""
    is_left_out: Tensor
    """1.0 where no step is made, for that or another reason."""


class FlatOptimizer(nn.Module):
    """Clips, adapts the learning rate, checks and steps with single operations over all parameters.

    Each parameter becomes a view into one flat buffer, so that the norm, the reduction over processes, the
    finite check and the optimiser step are one operation each. A parameter that gets no gradient counts as
    zero.

    Args:
        segments: Parameters by name; each segment is clipped on its own, unless `config.grad_clip` is
        `joint`.
            A parameter in several segments belongs to the first.
        config: Learning rates, clipping, optimiser.
    """

    rate: Tensor
    stopped: Tensor
    """0-d: updates of this iteration that were not made because the KL was above `max_kl`."""

    def __init__(self, segments: Mapping[str, Iterable[nn.Parameter]], config: PPOConfig) -> None:
        super().__init__()
        self.config = config
        self.parameters_by_segment = _unique(segments)
        self.flat_parameters = [p for ps in self.parameters_by_segment.values() for p in ps]
        self.sizes = [p.numel() for p in self.flat_parameters]
        first = self.flat_parameters[0]
        self.segment_sizes = [sum(p.numel() for p in ps) for ps in self.parameters_by_segment.values()]
        with torch.no_grad():
            data = torch.cat([p.detach().reshape(-1) for p in self.flat_parameters])
            for p, view in zip(self.flat_parameters, data.split(self.sizes), strict=True):
                p.data = view.view_as(p)
        self.data = data
        # three more numbers ride along in the one reduction over processes: KL, count of rows, learning rate
        self.gradient = torch.zeros(data.numel() + 3, dtype=data.dtype, device=data.device)
        by_parameter = self.gradient[:-3].split(self.sizes)
        self.gradient_of: dict[Tensor, Tensor] = {
            p: g.view_as(p) for p, g in zip(self.flat_parameters, by_parameter, strict=True)
        }
        ratios = [self._rate_ratio(name) for name in self.parameters_by_segment]
        if len(set(ratios)) == 1:  # one group is one call of the fused kernel
            parts = [(data, self.gradient[:-3], ratios[0])]
        else:
            sizes = self.segment_sizes
            parts = list(zip(data.split(sizes), self.gradient[:-3].split(sizes), ratios, strict=True))
        groups = []
        for flat, gradient, ratio in parts:
            parameter = nn.Parameter(flat)
            parameter.grad = gradient
            groups.append({"params": [parameter], "ratio": ratio})
        rate = torch.tensor(config.learning_rate, dtype=data.dtype, device=first.device)
        self.register_buffer("rate", rate)
        self.register_buffer("stopped", torch.zeros((), device=first.device), persistent=False)
        self.num_updates = 0
        self._skipped: list[Tensor] = []
        options: dict[str, Any] = {"fused": True} if config.optimizer in FUSED else {}
        kind = LightAdam if config.optimizer == "adam" else OPTIMIZERS[config.optimizer]
        self.optimizer = kind(groups, lr=config.learning_rate, **options)  # pyright: ignore[reportCallIssue]

    def begin(self) -> None:
        """An iteration begins."""
        self.stopped.zero_()
        self._skipped.clear()
        self.num_updates = 0

    @property
    def first_skipped(self) -> Tensor:
        """0-d: the number, from 1, of this iteration's first update that was skipped; 0: none was."""
        if not self._skipped:
            return torch.zeros_like(self.stopped)
        flags = torch.stack(self._skipped)
        return torch.where(flags.any(), flags.argmax() + 1, 0)

    def _rate_ratio(self, segment: str) -> float:
        """Of the segment's learning rate to the actor's."""
        critic_rate = self.config.critic_learning_rate if segment == "critic" else None
        return 1.0 if critic_rate is None else critic_rate / self.config.learning_rate

    def differentiate(
        self, outputs: Tensor | Sequence[Tensor], slopes: Sequence[Tensor] | None = None
    ) -> None:
        """Bring the gradient of the loss into `gradient`.

        Args:
            outputs: The loss (0-d); or what it was computed from.
            slopes: In the latter case, the loss's gradient by each of `outputs`.
        """
        with torch.enable_grad():
            if slopes is not None:
                outputs = _Start.apply(slopes, *outputs)  # pyright: ignore[reportAssignmentType]
            found = torch.autograd.grad(
                outputs, self.flat_parameters, allow_unused=True, materialize_grads=True
            )
        torch._foreach_copy_([*self.gradient_of.values()], found)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]

    @torch.no_grad()
    def update(self, kl: Tensor, count: Tensor | int) -> tuple[Tensor, Tensor, Tensor]:
        """One step along `gradient`, that of the mean loss of `count` rows, weighted by their number over
        processes. `kl` is this process's.

        Returns:
            The gradient norm before clipping, the KL over all processes, and 1.0 where the step was skipped
            because it would have put a non-finite number into the weights. All 0-d.
        """
        if distributed.world_size() > 1:
            self.gradient[-3] = kl
            self.gradient[:-2] *= count
            self.gradient[-2] = count
            # Process 0 decides the rate: all take its present one (a sum with zeros is exact) and adapt it to
            # the one KL. Both come out of the gradients' own reduction, with the same bits everywhere.
            self.gradient[-1] = self.rate if distributed.is_main() else 0.0
            distributed.all_sum(self.gradient)
            count = self.gradient[-2].clone()
            self.gradient[:-2] /= count.clamp(min=1)
            kl = self.gradient[-3].clone()
            self.rate.copy_(self.gradient[-1])
        decision = self.decide(self.gradient[:-3], kl, count)
        self.carry_out(decision)
        return decision.norm, kl, decision.skipped

    def decide(self, gradient: Tensor, kl: Tensor, count: Tensor | int) -> Decision:
        """Clip `gradient`, that of the mean loss of `count` rows over all processes, in place, and say what
        its update would do.
        """
        config, rate, stopped = self.config, self.rate, self.stopped
        if config.is_adaptive:
            assert config.desired_kl is not None
            rate = adapt_learning_rate(rate, kl, config.desired_kl, config.lr_bounds)
        norm = self._clip(gradient)
        is_left_out = skipped = 1.0 - (norm < torch.inf).to(torch.float32)  # of a NaN, no comparison holds
        if config.max_kl is not None:
            stopped = stopped + ((kl > config.max_kl) | (stopped > 0))
            is_left_out = torch.maximum(is_left_out, (stopped > 0).to(skipped))
        # without rows there is nothing to learn; momentum alone must not move the weights
        if isinstance(count, Tensor):
            is_left_out = torch.maximum(is_left_out, (count == 0).to(skipped))
        elif not count:
            is_left_out = torch.ones_like(skipped)
        return Decision(rate, stopped, norm, skipped, is_left_out)

    @torch.no_grad()
    def carry_out(self, decision: Decision) -> None:
        """The step along `gradient`, clipped."""
        self.num_updates += 1
        self._skipped.append(decision.skipped)
        for own, new in ((self.rate, decision.rate), (self.stopped, decision.stopped)):
            if new is not own:
                own.copy_(new)
        self.step(decision.is_left_out)

    @torch.no_grad()
    def step(self, is_left_out: Tensor) -> None:
        """The optimiser's step on `gradient` as it is, unless `is_left_out` (0-d) is 1."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate if group["ratio"] == 1.0 else self.rate * group["ratio"]
        if self.config.optimizer == "adam" and self.optimizer.state:
            for group in self.optimizer.param_groups:
                _adam_step(group, self.optimizer.state[group["params"][0]], is_left_out)
            return
        if self.config.optimizer in FUSED:
            self.optimizer.found_inf = is_left_out  # pyright: ignore[reportAttributeAccessIssue]
            self.optimizer.step()
            return
        flat = [p for group in self.optimizer.param_groups for p in group["params"]]
        kept, leave_out = [p.clone() for p in flat], is_left_out > 0
        self.gradient[:-3] = torch.where(leave_out, 0.0, self.gradient[:-3])
        self.optimizer.step()
        for p, old in zip(flat, kept, strict=True):
            p.copy_(torch.where(leave_out, old, p))

    def _clip(self, gradient: Tensor) -> Tensor:
        """Scale `gradient` to `max_grad_norm`, in place; returns the norm of all of it before."""
        parts = gradient.split(self.segment_sizes)
        norms = torch.stack([torch.linalg.vector_norm(g) for g in parts])
        total = torch.linalg.vector_norm(norms)
        if self.config.grad_clip == "joint" or len(parts) == 1:
            gradient.mul_((self.config.max_grad_norm / (total + 1e-6)).clamp_(max=1.0))
        else:
            scales = (self.config.max_grad_norm / (norms + 1e-6)).clamp_(max=1.0).unbind()
            for part, scale in zip(parts, scales, strict=True):
                part.mul_(scale)
        return total


def _adam_step(group: dict[str, Any], state: dict[str, Tensor], is_left_out: Tensor) -> None:
    """What `torch.optim.Adam(fused=True)` does with its one parameter, without its preparations, which take
    longer for a small network.
    """
    parameter = group["params"][0]
    state["step"] += 1
    torch._fused_adam_(  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        [parameter],
        [parameter.grad],
        [state["exp_avg"]],
        [state["exp_avg_sq"]],
        [],
        [state["step"]],
        lr=group["lr"],
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=False,
        maximize=False,
        grad_scale=None,
        found_inf=is_left_out,
    )
    state["step"] -= is_left_out


class _Start(torch.autograd.Function):
    """A loss whose gradient by some tensors is known. `grad_outputs` of `torch.autograd.grad` says the same,
    and imports a library of symbolic mathematics for it.
    """

    @staticmethod
    def forward(ctx: Any, slopes: Sequence[Tensor], *outputs: Tensor) -> Tensor:
        ctx.slopes = slopes
        return outputs[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        return None, *ctx.slopes


def _unique(segments: Mapping[str, Iterable[nn.Parameter]]) -> dict[str, list[nn.Parameter]]:
    seen: set[int] = set()
    unique: dict[str, list[nn.Parameter]] = {}
    for name, parameters in segments.items():
        fresh = [p for p in parameters if p.requires_grad and id(p) not in seen]
        seen.update(id(p) for p in fresh)
        # matrices first: their start in the buffer then stays aligned, whatever the length of a bias
        fresh.sort(key=lambda p: p.dim() < 2)
        if fresh:
            unique[name] = fresh
    return unique
