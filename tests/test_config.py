"""Configuration: strict, with errors that name the key, the value, the choice and the way out."""

from __future__ import annotations

import copy
import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.algorithm.extension import Extension
from surefoot.algorithm.schedules import ScheduleConfig
from surefoot.config import (
    SurefootWarning,
    TrainConfig,
    advice,
    apply_set,
    build_config,
    build_extensions,
    dump_yaml,
    load_yaml,
    merge,
    resolve_class,
    to_dict,
    warn_about,
)
from surefoot.config.names import OTHER_TRAINERS, key_paths
from surefoot.errors import ConfigError

EXAMPLE = Path(__file__).parents[1] / "config" / "example_config.yaml"


def nested(path: str, value: object) -> dict:
    """`a.b` and 1 as {a: {b: 1}}."""
    *sections, key = path.split(".")
    result: dict = {key: value}
    for section in reversed(sections):
        result = {section: result}
    return result


def error_of(config: dict) -> str:
    with pytest.raises(ConfigError) as info:
        build_config(config)
    return str(info.value)


def test_an_empty_mapping_gives_the_defaults():
    assert build_config({}) == TrainConfig()


def test_the_example_file_is_the_usual_legged_configuration():
    config = build_config(load_yaml(EXAMPLE))
    assert (config.num_envs, config.num_steps_per_env, config.max_iterations) == (4096, 24, 1500)
    assert config.actor.hidden_dims == config.critic.hidden_dims == [512, 256, 128]
    assert config.algorithm.num_batches(4096 * 24) == 4
    assert config.algorithm.entropy_coef == 0.01
    assert advice(config) == []


def test_a_config_survives_the_way_to_yaml_and_back():
    config = build_config(
        {
            "num_envs": 8,
            "actor": {"hidden_dims": [32], "distribution": {"std_range": [0.1, 2.0]}},
            "algorithm": {"schedule": {"type": "linear", "final": 1e-5}, "learning_rate": 3e-4},
            "env": {"kwargs": {"gravity": -9.81, "name": "1e-3"}},
            "extensions": [{"class_name": "my.module:Idea", "weight": 0.1}],
            "logger": ["tensorboard", "wandb"],
        }
    )
    assert build_config(load_yaml(dump_yaml(to_dict(config)))) == config
    assert build_config(to_dict(config)) == config


def test_the_callers_mapping_is_never_changed():
    mapping = {"actor": {"distribution": {"init_std": 0.5}}, "algorithm": {"num_mini_batches": 2}}
    before = copy.deepcopy(mapping)
    build_config(mapping)
    merged = merge(mapping, {"algorithm": {"mini_batch_size": 64}})
    apply_set(mapping, "actor.distribution.init_std=0.7")
    merged["actor"]["distribution"]["init_std"] = 9.0
    assert mapping == before


@pytest.mark.parametrize(
    ("config", "unknown", "suggestion"),
    [
        ({"num_step_per_env": 99}, "num_step_per_env", "num_steps_per_env"),
        ({"algorithm": {"clip_parm": 0.2}}, "algorithm.clip_parm", "algorithm.clip_param"),
        ({"algorithm": {"entropy_coeff": 0.2}}, "algorithm.entropy_coeff", "algorithm.entropy_coef"),
        ({"learning_rate": 1e-3}, "learning_rate", "algorithm.learning_rate"),
        ({"learning_rat": 1e-3}, "learning_rat", "algorithm.learning_rate"),
        ({"algorithm": {"num_envs": 3}}, "algorithm.num_envs", "num_envs"),
        ({"init_std": 0.5}, "init_std", "actor.distribution.init_std"),
        ({"actor": {"distribution": {"init_sdt": 1.0}}}, "actor.distribution.init_sdt", "init_std"),
        (
            {"algorithm": {"schedule": {"tpye": "linear"}}},
            "algorithm.schedule.tpye",
            "algorithm.schedule.type",
        ),
        ({"hidden_dims": [8]}, "hidden_dims", "critic.hidden_dims"),
    ],
)
def test_an_unknown_key_is_named_with_its_path_and_the_nearest_or_right_place(config, unknown, suggestion):
    text = error_of(config)
    assert f"unknown key '{unknown}'" in text
    assert f"{suggestion}'" in text
    assert "\n" not in text


@pytest.mark.parametrize("key", OTHER_TRAINERS)
@pytest.mark.parametrize("section", ["", "algorithm."])
def test_another_trainers_key_is_answered_with_ours(key, section):
    text = error_of(nested(section + key, 1))
    ours = OTHER_TRAINERS[key]
    assert f"unknown key '{section}{key}'" in text
    assert ours is None or f"'{ours}'" in text


