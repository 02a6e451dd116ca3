"""Auxiliary losses: what else the actor's features should know."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor, nn

from surefoot.algorithm.extension import Extension
from surefoot.algorithm.losses import masked_mean
from surefoot.errors import ConfigError
from surefoot.networks.actor_critic import ActorCritic
from surefoot.types import Batch, EnvSpec, PolicyOutput


class AuxiliaryPrediction(Extension):
    """A linear head that predicts an observation group from the actor's features (Jaderberg et al. 2017).

    Its gradient shapes the features; the policy does not read the prediction. Errors are in units of the
    target.

    Args:
        target: Observation group to predict, such as a privileged one.
        start, stop: The part of the group's last dimension to predict; default: all of it.
        coef: Weight of the mean squared error.
    """

    def __init__(self, target: str, start: int = 0, stop: int | None = None, coef: float = 1.0) -> None:
        super().__init__()
        if coef < 0:
            raise ConfigError(f"AuxiliaryPrediction: coef {coef} must not be negative.")
        self.target, self.part, self.coef = target, slice(start, stop), coef

    def setup(self, spec: EnvSpec, policy: ActorCritic) -> None:
        if self.target not in spec.observation_spaces:
            raise ConfigError(
                f"AuxiliaryPrediction wants the observation group '{self.target}'; the environment has "
                f"{sorted(spec.observation_spaces)}."
            )
        shape = spec.observation_spaces[self.target].shape or ()
        width = len(range(*self.part.indices(shape[-1] if shape else 0)))
        if len(shape) != 1 or not width:
            raise ConfigError(
                f"AuxiliaryPrediction: {self.part} of the group '{self.target}', of shape {tuple(shape)}, is "
                "empty or not a vector."
            )
        self.head = nn.Linear(policy.num_actor_features, width)

    def observation_groups(self) -> Sequence[str]:
        return (self.target,)

    def policy_parameters(self) -> Iterable[nn.Parameter]:
        return self.head.parameters()

    def loss(self, batch: Batch, out: PolicyOutput, policy: ActorCritic) -> dict[str, Tensor]:
        target = batch.observations[self.target][..., self.part]
        error = (self.head(out.actor_features) - target).square().mean(-1)
        return {"Aux/prediction": self.coef * masked_mean(error, batch.mask)}
