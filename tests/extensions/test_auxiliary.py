"""Auxiliary losses: what the actor's features, or an estimator inside it, learn to tell."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.losses import masked_mean
from surefoot.algorithm.ppo import PPO
from surefoot.config import build_config, build_extensions
from surefoot.errors import ConfigError
from surefoot.extensions.auxiliary import AuxiliaryPrediction, EstimatorLoss, PolicyLosses
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import ActorConfig, CriticConfig, EstimatorConfig
from surefoot.testing.extension_suite import NUM_ENVS, NUM_STEPS, make_ppo
from surefoot.training.evaluation import InferencePolicy
from surefoot.types import Batch, PolicyOutput, Step


def train(ppo: PPO, iterations: int) -> list[dict[str, Tensor]]:
    """The privileged group is the first four of the policy's observations."""
    data = torch.Generator().manual_seed(0)

    def observe() -> dict[str, Tensor]:
        x = torch.randn(NUM_ENVS, 5, generator=data)
        return {"policy": x, "privileged": x[:, :4].tanh()}

    history = []
    no = torch.zeros(NUM_ENVS, dtype=torch.bool)
    obs = observe()
    for _ in range(iterations):
        for _ in range(NUM_STEPS):
            ppo.act(obs)
            obs = observe()
            ppo.process_env_step(Step(obs, torch.zeros(NUM_ENVS), no, no))
        ppo.compute_returns(obs)
        history.append(ppo.update())
    return history


def test_the_prediction_improves_and_is_logged() -> None:
    losses = [m["Aux/prediction"].item() for m in train(make_ppo(AuxiliaryPrediction("privileged")), 25)]
    assert losses[-1] < 0.7 * losses[0]


def test_its_gradient_shapes_the_features() -> None:
    def encoder(coef: float) -> Tensor:
        ppo = make_ppo(AuxiliaryPrediction("privileged", coef=coef))
        train(ppo, 1)
        return ppo.policy.actor.layers[0].weight.detach().clone()

    assert not torch.equal(encoder(0.0), encoder(10.0))


def test_the_loss_is_the_mean_squared_error_times_its_weight() -> None:
    plain, weighted = (AuxiliaryPrediction("privileged", coef=c) for c in (1.0, 3.0))
    first, second = (train(make_ppo(e), 1)[0]["Aux/prediction"].item() for e in (plain, weighted))
    # the first mini-batches are the same; later ones move apart a little
    assert second == pytest.approx(3 * first, rel=0.05)


@pytest.mark.parametrize(
    ("part", "width"), [({}, 4), ({"start": 1}, 3), ({"stop": 2}, 2), ({"start": -1}, 1)]
)
def test_a_part_of_the_group_may_be_chosen(part: dict[str, int], width: int) -> None:
    extension = AuxiliaryPrediction("privileged", **part)
    make_ppo(extension)
    assert extension.head.out_features == width


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": "privilged"}, r"'privilged'.*'policy', 'privileged'"),
        ({"target": "privileged", "start": 4}, r"\(4,\).*empty"),
        ({"target": "privileged", "start": 2, "stop": 2}, "empty"),
    ],
)
def test_a_target_that_does_not_exist_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_ppo(AuxiliaryPrediction(**arguments))


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(ConfigError, match="coef -1"):
        AuxiliaryPrediction("privileged", coef=-1.0)


def test_the_target_is_stored_even_if_no_network_reads_it() -> None:
    extension = AuxiliaryPrediction("privileged")
    assert "privileged" in make_ppo(extension).storage.observations
    assert list(extension.observation_groups()) == ["privileged"]


# ---------------------------------------------------------------------- the loss of an estimator


def estimating(coef: float = 1.0, **changes: Any) -> PPO:
    """The toy task with an estimator of the privileged group in the actor."""
    actor = ActorConfig(**{"hidden_dims": [8], "estimator": EstimatorConfig("privileged", [16]), **changes})
    spec = make_ppo().spec
    torch.manual_seed(0)
    policy = ActorCritic(spec, actor, CriticConfig(hidden_dims=[8]))
    config = PPOConfig(num_mini_batches=2, num_learning_epochs=2)
    return PPO(policy, spec, config, num_steps_per_env=NUM_STEPS, extensions=[EstimatorLoss(coef)])


@pytest.mark.parametrize(("target", "rnn_type"), [("privileged", None), (["privileged", 1, 3], "gru")])
def test_the_estimate_improves_and_is_logged(target: Any, rnn_type: Any) -> None:
    ppo = estimating(estimator=EstimatorConfig(target, [16]), rnn_type=rnn_type, rnn_hidden_dim=16)
    history = train(ppo, 25)
    losses = [m["Aux/estimator"].item() for m in history]
    assert losses[-1] < 0.7 * losses[0]
    # tanh of a standard normal number has the variance 0.394
    shares = [m["Aux/estimator_error"].item() * 0.394 for m in history]
    assert shares == pytest.approx(losses, rel=0.3)


