"""Public bug reports on actions: bounds, shapes, and environments that change what they are sent. Each test
carries the number of its report.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from torch import Tensor

from algorithm.hand_made import Task, Watcher, make_ppo, make_spec
from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.ppo import PPO
from surefoot.envs.gymnasium import GymnasiumVecEnv
from surefoot.errors import ConfigError, EnvContractError
from surefoot.networks.config import ActorConfig, DistributionConfig
from surefoot.testing import GymTarget, ReusedBufferEnv
from surefoot.training.on_policy_runner import OnPolicyRunner
from surefoot.types import Step

NUM_ENVS = 3
SMALL: dict[str, Any] = {
    "num_steps_per_env": 32,
    "actor": {"hidden_dims": [8]},
    "critic": {"hidden_dims": [8]},
    "algorithm": {"num_mini_batches": 2, "num_learning_epochs": 1},
    "logger": "none",
}


class Recording(gymnasium.Env[np.ndarray[Any, Any], Any]):
    """Keeps its actions, and takes none that is not in its space."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.action_space, self.observation_space = space, spaces.Box(-1, 1, (3,))
        self.taken: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), (action, self.action_space)
        self.taken.append(np.array(action))
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), 0.0, False, len(self.taken) % 7 == 0, {}


def train(space: spaces.Space[Any], iterations: int = 1, **actor: Any) -> tuple[OnPolicyRunner, np.ndarray]:
    """The runner, and every action that the environments were sent [K, ...]."""
    env = GymnasiumVecEnv(SyncVectorEnv([lambda: Recording(space)] * NUM_ENVS))
    config = SMALL | {"actor": {"hidden_dims": [8], **actor}}
    runner = OnPolicyRunner(env, config, quiet=True)
    runner.learn(iterations)
    single: Any = env._envs.unwrapped
    return runner, np.concatenate([np.stack(e.taken) for e in single.envs])


# ---------------------------------------------------------------------- A02: bounds

ASYMMETRIC = spaces.Box(np.array([-1, 0], np.float32), np.array([1, 5], np.float32))
BOUNDED: dict[str, spaces.Box] = {
    "asymmetric": ASYMMETRIC,
    "no exact float32": spaces.Box(0.1, 0.7, (3,)),
    "float64": spaces.Box(-0.1, 0.3, (2,), dtype=np.float64),
    "float16": spaces.Box(-1, 1, (2,), dtype=np.float16),
    "integers": spaces.Box(-3, 4, (2,), dtype=np.int32),
    "bytes": spaces.Box(0, 255, (2,), dtype=np.uint8),
    "matrix": spaces.Box(-2, 3, (2, 3)),
    "one number": spaces.Box(2.0, 2.0, (2,)),
    "huge": spaces.Box(-3e38, 3e38, (2,)),
}


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("distribution", ["Gaussian", "SquashedGaussian", "Beta"])
def test_a02_the_environment_never_gets_an_action_outside_its_box(name: str, distribution: str) -> None:
    """`contains` of the space holds at each step, in `Recording`."""
    init_std = {} if distribution == "Beta" else {"init_std": 10.0}
    runner, taken = train(BOUNDED[name], distribution={"class_name": distribution, **init_std})
    low, high = BOUNDED[name].low, BOUNDED[name].high
    assert (taken >= low).all()
    assert (taken <= high).all()
    assert runner.metrics["Loss/skipped_updates"] == 0
    if distribution == "Gaussian":
        # a deviation of 10 often lies outside, and then the bound itself is sent, to the rounding of float32
        for bound in (low.astype(np.float64), high.astype(np.float64)):
            assert (np.abs(taken - bound) <= 1e-6 * np.abs(bound)).any()


def test_a02_a_float_action_for_an_integer_box_is_rounded_and_not_cut_towards_0() -> None:
    space = spaces.Box(-3, 3, (1,), dtype=np.int64)
    env = GymnasiumVecEnv(SyncVectorEnv([lambda: Recording(space)] * 4))
    env.reset(seed=0)
    env.step(torch.tensor([[-0.6], [0.6], [-2.6], [0.4]]))
    single: Any = env._envs.unwrapped
    assert [e.taken[0].item() for e in single.envs] == [-1, 1, -3, 0]


def test_a02_what_is_clipped_for_the_environment_is_stored_raw_with_its_own_density() -> None:
    actor = ActorConfig(hidden_dims=[8], distribution=DistributionConfig(init_std=10.0))
    ppo = make_ppo(spec=make_spec(64, 3, ASYMMETRIC), actor=actor, num_steps=1)
    task = Task()
    sent = ppo.act(task.observe(ppo))
    ppo.process_env_step(task.transition(ppo, sent))
    ppo.compute_returns(task.observe(ppo))
    raw = ppo.storage.actions[0]
    assert raw.abs().max() > 10
    clipped = raw.clamp(-1, 1)
    torch.testing.assert_close(sent, torch.stack([clipped[:, 0], 2.5 * (clipped[:, 1] + 1)], -1))
    normal = torch.distributions.Normal(ppo.storage.distribution["mean"], ppo.storage.distribution["std"])
    torch.testing.assert_close(ppo.storage.actions_log_prob, normal.log_prob(ppo.storage.actions).sum(-1))


