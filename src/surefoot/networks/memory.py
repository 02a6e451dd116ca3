"""Memory: a GRU or an LSTM whose state is one row of numbers per environment."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor, nn

from surefoot.networks.config import NetworkConfig
from surefoot.networks.gru import GruLayer
from surefoot.types import Hidden

KINDS: dict[str, type[nn.GRU | nn.LSTM]] = {"gru": nn.GRU, "lstm": nn.LSTM}


class Memory(nn.Module):
    """Inputs [L, B, D] and the state before the first of them [B, K] to outputs [L, B, H].

    The state of all layers (an LSTM's cells too) is one row of K numbers, so that it is stored, gathered and
    reset as an observation is.
    """

    def __init__(self, num_inputs: int, config: NetworkConfig) -> None:
        super().__init__()
        assert config.rnn_type is not None
        self.is_lstm = config.rnn_type == "lstm"
        self.num_features, self.num_layers = config.rnn_hidden_dim, config.rnn_num_layers
        self.rnn = KINDS[config.rnn_type](num_inputs, self.num_features, self.num_layers)
        self.num_states = self.num_layers * (2 if self.is_lstm else 1)
        self.state_size = self.num_states * self.num_features
        if config.init == "orthogonal":
            self._init_orthogonal()

    def forward(self, x: Tensor, state: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Outputs and the state after the last step [B, K].

        With `lengths` [B], the longest first, outputs beyond them may be anything, and so may the state.
        """
        if x.shape[1] == 0:
            return x.new_zeros(*x.shape[:-1], self.num_features), state
        states = state.view(-1, self.num_states, self.num_features).transpose(0, 1).contiguous()
        # not every CPU has a kernel in low precision
        with torch.autocast(x.device.type, enabled=False) if x.is_cpu else nullcontext():
            if self.is_lstm:
                out, after = self.rnn(x, states.tensor_split(2))
                return out, self._rows(torch.cat(after))
            if x.is_cpu and lengths is not None:
                return self._without_padding(x, states, lengths), state
            out, after = self.rnn(x, states)
            return out, self._rows(after)

    def _without_padding(self, x: Tensor, states: Tensor, lengths: Tensor) -> Tensor:
        counts = (lengths > torch.arange(x.shape[0]).unsqueeze(-1)).sum(1).tolist()
        for layer, weights in enumerate(self.rnn.all_weights):
            x = GruLayer.apply(x, states[layer], *weights, counts)  # pyright: ignore
        return x

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step: inputs [N, D] to outputs [N, H], and the state after it."""
        out, after = self(x.unsqueeze(0), state)
        return out.squeeze(0), after

    def _rows(self, states: Tensor) -> Tensor:
        return states.transpose(0, 1).reshape(-1, self.state_size)

    def _init_orthogonal(self) -> None:
        """Each gate's matrix orthogonal (Saxe et al. 2014); biases 0, those of an LSTM's forget gates 1."""
        for name, parameter in self.rnn.named_parameters():
            with torch.no_grad():
                if "bias" in name:
                    parameter.zero_()
                    if self.is_lstm and "bias_ih" in name:
                        parameter[self.num_features : 2 * self.num_features] = 1.0
                else:
                    for gate in parameter.split(self.num_features):
                        nn.init.orthogonal_(gate)


def forget(hidden: Hidden, starts: Tensor) -> dict[str, Tensor]:
    """`hidden` with zeros where an episode starts; `starts` is [N] of any dtype."""
    rows = starts.bool().view(-1, 1)
    return {name: x.masked_fill(rows, 0.0) for name, x in hidden.items()}
