"""The seams of PPO: what nothing changes, the order of calls, rows that are added, and broken extensions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.extension import Extension
from surefoot.algorithm.ppo import PPO
from surefoot.algorithm.rollout_storage import RolloutStorage
from surefoot.errors import CheckpointError
from surefoot.extensions.auxiliary import AuxiliaryPrediction
from surefoot.extensions.reward_scaling import RewardScaling
from surefoot.networks.actor_critic import ActorCritic
from surefoot.testing.extension_suite import _train, check_extension, make_ppo
from surefoot.types import Batch, EnvSpec, PolicyOutput


def weights(*extensions: Extension, iterations: int = 2) -> dict[str, Tensor]:
    trained = _train(make_ppo(*extensions), iterations)
    return {k: v for k, v in trained.items() if not k.startswith("extensions.")}


def assert_equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


# ---------------------------------------------------------------------- what nothing and something do


class Neutral(Extension):
    """Implements every method so that nothing changes."""

    def setup(self, spec: EnvSpec, policy: ActorCritic) -> None:
        self.register_buffer("unused", torch.zeros(3))
        torch.rand(5)  # the global stream belongs to nobody

    def prepare(self, rollout: RolloutStorage, policy: ActorCritic) -> None:
        rollout.next_observations["policy"].sum()
        policy.value(rollout.observations)

    def reward(self, rollout: RolloutStorage, reward: Tensor) -> Tensor:
        return reward * 1.0

    def advantage(self, rollout: RolloutStorage, advantage: Tensor) -> Tensor:
        return advantage + 0.0

    def augment(self, batch: Batch, policy: ActorCritic) -> Batch:
        assert set(batch.observations) == {"policy", "privileged"}
        return batch

    def loss(self, batch: Batch, out: PolicyOutput, policy: ActorCritic) -> dict[str, Tensor]:
        return {"Neutral/zero": out.value.sum() * 0.0}


@pytest.mark.parametrize("extensions", [[Extension], [Extension, Extension]])
def test_an_inert_extension_equals_none_bit_for_bit(extensions: list[type[Extension]]) -> None:
    assert_equal(weights(), weights(*(kind() for kind in extensions)))


@pytest.mark.parametrize("extensions", [[Neutral], [Extension, Neutral, Extension]])
def test_an_extension_that_adds_nothing_changes_nothing_but_rounding(
    extensions: list[type[Extension]],
) -> None:
    plain, extended = weights(), weights(*(kind() for kind in extensions))
    for name, tensor in plain.items():
        torch.testing.assert_close(tensor, extended[name], rtol=1e-4, atol=1e-5)


class Reader(Extension):
    """Reads every group, and so has the final observations of terminated rows kept."""

    def observation_groups(self) -> tuple[str, ...]:
        return ("policy", "privileged")

    def prepare(self, rollout: RolloutStorage, policy: ActorCritic) -> None:
        known = rollout.next_known
        assert known[rollout.terminated | rollout.truncated].all()
        assert rollout.next_observations["privileged"][known].isfinite().all()


def test_reading_more_of_the_rollout_changes_nothing_but_rounding() -> None:
    plain, reading = weights(), weights(Reader())
    for name, tensor in plain.items():
        torch.testing.assert_close(tensor, reading[name], rtol=1e-4, atol=1e-5)


class Recorder(Extension):
    """Writes down each call."""

    def __init__(self, name: str, calls: list[str]) -> None:
        super().__init__()
        self.name, self.calls = name, calls

    def setup(self, spec: EnvSpec, policy: ActorCritic) -> None:
        self.calls.append(f"{self.name}.setup")

    def prepare(self, rollout: RolloutStorage, policy: ActorCritic) -> None:
        self.calls.append(f"{self.name}.prepare")

    def reward(self, rollout: RolloutStorage, reward: Tensor) -> Tensor:
        self.calls.append(f"{self.name}.reward")
        return reward

    def advantage(self, rollout: RolloutStorage, advantage: Tensor) -> Tensor:
        self.calls.append(f"{self.name}.advantage")
        return advantage

    def augment(self, batch: Batch, policy: ActorCritic) -> Batch:
        self.calls.append(f"{self.name}.augment")
        return batch

    def loss(self, batch: Batch, out: PolicyOutput, policy: ActorCritic) -> dict[str, Tensor]:
        self.calls.append(f"{self.name}.loss")
        return {}

    def learn(self, rollout: RolloutStorage) -> dict[str, Tensor]:
        self.calls.append(f"{self.name}.learn")
        return {}


def test_the_order_of_calls() -> None:
    calls: list[str] = []
    ppo = make_ppo(Recorder("a", calls), Recorder("b", calls))
    assert calls == ["a.setup", "b.setup"]
    calls.clear()
    _train(ppo, 1)
    once = [f"{n}.{m}" for m in ("prepare", "reward", "advantage") for n in "ab"]
    batch = [f"{n}.{m}" for m in ("augment", "loss") for n in "ab"]
    assert calls == once + batch * 6 + ["a.learn", "b.learn"]  # 2 epochs of 3 mini-batches


class Affine(Extension):
    """Rewards times a factor plus a constant."""

    def __init__(self, factor: float, constant: float) -> None:
        super().__init__()
        self.factor, self.constant = factor, constant

    def reward(self, rollout: RolloutStorage, reward: Tensor) -> Tensor:
        return self.factor * reward + self.constant


def test_rewards_are_folded_in_list_order() -> None:
    def folded(*extensions: Extension) -> Tensor:
        ppo = make_ppo(*extensions)
        _train(ppo, 1)
        return ppo.reward

    raw = folded()
    torch.testing.assert_close(folded(Affine(2, 0), Affine(1, 3)), 2 * raw + 3)
    torch.testing.assert_close(folded(Affine(1, 3), Affine(2, 0)), 2 * (raw + 3))


def test_the_stored_reward_stays_the_environments() -> None:
    plain, scaled = make_ppo(), make_ppo(Affine(100, 0))
    for ppo in (plain, scaled):
        _train(ppo, 1)
    assert torch.equal(plain.storage.rewards, scaled.storage.rewards)


class Constant(Extension):
    """An advantage of its own, added after GAE."""

    def advantage(self, rollout: RolloutStorage, advantage: Tensor) -> Tensor:
        return advantage + rollout.actions[..., 0]


def test_an_advantage_is_added_before_normalisation_and_is_not_what_the_critic_learns() -> None:
    ppo = make_ppo(Constant())
    _train(ppo, 1)
    rollout = ppo.storage
    raw = rollout.returns - rollout.values[:-1] + rollout.actions[..., 0]
    torch.testing.assert_close(rollout.advantages, (raw - raw.mean()) / raw.std(), rtol=1e-3, atol=1e-3)


class PullValue(Extension):
    """A loss of its own: values towards a number."""

    def loss(self, batch: Batch, out: PolicyOutput, policy: ActorCritic) -> dict[str, Tensor]:
        return {"Pull/value": 100 * (out.value - 7).square().mean()}


def test_a_loss_is_added_and_logged() -> None:
    ppo = make_ppo(PullValue())
    obs = {"policy": torch.zeros(6, 5), "privileged": torch.zeros(6, 4)}
    before = (ppo.policy.value(obs) - 7).abs().mean()
    _train(ppo, 8)
    assert (ppo.policy.value(obs) - 7).abs().mean() < before
    with pytest.raises(AssertionError, match="not finite"):
        check_extension(NotFinite, two_processes=False)


class One(Extension):
    """A loss that is 1 whatever the policy does."""

    def loss(self, batch: Batch, out: PolicyOutput, policy: ActorCritic) -> dict[str, Tensor]:
        return {"Own/one": torch.ones(())}


def test_of_two_losses_of_one_name_the_sum_is_logged() -> None:
    ppo = make_ppo(One(), One())
    logged: list[dict[str, Tensor]] = []
    update = ppo.update
    ppo.update = lambda: logged.append(update()) or logged[-1]  # type: ignore[method-assign,func-returns-value]
    _train(ppo, 1)
    assert logged[0]["Own/one"] == 2


class NotFinite(Extension):
    """A reward that is not a number."""

    def reward(self, rollout: RolloutStorage, reward: Tensor) -> Tensor:
        return reward * float("nan")


# ---------------------------------------------------------------------- rows that are added


class Symmetry(Extension):
    """Adds the mirror image of each sampled row, as data augmentation does."""

    def setup(self, spec: EnvSpec, policy: ActorCritic) -> None:
        assert spec.mirror is not None
        self.map = spec.mirror

    def observation_groups(self) -> tuple[str, ...]:
        return tuple(self.map.observations)

    def augment(self, batch: Batch, policy: ActorCritic) -> Batch:
        n = batch.num_sampled
        mirrored = self.map.mirror_observations({g: x[:n] for g, x in batch.observations.items()})
        return batch.append(mirrored, self.map.mirror_actions(batch.actions[:n]), torch.arange(n))


class Far(Extension):
    """Adds rows that are far from anything sampled."""

    def augment(self, batch: Batch, policy: ActorCritic) -> Batch:
        source = torch.arange(4)
        far = {g: torch.full_like(x[:4], 50.0) for g, x in batch.observations.items()}
        return batch.append(far, torch.full_like(batch.actions[:4], 9.0), source)


class Inspect(Extension):
    """Looks at the grown batch."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[Batch] = []
        self.outs: list[PolicyOutput] = []

    def loss(self, batch: Batch, out: PolicyOutput, policy: ActorCritic) -> dict[str, Tensor]:
        self.batches.append(batch)
        self.outs.append(out)
        return {}


