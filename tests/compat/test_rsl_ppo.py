"""PPO with RSL-RL's names: what clients call and read, and the defects of 5.5.1 that it has not."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from rsl_parts import (
    GAUSSIAN,
    GROUPS,
    NUM_ACTIONS,
    NUM_ENVS,
    NUM_STEPS,
    make_models,
    make_obs,
    make_ppo,
    run,
    transition,
)
from tensordict import TensorDict
from torch import Tensor, nn

from surefoot.compat.rsl_rl.algorithms import PPO
from surefoot.compat.rsl_rl.models import CNNModel, MLPModel, RNNModel
from surefoot.compat.rsl_rl.modules import ActorCritic
from surefoot.compat.rsl_rl.storage import RolloutStorage
from surefoot.config import SurefootWarning
from surefoot.errors import CheckpointError, ConfigError, EnvContractError

GAMMA, LAM = 0.9, 0.8


def weights(ppo: PPO) -> list[Tensor]:
    return [p.detach().clone() for model in (ppo.actor, ppo.critic) for p in model.parameters()]


def moved(ppo: PPO, before: list[Tensor]) -> bool:
    return any(not torch.equal(p, b) for p, b in zip(weights(ppo), before, strict=True))


# ---------------------------------------------------------------------- returns


@pytest.mark.parametrize("end", [None, 0])
def test_returns_of_steps_filled_by_hand(end: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    ppo = make_ppo(1, 3, gamma=GAMMA, lam=LAM, normalize_advantage_per_mini_batch=True)
    obs, rewards, values, last = make_obs(1), [1.0, 2.0, 3.0], [0.5, 1.0, 1.5], 2.0
    for t in range(3):
        step = transition(ppo, obs, rewards=torch.tensor([rewards[t]]), values=torch.tensor([[values[t]]]))
        step.dones = torch.tensor([float(t == end)])
        ppo.storage.add_transition(step)
    monkeypatch.setattr(ppo.critic, "forward", lambda *_a, **_k: torch.tensor([[last]]))
    ppo.compute_returns(obs)
    following, advantage, expected = [*values[1:], last], 0.0, []
    for t in (2, 1, 0):
        goes_on = float(t != end)
        delta = rewards[t] + goes_on * GAMMA * following[t] - values[t]
        advantage = delta + goes_on * GAMMA * LAM * advantage
        expected.append(advantage + values[t])
    torch.testing.assert_close(ppo.storage.returns.flatten(), torch.tensor(expected[::-1]))
    advantages = (ppo.storage.returns - ppo.storage.values).flatten()
    torch.testing.assert_close(ppo.storage.advantages.flatten(), advantages)


def test_advantages_are_normalised_over_the_rollout() -> None:
    ppo = make_ppo()
    run(ppo)
    advantages = ppo.storage.advantages.flatten()
    assert abs(float(advantages.mean())) < 1e-5
    assert float(advantages.std()) == pytest.approx(1.0, abs=1e-4)


# ---------------------------------------------------------------------- time limits


@pytest.mark.filterwarnings("ignore:the value after a time limit")
def test_t02_without_final_observations_v_of_the_present_stands_in() -> None:
    ppo, obs = make_ppo(), make_obs()
    ppo.act(obs)
    values = ppo.transition.values.clone()
    time_outs = torch.tensor([1.0, 0, 0, 0])
    ppo.process_env_step(make_obs(), torch.ones(NUM_ENVS), torch.ones(NUM_ENVS), {"time_outs": time_outs})
    expected = 1 + ppo.gamma * values.squeeze(-1) * time_outs
    torch.testing.assert_close(ppo.storage.rewards[0].squeeze(-1), expected)


def test_t02_that_it_is_an_approximation_is_said_once() -> None:
    ppo = make_ppo()
    with pytest.warns(SurefootWarning, match="final_observations") as said:
        run(ppo, {"time_outs": torch.zeros(NUM_ENVS)})
    assert len(said) == 1


@pytest.mark.parametrize("key", ["final_observations", "terminal_obs", "time_out_bootstrap_obs"])
@pytest.mark.parametrize("memory", [None, "gru"])
def test_c01_t02_a_final_observation_is_valued_exactly(key: str, memory: str | None) -> None:
    ppo = make_ppo(memory=memory, normalize_advantage_per_mini_batch=True)
    obs, final = make_obs(), make_obs()
    with torch.inference_mode():
        for _ in range(2):  # the memory has something in it
            ppo.act(obs)
            state = ppo.critic.get_hidden_state()
            dones = torch.tensor([1.0, 1, 0, 0])
            extras = {"time_outs": torch.tensor([True, False, False, False]), key: final}
            ppo.process_env_step(make_obs(), torch.ones(NUM_ENVS), dones, extras)
    ppo.critic.reset(hidden_state=state)
    with torch.no_grad():
        expected = 1 + ppo.gamma * ppo.critic(final).squeeze(-1) * torch.tensor([1.0, 0, 0, 0])
    torch.testing.assert_close(ppo.storage.rewards[1].squeeze(-1), expected)
    assert ppo.storage.dones[1].flatten().tolist() == [1, 1, 0, 0]


def test_a_final_observation_without_what_the_critic_reads_is_refused() -> None:
    ppo = make_ppo()
    ppo.act(make_obs())
    extras = {"time_outs": torch.ones(NUM_ENVS), "terminal_obs": {"other": torch.zeros(NUM_ENVS, 2)}}
    with pytest.raises(EnvContractError, match=r"lack the groups \['policy'\]"):
        ppo.process_env_step(make_obs(), torch.ones(NUM_ENVS), torch.ones(NUM_ENVS), extras)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32, torch.uint8])
@pytest.mark.parametrize("is_column", [False, True])
def test_t06_c22_only_truncated_environments_whatever_the_type(dtype: torch.dtype, is_column: bool) -> None:
    ppo = make_ppo()
    ppo.act(make_obs())
    final = TensorDict({"policy": torch.full((NUM_ENVS, 6), torch.nan)}, [NUM_ENVS])
    final["policy"][0] = 0.5
    shape = (NUM_ENVS, 1) if is_column else (NUM_ENVS,)
    time_outs, dones = torch.tensor([1, 0, 0, 0]).to(dtype), torch.tensor([1, 1, 0, 0]).to(dtype)
    extras = {"time_outs": time_outs.view(shape), "final_observations": final}
    ppo.process_env_step(make_obs(), torch.zeros(shape), dones.view(shape), extras)
    stored = ppo.storage.rewards[0].squeeze(-1)
    with torch.no_grad():
        value = ppo.critic(TensorDict({"policy": final["policy"][:1]}, [1]))
    assert stored[0].item() == pytest.approx(ppo.gamma * value.item(), rel=1e-5, abs=1e-6)
    assert stored[1:].tolist() == [0.0, 0.0, 0.0]


# ---------------------------------------------------------------------- what is stored


def test_c02_an_environment_may_write_over_its_observations() -> None:
    ppo, obs = make_ppo(), TensorDict({"policy": torch.zeros(NUM_ENVS, 6)}, [NUM_ENVS])
    for t in range(3):
        ppo.act(obs)
        obs["policy"].fill_(t + 1)
        ppo.process_env_step(obs, torch.zeros(NUM_ENVS), torch.zeros(NUM_ENVS), {})
    assert ppo.storage.observations["policy"][:3, 0, 0].tolist() == [0.0, 1.0, 2.0]


def test_c23_groups_that_nothing_reads_are_not_stored() -> None:
    obs = make_obs(policy=6, camera=500)
    env = type("Env", (), {"num_envs": NUM_ENVS, "num_actions": NUM_ACTIONS})()
    cfg = {
        "num_steps_per_env": NUM_STEPS,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "algorithm": {"class_name": "PPO"},
        "actor": {"class_name": "MLPModel", "hidden_dims": [8], "distribution_cfg": dict(GAUSSIAN)},
        "critic": {"class_name": "MLPModel", "hidden_dims": [8]},
    }
    before = copy.deepcopy({k: v for k, v in cfg.items() if k != "obs_groups"})
    ppo = PPO.construct_algorithm(obs, env, cfg, "cpu")
    assert list(ppo.storage.observations.keys()) == ["policy"]
    assert {k: v for k, v in cfg.items() if k != "obs_groups"} == before


# ---------------------------------------------------------------------- learning


@pytest.mark.parametrize("memory", [None, "gru", "lstm"])
def test_update_learns_and_gives_rsl_rls_losses(memory: str | None) -> None:
    ppo = make_ppo(memory=memory)
    before = weights(ppo)
    for _ in range(2):
        run(ppo, dones=torch.tensor([0.0, 1, 0, 0]))
        losses = ppo.update()
    assert {"value", "surrogate", "entropy", "kl", "grad_norm"} <= losses.keys()
    assert all(isinstance(x, float) for x in losses.values())
    assert moved(ppo, before)
    assert ppo.storage.step == 0
    assert ppo.metrics["Data/samples_used"] == NUM_ENVS * NUM_STEPS


@pytest.mark.parametrize("memory", [None, "gru", "lstm"])
def test_the_first_mini_batch_sees_what_was_collected(memory: str | None) -> None:
    ppo = make_ppo(memory=memory, num_learning_epochs=1, num_mini_batches=1)
    for _ in range(2):  # in the second rollout the memories start from something
        run(ppo, dones=torch.tensor([0.0, 1, 0, 0]))
        losses = ppo.update()
        assert abs(losses["kl"]) < 1e-6
        assert losses["clip_fraction"] == 0


@pytest.mark.parametrize("memory", [None, "gru"])
def test_c06_in_low_precision_the_first_ratio_is_one(memory: str | None) -> None:
    ppo = make_ppo(memory=memory, use_mixed_precision=True, num_learning_epochs=1, num_mini_batches=1)
    run(ppo)
    losses = ppo.update()
    assert abs(losses["kl"]) < 1e-4
    assert abs(losses["surrogate"]) < 0.05
    assert all(torch.isfinite(x).all() for x in weights(ppo))
    assert make_ppo(use_mixed_precision="auto").use_mixed_precision is False


@pytest.mark.parametrize("memory", [None, "gru"])
def test_c07_uneven_mini_batches_use_every_row(memory: str | None) -> None:
    ppo = make_ppo(5, 7, memory, num_mini_batches=3)
    seen: list[Tensor] = []
    learn = ppo.engine._learn_from

    def watched(batch: Any) -> Any:
        seen.append(batch.index if batch.mask is None else batch.index[batch.mask])
        return learn(batch)

    ppo.engine._learn_from = watched  # pyright: ignore[reportAttributeAccessIssue]
    run(ppo)
    ppo.update()
    orders = [torch.cat([x.flatten() for x in seen[3 * e : 3 * e + 3]]) for e in range(2)]
    assert all(sorted(order.tolist()) == list(range(35)) for order in orders)
    assert not torch.equal(*orders)  # C8: a new order each epoch


def test_more_mini_batches_than_environments_cut_shorter_sequences() -> None:
    ppo = make_ppo(2, 12, "gru", num_mini_batches=4)
    before = weights(ppo)
    for _ in range(2):
        run(ppo)
        assert torch.isfinite(torch.tensor(list(ppo.update().values()))).all()
    assert moved(ppo, before)


def test_c09_an_infinite_reward_does_not_destroy_the_weights() -> None:
    ppo, obs = make_ppo(), make_obs()
    before = weights(ppo)
    for t in range(NUM_STEPS):
        ppo.act(obs)
        rewards = torch.full((NUM_ENVS,), torch.inf if t == 3 else 0.0)
        ppo.process_env_step(obs, rewards, torch.zeros(NUM_ENVS), {})
    ppo.compute_returns(obs)
    losses = ppo.update()
    assert losses["skipped_updates"] == 4
    assert not moved(ppo, before)
    run(ppo)
    assert ppo.update()["skipped_updates"] == 0
    assert moved(ppo, before)


def test_c17_one_environment_and_one_step_are_enough() -> None:
    ppo = make_ppo(1, 1, num_mini_batches=4)
    run(ppo)
    losses = ppo.update()
    assert losses["skipped_updates"] == 0
    assert all(torch.isfinite(x).all() for x in weights(ppo))


def test_c21_a_rate_above_the_bound_is_not_cut_by_the_first_increase() -> None:
    ppo = make_ppo(schedule="adaptive", desired_kl=10.0, learning_rate=0.02, num_learning_epochs=1)
    run(ppo)
    ppo.update()
    assert ppo.learning_rate == pytest.approx(0.02, rel=1e-5)


def with_shared_encoders() -> tuple[PPO, TensorDict]:
    obs = TensorDict({"policy": torch.randn(2, 3), "image": torch.randn(2, 1, 8, 8)}, [2])
    groups = {"actor": ["policy", "image"], "critic": ["policy", "image"]}
    options: dict[str, Any] = {
        "hidden_dims": [8],
        "cnn_cfg": {"output_channels": [2], "kernel_size": 3, "stride": 2},
    }
    actor = CNNModel(obs, groups, "actor", NUM_ACTIONS, distribution_cfg=dict(GAUSSIAN), **options)
    critic = CNNModel(obs, groups, "critic", 1, hidden_dims=[8], cnns=actor.cnns)
    storage = RolloutStorage("rl", 2, 4, obs, [NUM_ACTIONS])
    ppo = PPO(actor, critic, storage, optimizer="sgd", schedule="fixed", num_learning_epochs=1,
              num_mini_batches=1, learning_rate=1.0, max_grad_norm=1e9)  # fmt: skip
    return ppo, obs


def test_c04_shared_encoders_are_stepped_once() -> None:
    ppo, obs = with_shared_encoders()
    shared = next(p for name, p in ppo.actor.named_parameters() if name.startswith("cnns"))
    assert len([p for p in ppo.engine.optimizer.flat_parameters if p is shared]) == 1
    for _ in range(4):
        ppo.act(obs)
        ppo.process_env_step(obs, torch.randn(2), torch.zeros(2), {})
    ppo.compute_returns(obs)
    before, gradients = shared.detach().clone(), []
    shared.register_hook(lambda g: gradients.append(g.clone()))
    ppo.update()
    torch.testing.assert_close(before - shared, torch.stack(gradients).sum(0), rtol=1e-4, atol=1e-6)


def test_settings_may_change_between_iterations() -> None:
    ppo = make_ppo(optimizer="sgd", num_learning_epochs=1, num_mini_batches=1)
    run(ppo)
    ppo.update()
    ppo.entropy_coef, ppo.gamma, ppo.num_learning_epochs = 0.5, 0.5, 3
    ppo.learning_rate = 0.125
    assert ppo.learning_rate == 0.125
    run(ppo)
    ppo.update()
    assert ppo.engine.entropy_coef == 0.5
    assert ppo.storage.gamma == 0.5
    assert ppo.engine.optimizer.num_updates == 3
    assert ppo.optimizer.param_groups[0]["lr"] == 0.125
    ppo.optimizer.param_groups[0]["lr"] = 0.25
    assert ppo.learning_rate == 0.25


@pytest.mark.parametrize("memory", [None, "lstm"])
def test_the_one_policy_of_older_releases_shows_both_models(memory: str | None) -> None:
    ppo = make_ppo(memory=memory)
    policy, obs = ppo.policy, make_obs()
    assert ppo.actor_critic is policy
    assert policy.actor is ppo.actor.mlp
    assert policy.is_recurrent is bool(memory)
    expected = ppo.get_policy()(obs)
    ppo.actor.reset()
    assert torch.equal(policy.act_inference(obs), expected)


def test_an_older_policy_is_taken_apart() -> None:
    obs = make_obs()
    policy = ActorCritic(
        obs, {"policy": ["policy"], "critic": ["policy"]}, NUM_ACTIONS, actor_hidden_dims=[8]
    )
    ppo = PPO(policy, num_learning_epochs=1, num_mini_batches=2)
    ppo.init_storage("rl", NUM_ENVS, NUM_STEPS, obs, [NUM_ACTIONS])
    before = policy.std.detach().clone()
    run(ppo)
    ppo.update()
    assert ppo.policy is policy
    assert not torch.equal(policy.std, before)


def test_an_actor_without_distribution_is_refused() -> None:
    obs = make_obs()
    models = [MLPModel(obs, GROUPS, name, n) for name, n in (("actor", NUM_ACTIONS), ("critic", 1))]
    with pytest.raises(ConfigError, match="distribution_cfg"):
        PPO(*models, RolloutStorage("rl", NUM_ENVS, NUM_STEPS, obs, [NUM_ACTIONS]))


def test_a_recurrent_class_that_would_be_passed_by_is_refused() -> None:
    class Doubled(RNNModel):
        def get_latent(self, *args: Any, **kwargs: Any) -> Tensor:
            return 2 * super().get_latent(*args, **kwargs)

    obs = make_obs()
    actor = Doubled(obs, GROUPS, "actor", NUM_ACTIONS, distribution_cfg=dict(GAUSSIAN))
    critic = make_models(obs)[1]
    with pytest.raises(ConfigError, match="Doubled has a get_latent of its own"):
        PPO(actor, critic, RolloutStorage("rl", NUM_ENVS, NUM_STEPS, obs, [NUM_ACTIONS]))


def test_a_feed_forward_class_of_the_clients_own_is_called() -> None:
    class Doubled(MLPModel):
        calls = 0

        def get_latent(self, *args: Any, **kwargs: Any) -> Tensor:
            Doubled.calls += 1
            return 2 * super().get_latent(*args, **kwargs)

    obs = make_obs()
    actor = Doubled(obs, GROUPS, "actor", NUM_ACTIONS, distribution_cfg=dict(GAUSSIAN))
    ppo = PPO(actor, make_models(obs)[1], RolloutStorage("rl", NUM_ENVS, NUM_STEPS, obs, [NUM_ACTIONS]),
              num_learning_epochs=1, num_mini_batches=1)  # fmt: skip
    run(ppo)
    calls = Doubled.calls
    assert abs(ppo.update()["kl"]) < 1e-6
    assert Doubled.calls == calls + 1


# ---------------------------------------------------------------------- a learning loop of the client's own


class OwnLoop(PPO):
    """Learns as RSL-RL's forks do, by what the layer shows of itself."""

    def update(self) -> dict[str, float]:
        total = 0.0
        for batch in self.storage.mini_batch_generator(self.num_mini_batches, self.num_learning_epochs):
            self.actor(batch.observations, stochastic_output=True)
            log_prob = self.actor.get_output_log_prob(batch.actions)
            ratio = (log_prob - batch.old_actions_log_prob.squeeze(-1)).exp()
            value = self.critic(batch.observations)
            loss = -(ratio * batch.advantages.squeeze(-1)).mean() + (value - batch.returns).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.actor.parameters(), self.max_grad_norm or 1.0)
            self.optimizer.step()
            total += loss.item()
        self.storage.clear()
        return {"loss": total}


