"""Public bug reports on time limits and autoreset: what an episode's last step is worth. Each test carries
the number of its report.
"""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from algorithm.hand_made import Task, advantage_of, make_identity_critic, make_ppo, see
from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.extension import Extension
from surefoot.algorithm.ppo import PPO
from surefoot.algorithm.returns import gae
from surefoot.algorithm.rollout_storage import RolloutStorage
from surefoot.envs.gymnasium import GymnasiumVecEnv
from surefoot.errors import EnvContractError
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import CriticConfig
from surefoot.testing import ConstantEnv, GymConstant, TargetEnv, constant_gymnasium
from surefoot.training.on_policy_runner import OnPolicyRunner
from surefoot.types import Step

RAW = PPOConfig(gamma=0.9, lam=0.8, num_mini_batches=1, num_learning_epochs=1)
SMALL: dict[str, Any] = {
    "num_steps_per_env": 32,
    "actor": {"hidden_dims": [8]},
    "critic": {"hidden_dims": [8]},
    "algorithm": {"num_mini_batches": 2, "num_learning_epochs": 1},
    "logger": "none",
}


def column(*numbers: float) -> Tensor:
    """[T, 1]."""
    return torch.tensor(numbers, dtype=torch.float64).unsqueeze(-1)


def flags(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.bool).unsqueeze(-1)


def advantages(*rollout: Any) -> list[float]:
    return gae(*rollout)[0].squeeze(-1).tolist()


# ---------------------------------------------------------------------- T02: the value at a time limit


def test_t02_gae_by_hand_with_and_without_the_final_observation() -> None:
    rewards, values = column(0.5, 0.5, 0.5), column(1, 3, 4, 2)
    # γ = 0.9, λ = 0.8: A2 = .5 + .9·2 - 4 = -1.7;  A1 = .5 + .9·7 - 3 = 3.8, where the chain restarts;
    # A0 = .5 + .9·3 - 1 + .72·3.8 = 4.936
    exact = advantages(rewards, values, flags(0, 0, 0), flags(0, 1, 0), column(0, 7, 0), 0.9, 0.8)
    assert exact == pytest.approx([4.936, 3.8, -1.7])
    # A1 = .5 + .9·3 - 3 = .2;  A0 = 2.2 + .72·.2 = 2.344
    known_only = advantages(rewards, values, flags(0, 0, 0), flags(0, 1, 0), column(1, 3, 4), 0.9, 0.8)
    assert known_only == pytest.approx([2.344, 0.2, -1.7])


def play(final: dict[str, Tensor] | None, form: str, **details: Any) -> PPO:
    """V = [1, 3, 4], a time limit at step 1, value 2 after the rollout, rewards 0.5."""
    ppo = make_identity_critic(RAW)
    values = [1.0, 3.0, 4.0, 2.0]
    for t in range(3):
        ppo.act(see(values[t]))
        obs, reward, over = see(values[t + 1]), torch.tensor([0.5]), torch.tensor([t == 1])
        if form == "step":
            ppo.process_env_step(Step(obs, reward, torch.tensor([False]), over, final, **details))
        else:
            extras = {"time_outs": over} | ({} if final is None else {"final_observations": final})
            ppo.process_env_step(obs, reward, over.long(), extras)
    ppo.compute_returns(see(values[3]))
    return ppo


@pytest.mark.parametrize("form", ["step", "rsl_rl"])
def test_t02_a_time_limit_is_valued_by_the_final_observation(form: str) -> None:
    ppo = play(see(7.0), form)
    assert advantage_of(ppo).flatten().tolist() == pytest.approx([4.936, 3.8, -1.7], abs=1e-5)
    assert ppo.bootstrap == "final"
    ppo.update()
    assert ppo.bootstrap == "final"


@pytest.mark.parametrize("form", ["step", "rsl_rl"])
def test_t02_without_final_observations_the_current_value_stands_in_and_is_named(form: str) -> None:
    ppo = play(None, form)
    assert advantage_of(ppo).flatten().tolist() == pytest.approx([2.344, 0.2, -1.7], abs=1e-5)
    assert ppo.bootstrap == "current"


def test_t02_a_final_observation_that_is_not_real_is_not_used() -> None:
    ppo = play(see(7.0), "step", final_known=torch.tensor([False]))
    assert advantage_of(ppo).flatten().tolist() == pytest.approx([2.344, 0.2, -1.7], abs=1e-5)


class Forgetful(TargetEnv):
    """Does not keep the observation that an episode ended with."""

    def step(self, actions: Tensor) -> Step:
        step = super().step(actions)
        step.final_observations = None
        return step


