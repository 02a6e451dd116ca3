"""A GRU or LSTM that keeps the state of each environment from call to call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from surefoot.compat.rsl_rl.utils import unpad_trajectories
from surefoot.errors import ConfigError, did_you_mean
from surefoot.networks.memory import KINDS

HiddenState: TypeAlias = Tensor | tuple[Tensor, Tensor] | None
"""State of a GRU [layers, N, H]; hidden and cell state of an LSTM; None: zeros."""


class RNN(nn.Module):
    """Outputs [..., hidden_dim] of the last layer, and the state after them in `hidden_state`.

    Args:
        input_size: D.
        hidden_dim: H.
        num_layers: Layers, one above the other.
        type: `gru` or `lstm`.

    Raises:
        ConfigError: another `type`.
    """

    def __init__(
        self, input_size: int, hidden_dim: int = 256, num_layers: int = 1, type: str = "lstm"
    ) -> None:
        super().__init__()
        kind = type.lower()
        if kind not in KINDS:
            raise ConfigError(
                f"rnn_type '{type}' is unknown; one of: {', '.join(KINDS)}.{did_you_mean(kind, KINDS)}"
            )
        self.rnn = KINDS[kind](input_size, hidden_dim, num_layers)
        self.hidden_state: HiddenState = None

    @property
    def hidden_states(self) -> HiddenState:
        """`hidden_state` by its older name."""
        return self.hidden_state

    def forward(self, input: Tensor, masks: Tensor | None = None, hidden_state: HiddenState = None) -> Tensor:
        """One step, or whole sequences.

        - [N, D], or [D] of one environment, is the next step: it goes on from the state that is kept, and
          the output is [1, N, H].
        - [L, B, D] are sequences from `hidden_state` on (None: zeros); the state that is kept stays as it is.
          Without `masks` the output is [L, B, H]; with them, [L, B] bool and True within each sequence, the
          sequences are put together again to [L, N, H], as RSL-RL's storage cut them.

        Raises:
            ValueError: masks without a state.
        """
        if input.dim() < 3:
            out, self.hidden_state = self.rnn(input.reshape(1, -1, input.shape[-1]), self.hidden_state)
            return out
        if masks is not None and hidden_state is None:
            raise ConfigError("padded sequences need the hidden_state before their first step; got None.")
        out, _ = self.rnn(input, hidden_state)
        return out if masks is None else unpad_trajectories(out, masks)

    def reset(self, dones: Tensor | None = None, hidden_state: HiddenState = None) -> None:
        """Without `dones`, take `hidden_state` (None: forget all); else zeros where an episode ended.

        `dones` is [N] or [N, 1] of any dtype.
        """
        if dones is None:
            self.hidden_state = hidden_state
            return
        if hidden_state is not None:
            raise NotImplementedError("reset() takes dones or a hidden_state, not both.")
        ended = _columns(dones)
        # not in place: the state may be kept elsewhere, as the start of a rollout
        self.hidden_state = _map(lambda h: h.masked_fill(ended, 0.0), self.hidden_state)

    def detach_hidden_state(self, dones: Tensor | None = None) -> None:
        """Cut the gradient through the state, of all environments or of those that are done."""
        if dones is None:
            self.hidden_state = _map(Tensor.detach, self.hidden_state)
            return
        ended = _columns(dones)
        self.hidden_state = _map(lambda h: torch.where(ended, h.detach(), h), self.hidden_state)

    def __getstate__(self) -> dict[str, Any]:
        # a state with its graph can neither be copied nor pickled
        return {**vars(self), "hidden_state": _map(Tensor.detach, self.hidden_state)}


def _columns(dones: Tensor) -> Tensor:
    """[N, 1] bool, to stand beside a state [layers, N, H]."""
    return dones.bool().reshape(-1, 1)


def _map(function: Callable[[Tensor], Tensor], state: HiddenState) -> HiddenState:
    if state is None or isinstance(state, Tensor):
        return None if state is None else function(state)
    return function(state[0]), function(state[1])