def test_a_loop_of_the_clients_own_steps_as_torchs_optimiser_would() -> None:
    obs = make_obs()
    actor, critic = make_models(obs)
    storage = RolloutStorage("rl", NUM_ENVS, NUM_STEPS, obs, [NUM_ACTIONS])
    ppo = OwnLoop(actor, critic, storage, num_mini_batches=1, num_learning_epochs=3, learning_rate=0.01)
    twins = copy.deepcopy(actor), copy.deepcopy(critic)
    reference = torch.optim.Adam([*twins[0].parameters(), *twins[1].parameters()], lr=0.01)
    step, gradients = ppo.optimizer.step, []

    def recorded() -> None:
        gradients.append(
            [p.grad.clone() for m in (actor, critic) for p in m.parameters() if p.grad is not None]
        )
        step()

    ppo.optimizer.step = recorded  # pyright: ignore[reportAttributeAccessIssue]
    run(ppo)
    ppo.update()
    assert len(gradients) == 3
    for given in gradients:
        for p, g in zip([*twins[0].parameters(), *twins[1].parameters()], given, strict=True):
            p.grad = g
        reference.step()
    for mine, theirs in ((actor, twins[0]), (critic, twins[1])):
        for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------- saving


def test_the_optimisers_state_is_torchs_parameter_by_parameter() -> None:
    ppo = make_ppo()
    run(ppo)
    ppo.update()
    state = ppo.optimizer.state_dict()
    reference = torch.optim.Adam([*ppo.actor.parameters(), *ppo.critic.parameters()])
    reference.load_state_dict(copy.deepcopy(state))
    for p in [*ppo.actor.parameters(), *ppo.critic.parameters()]:
        assert reference.state[p]["exp_avg"].shape == p.shape
        assert reference.state[p]["step"] == 4
    other = make_ppo()
    other.optimizer.load_state_dict(reference.state_dict())
    again = other.optimizer.state_dict()
    for i, entry in state["state"].items():
        assert all(torch.equal(x, again["state"][i][name]) for name, x in entry.items())


