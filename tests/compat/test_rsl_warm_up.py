"""The first iteration's observations, before the normaliser has statistics: neither raw nor blown up."""

from __future__ import annotations

import pytest
import torch

from surefoot.compat.rsl_rl.modules import EmpiricalNormalization


def warmed_up(first: torch.Tensor) -> EmpiricalNormalization:
    normalizer = EmpiricalNormalization(first.shape[1])
    normalizer.warm_up(first)
    return normalizer


@pytest.mark.parametrize(("num_envs", "offset"), [(64, 0.0), (64, 5000.0), (1, 5000.0)])
def test_c16_observations_of_size_1000_come_to_size_1(num_envs: int, offset: float) -> None:
    def observations() -> torch.Tensor:
        return offset + 1e3 * torch.randn(num_envs, 256)

    torch.manual_seed(0)
    normalizer = warmed_up(observations())
    assert normalizer(observations()).square().mean().sqrt() < 2


def test_an_input_that_is_constant_at_the_reset_keeps_its_size() -> None:
    """Such as the last action and the joint velocities of a robot that stands."""
    normalizer = warmed_up(torch.zeros(64, 12))
    actions = torch.randn(64, 12)
    torch.testing.assert_close(normalizer(actions), actions / 1.01)


def test_a_narrow_start_does_not_blow_up_what_follows() -> None:
    normalizer = warmed_up(0.9 + 1e-3 * torch.randn(64, 3))
    assert normalizer(torch.zeros(1, 3)).abs().max() < 1


def test_the_first_update_replaces_the_provisional_statistics() -> None:
    normalizer, counted = warmed_up(1e3 * torch.randn(64, 5)), EmpiricalNormalization(5)
    rows = torch.randn(32, 5)
    normalizer.update(rows)
    counted.update(rows)
    for name, value in counted.state_dict().items():
        torch.testing.assert_close(normalizer.state_dict()[name], value)
