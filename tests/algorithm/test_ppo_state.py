"""Saving and loading: everything continues, in plain data, and what does not fit is named."""

from __future__ import annotations

import io
from typing import Any

import gymnasium
import pytest
import torch
from hand_made import Task, assert_same_weights, box, make_ppo, make_spec, normalizers_of, weights_of
from torch import Tensor

from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.extension import Extension
from surefoot.algorithm.ppo import PPO
from surefoot.errors import CheckpointError
from surefoot.extensions.auxiliary import AuxiliaryPrediction
from surefoot.extensions.reward_scaling import RewardScaling
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import ActorConfig, CriticConfig, DistributionConfig
from surefoot.types import EnvSpec

NORMALISED: dict[str, Any] = {"hidden_dims": [8], "obs_normalization": True}


def full(**changes: Any) -> dict[str, Any]:
    """A PPO with something of everything."""
    parts: dict[str, Any] = {
        "config": PPOConfig(num_mini_batches=2, num_learning_epochs=2),
        "spec": make_spec(4, {"policy": box(3), "critic": box(2)}),
        "actor": ActorConfig(**NORMALISED),
        "critic": CriticConfig(**NORMALISED, value_normalization=True),
    }
    return parts | changes


def through_disk(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "penalty": {"config": PPOConfig(policy_objective="penalty", schedule="linear", num_mini_batches=2)},
    "sgd": {"config": PPOConfig(optimizer="sgd", num_mini_batches=2)},
    "shared": {"network": "shared", "spec": make_spec(), "critic": CriticConfig(hidden_dims=[8])},
    "categorical": {"spec": make_spec(4, {"policy": box(3)}, gymnasium.spaces.Discrete(3))},
    "squashed": {
        "spec": make_spec(4, 3, box(2, -1, 1)),
        "actor": ActorConfig(**NORMALISED, distribution=DistributionConfig("SquashedGaussian")),
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_training_continues_bit_for_bit(kind: str) -> None:
    def build(seed: int) -> PPO:
        extensions = [RewardScaling(), AuxiliaryPrediction("policy"), Noisy()]
        return make_ppo(**full(**KINDS[kind]), extensions=extensions, seed=seed, max_iterations=10)

    first, task = build(1), Task(ends=0.2)
    task.run(first, 2)
    state = through_disk(first.state())
    data = task.generator.get_state()
    expected = task.run(first, 2)
    second = build(2)
    torch.manual_seed(77)
    second.load_state(state)
    task.generator.set_state(data)
    got = task.run(second, 2)
    assert_same_weights(weights_of(first), weights_of(second))
    assert [m.keys() for m in expected] == [m.keys() for m in got]
    for one, other in zip(expected, got, strict=True):
        assert all(torch.equal(one[k], other[k]) for k in one)
    assert second.iteration == 4


class Noisy(Extension):
    """Has an optimiser, a generator and a buffer of its own, kept in every place that is allowed."""

    def setup(self, spec: EnvSpec, policy: ActorCritic) -> None:
        self.net = torch.nn.Linear(2, 1)
        self.optimizers = {"net": torch.optim.Adam(self.net.parameters())}
        self.noise = spec.generator
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def learn(self, rollout: Any) -> dict[str, Tensor]:
        self.seen += 1
        loss = self.net(torch.randn(3, 2, generator=self.noise)).square().mean()
        self.optimizers["net"].zero_grad()
        loss.backward()
        self.optimizers["net"].step()
        return {"Noisy/loss": loss.detach()}


def test_a_state_is_a_copy_that_later_training_does_not_change() -> None:
    ppo, task = make_ppo(**full()), Task()
    task.run(ppo)
    state = ppo.state()
    saved = through_disk(state)
    task.run(ppo, 2)

    def assert_equal(a: Any, b: Any) -> None:
        if isinstance(a, Tensor):
            assert torch.equal(a, b)
        elif isinstance(a, dict):
            for key in a:
                assert_equal(a[key], b[key])
        elif isinstance(a, list | tuple):
            for x, y in zip(a, b, strict=True):
                assert_equal(x, y)
        else:
            assert a == b

    assert_equal(state, saved)


def test_loading_does_not_tie_the_trainer_to_the_state() -> None:
    ppo, task = make_ppo(**full()), Task()
    task.run(ppo)
    state = ppo.state()
    other = make_ppo(**full())
    other.load_state(state)
    before = state["optimizers"]["optimizer.optimizer"]["state"][0]["exp_avg"].clone()
    task.run(other)
    assert torch.equal(before, state["optimizers"]["optimizer.optimizer"]["state"][0]["exp_avg"])


def test_the_state_is_tensors_and_plain_data() -> None:
    ppo = make_ppo(**full(), extensions=[RewardScaling(), Noisy()])
    Task().run(ppo)

    def check(x: Any, path: str) -> None:
        if isinstance(x, dict):
            for key, value in x.items():
                assert isinstance(key, str | int), path
                check(value, f"{path}.{key}")
        elif isinstance(x, list | tuple):
            for i, value in enumerate(x):
                check(value, f"{path}.{i}")
        else:
            assert x is None or type(x) in (Tensor, str, int, float, bool), f"{path}: {type(x)}"

    check(ppo.state(), "state")


def test_normalisers_come_back_with_exact_counts() -> None:
    ppo, task = make_ppo(**full()), Task()
    task.run(ppo, 3)
    other = make_ppo(**full(), seed=9)
    other.load_state(through_disk(ppo.state()))
    obs = task.observe(ppo)
    assert torch.equal(ppo.policy.act(obs), other.policy.act(obs))
    for name, normalizer in normalizers_of(ppo).items():
        loaded = normalizers_of(other)[name]
        assert loaded.count.item() == 3 * 32
        assert torch.equal(normalizer.mean, loaded.mean)
        assert torch.equal(normalizer.std, loaded.std)
    # one more batch of n = 32 rows moves the mean by n / (count + n) of the difference
    mean = normalizers_of(other)["actor"].mean.clone()
    shifted = Task(seed=5, shift=10.0)
    shifted.collect(other)
    rows = other.storage.observations["policy"][:-1].reshape(-1, 3).double().mean(0)
    other.update()
    expected = mean + (rows - mean) * 32 / (3 * 32 + 32)
    torch.testing.assert_close(normalizers_of(other)["actor"].mean, expected)


def test_the_state_before_the_first_iteration_keeps_the_provisional_statistics() -> None:
    ppo = make_ppo(**full())
    ppo.warm_up([Task(shift=5.0).observe(ppo)])
    other = make_ppo(**full(), seed=9)
    other.load_state(ppo.state())
    obs = Task().observe(ppo)
    assert torch.equal(ppo.policy.act(obs), other.policy.act(obs))


def test_another_width_is_named_with_both_shapes() -> None:
    state = make_ppo(actor=ActorConfig(hidden_dims=[16])).state()
    with pytest.raises(CheckpointError, match=r"actor\.layers\.0\.weight.*\(16, 3\).*\(8, 3\)"):
        make_ppo().load_state(state)


def test_a_missing_normaliser_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"lacks.*normalizers\.actor"):
        make_ppo(actor=ActorConfig(**NORMALISED)).load_state(make_ppo().state())
    with pytest.raises(CheckpointError, match=r"normalizers\.actor.*does not build"):
        make_ppo().load_state(make_ppo(actor=ActorConfig(**NORMALISED)).state())


def test_a_missing_extension_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"extensions\.0"):
        make_ppo(extensions=[RewardScaling()]).load_state(make_ppo().state())


