"""Unit quaternions, scalar first (w, x, y, z): what motion data needs of them, on the last axis."""

from __future__ import annotations

import torch
from torch import Tensor


def conjugate(q: Tensor) -> Tensor:
    """The inverse rotation [..., 4]."""
    return torch.cat([q[..., :1], -q[..., 1:]], -1)


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Hamilton product [..., 4]: first the rotation `b`, then `a`."""
    scalar = a[..., :1] * b[..., :1] - (a[..., 1:] * b[..., 1:]).sum(-1, keepdim=True)
    cross = torch.linalg.cross(a[..., 1:], b[..., 1:])
    return torch.cat([scalar, a[..., :1] * b[..., 1:] + b[..., :1] * a[..., 1:] + cross], -1)


def rotate_inverse(q: Tensor, v: Tensor) -> Tensor:
    """World vectors [..., 3] in the frame whose orientation is `q` [..., 4]."""
    twice = 2.0 * torch.linalg.cross(q[..., 1:], v)
    return v - q[..., :1] * twice + torch.linalg.cross(q[..., 1:], twice)


def rotation_vector(q: Tensor) -> Tensor:
    """Axis times angle [..., 3] in rad, of the shorter way round."""
    q = torch.where(q[..., :1] < 0, -q, q)
    sine = torch.linalg.vector_norm(q[..., 1:], dim=-1, keepdim=True)
    angle = 2.0 * torch.atan2(sine, q[..., :1])
    # the limit of angle / sine at no rotation is 2
    return q[..., 1:] * torch.where(sine < 1e-9, torch.full_like(sine, 2.0), angle / sine.clamp_min(1e-12))


def continuous(q: Tensor) -> Tensor:
    """[F, 4] with signs chosen so that each frame is next to the one before (q and -q are one rotation)."""
    step = torch.where((q[1:] * q[:-1]).sum(-1) < 0, -1.0, 1.0).to(q)
    return torch.cat([q[:1], q[1:] * step.cumprod(0)[:, None]])


def slerp(a: Tensor, b: Tensor, fraction: Tensor) -> Tensor:
    """From `a` (fraction 0) to `b` (fraction 1) at constant speed, the shorter way (Shoemake 1985).

    Args:
        a: [..., 4].
        b: [..., 4].
        fraction: [..., 1] in [0, 1].
    """
    dot = (a * b).sum(-1, keepdim=True)
    b = torch.where(dot < 0, -b, b)
    angle = torch.acos(dot.abs().clamp(max=1.0))
    sine = torch.sin(angle)
    is_near = sine < 1e-6  # there, and only there, the straight line is as good
    safe = torch.where(is_near, torch.ones_like(sine), sine)
    from_a = torch.where(is_near, 1.0 - fraction, torch.sin((1.0 - fraction) * angle) / safe)
    from_b = torch.where(is_near, fraction, torch.sin(fraction * angle) / safe)
    return torch.nn.functional.normalize(from_a * a + from_b * b, dim=-1)
