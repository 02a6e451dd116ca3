"""Auxiliary losses: what else the actor's features should know."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor, nn

from surefoot import distributed
from surefoot.algorithm.config import Weight
from surefoot.algorithm.extension import Extension
from surefoot.algorithm.losses import masked_mean
from surefoot.algorithm.rollout_storage import RolloutStorage
from surefoot.errors import ConfigError
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import EstimatorConfig
from surefoot.networks.encoders import part_size
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

    def __init__(self, target: str, start: int = 0, stop: int | None = None, coef: Weight = 1.0) -> None:
        super().__init__()
        if coef < 0:
            raise ConfigError(f"AuxiliaryPrediction: coef {coef} must not be negative.")
        self.target, self.part, self.coef = target, slice(start, stop), coef

    def setup(self, spec: EnvSpec, policy: ActorCritic) -> None:
        width = part_size(spec.observation_spaces, self.target, self.part, "AuxiliaryPrediction")
        self.head = nn.Linear(policy.num_actor_features, width)

    def observation_groups(self) -> Sequence[str]:
        return (self.target,)

    def policy_parameters(self) -> Iterable[nn.Parameter]:
        return self.head.parameters()

    def loss(self, batch: Batch, out: PolicyOutput, policy: ActorCritic) -> dict[str, Tensor]:
        target = batch.observations[self.target][..., self.part]
        error = (self.head(out.actor_features) - target).square().mean(-1)
        return {"Aux/prediction": self.coef * masked_mean(error, batch.mask)}


class EstimatorLoss(Extension):
    """Trains the estimator inside the actor (`actor.estimator`) on what it is to predict.

    `Aux/estimator_error` is its squared error as a share of the target's variance: 1 for a constant guess.

    Args:
        coef: Weight of the mean squared error, in units of the target.
    """

    def __init__(self, coef: Weight = 1.0) -> None:
        super().__init__()
        self.coef = coef

    def setup(self, spec: EnvSpec, policy: ActorCritic) -> None:
        if policy.estimator is None:
            raise ConfigError("EstimatorLoss needs a policy with actor.estimator.")
        self.estimator: EstimatorConfig = policy.estimator

    def observation_groups(self) -> Sequence[str]:
        return (self.estimator.group,)

    def prepare(self, rollout: RolloutStorage, policy: ActorCritic) -> None:
        target = rollout.observations[self.estimator.group][:-1, ..., self.estimator.part].flatten(0, 1)
        count, _, deviations = distributed.moments(target, rollout.valid.flatten())
        self.variance = (deviations / count.clamp(min=1)).mean().clamp(min=1e-12)

    def loss(self, batch: Batch, out: PolicyOutput, policy: ActorCritic) -> dict[str, Tensor]:
        assert out.estimate is not None
        target = batch.observations[self.estimator.group][..., self.estimator.part]
        error = masked_mean((out.estimate - target).square().mean(-1), batch.mask)
        share = error.detach() / self.variance.to(error.dtype)  # without a gradient it is only logged
        return {"Aux/estimator": self.coef * error, "Aux/estimator_error": share}


class PolicyLosses(Extension):
    """The losses that modules of the policy define themselves, such as a network of your own.

    Every module of the policy with a method `aux_losses(batch, out)` is asked, after the forward pass of a
    mini-batch, for `{name: scalar}`; `name` is logged as `Aux/name`, of several modules the sum.

    Args:
        coef: Weight of their sum.
    """

    def __init__(self, coef: Weight = 1.0) -> None:
        super().__init__()
        self.coef = coef

    def setup(self, spec: EnvSpec, policy: ActorCritic) -> None:
        if not any(hasattr(module, "aux_losses") for module in policy.modules()):
            raise ConfigError("PolicyLosses: no module of the policy has a method aux_losses(batch, out).")

    def loss(self, batch: Batch, out: PolicyOutput, policy: ActorCritic) -> dict[str, Tensor]:
        terms: dict[str, Tensor] = {}
        for module in policy.modules():
            if hasattr(module, "aux_losses"):
                for name, x in module.aux_losses(batch, out).items():  # pyright: ignore[reportCallIssue]
                    terms[name] = terms.get(name, 0.0) + x
        return {name if "/" in name else f"Aux/{name}": self.coef * x for name, x in terms.items()}
