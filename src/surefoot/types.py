"""The values that pass between environment, storage, policy and extensions.

Shape letters, in every docstring and comment of the package:

    T  steps of a rollout        N  environments            A  action dimensions
    M  rows of a mini-batch      B  sequences of a batch    D  observation dimensions
    L  steps of a sequence       F  features                H  hidden units

`[T, N, A]` is a tensor of that shape; `[M | L, B]` is either a flat batch or one of sequences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from torch import Tensor
from typing_extensions import Self

from surefoot.errors import EnvContractError

if TYPE_CHECKING:
    import gymnasium

    from surefoot.algorithm.rollout_storage import RolloutStorage

Observations = Mapping[str, Tensor]
"""One tensor per observation group, each [..., *group shape]."""

Hidden = Mapping[str, Tensor]
"""State of each network's memory, [N | B, K] under `actor` and `critic`; empty for feed-forward policies."""

Stats = dict[str, Tensor]
"""Metrics by their logged name (`Rnd/loss`); 0-d tensors that stay on the device until the iteration ends."""


@dataclass
class Step:
    """What `VecEnv.step` returns."""

    observations: Observations
    """[N, ...], after any reset."""
    rewards: Tensor
    """[N] float32."""
    terminated: Tensor
    """[N] bool. The task ended: the value after it is 0."""
    truncated: Tensor
    """[N] bool. The clock ended it; `terminated` wins where both are set."""
    final_observations: Observations | None = None
    """[N, ...], the observation before the reset. Read only at ended rows."""
    final_known: Tensor | None = None
    """[N] bool, where `final_observations` is real; None: at every ended row."""
    valid: Tensor | None = None
    """[N] bool, False on a row that is only an autoreset; such rows are never trained on."""
    log: dict[str, float | Tensor] = field(default_factory=dict)
    """Extra metrics. Those under `Eval/` may be [N] and are averaged by evaluation."""

    @property
    def starts(self) -> Tensor:
        """[N] bool, where the next row begins from nothing: after an end, and after a row that only reset."""
        ended = self.terminated | self.truncated
        return ended if self.valid is None else ended | ~self.valid

    @classmethod
    def from_dones(
        cls, observations: Observations, rewards: Tensor, dones: Tensor, extras: Mapping[str, Any]
    ) -> Step:
        """From RSL-RL's form: `dones` [N] of any dtype, `extras["time_outs"]` [N] where it was the clock, and
        `extras["final_observations"]` where the environment still has them.
        """
        ended, clock = dones.bool(), extras.get("time_outs")
        clock = torch.as_tensor(False if clock is None else clock, device=ended.device).bool()
        if clock.dim() and clock.numel() != ended.numel():
            raise EnvContractError(f"time_outs are {tuple(clock.shape)}, but dones {tuple(ended.shape)}.")
        clock = clock.reshape(ended.shape) if clock.dim() else clock  # one word for all
        return cls(observations, rewards, ended & ~clock, ended & clock, extras.get("final_observations"))


@dataclass(frozen=True)
class MirrorMap:
    """Left-right symmetry of a robot: for each group and for actions, a permutation and a sign per entry.

    The mirror image of `x` is `x[..., permutation] * sign`; applied twice it is `x` again.
    """

    observations: Mapping[str, tuple[Tensor, Tensor]]
    actions: tuple[Tensor, Tensor]

    def mirror_observations(self, observations: Observations) -> dict[str, Tensor]:
        return {g: _mirror(x, *self.observations[g]) for g, x in observations.items()}

    def mirror_actions(self, actions: Tensor) -> Tensor:
        return _mirror(actions, *self.actions)


def _mirror(x: Tensor, permutation: Tensor, sign: Tensor) -> Tensor:
    return x[..., permutation.to(x.device)] * sign.to(x.device, x.dtype)


@dataclass(frozen=True)
class EnvSpec:
    """What networks, storage and extensions may know of the environment."""

    observation_spaces: Mapping[str, gymnasium.Space[Any]]
    action_space: gymnasium.Space[Any]
    num_envs: int
    gamma: float = 0.99
    step_dt: float | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    mirror: MirrorMap | None = None
    generator: torch.Generator | None = None
    """For the randomness of extensions; saved with the run."""


