"""Public bug reports on configuration: whatever is wrong in one is said before the environment is touched."""

from __future__ import annotations

import functools
import math
import operator
import typing
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

import surefoot
from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.extension import Extension
from surefoot.cli import cli
from surefoot.config import SurefootWarning, TrainConfig, advice, build_config, merge
from surefoot.config.names import key_paths, section_types
from surefoot.errors import ConfigError, EnvContractError
from surefoot.field_types import base_type, choices, members
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import ActorConfig
from surefoot.testing import TargetEnv
from surefoot.training.on_policy_runner import OnPolicyRunner
from surefoot.types import Batch, PolicyOutput, Step

SMALL: dict[str, Any] = {
    "num_steps_per_env": 32,
    "actor": {"hidden_dims": [8]},
    "critic": {"hidden_dims": [8]},
    "algorithm": {"num_mini_batches": 2, "num_learning_epochs": 1},
    "logger": "none",
}


class Untouched(TargetEnv):
    """Must neither be reset nor stepped."""

    def reset(self, seed: int | None = None, mask: Tensor | None = None) -> dict[str, Tensor]:
        raise AssertionError("the environment was reset")

    def step(self, actions: Tensor) -> Step:
        raise AssertionError("the environment was stepped")


def nested(path: str, value: Any) -> dict[str, Any]:
    """`a.b` and 1 as {a: {b: 1}}."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


def refusal(config: Mapping[str, Any]) -> str:
    """What a run with this configuration says, before its environment is touched and with no file written."""
    with pytest.raises(ConfigError) as caught:
        OnPolicyRunner(Untouched(4), merge(SMALL, config), quiet=True).learn(1)
    text = str(caught.value)
    assert "\n" not in text
    return text


# ------------------------------------------------------------------ G01: unknown keys


@pytest.mark.parametrize(
    ("config", "place", "answer"),
    [
        ({"num_step_per_env": 99}, "num_step_per_env", "Did you mean 'num_steps_per_env'?"),
        ({"algorithm": {"clip_parm": 0.1}}, "algorithm.clip_parm", "Did you mean 'algorithm.clip_param'?"),
        ({"algorithm": {"entropy_coeff": 0.1}}, "algorithm.entropy_coeff", "'algorithm.entropy_coef'?"),
        ({"learning_rate": 1e-4}, "learning_rate", "It belongs at 'algorithm.learning_rate'."),
        ({"algorithm": {"num_steps_per_env": 9}}, "algorithm.num_steps_per_env", "at 'num_steps_per_env'."),
        ({"init_std": 0.5}, "init_std", "It belongs at 'actor.distribution.init_std'."),
        ({"actor": {"init_std": 0.5}}, "actor.init_std", "It belongs at 'actor.distribution.init_std'."),
        ({"env": {"rewards_clip": 1.0}}, "env.rewards_clip", "Did you mean 'env.reward_clip'?"),
        ({"algorithm": {"schedule": {"tpye": "linear"}}}, "algorithm.schedule.tpye", "schedule.type'?"),
        ({"actor": {"cnn": {"chanels": [8]}}}, "actor.cnn.chanels", "Did you mean 'actor.cnn.channels'?"),
        ({"obs_groups": {"actr": ["policy"]}}, "obs_groups.actr", "Did you mean 'actor'?"),
        ({"algorithm.gamma": 0.9}, "algorithm.gamma", "It belongs at 'algorithm.gamma'."),
        ({"extensions": [{"class_name": "RewardScaling", "scal": 2.0}]}, "extensions.0.scal", "'scale'?"),
        ({"hooks": [{"class_name": "StopAfter", "minute": 2}]}, "hooks.0.minute", "Did you mean 'minutes'?"),
    ],
)
def test_g01_an_unknown_key_is_named_where_it_stands_with_the_right_one(
    config: dict[str, Any], place: str, answer: str
) -> None:
    text = refusal(config)
    assert f"unknown key '{place}'" in text or text.startswith(f"{place}:")
    assert answer in text


def test_g01_every_key_with_one_letter_missing_leads_back_to_it() -> None:
    for path in key_paths():
        section, dot, key = path.rpartition(".")
        for i in {0, len(key) // 2, len(key) - 1}:
            with pytest.raises(ConfigError) as caught:
                build_config(nested(section + dot + key[:i] + key[i + 1 :], 1))
            assert f"'{path}'" in str(caught.value)


def test_g01_every_key_at_the_wrong_level_leads_to_its_own() -> None:
    for path in key_paths():
        key = path.rpartition(".")[2]
        wrong = key if "." in path else f"algorithm.{key}"
        if wrong in key_paths():
            continue  # there is another key of this name there
        with pytest.raises(ConfigError) as caught:
            build_config(nested(wrong, 1))
        assert f"'{path}'" in str(caught.value)


@pytest.mark.parametrize("line", ["--set algorithm.clip_parm=0.1", "--config bad.yaml"])
def test_g01_on_the_command_line_an_unknown_key_is_one_line_and_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.yaml").write_text("algorithm: {clip_parm: 0.1}\n")
    result = CliRunner().invoke(cli, ["train", "Pendulum-v1", *line.split()])
    assert result.exit_code == 2
    assert "Did you mean 'algorithm.clip_param'?" in result.output
    assert len(result.output.splitlines()) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["bad.yaml"]


# ------------------------------------------------------------------ G05: mini-batches against the batch


class Rows(Extension):
    """Keeps the positions in the rollout of every mini-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def loss(self, batch: Batch, out: PolicyOutput, policy: ActorCritic) -> dict[str, Tensor]:
        mask = torch.ones_like(batch.index, dtype=torch.bool) if batch.mask is None else batch.mask
        self.seen.append(batch.index[mask])
        return {}


