"""Heads of every family: how they make a distribution, what they refuse, and how masks bind them."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from surefoot.errors import ConfigError
from surefoot.networks.action_map import ActionMap
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import ActorConfig, CriticConfig, DistributionConfig
from surefoot.networks.distributions import Bernoulli, Beta, Categorical
from surefoot.networks.heads import (
    BernoulliHead,
    BetaHead,
    CategoricalHead,
    Head,
    StateDependentHead,
    make_head,
)
from surefoot.types import EnvSpec

law = settings(max_examples=30, deadline=None)
spaces = gymnasium.spaces
BOX, WIDE = spaces.Box(-1, 1, (2, 3)), spaces.Box(-np.inf, np.inf, (2,))
DISCRETE, SEVERAL, BITS = spaces.Discrete(5), spaces.MultiDiscrete([2, 5, 3]), spaces.MultiBinary(4)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def categorical_head(sizes: list[int], num_features: int = 3) -> CategoricalHead:
    torch.manual_seed(0)
    return CategoricalHead(num_features, sizes)


# ---------------------------------------------------------------------- state-dependent deviations


def state_dependent(
    std_type: Any = "state_dependent",
    init_std: float = 0.5,
    name: Any = "Gaussian",
    last_activation: str | None = None,
    num_features: int = 4,
    **changes: Any,
) -> StateDependentHead:
    torch.manual_seed(0)
    config = DistributionConfig(name, std_type=std_type, init_std=init_std, **changes)
    head = make_head(spaces.Box(-1, 1, (2,)), num_features, config, last_activation)
    assert isinstance(head, StateDependentHead)
    return head


def set_log_std(head: StateDependentHead, value: float) -> None:
    with torch.no_grad():
        if isinstance(head.log_std, torch.nn.Linear):
            head.log_std.weight.zero_()
            head.log_std.bias.fill_(value)
        else:
            head.log_std.fill_(value)


def test_a_state_dependent_deviation_differs_between_states_and_starts_near_the_one_asked_for() -> None:
    std = state_dependent(init_std=0.3)(torch.randn(50, 4, generator=seeded(0))).params["std"]
    assert std.std(0).min() > 0
    torch.testing.assert_close(std, torch.full((50, 2), 0.3), rtol=0.1, atol=0)


@pytest.mark.parametrize("name", ["Gaussian", "SquashedGaussian"])
@pytest.mark.parametrize(("value", "bound"), [(50.0, 2.0), (-50.0, 0.1)])
def test_outside_its_range_a_state_dependent_deviation_is_the_bound_and_still_learns(
    name: Any, value: float, bound: float
) -> None:
    head = state_dependent(name=name, std_range=(0.1, 2.0))
    set_log_std(head, value)
    std = head(torch.ones(3, 4)).params["std"]
    torch.testing.assert_close(std, torch.full((3, 2), bound))
    assert isinstance(head.log_std, torch.nn.Linear)
    (gradient,) = torch.autograd.grad(std.sum(), head.log_std.bias)
    assert (gradient > 0).all()


def test_the_features_learn_from_a_state_dependent_deviation() -> None:
    features = torch.ones(3, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(state_dependent()(features).params["std"].sum(), features)
    assert gradient.abs().sum() > 0


@pytest.mark.parametrize("std_type", ["state_dependent", "gsde"])
def test_a_mean_with_a_state_dependent_deviation_can_be_bounded(std_type: Any) -> None:
    head = state_dependent(std_type, last_activation="tanh")
    with torch.no_grad():
        head.linear.bias.fill_(50.0)
    assert head(torch.ones(2, 4)).mode().tolist() == [[1.0, 1.0]] * 2


def test_a_state_dependent_deviation_has_noise_anew_at_each_sample() -> None:
    head = state_dependent()
    head.explore(3, 0, seeded(0))
    d = head(torch.ones(3, 4))
    assert not torch.equal(d.sample(seeded(1)), d.sample(seeded(2)))


# ---------------------------------------------------------------------- gSDE


def test_the_deviation_of_gsde_is_that_of_a_sum_of_independent_noise() -> None:
    head, features = state_dependent("gsde"), torch.randn(6, 4, generator=seeded(0))
    with torch.no_grad():
        head.log_std.copy_(0.3 * torch.randn(4, 2, generator=seeded(1)))
    expected = (features.square() @ (2 * head.log_std).exp()).sqrt()
    torch.testing.assert_close(head(features).params["std"], expected)


@pytest.mark.parametrize("num_features", [4, 64])
def test_features_of_size_one_give_the_deviation_asked_for(num_features: int) -> None:
    head = state_dependent("gsde", init_std=0.3, num_features=num_features)
    std = head(torch.ones(2, num_features)).params["std"]
    torch.testing.assert_close(std, torch.full((2, 2), 0.3))


def test_the_features_do_not_learn_from_the_deviation_of_gsde() -> None:
    head, features = state_dependent("gsde"), torch.ones(3, 4, requires_grad=True)
    std = head(features).params["std"]
    assert torch.autograd.grad(std.sum(), features, allow_unused=True, retain_graph=True) == (None,)
    (gradient,) = torch.autograd.grad(std.sum(), head.log_std)
    assert (gradient > 0).all()


@pytest.mark.parametrize(("value", "bound"), [(10.0, 2.0), (-20.0, 0.1)])
def test_outside_its_range_the_deviation_of_gsde_is_the_bound_and_still_learns(
    value: float, bound: float
) -> None:
    head = state_dependent("gsde", std_range=(0.1, 2.0))
    set_log_std(head, value)
    std = head(torch.ones(3, 4)).params["std"]
    torch.testing.assert_close(std, torch.full((3, 2), bound))
    (gradient,) = torch.autograd.grad(std.sum(), head.log_std)
    assert (gradient > 0).all()


def noise_of(head: StateDependentHead, features: Tensor) -> Tensor:
    d = head(features)
    return (d.sample(seeded(99)) - d.params["mean"]).detach()


@pytest.mark.parametrize("name", ["Gaussian", "SquashedGaussian"])
def test_the_noise_of_gsde_is_a_function_of_the_features_for_one_interval(name: Any) -> None:
    head, features = state_dependent("gsde", name=name, gsde_interval=3), torch.ones(5, 4)
    generator, noise = seeded(0), []
    for step in range(7):
        head.explore(5, step, generator)
        noise.append(noise_of(head, features))
    for step in range(1, 7):
        # drawn at steps 0, 3 and 6
        assert torch.equal(noise[step], noise[step - 1]) == (step % 3 != 0)
    # each environment has a function of its own, and it is linear in the features
    assert not torch.equal(noise[6][0], noise[6][1])
    torch.testing.assert_close(noise_of(head, 2 * features), 2 * noise[6])


def test_without_an_interval_the_noise_of_gsde_lasts_for_the_rollout() -> None:
    head, features = state_dependent("gsde"), torch.ones(5, 4)
    generator, noise = seeded(0), []
    for step in [0, 1, 50, 0]:
        head.explore(5, step, generator)
        noise.append(noise_of(head, features))
    assert torch.equal(noise[0], noise[1])
    assert torch.equal(noise[0], noise[2])
    assert not torch.equal(noise[0], noise[3])


def test_over_many_noise_functions_the_noise_of_gsde_has_its_deviation() -> None:
    head = state_dependent("gsde")
    with torch.no_grad():
        head.log_std.copy_(torch.randn(4, 2, generator=seeded(1)) - 1)
    features = torch.tensor([[0.5, -1.0, 2.0, 0.1]]).expand(50_000, 4)
    head.explore(50_000, 0, seeded(0))
    noise = noise_of(head, features)
    torch.testing.assert_close(noise.mean(0), torch.zeros(2), rtol=0, atol=0.03)
    torch.testing.assert_close(noise.std(0), head(features).params["std"][0].detach(), rtol=0.02, atol=0)


def test_after_the_rollout_the_noise_of_gsde_is_gone() -> None:
    head, features = state_dependent("gsde"), torch.ones(5, 4)
    head.explore(5, 0, seeded(0))
    assert torch.equal(head(features).sample(seeded(1)), head(features).sample(seeded(2)))
    head.end_exploration()
    assert not torch.equal(head(features).sample(seeded(1)), head(features).sample(seeded(2)))
    # any number of rows may then be evaluated
    assert head(torch.ones(17, 4)).sample(seeded(1)).shape == (17, 2)


def test_the_noise_of_gsde_follows_its_generator_alone() -> None:
    results = []
    for seed in (3, 3, 4):
        head = state_dependent("gsde")
        torch.manual_seed(len(results))
        head.explore(5, 0, seeded(seed))
        results.append(noise_of(head, torch.ones(5, 4)))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_the_noise_of_gsde_leaves_the_mode_alone() -> None:
    head, features = state_dependent("gsde"), torch.ones(5, 4)
    before = head(features).mode()
    head.explore(5, 0, seeded(0))
    assert torch.equal(head(features).mode(), before)
    assert not torch.equal(head(features).sample(), before)


# ---------------------------------------------------------------------- uneven choices


@law
@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4), seed=st.integers(0, 2**31))
def test_uneven_choices_equal_separate_categoricals(sizes: list[int], seed: int) -> None:
    head = categorical_head(sizes).double()
    features = torch.randn(2, 40, 3, generator=seeded(seed), dtype=torch.float64)
    d, other = (head(5 * x) for x in features)
    a, b = (
        [torch.distributions.Categorical(logits=part) for part in head.linear(5 * x).split(sizes, -1)]
        for x in features
    )
    action = d.sample(seeded(seed))
    # a padded choice is never taken
    assert (action < torch.tensor(sizes)).all()
    assert (d.mode() < torch.tensor(sizes)).all()
    each = [p.log_prob(column) for p, column in zip(a, action.unbind(-1), strict=True)]
    torch.testing.assert_close(d.log_prob(action), sum(each))
    torch.testing.assert_close(d.entropy(), sum(p.entropy() for p in a))
    kls = [torch.distributions.kl_divergence(p, q) for p, q in zip(a, b, strict=True)]
    torch.testing.assert_close(d.kl(other), sum(kls))


def test_uneven_choices_have_probabilities_that_sum_to_one_and_finite_gradients() -> None:
    head = categorical_head([2, 5, 3])
    d = head(torch.randn(4, 3, generator=seeded(0)))
    probabilities = d.log_probs.exp()
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(4, 3))
    assert probabilities[:, 0, 2:].max().item() == 0.0
    (gradient,) = torch.autograd.grad(d.entropy().sum() + d.kl(d).sum(), head.linear.weight)
    assert gradient.isfinite().all()


def test_every_value_of_uneven_choices_is_sampled() -> None:
    head = categorical_head([2, 5, 3])
    with torch.no_grad():
        head.linear.weight.zero_()
        head.linear.bias.zero_()
    x = head(torch.zeros(30_000, 3)).sample(seeded(0))
    for column, size in zip(x.unbind(1), [2, 5, 3], strict=True):
        shares = column.bincount(minlength=5) / len(x)
        torch.testing.assert_close(shares[:size], torch.full((size,), 1 / size), rtol=0, atol=0.02)


def test_a_table_of_choices_reaches_the_environment_in_its_shape_and_range() -> None:
    nvec, start = np.array([[2, 5], [3, 4]]), np.array([[10, -3], [0, 1]])
    space = spaces.MultiDiscrete(nvec, start=start)
    torch.manual_seed(0)
    head, to_env = make_head(space, 3, DistributionConfig(), None), ActionMap(space)
    actions = to_env(head(torch.randn(500, 3)).sample(seeded(0)))
    assert actions.shape == (500, 2, 2)
    assert all(space.contains(a) for a in actions.numpy())
    # both ends of every range are reached
    assert actions.amin(0).tolist() == start.tolist()
    assert actions.amax(0).tolist() == (start + nvec - 1).tolist()


# ---------------------------------------------------------------------- rebuilding


MAKERS: dict[str, Any] = {
    "Beta": lambda: BetaHead(4, 2),
    "state_dependent": lambda: state_dependent(),
    "squashed state_dependent": lambda: state_dependent(name="SquashedGaussian"),
    "gsde": lambda: state_dependent("gsde"),
    "squashed gsde": lambda: state_dependent("gsde", name="SquashedGaussian"),
    "MultiCategorical": lambda: categorical_head([2, 5, 3], 4),
    "even MultiCategorical": lambda: categorical_head([3, 3], 4),
    "Bernoulli": lambda: BernoulliHead(4, 3),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_head_rebuilds_its_distribution_from_the_stored_parameters(name: str) -> None:
    torch.manual_seed(0)
    head: Head = MAKERS[name]()
    head.explore(6, 0, seeded(0))
    d = head(torch.randn(6, 4, generator=seeded(1)))
    again = head.rebuild(d.params)
    action = d.sample(seeded(0))
    assert type(again) is type(d)
    assert torch.equal(d.log_prob(action), again.log_prob(action))
    assert again.kl(d).abs().max().item() == 0.0
    other = head(torch.randn(6, 4, generator=seeded(2)))
    assert again.kl(other).min().item() > 0


@pytest.mark.parametrize("name", [name for name in MAKERS if "gsde" not in name])
def test_low_precision_ends_at_every_last_layer(name: str) -> None:
    head = MAKERS[name]()
    with torch.autocast("cpu", torch.bfloat16):
        params = head(torch.randn(6, 4)).params
    assert {x.dtype for x in params.values()} == {torch.float32}


def test_a_beta_head_has_one_peak_whatever_its_weights() -> None:
    head = BetaHead(3, 2)
    with torch.no_grad():
        head.linear.weight.zero_()
        head.linear.bias.copy_(torch.tensor([-100.0, 100.0, 0.0, -5.0]))
    d = head(torch.zeros(1, 3))
    assert isinstance(d, Beta)
    # 1 + softplus: 1 + 0 and 1 + 100, then 1 + log 2 and a little over 1
    assert d.alpha.tolist()[0] == pytest.approx([1.0, 101.0])
    assert d.beta.tolist()[0] == pytest.approx([1 + math.log(2), 1 + math.log1p(math.exp(-5.0))])


# ---------------------------------------------------------------------- what fits which space


def test_the_head_fits_each_kind_of_space() -> None:
    def head(space: Any, name: Any = "auto") -> Head:
        return make_head(space, 3, DistributionConfig(name), None)

    assert head(BOX, "Beta").linear.out_features == 12
    assert isinstance(head(SEVERAL)(torch.zeros(2, 3)), Categorical)
    assert head(SEVERAL).linear.out_features == 2 + 5 + 3
    assert isinstance(head(spaces.MultiBinary((2, 3)))(torch.zeros(2, 3)), Bernoulli)
    assert head(spaces.MultiBinary((2, 3))).linear.out_features == 6


@pytest.mark.parametrize(
    ("space", "name", "last_activation", "message"),
    [
        (DISCRETE, "Beta", None, r"'Beta' needs a Box action space, not Discrete\(5\).*Categorical"),
        (
            SEVERAL,
            "Categorical",
            None,
            r"'Categorical' needs a Discrete.*not MultiDiscrete.*MultiCategorical",
        ),
        (DISCRETE, "MultiCategorical", None, "'MultiCategorical' needs a MultiDiscrete"),
        (BITS, "MultiCategorical", None, r"needs a MultiDiscrete.*not MultiBinary\(4\).*Bernoulli"),
        (
            BOX,
            "Bernoulli",
            None,
            "'Bernoulli' needs a MultiBinary.*not Box.*Gaussian, SquashedGaussian, Beta",
        ),
        (BOX, "Beta", "tanh", "last_activation 'tanh' needs a Gaussian.*not Beta"),
        (SEVERAL, "auto", "tanh", "last_activation.*not MultiCategorical over MultiDiscrete"),
        (BITS, "auto", "tanh", "last_activation.*not Bernoulli over MultiBinary"),
    ],
)
def test_a_family_that_does_not_fit_is_refused_with_those_that_do(
    space: Any, name: Any, last_activation: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_head(space, 3, DistributionConfig(name), last_activation)


@pytest.mark.parametrize("low", [-np.inf, 0.0])
def test_a_beta_needs_bounds(low: float) -> None:
    with pytest.raises(ConfigError, match=r"Beta needs a Box with finite bounds.*use Gaussian"):
        ActionMap(spaces.Box(low, np.inf, (2,)), "Beta")


def test_a_beta_is_mapped_to_the_bounds() -> None:
    space = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 5.0], np.float32))
    raw = torch.tensor([[-1.0, -1.0], [0.5, 0.5], [1.0, 1.0]])
    assert ActionMap(space, "Beta")(raw).tolist() == [[-1.0, 0.0], [0.5, 3.75], [1.0, 5.0]]


def test_bits_and_choices_are_mapped_to_the_shape_of_the_space() -> None:
    bits = torch.tensor([[0, 1, 1, 0, 0, 1]])
    assert ActionMap(spaces.MultiBinary((2, 3)))(bits).tolist() == [[[0, 1, 1], [0, 0, 1]]]
    assert ActionMap(BITS)(torch.tensor([[0, 1, 0, 1]])).tolist() == [[0, 1, 0, 1]]
    choices = ActionMap(spaces.MultiDiscrete([2, 5, 3], start=[1, 0, -1]))(torch.tensor([[1, 4, 0]]))
    assert choices.tolist() == [[2, 4, -1]]
    assert choices.dtype == torch.int64


@pytest.mark.parametrize(
    ("space", "name"),
    [
        (spaces.Box(np.float32([-2, 3]), np.float32([4, 3.5])), "Beta"),
        (spaces.MultiDiscrete([2, 5, 3], start=[1, 0, -1]), "auto"),
        (spaces.MultiBinary((2, 3)), "auto"),
        (spaces.MultiBinary(4), "Bernoulli"),
    ],
)
@pytest.mark.parametrize("deterministic", [True, False])
def test_the_actions_of_a_policy_lie_in_the_space(space: Any, name: Any, deterministic: bool) -> None:
    torch.manual_seed(0)
    config = ActorConfig(hidden_dims=[8], distribution=DistributionConfig(name))
    policy = ActorCritic(EnvSpec({"policy": WIDE}, space, 4), config, CriticConfig(hidden_dims=[8]))
    actions = policy.act({"policy": 3 * torch.randn(200, 2)}, deterministic, seeded(0))
    assert all(space.contains(a.astype(space.dtype)) for a in actions.numpy())


# ---------------------------------------------------------------------- masks


def masked_policy(actions: Any, mask_space: Any) -> ActorCritic:
    torch.manual_seed(0)
    spec = EnvSpec({"policy": WIDE, "action_mask": mask_space}, actions, num_envs=4)
    return ActorCritic(spec, ActorConfig(hidden_dims=[8], last_layer_gain=3.0), CriticConfig(hidden_dims=[8]))


@st.composite
def sizes_and_allowed(draw: Any, max_actions: int = 3) -> tuple[list[int], list[set[int]]]:
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=max_actions))
    return sizes, [draw(st.sets(st.integers(0, n - 1), min_size=1)) for n in sizes]


def mask_of(sizes: list[int], allowed: list[set[int]]) -> Tensor:
    return torch.tensor([int(k in a) for n, a in zip(sizes, allowed, strict=True) for k in range(n)])


def masked_observations(mask: Tensor, rows: int = 200) -> dict[str, Tensor]:
    features = 3 * torch.randn(rows, 2, generator=seeded(0))
    return {"policy": features, "action_mask": mask.expand(rows, *mask.shape)}


@law
@given(case=sizes_and_allowed(max_actions=1))
def test_a_forbidden_action_is_never_taken(case: tuple[list[int], list[set[int]]]) -> None:
    (size,), (allowed,) = case
    policy = masked_policy(spaces.Discrete(size, start=7), spaces.MultiBinary(size))
    obs = masked_observations(mask_of([size], [allowed]))
    for deterministic in (True, False):
        taken = policy.act(obs, deterministic, seeded(0)) - 7
        assert set(taken.tolist()) <= allowed


@law
@given(case=sizes_and_allowed())
def test_a_forbidden_choice_of_several_is_never_taken(case: tuple[list[int], list[set[int]]]) -> None:
    sizes, allowed = case
    policy = masked_policy(spaces.MultiDiscrete(sizes), spaces.MultiBinary(sum(sizes)))
    obs = masked_observations(mask_of(sizes, allowed))
    for deterministic in (True, False):
        taken = policy.act(obs, deterministic, seeded(0))
        for column, fine in zip(taken.unbind(1), allowed, strict=True):
            assert set(column.tolist()) <= fine
    entropy = policy.action_distribution(policy.inputs(obs)).entropy()
    # no more than that of equal shares of what is allowed
    assert entropy.max().item() <= sum(math.log(len(fine)) for fine in allowed) + 1e-4
    assert entropy.min().item() >= 0


@law
@given(mask=st.lists(st.booleans(), min_size=1, max_size=6))
def test_a_forbidden_bit_stays_zero(mask: list[bool]) -> None:
    policy = masked_policy(spaces.MultiBinary(len(mask)), spaces.MultiBinary(len(mask)))
    obs = masked_observations(torch.tensor(mask))
    sampled = policy.act(obs, False, seeded(0))
    # every bit that may be 1 is 1 somewhere
    assert sampled.any(0).tolist() == mask
    assert not policy.act(obs)[:, ~torch.tensor(mask)].any()


def test_a_mask_may_have_the_shape_of_the_bits() -> None:
    policy = masked_policy(spaces.MultiBinary((2, 3)), spaces.Box(0, 1, (2, 3), np.int8))
    mask = torch.tensor([[1, 0, 1], [0, 0, 1]], dtype=torch.int8)
    sampled = policy.act(masked_observations(mask), False, seeded(0))
    assert sampled.any(0).tolist() == mask.bool().tolist()


def test_each_row_obeys_its_own_mask() -> None:
    policy = masked_policy(spaces.Discrete(3), spaces.MultiBinary(3))
    masks = torch.eye(3, dtype=torch.int8)
    obs = {"policy": torch.randn(3, 2), "action_mask": masks}
    assert policy.act(obs, False, seeded(0)).tolist() == [0, 1, 2]
    # the probability of what alone is allowed is 1
    out = policy(obs, torch.tensor([[0], [1], [2]]))
    assert out.log_prob.tolist() == [0.0] * 3
    assert out.entropy.abs().max().item() == 0.0


@pytest.mark.parametrize(
    ("actions", "size"), [(DISCRETE, 5), (SEVERAL, 10), (spaces.MultiDiscrete([3, 3]), 6), (BITS, 4)]
)
def test_a_row_in_which_nothing_is_allowed_stays_finite(actions: Any, size: int) -> None:
    policy = masked_policy(actions, spaces.MultiBinary(size))
    mask = torch.ones(3, size)
    mask[1] = 0
    obs = {"policy": torch.randn(3, 2), "action_mask": mask}
    raw = policy.action_distribution(policy.inputs(obs)).sample(seeded(0))
    out = policy(obs, raw)
    values = (out.log_prob, out.entropy, out.distribution.kl(out.distribution), out.value)
    assert all(x.isfinite().all() for x in values)
    sum(x.sum() for x in values).backward()
    assert all(p.grad.isfinite().all() for p in policy.parameters() if p.grad is not None)


@pytest.mark.parametrize(
    ("actions", "size", "message"),
    [
        (DISCRETE, 4, "action_mask has 4 entries; expected 5: one entry for each value of each action"),
        (SEVERAL, 3, "action_mask has 3 entries; expected 10"),
        (BITS, 8, "action_mask has 8 entries; expected 4: one entry for each bit"),
        (BOX, 6, "action_mask, but its actions are a Box"),
    ],
)
def test_a_mask_that_does_not_fit_the_actions_is_refused(actions: Any, size: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        masked_policy(actions, spaces.MultiBinary(size))


def test_the_mask_is_no_input_of_a_network() -> None:
    policy = masked_policy(DISCRETE, spaces.MultiBinary(5))
    assert policy.groups == {"actor": ["policy"], "critic": ["policy"]}
    free, bound = (masked_observations(m, 4) for m in (torch.ones(5), torch.tensor([1, 0, 0, 0, 1])))
    assert torch.equal(policy.value(free), policy.value(bound))


@pytest.mark.parametrize(("log_std", "size"), [(0.0, 5.0), (-5.0, 1.0)])
def test_bounded_gsde_noise_has_the_deviation_that_is_recorded(log_std: float, size: float) -> None:
    config = DistributionConfig(std_type="gsde", init_std=0.7, std_range=(0.5, 1.0))
    part = StateDependentHead(4, 1, config, None)
    assert isinstance(part.log_std, nn.Parameter)
    with torch.no_grad():
        part.log_std.fill_(log_std)
    part.explore(20_000, 0, torch.Generator().manual_seed(0))
    d = part(torch.full((20_000, 4), size))
    spread = (d.sample() - d.params["mean"]).std().item()
    assert spread == pytest.approx(d.params["std"][0].item(), rel=0.02)