@pytest.mark.parametrize(("environment", "expected"), [(TargetEnv, "final"), (Forgetful, "current")])
def test_t02_the_log_of_a_run_says_which_value_was_used(environment: Any, expected: str) -> None:
    runner = OnPolicyRunner(environment(4, episode_length=5), SMALL, quiet=True)
    runner.learn(1)
    assert runner.metrics["Data/bootstrap"] == expected
    assert runner.metrics["Data/truncations"] > 0


class Looking(Extension):
    """Keeps observations, what followed them, and where that is known."""

    rollout: tuple[Tensor, Tensor, Tensor]

    def prepare(self, rollout: RolloutStorage, policy: ActorCritic) -> None:
        group = "policy"
        observed, following = rollout.observations[group][:-1], rollout.next_observations[group]
        self.rollout = observed.clone(), following.clone(), rollout.next_known.clone()


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_t02_every_autoreset_mode_gives_the_true_final_observation(mode: AutoresetMode) -> None:
    looking = Looking()
    runner = OnPolicyRunner(constant_gymnasium(mode, episode_length=5), SMALL, quiet=True)
    runner.alg.extensions.append(looking)
    runner.learn(1)
    assert runner.metrics["Data/bootstrap"] == "final"
    observed, following, known = looking.rollout
    assert known[runner.alg.storage.truncated].all()
    # GymConstant observes [episode, step]: what follows a row is one step later, in the same episode
    assert torch.equal(following[known], (observed + torch.tensor([0.0, 1.0]))[known])


# ---------------------------------------------------------------------- T04: a termination


@pytest.mark.parametrize(
    ("gamma", "lam", "expected"),
    [
        # A2 = 1 + 0 - 100 = -99;  A1 = 1 - 5 = -4;  A0 = 1 + .99·5 - 5 + .9405·(-4) = -2.812
        (0.99, 0.95, [-2.812, -4, -99]),
        # A0 = 1 + 5 - 5 - 4 = -3
        (1.0, 1.0, [-3, -4, -99]),
    ],
)
@pytest.mark.parametrize("form", ["gae", "step", "rsl_rl"])
def test_t04_a_terminal_row_sees_neither_the_reset_state_nor_a_shifted_flag(
    gamma: float, lam: float, expected: list[float], form: str
) -> None:
    values = [5.0, 5.0, 100.0, 0.0]
    if form == "gae":
        result = advantages(
            column(1, 1, 1), column(*values), flags(0, 1, 0), flags(0, 0, 0), column(0, 0, 0), gamma, lam
        )
        assert result == pytest.approx(expected)
        return
    ppo = make_identity_critic(PPOConfig(gamma=gamma, lam=lam, num_mini_batches=1))
    one = torch.ones(1)
    for t in range(3):
        ppo.act(see(values[t]))
        after, over = see(values[t + 1]), torch.tensor([t == 1])
        if form == "step":
            ppo.process_env_step(Step(after, one, over, torch.tensor([False]), see(7.0)))
        else:
            ppo.process_env_step(after, one, over, {})
    ppo.compute_returns(see(values[3]))
    assert advantage_of(ppo).flatten().tolist() == pytest.approx(expected, abs=1e-4)


# ---------------------------------------------------------------------- T05: where one episode meets the next


def test_t05_the_next_value_of_a_truncated_row_is_not_that_of_the_next_episode() -> None:
    # two one-step episodes: 0 + 1 - 1 and 0 + 100 - 100; 99 would be the neighbour's value
    result = advantages(column(0, 0), column(1, 100, 100), flags(0, 0), flags(1, 0), column(1, 0), 1.0, 1.0)
    assert result == [0.0, 0.0]