def mini_batches(num_envs: int, num_steps: int, **config: Any) -> list[list[int]]:
    """Positions of the rows of every mini-batch of one iteration."""
    entry = {"extensions": [{"class_name": f"{__name__}:Rows"}], "num_steps_per_env": num_steps}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SurefootWarning)
        runner = OnPolicyRunner(TargetEnv(num_envs), merge(SMALL, entry, config), quiet=True)
        runner.learn(1)
    (rows,) = runner.alg.extensions
    assert isinstance(rows, Rows)
    return [x.tolist() for x in rows.seen]


def test_g05_seven_environments_by_three_steps_in_four_use_every_row_in_every_epoch() -> None:
    batches = mini_batches(7, 3, algorithm={"num_mini_batches": 4, "num_learning_epochs": 3})
    epochs = [batches[i : i + 4] for i in (0, 4, 8)]
    for epoch in epochs:
        assert [len(b) for b in epoch] == [6, 5, 5, 5]
        assert sorted(functools.reduce(operator.iadd, epoch, [])) == [*range(21)]
    orders = {tuple(functools.reduce(operator.iadd, epoch, [])) for epoch in epochs}
    assert len(orders) == 3


@pytest.mark.parametrize(
    ("num_envs", "steps", "algorithm"),
    [(7, 3, {"mini_batch_size": 5}), (5, 4, {"num_mini_batches": 20}), (1, 7, {"num_mini_batches": 2})],
)
@pytest.mark.parametrize("rnn_type", [None, "gru"])
def test_g05_whatever_divides_or_not_no_row_is_lost_or_used_twice(
    num_envs: int, steps: int, algorithm: dict[str, int], rnn_type: str | None
) -> None:
    memory = {"rnn_type": rnn_type, "rnn_hidden_dim": 4}
    algorithm = {**algorithm, **({"sequence_length": 1} if rnn_type else {})}
    batches = mini_batches(num_envs, steps, algorithm=algorithm, actor=memory)
    assert sorted(functools.reduce(operator.iadd, batches, [])) == [*range(num_envs * steps)]
    assert all(batches)