def test_a_refused_state_changes_nothing() -> None:
    ppo = make_ppo()
    before = weights_of(ppo)
    with pytest.raises(CheckpointError):
        ppo.load_state(make_ppo(actor=ActorConfig(hidden_dims=[16]), seed=2).state())
    assert_same_weights(before, weights_of(ppo))


def test_another_number_of_environments_is_named_with_both() -> None:
    ppo = make_ppo(spec=make_spec(4))
    Task().run(ppo)
    with pytest.raises(CheckpointError, match=r"4.*6"):
        make_ppo(spec=make_spec(6)).load_state(ppo.state())


def test_a_missing_optimiser_is_named() -> None:
    state = make_ppo().state()
    state["optimizers"].clear()
    with pytest.raises(CheckpointError, match=r"optimiser 'optimizer\.optimizer'"):
        make_ppo().load_state(state)


def test_an_optimiser_of_another_kind_is_refused_by_name() -> None:
    ppo = make_ppo(PPOConfig(optimizer="sgd", num_mini_batches=2))
    Task().run(ppo)
    adam = make_ppo(PPOConfig(optimizer="adam", num_mini_batches=2))
    with pytest.raises(CheckpointError, match=r"optimi[sz]er"):
        adam.load_state(ppo.state())


def test_weights_move_in_place_when_loaded() -> None:
    # the optimiser works on one flat buffer: parameters must stay views into it
    ppo, task = make_ppo(), Task()
    task.run(ppo)
    other = make_ppo(seed=5)
    other.load_state(ppo.state())
    before = weights_of(other)
    task.run(other)
    after = weights_of(other)
    moved = [k for k in before if k.startswith("policy.") and not torch.equal(before[k], after[k])]
    assert len(moved) == len(list(other.policy.parameters()))