def test_every_answer_to_another_trainers_key_is_a_key_of_ours():
    assert set(OTHER_TRAINERS.values()) - {None} <= set(key_paths())
    assert not set(OTHER_TRAINERS) & {path.rpartition(".")[2] for path in key_paths()}


def test_the_factor_of_another_trainers_value_coefficient_is_told():
    assert "vf_coef/2" in error_of({"algorithm": {"vf_coef": 0.5}})


@pytest.mark.parametrize(
    ("path", "value", "wanted"),
    [
        ("algorithm.clip_param", -1, "above 0"),
        ("algorithm.gamma", 1.5, "from 0 to 1"),
        ("algorithm.lam", -0.1, "from 0 to 1"),
        ("algorithm.num_learning_epochs", 0, "at least 1"),
        ("algorithm.num_mini_batches", 0, "at least 1"),
        ("algorithm.max_grad_norm", 0, "above 0"),
        ("algorithm.learning_rate", -1e-3, "at least 0"),
        ("algorithm.learning_rate", math.nan, "at least 0"),
        ("algorithm.max_grad_norm", math.inf, "a number"),
        ("algorithm.desired_kl", None, "above 0"),
        ("algorithm.desired_kl", 0, "above 0"),
        ("num_steps_per_env", 0, "at least 1"),
        ("num_envs", 0, "at least 1"),
        ("save_interval", -1, "at least 0"),
        ("keep_checkpoints", 0, "at least 1"),
        ("actor.distribution.init_std", 0, "above 0"),
        ("actor.hidden_dims", [64, 0], "at least 1"),
        ("env.reward_scale", 0, "above 0"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_key_and_the_range(path, value, wanted):
    text = error_of(nested(path, value))
    assert text.startswith(path), text
    assert wanted in text
    assert "\n" not in text


def test_save_interval_0_means_only_at_the_end():
    assert build_config({"save_interval": 0}).save_interval == 0


@pytest.mark.parametrize(
    ("path", "typo", "meant"),
    [
        ("algorithm.schedule", "adaptve", "adaptive"),
        ("algorithm.policy_objective", "clipp", "clip"),
        ("algorithm.value_loss", "hubber", "huber"),
        ("algorithm.grad_clip", "jiont", "joint"),
        ("algorithm.optimizer", "Adam", "adam"),
        ("algorithm.schedule.type", "cosin", "cosine"),
        ("actor.activation", "eluu", "elu"),
        ("actor.activation", "ReLU", "relu"),
        ("actor.distribution.std_type", "logg", "log"),
        ("actor.distribution.class_name", "gaussian", "Gaussian"),
        ("network", "seperate", "separate"),
        ("logger", "tensorbord", "tensorboard"),
        ("on_nonfinite", "rais", "raise"),
        ("env.backend", "asynch", "async"),
    ],
)
def test_a_typo_in_a_choice_is_refused_with_the_choices_and_the_nearest(path, typo, meant):
    text = error_of(nested(path, typo))
    assert text.startswith(f'{path} = "{typo}": expected'), text
    assert f"Did you mean '{meant}'?" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("path", "value", "wanted"),
    [
        ("algorithm.learning_rate", "abc", "a number of at least 0"),
        ("algorithm.learning_rate", "1e-3", "a number of at least 0"),
        ("algorithm.learning_rate", True, "a number of at least 0"),
        ("num_envs", True, "a whole number"),
        ("num_envs", 1.5, "a whole number"),
        ("num_envs", 64.0, "Write 64."),
        ("num_envs", [4], "a whole number"),
        ("actor.obs_normalization", 1, "true or false"),
        ("actor.hidden_dims", 64, "a list of whole numbers"),
        ("actor.hidden_dims", {"a": 1}, "a list of whole numbers"),
        ("actor.hidden_dims", [64, "x"], "a list of whole numbers"),
        ("run_name", 5, "Put it in quotes."),
        ("algorithm", 3, "a mapping of class_name"),
        ("algorithm", None, "a mapping of class_name"),
        ("algorithm.schedule", 1, "one of adaptive"),
        ("algorithm.lr_bounds", [1e-5], "[a number above 0 and of at most 1, a number above 0"),
        ("obs_groups", {"actr": ["policy"]}, "Did you mean 'actor'?"),
        ("obs_groups", {"actor": "policy"}, "a non-empty list of texts"),
        ("obs_groups", ["policy"], "a mapping of names"),
        ("extensions", [3], "a list of mappings"),
        ("extensions", [{"weight": 1.0}], "class_name"),
        ("env.kwargs", [1], "a mapping"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_what_is_wanted(path, value, wanted):
    text = error_of(nested(path, value))
    assert text.startswith(path), text
    assert wanted in text
    assert "\n" not in text


def test_whole_numbers_serve_as_numbers_and_lists_as_tuples():
    config = build_config({"algorithm": {"max_grad_norm": 1, "lr_bounds": [1e-4, 1]}})
    assert (config.algorithm.max_grad_norm, config.algorithm.lr_bounds) == (1.0, (1e-4, 1.0))


def test_numpy_scalars_paths_and_tuples_are_taken_as_plain_data():
    config = build_config(
        {
            "num_envs": np.int64(8),
            "env": {"kwargs": {"file": Path("a/b"), "size": (1, 2)}},
            "seed": np.int32(3),
        }
    )
    assert (config.num_envs, config.seed) == (8, 3)
    assert config.env.kwargs == {"file": "a/b", "size": [1, 2]}


def test_what_cannot_be_written_to_a_file_is_refused_with_its_key():
    assert error_of({"env": {"kwargs": {"fn": print}}}).startswith("env.kwargs.fn = ")
    assert "must be text" in error_of({"env": {"kwargs": {3: 1}}})


def test_all_faults_are_listed_one_line_each():
    lines = error_of({"num_env": 4, "algorithm": {"gamma": 2, "lam": "x"}, "seed": -1}).splitlines()
    assert [line.split()[0] for line in lines] == ["unknown", "algorithm.gamma", "algorithm.lam", "seed"]


@pytest.mark.parametrize(
    ("num_envs", "steps", "batches", "is_possible"),
    [(7, 3, 4, True), (2, 1, 4, False), (2, 2, 4, True), (1, 24, 4, True)],
)
def test_more_mini_batches_than_samples_are_refused_with_the_numbers(num_envs, steps, batches, is_possible):
    config = {"num_envs": num_envs, "num_steps_per_env": steps, "algorithm": {"num_mini_batches": batches}}
    if is_possible:
        build_config(config)
    else:
        text = error_of(config)
        assert "num_mini_batches (4)" in text
        assert "2 samples" in text


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (
            {"algorithm": {"num_mini_batches": 4, "mini_batch_size": 64}},
            ("num_mini_batches", "mini_batch_size"),
        ),
        ({"algorithm": {"lr_scheduler": "cosine"}}, ("lr_scheduler", "algorithm.schedule")),
        ({"algorithm": {"anneal_lr": True}}, ("anneal_lr", "algorithm.schedule")),
        ({"algorithm": {"policy_objective": "penalty"}}, ("policy_objective", "schedule")),
        ({"env": {"reward_scaling": True, "reward_scale": 0.1}}, ("env.reward_scaling", "reward_scale")),
        ({"num_envs": 10, "nproc": 4}, ("num_envs", "nproc")),
        ({"actor": {"distribution": {"init_std": 20.0}}}, ("actor.distribution.init_std", "std_range")),
    ],
)
def test_two_owners_of_one_quantity_are_refused_by_both_names(config, names):
    text = error_of(config)
    assert all(name in text for name in names), text
    assert "\n" not in text


def test_constant_is_fixed_by_another_name():
    assert build_config({"algorithm": {"schedule": "constant"}}).algorithm.rate_schedule().type == "fixed"


def test_a_schedule_is_a_name_or_a_mapping():
    assert build_config({"algorithm": {"schedule": "linear"}}).algorithm.schedule == "linear"
    built = build_config({"algorithm": {"schedule": {"type": "linear", "final": 1e-4}}})
    assert built.algorithm.schedule == ScheduleConfig(type="linear", final=1e-4)


# --- YAML


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1E3", 1000.0),
        ("-2.5e+2", -250.0),
        (".5", 0.5),
        ("3", 3),
        ("1_000", 1000),
        ("0x10", 16),
        ("true", True),
        ("null", None),
        ("", None),
        ("'1e-3'", "1e-3"),
        ("1:30", "1:30"),
        ("2024-01-02", "2024-01-02"),
        ("package.module:Class", "package.module:Class"),
        ("[1e-5, 1e-2]", [1e-5, 1e-2]),
        ("{type: linear, final: 1e-4}", {"type": "linear", "final": 1e-4}),
        (".inf", math.inf),
    ],
)
def test_yaml_values_read_as_a_person_means_them(text, value):
    read = load_yaml(f"x: {text}")["x"]
    assert read == value
    assert type(read) is type(value)
    assert apply_set({}, f"x={text}")["x"] == value


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_survives_yaml(number):
    assert load_yaml(dump_yaml({"x": number}))["x"] == number


@given(st.text(st.characters(codec="utf-8", exclude_categories=["C"])))
def test_every_text_survives_yaml(text):
    assert load_yaml(dump_yaml({"x": text, "list": [text]})) == {"x": text, "list": [text]}


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("num_envs: 4\nseed: 1\nnum_envs: 8\n", 3, "'num_envs' occurs twice"),
        ("algorithm:\n  gamma: 0.9\n  gamma: 0.8\n", 3, "'gamma' occurs twice"),
        ("algorithm:\n\tgamma: 0.9\n", 2, "cannot start any token"),
        ("a: [1, 2\nb: 3\n", 2, "expected"),
        ("a: 1\nb: !!python/object:os.system x\n", 2, "could not determine a constructor"),
    ],
)
def test_a_fault_in_a_file_is_one_line_with_file_and_line(tmp_path, text, line, problem):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as info:
        load_yaml(path)
    assert f"run.yaml, line {line}: " in str(info.value)
    assert problem in str(info.value)
    assert "\n" not in str(info.value)