@pytest.mark.parametrize(
    ("num_envs", "config", "numbers"),
    [
        (2, {"num_steps_per_env": 1, "algorithm": {"num_mini_batches": 4}}, ["(4)", "2 samples", "2 x"]),
        (
            4,
            {"actor": {"rnn_type": "gru"}, "algorithm": {"sequence_length": 32, "num_mini_batches": 5}},
            ["(32)", "4 sequences", "5"],
        ),
        (4, {"algorithm": {"num_mini_batches": 4, "mini_batch_size": 8}}, ["num_mini_batches (4)", "(8)"]),
        (0, {}, ["num_envs 0", "at least 1"]),
        (0, {"algorithm": {"num_mini_batches": None, "mini_batch_size": 4}}, ["num_envs 0"]),
    ],
)
def test_g05_impossible_sizes_are_refused_with_the_numbers(
    num_envs: int, config: dict[str, Any], numbers: list[str]
) -> None:
    env = Untouched(num_envs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SurefootWarning)
        # laid over by hand: `merge` lets the later of two rivals win
        settings = {**SMALL, **config}
        settings["algorithm"] = {"num_learning_epochs": 1, **config.get("algorithm", {})}
        with pytest.raises(ConfigError) as caught:
            OnPolicyRunner(env, settings, quiet=True).learn(1)
    assert all(number in str(caught.value) for number in numbers)


def test_g05_playing_with_one_environment_asks_for_nothing_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = merge(SMALL, {"num_steps_per_env": 1, "algorithm": {"num_mini_batches": 64}})
    env = TargetEnv(64)
    with pytest.warns(SurefootWarning, match="only 64 samples"):
        OnPolicyRunner(env, config, tmp_path / "run", quiet=True).learn(1)
    policy = surefoot.load_policy(tmp_path / "run")
    assert surefoot.evaluate(policy, TargetEnv(1), episodes=2)["episodes"] == 2
    assert policy(TargetEnv(1).reset(seed=1)).shape == (1, 1)


# ------------------------------------------------------------------ G07: missing observation groups


@pytest.mark.parametrize(
    ("config", "who", "group"),
    [
        ({"obs_groups": {"critic": ["privileged"]}}, "obs_groups.critic", "privileged"),
        ({"obs_groups": {"actor": ["policy", "polcy"]}}, "obs_groups.actor", "polcy"),
        (
            {"actor": {"estimator": {"target": "velocity"}}, "algorithm": {"enable_aux_loss": True}},
            "actor.estimator",
            "velocity",
        ),
        (
            {"extensions": [{"class_name": "AuxiliaryPrediction", "target": "velocity"}]},
            "AuxiliaryPrediction",
            "velocity",
        ),
        ({"extensions": [{"class_name": f"{__name__}:Curious"}]}, "extension", "rnd_state"),
    ],
)
def test_g07_a_missing_group_is_named_with_who_wants_it_and_what_there_is(
    config: dict[str, Any], who: str, group: str
) -> None:
    text = refusal(config)
    assert who in text
    assert f"'{group}'" in text
    assert "['policy']" in text


class Curious(Extension):
    """Reads a group that the environment lacks."""

    def observation_groups(self) -> list[str]:
        return ["rnd_state"]


@pytest.mark.parametrize(
    ("groups", "words"),
    [({"policy": 3}, "'privileged' of shape (2,)"), ({"policy": 3, "privileged": 4}, "of shape (4,)")],
)
def test_g07_evaluation_environments_without_the_policys_groups_are_refused_at_the_start(
    groups: dict[str, int], words: str
) -> None:
    """Not after hours, by the first evaluation."""
    env, config = TargetEnv(4, groups={"policy": 3, "privileged": 2}), dict(SMALL)
    config["obs_groups"] = {"actor": ["policy", "privileged"]}
    with pytest.raises(EnvContractError, match=r"the policy reads .*group 'privileged'") as caught:
        OnPolicyRunner(env, config, eval_env=Untouched(2, groups=groups), quiet=True)
    assert words in str(caught.value)
    policy = OnPolicyRunner(env, config, quiet=True).policy
    with pytest.raises(EnvContractError, match="group 'privileged'"):
        surefoot.evaluate(policy, Untouched(2, groups=groups), episodes=2)


