"""A trained policy for use, apart from training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from surefoot.errors import EnvContractError
from surefoot.training.evaluation import detached_copy


class InferencePolicy(nn.Module):
    """An independent copy of a policy in evaluation mode: what is done with it reaches no training.

    What it does not have itself, it looks up in the copy: `policy.obs_normalizer`, `policy.as_onnx()`.

    Args:
        policy: Of the algorithm.
        observations: [N, ...] by group, for the width of each.
        device: Of the copy; None: where the policy is.
    """

    def __init__(
        self, policy: nn.Module, observations: Mapping[str, Tensor], device: torch.device | str | None = None
    ) -> None:
        super().__init__()
        self.model = detached_copy(policy).to(device).eval().requires_grad_(False)
        # of one environment
        self._shapes = {group: observations[group].shape[1:] for group in observations.keys()}  # noqa: SIM118
        self.eval()
        self.reset()

    @torch.no_grad()
    def forward(self, obs: Mapping[str, Tensor] | Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Actions.

        Args:
            obs: A TensorDict or mapping by group, or the groups side by side in one tensor, as versions 1 and
                2 have it; of N environments or of one without a leading dimension.
            args: Passed on.
            kwargs: Passed on.
        """
        if isinstance(obs, Tensor):
            obs = self._by_group(obs)
        if not isinstance(obs, Tensor) and self._is_of_one(obs):
            rows = {group: obs[group].unsqueeze(0) for group in obs.keys()}  # noqa: SIM118
            return self.model(rows, *args, **kwargs).squeeze(0)
        return self.model(obs, *args, **kwargs)

    def _is_of_one(self, obs: Mapping[str, Tensor]) -> bool:
        known = [group for group in obs.keys() if group in self._shapes]  # noqa: SIM118
        return bool(known) and obs[known[0]].dim() == len(self._shapes[known[0]])

    def _by_group(self, obs: Tensor) -> Mapping[str, Tensor] | Tensor:
        groups = getattr(self.model, "obs_groups", None)
        if not groups:
            return obs
        widths = [self._shapes[group][-1] for group in groups]
        if obs.shape[-1] != sum(widths):
            wanted = ", ".join(f"{group} ({width})" for group, width in zip(groups, widths, strict=True))
            raise EnvContractError(
                f"the policy reads {wanted} side by side, {sum(widths)} numbers; got {obs.shape[-1]}."
            )
        return dict(zip(groups, obs.split(widths, -1), strict=True))

    def act_inference(self, obs: Mapping[str, Tensor] | Tensor) -> Tensor:
        """The name before version 4."""
        return self(obs)

    def reset(self, dones: Tensor | None = None, *args: Any, **kwargs: Any) -> None:
        """Forget the memory of the environments where `dones` [N] is set; of all without it."""
        if callable(reset := getattr(self.model, "reset", None)):
            reset(dones, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "model":
                raise
            return getattr(self.model, name)