def test_a_file_that_is_missing_or_no_mapping_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml' does not exist"):
        load_yaml(tmp_path / "nowhere.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n- 2\n")
    with pytest.raises(ConfigError, match="expected a mapping of keys to values, got list"):
        load_yaml(tmp_path / "list.yaml")
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert load_yaml(str(tmp_path / "empty.yaml")) == {}


# --- merge and --set


def test_merge_is_deep_and_the_later_overlay_wins():
    base = {"algorithm": {"gamma": 0.9, "lam": 0.8}, "actor": {"distribution": {"class_name": "Gaussian"}}}
    merged = merge(base, {"algorithm": {"gamma": 0.95}}, {"actor": {"distribution": {"init_std": 0.5}}})
    assert merged == {
        "algorithm": {"gamma": 0.95, "lam": 0.8},
        "actor": {"distribution": {"class_name": "Gaussian", "init_std": 0.5}},
    }


@pytest.mark.parametrize(
    ("below", "above", "result"),
    [
        ({"num_mini_batches": 4}, {"mini_batch_size": 64}, {"mini_batch_size": 64}),
        ({"mini_batch_size": 64}, {"num_mini_batches": 4}, {"num_mini_batches": 4}),
        (
            {"mini_batch_size": 64},
            {"num_mini_batches": None, "mini_batch_size": 32},
            {"num_mini_batches": None, "mini_batch_size": 32},
        ),
        ({"schedule": {"type": "linear", "final": 1.0}}, {"schedule": "fixed"}, {"schedule": "fixed"}),
        ({"schedule": {"type": "linear", "final": 1.0}}, {"schedule": {"final": 2.0}}, None),
        ({"schedule": {"type": "piecewise", "points": [[0, 1.0]]}}, {"schedule": {"type": "linear"}}, None),
    ],
)
def test_merge_ends_what_the_overlay_replaces(below, above, result):
    merged = merge({"algorithm": below}, {"algorithm": above})["algorithm"]
    expected = {
        '{"final": 2.0}': {"schedule": {"type": "linear", "final": 2.0}},
        '{"type": "linear"}': {"schedule": {"type": "linear"}},
    }
    assert merged == (result or expected[str(above["schedule"]).replace("'", '"')])