def test_a02_without_bounds_an_action_is_sent_as_it_was_drawn() -> None:
    runner, taken = train(spaces.Box(-np.inf, np.inf, (2,)), distribution={"init_std": 10.0})
    raw = runner.alg.storage.actions[runner.alg.storage.valid]
    assert np.abs(taken).max() > 10
    assert np.isin(raw.numpy(), taken).all()


# ---------------------------------------------------------------------- A04: several actions at once

COUNTED: dict[str, tuple[spaces.Space[Any], list[int]]] = {
    "multi-discrete": (spaces.MultiDiscrete([3, 2]), [3, 2]),
    "table": (spaces.MultiDiscrete([[2, 3, 4], [5, 6, 7]]), [2, 3, 4, 5, 6, 7]),
    "table with a start": (spaces.MultiDiscrete([[2, 3], [3, 2]], start=[[1, 2], [-3, 4]]), [2, 3, 3, 2]),
    "bytes": (spaces.MultiDiscrete([3, 2], dtype=np.uint8), [3, 2]),
    "bits": (spaces.MultiBinary(4), [2] * 4),
    "table of bits": (spaces.MultiBinary((2, 3)), [2] * 6),
    "chess board": (spaces.MultiBinary((8, 8)), [2] * 64),
    "discrete": (spaces.Discrete(4, start=-7), [4]),
}


@pytest.mark.parametrize("name", COUNTED)
def test_a04_counted_actions_arrive_in_their_shape_and_dtype_and_train(name: str) -> None:
    space, sizes = COUNTED[name]
    runner, taken = train(space)
    assert taken.shape[1:] == (space.shape or ())
    assert taken.dtype == space.dtype
    # at the start every value of every part has the same share: entropies of the parts add up
    assert runner.metrics["Loss/entropy"] == pytest.approx(sum(np.log(sizes)), rel=0.02)
    rollout = runner.alg.storage
    assert rollout.actions.shape == (32, NUM_ENVS, len(sizes))
    assert rollout.actions_log_prob.shape == (32, NUM_ENVS)


@pytest.mark.parametrize("name", COUNTED)
def test_a04_the_log_probability_is_a_sum_over_the_parts(name: str) -> None:
    space, sizes = COUNTED[name]
    ppo = make_ppo(spec=make_spec(8, 3, space))
    with torch.no_grad():
        ppo.policy.action_head.linear.weight.mul_(100)
    d: Any = ppo.policy.action_distribution(ppo.policy.inputs({"policy": torch.randn(8, 3)}))
    raw = d.sample(torch.Generator().manual_seed(0))
    if isinstance(space, spaces.MultiBinary):
        parts = [torch.distributions.Bernoulli(logits=x) for x in d.logits.unbind(-1)]
    else:
        parts = [
            torch.distributions.Categorical(logits=x[:, :size])
            for x, size in zip(d.logits.unbind(1), sizes, strict=True)
        ]
    expected = sum(p.log_prob(a.float()) for p, a in zip(parts, raw.unbind(-1), strict=True))
    torch.testing.assert_close(d.log_prob(raw), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Tuple((spaces.Discrete(2), spaces.Box(-1, 1, (2,)))),
        spaces.Dict({"legs": spaces.Box(-1, 1, (2,))}),
        spaces.Text(5),
        spaces.Sequence(spaces.Discrete(2)),
    ],
    ids=lambda space: type(space).__name__,
)
def test_a04_spaces_that_no_policy_can_serve_are_refused_by_name(space: spaces.Space[Any]) -> None:
    with pytest.raises(EnvContractError, match=rf"action space is {type(space).__name__}; expected Box"):
        GymnasiumVecEnv(SyncVectorEnv([lambda: Recording(space)]))
    with pytest.raises(ConfigError, match=r"is not supported; use Box, Discrete"):
        make_ppo(spec=make_spec(4, 3, space))


# ---------------------------------------------------------------------- A05: far bounds, and none


def test_a05_in_a_far_away_box_the_first_actions_lie_around_its_middle() -> None:
    _, taken = train(spaces.Box(300, 500, (1,)), iterations=4)
    assert len(taken) > 300
    assert 350 < taken.mean() < 450
    assert taken.std() > 30
    assert len(np.unique(taken)) > len(taken) / 2  # not always a bound