def test_the_optimisers_state_of_shared_encoders_is_torchs_too() -> None:
    ppo, _ = with_shared_encoders()
    parameters = [*ppo.actor.parameters(), *ppo.critic.parameters()]
    assert len({*parameters}) < len(parameters)
    with pytest.warns(UserWarning, match="duplicate parameters"):  # RSL-RL's has them
        reference = torch.optim.SGD(parameters, lr=0.5, momentum=0.9)
    assert (
        ppo.optimizer.state_dict()["param_groups"][0]["params"]
        == (reference.state_dict()["param_groups"][0]["params"])
    )
    ppo.optimizer.load_state_dict(reference.state_dict())
    assert ppo.learning_rate == 0.5
    reference.load_state_dict(ppo.optimizer.state_dict())


@pytest.mark.parametrize("memory", [None, "gru"])
def test_c10_a_loaded_run_goes_on_bit_for_bit(memory: str | None) -> None:
    def go_on(ppo: PPO) -> list[Tensor]:
        torch.manual_seed(5)
        for _ in range(2):
            run(ppo)
            ppo.update()
        return weights(ppo)

    torch.manual_seed(0)
    first = make_ppo(memory=memory, schedule="adaptive")
    run(first)
    first.update()
    saved = copy.deepcopy(first.save())
    for model in (first.actor, first.critic):
        model.reset()  # as in a new process, where the environments start anew
    torch.manual_seed(1)
    second = make_ppo(memory=memory, schedule="adaptive")
    assert second.load(saved, None, strict=True)
    assert second.learning_rate == first.learning_rate
    for a, b in zip(go_on(first), go_on(second), strict=True):
        assert torch.equal(a, b)


