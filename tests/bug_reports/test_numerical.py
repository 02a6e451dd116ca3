"""Public bug reports on numbers: those that are not finite, noise that is taken for signal, and a policy that
is not the one that acted. Each test carries the number of its report.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from algorithm.hand_made import Task, Watcher, make_ppo, make_spec, weights_of
from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.extension import Extension
from surefoot.algorithm.losses import adapt_beta
from surefoot.algorithm.ppo import PPO
from surefoot.algorithm.returns import gae
from surefoot.envs.gymnasium import GymnasiumVecEnv
from surefoot.errors import ConfigError, EnvContractError, NonFiniteError
from surefoot.extensions.reward_scaling import RewardScaling
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import ActorConfig, CriticConfig, DistributionConfig
from surefoot.networks.distributions import Bernoulli, Categorical, Gaussian
from surefoot.networks.normalizers import RunningNormalizer
from surefoot.testing import ConstantEnv, TargetEnv
from surefoot.testing.gymnasium_environments import GymMasked
from surefoot.training.checkpoint import load_checkpoint, named_tensors
from surefoot.training.guards import MAX_SKIPPED_UPDATES
from surefoot.training.loggers import read_records
from surefoot.training.on_policy_runner import OnPolicyRunner
from surefoot.types import Batch, PolicyOutput, Step

pytestmark = pytest.mark.filterwarnings("ignore:a rollout of")

NAN, INF = math.nan, math.inf
SMALL: dict[str, Any] = {
    "num_steps_per_env": 8,
    "actor": {"hidden_dims": [8]},
    "critic": {"hidden_dims": [8]},
    "algorithm": {"num_mini_batches": 2, "num_learning_epochs": 2},
    "logger": "none",
}
NORMALISED: dict[str, Any] = {"hidden_dims": [8], "obs_normalization": True}


def make_runner(environment: Any = None, run_dir: Path | None = None, **config: Any) -> OnPolicyRunner:
    merged = {key: {**SMALL.get(key, {}), **x} if isinstance(x, dict) else x for key, x in config.items()}
    return OnPolicyRunner(environment or TargetEnv(4, num_actions=2), SMALL | merged, run_dir, quiet=True)


def assert_finite(state: Any) -> None:
    for name, tensor in named_tensors(state):
        assert tensor.isfinite().all(), name


# ---------------------------------------------------------------------- N01, N13: the deviation of the noise

STD_TYPES = ("scalar", "log", "state_dependent", "gsde")


def std_parameter(policy: ActorCritic) -> nn.Parameter:
    """Where the deviation, or its logarithm, stands, whatever the `std_type`."""
    head: Any = policy.action_head
    parameter = getattr(head, "std_param", None)
    if parameter is None:
        parameter = head.log_std if isinstance(head.log_std, nn.Parameter) else head.log_std.bias
    return parameter


def fill(parameter: nn.Parameter, value: float) -> None:
    with torch.no_grad():
        parameter.fill_(value)


class Indifferent(TargetEnv):
    """Rewards that no action changes; actions must be finite."""

    def judge(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        assert actions.isfinite().all()
        return torch.randn(self.num_envs, generator=self.generator), torch.zeros(self.num_envs) > 0


BELOW_THE_FLOOR = {"scalar": -0.5, "log": -120.0, "state_dependent": -7.5, "gsde": -7.5}


@pytest.mark.parametrize("std_type", STD_TYPES)
def test_n01_a_std_parameter_driven_below_its_floor_acts_and_recovers(std_type: str) -> None:
    runner = make_runner(
        Indifferent(4, num_actions=2),
        num_steps_per_env=4,
        actor={"distribution": {"std_type": std_type}},
        algorithm={"entropy_coef": 0.05, "learning_rate": 0.01, "schedule": "fixed"},
    )
    fill(std_parameter(runner.policy), BELOW_THE_FLOOR[std_type])
    for iterations in (3, 47):
        runner.learn(iterations)
        assert_finite(runner.alg.state_dict())
        assert runner.metrics["Loss/skipped_updates"] == 0
    assert runner.alg.storage.distribution["std"].min() > 0.0011  # the floor is .001


@pytest.mark.parametrize("std_type", STD_TYPES)
@pytest.mark.parametrize("iteration", [0, 2])
def test_n01_a_std_parameter_that_is_nan_is_named_with_the_iteration(std_type: str, iteration: int) -> None:
    # with normalisation the environment is stepped before iteration 0, and must not be blamed
    runner = make_runner(actor={"distribution": {"std_type": std_type}, "obs_normalization": True})
    runner.learn(iteration)
    fill(std_parameter(runner.policy), NAN)
    name = next(n for n, p in runner.alg.named_parameters() if p is std_parameter(runner.policy))
    with pytest.raises(NonFiniteError, match=rf"'{name}' is not finite at iteration {iteration}"):
        runner.learn(1)


@pytest.mark.parametrize("name", ["Gaussian", "SquashedGaussian"])
@pytest.mark.parametrize("std_type", STD_TYPES)
def test_n13_an_extreme_std_parameter_gives_finite_actions_and_densities(std_type: Any, name: Any) -> None:
    distribution = DistributionConfig(name, std_type=std_type)
    spec = make_spec(4, 3, gymnasium.spaces.Box(-1, 1, (2,)))
    ppo = make_ppo(spec=spec, actor=ActorConfig(hidden_dims=[8], distribution=distribution))
    inputs = ppo.policy.inputs({"policy": torch.randn(1000, 3)})
    low, high = distribution.std_range
    for value in (-120.0, 20.0, 100.0, 1e30, -1e30):
        fill(std_parameter(ppo.policy), value)
        d: Any = ppo.policy.action_distribution(inputs)
        assert d.params["std"].min() >= low * 0.999
        assert d.params["std"].max() <= high * 1.001
        raw = d.sample(torch.Generator().manual_seed(0))
        for x in (raw, d.log_prob(raw), d.entropy(torch.Generator().manual_seed(0)), d.kl(d)):
            assert x.isfinite().all()
        assert raw.abs().max() < 100
        assert_finite(Task().run(ppo, 1))
        assert_finite(ppo.state_dict())


@pytest.mark.parametrize("std_type", STD_TYPES)
@pytest.mark.parametrize(("value", "inwards"), [(-120.0, 1.0), (20.0, -1.0)])
def test_n13_at_a_bound_the_parameter_can_be_pushed_inwards(
    std_type: Any, value: float, inwards: float
) -> None:
    actor = ActorConfig(hidden_dims=[8], distribution=DistributionConfig(std_type=std_type))
    ppo = make_ppo(spec=make_spec(4, 3, 2), actor=actor)
    fill(std_parameter(ppo.policy), value)
    ppo.policy.project()
    d: Any = ppo.policy.action_distribution(ppo.policy.inputs({"policy": torch.randn(50, 3)}))
    (gradient,) = torch.autograd.grad(inwards * d.params["std"].sum(), std_parameter(ppo.policy))
    assert (gradient * inwards > 0).all()


@pytest.mark.parametrize("std_type", STD_TYPES)
def test_n13_an_extreme_observation_gives_finite_actions_and_densities(std_type: Any) -> None:
    actor = ActorConfig(hidden_dims=[8], distribution=DistributionConfig(std_type=std_type))
    ppo = make_ppo(spec=make_spec(64, 3, 2), actor=actor)
    d: Any = ppo.policy.action_distribution(ppo.policy.inputs({"policy": 1e6 * torch.randn(64, 3)}))
    raw = d.sample(torch.Generator().manual_seed(0))
    assert raw.isfinite().all()
    assert d.log_prob(raw).isfinite().all()
    assert_finite(Task(spread=1e6).run(ppo, 2))


def test_n13_the_gradient_of_the_deviation_is_not_that_of_the_mean() -> None:
    actor = ActorConfig(hidden_dims=[8], distribution=DistributionConfig(std_type="state_dependent"))
    head: Any = make_ppo(spec=make_spec(4, 3, 2), actor=actor).policy.action_head
    d = head(torch.randn(5, 8))
    assert torch.autograd.grad(d.params["std"].sum(), head.linear.weight, allow_unused=True) == (None,)


# ---------------------------------------------------------------------- N03: from the environment


class Faulty(TargetEnv):
    """One number of environment 1 is wrong after step `at`; keeps what the policy acted on."""

    def __init__(self, at: int, value: float, where: str = "observation", feature: int = 0) -> None:
        super().__init__(16, episode_length=6)
        self.at, self.value, self.where, self.feature = at, value, where, feature
        self.seen: list[Tensor] = []
        self.episode: list[Tensor] = []
        self.steps = 0

    def reset(self, seed: int | None = None, mask: Tensor | None = None) -> dict[str, Tensor]:
        self.now = super().reset(seed, mask)
        return self.now

    def step(self, actions: Tensor) -> Step:
        self.seen.append(self.now["policy"])
        self.episode.append(self.elapsed.clone())
        step = super().step(actions)
        self.steps += 1
        if self.steps == self.at:
            if self.where == "observation":
                step.observations["policy"][1, self.feature] = self.value
            else:
                step.rewards[1] = self.value
        self.now = {g: x.clone() for g, x in step.observations.items()}
        return step

    def good_rows(self, first: int) -> Tensor:
        """What was seen from step `first` on, without environment 1 from the fault to its episode's end."""
        rows = torch.stack(self.seen[first:])
        keep = torch.ones(rows.shape[:2], dtype=torch.bool)
        for t in range(self.at, len(self.seen)):
            if t > self.at and self.episode[t][1] == 0:
                break
            if t >= first:
                keep[t - first, 1] = False
        return rows[keep].double()