def test_t05_an_episode_that_terminates_at_the_end_of_the_rollout() -> None:
    # A2 = 1 - 2 = -1;  A1 = 1 + 1.98 - 2 + .9405·(-1) = .0395;  A0 = .98 + .9405·.0395 = 1.01714975
    result = advantages(
        column(1, 1, 1), column(2, 2, 2, 50), flags(0, 0, 1), flags(0, 0, 0), column(9, 9, 9), 0.99, 0.95
    )
    assert result == pytest.approx([1.01714975, 0.0395, -1.0])


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), ends=st.lists(st.integers(1, 60), min_size=1, max_size=6))
def test_t05_splitting_a_rollout_into_its_episodes_gives_the_same_numbers(seed: int, ends: list[int]) -> None:
    g = torch.Generator().manual_seed(seed)
    steps = sum(ends)
    reward, bootstrap, value = (
        torch.randn(rows, 1, generator=g, dtype=torch.float64) for rows in (steps, steps, steps + 1)
    )
    terminated, truncated = torch.zeros(2, steps, 1, dtype=torch.bool)
    last = torch.tensor(ends).cumsum(0) - 1
    terminated[last[::2]] = True
    truncated[last[1::2]] = True
    whole = gae(reward, value, terminated, truncated, bootstrap, 0.97, 0.9)[0]
    start = 0
    for stop in (last + 1).tolist():
        part = slice(start, stop)
        # what follows the episode is the cut-off observation's value, not the next episode's
        values = torch.cat([value[part], bootstrap[stop - 1 : stop]])
        alone = gae(reward[part], values, terminated[part], truncated[part], bootstrap[part], 0.97, 0.9)[0]
        torch.testing.assert_close(whole[part], alone, rtol=0, atol=1e-12)
        start = stop