def test_parts_of_a_checkpoint_are_taken_as_asked() -> None:
    first, second = make_ppo(), make_ppo()
    run(first)
    first.update()
    critic = [p.detach().clone() for p in second.critic.parameters()]
    assert not second.load(first.save(), {"actor": True}, strict=True)
    assert all(
        torch.equal(p, q) for p, q in zip(first.actor.parameters(), second.actor.parameters(), strict=True)
    )
    assert all(torch.equal(p, q) for p, q in zip(critic, second.critic.parameters(), strict=True))


def test_a_checkpoint_of_another_width_names_the_layer_and_both_shapes() -> None:
    obs, ppo = make_obs(), make_ppo()
    actor, critic = make_models(obs, hidden_dims=[32])
    other = PPO(actor, critic, RolloutStorage("rl", NUM_ENVS, NUM_STEPS, obs, [NUM_ACTIONS]))
    before = weights(ppo)
    with pytest.raises(CheckpointError, match=r"mlp\.0\.weight.*32, 6.*16, 6"):
        ppo.load(other.save(), None, strict=True)
    assert not moved(ppo, before)


def test_an_optimiser_of_other_networks_is_refused_before_anything_is_loaded() -> None:
    obs, ppo, source = make_obs(), make_ppo(), make_ppo()
    actor, critic = make_models(obs, hidden_dims=[8, 8])
    other = PPO(actor, critic, RolloutStorage("rl", NUM_ENVS, NUM_STEPS, obs, [NUM_ACTIONS]))
    before = weights(ppo)
    saved = {**source.save(), "optimizer_state_dict": other.save()["optimizer_state_dict"]}
    with pytest.raises(CheckpointError, match="load_cfg without 'optimizer'"):
        ppo.load(saved, None, strict=True)
    assert moved(source, before), "they would have been loaded"
    assert not moved(ppo, before)


