"""Public bug reports on recurrent policies: padding, masks and hidden states. Each test carries the number of
its report.
"""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from algorithm.hand_made import Task, box, make_ppo, make_spec
from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.extension import Extension
from surefoot.algorithm.losses import masked_mean
from surefoot.algorithm.ppo import PPO
from surefoot.algorithm.rollout_storage import RolloutStorage
from surefoot.errors import ConfigError
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import ActorConfig, CriticConfig
from surefoot.testing import TargetEnv
from surefoot.training.on_policy_runner import OnPolicyRunner
from surefoot.types import Batch, PolicyOutput, Step

pytestmark = pytest.mark.filterwarnings("ignore:a rollout of")

SMALL: dict[str, Any] = {
    "num_steps_per_env": 8,
    "actor": {"hidden_dims": [8]},
    "critic": {"hidden_dims": [8]},
    "algorithm": {"num_mini_batches": 2, "num_learning_epochs": 1},
    "logger": "none",
}


def recurrent(kind: str | None, **changes: Any) -> dict[str, Any]:
    return {"hidden_dims": [8], "rnn_type": kind, "rnn_hidden_dim": 5, **changes}


# ---------------------------------------------------------------------- R02: padding


def filled(ends: Tensor, observation: gymnasium.spaces.Box) -> RolloutStorage:
    """A rollout with these ends [T, N]; each row's observation tells its step and environment."""
    num_steps, num_envs = ends.shape
    storage = RolloutStorage(num_envs, num_steps, {"policy": observation})
    dtype = storage.observations["policy"].dtype
    for t in range(num_steps + 1):
        rows = torch.arange(num_envs) + num_envs * t
        obs = {"policy": rows.to(dtype).view(-1, 1, 1).expand(-1, 2, 2)}
        if t == num_steps:
            storage.end(obs)
            break
        hidden = {"actor": torch.full((num_envs, 3), float(t))}
        storage.add_action(obs, torch.zeros(num_envs, 1), {}, hidden)
        storage.add_transition(Step(obs, torch.ones(num_envs), ends[t], torch.zeros_like(ends[t])))
    storage.values = torch.cat([storage.rewards, storage.rewards[:1]])
    storage.actions_log_prob = storage.advantages = storage.returns = storage.rewards
    return storage


def unpadded(storage: RolloutStorage) -> Tensor:
    """Observations [T·N, ...] put back from one epoch of sequences."""
    rows = storage.observations["policy"][:-1].flatten(0, 1)
    found = torch.zeros_like(rows)
    for batch in storage.recurrent_mini_batch_generator(2):
        assert batch.mask is not None
        found[batch.index[batch.mask]] = batch.observations["policy"][batch.mask]
    return found


IMAGE = gymnasium.spaces.Box(0, 255, (2, 2), np.uint8)
VECTOR = gymnasium.spaces.Box(-np.inf, np.inf, (2, 2))
EVERY_THIRD = (torch.arange(8) % 3 == 2).unsqueeze(-1).expand(8, 4)


@pytest.mark.parametrize("space", [IMAGE, VECTOR], ids=["uint8", "float32"])
@pytest.mark.parametrize("one_without_end", [False, True])
def test_r02_sequences_shorter_than_the_rollout_line_up_with_their_rows(
    space: gymnasium.spaces.Box, one_without_end: bool
) -> None:
    ends = EVERY_THIRD.clone()
    ends[:, 1] &= not one_without_end
    storage = filled(ends, space)
    rows = storage.observations["policy"][:-1].flatten(0, 1)
    assert torch.equal(unpadded(storage), rows)
    for batch in storage.recurrent_mini_batch_generator(2):
        assert batch.mask is not None
        shape = batch.mask.shape
        assert {x.shape[:2] for x in (batch.index, batch.actions, batch.returns, batch.advantage)} == {shape}
        assert batch.observations["policy"].dtype == rows.dtype
        assert batch.hidden["actor"].shape == (shape[1], 3)
        # a piece that begins an episode inside the rollout starts from nothing
        step, _ = batch.index[0] // 4, batch.index[0] % 4
        assert not batch.hidden["actor"][step > 0].any()


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**31), steps=st.integers(1, 12), envs=st.integers(2, 5), share=st.floats(0, 1))
def test_r02_padding_and_putting_back_is_the_identity_for_any_ends(
    seed: int, steps: int, envs: int, share: float
) -> None:
    ends = torch.rand(steps, envs, generator=torch.Generator().manual_seed(seed)) < share
    if seed % 3 == 0:
        ends[0], ends[-1] = True, True
    storage = filled(ends, IMAGE if seed % 2 else VECTOR)
    assert torch.equal(unpadded(storage), storage.observations["policy"][:-1].flatten(0, 1))


