"""Mini-batches that extensions add to, and means over mini-batches of unequal size."""

from __future__ import annotations

import pytest
import torch
from hand_made import Task, box, make_ppo, make_spec
from torch import Tensor

from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.extension import Extension
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import ActorConfig
from surefoot.types import Batch, PolicyOutput, Step


class Copies(Extension):
    """Adds a copy of every row, or sequence, giving only the group `policy`."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[float] = []

    def augment(self, batch: Batch, policy: ActorCritic) -> Batch:
        source = torch.arange(batch.num_sampled)
        return batch.append({"policy": batch.observations["policy"]}, batch.actions, source)

    def loss(self, batch: Batch, out: PolicyOutput, policy: ActorCritic) -> dict[str, Tensor]:
        dim, n = batch.index.dim() - 1, batch.num_sampled
        for x in (out.log_prob, out.value, batch.advantage, batch.observations["privileged"]):
            first, second = x.narrow(dim, 0, n), x.narrow(dim, n, n)
            self.errors.append((first - second).abs().max().item())
        return {}


@pytest.mark.parametrize("rnn_type", [None, "gru", "lstm"])
def test_added_copies_are_their_sources_in_groups_not_given_and_in_memory_too(rnn_type: str | None) -> None:
    copies = Copies()
    spec = make_spec(4, {"policy": box(3), "privileged": box(2)})
    ppo = make_ppo(
        spec=spec,
        actor=ActorConfig(hidden_dims=[8], rnn_type=rnn_type, rnn_hidden_dim=4),  # type: ignore[arg-type]
        obs_groups={"actor": ["policy"], "critic": ["policy", "privileged"]},
        extensions=[copies],
    )
    Task(1).run(ppo, 2)
    assert copies.errors
    assert max(copies.errors) <= 1e-6


def test_logged_means_are_weighted_by_valid_rows() -> None:
    """Of four mini-batches of sequences three are empty: they must not pull the entropy down."""
    network = ActorConfig(hidden_dims=[4], rnn_type="gru", rnn_hidden_dim=4)
    ppo = make_ppo(PPOConfig(num_mini_batches=4, num_learning_epochs=1), make_spec(4), actor=network)
    obs = Task(0).observe(ppo)
    none = torch.zeros(4, dtype=torch.bool)
    valid = torch.tensor([True, False, False, False])
    for _ in range(8):
        ppo.act(obs)
        ppo.process_env_step(Step(obs, torch.ones(4), none, none, valid=valid))
    ppo.compute_returns(obs)
    entropy = ppo.policy.action_head.rebuild(ppo.storage.distribution).entropy()[0, 0].item()
    assert ppo.update()["Loss/entropy"].item() == pytest.approx(entropy, rel=0.01)


def test_a_mini_batch_without_rows_does_not_move_the_weights() -> None:
    ppo = make_ppo(PPOConfig(num_mini_batches=1, num_learning_epochs=1))
    Task(1).run(ppo, 2)  # momentum
    before = [p.clone() for p in ppo.policy.parameters()]
    obs = Task(2).observe(ppo)
    none = torch.zeros(4, dtype=torch.bool)
    for _ in range(8):
        ppo.act(obs)
        ppo.process_env_step(Step(obs, torch.ones(4), none, none, valid=none))
    ppo.compute_returns(obs)
    metrics = ppo.update()
    assert metrics["Loss/skipped_updates"] == 0
    for old, new in zip(before, ppo.policy.parameters(), strict=True):
        assert torch.equal(old, new)
