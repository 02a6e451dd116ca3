"""A GRU layer over sequences of unequal length, for the CPU: nothing is computed on padding.

PyTorch's own layer computes padded steps too, and adds up the weights' gradients step by step; here each is
one matrix product at the end. Packed sequences would spare the padding, but take longer than it costs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input


class GruLayer(torch.autograd.Function):
    """h_t = (1 - z) n + z h_{t-1}, the gates as in torch.nn.GRU (Cho et al. 2014), its gradient by hand.

    `apply(x, h0, w_ih, w_hh, b_ih, b_hh, counts)`: x [L, B, D], the longest sequences first; h0 [B, H];
    `counts[t]`, how many of them have a step t. Returns [L, B, H], zero on padding. Rows of steps are kept
    packed, [R, ...] with R = Σ counts.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        h0: Tensor,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor,
        b_hh: Tensor,
        counts: list[int],
    ) -> Tensor:
        size = h0.shape[1]
        rows = _pack(x, counts)
        bias = torch.cat([(b_ih + b_hh)[: 2 * size], b_ih[2 * size :]])
        gates = torch.addmm(bias, rows, w_ih.t())
        reset_update, candidate = gates[:, : 2 * size], gates[:, 2 * size :]
        # what the reset gate multiplies
        memory = x.new_empty(len(rows), size)
        states = x.new_zeros(len(counts) + 1, x.shape[1], size)
        states[0] = h0
        start = 0
        for t, n in enumerate(counts):
            stop, h = start + n, states[t, :n]
            rz = reset_update[start:stop].addmm_(h, w_hh[: 2 * size].t()).sigmoid_()
            m = torch.addmm(b_hh[2 * size :], h, w_hh[2 * size :].t(), out=memory[start:stop])
            new = candidate[start:stop].addcmul_(rz[:, :size], m).tanh_()
            torch.lerp(new, h, rz[:, size:], out=states[t + 1, :n])
            start = stop
        ctx.save_for_backward(rows, states, gates, memory, w_ih, w_hh)
        ctx.counts, ctx.shape = counts, x.shape
        return states[1:]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        rows, states, gates, memory, w_ih, w_hh = ctx.saved_tensors
        counts, size = ctx.counts, memory.shape[1]
        before = _pack(states[:-1], counts)
        # gradients by the gates before their non-linearities: on the state's side, and the candidate's input
        of_state, of_new = torch.empty_like(gates), torch.empty_like(memory)
        dh = memory.new_zeros(ctx.shape[1], size)
        kept, moved = torch.empty_like(dh), torch.empty_like(dh)
        stop = len(rows)
        for t in range(len(counts) - 1, -1, -1):
            n = counts[t]
            here = slice(stop - n, stop)
            g, keep, move, d, a = (
                dh[:n].add_(grads[0][t, :n]),
                kept[:n],
                moved[:n],
                of_state[here],
                of_new[here],
            )
            r, z, new = gates[here].split(size, 1)
            torch.mul(g, z, out=keep)
            _tanh_backward(torch.sub(g, keep, out=move), new, grad_input=a)
            torch.sub(before[here], new, out=move).mul_(g)
            _sigmoid_backward(move, z, grad_input=d[:, size : 2 * size])
            _sigmoid_backward(torch.mul(a, memory[here], out=move), r, grad_input=d[:, :size])
            torch.mul(a, r, out=d[:, 2 * size :])
            torch.addmm(keep, d, w_hh, out=g)
            stop -= n
        of_gates = of_state[:, : 2 * size]
        ones = memory.new_ones(len(rows))
        db_hh = of_state.t() @ ones
        dx = None
        if ctx.needs_input_grad[0]:
            dx = _unpack(
                torch.addmm(of_gates @ w_ih[: 2 * size], of_new, w_ih[2 * size :]), counts, ctx.shape
            )
        dw_ih = torch.cat([of_gates.t() @ rows, of_new.t() @ rows])
        db_ih = torch.cat([db_hh[: 2 * size], of_new.t() @ ones])
        return dx, dh, dw_ih, of_state.t() @ before, db_ih, db_hh, None


def _pack(x: Tensor, counts: list[int]) -> Tensor:
    """[R, ...] from [L, B, ...]."""
    if min(counts) == x.shape[1]:
        return x.flatten(0, 1)
    return torch.cat([step[:n] for step, n in zip(x, counts, strict=True)])


def _unpack(rows: Tensor, counts: list[int], shape: torch.Size) -> Tensor:
    """[L, B, ...], zero on padding."""
    if min(counts) == shape[1]:
        return rows.view(shape)
    x = rows.new_zeros(shape)
    for step, part in zip(x, rows.split(counts), strict=True):
        step[: len(part)] = part
    return x
