"""A model with a memory before its perceptron."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from surefoot.compat.rsl_rl.models.mlp_model import ExportedModel, MLPModel, Observations, OnnxModel
from surefoot.compat.rsl_rl.modules.rnn import RNN, HiddenState


class RNNModel(MLPModel):
    """Observations to outputs by a GRU or LSTM and a multi-layer perceptron; arguments as for `MLPModel`.

    One step goes on from the state that the model keeps; sequences start from the state that they are given.

    Args:
        rnn_type: `lstm` or `gru`.
        rnn_hidden_dim: H.
        rnn_num_layers: Layers of the memory.
    """

    is_recurrent: bool = True

    def __init__(
        self,
        obs: Observations,
        obs_groups: Mapping[str, Sequence[str]],
        obs_set: str,
        output_dim: int,
        hidden_dims: Sequence[int] = (256, 256, 256),
        activation: str = "elu",
        obs_normalization: bool = False,
        distribution_cfg: Mapping[str, Any] | None = None,
        rnn_type: str = "lstm",
        rnn_hidden_dim: int = 256,
        rnn_num_layers: int = 1,
    ) -> None:
        self.latent_dim = rnn_hidden_dim
        super().__init__(
            obs, obs_groups, obs_set, output_dim, hidden_dims, activation, obs_normalization, distribution_cfg
        )
        self.rnn = RNN(self.obs_dim, rnn_hidden_dim, rnn_num_layers, rnn_type)

    def get_latent(
        self, obs: Observations, masks: Tensor | None = None, hidden_state: HiddenState = None
    ) -> Tensor:
        x = super().get_latent(obs)
        latent = self.rnn(x, masks, hidden_state)
        return latent if x.dim() == 3 else latent.reshape(*x.shape[:-1], self.latent_dim)

    def reset(self, dones: Tensor | None = None, hidden_state: HiddenState = None) -> None:
        self.rnn.reset(dones, hidden_state)

    def get_hidden_state(self) -> HiddenState:
        return self.rnn.hidden_state

    def detach_hidden_state(self, dones: Tensor | None = None) -> None:
        self.rnn.detach_hidden_state(dones)

    def as_jit(self) -> nn.Module:
        """A copy for TorchScript, its state inside: `reset()` forgets, and so does another batch size."""
        exported = _TorchLSTMModel if isinstance(self.rnn.rnn, nn.LSTM) else _TorchGRUModel
        return exported(self).eval()

    def as_onnx(self, verbose: bool = False) -> nn.Module:
        """A copy for ONNX, with the state as an input and an output."""
        return _OnnxRNNModel(self, verbose).eval()

    def _get_latent_dim(self) -> int:
        return self.latent_dim


class _Recurrent(ExportedModel):
    if TYPE_CHECKING:  # TorchScript cannot read it
        hidden_state: Tensor

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.rnn = copy.deepcopy(model.rnn.rnn)
        self.register_buffer("hidden_state", _zeros(self.rnn, 1))


class _TorchGRUModel(_Recurrent):
    """Observations [N, D], not normalised, to outputs [N, A]; one step for each call."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.obs_normalizer(x).unsqueeze(0)
        if self.hidden_state.shape[1] != x.shape[1]:
            shape = [self.hidden_state.shape[0], x.shape[1], self.hidden_state.shape[2]]
            self.hidden_state = torch.zeros(shape, dtype=x.dtype, device=x.device)
        x, h = self.rnn(x, self.hidden_state)
        self.hidden_state = h.detach()
        return self.deterministic_output(self.mlp(x.squeeze(0)))

    @torch.jit.export
    def reset(self) -> None:
        self.hidden_state = torch.zeros_like(self.hidden_state)


class _TorchLSTMModel(_Recurrent):
    """Observations [N, D], not normalised, to outputs [N, A]; one step for each call."""

    if TYPE_CHECKING:  # TorchScript cannot read it
        cell_state: Tensor

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.register_buffer("cell_state", _zeros(self.rnn, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.obs_normalizer(x).unsqueeze(0)
        if self.hidden_state.shape[1] != x.shape[1]:
            shape = [self.hidden_state.shape[0], x.shape[1], self.hidden_state.shape[2]]
            self.hidden_state = torch.zeros(shape, dtype=x.dtype, device=x.device)
            self.cell_state = torch.zeros(shape, dtype=x.dtype, device=x.device)
        x, (h, c) = self.rnn(x, (self.hidden_state, self.cell_state))
        self.hidden_state = h.detach()
        self.cell_state = c.detach()
        return self.deterministic_output(self.mlp(x.squeeze(0)))

    @torch.jit.export
    def reset(self) -> None:
        self.hidden_state = torch.zeros_like(self.hidden_state)
        self.cell_state = torch.zeros_like(self.cell_state)


class _OnnxRNNModel(OnnxModel):
    """Observations [N, D] and state [layers, N, H] (an LSTM's: two) to outputs [N, A] and the next state."""

    is_recurrent: bool = True

    def __init__(self, model: Any, verbose: bool) -> None:
        super().__init__(model, verbose)
        self.rnn = copy.deepcopy(model.rnn.rnn)
        self.rnn_type = "lstm" if isinstance(self.rnn, nn.LSTM) else "gru"
        self.hidden_size, self.num_layers = self.rnn.hidden_size, self.rnn.num_layers

    def forward(self, obs: Tensor, h_in: Tensor, c_in: Tensor | None = None) -> tuple[Tensor, ...]:
        x = self.obs_normalizer(obs).unsqueeze(0)
        if c_in is None:
            x, h = self.rnn(x, h_in)
            states = (h,)
        else:
            x, states = self.rnn(x, (h_in, c_in))
        return self.deterministic_output(self.mlp(x.squeeze(0))), *states

    def get_dummy_inputs(self, batch_size: int = 1) -> tuple[Tensor, ...]:
        states = len(self.input_names) - 1
        return *super().get_dummy_inputs(batch_size), *[_zeros(self.rnn, batch_size) for _ in range(states)]

    @property
    def input_names(self) -> list[str]:
        return ["obs", "h_in", "c_in"] if self.rnn_type == "lstm" else ["obs", "h_in"]

    @property
    def output_names(self) -> list[str]:
        return ["actions", "h_out", "c_out"] if self.rnn_type == "lstm" else ["actions", "h_out"]

    @property
    def dynamic_axes(self) -> dict[str, dict[int, str]]:
        return {
            name: {1 if name[:2] in ("h_", "c_") else 0: "batch"}
            for name in [*self.input_names, *self.output_names]
        }


def _zeros(rnn: nn.GRU | nn.LSTM, batch_size: int) -> Tensor:
    """A state [layers, N, H] of the memory's own type and device."""
    return next(rnn.parameters()).new_zeros(rnn.num_layers, batch_size, rnn.hidden_size)