def one_step(*extensions: Extension, **changes: Any) -> tuple[PPO, dict[str, Tensor]]:
    """One iteration of one mini-batch, whose metrics describe the policy before the step."""
    ppo = make_ppo(*extensions)
    config = dataclasses.replace(ppo.config, num_mini_batches=1, num_learning_epochs=2, **changes)
    ppo = PPO(ppo.policy, ppo.spec, config, num_steps_per_env=8, extensions=extensions)
    seen: dict[str, Tensor] = {}
    update = ppo.update
    ppo.update = lambda: seen.update(update()) or seen  # type: ignore[method-assign]
    _train(ppo, 1)
    return ppo, seen


def test_added_rows_keep_the_old_numbers_of_their_source() -> None:
    inspect = Inspect()
    one_step(Symmetry(), inspect)
    for batch in inspect.batches:
        n = batch.num_sampled
        assert n == 48
        assert batch.actions.shape == (96, 2)
        for name in ("old_log_prob", "old_value", "advantage", "returns", "index"):
            x = getattr(batch, name)
            assert torch.equal(x[:n], x[n:]), name
        for x in batch.old_distribution.values():
            assert torch.equal(x[:n], x[n:])
        # mirrored: the two actions change places
        assert torch.equal(batch.actions[n:], batch.actions[:n].flip(-1))
        assert torch.equal(
            batch.observations["policy"][n:, :2], batch.observations["policy"][:n, :2].flip(-1)
        )