# ------------------------------------------------------------------ G08: ranges

RANGES: list[tuple[str, Any, str]] = [
    ("algorithm.clip_param", -1, "above 0"),
    ("algorithm.clip_param", 0, "above 0"),
    ("algorithm.gamma", 1.5, "from 0 to 1"),
    ("algorithm.gamma", -0.1, "from 0 to 1"),
    ("algorithm.lam", -0.1, "from 0 to 1"),
    ("algorithm.lam", 1.1, "from 0 to 1"),
    ("algorithm.num_learning_epochs", 0, "at least 1"),
    ("algorithm.num_mini_batches", 0, "at least 1"),
    ("algorithm.mini_batch_size", 0, "at least 1"),
    ("algorithm.max_grad_norm", 0, "above 0"),
    ("algorithm.desired_kl", None, "above 0"),
    ("algorithm.desired_kl", 0, "above 0"),
    ("algorithm.desired_kl", -0.01, "above 0"),
    ("algorithm.learning_rate", -1e-3, "at least 0"),
    ("algorithm.critic_learning_rate", -1e-3, "above 0"),
    ("algorithm.lr_bounds", [1e-2, 1e-5], "lower bound"),
    ("algorithm.lr_bounds", [0, 1e-2], "above 0"),
    ("algorithm.entropy_coef", -0.01, "at least 0"),
    ("algorithm.value_loss_coef", -1, "at least 0"),
    ("algorithm.schedule.initial", -1e-3, "at least 0"),
    ("algorithm.schedule.horizon", 0, "at least 1"),
    ("algorithm.schedule", {"type": "piecewise", "points": [[0, -1e-3]]}, "at least 0"),
    ("algorithm.entropy_schedule.final", -0.1, "at least 0"),
    ("algorithm.max_kl", 0, "above 0"),
    ("num_steps_per_env", 0, "at least 1"),
    ("num_envs", 0, "at least 1"),
    ("max_iterations", 0, "at least 1"),
    ("save_interval", -1, "at least 0"),
    ("keep_checkpoints", 0, "at least 1"),
    ("eval_interval", 0, "at least 1"),
    ("eval_episodes", -1, "at least 0"),
    ("seed", -1, "at least 0"),
    ("actor.distribution.init_std", 0, "above 0"),
    ("actor.distribution.init_std", -1, "above 0"),
    ("actor.distribution.init_std", 50.0, "std_range"),
    ("actor.distribution.std_range", [2.0, 0.5], "std_range"),
    ("actor.hidden_dims", [0], "at least 1"),
    ("actor.rnn_hidden_dim", 0, "at least 1"),
    ("actor.obs_clip", 0, "above 0"),
    ("env.reward_clip", 0, "above 0"),
    ("env.reward_scale", -1, "above 0"),
]


@pytest.mark.parametrize(("path", "value", "wanted"), RANGES)
def test_g08_an_impossible_value_is_refused_by_name_and_range(path: str, value: Any, wanted: str) -> None:
    text = refusal(nested(path, value))
    assert text.startswith(path.rpartition(".")[0])
    assert path.rpartition(".")[2] in text
    assert wanted in text


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_g08_no_number_may_be_nan_or_infinite(value: float) -> None:
    paths = [path for path, hint in every_hint() if float in {base_type(arm) for arm in members(hint)}]
    assert len(paths) > 15
    for path in paths:
        assert refusal(nested(path, value)).startswith(path)