# ---------------------------------------------------------------------- R03: the end of a rollout


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("length", [None, 4])
def test_r03_the_last_value_does_not_advance_the_memory(kind: str, length: int | None) -> None:
    config = PPOConfig(num_mini_batches=1, sequence_length=length)
    networks = {"actor": ActorConfig(**recurrent(kind)), "critic": CriticConfig(**recurrent(kind))}
    ppo = make_ppo(config, make_spec(3), num_steps=8, **networks)
    task = Task(ends=0.1)
    obs = task.observe(ppo)
    for _ in range(8):
        step = task.transition(ppo, ppo.act(obs))
        ppo.process_env_step(step)
        obs = step.observations
    acting = ppo.hidden["actor"].clone()
    seen = []
    for _ in range(2):
        ppo.compute_returns(obs)
        seen.append((ppo.storage.values.clone(), ppo.hidden["critic"].clone()))
        assert torch.equal(ppo.hidden["actor"], acting)
    for first, second in zip(*seen, strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_r03_two_rollouts_of_8_have_the_values_of_one_of_16(kind: str) -> None:
    def values(num_steps: int) -> tuple[Tensor, Tensor]:
        config = PPOConfig(learning_rate=0.0, num_mini_batches=1)
        networks = {"actor": ActorConfig(**recurrent(kind)), "critic": CriticConfig(**recurrent(kind))}
        ppo = make_ppo(config, make_spec(3), num_steps=num_steps, **networks)
        task, found = Task(seed=4, ends=0.1), []
        obs = task.observe(ppo)
        for _ in range(16 // num_steps):
            for _ in range(num_steps):
                step = task.transition(ppo, torch.zeros_like(ppo.act(obs)))
                ppo.process_env_step(step)
                obs = step.observations
            ppo.compute_returns(obs)
            found.append(ppo.storage.values[:-1].clone())
            last = ppo.storage.values[-1].clone()
            ppo.update()
        return torch.cat(found), last

    (two, last_of_two), (one, last_of_one) = values(8), values(16)
    torch.testing.assert_close(two, one, rtol=0, atol=1e-6)
    torch.testing.assert_close(last_of_two, last_of_one, rtol=0, atol=1e-6)


# ---------------------------------------------------------------------- R05: environments that do not divide


class Rows(Extension):
    """The rows of each mini-batch that count."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def loss(self, batch: Batch, out: PolicyOutput, policy: ActorCritic) -> dict[str, Tensor]:
        self.seen.append(batch.index if batch.mask is None else batch.index[batch.mask])
        return {}


@pytest.mark.parametrize("length", [None, 8])
@pytest.mark.parametrize("num_envs", [7, 5, 4, 3, 2, 1])
def test_r05_every_environment_is_used_once_an_epoch_or_the_numbers_are_refused(
    num_envs: int, length: int | None
) -> None:
    rows = Rows()
    config = PPOConfig(num_mini_batches=4, num_learning_epochs=2, sequence_length=length)
    lstm = recurrent("lstm")
    parts: dict[str, Any] = {"actor": ActorConfig(**lstm), "critic": CriticConfig(**lstm)}
    if length == 8 and num_envs < 4:  # fewer whole sequences than mini-batches
        with pytest.raises(ConfigError, match=rf"{num_envs} sequences for 4 mini-batches"):
            make_ppo(config, make_spec(num_envs), num_steps=8, **parts)
        return
    ppo = make_ppo(config, make_spec(num_envs), num_steps=8, extensions=[rows], **parts)
    (metrics,) = Task(ends=0.0).run(ppo)
    assert metrics["Data/samples_used"].item() == num_envs * 8
    for epoch in (rows.seen[:4], rows.seen[4:]):
        assert all(len(x) for x in epoch)
        assert sorted(torch.cat(epoch).tolist()) == list(range(num_envs * 8))


def test_r05_too_many_mini_batches_are_refused_by_the_runner_too() -> None:
    config = SMALL | {
        "actor": recurrent("lstm"),
        "algorithm": {"num_mini_batches": 4, "sequence_length": 8},
    }
    with pytest.raises(ConfigError, match=r"sequence_length \(8\) leaves 3 sequences for 4 mini-batches"):
        OnPolicyRunner(TargetEnv(3), config, quiet=True)


# ---------------------------------------------------------------------- R06: padded steps in the loss


class Ones(Extension):
    """An auxiliary loss of 1 at each step that counts, and of anything elsewhere."""

    def loss(self, batch: Batch, out: PolicyOutput, policy: ActorCritic) -> dict[str, Tensor]:

        assert batch.mask is not None
        loss = torch.where(batch.mask, 1.0, 1e6)
        return {"Aux/one": masked_mean(loss, batch.mask) + 0 * out.value.sum()}


def test_r06_sequences_of_one_and_of_eight_steps_count_by_their_steps() -> None:
    lstm = recurrent("lstm")
    ppo = make_ppo(
        PPOConfig(num_mini_batches=1, num_learning_epochs=1, value_loss="mse"),
        make_spec(2, 1),
        actor=ActorConfig(**lstm),
        critic=CriticConfig(**lstm),
        extensions=[Ones()],
        num_steps=8,
    )
    no = torch.zeros(2, dtype=torch.bool)
    obs = {"policy": torch.ones(2, 1)}
    for t in range(8):
        ppo.act(obs)
        # environment 0 ends after one step, and is invalid from there
        over, valid = torch.tensor([t == 0, t == 7]), torch.tensor([t == 0, True])
        ppo.process_env_step(Step(obs, torch.ones(2), over, no, valid=valid))
    ppo.compute_returns(obs)
    rollout = ppo.storage
    mean = (rollout.values[:-1] - rollout.returns)[rollout.valid].square().mean()
    metrics = ppo.update()
    assert metrics["Data/samples_used"].item() == 9
    assert metrics["Aux/one"].item() == pytest.approx(1.0)
    assert metrics["Loss/value"].item() == pytest.approx(mean.item(), rel=1e-4)


def without_memory(policy: ActorCritic) -> None:
    """A GRU whose output depends on its input alone: recurrent weights 0, and a new state at each step."""
    for body in (policy.actor, policy.critic):
        if body is not None and body.memory is not None:
            with torch.no_grad():
                body.memory.rnn.weight_hh_l0.zero_()


class PassedOn(nn.Module):
    """What a GRU without a past makes of its input, as a feed-forward network."""

    def __init__(self, gru: nn.GRU) -> None:
        super().__init__()
        self.gru = copy.deepcopy(gru)

    def forward(self, x: Tensor) -> Tensor:
        if not x.numel():
            return x.new_zeros(*x.shape[:-1], self.gru.hidden_size)
        y, _ = self.gru(x.reshape(1, -1, x.shape[-1]))
        return y.reshape(*x.shape[:-1], self.gru.hidden_size)


def test_r06_with_an_end_at_each_step_the_update_is_the_feed_forward_one() -> None:
    def trained(is_recurrent: bool) -> tuple[dict[str, Tensor], PPO]:
        def prepare(policy: ActorCritic) -> None:
            source = make_ppo(config, spec, actor=actor, critic=critic, dtype=torch.float64).policy
            without_memory(source)
            if is_recurrent:
                policy.load_state_dict(source.state_dict())
                return
            for name in ("actor", "critic"):
                body, theirs = getattr(policy, name), getattr(source, name)
                body.layers = nn.Sequential(PassedOn(theirs.memory.rnn), copy.deepcopy(theirs.layers))
            policy.action_head.load_state_dict(source.action_head.state_dict())
            policy.value_head.load_state_dict(source.value_head.state_dict())

        plain = {"actor": ActorConfig(hidden_dims=[8]), "critic": CriticConfig(hidden_dims=[8])}
        parts: dict[str, Any] = {"actor": actor, "critic": critic} if is_recurrent else plain
        ppo = make_ppo(config, spec, num_steps=6, dtype=torch.float64, prepare=prepare, **parts)
        task = Task(seed=5)
        obs = task.observe(ppo)
        for _ in range(6):
            ppo.act(obs)
            step = task.transition(ppo, torch.zeros(4, 2))
            step.terminated, step.truncated = torch.ones(4) > 0, torch.zeros(4) > 0
            ppo.process_env_step(step)
            obs = step.observations
        ppo.compute_returns(obs)
        return ppo.update(), ppo

    spec = make_spec(4, {"policy": box(3)})
    config = PPOConfig(num_mini_batches=1, num_learning_epochs=3, learning_rate=0.01, schedule="fixed")
    actor, critic = ActorConfig(**recurrent("gru")), CriticConfig(**recurrent("gru"))
    (first, one), (second, other) = trained(True), trained(False)
    assert one.policy.is_recurrent
    assert not other.policy.is_recurrent
    for name in ("Loss/surrogate", "Loss/value", "Loss/entropy", "Loss/kl", "Loss/grad_norm"):
        torch.testing.assert_close(first[name].double(), second[name].double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_r06_an_extra_padded_sequence_changes_nothing(kind: str) -> None:
    """What stands in invalid rows of an environment that never counts reaches no weight."""

    def weights(noise: float, envs_counted: int = 3) -> dict[str, Tensor]:
        config = PPOConfig(num_mini_batches=1, num_learning_epochs=2, learning_rate=0.01)
        networks = {"actor": ActorConfig(**recurrent(kind)), "critic": CriticConfig(**recurrent(kind))}
        ppo = make_ppo(config, make_spec(4), **networks)
        task = Task(seed=1, ends=0.2)
        obs = task.observe(ppo)
        for _ in range(8):
            ppo.act(obs)
            step = task.transition(ppo, torch.zeros(4, 2))
            step.valid = torch.arange(4) < envs_counted
            step.rewards[3] += noise
            step.observations["policy"][3] += noise
            ppo.process_env_step(step)
            obs = step.observations
        ppo.compute_returns(obs)
        ppo.update()
        return {k: v.clone() for k, v in ppo.policy.named_parameters()}

    plain, noisy = weights(0.0), weights(1e4)
    for name, x in plain.items():
        assert torch.equal(x, noisy[name]), name


# ---------------------------------------------------------------------- R07: only one of the two remembers


@pytest.mark.parametrize(
    ("actor", "critic"),
    [("lstm", None), (None, "gru"), ("gru", "lstm"), ("lstm", "gru"), ("gru", None), (None, "lstm")],
)
def test_r07_only_one_of_actor_and_critic_may_remember(tmp_path: Any, actor: Any, critic: Any) -> None:
    config = SMALL | {"actor": recurrent(actor), "critic": recurrent(critic)}
    runner = OnPolicyRunner(TargetEnv(6), config, tmp_path / "run", quiet=True)
    runner.learn(2)
    assert all(x.isfinite().all() for x in runner.alg.state_dict().values())
    assert runner.metrics["Loss/skipped_updates"] == 0
    assert runner.metrics["Data/samples_used"] == 6 * 8
    assert set(runner.alg.hidden) == {name for name, kind in (("actor", actor), ("critic", critic)) if kind}
    again = OnPolicyRunner(TargetEnv(6), config, quiet=True)
    again.load(tmp_path / "run")
    again.learn(1)
    runner.get_inference_policy()(TargetEnv(6).reset(seed=0))


@pytest.mark.parametrize("kind", ["GRUU", "lstn", "GRU", "rnn", ""])
@pytest.mark.parametrize("side", ["actor", "critic"])
def test_r07_a_cell_that_does_not_exist_is_refused_with_those_that_do(kind: str, side: str) -> None:
    with pytest.raises(ConfigError, match=rf'{side}\.rnn_type = "{kind}": expected one of gru, lstm'):
        OnPolicyRunner(TargetEnv(4), SMALL | {side: recurrent(kind)}, quiet=True)
