"""RSL-RL's modules: distributions, normalisers, networks and memories."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributions import Normal

from ranks import run_ranks

pytest.importorskip("tensordict")

from surefoot.compat.rsl_rl.modules import (
    CNN,
    MLP,
    RNN,
    BetaDistribution,
    EmpiricalDiscountedVariationNormalization,
    EmpiricalNormalization,
    GaussianDistribution,
    HeteroscedasticGaussianDistribution,
)
from surefoot.compat.rsl_rl.modules.cnn import _compute_output_dim, _compute_padding
from surefoot.compat.rsl_rl.networks import Memory
from surefoot.compat.rsl_rl.utils.utils import ACTIVATIONS
from surefoot.errors import ConfigError

# ------------------------------------------------------------------ distributions


def test_log_prob_and_entropy_of_a_gaussian_by_hand():
    family = GaussianDistribution(2, init_std=2.0)
    family.update(torch.tensor([[1.0, -1.0]]))
    # one deviation from the mean in the first output: -½ - 2 ln 2 - ln 2π
    expected = -0.5 - 2 * math.log(2) - math.log(2 * math.pi)
    torch.testing.assert_close(family.log_prob(torch.tensor([[3.0, -1.0]])), torch.tensor([expected]))
    entropy = math.log(2 * math.pi * math.e * 4)
    torch.testing.assert_close(family.entropy, torch.tensor([entropy]))


@pytest.mark.parametrize("kind", ["scalar", "log"])
def test_both_parameterisations_start_at_init_std(kind):
    family = GaussianDistribution(3, init_std=0.3, std_type=kind)
    family.update(torch.zeros(4, 3))
    torch.testing.assert_close(family.std, torch.full((4, 3), 0.3))
    mean, std = family.params
    assert mean.shape == std.shape == (4, 3)


def test_kl_of_gaussians_by_hand():
    # ln 2 + (1 + 1) / 8 - ½
    kl = GaussianDistribution(1).kl_divergence(
        (torch.tensor([[0.0]]), torch.tensor([[1.0]])), (torch.tensor([[1.0]]), torch.tensor([[2.0]]))
    )
    torch.testing.assert_close(kl, torch.tensor([math.log(2) + 0.25 - 0.5]))


@pytest.mark.parametrize("kind", ["scalar", "log"])
def test_c03_a_deviation_below_its_floor_comes_back(kind):
    family = GaussianDistribution(2, std_type=kind, std_range=(0.1, 2.0))
    (parameter,) = family.parameters()
    with torch.no_grad():
        parameter.fill_(-5.0)
    optimizer = torch.optim.SGD([parameter], lr=0.01)
    for step in range(30):
        family.update(torch.zeros(1, 2))
        if step == 0:
            torch.testing.assert_close(family.std, torch.full((1, 2), 0.1))
        loss = -family.log_prob(torch.ones(1, 2)).sum()  # wants a wider distribution
        optimizer.zero_grad()
        loss.backward()
        assert (parameter.grad != 0).all()
        optimizer.step()
        family.project()
    family.update(torch.zeros(1, 2))
    assert (family.std > 0.2).all()


@pytest.mark.parametrize(
    ("stored", "bounds", "expected"),
    [(-0.7, (0.1, 1.0), 0.1), (3.0, (0.1, 1.0), 1.0), (-0.7, (0.0, 1.0), 1e-6)],
)
def test_c03_projection_brings_the_parameter_to_the_nearest_bound_above_0(stored, bounds, expected):
    family = GaussianDistribution(1, init_std=0.2, std_range=bounds)
    with torch.no_grad():
        family.std_param.fill_(stored)
    family.project()
    assert family.std_param.item() == pytest.approx(expected)


def test_c03_the_network_that_gives_the_deviation_is_not_stuck_either():
    family = HeteroscedasticGaussianDistribution(1, std_range=(0.1, 2.0))
    output = torch.tensor([[[0.0], [-3.0]]], requires_grad=True)
    family.update(output)
    (-family.log_prob(torch.ones(1, 1))).backward()
    assert family.std.item() == pytest.approx(0.1)
    assert output.grad[0, 1, 0] < 0  # a larger deviation is more likely


def test_a_deviation_that_is_not_learned_stays():
    family = GaussianDistribution(2, init_std=0.5, learn_std=False)
    assert not any(p.requires_grad for p in family.parameters())


def test_c18_nothing_changes_for_other_users_of_torch_distributions(monkeypatch):
    # the real rsl_rl, which other tests import into this process, has switched them off
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    before = Normal(0.0, 1.0)._validate_args
    outputs = torch.zeros(4, 2, 1)
    families = [GaussianDistribution(1), HeteroscedasticGaussianDistribution(1), BetaDistribution(1)]
    for family, output in zip(families, [outputs[:, 0], outputs, outputs], strict=True):
        family.update(output)
        family.kl_divergence(family.params, family.params)
        family.sample()
    assert Normal(0.0, 1.0)._validate_args == before
    with pytest.raises(ValueError, match="scale"):
        Normal(torch.zeros(1), torch.tensor([-1.0]))


def test_c19_the_first_beta_distribution_is_the_same_for_every_observation():
    family = BetaDistribution(3)
    mlp = MLP(5, family.input_dim, [16])
    family.init_mlp_weights(mlp)
    family.update(mlp(100 * torch.randn(50, 5)))
    alpha, beta = family.params
    torch.testing.assert_close(alpha, torch.full((50, 3), 1 + math.log(2)))
    torch.testing.assert_close(beta, alpha)
    torch.testing.assert_close(family.mean, torch.zeros(50, 3))


def test_the_first_state_dependent_deviation_is_init_std_for_every_observation():
    for kind in ("scalar", "log"):
        family = HeteroscedasticGaussianDistribution(3, init_std=0.4, std_type=kind)
        mlp = MLP(5, family.input_dim, [16])
        family.init_mlp_weights(mlp)
        family.update(mlp(torch.randn(50, 5)))
        torch.testing.assert_close(family.std, torch.full((50, 3), 0.4))
        assert family.mean.std() > 0


@given(st.floats(-5, 5), st.floats(0.1, 5), st.floats(-3, 3), st.floats(-3, 3))
def test_a_beta_over_any_range_is_a_density_with_the_mean_that_it_says(low, width, a, b):
    family = BetaDistribution(1, (low, low + width))
    family.update(torch.tensor([[a], [b]], dtype=torch.float64).unsqueeze(0))
    edges = torch.linspace(low, low + width, 4001, dtype=torch.float64)
    middle = (0.5 * (edges[1:] + edges[:-1])).unsqueeze(-1)
    mass = family.log_prob(middle).exp() * (width / 4000)
    assert mass.sum().item() == pytest.approx(1, abs=1e-3)
    mean = (mass * middle.squeeze(-1)).sum()
    assert family.mean.item() == pytest.approx(mean.item(), abs=1e-3 * (1 + width))
    variance = (mass * (middle.squeeze(-1) - mean).square()).sum()
    assert family.std.item() == pytest.approx(variance.sqrt().item(), abs=1e-3 * (1 + width))


def test_samples_of_a_beta_lie_in_its_range_and_have_a_finite_density():
    family = BetaDistribution(1, (0.0, 3.0))
    family.update(torch.tensor([[[-20.0], [20.0]]]).expand(5000, 2, 1))
    samples = family.sample()
    assert samples.min() >= 0
    assert samples.max() <= 3
    assert family.log_prob(samples).isfinite().all()
    assert family.log_prob(torch.tensor([[0.0], [3.0]]).repeat(2500, 1)).isfinite().all()


def test_a_deterministic_output_is_the_mean():
    for family in (HeteroscedasticGaussianDistribution(2), BetaDistribution(2, (1.0, 4.0))):
        output = torch.randn(5, 2, 2)
        family.update(output)
        torch.testing.assert_close(family.deterministic_output(output), family.mean)
        torch.testing.assert_close(family.as_deterministic_output_module()(output), family.mean)


def test_samples_carry_no_gradient():
    for family in (GaussianDistribution(1), BetaDistribution(1)):
        shape = [2, 1] if isinstance(family, BetaDistribution) else [1]
        family.update(torch.zeros(4, *shape, requires_grad=True))
        assert not family.sample().requires_grad


class Widened(GaussianDistribution):
    """As clients extend it: `update` sets a torch.distributions.Normal."""

    def update(self, mlp_output: torch.Tensor) -> None:
        self._distribution = Normal(mlp_output, 3 * self.std_param.expand_as(mlp_output))


def test_a_clients_subclass_that_sets_a_torch_distribution_works():
    family = Widened(2)
    family.update(torch.zeros(4, 2))
    normal = Normal(torch.zeros(4, 2), torch.full((4, 2), 3.0))
    torch.testing.assert_close(family.log_prob(torch.ones(4, 2)), normal.log_prob(torch.ones(4, 2)).sum(-1))
    torch.testing.assert_close(family.std, normal.stddev)


def test_a_distribution_in_use_can_be_copied_and_pickled():
    family = GaussianDistribution(2)
    family.update(torch.zeros(4, 2, requires_grad=True) * 2)
    for twin in (copy.deepcopy(family), pickle.loads(pickle.dumps(family))):
        assert twin.state_dict().keys() == family.state_dict().keys()
    assert family.mean.shape == (4, 2)  # the original goes on


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: GaussianDistribution(1, std_type="exp"), "std_type 'exp'"),
        (lambda: HeteroscedasticGaussianDistribution(1, std_type="exp"), "std_type 'exp'"),
        (lambda: BetaDistribution(1, (1.0, 1.0)), "action_range"),
        (lambda: RNN(2, 3, 1, "gur"), "Did you mean 'gru'"),
        (lambda: CNN((8, 8), 1, [4], 3, padding="zero"), "Did you mean 'zeros'"),
        (lambda: CNN((8, 8), 1, [4], 3, norm="bach"), "Did you mean 'batch'"),
        (lambda: CNN((8, 8), 1, [4], 3, global_pool="mean"), "global_pool 'mean'"),
        (lambda: CNN((8, 8), 1, [4, 4], [5, 5]), "nothing is left"),
    ],
)
def test_an_unknown_choice_is_named(make, match):
    with pytest.raises(ConfigError, match=match) as error:
        make()
    assert isinstance(error.value, ValueError)  # as RSL-RL raises


def test_a_distribution_that_was_never_set_says_what_to_do():
    for family in (GaussianDistribution(1), BetaDistribution(1)):
        with pytest.raises(RuntimeError, match="stochastic_output=True"):
            _ = family.mean


# ------------------------------------------------------------------ normalisers


def test_statistics_are_those_of_all_rows():
    rows = 5 + 2 * torch.randn(300, 4, dtype=torch.float64)
    normalizer = EmpiricalNormalization(4, eps=0.5).double()
    for part in rows.split([1, 50, 249]):
        normalizer.update(part)
    torch.testing.assert_close(normalizer.mean, rows.mean(0))
    torch.testing.assert_close(normalizer.std, rows.std(0, unbiased=False))
    assert normalizer.count == 300
    torch.testing.assert_close(normalizer.inverse(normalizer(rows)), rows)
    torch.testing.assert_close(normalizer(rows), (rows - normalizer.mean) / (normalizer.std + 0.5))


def test_rows_that_are_not_finite_are_left_out():
    normalizer = EmpiricalNormalization(2)
    normalizer.update(torch.tensor([[1.0, 1.0], [math.inf, 0.0], [0.0, math.nan], [3.0, 5.0]]))
    assert normalizer.count == 2
    assert normalizer.mean.tolist() == [2.0, 3.0]


def test_rows_may_have_any_leading_shape():
    rows = torch.randn(6, 5, 3)
    one, other = EmpiricalNormalization(3), EmpiricalNormalization(3)
    one.update(rows)
    other.update(rows.flatten(0, 1))
    torch.testing.assert_close(one.mean, other.mean)
    assert one.count == 30


def test_statistics_freeze_in_evaluation_mode_and_after_until_rows():
    normalizer = EmpiricalNormalization(2, until=100)
    for _ in range(10):
        normalizer.update(torch.randn(20, 2))
    assert normalizer.count == 100
    kept = normalizer.mean
    normalizer.update(torch.randn(20, 2) + 100)
    assert torch.equal(normalizer.mean, kept)
    fresh = EmpiricalNormalization(2).eval()
    fresh.update(torch.ones(5, 2))
    assert fresh.count == 0


def test_c16_warmed_up_statistics_serve_until_the_first_update_and_are_not_counted():
    normalizer = EmpiricalNormalization(3)
    first = 1e3 + 10 * torch.randn(50, 3)
    normalizer.warm_up(first)
    assert normalizer(first).abs().max() < 10
    assert normalizer.count == 0
    rows = 2 + torch.randn(40, 3)
    normalizer.update(rows)
    torch.testing.assert_close(normalizer.mean, rows.mean(0))
    torch.testing.assert_close(normalizer.std, rows.std(0, unbiased=False))
    normalizer.warm_up(first)  # of a run that goes on: nothing
    torch.testing.assert_close(normalizer.mean, rows.mean(0))


def one_process_alone(rank: int) -> None:
    normalizer = EmpiricalNormalization(2)
    rows = torch.arange(12.0).view(6, 2)
    normalizer.update(rows[:2] if rank == 0 else rows[2:])
    torch.testing.assert_close(normalizer.mean, rows.mean(0))
    torch.testing.assert_close(normalizer.std, rows.std(0, unbiased=False))
    assert normalizer.count == 6
    if rank == 0:  # evaluates; the other is not asked
        normalizer.eval()
        normalizer.update(rows + 100)
        normalizer(rows)
        assert normalizer.count == 6


def test_c25_processes_share_statistics_but_one_may_evaluate_alone():
    run_ranks(one_process_alone)


def test_c25_a_group_of_one_process_needs_no_communication(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda *_: pytest.fail("all_reduce"))
    monkeypatch.setattr(torch.distributed, "all_gather", lambda *_: pytest.fail("all_gather"))
    EmpiricalNormalization(2).update(torch.randn(5, 2))


def test_rewards_are_scaled_by_the_deviation_of_their_discounted_sum():
    normalizer = EmpiricalDiscountedVariationNormalization([], gamma=0.5)
    first, second = torch.tensor([1.0, 3.0]), torch.tensor([2.0, 2.0])
    normalizer(first)
    # sums 1, 3, then 2.5, 3.5: mean 2.5, variance (2.25 + 0.25 + 0 + 1) / 4
    torch.testing.assert_close(normalizer(second), second / math.sqrt(3.5 / 4))
    normalizer.eval()
    assert torch.equal(normalizer(second), normalizer(second))


def test_an_environment_may_reuse_the_tensor_of_its_rewards():
    one, other = (EmpiricalDiscountedVariationNormalization([], gamma=0.5) for _ in range(2))
    rewards = torch.tensor([1.0, 3.0])
    one(rewards)
    other(rewards.clone()).mul_(100)  # nor does what is returned belong to it
    rewards.fill_(50.0)
    torch.testing.assert_close(one(torch.ones(2)), other(torch.ones(2)))


def test_a_reward_without_spread_stays_as_it_is():
    normalizer = EmpiricalDiscountedVariationNormalization([])
    assert normalizer(torch.tensor([5.0])).item() == 5.0


# ------------------------------------------------------------------ networks


def test_c29_every_layer_has_an_activation_of_its_own():
    mlp = MLP(3, 2, [4, 4, 4], "elu")
    cnn = CNN((8, 8), 1, [2, 2, 2], 3)
    for network in (mlp, cnn):
        activations = [m for m in network if isinstance(m, nn.ELU)]
        assert len({id(m) for m in activations}) == len(activations) == 3


def test_c29_crelu_stays_celu():
    assert isinstance(MLP(3, 2, [4], "crelu")[1], nn.CELU)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_has_the_gradient_that_it_has_out_of_place(name):
    cnn = CNN((6, 6), 1, [3, 2], 3, norm=["layer", "batch"], activation=name)
    for network in (MLP(3, 2, [5, 4], name, name), cnn):
        x = torch.randn(7, 1, 6, 6) if isinstance(network, CNN) else torch.randn(7, 3)
        twin = copy.deepcopy(network)
        for module in twin:
            if hasattr(module, "inplace"):
                module.inplace = False
        for net in (network, twin):
            net(x).square().sum().backward()
        for mine, other in zip(network.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, other.grad)


def test_an_mlp_infers_widths_and_shapes_its_output():
    mlp = MLP(6, [2, 3], [-1, 4], last_activation="tanh")
    assert [m.out_features for m in mlp if isinstance(m, nn.Linear)] == [6, 4, 6]
    out = mlp(torch.randn(5, 6))
    assert out.shape == (5, 2, 3)
    assert out.abs().max() <= 1
    mlp.init_weights([1.0, 0.5, 0.1])
    first, second, last = (m for m in mlp if isinstance(m, nn.Linear))
    torch.testing.assert_close(first.weight @ first.weight.t(), torch.eye(6))
    torch.testing.assert_close(second.weight @ second.weight.t(), 0.25 * torch.eye(4))
    torch.testing.assert_close(last.weight.t() @ last.weight, 0.01 * torch.eye(4))
    assert not any(m.bias.any() for m in (first, second, last))


@given(
    size=st.tuples(st.integers(9, 24), st.integers(9, 24)),
    kernel=st.integers(1, 5),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    padding=st.sampled_from(["none", "zeros", "circular"]),
    max_pool=st.booleans(),
    norm=st.sampled_from(["none", "batch", "layer"]),
    flatten=st.booleans(),
    pool=st.sampled_from(["none", "max", "avg"]),
)
def test_a_cnn_knows_the_size_of_its_output(
    size, kernel, stride, dilation, padding, max_pool, norm, flatten, pool
):
    cnn = CNN(size, 2, [3], kernel, stride, dilation, padding, norm, "relu", max_pool, pool, flatten)
    shape = tuple(cnn.eval()(torch.randn(2, 2, *size)).shape)
    if flatten:
        assert shape == (2, cnn.output_dim)
        assert cnn.output_channels is None
    else:
        assert shape == (2, cnn.output_channels, *cnn.output_dim)


def test_padding_keeps_the_size_at_stride_1():
    border = _compute_padding((16, 12), 5, 1, 1)
    assert _compute_output_dim((16, 12), 5, 1, 1, border) == (16, 12)
    assert _compute_output_dim((16, 12), 5, 1, 1, border, is_max_pool=True) == (8, 6)


def test_weights_after_he_have_a_variance_of_2_by_inputs_and_biases_of_zero():
    cnn = CNN((8, 8), 16, [64], 3)
    cnn.init_weights()
    assert cnn[0].weight.std().item() == pytest.approx(math.sqrt(2 / (16 * 3 * 3)), rel=0.05)
    assert cnn[0].bias.abs().max() == 0


# ------------------------------------------------------------------ memories


def state_rows(rnn: RNN) -> torch.Tensor:
    """[N, ...] of everything that the memory keeps."""
    state = rnn.hidden_state
    return torch.cat(state if isinstance(state, tuple) else [state]).transpose(0, 1)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize(
    "dones",
    [
        torch.tensor([1, 0, 1, 0]),
        torch.tensor([True, False, True, False]),
        torch.tensor([1.0, 0.0, 1.0, 0.0]),
        torch.tensor([[1], [0], [1], [0]], dtype=torch.uint8),
    ],
    ids=["long", "bool", "float", "column"],
)
def test_isaaclab_888_only_environments_that_are_done_forget(kind, dones):
    rnn = RNN(3, 5, 2, kind)
    rnn(torch.randn(4, 3))
    before = state_rows(rnn)
    kept = rnn.hidden_state
    rnn.reset(dones)
    after = state_rows(rnn)
    assert (after[[0, 2]] == 0).all()
    assert torch.equal(after[[1, 3]], before[[1, 3]])
    # a state that was kept as the start of a rollout is not touched
    assert all((h[:, 0] != 0).all() for h in (kept if isinstance(kept, tuple) else (kept,)))


def test_before_the_first_step_there_is_nothing_to_forget():
    rnn = RNN(3, 5)
    rnn.reset(torch.ones(4))
    rnn.detach_hidden_state()
    assert rnn.hidden_state is None


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_detaching_cuts_the_gradient_of_the_environments_that_are_done(kind):
    rnn = RNN(2, 4, 1, kind)
    x = torch.randn(3, 2, requires_grad=True)
    rnn(x)
    rnn.detach_hidden_state(torch.tensor([0, 1, 0]))
    rnn(torch.randn(3, 2)).sum().backward()
    assert [bool(row.any()) for row in x.grad] == [True, False, True]
    before = state_rows(rnn)
    rnn.detach_hidden_state()
    assert not state_rows(rnn).requires_grad
    assert torch.equal(state_rows(rnn), before)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_sequences_are_what_single_steps_are(kind):
    rnn = RNN(3, 5, 2, kind)
    x = torch.randn(7, 4, 3)
    rnn(torch.randn(4, 3))
    start = rnn.hidden_state
    steps = torch.cat([rnn(row) for row in x])
    after = state_rows(rnn)
    torch.testing.assert_close(rnn(x, hidden_state=start), steps)
    torch.testing.assert_close(rnn(x, torch.ones(7, 4, dtype=torch.bool), start), steps)
    assert torch.equal(state_rows(rnn), after)  # sequences do not touch what is remembered


def test_padded_sequences_need_the_state_before_them():
    with pytest.raises(ValueError, match="hidden_state"):
        RNN(3, 5)(torch.randn(7, 4, 3), torch.ones(7, 4, dtype=torch.bool))


def test_a_memory_forgets_or_takes_a_state():
    with pytest.raises(NotImplementedError, match="not both"):
        RNN(3, 5).reset(torch.ones(4), torch.zeros(1, 4, 5))


def test_one_environment_may_come_without_its_dimension():
    rnn = RNN(3, 5, 1, "gru")
    x = torch.randn(3)
    one = rnn(x)
    rnn.reset()
    assert torch.equal(one, rnn(x.unsqueeze(0)))


def test_memory_has_the_names_of_rsl_rl_3():
    memory = Memory(3, type="gru", num_layers=2, hidden_size=6)
    memory(torch.randn(4, 3))
    assert memory.hidden_states.shape == (2, 4, 6)
    memory.detach_hidden_states(torch.tensor([1, 0, 0, 0]))
    assert memory.hidden_states.requires_grad
    memory.detach_hidden_states()
    assert not memory.hidden_states.requires_grad
    assert Memory(3, 7).rnn.hidden_size == 7
    assert set(memory.state_dict()) == {f"rnn.{k}" for k in memory.rnn.state_dict()}