def test_added_rows_are_normalised_like_the_sampled_ones() -> None:
    inspect = Inspect()
    ppo, _ = one_step(Symmetry(), inspect)
    fresh = make_ppo()
    fresh.policy.load_state_dict(ppo.policy.state_dict())
    for batch in inspect.batches:
        assert {x.shape[0] for x in batch.inputs.values()} == {96}
    # the statistics of the second iteration, which are not those of the start
    inspect.batches.clear()
    _train(ppo, 1, data_seed=5)
    batch, out = inspect.batches[0], inspect.outs[-len(inspect.batches)]
    with torch.no_grad():
        again = fresh.policy(dict(batch.observations.items()), batch.actions)
    torch.testing.assert_close(out.value.detach(), again.value, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(out.log_prob.detach(), again.log_prob, rtol=1e-4, atol=1e-4)


def test_kl_entropy_and_clip_fraction_are_those_of_the_sampled_rows() -> None:
    # rows that are far away would make a KL of thousands and a clip fraction of their share
    for schedule in ("fixed", "adaptive"):
        _, plain = one_step(schedule=schedule, learning_rate=1e-12)
        _, grown = one_step(Far(), schedule=schedule, learning_rate=1e-12)
        for name in ("Loss/kl", "Loss/clip_fraction", "Loss/entropy", "Loss/learning_rate"):
            assert grown[name].item() == pytest.approx(plain[name].item(), abs=1e-6), name
        assert grown["Loss/surrogate"].item() != plain["Loss/surrogate"].item()


def test_added_rows_are_trained_on() -> None:
    with_rows, without = weights(Symmetry()), weights()
    assert any(not torch.equal(with_rows[k], without[k]) for k in without)


def test_several_extensions_may_add_rows() -> None:
    inspect = Inspect()
    one_step(Symmetry(), Far(), inspect)
    assert {b.actions.shape[0] for b in inspect.batches} == {48 + 48 + 4}
    assert {b.num_sampled for b in inspect.batches} == {48}


# ---------------------------------------------------------------------- the contract suite


def test_our_extensions_pass_the_contract_suite() -> None:
    # one of them with two processes: the others are checked so in test_distributed.py
    check_extension(Neutral, two_processes=False)
    check_extension(Symmetry, two_processes=False)
    check_extension(RewardScaling, two_processes=False)
    check_extension(RewardScaling, two_processes=False, scale=0.1)
    check_extension(AuxiliaryPrediction, two_processes=False, target="privileged", stop=2)


class ChangesRewards(Extension):
    """Broken: doubles the stored rewards in place."""

    def reward(self, rollout: RolloutStorage, reward: Tensor) -> Tensor:
        rollout.rewards.mul_(2)
        return reward


class ChangesRewardsLate(Extension):
    """Broken: changes the stored rewards in `advantage`."""

    def advantage(self, rollout: RolloutStorage, advantage: Tensor) -> Tensor:
        rollout.rewards.mul_(2)
        return advantage


class ChangesActions(Extension):
    """Broken: clips the stored actions."""

    def prepare(self, rollout: RolloutStorage, policy: ActorCritic) -> None:
        rollout.actions.clamp_(-0.1, 0.1)


class ChangesValid(Extension):
    """Broken: drops rows."""

    def prepare(self, rollout: RolloutStorage, policy: ActorCritic) -> None:
        rollout.valid[0] = False


class ChangesObservationsOfTheBatch(Extension):
    """Broken: changes the sampled observations."""

    def augment(self, batch: Batch, policy: ActorCritic) -> Batch:
        batch.observations["policy"].mul_(2)
        return batch


class ReplacesSampledRows(Extension):
    """Broken: puts the added rows first."""

    def augment(self, batch: Batch, policy: ActorCritic) -> Batch:
        return dataclasses.replace(batch, advantage=batch.advantage.flip(0))


class CountsRowsAsSampled(Extension):
    """Broken: says that the added rows were sampled."""

    def augment(self, batch: Batch, policy: ActorCritic) -> Batch:
        n = batch.num_sampled
        grown = batch.append(dict(batch.observations.items()), batch.actions, torch.arange(n))
        return dataclasses.replace(grown, num_sampled=2 * n)


class PlainState(Extension):
    """Broken: keeps its state where no checkpoint finds it."""

    def __init__(self) -> None:
        super().__init__()
        self.iterations = 0

    def reward(self, rollout: RolloutStorage, reward: Tensor) -> Tensor:
        self.iterations += 1
        return reward + self.iterations * rollout.actions[..., 0]


class GlobalNoise(Extension):
    """Broken: draws from torch's global stream, which is not saved."""

    def reward(self, rollout: RolloutStorage, reward: Tensor) -> Tensor:
        return reward + torch.rand_like(reward)


class WrongShape(Extension):
    """Broken: one reward per environment."""

    def reward(self, rollout: RolloutStorage, reward: Tensor) -> Tensor:
        return reward.mean(0)


class WrongAdvantage(Extension):
    """Broken: an advantage with one dimension too many."""

    def advantage(self, rollout: RolloutStorage, advantage: Tensor) -> Tensor:
        return advantage.unsqueeze(-1)


class LossPerRow(Extension):
    """Broken: a loss that is no scalar."""

    def loss(self, batch: Batch, out: PolicyOutput, policy: ActorCritic) -> dict[str, Tensor]:
        return {"Aux/rows": out.value}


class UnnamedLoss(Extension):
    """Broken: a loss without a group in its name."""

    def loss(self, batch: Batch, out: PolicyOutput, policy: ActorCritic) -> dict[str, Tensor]:
        return {"rows": out.value.mean()}


class LateParameters(Extension):
    """Broken: makes its head after the optimiser was built, so that it never learns nor resumes."""

    def loss(self, batch: Batch, out: PolicyOutput, policy: ActorCritic) -> dict[str, Tensor]:
        if not hasattr(self, "head"):
            self.head = nn.Linear(out.actor_features.shape[-1], 1)
        return {"Aux/late": self.head(out.actor_features).square().mean()}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (ChangesRewards, "reward.*changed rewards"),
        (ChangesRewardsLate, "advantage.*changed rewards"),
        (ChangesActions, "prepare.*changed actions"),
        (ChangesValid, "prepare.*changed valid"),
        (ChangesObservationsOfTheBatch, "augment.*changed observations"),
        (ReplacesSampledRows, "augment.*changed advantage"),
        (CountsRowsAsSampled, "num_sampled"),
        (PlainState, "differs after saving and loading"),
        (GlobalNoise, "differs after saving and loading"),
        (WrongShape, r"reward.*shape \(6,\).*\(8, 6\)"),
        (WrongAdvantage, r"advantage.*shape \(8, 6, 1\)"),
        (LossPerRow, "Aux/rows.*scalar"),
        (UnnamedLoss, "'rows'.*log key"),
        (LateParameters, "head"),
    ],
)
def test_the_contract_suite_names_what_is_broken(kind: type[Extension], message: str) -> None:
    with pytest.raises((AssertionError, CheckpointError), match=message):
        check_extension(kind, two_processes=False)


