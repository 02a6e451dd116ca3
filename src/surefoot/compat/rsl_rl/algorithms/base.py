"""What RSL-RL's algorithms share: where they run, and how older clients make them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from surefoot.compat.rsl_rl.models.mlp_model import MLPModel
from surefoot.compat.rsl_rl.storage import RolloutStorage
from surefoot.compat.rsl_rl.utils import reduce_gradients_in_buckets


class Algorithm(ABC):
    """Two models and a storage, which may come later.

    Args:
        models: The two of `names`; or one of RSL-RL's older policies that hold both, and None or the storage.
        storage: None: `init_storage` is to follow.
        device: Of all of them.
        use_mixed_precision: `auto`: except on the CPU.
        multi_gpu_cfg: Of the runner.
        grad_reduce_bucket_mb: Of `reduce_parameters`; `update` itself reduces all gradients at once.
    """

    names: ClassVar[tuple[str, str]]
    """Of the models, as attributes."""
    storage: RolloutStorage
    rnd: Any = None

    def __init__(
        self,
        models: tuple[Any, Any],
        storage: RolloutStorage | None,
        device: torch.device | str,
        use_mixed_precision: bool | str,
        multi_gpu_cfg: Mapping[str, int] | None,
        grad_reduce_bucket_mb: float,
    ) -> None:
        self.device, self.device_type = device, torch.device(device).type
        self._legacy_policy: Any = None
        if hasattr(models[0], f"{self.names[0]}_model"):
            self._legacy_policy = models[0]
            storage = models[1] if isinstance(models[1], RolloutStorage) else storage
            models = tuple(getattr(models[0], f"{name}_model") for name in self.names)
        for name, model in zip(self.names, models, strict=True):
            setattr(self, name, model.to(device))
            setattr(self, f"_raw_{name}", model)  # of RSL-RL: not compiled, as ours are here
        self.use_mixed_precision = (
            self.device_type != "cpu" if use_mixed_precision == "auto" else use_mixed_precision
        )
        self.grad_reduce_bucket_mb, self.is_multi_gpu = grad_reduce_bucket_mb, multi_gpu_cfg is not None
        gpus = multi_gpu_cfg or {"global_rank": 0, "world_size": 1}
        self.gpu_global_rank, self.gpu_world_size = gpus["global_rank"], gpus["world_size"]
        self.transition = RolloutStorage.Transition()
        self.metrics: dict[str, float] = {}
        if storage is not None:
            self._attach(storage)

    @abstractmethod
    def _attach(self, storage: RolloutStorage) -> None:
        """Build the engine."""

    def init_storage(
        self,
        training_type: Any,
        num_envs: Any,
        num_transitions_per_env: int,
        obs: Any,
        actions_shape: Sequence[int],
        *rest: Any,
    ) -> None:
        """RSL-RL 3.x: make the storage for observations like `obs`."""
        self._attach(
            RolloutStorage(training_type, num_envs, num_transitions_per_env, obs, actions_shape, self.device)
        )

    @property
    def _pair(self) -> tuple[MLPModel, MLPModel]:
        return getattr(self, self.names[0]), getattr(self, self.names[1])

    def memories(self) -> dict[str, Any]:
        """What is remembered of the running episodes: the state of each model, and which [N] begin."""
        states = {name: getattr(self, name).get_hidden_state() for name in self.names}
        return {**states, "is_first": self.storage.rollout.is_first[0]}

    def remember(self, memories: Mapping[str, Any]) -> None:
        """The reverse, where the episodes go on."""
        self.storage.rollout.is_first[0] = memories["is_first"]
        for name in self.names:
            state = memories[name]
            if isinstance(state, torch.Tensor):
                state = state.to(self.device)
            elif state is not None:  # of an LSTM
                state = tuple(part.to(self.device) for part in state)
            getattr(self, name).reset(hidden_state=state)

    def reduce_parameters(self) -> None:
        """Average the gradients over processes, for a learning loop of the client's own."""
        modules = [*self._pair, *([self.rnd] if self.rnd is not None else [])]
        parameters = dict.fromkeys(p for module in modules for p in module.parameters())
        reduce_gradients_in_buckets(parameters, self.gpu_world_size, self.grad_reduce_bucket_mb)

    def compile(self, mode: str | None = None) -> None:
        """Compile the networks above the inputs, as torch.compile's `mode` says; None: not at all."""
        if mode is not None:
            for model in self._pair:
                if hasattr(model, "mlp"):  # not what is of the client's own
                    model.mlp.compile(mode=mode)