WARM_UP = 64
"""Steps of 16 environments before iteration 0."""


@pytest.mark.parametrize(
    ("value", "at"), [(INF, 3), (INF, WARM_UP + 3), (-INF, WARM_UP + 8), (NAN, WARM_UP + 7)]
)
def test_n03_infinity_neither_reaches_the_normaliser_nor_stops_the_run(
    tmp_path: Path, value: float, at: int
) -> None:
    env = Faulty(at, value)
    runner = make_runner(
        env, tmp_path, actor=NORMALISED, critic=NORMALISED, on_nonfinite="quarantine", save_interval=1
    )
    runner.learn(6)
    normalizer = runner.policy.inputs.normalizers["actor"]
    rows = env.good_rows(WARM_UP)
    assert rows.isfinite().all()
    assert normalizer.count.item() == len(rows)
    torch.testing.assert_close(normalizer.mean, rows.mean(0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(normalizer.std, rows.std(0, unbiased=False), rtol=1e-5, atol=1e-5)
    for file in (tmp_path / "checkpoints").glob("*.pt"):
        assert_finite(load_checkpoint(file)["algorithm"])


@pytest.mark.parametrize("where", ["observation", "reward"])
@pytest.mark.parametrize("value", [INF, -INF, NAN])
def test_n03_by_default_the_run_stops_before_anything_counts_it(
    tmp_path: Path, value: float, where: str
) -> None:
    env = Faulty(WARM_UP + 8 + 3, value, where)
    runner = make_runner(env, tmp_path, actor=NORMALISED, save_interval=1)
    with pytest.raises(NonFiniteError, match=f"environment 1: .*{where}.* is {value}"):
        runner.learn(6)
    normalizer = runner.policy.inputs.normalizers["actor"]
    assert normalizer.count.item() == 16 * 8  # those of iteration 0
    assert_finite(runner.alg.state_dict())
    assert load_checkpoint(tmp_path / "checkpoints" / "last.pt")["iteration"] == 0


@pytest.mark.parametrize("value", [INF, -INF, NAN])
def test_n03_a_reward_that_is_not_finite_loses_its_sample_only(value: float) -> None:
    runner = make_runner(
        Faulty(5, value, "reward"),
        env={"reward_scaling": True},
        critic={"value_normalization": True},
        on_nonfinite="quarantine",
    )
    runner.learn(1)
    assert 0 < runner.metrics["Data/quarantined"] <= 6  # at most one episode
    assert runner.metrics["Data/samples_used"] == 16 * 8 - runner.metrics["Data/quarantined"]
    runner.learn(5)
    assert runner.metrics["Data/quarantined"] == 0
    assert runner.metrics["Loss/skipped_updates"] == 0
    assert_finite(runner.alg.state_dict())


@pytest.mark.parametrize("value", [INF, NAN, 3e38])
@pytest.mark.parametrize("popart", [False, True])
def test_n03_without_a_guard_a_reward_still_poisons_no_statistic(value: float, popart: bool) -> None:
    """PPO on its own, in episodes that never end: nothing there would start the running return anew."""

    class Spoilt(Task):
        steps = 0

        def transition(self, ppo: PPO, actions: Tensor) -> Step:
            step = super().transition(ppo, actions)
            self.steps += 1
            step.rewards[1] = value if self.steps in (3, 4) else step.rewards[1]
            return step

    critic = CriticConfig(hidden_dims=[8], value_normalization=popart)
    ppo = make_ppo(critic=critic, extensions=[RewardScaling()])
    metrics = Spoilt(ends=0.0).run(ppo, 3)
    assert_finite(ppo.state_dict())
    assert metrics[-1]["Loss/skipped_updates"].item() == 0


def test_n03_without_a_guard_an_infinite_observation_still_reaches_no_statistic() -> None:
    ppo = make_ppo(actor=ActorConfig(**NORMALISED), critic=CriticConfig(**NORMALISED))
    Task().collect(ppo)
    rows = ppo.storage.observations["policy"]
    rows[3, 1, 0] = INF
    clean = rows[:-1].reshape(-1, 3)
    clean = clean[clean.isfinite().all(-1)].double()
    ppo.update()
    normalizer = ppo.policy.inputs.normalizers["actor"]
    assert normalizer.count.item() == 31
    torch.testing.assert_close(normalizer.mean, clean.mean(0))
    torch.testing.assert_close(normalizer.std, clean.std(0, unbiased=False))
    assert normalizer(torch.ones(1, 3)).isfinite().all()


# ---------------------------------------------------------------------- N06: equal advantages


class Rewards(Task):
    """Rewards that the test makes, no ends."""

    def __init__(self, make: Callable[[Step], Tensor]) -> None:
        super().__init__(ends=0.0)
        self.make = make

    def transition(self, ppo: PPO, actions: Tensor) -> Step:
        step = super().transition(ppo, actions)
        return replace(step, rewards=self.make(step))


def constant_critic(value: float) -> Callable[[ActorCritic], None]:
    def prepare(policy: ActorCritic) -> None:
        with torch.no_grad():
            policy.value_head.weight.zero_()
            policy.value_head.bias.fill_(value)

    return prepare


NOISE = torch.Generator().manual_seed(1)
EQUAL = {
    "constant": (0.0, lambda _: torch.full((4,), 0.1)),
    "zero": (0.0, lambda _: torch.zeros(4)),
    "rounding of large values": (1e6, lambda _: 1e6 + 1e-3 * torch.randn(4, generator=NOISE)),
    "large constant": (0.0, lambda _: torch.full((4,), 1e7 / 3)),
}


@pytest.mark.parametrize("per_mini_batch", [False, True])
@pytest.mark.parametrize("name", EQUAL)
def test_n06_equal_advantages_train_nothing(name: str, per_mini_batch: bool) -> None:
    value, rewards = EQUAL[name]
    config = PPOConfig(gamma=0.0, normalize_advantage_per_mini_batch=per_mini_batch)
    watcher = Watcher()
    ppo = make_ppo(config, extensions=[watcher], prepare=constant_critic(value))
    before = weights_of(ppo)
    # one update only: a critic that has learned has other values for other observations, rightly
    Rewards(rewards).run(ppo)
    assert watcher.seen[0]["advantage"].abs().max() < 1e-3
    for key, parameter in ppo.policy.named_parameters():
        if key.startswith(("actor.", "action_head")):
            assert (parameter - before[f"policy.{key}"]).abs().max() < 1e-6, key


# ---------------------------------------------------------------------- N07: a gradient that is NaN


class BadMiniBatches(Extension):
    """An auxiliary loss that is NaN (or infinite) in the mini-batches from `first` to `last`."""

    def __init__(self, first: int, last: int, number: float = NAN) -> None:
        super().__init__()
        self.first, self.last, self.number, self.calls = first, last, number, 0

    def loss(self, batch: Batch, out: PolicyOutput, policy: ActorCritic) -> dict[str, Tensor]:
        number = self.number if self.first <= self.calls <= self.last else 0.0
        self.calls += 1
        return {"Aux/bad": out.value.mean() * number}


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
@pytest.mark.parametrize("number", [NAN, INF])
@pytest.mark.parametrize("network", ["separate", "shared"])
def test_n07_a_step_with_a_gradient_that_is_not_finite_is_not_made(
    network: Any, number: float, optimizer: Any
) -> None:
    config = PPOConfig(num_mini_batches=4, num_learning_epochs=1, optimizer=optimizer)
    # the third mini-batch of the second iteration
    ppo = make_ppo(config, network=network, extensions=[BadMiniBatches(6, 6, number)])
    states: list[dict[str, Any]] = [ppo.state()]
    update = ppo.optimizer.update
    ppo.optimizer.update = lambda *a: (update(*a), states.append(ppo.state()))[0]  # type: ignore[method-assign,func-returns-value]
    history = Task().run(ppo, 3)
    before, after, following = states[6:9]
    parts = [dict(named_tensors({key: s[key] for key in ("tensors", "optimizers")})) for s in states[6:8]]
    assert parts[0].keys() == parts[1].keys()
    for name, tensor in parts[0].items():
        if not name.endswith("rate") and ".lr" not in name:  # the KL is finite, so the rate may adapt
            assert torch.equal(tensor, parts[1][name]), name
    assert [m["Loss/skipped_updates"].item() for m in history] == [0, 1, 0]
    name = "policy.value_head.weight"
    assert not torch.equal(following["tensors"][name], after["tensors"][name])  # the next one trains
    assert torch.equal(before["tensors"][name], after["tensors"][name])
    assert_finite(ppo.state_dict())


def test_n07_a_critic_that_returns_nan_once_costs_one_step_and_the_files_stay_good(tmp_path: Path) -> None:
    runner = make_runner(run_dir=tmp_path, save_interval=1)
    calls = []

    def faulty(_module: object, _inputs: object, value: Tensor) -> Tensor:
        calls.extend([1] * torch.is_grad_enabled())  # only while it learns
        return value * NAN if len(calls) == 6 and torch.is_grad_enabled() else value

    runner.policy.value_head.register_forward_hook(faulty)
    with pytest.warns(UserWarning, match=r"iteration 1: an update .* was skipped"):
        runner.learn(3)
    records = read_records(tmp_path / "metrics.jsonl")
    assert [r["Loss/skipped_updates"] for r in records] == [0, 1, 0]
    files = list((tmp_path / "checkpoints").glob("*.pt"))
    assert len(files) >= 4
    for file in files:
        assert_finite(load_checkpoint(file)["algorithm"])


@pytest.mark.filterwarnings("ignore:iteration")
def test_n07_skips_in_a_row_stop_the_run_and_leave_the_last_good_checkpoint(tmp_path: Path) -> None:
    runner = make_runner(run_dir=tmp_path, save_interval=1)
    runner.alg.extensions.append(BadMiniBatches(4, 1000))  # from iteration 1 on
    with pytest.raises(NonFiniteError, match=r"updates in a row .*last good checkpoint is intact"):
        runner.learn(20)
    # four updates an iteration
    assert runner.iteration <= 1 + math.ceil(MAX_SKIPPED_UPDATES / 4)
    state = load_checkpoint(tmp_path / "checkpoints" / "last.pt")
    assert_finite(state["algorithm"])
    fresh = make_runner()
    fresh.load(tmp_path)
    fresh.learn(1)


def test_n07_weights_that_are_not_finite_never_replace_a_good_file(tmp_path: Path) -> None:
    runner = make_runner(run_dir=tmp_path)
    runner.learn(1)
    before = {p: p.read_bytes() for p in (tmp_path / "checkpoints").iterdir()}
    with torch.no_grad():
        runner.policy.value_head.weight[0, 0] = NAN
    with pytest.raises(NonFiniteError, match=r"policy\.value_head\.weight"):
        runner.save()
    with pytest.raises(NonFiniteError, match=r"policy\.value_head\.weight"):
        runner.learn(1)
    assert {p: p.read_bytes() for p in (tmp_path / "checkpoints").iterdir()} == before


# ---------------------------------------------------------------------- N09: choices without probability

HARD = [0.0, -200.0, -INF, -85.0]
ONE_LEFT = [0.0, -INF, -INF, -INF]
UNIFORM = [0.0] * 4


@pytest.mark.parametrize("other", [HARD, ONE_LEFT, UNIFORM, [3e38, -3e38, -INF, 0.0]])
@pytest.mark.parametrize("first", [HARD, ONE_LEFT, UNIFORM, [INF, 0.0, 0.0, -INF]])
@pytest.mark.parametrize("num_actions", [1, 40])
def test_n09_choices_without_probability_leave_everything_finite(
    first: list[float], other: list[float], num_actions: int
) -> None:
    a, b = (torch.tensor([x] * num_actions, requires_grad=True) for x in (first, other))
    choices = [Categorical(x.unsqueeze(0)) for x in (a, b)], torch.zeros(1, num_actions)
    bits = [Bernoulli(x.reshape(1, -1)) for x in (a, b)], torch.zeros(1, num_actions * 4)
    for (mine, theirs), action in (choices, bits):
        values = [mine.entropy(), mine.kl(mine), mine.kl(theirs), mine.log_prob(action)]
        for value in values:
            assert value.isfinite().all()
        assert all((value >= 0).all() for value in values[:3])
        gradients = torch.autograd.grad(sum(x.sum() for x in values), [a, b], allow_unused=True)
        assert all(g is None or g.isfinite().all() for g in gradients)


@settings(max_examples=50, deadline=None)
@given(
    logits=st.lists(
        st.one_of(st.floats(-300, 300), st.just(-INF), st.floats(-1e30, 1e30)), min_size=2, max_size=6
    )
)
def test_n09_entropy_and_kl_of_any_logits_are_finite_and_not_negative(logits: list[float]) -> None:
    mine = Categorical(torch.tensor([[logits]]))
    even = Categorical(torch.zeros(1, 1, len(logits)))
    for value in (mine.entropy(), mine.kl(mine), mine.kl(even), even.kl(mine)):
        assert value.isfinite().all()
        assert (value >= -1e-6).all()


class OneAllowed(GymMasked):
    """Of four actions all but one are masked; from step 5 on, that one too if `none_from` says so."""

    def __init__(self, none_from: int = 10**9) -> None:
        super().__init__()
        self.none_from, self.total = none_from, 0

    def _allow(self) -> dict[str, Any]:
        info = super()._allow()
        self.total += 1
        self.mask[:] = 0
        self.mask[self.total % 4] = self.total < self.none_from
        return info | {"action_mask": self.mask.copy()}


def masked_runner(none_from: int = 10**9) -> OnPolicyRunner:
    env = GymnasiumVecEnv(SyncVectorEnv([lambda: OneAllowed(none_from)] * 4))
    return make_runner(env, algorithm={"entropy_coef": 0.01})


def test_n09_three_masked_actions_of_four_train_with_finite_numbers() -> None:
    runner = masked_runner()
    runner.learn(3)
    assert_finite(runner.alg.state_dict())
    assert runner.metrics["Loss/entropy"] == pytest.approx(0.0, abs=1e-6)
    assert runner.metrics["Loss/kl"] == pytest.approx(0.0, abs=1e-6)
    assert runner.metrics["Loss/skipped_updates"] == 0


def test_n09_a_row_in_which_everything_is_masked_is_an_error_that_says_so() -> None:
    with pytest.raises(EnvContractError, match=r"environment \d.*action"):
        masked_runner(none_from=14).learn(3)


@pytest.mark.parametrize("kl", [100.0, 0.0, NAN])
def test_n09_the_coefficient_of_the_kl_penalty_stays_within_its_bounds(kl: float) -> None:
    beta = torch.tensor(1.0)
    for _ in range(1000):
        beta = adapt_beta(beta, torch.tensor(kl), 0.01)
    assert 0.999e-4 <= beta.item() <= 1e4


def test_n09_a_penalty_run_whose_kl_stays_high_goes_on_with_finite_weights() -> None:
    config = PPOConfig(
        policy_objective="penalty",
        schedule="fixed",
        learning_rate=0.05,
        kl_target=1e-6,
        kl_beta=1e3,
        num_mini_batches=2,
        num_learning_epochs=2,
    )
    ppo = make_ppo(config)
    Task().run(ppo, 12)
    objective: Any = ppo.objective
    assert objective.beta.item() == pytest.approx(1e4)
    assert_finite(ppo.state_dict())


# ---------------------------------------------------------------------- N10, N11: the policy that acted


class ValidWatcher(Watcher):
    """Ratios and KLs of the rows that count."""

    def loss(self, batch: Batch, out: PolicyOutput, policy: ActorCritic) -> dict[str, Tensor]:
        super().loss(batch, out, policy)
        seen = self.seen[-1]
        if batch.mask is not None:
            seen |= {name: seen[name][batch.mask] for name in ("ratio", "kl")}
        return {}


@dataclass
class Still:
    """A policy that is trained at learning rate 0, and what it may differ by."""

    actor: dict[str, Any]
    ratio: float = 1e-5
    kl: float = 1e-7
    mixed_precision: bool = False
    actions: Any = 2


STILL = {
    "mlp": Still({}),
    "normalised": Still({"obs_normalization": True}),
    "gru, ends inside": Still({"rnn_type": "gru", "rnn_hidden_dim": 8}),
    "lstm, ends inside": Still({"rnn_type": "lstm", "rnn_hidden_dim": 8}),
    "layer norm": Still({"layer_norm": True}),
    "gsde": Still({"distribution": DistributionConfig(std_type="gsde")}),
    "discrete": Still({}, actions=gymnasium.spaces.Discrete(4)),
    "bf16": Still({}, ratio=0.05, kl=1e-4, mixed_precision=True),
    "bf16 gru": Still({"rnn_type": "gru", "rnn_hidden_dim": 8}, ratio=0.05, kl=1e-4, mixed_precision=True),
}


@pytest.mark.parametrize("name", STILL)
def test_n10_at_learning_rate_0_the_ratio_is_1_and_the_kl_is_0_in_every_mini_batch(name: str) -> None:
    case = STILL[name]
    watcher = ValidWatcher()
    config = PPOConfig(
        learning_rate=0.0, num_mini_batches=4, num_learning_epochs=3, use_mixed_precision=case.mixed_precision
    )
    actor = ActorConfig(**({"hidden_dims": [8]} | case.actor))
    ppo = make_ppo(config, make_spec(8, 3, case.actions), actor=actor, extensions=[watcher])
    for _ in range(2):
        before = dict(ppo.policy.named_parameters())
        before = {key: x.detach().clone() for key, x in before.items()}
        (metrics,) = Task(ends=0.2).run(ppo)
        assert len(watcher.seen) == 12
        for seen in watcher.seen:
            assert (seen["ratio"] - 1).abs().max() <= case.ratio
            assert seen["kl"].mean().abs() <= case.kl
        assert metrics["Loss/clip_fraction"].item() == 0
        assert metrics["Loss/kl"].abs().item() <= case.kl
        assert metrics["Loss/learning_rate"].item() == 0
        for key, parameter in ppo.policy.named_parameters():
            assert torch.equal(parameter, before[key]), key
        watcher.seen.clear()


class Dropping(nn.Module):
    """Drops features by chance."""

    def __init__(self, num_inputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(num_inputs, 8), nn.Dropout(0.2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class BatchNormed(Dropping):
    """Normalises by the rest of the batch."""

    def __init__(self, num_inputs: int) -> None:
        super().__init__(num_inputs)
        self.layers = nn.Sequential(nn.Linear(num_inputs, 8), nn.BatchNorm1d(8))


class Centred(Dropping):
    """Subtracts the mean of the batch, in training and evaluation alike."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers[0](x)
        return y - y.mean(0)


@pytest.mark.parametrize("network", [Dropping, BatchNormed, Centred])
@pytest.mark.parametrize("side", ["actor", "critic"])
def test_n10_a_network_that_answers_differently_from_call_to_call_is_refused(
    monkeypatch: pytest.MonkeyPatch, network: type[nn.Module], side: str
) -> None:
    module = ModuleType("my_networks")
    module.Net = network  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_networks", module)
    with pytest.raises(ConfigError, match=rf"{side}\.class_name my_networks:Net: .*dropout"):
        make_runner(**{side: {"class_name": "my_networks:Net"}})


def test_n11_with_a_normaliser_the_first_mini_batch_of_each_iteration_is_still_at_ratio_1() -> None:
    watcher = Watcher()
    actor = ActorConfig(hidden_dims=[8], obs_normalization=True)
    ppo = make_ppo(spec=make_spec(16, 3, 2), actor=actor, extensions=[watcher])
    rates: list[float] = []
    update = ppo.optimizer.update
    ppo.optimizer.update = lambda *a: (update(*a), rates.append(ppo.learning_rate.item()))[0]  # type: ignore[method-assign,func-returns-value]
    task = Task(shift=5.0, spread=3.0)
    for _ in range(3):
        rate = ppo.learning_rate.item()
        mean = ppo.policy.inputs.normalizers["actor"].mean.clone()
        watcher.seen.clear()
        rates.clear()
        task.run(ppo)
        assert (watcher.seen[0]["ratio"] - 1).abs().max() < 1e-5
        assert watcher.seen[0]["kl"].mean() < 1e-6
        assert rates[0] == rate
        assert not torch.equal(ppo.policy.inputs.normalizers["actor"].mean, mean)  # it does move, in between


def test_n11_in_a_whole_run_nothing_cuts_the_learning_rate_before_the_first_step() -> None:
    class Shifted(TargetEnv):
        def observe(self) -> dict[str, Tensor]:
            return {g: 3 * torch.randn(x.shape) + 5 for g, x in super().observe().items()}

    runner = make_runner(Shifted(16), actor=NORMALISED, critic=NORMALISED)
    runner.alg.extensions.append(watcher := Watcher())
    for _ in range(3):
        watcher.seen.clear()
        runner.learn(1)
        assert (watcher.seen[0]["ratio"] - 1).abs().max() < 1e-5
        assert watcher.seen[0]["kl"].mean() < 1e-6


# ---------------------------------------------------------------------- N12: low precision


@pytest.mark.parametrize("rnn_type", [None, "gru"])
def test_n12_only_the_bodies_run_in_low_precision(rnn_type: Any) -> None:
    size: dict[str, Any] = {"hidden_dims": [32], "rnn_type": rnn_type, "rnn_hidden_dim": 16}
    distribution = DistributionConfig(init_std=0.1)
    actor = ActorConfig(**size, obs_normalization=True, distribution=distribution, last_layer_gain=1.0)
    config = PPOConfig(num_mini_batches=1, num_learning_epochs=1, use_mixed_precision=True)
    ppo = make_ppo(config, make_spec(16, 3, 12), actor=actor, critic=CriticConfig(**size))
    body_dtypes: list[torch.dtype] = []
    ppo.policy.actor.layers[0].register_forward_hook(lambda *x: body_dtypes.append(x[-1].dtype))  # type: ignore[index]
    Task(ends=0.1).collect(ppo)
    assert torch.bfloat16 in body_dtypes
    rollout = ppo.storage
    for name in ("actions", "actions_log_prob", "values", "returns", "advantages", "rewards"):
        assert getattr(rollout, name).dtype == torch.float32, name
    assert {x.dtype for x in [*rollout.distribution.values(), *rollout.inputs.values()]} == {torch.float32}
    normalizer = ppo.policy.inputs.normalizers["actor"]
    assert normalizer.mean.dtype == torch.float64
    # the returns are those of float32 GAE on the same values; where λ stops, they tell what stood in
    ends = rollout.terminated | rollout.truncated
    bootstrap = torch.where(rollout.truncated, (rollout.returns - rollout.rewards) / 0.99, 0.0)
    _, returns = gae(
        rollout.rewards, rollout.values, rollout.terminated, rollout.truncated, bootstrap, 0.99, 0.95
    )
    assert ends.any()
    torch.testing.assert_close(rollout.returns[~ends], returns[~ends], rtol=1e-5, atol=1e-5)
    ppo.update()
    assert {p.dtype for p in ppo.policy.parameters()} == {torch.float32}
    assert_finite(ppo.state_dict())


def test_n12_the_kl_of_a_policy_that_moved_is_that_of_float32() -> None:
    def policy(mixed_precision: bool, shift: float) -> Gaussian:
        torch.manual_seed(0)
        distribution = DistributionConfig(init_std=0.1)
        actor = ActorConfig(hidden_dims=[32], distribution=distribution, last_layer_gain=0.1)
        policy = ActorCritic(make_spec(4, 3, 12), actor, CriticConfig(hidden_dims=[8]))
        policy.set_mixed_precision(mixed_precision)
        with torch.no_grad():
            policy.action_head.linear.bias.add_(shift)
        x = torch.randn(500, 3, generator=torch.Generator().manual_seed(0))
        d = policy.action_distribution(policy.inputs({"policy": x}))
        assert isinstance(d, Gaussian)
        assert d.mean.dtype == torch.float32
        return d

    # twelve actions, each mean moved by δ at deviation .1: KL = 12 · ½ (δ / .1)²
    shift = 0.1 * math.sqrt(0.01 / 6)
    low, full = (policy(m, 0.0).kl(policy(m, shift)).mean().item() for m in (True, False))
    assert full == pytest.approx(0.01, rel=1e-3)
    assert low == pytest.approx(full, rel=0.05)


# ---------------------------------------------------------------------- N14: running statistics


def rows_around(mean: float, std: float, num: int) -> Tensor:
    return mean + std * torch.randn(num, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_n14_a_small_spread_at_a_large_offset_is_exact() -> None:
    x = rows_around(1e4, 0.5, 100_000).float()
    normalizer = RunningNormalizer(1)
    for part in x.chunk(100):
        normalizer.update(part)
    assert normalizer.count.item() == 100_000
    assert normalizer.mean.item() == pytest.approx(x.double().mean().item(), rel=1e-6)
    assert normalizer.std.item() == pytest.approx(x.double().std().item(), rel=1e-3)


def test_n14_a_constant_feature_that_moves_a_little_stays_small() -> None:
    normalizer = RunningNormalizer(1, clip=None)
    for _ in range(10):
        normalizer.update(torch.full((100, 1), 7.0))
    assert normalizer(torch.tensor([[7.001]])).abs().item() < 10


def test_n14_the_count_is_exact_after_two_billion_rows_and_over_a_reload() -> None:
    normalizer = RunningNormalizer(1)
    normalizer.update(rows_around(0.0, 1.0, 100))
    normalizer.count.fill_(2_000_000_000)
    normalizer.m2.fill_(2e9)
    for rows in (3, 1, 0):
        normalizer.update(torch.full((rows, 1), 5.0))
    again = RunningNormalizer(1)
    again.load_state_dict(normalizer.state_dict())
    again.update(torch.zeros(0, 1))
    assert again.count.item() == 2_000_000_004
    assert again.std.item() == pytest.approx(1.0, rel=1e-6)
    assert torch.equal(again.mean, normalizer.mean)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_n14_batches_of_one_row_and_of_none_are_fine(bad: float) -> None:
    normalizer = RunningNormalizer(2)
    for rows in (torch.zeros(0, 2), torch.tensor([[bad, 1.0]])):
        before = {k: v.clone() for k, v in normalizer.state_dict().items()}
        normalizer.update(rows)
        assert all(torch.equal(v, before[k]) for k, v in normalizer.state_dict().items())
    normalizer.update(torch.tensor([[3.0, 4.0]]))
    assert (normalizer.count.item(), normalizer.mean.tolist()) == (1, [3.0, 4.0])
    assert normalizer(torch.tensor([[3.0, 4.0]])).tolist() == [[0.0, 0.0]]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), sizes=st.lists(st.integers(0, 20), min_size=1, max_size=6))
def test_n14_batches_in_any_pieces_count_once(seed: int, sizes: list[int]) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = 100 + 3 * torch.randn(sum(sizes), 2, generator=generator, dtype=torch.float64)
    parts, whole = RunningNormalizer(2), RunningNormalizer(2)
    for part in x.split(sizes):
        parts.update(part)
    whole.update(x)
    assert parts.count.item() == sum(sizes)
    torch.testing.assert_close(parts.mean, whole.mean, rtol=0, atol=1e-9)
    torch.testing.assert_close(parts.std, whole.std, rtol=0, atol=1e-9)


def test_n14_a_constant_observation_in_a_run_stays_bounded() -> None:
    runner = make_runner(ConstantEnv(4), actor=NORMALISED, critic=NORMALISED)
    runner.learn(3)
    inputs = runner.policy.inputs({"policy": runner.alg.storage.observations["policy"]})
    assert all(x.abs().max() <= 10 for x in inputs.values())
    assert_finite(runner.alg.state_dict())
