"""Processes that no longer train the same policy: found by checksums, and named by the first tensor."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from surefoot import distributed
from surefoot.errors import SurefootError


class DriftWatch:
    """Compares the algorithm's tensors between processes, bit by bit. On one process it does nothing.

    Args:
        num_envs: Of this process; a buffer of this many rows is one per environment, and left out.
        interval: Iterations from one look to the next; the first is at iteration 0.
        skip: Names of further tensors that may differ.
    """

    def __init__(self, num_envs: int, interval: int = 50, skip: Iterable[str] = ()) -> None:
        self._num_envs, self._interval, self._skip = num_envs, interval, frozenset(skip)

    def check(self, alg: nn.Module, iteration: int) -> None:
        """After an iteration, on every process.

        Raises:
            SurefootError: on every process, naming the first tensor that differs, and where.
        """
        if distributed.world_size() == 1 or iteration % self._interval != 0:
            return
        sums = distributed.gather_objects(checksums(self._tensors(alg)))
        # a coincidence of sizes may leave a buffer out on some processes only
        names = [name for name in sums[0] if all(name in own for own in sums)]
        different = [name for name in names if any(own[name] != sums[0][name] for own in sums)]
        if not different:
            return
        first = different[0]
        ranks = [str(rank) for rank, own in enumerate(sums) if own[first] != sums[0][first]]
        more = f", and {len(different) - 1} more tensors," if len(different) > 1 else ""
        raise SurefootError(
            f"the processes train different policies: after iteration {iteration} '{first}'{more} of process "
            f"{', '.join(ranks)} is not that of process 0. Go on from a checkpoint before it; look for an "
            "extension or hook that changes weights on one process alone."
        )

    def _tensors(self, alg: nn.Module) -> dict[str, Tensor]:
        buffers = dict(alg.named_buffers())
        return {
            name: x
            for name, x in alg.state_dict().items()
            if name not in self._skip and not (name in buffers and x.shape[:1] == (self._num_envs,))
        }


def checksums(tensors: dict[str, Tensor]) -> dict[str, int]:
    """The sum of each tensor's bit patterns, taken as whole numbers; one transfer from the device."""
    if not tensors:
        return {}
    sums = torch.stack([_bits(x).sum(dtype=torch.int64) for x in tensors.values()])
    return dict(zip(tensors, sums.tolist(), strict=True))


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bits(x: Tensor) -> Tensor:
    x = torch.view_as_real(x) if x.is_complex() else x
    return x.detach().contiguous().view(_INTEGERS[x.element_size()])