@pytest.mark.parametrize(
    ("entry", "wanted"),
    [
        ({"class_name": "RewardScaling", "scale": 0.0}, "above 0"),
        ({"class_name": "RewardScaling", "clip": "high"}, "expected a number"),
        ({"class_name": "AuxiliaryPrediction", "target": "policy", "coef": -1.0}, "at least 0"),
        ({"class_name": "AuxiliaryPrediction", "target": "policy", "coef": math.nan}, "expected a number"),
        ({"class_name": "AuxiliaryPrediction", "target": "policy", "start": 0.5}, "a whole number"),
    ],
)
def test_g08_arguments_of_extensions_are_checked_like_keys(entry: dict[str, Any], wanted: str) -> None:
    text = refusal({"extensions": [entry]})
    assert "extensions.0" in text
    assert wanted in text


@pytest.mark.parametrize(
    ("minutes", "wanted"), [(-1, "above 0"), ("ten", "a number"), (math.nan, "a number")]
)
def test_g08_arguments_of_hooks_are_checked_like_keys(minutes: Any, wanted: str) -> None:
    text = refusal({"hooks": [{"class_name": "StopAfter", "minutes": minutes}]})
    assert "hooks.0" in text
    assert wanted in text


@pytest.mark.parametrize("number", [-1, 1.5, math.nan, "3", None])
def test_g08_learn_takes_a_whole_number_of_iterations(number: Any) -> None:
    runner = OnPolicyRunner(Untouched(4), SMALL, quiet=True)
    with pytest.raises(ConfigError, match="expected a whole number of iterations"):
        runner.learn(number)


def test_g08_save_interval_0_saves_only_at_the_end(tmp_path: Path) -> None:
    OnPolicyRunner(TargetEnv(4), merge(SMALL, {"save_interval": 0}), tmp_path, quiet=True).learn(3)
    assert [p.name for p in (tmp_path / "checkpoints").glob("model_*.pt")] == ["model_2.pt"]


# ------------------------------------------------------------------ G10: enumerated values