def test_set_reaches_sections_lists_and_rivals():
    config = {"algorithm": {"num_mini_batches": 4}, "extensions": [{"class_name": "a.b:C", "weight": 1.0}]}
    assert apply_set(config, "algorithm.mini_batch_size=64")["algorithm"] == {"mini_batch_size": 64}
    assert apply_set(config, "extensions.0.weight=0.5")["extensions"][0]["weight"] == 0.5
    assert apply_set(config, "actor.distribution.init_std=1e-1")["actor"] == {
        "distribution": {"init_std": 0.1}
    }
    assert apply_set(config, "env.kwargs.render=a=b")["env"] == {"kwargs": {"render": "a=b"}}


@pytest.mark.parametrize(
    ("assignment", "problem"),
    [
        ("gamma", "expected KEY=VALUE"),
        ("=3", "expected KEY=VALUE"),
        ("algorithm..gamma=3", "expected KEY=VALUE"),
        ("algorithm.schedule.final=1e-4", "'algorithm.schedule' is 'adaptive', not a mapping"),
        ("extensions.1.weight=2", "'1' is no position in a list of 1"),
        ("a=[1", "--set a, line 1: expected"),
    ],
)
def test_a_set_that_cannot_be_applied_says_why(assignment, problem):
    config = {"algorithm": {"schedule": "adaptive"}, "extensions": [{}]}
    with pytest.raises(ConfigError) as info:
        apply_set(config, assignment)
    assert problem in str(info.value)
    assert "\n" not in str(info.value)