def test_a_learning_loop_of_the_clients_own_finds_what_rsl_rl_has():
    class Own(PPO):
        def update(self):
            kept = self.storage.saved_hidden_state_a, self.storage.saved_hidden_state_c
            self.critic.reset()
            loss = self.critic(self.storage.observations[0]).pow(2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            gradient = [p.grad.clone() for p in self.critic.parameters() if p.grad is not None]
            self.reduce_parameters()  # of one process: they stay
            after = [p.grad for p in self.critic.parameters() if p.grad is not None]
            assert all(torch.equal(a, b) for a, b in zip(gradient, after, strict=True))
            return {"kept": kept, "is_raw": self._raw_actor is self.actor and self._raw_critic is self.critic}

    for memory, parts in ((None, None), ("gru", 1), ("lstm", 2)):
        obs = make_obs()
        storage = RolloutStorage("rl", NUM_ENVS, NUM_STEPS, obs, [NUM_ACTIONS])
        ppo = Own(*make_models(obs, memory), storage)
        run(ppo)
        found = ppo.update()
        assert found["is_raw"]
        for rows in found["kept"]:
            assert (rows and len(rows)) == parts
            assert parts is None or all(x.shape == (NUM_STEPS, 1, NUM_ENVS, 8) for x in rows)


@pytest.mark.filterwarnings("ignore:the value after a time limit")
@pytest.mark.parametrize("way", ["in place", "whole"])
def test_rewards_that_a_client_writes_into_the_storage_count(way: str) -> None:
    extras = {"time_outs": torch.ones(NUM_ENVS)}
    dones = torch.tensor([1.0, 0, 0, 0])

    class Own(PPO):
        def compute_returns(self, obs: Any) -> None:
            if way == "in place":
                self.storage.rewards[2] += 1.0
            else:
                self.storage.rewards = self.storage.rewards + torch.eye(NUM_STEPS)[2].view(-1, 1, 1)
            super().compute_returns(obs)

    class BySteps(PPO):
        def process_env_step(self, obs: Any, rewards: Any, dones: Any, extras: Any) -> None:
            super().process_env_step(obs, rewards + float(self.storage.step == 2), dones, extras)

    returns = []
    for kind in (Own, BySteps):
        torch.manual_seed(0)
        obs = make_obs()
        storage = RolloutStorage("rl", NUM_ENVS, NUM_STEPS, obs, [NUM_ACTIONS])
        ppo = kind(*make_models(obs), storage)
        for _ in range(2):
            run(ppo, extras, dones)
            returns.append(ppo.storage.returns.clone())
            ppo.storage.clear()
    torch.testing.assert_close(returns[:2], returns[2:])
