"""The extension contract: a new idea is a new file, never an edit of PPO."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor, nn

from surefoot.algorithm.rollout_storage import RolloutStorage
from surefoot.networks.actor_critic import ActorCritic
from surefoot.types import Batch, EnvSpec, PolicyOutput, Stats


class Extension(nn.Module):
    """A reward, a regulariser, an augmentation or an auxiliary task. Every method does nothing by default.

    State lives in parameters, buffers, optimisers and generators kept as attributes: saving, loading, moving
    and synchronising over processes are then automatic. Order of calls in one iteration: `prepare`, `reward`,
    `advantage`; for each mini-batch `augment`, `loss`; at the end `learn`.
    """

    def setup(self, spec: EnvSpec, policy: ActorCritic) -> None:
        """Once, before PPO builds its optimiser: make heads, buffers and optimisers."""

    def observation_groups(self) -> Sequence[str]:
        """Groups this extension reads; they are stored even if no network reads them."""
        return ()

    def policy_parameters(self) -> Iterable[nn.Parameter]:
        """Parameters that PPO's optimiser trains with the policy, such as auxiliary heads."""
        return ()

    def prepare(self, rollout: RolloutStorage, policy: ActorCritic) -> None:
        """With the weights that collected the rollout, before rewards are folded. Keep [T, N] results here
        and read them in `loss` by `batch.index`.
        """

    def reward(self, rollout: RolloutStorage, reward: Tensor) -> Tensor:
        """Reward [T, N] to reward [T, N]; a fold over the extensions in list order."""
        return reward

    def advantage(self, rollout: RolloutStorage, advantage: Tensor) -> Tensor:
        """[T, N] to [T, N], after GAE, before normalisation. The critic does not learn what is added."""
        return advantage

    def augment(self, batch: Batch, policy: ActorCritic) -> Batch:
        """Add rows (`Batch.append`); the first `batch.num_sampled` never change."""
        return batch

    def loss(self, batch: Batch, out: PolicyOutput, policy: ActorCritic) -> dict[str, Tensor]:
        """Weighted scalars by their logged name (`Aux/prediction`), the same names in every mini-batch; they
        are added to PPO's loss and logged. A detached one is only logged.
        """
        return {}

    def learn(self, rollout: RolloutStorage) -> Stats:
        """After the policy update: train own networks with own optimisers (`distributed.minimize`)."""
        return {}