@pytest.mark.parametrize("recurrent", [None, "gru"])
def test_t05_through_ppo_what_follows_an_end_changes_no_advantage_before_it(recurrent: Any) -> None:
    """The same first episode, followed by two different ones."""

    def first_advantages(later: float) -> Tensor:
        critic = CriticConfig(hidden_dims=[8], rnn_type=recurrent, rnn_hidden_dim=8)
        ppo = make_ppo(RAW, num_steps=6, critic=critic)
        task = Task(ends=0.0)
        obs = task.observe(ppo)
        for t in range(6):
            ppo.act(obs)
            fresh = {"policy": task.observe(ppo)["policy"] + (later if t >= 2 else 0.0)}
            reward = torch.full((4,), later if t > 2 else 1.0)
            over = torch.tensor([True, False, True, False])
            ended = (over & (t == 2), ~over & (t == 2))
            ppo.process_env_step(Step(fresh, reward, *ended, {"policy": torch.ones(4, 3)}))
            obs = fresh
        ppo.compute_returns(obs)
        return advantage_of(ppo)[:3]

    torch.testing.assert_close(first_advantages(0.0), first_advantages(1000.0), rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------------- T06: who is bootstrapped

BOOL = torch.tensor([True, False, False, False])
MASKS: dict[str, Any] = {
    "bool": BOOL,
    "int64": BOOL.long(),
    "uint8": BOOL.to(torch.uint8),
    "float": BOOL.float(),
    "list": [1, 0, 0, 0],
    "list of bool": [True, False, False, False],
    "tuple": (True, False, False, False),
    "numpy bool": BOOL.numpy(),
    "numpy float64": BOOL.numpy().astype(np.float64),
    "[N, 1]": BOOL.unsqueeze(-1),
    "[N, 1] int": BOOL.unsqueeze(-1).int(),
}


def returns_of(time_outs: Any, dones: Any = None, **extras: Any) -> list[float]:
    ppo = make_identity_critic(PPOConfig(gamma=0.99, num_mini_batches=1), num_envs=4, num_steps=1)
    ppo.act(see(10, 20, 30, 40))
    dones = torch.tensor([1, 1, 0, 0]) if dones is None else dones
    ppo.process_env_step(see(0, 0, 0, 0), torch.ones(4), dones, {"time_outs": time_outs, **extras})
    ppo.compute_returns(see(0, 0, 0, 0))
    return ppo.storage.returns[0].tolist()


@pytest.mark.parametrize("name", MASKS)
def test_t06_only_truncated_environments_are_bootstrapped_whatever_the_form_of_the_mask(name: str) -> None:
    # environment 0: 1 + .99·V(s) = 1 + .99·10; 1: terminated; 2 and 3: the next value is 0
    assert returns_of(MASKS[name]) == pytest.approx([10.9, 1, 1, 1], abs=1e-5)


@pytest.mark.parametrize("dones", [BOOL | ~BOOL, torch.ones(4, 1), torch.ones(4, dtype=torch.uint8)])
def test_t06_dones_of_any_form_end_the_episodes(dones: Tensor) -> None:
    assert returns_of(BOOL, dones) == pytest.approx([10.9, 1, 1, 1], abs=1e-5)


@pytest.mark.parametrize("time_outs", [False, None, np.False_])
def test_t06_no_time_out_at_all_may_be_said_in_one_word(time_outs: Any) -> None:
    assert returns_of(time_outs) == pytest.approx([1, 1, 1, 1], abs=1e-5)


def test_t06_a_time_out_of_an_environment_that_is_not_done_means_nothing() -> None:
    dones = torch.tensor([0, 1, 0, 0])
    assert returns_of(~BOOL | BOOL, dones) == pytest.approx([1, 1 + 0.99 * 20, 1, 1], abs=1e-5)


@pytest.mark.parametrize(
    ("time_outs", "shape"),
    [(torch.zeros(3), r"\(3,\)"), (torch.zeros(4, 4), r"\(4, 4\)"), ([0] * 5, r"\(5,\)")],
)
def test_t06_a_mask_of_another_shape_is_refused_with_the_shape(time_outs: Any, shape: str) -> None:
    with pytest.raises(EnvContractError, match=rf"time_outs.*{shape}"):
        returns_of(time_outs)


def test_t06_final_observations_are_read_at_truncated_rows_only() -> None:
    # 1 + .99·7; whatever the others hold
    finals = see(7, float("nan"), 99, float("inf"))
    assert returns_of(BOOL, final_observations=finals) == pytest.approx([7.93, 1, 1, 1], abs=1e-5)


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_t06_a_gymnasium_batch_that_ends_in_both_ways_is_told_apart(mode: AutoresetMode) -> None:
    makers = [
        lambda e=e: GymConstant(4, ends=e) for e in ("truncated", "terminated", "truncated", "terminated")
    ]
    env = GymnasiumVecEnv(SyncVectorEnv(makers, autoreset_mode=mode))
    runner = OnPolicyRunner(env, SMALL, quiet=True)
    runner.learn(1)
    rollout = runner.alg.storage
    assert rollout.truncated[:, ::2].any()
    assert rollout.terminated[:, 1::2].any()
    assert not rollout.truncated[:, 1::2].any()
    assert not rollout.terminated[:, ::2].any()


# ---------------------------------------------------------------------- T07: a clock that is not reported

MATCH = "ended exactly at max_episode_length"


class Falling(ConstantEnv):
    """Ends by its clock, unreported, unless it falls before, half of the time."""

    def judge(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        rewards, over = super().judge(actions)
        falls = torch.rand(self.num_envs, generator=self.generator) < 0.08
        return rewards, over | falls


class Late(ConstantEnv):
    """Its clock runs out one step after `max_episode_length`, unreported."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, 9, ends="terminated")
        self.max_episode_length = 9

    def judge(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ones(self.num_envs), self.elapsed >= 9

    def step(self, actions: Tensor) -> Step:
        self.max_episode_length = 10_000
        step = super().step(actions)
        self.max_episode_length = 9
        return step


@pytest.mark.parametrize(
    "environment",
    [
        lambda: ConstantEnv(4, 8, ends="terminated"),
        lambda: Falling(8, 8, ends="terminated"),
        lambda: Late(4),
        lambda: GymnasiumVecEnv(
            SyncVectorEnv([lambda: gymnasium.wrappers.TimeLimit(GymConstant(8, "terminated"), 8)] * 4)
        ),
    ],
    ids=["always", "where it does not fall before", "one step late", "gymnasium"],
)
def test_t07_a_time_limit_that_is_never_reported_is_warned_of_once(environment: Any) -> None:
    runner = OnPolicyRunner(environment(), SMALL, quiet=True)
    with pytest.warns(UserWarning, match=MATCH) as caught:
        runner.learn(4)
    assert sum(MATCH in str(w.message) for w in caught) == 1


@pytest.mark.parametrize(
    "environment",
    [
        lambda: ConstantEnv(4, 8, ends="truncated"),
        lambda: _ending_early(),
        lambda: Falling(4, 8, ends="truncated"),
        lambda: GymnasiumVecEnv(SyncVectorEnv([lambda: GymConstant(8)] * 4)),
    ],
    ids=["reported", "ends early", "falls, and is reported", "gymnasium"],
)
def test_t07_an_honest_environment_gets_no_warning(environment: Any) -> None:
    runner = OnPolicyRunner(environment(), SMALL, quiet=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runner.learn(4)


def test_episodes_that_end_while_normalisers_warm_up_count_as_reported() -> None:
    network = {**SMALL["actor"], "obs_normalization": True}
    config = {**SMALL, "actor": network, "critic": network}
    # 256 steps of warm-up: every environment is cut off in them, none in the first rollout
    runner = OnPolicyRunner(ConstantEnv(4, 200, ends="truncated"), config, quiet=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runner.learn(1)


def _ending_early() -> ConstantEnv:
    class Early(ConstantEnv):
        def judge(self, actions: Tensor) -> tuple[Tensor, Tensor]:
            return torch.ones(self.num_envs), self.elapsed >= 3

    return Early(4, 8)