def every_hint(cls: type = TrainConfig, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key with its annotation."""
    hints, sections = typing.get_type_hints(cls, include_extras=True), dict(section_types(cls))
    for name, hint in hints.items():
        yield prefix + name, hint
        if name in sections:
            yield from every_hint(sections[name], f"{prefix}{name}.")


CHOICES = [(path, choice) for path, hint in every_hint() for choice in choices(hint)]


@pytest.mark.parametrize(("path", "choice"), [(p, c) for p, c in CHOICES if len(c) > 2])
def test_g10_one_wrong_letter_in_a_choice_is_refused_with_the_choices_and_the_nearest(
    path: str, choice: str
) -> None:
    for typo in (choice + choice[-1], choice[:-2] + choice[-1], "x" + choice[1:]):
        if (path, typo) in CHOICES:
            continue
        with pytest.raises(ConfigError) as caught:
            build_config(nested(path, typo))
        text = str(caught.value)
        assert text.startswith(f'{path} = "{typo}": expected')
        assert choice in text
        near = text.partition("Did you mean '")[2].rstrip("'?")
        assert (path, near) in CHOICES


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"algorithm": {"schedule": "adaptve"}}, "Did you mean 'adaptive'?"),
        ({"algorithm": {"schedule": {"type": "liner"}}}, "Did you mean 'linear'?"),
        ({"actor": {"rnn_type": "GRUU"}}, "Did you mean 'gru'?"),
        ({"actor": {"distribution": {"std_type": "logg"}}}, "Did you mean 'log'?"),
        ({"logger": "tensorbord"}, "Did you mean 'tensorboard'?"),
        ({"logger": ["tensorboard", "wandbb"]}, "wandb"),
        ({"algorithm": {"policy_objective": "penlty"}}, "Did you mean 'penalty'?"),
        ({"algorithm": {"class_name": "PPOO"}}, "Did you mean 'PPO'?"),
        ({"extensions": [{"class_name": "RewardScalin"}]}, "Did you mean 'RewardScaling'?"),
        ({"hooks": [{"class_name": "StopAfterr", "minutes": 1}]}, "Did you mean 'StopAfter'?"),
    ],
)
def test_g10_a_typo_never_acts_as_another_choice(config: dict[str, Any], words: str) -> None:
    assert words in refusal(config)


def test_g10_a_device_that_does_not_exist_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError, match="device 'cdua' cannot be used"):
        OnPolicyRunner(Untouched(4), SMALL, device="cdua", quiet=True)
    result = CliRunner().invoke(cli, ["train", "Pendulum-v1", "--device", "cdua"])
    assert result.exit_code == 2
    assert "'cdua' is none of auto, cpu, cuda" in result.output


# ------------------------------------------------------------------ G11: two owners of the learning rate


@pytest.mark.parametrize(
    "key",
    [
        "lr_scheduler",
        "lr_schedule",
        "lr_decay",
        "anneal_lr",
        "linear_lr_decay",
        "use_linear_lr_decay",
        "learning_rate_scheduler",
        "learning_rate_schedule",
        "learning_rate_decay",
        "lr_annealing",
        "decay_learning_rate",
        "lr_warmup_steps",
    ],
)
@pytest.mark.parametrize("section", ["", "algorithm."])
def test_g11_a_second_schedule_beside_the_adaptive_one_is_refused_and_both_are_named(
    key: str, section: str
) -> None:
    text = refusal(merge({"algorithm": {"schedule": "adaptive"}}, nested(section + key, "linear")))
    assert f"'{section}{key}'" in text
    assert "'algorithm.schedule'" in text
    assert "one owner" in text


def test_g11_the_penalty_and_the_adaptive_rate_do_not_both_follow_the_kl() -> None:
    text = refusal({"algorithm": {"policy_objective": "penalty", "schedule": "adaptive"}})
    assert "policy_objective" in text
    assert "schedule" in text


@pytest.mark.parametrize(
    ("algorithm", "idle"),
    [
        ({"learning_rate": 5e-4, "schedule": {"type": "linear", "initial": 1e-4}}, "learning_rate"),
        ({"learning_rate": 5e-4, "schedule": {"type": "piecewise", "points": [[0, 1e-4]]}}, "learning_rate"),
        ({"clip_param": 0.3, "clip_schedule": {"initial": 0.1}}, "clip_param"),
        ({"entropy_coef": 0.1, "entropy_schedule": {"type": "linear", "initial": 0.2}}, "entropy_coef"),
    ],
)
def test_g11_a_value_that_its_schedule_overrules_is_said_to_have_no_effect(
    algorithm: dict[str, Any], idle: str
) -> None:
    (text,) = advice(build_config({"algorithm": algorithm}))
    assert f"algorithm.{idle} has no effect" in text
    assert "schedule" in text


def test_g11_the_rate_is_the_schedules_in_every_iteration() -> None:
    algorithm = {"schedule": {"type": "linear", "final": 1e-4}, "learning_rate": 1e-3, "num_mini_batches": 1}
    config = merge(SMALL, {"max_iterations": 9, "algorithm": algorithm})
    runner = OnPolicyRunner(TargetEnv(4), config, quiet=True)
    rates = []
    for _ in range(3):
        runner.learn(1)
        rates.append(runner.metrics["Loss/learning_rate"])
    # 1e-3 to 1e-4 in 9 iterations: 1e-4 less in each
    assert rates == pytest.approx([1e-3, 9e-4, 8e-4], rel=1e-5)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: PPOConfig(clip_param=-1), r"clip_param = -1: expected a number above 0"),
        (lambda: PPOConfig(schedule="adaptve"), r"schedule .* Did you mean 'adaptive'"),
        (lambda: PPOConfig(learning_rate=float("nan")), r"learning_rate = NaN"),
        (lambda: ActorConfig(rnn_type="GRUU"), r"rnn_type .* Did you mean 'gru'"),
        (lambda: ActorConfig(hidden_dims=[8, 0]), r"hidden_dims\.1 .* whole numbers of at least 1"),
        (
            lambda: ActorConfig(distribution={"init_std": 1.0}),
            r"distribution is a dict: expected Distribution",
        ),
    ],
)
def test_g08_a_config_that_is_made_in_code_is_checked_too(make: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make()
