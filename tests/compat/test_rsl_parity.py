"""One update of the layer and of rsl-rl-lib 5.5.1, from the same weights, rollout and permutation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("rsl_rl", reason="parity is measured against the installed rsl-rl-lib")

import rsl_rl.algorithms
import rsl_rl.models
import rsl_rl.storage
from tensordict import TensorDict

from surefoot.compat.rsl_rl import algorithms, models, storage

NUM_ENVS, NUM_STEPS, NUM_ACTIONS = 8, 12, 3
GROUPS = {"actor": ["policy"], "critic": ["policy", "privileged"]}
GAUSSIAN = {"class_name": "GaussianDistribution", "init_std": 0.8, "std_type": "scalar"}


@pytest.fixture(params=[torch.float64, torch.float32], ids=["float64", "float32"])
def dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(before)


def observations(generator: torch.Generator) -> TensorDict:
    sizes = {"policy": 5, "privileged": 2}
    values = {name: 3 * torch.randn(NUM_ENVS, n, generator=generator) + 1 for name, n in sizes.items()}
    return TensorDict(values, batch_size=[NUM_ENVS])


def make(library: Any, memory: str | None, **options: Any) -> Any:
    """PPO of `rsl_rl` or of the layer, with weights by a fixed seed."""
    classes, algorithm, store = library
    obs = observations(torch.Generator().manual_seed(0))
    kwargs: dict[str, Any] = {"hidden_dims": [16, 16], "activation": "elu", "obs_normalization": True}
    kind = classes.MLPModel
    if memory:
        kind, kwargs = (
            classes.RNNModel,
            {**kwargs, "rnn_type": memory, "rnn_hidden_dim": 8, "rnn_num_layers": 2},
        )
    torch.manual_seed(1)
    actor = kind(obs, GROUPS, "actor", NUM_ACTIONS, distribution_cfg=dict(GAUSSIAN), **kwargs)
    critic = kind(obs, GROUPS, "critic", 1, **kwargs)
    rollout = store.RolloutStorage("rl", NUM_ENVS, NUM_STEPS, obs, [NUM_ACTIONS])
    # discounts that float32 holds exactly: rsl_rl multiplies by float32 ones, whatever the dtype
    defaults = {"num_learning_epochs": 5, "num_mini_batches": 4, "gamma": 63 / 64, "lam": 15 / 16}
    ppo = algorithm.PPO(actor, critic, rollout, **{**defaults, **options})
    ppo.train_mode()
    return ppo


THEIRS = (rsl_rl.models, rsl_rl.algorithms, rsl_rl.storage)
OURS = (models, algorithms, storage)


def fill(ppo: Any, seed: int, end: float = 0.15) -> TensorDict:
    """A rollout of given observations, actions, rewards and ends; returns what followed the last step."""
    generator = torch.Generator().manual_seed(seed)
    obs = observations(generator)
    for step in range(NUM_STEPS):
        with torch.no_grad():
            states = (ppo.actor.get_hidden_state(), ppo.critic.get_hidden_state())
            ppo.actor(obs, stochastic_output=True)
            mean, std = ppo.actor.output_distribution_params
            actions = mean + std * torch.randn(NUM_ENVS, NUM_ACTIONS, generator=generator)
            transition = type(ppo.storage).Transition()
            transition.observations, transition.actions = obs, actions
            transition.hidden_states = states
            transition.values = ppo.critic(obs)
            transition.actions_log_prob = ppo.actor.get_output_log_prob(actions)
            transition.distribution_params = (mean.clone(), std.clone())
            transition.rewards = torch.randn(NUM_ENVS, generator=generator)
            # in whole columns of mini-batches, so that both cut the same sequences into the same four parts
            ends = (
                torch.rand(NUM_ENVS // 4, generator=generator) < end if step else torch.zeros(NUM_ENVS // 4)
            )
            transition.dones = ends.repeat(4)
        ppo.storage.add_transition(transition)
        ppo.actor.reset(transition.dones)
        ppo.critic.reset(transition.dones)
        obs = observations(generator)
    return obs


def weights(ppo: Any) -> dict[str, Tensor]:
    return {
        f"{name}.{key}": x.detach().clone()
        for name, model in (("actor", ppo.actor), ("critic", ppo.critic))
        for key, x in model.state_dict().items()
    }


def in_given_order(monkeypatch: pytest.MonkeyPatch, order: Tensor | None) -> None:
    """Every permutation that is drawn becomes `order`, or the identity."""

    def randperm(n: int, **_: Any) -> Tensor:
        return torch.arange(n) if order is None else order

    monkeypatch.setattr(torch, "randperm", randperm)


def assert_equal_weights(ours: Any, theirs: Any, dtype: torch.dtype) -> None:
    tolerance = 1e-8 if dtype == torch.float64 else 1e-4
    mine, other = weights(ours), weights(theirs)
    assert mine.keys() == other.keys()
    for name, x in mine.items():
        torch.testing.assert_close(x, other[name], rtol=0, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("memory", [None, "gru", "lstm"])
@pytest.mark.parametrize("per_mini_batch", [False, True])
def test_an_update_gives_the_same_weights(
    memory: str | None, per_mini_batch: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"normalize_advantage_per_mini_batch": per_mini_batch, "desired_kl": 0.02}
    ours, theirs = (make(x, memory, **options) for x in (OURS, THEIRS))
    assert_equal_weights(ours, theirs, dtype)
    order = torch.randperm(NUM_ENVS * NUM_STEPS, generator=torch.Generator().manual_seed(3))
    in_given_order(monkeypatch, None if memory else order)
    before = weights(ours)
    # the second with normalisers that have counted; in float32 a KL beside a bound may fall on either side
    for seed in (4, 5) if dtype == torch.float64 else (4,):
        for ppo in (ours, theirs):
            last = fill(ppo, seed)
            with torch.inference_mode():
                ppo.compute_returns(last)
        for name in ("returns", "advantages"):
            torch.testing.assert_close(getattr(ours.storage, name), getattr(theirs.storage, name))
        losses, their_losses = ours.update(), theirs.update()
        assert_equal_weights(ours, theirs, dtype)
        assert ours.learning_rate == pytest.approx(theirs.learning_rate, rel=1e-6)
        for name in ("value", "surrogate", "entropy"):
            assert losses[name] == pytest.approx(
                their_losses[name], abs=1e-6 if dtype == torch.float64 else 1e-4
            )
    assert theirs.learning_rate != 1e-3
    assert any((x - before[name]).abs().max() > 1e-4 for name, x in weights(ours).items())


@pytest.mark.parametrize("memory", [None, "gru"])
@pytest.mark.parametrize(("source", "target"), [(OURS, THEIRS), (THEIRS, OURS)], ids=["leaving", "coming"])
def test_a_checkpoint_goes_on_in_the_other_library(
    source: Any, target: Any, memory: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    order = torch.randperm(NUM_ENVS * NUM_STEPS, generator=torch.Generator().manual_seed(3))
    in_given_order(monkeypatch, None if memory else order)
    # in float32 an adaptive rate may fall on either side of a bound
    first = make(source, memory, schedule="fixed", learning_rate=3e-4)
    second = make(target, memory, schedule="fixed", learning_rate=0.5)

    def learn(ppo: Any, seed: int) -> None:
        for model in (ppo.actor, ppo.critic):
            model.reset()
        ppo.compute_returns(fill(ppo, seed))
        ppo.update()

    learn(first, 4)
    torch.save(first.save(), tmp_path / "model.pt")
    assert second.load(torch.load(tmp_path / "model.pt", weights_only=True), None, True)
    assert second.learning_rate == pytest.approx(first.learning_rate)
    assert_equal_weights(first, second, torch.float64)
    for ppo in (first, second):
        learn(ppo, 5)
    assert_equal_weights(first, second, torch.float32)
