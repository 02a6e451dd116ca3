"""Recurrent policies: what is learned from is what acted, whatever ends where."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hand_made import Task, box, make_ppo, make_spec
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.extension import Extension
from surefoot.algorithm.ppo import PPO
from surefoot.errors import ConfigError
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import ActorConfig, CriticConfig, NetworkConfig
from surefoot.networks.memory import forget
from surefoot.types import Batch, PolicyOutput, Step

NUM_STEPS = 11


class Replay(Extension):
    """How far the recomputed log-probabilities and values of each mini-batch are from the rollout's."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[dict[str, Any]] = []

    def loss(self, batch: Batch, out: PolicyOutput, policy: ActorCritic) -> dict[str, Tensor]:
        mask = torch.ones_like(batch.index, dtype=torch.bool) if batch.mask is None else batch.mask
        self.seen.append(
            {
                "log_ratio": (out.log_prob - batch.old_log_prob)[mask].abs().max().item(),
                "value": (out.value - batch.old_value)[mask].abs().max().item(),
                "rows": batch.index[mask],
                "shape": tuple(batch.index.shape),
            }
        )
        return {}


class RandomEnds(Task):
    """Ends, invalid rows and unknown final observations, all at random."""

    def transition(self, ppo: PPO, actions: Tensor) -> Step:
        step = super().transition(ppo, actions)
        chance = torch.rand(3, ppo.spec.num_envs, generator=self.generator)
        step.valid, step.final_known = chance[0] > 0.15, chance[1] > 0.3
        return step


def recurrent_ppo(
    actor: str | None, critic: str | None, layers: int, dtype: torch.dtype, **changes: Any
) -> tuple[PPO, Replay]:
    replay = Replay()
    size: dict[str, Any] = {"hidden_dims": [7], "rnn_hidden_dim": 5, "rnn_num_layers": layers}
    size["obs_normalization"] = True
    ppo = make_ppo(
        PPOConfig(
            num_mini_batches=3,
            num_learning_epochs=2,
            learning_rate=0.01,
            sequence_length=changes.pop("sequence_length", None),
            burn_in=changes.pop("burn_in", 0),
        ),
        make_spec(5),
        num_steps=NUM_STEPS,
        actor=ActorConfig(**size, rnn_type=actor),  # type: ignore[arg-type]
        critic=CriticConfig(**size, rnn_type=critic),  # type: ignore[arg-type]
        extensions=[replay],
        dtype=dtype,
        **changes,
    )
    return ppo, replay


MIXES = [("gru", "gru"), ("lstm", "lstm"), ("gru", "lstm"), ("gru", None), (None, "lstm")]


@settings(max_examples=25, deadline=None)
@given(
    mix=st.sampled_from(MIXES),
    layers=st.integers(1, 2),
    network=st.sampled_from(["separate", "shared"]),
    length=st.sampled_from([None, 1, 3, 4]),
    burn_in=st.integers(0, 1),
    seed=st.integers(0, 1000),
    precision=st.sampled_from([(torch.float64, 1e-10), (torch.float32, 1e-5)]),
)
def test_the_sequences_replay_the_rollout(
    mix: tuple[str | None, str | None],
    layers: int,
    network: str,
    length: int | None,
    burn_in: int,
    seed: int,
    precision: tuple[torch.dtype, float],
) -> None:
    if network == "shared" and mix[0] is None:
        mix = ("gru", None)
    dtype, tolerance = precision
    changes = {"sequence_length": length, "burn_in": burn_in, "network": network, "seed": seed}
    ppo, replay = recurrent_ppo(*mix, layers, dtype, **changes)
    task = RandomEnds(seed)
    for _ in range(3):
        replay.seen.clear()
        task.run(ppo)
        assert replay.seen[0]["log_ratio"] <= tolerance
        assert replay.seen[0]["value"] <= tolerance
        assert replay.seen[-1]["log_ratio"] > 1e3 * tolerance  # the comparison can fail: it has learned


@pytest.mark.parametrize("mix", MIXES)
def test_all_mini_batches_replay_a_policy_that_does_not_move(mix: tuple[str | None, str | None]) -> None:
    ppo, replay = recurrent_ppo(*mix, 1, torch.float64)
    ppo.optimizer.update = lambda *_: (torch.zeros(()), torch.zeros(()), torch.zeros(()))  # type: ignore[method-assign]
    RandomEnds(1).run(ppo, 2)
    for seen in replay.seen:
        assert seen["log_ratio"] <= 1e-10
        assert seen["value"] <= 1e-10


