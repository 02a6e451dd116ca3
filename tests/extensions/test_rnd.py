"""RND: what is new earns a bonus, on the observation that really followed, of a size that stays in order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ranks import run_ranks
from surefoot.config import build_config, build_extensions
from surefoot.errors import ConfigError
from surefoot.extensions.reward_scaling import RewardScaling
from surefoot.extensions.rnd import RND
from surefoot.extensions.weight_schedule import WeightSchedule
from surefoot.testing import ConstantEnv, DiscreteTargetEnv, TargetEnv, check_extension
from surefoot.testing.extension_suite import NUM_ENVS, NUM_STEPS, _train, make_ppo
from surefoot.training.evaluation import evaluate
from surefoot.training.on_policy_runner import OnPolicyRunner
from surefoot.types import Step

pytestmark = pytest.mark.filterwarnings("ignore:a rollout of:surefoot.config.SurefootWarning")

SMALL: dict[str, Any] = {"num_outputs": 4, "predictor_hidden_dims": [8], "target_hidden_dims": [8]}


def make_runner(env: Any, run_dir: Path | None = None, steps: int = 8, **rnd_cfg: Any) -> OnPolicyRunner:
    config = {
        "num_steps_per_env": steps,
        "max_iterations": 10,
        "actor": {"hidden_dims": [8]},
        "critic": {"hidden_dims": [8]},
        "algorithm": {"num_learning_epochs": 3, "num_mini_batches": 2, "rnd_cfg": SMALL | rnd_cfg},
        "logger": "none",
        "eval_episodes": 4,
    }
    return OnPolicyRunner(env, config, run_dir, quiet=True)


def rnd_of(runner: OnPolicyRunner) -> RND:
    (extension,) = runner.alg.extensions
    assert isinstance(extension, RND)
    return extension


def collect(rnd: RND, ends: Sequence[tuple[int, int]] = (), known: bool = True, **step: Any) -> Any:
    """PPO with one rollout of noise, its returns computed; at `ends` (t, n) a time limit whose final
    observation is 100, and after it an observation of 0.
    """
    ppo = make_ppo(rnd)
    data = torch.Generator().manual_seed(0)
    obs = {g: torch.randn(NUM_ENVS, d, generator=data) for g, d in (("policy", 5), ("privileged", 4))}
    for t in range(NUM_STEPS):
        ppo.act(obs)
        obs = {g: torch.randn(x.shape, generator=data) for g, x in obs.items()}
        truncated = torch.zeros(NUM_ENVS, dtype=torch.bool)
        truncated[[n for s, n in ends if s == t]] = True
        final = {g: torch.where(truncated[:, None], 100.0, x) for g, x in obs.items()}
        obs = {g: torch.where(truncated[:, None], 0.0, x) for g, x in obs.items()}
        ppo.process_env_step(
            Step(
                obs,
                torch.zeros(NUM_ENVS),
                torch.zeros_like(truncated),
                truncated,
                final if known else None,
                **step,
            )
        )
    ppo.compute_returns(obs)
    return ppo


# ---------------------------------------------------------------------- the bonus


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"value_head": True, "gamma": 0.9, "episodic": False, "obs_groups": ["privileged", "policy"]},
        {"reward_normalization": False, "state_normalization": False, "sample_fraction": 0.25},
    ],
    ids=["defaults", "value head", "plain"],
)
def test_it_keeps_the_contract(arguments: dict[str, Any]) -> None:
    # two processes: test_m03
    check_extension(RND, two_processes=False, **SMALL, **arguments)


def test_the_bonus_is_the_weighted_error_of_the_predictor_on_the_next_observation() -> None:
    rnd = RND(weight=0.5, state_normalization=False, reward_normalization=False, **SMALL)
    ppo = collect(rnd)
    x = ppo.storage.next_observations["policy"]
    error = (rnd.predictor(x) - rnd.target(x)).square().mean(-1)
    assert error.min().item() > 0
    torch.testing.assert_close(ppo.reward, 0.5 * error)
    assert ppo.storage.rewards.abs().max().item() == 0, "the stored reward stays the environment's"


def test_what_has_been_learned_is_no_longer_new_and_what_is_far_from_it_is() -> None:
    rnd = RND(
        learning_rate=2e-2, num_learning_epochs=100, num_mini_batches=1, state_normalization=False, **SMALL
    )
    ppo = collect(rnd)
    familiar = ppo.storage.next_observations["policy"].clone()
    before = (rnd.predictor(familiar) - rnd.target(familiar)).square().mean().item()
    ppo.update()
    after = (rnd.predictor(familiar) - rnd.target(familiar)).square().mean().item()
    far = 3 + familiar
    assert after < before / 10
    assert (rnd.predictor(far) - rnd.target(far)).square().mean().item() > 10 * after


def test_the_target_never_learns() -> None:
    rnd = RND(**SMALL)
    ppo = make_ppo(rnd)
    before = {k: v.clone() for k, v in rnd.target.state_dict().items()}
    _train(ppo, 2)
    assert all(torch.equal(v, before[k]) for k, v in rnd.target.state_dict().items())
    owned = {id(p) for group in rnd.optimizer.param_groups for p in group["params"]}
    assert owned == {id(p) for p in rnd.predictor.parameters()}


def test_at_an_end_the_true_final_observation_counts() -> None:
    rnd = RND(state_normalization=False, reward_normalization=False, **SMALL)
    bonus = collect(rnd, ends=[(3, 1)]).reward
    final = torch.full((5,), 100.0)
    error = (rnd.predictor(final) - rnd.target(final)).square().mean()
    torch.testing.assert_close(bonus[3, 1], error)
    assert bonus[3, 1] > 10 * bonus[torch.arange(NUM_STEPS) != 3].max(), "100 is far from the noise"


def test_where_the_final_observation_is_unknown_there_is_no_bonus_and_nothing_is_learned() -> None:
    rnd = RND(**SMALL)
    ppo = collect(rnd, ends=[(3, 1), (5, 0)], known=False)
    assert (ppo.reward == 0).nonzero().tolist() == [[3, 1], [5, 0]]
    # whatever stands in those rows
    rnd.targets[~rnd.mask] = 1e6
    metrics = ppo.update()
    assert metrics["Rnd/loss"].item() < 100
    assert rnd.state_normalizer is not None
    assert rnd.state_normalizer.count.item() == NUM_STEPS * NUM_ENVS - 2


def test_rows_that_only_reset_get_no_bonus() -> None:
    valid = torch.tensor([True] * (NUM_ENVS - 1) + [False])
    ppo = collect(RND(**SMALL), valid=valid)
    assert (ppo.reward[:, -1] == 0).all()
    assert (ppo.reward[:, :-1] > 0).all()


@pytest.mark.parametrize("fraction", [1.0, 0.25])
def test_the_predictor_learns_from_a_fraction_of_the_samples(fraction: float) -> None:
    rnd = RND(sample_fraction=fraction, num_learning_epochs=2, num_mini_batches=3, **SMALL)
    ppo = collect(rnd)
    seen: list[Tensor] = []
    rnd._predictor_loss = lambda rows: (  # type: ignore[method-assign]
        seen.append(rows) or RND._predictor_loss(rnd, rows)  # type: ignore[func-returns-value]
    )
    ppo.update()
    assert [len(rows) for rows in seen] == [int(16 * fraction)] * 6
    if fraction == 1.0:
        assert torch.cat(seen[:3]).sort().values.tolist() == list(range(48))


# ---------------------------------------------------------------------- its own critic


def test_the_value_head_keeps_the_bonus_out_of_the_task_s_reward() -> None:
    rnd = RND(value_head=True, gamma=0.5, lam=1.0, **SMALL)
    ppo = collect(rnd, ends=[(4, 0)])
    assert (ppo.reward == 0).all()
    value = rnd.value(rnd.states).squeeze(-1)
    # of environment 1, without an end, λ = 1: the discounted sum of the bonus and the last value
    expected = value[-1, 1]
    for t in reversed(range(NUM_STEPS)):
        expected = rnd.bonus[t, 1] + 0.5 * expected
    torch.testing.assert_close(rnd.returns[0, 1], expected)
    # of environment 0: to the value of the final observation
    final = rnd.value(rnd.inputs[4, 0]).squeeze(-1)
    torch.testing.assert_close(rnd.returns[4, 0], rnd.bonus[4, 0] + 0.5 * final)


def test_without_episodes_the_return_goes_on_over_an_end() -> None:
    rnd = RND(value_head=True, gamma=0.5, lam=1.0, episodic=False, **SMALL)
    collect(rnd, ends=[(4, 0)])
    torch.testing.assert_close(rnd.returns[4, 0], rnd.bonus[4, 0] + 0.5 * rnd.returns[5, 0])


def test_the_value_head_learns_the_return_of_the_bonus() -> None:
    rnd = RND(value_head=True, num_learning_epochs=100, num_mini_batches=1, learning_rate=2e-2, **SMALL)
    ppo = collect(rnd)
    states, returns = rnd.states[:-1].clone(), rnd.returns.clone()
    before = (rnd.value(states).squeeze(-1) - returns).square().mean()
    assert ppo.update()["Rnd/value_loss"].item() < before.item()
    assert (rnd.value(states).squeeze(-1) - returns).square().mean().item() < 0.2 * before.item()


# ---------------------------------------------------------------------- its scale


@pytest.mark.parametrize("episodic", [True, False])
def test_d01_the_deviation_of_the_return_does_not_depend_on_the_number_of_environments(
    episodic: bool,
) -> None:
    deviations = {}
    for num_envs in (2, 200):
        # observations without a difference: the same error at every step of every environment
        env = ConstantEnv(num_envs, episode_length=25, dim=1)
        arguments = {"value_head": not episodic, "gamma": None if episodic else 0.9, "episodic": episodic}
        runner = make_runner(env, steps=50, **arguments)
        rnd = rnd_of(runner)
        assert rnd.reward_scaling is not None
        rnd.reward_scaling.gamma = 0.9
        runner.learn(1)
        error = runner.metrics["Rnd/error"]
        deviations[num_envs] = rnd.reward_scaling.statistics.std.item() / error
        # its own deviation: the normalised bonus is of order 1
        assert 0.1 < runner.metrics["Rnd/reward"] < 10
    assert error > 0
    assert deviations[2] == pytest.approx(deviations[200], rel=0.05)
    # by hand: of the discounted sums of 1 over 25 steps, twice, or over 50
    sums = [sum(0.9**k for k in range(t + 1)) for t in range(25 if episodic else 50)]
    assert deviations[2] == pytest.approx(torch.tensor(sums).std(unbiased=False).item(), rel=1e-3)


def test_the_return_that_goes_on_over_ends_pauses_where_a_row_only_resets() -> None:
    scaling = RewardScaling(episodic=False)
    ppo = make_ppo(scaling)
    storage, no = ppo.storage, torch.zeros(NUM_ENVS, dtype=torch.bool)
    obs = {g: torch.zeros(NUM_ENVS, d) for g, d in (("policy", 5), ("privileged", 4))}
    for t in range(NUM_STEPS):
        ppo.act(obs)
        ppo.process_env_step(Step(obs, torch.ones(NUM_ENVS), no, no | (t == 2), valid=no | (t != 3)))
    ppo.compute_returns(obs)
    found = scaling.returns.reshape(NUM_STEPS, NUM_ENVS)[:5, 0].tolist()
    # 1, 1 + γ, 1 + γ + γ², the same, and on: γ is 0.99
    assert found == pytest.approx([1.0, 1.99, 2.9701, 2.9701, 3.940399])
    assert storage.valid[3].any().item() is False


def test_d02_only_the_samples_of_the_rollout_are_counted_once() -> None:
    runner = make_runner(TargetEnv(4), num_learning_epochs=3, num_mini_batches=4)
    rnd = rnd_of(runner)
    assert rnd.state_normalizer is not None
    assert rnd.reward_scaling is not None
    runner.learn(1)
    assert rnd.state_normalizer.count.item() == rnd.reward_scaling.statistics.count.item() == 4 * 8
    before = {k: v.clone() for k, v in rnd.state_dict().items()}
    evaluate(runner.alg.policy, TargetEnv(4), episodes=4)
    assert all(torch.equal(v, before[k]) for k, v in rnd.state_dict().items())
    runner.learn(1)
    assert rnd.state_normalizer.count.item() == 2 * 4 * 8


def test_the_first_rollout_is_normalised_too() -> None:
    rnd = RND(**SMALL)
    collect(rnd)
    assert rnd.state_normalizer is not None
    assert rnd.state_normalizer.count.item() == 0
    assert rnd.inputs.mean((0, 1)).abs().max().item() < 1e-5
    torch.testing.assert_close(rnd.inputs.std((0, 1)), torch.ones(5), atol=0.05, rtol=0)


# ---------------------------------------------------------------------- its weight


def test_the_weight_over_time() -> None:
    steps = torch.tensor([0, 10, 15, 20, 30])
    step = WeightSchedule("step", final_step=15, final_value=0.5)
    assert step.weight(1.0, steps).tolist() == [1.0, 1.0, 0.5, 0.5, 0.5]
    linear = WeightSchedule("linear", initial_step=10, final_step=20, final_value=0.0)
    assert linear.weight(1.0, steps).tolist() == [1.0, 1.0, 0.5, 0.0, 0.0]
    assert WeightSchedule().weight(0.3, steps).tolist() == pytest.approx([0.3] * 5)


@settings(max_examples=50, deadline=None)
@given(
    mode=st.sampled_from(["step", "linear"]),
    first=st.integers(0, 10**6),
    length=st.integers(1, 10**6),
    ends=st.tuples(st.floats(0, 100), st.floats(0, 100)),
    step=st.integers(0, 3 * 10**6),
)
def test_the_weight_stays_between_its_ends(
    mode: Any, first: int, length: int, ends: tuple[float, float], step: int
) -> None:
    first = first if mode == "linear" else 0
    schedule = WeightSchedule(mode, first, first + length, ends[1])
    weight = schedule.weight(ends[0], torch.tensor(step)).item()
    assert min(ends) - 1e-4 <= weight <= max(ends) + 1e-4
    if step >= first + length:
        assert weight == pytest.approx(ends[1], rel=1e-5, abs=1e-5)


def test_the_weight_is_per_environment_step_and_changes_within_a_rollout() -> None:
    schedule = {"mode": "linear", "final_step": 16, "final_value": 0.0}
    rnd = RND(weight_schedule=schedule, state_normalization=False, reward_normalization=False, **SMALL)
    ppo = collect(rnd)
    error = (rnd.predictor(rnd.inputs) - rnd.targets).square().mean(-1)
    # 1, 15/16, 14/16, ...: the toy's step of 0.02 s has no part in it
    torch.testing.assert_close(ppo.reward, error * (1 - torch.arange(8) / 16)[:, None])
    assert ppo.update()["Rnd/weight"].item() == 1 - 7 / 16
    assert rnd.num_steps.item() == 8


def test_c04_the_weight_s_schedule_goes_on_after_a_resume(tmp_path: Path) -> None:
    schedule = {"mode": "linear", "final_step": 64, "final_value": 0.0}
    run = make_runner(TargetEnv(4), tmp_path, weight_schedule=schedule)
    run.learn(4)
    half_way = run.metrics["Rnd/weight"]
    assert half_way == pytest.approx(1 - 31 / 64)
    resumed = make_runner(TargetEnv(4), tmp_path, weight_schedule=schedule)
    resumed.load(tmp_path)
    assert rnd_of(resumed).num_steps.item() == rnd_of(run).num_steps.item() == 32
    run.learn(1)
    resumed.learn(1)
    for key in ("Rnd/weight", "Rnd/reward", "Rnd/loss", "Rnd/scale"):
        assert resumed.metrics[key] == run.metrics[key], key
    assert run.metrics["Rnd/weight"] == pytest.approx(1 - 39 / 64)
    assert not resumed.alg.state()["tensors"].keys() ^ run.alg.state()["tensors"].keys()
    for name, x in run.alg.state()["tensors"].items():
        assert torch.equal(x, resumed.alg.state()["tensors"][name]), name


# ---------------------------------------------------------------------- configuration


def test_rnd_cfg_builds_it_and_null_does_not() -> None:
    (extension,) = build_extensions(build_config({"algorithm": {"rnd_cfg": {"weight": 0.3}}}))
    assert isinstance(extension, RND)
    assert extension.weight == 0.3
    assert build_extensions(build_config({"algorithm": {"rnd_cfg": None}})) == []
    (extension,) = build_extensions(build_config({"extensions": [{"class_name": "RND"}]}))
    assert isinstance(extension, RND)


@pytest.mark.parametrize(
    ("rnd_cfg", "problem"),
    [
        ({"weigth": 1.0}, "unknown key 'algorithm.rnd_cfg.weigth'"),
        ({"weight_schedule": {"mode": "lineer"}}, "expected one of constant, step, linear"),
        ({"weight_schedule": {"final_stp": 3}}, "Did you mean 'final_step'?"),
        ({"weight_schedule": {"mode": "step", "final_step": 3}}, "takes a final_step and final_value"),
        ({"weight_schedule": {"final_value": 0.0}}, "takes no final_step"),
        (
            {"weight_schedule": {"mode": "linear", "final_step": "soon", "final_value": 0}},
            "expected a whole number",
        ),
        ({"weight_schedule": "linear"}, "expected a mapping"),
        (
            {"weight_schedule": {"mode": "linear", "initial_step": 9, "final_step": 9, "final_value": 0}},
            "must be above initial_step 9",
        ),
        (
            {"weight_schedule": {"mode": "step", "initial_step": 2, "final_step": 9, "final_value": 0}},
            "no meaning for mode 'step'",
        ),
        ({"weight_schedule": {"mode": "step", "final_step": 9, "final_value": -1}}, "number of at least 0"),
        ({"weight": -1.0}, "weight = -1.0: expected a number of at least 0"),
        ({"learning_rate": 0.0}, "learning_rate = 0.0: expected a number above 0"),
        ({"num_outputs": 0}, "num_outputs = 0: expected a whole number of at least 1"),
        ({"sample_fraction": 0.0}, "sample_fraction = 0.0: expected a number above 0 to 1"),
        ({"predictor_hidden_dims": [0]}, "predictor_hidden_dims [0]"),
        ({"target_hidden_dims": 64}, "target_hidden_dims 64"),
        ({"obs_groups": "policy"}, "expected a list of names"),
        ({"activation": "tahn"}, "Did you mean 'tanh'?"),
        ({"gamma": 0.9}, "needs value_head"),
        ({"episodic": False}, "needs value_head"),
    ],
)
def test_a_bad_rnd_cfg_is_one_error_that_names_the_key(rnd_cfg: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as info:
        build_extensions(build_config({"algorithm": {"rnd_cfg": rnd_cfg}}))
    assert "algorithm.rnd_cfg" in str(info.value)
    assert problem in str(info.value)


def test_g07_a_group_that_the_environment_does_not_give_is_named_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError) as info:
        make_runner(TargetEnv(4, groups=("policy", "privileged")), obs_groups=["rnd_state"])
    for word in ("RND", "'rnd_state'", "['policy', 'privileged']"):
        assert word in str(info.value)


def test_it_reads_the_actor_s_groups_or_those_it_is_told() -> None:
    groups = {"policy": 3, "privileged": 7}
    assert rnd_of(make_runner(TargetEnv(4, groups=groups))).groups == ["policy"]
    runner = make_runner(TargetEnv(4, groups=groups), obs_groups=["privileged", "policy"])
    assert rnd_of(runner).predictor[0].in_features == 10
    runner.learn(1)
    runner = make_runner(TargetEnv(4, groups=groups), predictor_hidden_dims=[-1, 5])
    assert [x.out_features for x in rnd_of(runner).predictor if hasattr(x, "out_features")] == [3, 5, 4]


def test_it_explores_discrete_actions_and_logs_its_metrics() -> None:
    runner = make_runner(DiscreteTargetEnv(4), value_head=True)
    runner.learn(2)
    keys = {"error", "reward", "weight", "loss", "value_loss", "scale"}
    assert {k for k in runner.metrics if k.startswith("Rnd/")} == {f"Rnd/{k}" for k in keys}


# ---------------------------------------------------------------------- two processes


def test_m03_predictor_and_target_are_equal_on_both_ranks_at_the_start_and_later(tmp_path: Path) -> None:
    run_ranks(train_as_rank, tmp_path)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    for iteration in ("start", "end"):
        for name, x in first[iteration].items():
            assert torch.equal(x, second[iteration][name]), f"{name} at the {iteration}"
    assert any("target" in name for name in first["start"])
    changed = [k for k, x in first["start"].items() if not torch.equal(x, first["end"][k])]
    assert any("predictor" in name for name in changed)
    assert not any("target" in name for name in changed)


def train_as_rank(rank: int, folder: Path) -> None:
    torch.manual_seed(rank)  # each rank would draw other weights
    rnd = RND(value_head=True, **SMALL)
    ppo = make_ppo(rnd, seed=1 + rank)

    def shared() -> dict[str, Tensor]:
        # running returns are a number per environment, and so each rank's own
        return {k: v.clone() for k, v in ppo.state_dict().items() if "carry" not in k}

    found = {"start": shared()}
    _train(ppo, 5, data_seed=rank)
    torch.save(found | {"end": shared()}, folder / f"{rank}.pt")