class OwnHead(Extension):
    """A head that PPO's optimiser trains."""

    def setup(self, spec: EnvSpec, policy: ActorCritic) -> None:
        self.head = nn.Linear(policy.num_actor_features, 1)

    def policy_parameters(self) -> Iterable[nn.Parameter]:
        return self.head.parameters()

    def loss(self, batch: Batch, out: PolicyOutput, policy: ActorCritic) -> dict[str, Tensor]:
        return {"Own/loss": (self.head(out.actor_features) - 1).square().mean()}


def test_policy_parameters_are_trained_by_ppos_optimiser_and_clipped_on_their_own() -> None:
    extension = OwnHead()
    ppo = make_ppo(extension)
    before = extension.head.weight.detach().clone()
    _train(ppo, 1)
    assert not torch.equal(before, extension.head.weight)
    assert list(ppo.optimizer.parameters_by_segment) == ["actor", "critic", "extensions.0"]


def test_extensions_get_gamma_the_generator_and_the_mirror_through_the_spec() -> None:
    class Looks(Extension):
        def setup(self, spec: EnvSpec, policy: ActorCritic) -> None:
            self.seen = [spec]

    extension = Looks()
    ppo = make_ppo(extension)
    (spec,) = extension.seen
    assert spec.gamma == PPOConfig().gamma
    assert spec.generator is ppo.extension_generator
    assert spec.mirror is not None
    assert spec.num_envs == 6