def test_every_valid_row_is_used_once_an_epoch_by_environments_that_do_not_divide() -> None:
    ppo, replay = recurrent_ppo("gru", "gru", 1, torch.float32, sequence_length=4)
    task = RandomEnds(3)
    task.collect(ppo)
    expected = ppo.storage.valid_rows()
    ppo.update()
    for epoch in (replay.seen[:3], replay.seen[3:]):
        assert torch.equal(torch.cat([seen["rows"] for seen in epoch]).sort().values, expected)
    orders = [torch.cat([seen["rows"] for seen in epoch]) for epoch in (replay.seen[:3], replay.seen[3:])]
    assert not torch.equal(*orders)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_values_are_those_of_a_step_by_step_pass_and_so_is_that_of_a_final_observation(kind: Any) -> None:
    ppo, _ = recurrent_ppo(None, kind, 2, torch.float64)
    task = RandomEnds(5)
    task.run(ppo)  # so that the critic's memory is not empty at the start
    policy, rollout, num_envs = ppo.policy, ppo.storage, 5
    carry = ppo.hidden["critic"].clone()
    obs, before = task.observe(ppo), []
    finals: dict[tuple[int, int], Tensor] = {}
    for t in range(NUM_STEPS):
        step = task.transition(ppo, ppo.act(obs))
        ended, valid = step.terminated | step.truncated, step.valid
        assert step.final_observations is not None
        assert step.final_known is not None
        assert valid is not None
        for n in (step.truncated & ~step.terminated & step.final_known).nonzero().flatten().tolist():
            finals[t, n] = step.final_observations["policy"][n]
        before.append((obs["policy"].clone(), (ended | ~valid).clone()))
        ppo.process_env_step(step)
        obs = step.observations
    first = rollout.is_first[0].clone()
    ppo.compute_returns(obs)
    memory = policy.value_body.memory
    assert memory is not None

    def value(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        inputs = policy.inputs({"policy": x}, ("critic",))[policy.inputs.critic_name]
        out, after = memory.step(inputs, state)
        return policy.value_on(policy.value_body.think(out)[0]), after

    with torch.no_grad():
        state = forget({"critic": carry}, first)["critic"]
        for t, (x, starts) in enumerate(before):
            expected, after = value(x, state)
            torch.testing.assert_close(rollout.values[t], expected, rtol=0, atol=1e-12)
            for n in range(num_envs):
                if (t, n) in finals:
                    bootstrap, _ = value(finals[t, n].unsqueeze(0), after[n : n + 1])
                    td = rollout.rewards[t, n] + 0.99 * bootstrap - expected[n]
                    # λ stops at a time limit, so its advantage is the TD error before normalisation
                    advantage = rollout.returns[t, n] - rollout.values[t, n]
                    if rollout.valid[t, n]:
                        torch.testing.assert_close(advantage, td.squeeze(), rtol=0, atol=1e-10)
            state = forget({"critic": after}, starts)["critic"]
        torch.testing.assert_close(ppo.hidden["critic"], state, rtol=0, atol=1e-12)
    assert finals


def test_memory_is_forgotten_where_an_episode_ended_and_kept_elsewhere() -> None:
    ppo, _ = recurrent_ppo("gru", None, 1, torch.float64)
    obs = {"policy": torch.ones(5, 3, dtype=torch.float64)}
    ended = torch.tensor([True, False, True, False, False])
    none = torch.zeros(5, dtype=torch.bool)
    rewards = torch.zeros(5, dtype=torch.float64)
    ppo.act(obs)
    ppo.process_env_step(Step(obs, rewards, ended, none))
    ppo.act(obs)
    mean = ppo.storage.distribution["mean"][:2]
    assert torch.equal(mean[1][ended], mean[0][ended])
    assert not torch.equal(mean[1][~ended], mean[0][~ended])


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
def test_a_mask_of_any_dtype_forgets(dtype: torch.dtype) -> None:
    state = {"actor": torch.ones(3, 2)}
    kept = forget(state, torch.tensor([1, 0, 1]).to(dtype))["actor"]
    assert kept.tolist() == [[0, 0], [1, 1], [0, 0]]


def test_a_masked_step_changes_neither_loss_nor_gradient() -> None:
    """Padding, burn-in and invalid rows count for nothing: another observation there is never seen."""

    def weights(noise: float) -> Tensor:
        ppo, _ = recurrent_ppo("gru", "gru", 1, torch.float64, sequence_length=4)
        task = RandomEnds(2)
        task.collect(ppo)
        rollout = ppo.storage
        alone = ~rollout.valid & rollout.is_first[:-1]  # a row that no valid one follows
        assert alone.any()
        for x in rollout.inputs.values():
            x[:-1][alone] += noise
        ppo.update()
        return torch.cat([p.detach().flatten() for p in ppo.policy.parameters()])

    assert torch.equal(weights(0.0), weights(100.0))


def test_resume_keeps_the_memory() -> None:
    first, _ = recurrent_ppo("gru", "lstm", 1, torch.float32)
    second, _ = recurrent_ppo("gru", "lstm", 1, torch.float32, seed=2)
    task = Task(1)
    task.run(first, 2)
    assert first.hidden["actor"].abs().sum() > 0
    state = first.state()
    second.load_state(state)
    for name, x in first.hidden.items():
        assert torch.equal(second.hidden[name], x)
    results = []
    for ppo in (first, second):
        Task(7).run(ppo)
        results.append(ppo.state_dict())
    for name, x in results[0].items():
        assert torch.equal(x, results[1][name]), name


def test_recomputing_advantages_runs_the_memory_again() -> None:
    ppo, replay = recurrent_ppo("gru", "gru", 1, torch.float64)
    ppo.config = PPOConfig(
        num_mini_batches=3, num_learning_epochs=2, learning_rate=0.01, recompute_advantages=True
    )
    Task(1).run(ppo)
    assert replay.seen[3]["value"] <= 1e-10  # the old values of the second epoch are the new critic's
    assert replay.seen[5]["value"] > 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_recurrent_policy_learns_what_a_feed_forward_one_cannot(kind: Any) -> None:
    """Repeat the number seen one step ago: reward -|action - last observation|."""

    class Echo(Task):
        last: Tensor | None = None

        def transition(self, ppo: PPO, actions: Tensor) -> Step:
            none = torch.zeros(ppo.spec.num_envs, dtype=torch.bool)
            obs = {"policy": torch.rand(ppo.spec.num_envs, 1, generator=self.generator) * 2 - 1}
            goal = torch.zeros_like(actions) if self.last is None else self.last
            self.last, reward = self.now, -(actions - goal).abs().squeeze(-1)
            self.now = obs["policy"]
            return Step(obs, reward, none, none)

        now: Tensor

        def observe(self, ppo: PPO) -> dict[str, Tensor]:
            self.now = torch.rand(ppo.spec.num_envs, 1, generator=self.generator) * 2 - 1
            return {"policy": self.now}

    def final_reward(rnn_type: Any) -> float:
        actor = ActorConfig(hidden_dims=[16], rnn_type=rnn_type, rnn_hidden_dim=16)
        critic = CriticConfig(hidden_dims=[16])
        config = PPOConfig(learning_rate=0.005, schedule="fixed", gamma=0.0, num_mini_batches=4)
        spec = make_spec(64, {"policy": box(1)}, 1)
        ppo = make_ppo(config, spec, num_steps=16, actor=actor, critic=critic)
        task = Echo(3)
        for _ in range(60):
            task.last = None
            task.run(ppo)
        task.last = None
        task.collect(ppo)
        return ppo.storage.rewards[2:].mean().item()

    assert final_reward(None) < -0.45 < -0.35 < final_reward(kind)


def test_too_few_sequences_for_the_mini_batches_are_refused() -> None:
    config = PPOConfig(num_mini_batches=8, sequence_length=8)
    with pytest.raises(ConfigError, match=r"sequence_length 8 leaves 4 sequences for 8 mini-batches"):
        make_ppo(config, make_spec(4), actor=ActorConfig(hidden_dims=[4], rnn_type="gru"))


def test_a_mirrored_recurrent_actor_is_refused() -> None:
    with pytest.raises(ConfigError, match="mirror and rnn_type"):
        ActorConfig(mirror=True, rnn_type="gru")
    assert NetworkConfig().rnn_type is None


def test_memory_at_the_start_of_a_sequence_is_that_of_the_present_weights_in_each_epoch() -> None:
    """Otherwise the ratio would not see how far the policy moved in what it remembers."""

    class States(Extension):
        def loss(self, batch: Batch, out: PolicyOutput, policy: ActorCritic) -> dict[str, Tensor]:
            seen.append({name: x.clone() for name, x in batch.rollout.hidden.items()})
            weights.append([p.detach().clone() for p in policy.parameters()])
            inputs.update(batch.rollout.inputs)
            return {}

    seen: list[dict[str, Tensor]] = []
    weights: list[list[Tensor]] = []
    inputs: dict[str, Tensor] = {}
    network: dict[str, Any] = {"hidden_dims": [7], "rnn_type": "gru", "rnn_hidden_dim": 5}
    config = PPOConfig(num_mini_batches=2, num_learning_epochs=2, learning_rate=0.01, sequence_length=4)
    ppo = make_ppo(
        config,
        make_spec(5),
        num_steps=8,
        actor=ActorConfig(**network),
        critic=CriticConfig(**network),
        extensions=[States()],
        dtype=torch.float64,
    )
    RandomEnds(4).run(ppo)
    rollout = ppo.storage
    for name, body in (("actor", ppo.policy.actor), ("critic", ppo.policy.value_body)):
        assert torch.equal(seen[0][name], seen[1][name])
        assert not torch.equal(seen[1][name], seen[2][name])
        with torch.no_grad():
            for p, w in zip(ppo.policy.parameters(), weights[2], strict=True):
                p.copy_(w)  # as they were when the second epoch began
            state = seen[0][name][0]
            x = inputs[body.input_name]
            assert body.memory is not None
            for t in range(4):
                _, state = body.memory.step(x[t], forget({"_": state}, rollout.is_first[t])["_"])
            expected = forget({"_": state}, rollout.is_first[4])["_"]
        torch.testing.assert_close(seen[2][name][1], expected, rtol=0, atol=1e-12)
