"""RSL-RL 3's names of the parts that now are in `modules`."""

from __future__ import annotations

from torch import Tensor

from surefoot.compat.rsl_rl.modules import (
    CNN,
    MLP,
    RNN,
    EmpiricalDiscountedVariationNormalization,
    EmpiricalNormalization,
    HiddenState,
)


class Memory(RNN):
    """`RNN` with the names of RSL-RL 1 to 3."""

    def __init__(
        self,
        input_size: int,
        hidden_dim: int = 256,
        num_layers: int = 1,
        type: str = "lstm",
        hidden_size: int | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size or hidden_dim, num_layers, type)

    def detach_hidden_states(self, dones: Tensor | None = None) -> None:
        """`detach_hidden_state` by its older name."""
        self.detach_hidden_state(dones)


__all__ = [
    "CNN",
    "MLP",
    "EmpiricalDiscountedVariationNormalization",
    "EmpiricalNormalization",
    "HiddenState",
    "Memory",
]