# --- advice


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"algorithm": {"learning_rate": 0.01, "clip_param": 0.4}}, ("learning_rate", "clip_param")),
        ({"num_envs": 4, "num_steps_per_env": 8}, ("num_steps_per_env", "32 samples")),
        (
            {"num_steps_per_env": 1, "algorithm": {"mini_batch_size": 5000}},
            ("mini_batch_size", "4096 samples"),
        ),
        ({"algorithm": {"huber_delta": 2.0}}, ("huber_delta", "no effect")),
        ({"algorithm": {"kl_beta": 2.0}}, ("kl_beta", "no effect")),
        ({"algorithm": {"sequence_length": 8}}, ("sequence_length", "rnn_type")),
        ({"algorithm": {"burn_in": 8}}, ("burn_in", "rnn_type")),
        ({"actor": {"estimator": {"target": "privileged"}}}, ("actor.estimator", "enable_aux_loss")),
        ({"actor": {"distribution": {"gsde_interval": 4}}}, ("gsde_interval", "gsde")),
        ({"actor": {"distribution": {"class_name": "Beta", "init_std": 0.5}}}, ("init_std", "Beta")),
        ({"algorithm": {"schedule": "fixed", "desired_kl": 0.02}}, ("desired_kl", "no effect")),
        ({"network": "shared", "algorithm": {"critic_learning_rate": 1e-4}}, ("critic_learning_rate",)),
        ({"network": "shared", "critic": {"hidden_dims": [8]}}, ("critic.hidden_dims", "shared")),
        ({"actor": {"obs_clip": 5.0}}, ("actor.obs_clip", "obs_normalization")),
        ({"algorithm": {"clip_schedule": {"final": 0.1}}}, ("algorithm.clip_schedule.final", "'fixed'")),
    ],
)
def test_a_bad_combination_or_a_setting_without_effect_warns_once(config, words):
    built = build_config(config)
    with pytest.warns(SurefootWarning) as caught:
        warn_about(built)
    assert len(caught) == 1
    assert all(word in str(caught[0].message) for word in words)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"num_envs": 4096, "num_steps_per_env": 24},
        {"num_envs": 8, "num_steps_per_env": 256},
        {"algorithm": {"value_loss": "huber", "huber_delta": 2.0}},
        {"algorithm": {"policy_objective": "penalty", "schedule": "fixed", "kl_target": 0.02}},
        {"algorithm": {"learning_rate": 3e-4, "clip_param": 0.3}},
    ],
)
def test_sound_configurations_give_no_advice(config):
    assert advice(build_config(config)) == []
    assert advice(build_config(to_dict(build_config(config)))) == []


# --- classes by name


class Bonus(Extension):
    def __init__(self, weight: float, name: str = "x") -> None:
        super().__init__()
        if weight < 0:
            raise ConfigError(f"weight {weight} must not be negative.")
        self.weight = weight


HERE = f"{__name__}:Bonus"


def test_extensions_are_built_in_order_with_their_arguments():
    config = build_config({"extensions": [{"class_name": HERE, "weight": w} for w in (0.5, 2)]})
    assert [e.weight for e in build_extensions(config)] == [0.5, 2]


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"class_name": "RewardScalin"}, "Did you mean 'RewardScaling'?"),
        ({"class_name": "no_such_module:X"}, "there is no module 'no_such_module'"),
        ({"class_name": f"{__name__}:Bonu"}, "Did you mean 'Bonus'?"),
        ({"class_name": "math:pi"}, "expected a subclass of surefoot.algorithm.extension.Extension"),
        ({"class_name": HERE, "weigth": 1.0}, "Did you mean 'weight'?"),
        ({"class_name": HERE}, "Bonus needs 'weight'"),
        ({"class_name": HERE, "weight": -1.0}, "weight -1.0 must not be negative"),
    ],
)
def test_an_extension_that_cannot_be_built_says_why_and_where(entry, problem):
    with pytest.raises(ConfigError) as info:
        build_extensions(build_config({"extensions": [entry]}))
    assert "extensions.0" in str(info.value)
    assert problem in str(info.value)


def test_an_error_inside_the_users_module_is_not_hidden(tmp_path, monkeypatch):
    (tmp_path / "broken_idea.py").write_text("import a_module_that_is_missing\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_missing"):
        resolve_class("broken_idea:Idea", Extension, "extensions.0.class_name")


def test_configs_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TrainConfig().seed = 2  # pyright: ignore