def test_a05_a_target_in_a_far_away_box_is_approached() -> None:
    class Thermostat(Task):
        def transition(self, ppo: PPO, actions: Tensor) -> Step:
            step = super().transition(ppo, torch.zeros(32, 1))
            step.rewards = -(actions - 420).abs().squeeze(-1) / 100
            return step

    config = PPOConfig(gamma=0.0, learning_rate=0.01, schedule="fixed", num_mini_batches=2)
    ppo = make_ppo(config, make_spec(32, 1, spaces.Box(300, 500, (1,))))
    Thermostat().run(ppo, 12)
    assert 410 < ppo.policy.act({"policy": torch.zeros(1, 1)}).item() < 430


@pytest.mark.parametrize(
    ("low", "high"), [(-np.inf, np.inf), (0.0, np.inf), (-np.inf, 2.0), (300.0, np.inf), (-np.inf, -100.0)]
)
def test_a05_infinite_and_half_infinite_bounds_train_unscaled(low: float, high: float) -> None:
    runner, taken = train(spaces.Box(np.float32(low), np.float32(high), (2,)), iterations=2)
    raw = runner.alg.storage.actions[runner.alg.storage.valid].numpy()
    expected = np.clip(raw, low, high).reshape(-1)
    assert np.isin(expected.astype(np.float32), taken).all()
    assert all(p.isfinite().all() for p in runner.policy.parameters())


def test_a05_dimensions_with_bounds_of_each_kind_are_treated_each_by_its_own() -> None:
    low = np.array([-1, 300, 0, -np.inf], np.float32)
    high = np.array([1, 500, np.inf, np.inf], np.float32)
    _, taken = train(spaces.Box(low, high))
    assert np.abs(taken[:, 1].mean() - 400) < 50
    assert taken[:, 2].min() == 0
    assert taken[:, 3].min() < -1


@pytest.mark.parametrize("distribution", ["SquashedGaussian", "Beta"])
def test_a05_a_bounded_distribution_needs_bounds(distribution: str) -> None:
    with pytest.raises(ConfigError, match="finite bounds"):
        train(spaces.Box(0.0, np.inf, (2,)), distribution={"class_name": distribution})


# ---------------------------------------------------------------------- A06: actions changed in place

IN_PLACE: dict[str, tuple[spaces.Space[Any], str]] = {
    "unbounded": (spaces.Box(-np.inf, np.inf, (2,)), "auto"),
    "bounded": (ASYMMETRIC, "auto"),
    "identity bounds": (spaces.Box(-1, 1, (2,)), "auto"),
    "squashed": (ASYMMETRIC, "SquashedGaussian"),
    "beta": (spaces.Box(-1, 1, (2,)), "Beta"),
    "discrete": (spaces.Discrete(4), "auto"),
    "bits": (spaces.MultiBinary(4), "auto"),
    "table": (spaces.MultiDiscrete([[2, 3], [3, 2]]), "auto"),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_a06_an_environment_that_changes_the_action_in_place_changes_nothing_stored(name: str) -> None:
    class Greedy(Task):
        def transition(self, ppo: PPO, actions: Tensor) -> Step:
            step = super().transition(ppo, actions)
            actions.mul_(0)
            return step

    space, distribution = IN_PLACE[name]
    actor = ActorConfig(hidden_dims=[8], distribution=DistributionConfig(distribution))  # type: ignore[arg-type]
    runs = []
    for kind in (Task, Greedy):
        watcher = Watcher()
        ppo = make_ppo(
            PPOConfig(learning_rate=0.0), make_spec(8, 3, space), actor=actor, extensions=[watcher]
        )
        kind().run(ppo)
        assert all((seen["ratio"] - 1).abs().max() <= 1e-5 for seen in watcher.seen)
        runs.append(torch.cat([seen["actions"] for seen in watcher.seen]))
    assert torch.equal(*runs)


@pytest.mark.parametrize(
    "environment",
    # the first zeroes its actions, the second multiplies them by two
    [lambda: ReusedBufferEnv(4), lambda: GymnasiumVecEnv(SyncVectorEnv([GymTarget] * 4))],
    ids=["VecEnv", "Gymnasium"],
)
def test_a06_through_a_whole_run_the_ratio_stays_1(environment: Any) -> None:
    config = SMALL | {"algorithm": SMALL["algorithm"] | {"learning_rate": 0.0}}
    runner = OnPolicyRunner(environment(), config, quiet=True)
    runner.alg.extensions.append(watcher := Watcher())
    runner.learn(1)
    assert runner.alg.storage.actions.abs().max() > 0.5
    assert all((seen["ratio"] - 1).abs().max() <= 1e-5 for seen in watcher.seen)