def test_the_estimators_loss_is_the_mean_squared_error_times_its_weight() -> None:
    def first_loss(coef: float) -> float:
        return train(estimating(coef), 1)[0]["Aux/estimator"].item()

    # the first mini-batches are the same; later ones move apart a little
    assert first_loss(3.0) == pytest.approx(3 * first_loss(1.0), rel=0.05)


def test_an_estimator_loss_needs_an_estimator() -> None:
    with pytest.raises(ConfigError, match=r"needs a policy with actor\.estimator"):
        estimating(estimator=None)


def test_a_configuration_switches_the_estimators_loss_on() -> None:
    actor = {"estimator": {"target": "privileged"}}
    (extension,) = build_extensions(
        build_config({"actor": actor, "algorithm": {"enable_aux_loss": True, "aux_loss_coef": 0.5}})
    )
    assert isinstance(extension, EstimatorLoss)
    assert extension.coef == 0.5
    assert build_extensions(build_config({"actor": actor})) == []


# ---------------------------------------------------------------------- losses that a network defines itself


class Reconstructing(nn.Module):
    """A network that also restores its input from its features."""

    def __init__(self, num_inputs: int) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(num_inputs, 8), nn.Linear(8, num_inputs)

    def forward(self, x: Tensor) -> Tensor:
        features = self.encode(x).tanh()
        self.error = (self.decode(features) - x.detach()).square().mean(-1)
        return features

    def aux_losses(self, batch: Batch, out: PolicyOutput) -> dict[str, Tensor]:
        assert self.error.shape == out.log_prob.shape == batch.old_log_prob.shape
        return {"reconstruction": masked_mean(self.error, batch.mask)}


@pytest.mark.parametrize("rnn_type", [None, "gru"])
def test_a_network_brings_losses_of_its_own(rnn_type: Any) -> None:
    actor = ActorConfig(rnn_type=rnn_type, rnn_hidden_dim=8, class_name="own:Network")
    torch.manual_seed(0)
    spec = make_ppo().spec
    policy = ActorCritic(spec, actor, CriticConfig(hidden_dims=[8]), own_networks={"actor": Reconstructing})
    ppo = PPO(policy, spec, PPOConfig(), num_steps_per_env=NUM_STEPS, extensions=[PolicyLosses(2.0)])
    losses = [m["Aux/reconstruction"].item() for m in train(ppo, 25)]
    assert losses[-1] < 0.7 * losses[0]


def test_losses_of_the_same_name_in_actor_and_critic_both_count() -> None:
    torch.manual_seed(0)
    spec = make_ppo().spec
    actor, critic = ActorConfig(class_name="own:Network"), CriticConfig(class_name="own:Network")
    both = {"actor": Reconstructing, "critic": Reconstructing}
    policy = ActorCritic(spec, actor, critic, own_networks=both)
    ppo = PPO(policy, spec, PPOConfig(), num_steps_per_env=NUM_STEPS, extensions=[PolicyLosses()])
    networks = [module for module in policy.modules() if isinstance(module, Reconstructing)]
    before = [network.decode.weight.detach().clone() for network in networks]
    train(ppo, 1)
    assert len(networks) == 2
    for network, old in zip(networks, before, strict=True):
        assert not torch.equal(network.decode.weight, old)


def test_what_a_network_keeps_of_its_last_pass_does_not_keep_it_from_being_used() -> None:
    actor = ActorConfig(class_name="own:Network")
    spec = make_ppo().spec
    policy = ActorCritic(spec, actor, CriticConfig(hidden_dims=[8]), own_networks={"actor": Reconstructing})
    ppo = PPO(policy, spec, PPOConfig(), num_steps_per_env=NUM_STEPS, extensions=[PolicyLosses()])
    train(ppo, 1)
    network = ppo.policy.actor.layers
    assert isinstance(network, Reconstructing)
    network.kept = {"errors": [network.error]}  # type: ignore[assignment]
    obs = {"policy": torch.ones(NUM_ENVS, 5)}
    copy = InferencePolicy(ppo.policy)
    assert network.error.requires_grad, "the network in training is as it was"
    assert torch.equal(copy(obs), ppo.policy.act(obs))


def test_a_policy_without_losses_of_its_own_is_told_so() -> None:
    with pytest.raises(ConfigError, match=r"no module of the policy has a method aux_losses"):
        PolicyLosses().setup(make_ppo().spec, make_ppo().policy)


def test_a_configuration_switches_a_networks_own_losses_on() -> None:
    network = {"class_name": f"{Reconstructing.__module__}:Reconstructing"}
    on = {"enable_aux_loss": True, "aux_loss_coef": 0.5}
    (extension,) = build_extensions(build_config({"actor": network, "algorithm": on}))
    assert isinstance(extension, PolicyLosses)
    assert extension.coef == 0.5
    assert build_extensions(build_config({"actor": network})) == []
    plain = {"class_name": "torch.nn:LazyLinear"}
    assert build_extensions(build_config({"actor": plain, "algorithm": on})) == []
