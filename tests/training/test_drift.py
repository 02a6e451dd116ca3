"""Two processes whose weights part from each other are stopped, with the tensor's name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from ranks import run_ranks
from surefoot import distributed
from surefoot.errors import SurefootError
from surefoot.training.drift import DriftWatch, checksums


class Algorithm(nn.Module):
    """Two layers, a counter, a number per environment."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("carry", torch.full((4,), float(distributed.rank())))


def compare(rank: int, directory: Path) -> None:
    alg, watch = Algorithm(), DriftWatch(num_envs=4, interval=5)
    # carry [4] differs and is per environment; first.weight [4, 4] has as many rows, and is compared
    watch.check(alg, 0)
    with torch.no_grad():
        if rank == 1:
            alg.first.weight[2, 3] += 1e-6
            alg.second.bias[0] += 1.0
    watch.check(alg, 4)  # not looked at
    for iteration in (5, 10):
        with pytest.raises(SurefootError) as caught:
            watch.check(alg, iteration)
    expected = "after iteration 10 'first.weight', and 1 more tensors, of process 1 is not that of process 0"
    assert expected in str(caught.value)
    DriftWatch(4, skip=["first.weight", "second.bias"]).check(alg, 0)
    (directory / f"done{rank}").touch()


def test_equal_processes_pass_and_one_perturbed_weight_is_named(tmp_path: Path) -> None:
    run_ranks(compare, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_checksum_is_the_sum_of_the_bit_patterns_of_any_dtype() -> None:
    tensors = {
        "float": torch.tensor([1.0, -0.0]),  # 0x3f800000 and -2^31
        "half": torch.tensor([1.0, 1.0], dtype=torch.bfloat16),  # 0x3f80 twice
        "flag": torch.tensor([True, False, True]),
        "long": torch.tensor([[5, -7]]),
        "empty": torch.zeros(0),
        "complex": torch.tensor([1.0 + 0.0j]),
    }
    assert checksums(tensors) == {
        "float": 0x3F800000 - 2**31,
        "half": 2 * 0x3F80,
        "flag": 2,
        "long": -2,
        "empty": 0,
        "complex": 0x3F800000,
    }
    assert checksums({}) == {}
    # a NaN is a bit pattern as any other, and so is the sign of zero
    assert checksums({"x": torch.tensor(0.0)}) != checksums({"x": torch.tensor(-0.0)})


def test_one_process_is_not_looked_at() -> None:
    DriftWatch(4).check(Algorithm(), 0)