class Distribution(Protocol):
    """A batch of action distributions: a value, never the state of a model.

    Raw actions are what is sampled and stored, always `[..., A]` (a Discrete action has A = 1). All results
    are float32 or wider, of the batch's leading shape.
    """

    kl_kind: ClassVar[str]
    """`exact`, or `k3` where no closed form exists and PPO estimates the KL from the log-probabilities."""

    @property
    def params(self) -> dict[str, Tensor]:
        """What the storage keeps; the head's `rebuild` makes the distribution from it again."""
        ...

    def sample(self, generator: torch.Generator | None = None) -> Tensor: ...

    def mode(self) -> Tensor: ...

    def log_prob(self, action: Tensor) -> Tensor: ...

    def entropy(self, generator: torch.Generator | None = None) -> Tensor: ...

    def kl(self, other: Self) -> Tensor:
        """KL(self ‖ other)."""
        ...


@dataclass
class PolicyOutput:
    """One forward pass over a batch; leading shape [M | L, B]."""

    distribution: Distribution
    log_prob: Tensor
    entropy: Tensor
    value: Tensor
    """In reward units."""
    actor_features: Tensor
    """[..., F], what the action head reads."""
    critic_features: Tensor
    """[..., F], what the value head reads."""
    estimate: Tensor | None = None
    """What `actor.estimator` predicts."""


@dataclass
class Batch:
    """A mini-batch. Flat fields are [M, ...]; with recurrent policies they are sequences [L, B, ...].

    `num_sampled` counts the rows (or sequences) drawn from the rollout; rows after it were added by an
    extension's `augment` and serve the losses only, never KL, entropy or diagnostics.
    """

    observations: Observations
    """Raw, as the environment gave them; gathered when read."""
    actions: Tensor
    old_log_prob: Tensor
    old_distribution: dict[str, Tensor]
    old_value: Tensor
    advantage: Tensor
    returns: Tensor
    index: Tensor
    """[M | L, B] position t·N+n in the rollout of each row (of the source, for an added row)."""
    num_sampled: int
    rollout: RolloutStorage
    mask: Tensor | None = None
    """True where a row counts; None: all rows."""
    hidden: Hidden = field(default_factory=dict)
    """Recurrent state before the first step of each sequence [B, K]."""
    inputs: dict[str, Tensor] = field(default_factory=dict)
    """PPO's own: the normalised network inputs of the sampled rows."""

    def sampled(self, x: Tensor) -> Tensor:
        """Of `x` [M, ... | L, B, ...], what was drawn from the rollout."""
        return x.narrow(self.index.dim() - 1, 0, self.num_sampled)

    def append(
        self, observations: Observations, actions: Tensor, source: Tensor, hidden: Hidden | None = None
    ) -> Batch:
        """Add rows (or sequences, each with its own `hidden`) that take everything else from the rows (or
        sequences) `source` [K] of this batch.

        An added row keeps the old log-probability of its source: the density that produced it.
        """
        dim = self.index.dim() - 1

        def join(x: Tensor, added: Tensor) -> Tensor:
            return torch.cat([x, added], dim)

        def grow(x: Tensor) -> Tensor:
            return join(x, x.index_select(dim, source))

        starts = {name: x[source] for name, x in self.hidden.items()} | dict(hidden or {})
        names = ("old_log_prob", "old_value", "advantage", "returns", "index")
        return replace(
            self,
            observations={
                g: join(x, observations[g]) if g in observations else grow(x)
                for g, x in self.observations.items()
            },
            actions=join(self.actions, actions),
            old_distribution={k: grow(x) for k, x in self.old_distribution.items()},
            mask=None if self.mask is None else grow(self.mask),
            hidden={name: torch.cat([x, starts[name]]) for name, x in self.hidden.items()},
            **{name: grow(getattr(self, name)) for name in names},
        )
