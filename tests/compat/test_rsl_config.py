"""Configurations of RSL-RL's generations, as its clients write them, in the form of 5.5.1."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from surefoot.config import SurefootWarning
from surefoot.config.rsl_rl import modernize
from surefoot.errors import ConfigError

PPO = {
    "class_name": "PPO",
    "value_loss_coef": 1.0,
    "use_clipped_value_loss": True,
    "clip_param": 0.2,
    "entropy_coef": 0.01,
    "num_learning_epochs": 5,
    "num_mini_batches": 4,
    "learning_rate": 1.0e-3,
    "schedule": "adaptive",
    "gamma": 0.99,
    "lam": 0.95,
    "desired_kl": 0.01,
    "max_grad_norm": 1.0,
}
GAUSSIAN = {"class_name": "GaussianDistribution", "init_std": 1.0, "std_type": "scalar"}
ACTOR = {
    "class_name": "MLPModel",
    "hidden_dims": [512, 256, 128],
    "activation": "elu",
    "obs_normalization": False,
    "distribution_cfg": GAUSSIAN,
}
CRITIC = {k: v for k, v in ACTOR.items() if k != "distribution_cfg"}
EXTRA = {
    "seed": 1,
    "experiment_name": "rough_anymal_c",
    "run_name": "",
    "max_iterations": 1500,
    "resume": False,
}
MODERN = {
    **EXTRA,
    "num_steps_per_env": 24,
    "save_interval": 50,
    "obs_groups": {},
    "actor": ACTOR,
    "critic": CRITIC,
    "algorithm": PPO,
}
OLD_POLICY = {
    "actor_hidden_dims": [512, 256, 128],
    "critic_hidden_dims": [512, 256, 128],
    "activation": "elu",
}


def without(mapping: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {k: v for k, v in mapping.items() if k not in keys}


def legged_gym() -> dict[str, Any]:
    """1.0.2: class_to_dict of LeggedRobotCfgPPO."""
    return {
        "seed": 1,
        "runner_class_name": "OnPolicyRunner",
        "policy": {**OLD_POLICY, "init_noise_std": 1.0},
        "algorithm": without(PPO, "class_name"),
        "runner": {
            "policy_class_name": "ActorCritic",
            "algorithm_class_name": "PPO",
            "num_steps_per_env": 24,
            "max_iterations": 1500,
            "save_interval": 50,
            "experiment_name": "rough_anymal_c",
            "run_name": "",
            "resume": False,
            "load_run": -1,
            "checkpoint": -1,
            "resume_path": None,
        },
    }


def genesis_2() -> dict[str, Any]:
    """2.x: flat, but for what is left in `runner`."""
    return {
        "algorithm": PPO,
        "init_member_classes": {},
        "policy": {**OLD_POLICY, "init_noise_std": 1.0, "class_name": "ActorCritic"},
        "runner": {
            "checkpoint": -1,
            "experiment_name": "rough_anymal_c",
            "load_run": -1,
            "log_interval": 1,
            "max_iterations": 1500,
            "record_interval": -1,
            "resume": False,
            "resume_path": None,
            "run_name": "",
        },
        "runner_class_name": "OnPolicyRunner",
        "num_steps_per_env": 24,
        "save_interval": 50,
        "empirical_normalization": None,
        "seed": 1,
    }


def isaac_lab_3() -> dict[str, Any]:
    """3.x: `empirical_normalization` beside the keys that replaced it, None for what is off."""
    return {
        **EXTRA,
        "device": "cuda:0",
        "num_steps_per_env": 24,
        "save_interval": 50,
        "empirical_normalization": True,
        "obs_groups": {},
        "clip_actions": None,
        "policy": {
            **OLD_POLICY,
            "class_name": "ActorCritic",
            "init_noise_std": 1.0,
            "noise_std_type": "scalar",
            "state_dependent_std": False,
            "actor_obs_normalization": False,
            "critic_obs_normalization": False,
        },
        "algorithm": {**PPO, "rnd_cfg": None, "symmetry_cfg": None},
        "logger": "tensorboard",
    }


def isaac_lab_4() -> dict[str, Any]:
    """4.x: two models, `stochastic`, and MISSING left where nothing was set; `{}` after a conversion."""
    noise = {"init_noise_std": 1.0, "noise_std_type": "scalar", "state_dependent_std": False}
    return {
        **EXTRA,
        "num_steps_per_env": 24,
        "save_interval": 50,
        "obs_groups": dataclasses.MISSING,
        "policy": {},
        "empirical_normalization": copy.deepcopy(dataclasses.MISSING),
        "actor": {**CRITIC, "stochastic": True, **noise},
        "critic": {**CRITIC, "stochastic": False, **noise},
        "algorithm": {**PPO, "rnd_cfg": None, "symmetry_cfg": {}, "optimizer": dataclasses.MISSING},
    }


def mjlab_5() -> dict[str, Any]:
    """5.x through dataclasses.asdict: tuples, None for what a model does not have."""
    rest = {"cnn_cfg": None, "rnn_type": None, "rnn_hidden_dim": None, "rnn_num_layers": None}
    return {
        **MODERN,
        "actor": {**ACTOR, "hidden_dims": (512, 256, 128), **rest},
        "critic": {**CRITIC, "hidden_dims": (512, 256, 128), "distribution_cfg": None, **rest},
        "wandb_tags": (),
    }


def documentation_5() -> dict[str, Any]:
    """As RSL-RL's own pages have it: everything under `runner`."""
    return {"seed": 1, "runner": {k: v for k, v in MODERN.items() if k != "seed"}}


@pytest.mark.parametrize(
    "client", [documentation_5, legged_gym, genesis_2, isaac_lab_3, isaac_lab_4, mjlab_5]
)
def test_g03_every_generation_becomes_the_same_configuration(client):
    given_cfg = client()
    before = repr(given_cfg)
    modern, notes = modernize(given_cfg)
    assert {k: modern[k] for k in MODERN} == MODERN
    assert repr(given_cfg) == before
    # one line for each old key
    for section in ("policy", "actor"):
        for key in ("init_noise_std", "stochastic", "actor_hidden_dims"):
            if key in given_cfg.get(section, {}):
                assert sum(f"{section}.{key}" in note for note in notes) == 1


def test_a_configuration_of_today_stays_as_it_is_and_needs_no_notes():
    assert modernize(MODERN) == (MODERN, [])


def test_keys_that_only_clients_read_stay_as_they_are():
    extra = {
        "upload_model": True,
        "wandb_tags": ("a", "b"),
        "my": {"empty": {}, "none": None},
        "clip_actions": None,
        "num_env": 3,
        "critics": {},
    }
    modern, _ = modernize({**MODERN, **extra})
    assert {k: modern[k] for k in extra} == extra


def test_classes_and_functions_are_shared_and_containers_copied():
    def mirror(obs, actions):
        return obs, actions

    symmetry = {"data_augmentation_func": mirror, "use_mirror_loss": True}
    actor = {**ACTOR, "class_name": torch.nn.Linear, "hidden_dims": [4]}
    modern, _ = modernize({**MODERN, "actor": actor, "algorithm": {**PPO, "symmetry_cfg": symmetry}})
    assert modern["actor"]["class_name"] is torch.nn.Linear
    assert modern["algorithm"]["symmetry_cfg"]["data_augmentation_func"] is mirror
    modern["actor"]["hidden_dims"].append(5)
    assert actor["hidden_dims"] == [4]


# ------------------------------------------------------------------ policies before 4.0


def test_playground_has_observation_sets_and_normalises_both_networks():
    modern, _ = modernize(
        {
            "algorithm": {**PPO, "schedule": "fixed", "learning_rate": 3e-4},
            "policy": {**OLD_POLICY, "class_name": "ActorCritic", "init_noise_std": 1.0},
            "empirical_normalization": True,
            "runner_class_name": "OnPolicyRunner",
            "num_steps_per_env": 40,
            "save_interval": 100,
            "obs_groups": {"policy": ["state"], "critic": ["privileged_state"]},
        }
    )
    assert modern["obs_groups"] == {"actor": ["state"], "critic": ["privileged_state"]}
    assert modern["actor"]["obs_normalization"] is modern["critic"]["obs_normalization"] is True
    assert "empirical_normalization" not in modern


def test_a_set_that_is_not_named_was_the_policys_before_4():
    cfg = {"policy": {"class_name": "ActorCritic"}, "algorithm": PPO, "num_steps_per_env": 8}
    cfg["save_interval"] = 1
    cfg["obs_groups"] = {"policy": ["state"]}
    obs = TensorDict({"state": torch.zeros(2, 3)}, batch_size=2)
    assert modernize(cfg, obs)[0]["obs_groups"] == {"actor": ["state"], "critic": ["state"]}
    # unless the environment has a group of that name
    obs["critic"] = torch.zeros(2, 5)
    assert modernize(cfg, obs)[0]["obs_groups"] == {"actor": ["state"]}


def test_a_recurrent_policy_becomes_two_recurrent_models():
    policy = {"actor_hidden_dims": [32], "critic_hidden_dims": [16], "init_noise_std": 0.8}
    policy |= {"rnn_type": "lstm", "rnn_hidden_size": 64, "rnn_num_layers": 1}
    modern, _ = modernize({"policy": policy, "runner": {"policy_class_name": "ActorCriticRecurrent"}})
    memory = {"class_name": "RNNModel", "rnn_type": "lstm", "rnn_hidden_dim": 64, "rnn_num_layers": 1}
    assert modern["actor"].items() >= {**memory, "hidden_dims": [32]}.items()
    assert modern["critic"].items() >= {**memory, "hidden_dims": [16]}.items()
    assert modern["actor"]["distribution_cfg"]["init_std"] == 0.8
    assert "distribution_cfg" not in modern["critic"]


def test_sizes_of_a_memory_that_a_policy_does_not_have_are_left_out_and_named():
    policy = {"class_name": "ActorCritic", "rnn_type": "lstm", "rnn_hidden_size": 64}
    modern, notes = modernize({"policy": policy})
    assert modern["actor"].keys() == {"class_name", "obs_normalization", "distribution_cfg"}
    assert "policy.rnn_type has no effect with ActorCritic" in notes


def test_each_network_of_an_image_policy_gets_its_own_convolutions():
    cnn = {"output_channels": (16, 32), "kernel_size": 3}
    policy = {"class_name": "ActorCriticCNN", "actor_cnn_cfg": cnn, "critic_cnn_cfg": None}
    modern, _ = modernize({"policy": policy})
    assert modern["actor"]["class_name"] == "CNNModel"
    assert modern["actor"]["cnn_cfg"] == {"output_channels": [16, 32], "kernel_size": 3}
    assert modern["critic"]["class_name"] == "MLPModel"


@pytest.mark.parametrize("is_recurrent_teacher", [False, True])
def test_student_and_teacher_become_two_models_of_which_only_the_student_samples(is_recurrent_teacher):
    policy = {
        "class_name": "StudentTeacherRecurrent",
        "student_hidden_dims": [64],
        "teacher_hidden_dims": [128],
    }
    policy |= {"student_obs_normalization": True, "teacher_obs_normalization": False, "rnn_type": "gru"}
    policy["teacher_recurrent"] = is_recurrent_teacher
    algorithm = {"class_name": "Distillation", "gradient_length": 15, "learning_rate": 1e-3}
    modern, _ = modernize(
        {"policy": policy, "algorithm": algorithm, "obs_groups": {"policy": ["p"], "teacher": ["t"]}}
    )
    student = {"class_name": "RNNModel", "rnn_type": "gru", "hidden_dims": [64], "obs_normalization": True}
    assert modern["student"].items() >= student.items()
    assert modern["student"]["distribution_cfg"]["init_std"] == 0.1  # the old default
    assert modern["teacher"]["class_name"] == ("RNNModel" if is_recurrent_teacher else "MLPModel")
    assert modern["teacher"]["hidden_dims"] == [128]
    assert "distribution_cfg" not in modern["teacher"]
    assert modern["obs_groups"] == {"student": ["p"], "teacher": ["t"]}
    assert modern["algorithm"] == algorithm


def test_distillation_ignores_what_belongs_to_ppo_and_refuses_rnd():
    models = {"student": ACTOR, "teacher": CRITIC}
    algorithm = {"class_name": "Distillation", "gradient_length": 5, "gamma": 0.9, "rnd_cfg": None}
    modern, notes = modernize({**models, "algorithm": algorithm})
    assert modern["algorithm"] == {"class_name": "Distillation", "gradient_length": 5}
    assert notes == ["algorithm.gamma has no effect with Distillation"]
    with pytest.raises(ConfigError, match="rnd_cfg is for PPO"):
        modernize({**models, "algorithm": {**algorithm, "rnd_cfg": {"weight": 1.0}}})


def test_a_state_dependent_deviation_becomes_its_own_distribution():
    policy = {"class_name": "ActorCritic", "state_dependent_std": True, "noise_std_type": "log"}
    modern, _ = modernize({"policy": policy})
    assert modern["actor"]["distribution_cfg"] == {
        "class_name": "HeteroscedasticGaussianDistribution",
        "init_std": 1.0,
        "std_type": "log",
    }


def test_a_policy_class_that_nobody_has_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"ActorCritc.*Did you mean 'ActorCritic'.*named by its path"):
        modernize({"policy": {"class_name": "ActorCritc"}})


def test_defaults_that_have_changed_since_are_named():
    _, notes = modernize({"policy": {"class_name": "ActorCritic"}, "algorithm": without(PPO, "gamma")})
    assert [note for note in notes if "today's default" in note] == [
        "algorithm.gamma is not given: today's default counts; before RSL-RL 3.0 it was 0.998"
    ]


def test_an_amp_configuration_of_the_forks_keeps_its_own_sections():
    groups = {"policy": ["policy"], "critic": ["critic"], "discriminator": ["disc"]}
    amp = {"loss_type": "LSGAN", "amp_discriminator": {"hidden_dims": [8]}, "disc_max_grad_norm": None}
    algorithm = {**PPO, "class_name": "PPOAMP", "amp_cfg": amp, "rnd_cfg": None, "share_cnn_encoders": False}
    modern, _ = modernize(
        {
            "class_name": "AMPRunner",
            "empirical_normalization": {},
            "actor": {},
            "critic": {},
            "obs_groups": groups,
            "policy": {**OLD_POLICY, "class_name": "ActorCritic", "actor_obs_normalization": {}},
            "algorithm": algorithm,
        }
    )
    assert modern["actor"] == ACTOR
    assert modern["obs_groups"] == {"actor": ["policy"], "critic": ["critic"], "discriminator": ["disc"]}
    assert modern["algorithm"] == without(algorithm, "rnd_cfg")
    assert modern["class_name"] == "AMPRunner"
    assert "empirical_normalization" not in modern


def test_a_type_of_memory_makes_a_model_recurrent():
    modern, notes = modernize({**MODERN, "critic": {**CRITIC, "rnn_type": "gru"}})
    assert modern["critic"]["class_name"] == "RNNModel"
    assert any("critic.class_name MLPModel -> RNNModel" in note for note in notes)


# ------------------------------------------------------------------ what is not set


def test_an_explicit_setting_wins_over_the_old_general_one():
    policy = {"class_name": "ActorCritic", "actor_obs_normalization": False}
    modern, _ = modernize({"policy": policy, "empirical_normalization": True})
    assert (modern["actor"]["obs_normalization"], modern["critic"]["obs_normalization"]) == (False, True)


@pytest.mark.parametrize("unset", [{}, dataclasses.MISSING, copy.deepcopy(dataclasses.MISSING), "???"])
def test_sentinels_count_as_not_set(unset):
    cfg = {**MODERN, "policy": unset, "algorithm": {**PPO, "optimizer": unset, "rnd_cfg": unset}}
    assert modernize(cfg)[0] == MODERN


def test_a_desired_kl_of_none_is_a_value():
    assert (
        modernize({**MODERN, "algorithm": {**PPO, "desired_kl": None}})[0]["algorithm"]["desired_kl"] is None
    )


@pytest.mark.parametrize("function", [None, dataclasses.MISSING])
def test_symmetry_without_a_function_is_off_with_a_warning(function):
    symmetry = {"use_data_augmentation": True, "data_augmentation_func": function}
    with pytest.warns(SurefootWarning, match="symmetry is off"):
        modern, _ = modernize({**MODERN, "algorithm": {**PPO, "symmetry_cfg": symmetry}})
    assert "symmetry_cfg" not in modern["algorithm"]


def test_an_actor_without_a_distribution_gets_the_usual_one():
    modern, notes = modernize({**MODERN, "actor": CRITIC})
    assert modern == MODERN
    assert any("actor.distribution_cfg is not given" in note for note in notes)


def test_a_model_without_a_class_name_is_what_its_keys_say():
    for key, value, class_name in [("rnn_type", "gru", "RNNModel"), ("cnn_cfg", {"a": 1}, "CNNModel")]:
        critic = {**without(CRITIC, "class_name"), key: value}
        assert modernize({**MODERN, "critic": critic})[0]["critic"]["class_name"] == class_name


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("cfg", "key", "near"),
    [
        ({**MODERN, "algorithm": {**PPO, "clip_parm": 0.2}}, "algorithm.clip_parm", "algorithm.clip_param"),
        ({**MODERN, "actor": {**ACTOR, "hidden_dim": [8]}}, "actor.hidden_dim", "actor.hidden_dims"),
        ({**MODERN, "critic": {**CRITIC, "activaton": "elu"}}, "critic.activaton", "critic.activation"),
        (
            {**MODERN, "actor": {**ACTOR, "distribution_cfg": {**GAUSSIAN, "init_sdt": 1.0}}},
            "actor.distribution_cfg.init_sdt",
            "actor.distribution_cfg.init_std",
        ),
        ({"policy": {"init_noise_sdt": 1.0}}, "policy.init_noise_sdt", "policy.init_noise_std"),
        (
            {**without(MODERN, "num_steps_per_env"), "num_step_per_env": 99},
            "num_step_per_env",
            "num_steps_per_env",
        ),
        (
            {**MODERN, "algorithm": without(PPO, "learning_rate"), "learning_rate": 1e-3},
            "learning_rate",
            "algorithm.learning_rate",
        ),
    ],
)
def test_g01_an_unknown_key_names_itself_and_the_nearest(cfg, key, near):
    with pytest.raises(ConfigError) as info:
        modernize(cfg)
    assert isinstance(info.value, TypeError)
    assert f"'{key}'" in str(info.value)
    assert f"'{near}'" in str(info.value)


def test_keys_of_ones_own_classes_are_theirs():
    cfg = {
        **MODERN,
        "algorithm": {"class_name": "my.module:PPO", "horizon": 3},
        "actor": {"class_name": "my.module.Model", "depth": None, "cnn_cfg": None},
    }
    modern, _ = modernize(cfg)
    assert modern["algorithm"] == {"class_name": "my.module:PPO", "horizon": 3}
    assert modern["actor"] == {"class_name": "my.module.Model", "depth": None}


@pytest.mark.parametrize(
    "name", ["rsl_rl.algorithms:PPO", "rsl_rl.algorithms.PPO", "rsl_rl.algorithms.ppo.PPO"]
)
def test_rsl_rls_classes_are_known_by_their_paths_too(name):
    with pytest.raises(ConfigError, match="clip_parm"):
        modernize({**MODERN, "algorithm": {**PPO, "class_name": name, "clip_parm": 0.2}})


def test_a_key_without_which_nothing_runs_is_named():
    with pytest.raises(KeyError) as info:
        modernize(without(MODERN, "num_steps_per_env"), {"policy": torch.zeros(2, 3)})
    assert str(info.value) == "the configuration has no 'num_steps_per_env', which PPO needs."


# ------------------------------------------------------------------ laws

unset = st.sampled_from([None, {}, dataclasses.MISSING])
dims = st.one_of(st.lists(st.integers(1, 8), min_size=1, max_size=3), st.tuples(st.integers(1, 8)))
noise = {
    "init_noise_std": st.floats(0.1, 2),
    "noise_std_type": st.sampled_from(["scalar", "log"]),
    "state_dependent_std": st.booleans(),
}
memory = {"rnn_type": st.sampled_from(["gru", "lstm"]), "rnn_hidden_dim": st.integers(1, 8)}


def mappings(keys: dict[str, st.SearchStrategy]) -> st.SearchStrategy:
    return st.fixed_dictionaries({}, optional={k: st.one_of(v, unset) for k, v in keys.items()})


pairs = {f"{n}_hidden_dims": dims for n in ("actor", "critic")} | {
    f"{n}_obs_normalization": st.booleans() for n in ("actor", "critic")
}
policies = mappings(
    {"class_name": st.sampled_from(["ActorCritic", "ActorCriticRecurrent"]), **pairs, **noise, **memory}
)
models = mappings(
    {
        "class_name": st.sampled_from(["MLPModel", "my.module:Model"]),
        "hidden_dims": dims,
        "stochastic": st.booleans(),
        **noise,
        "distribution_cfg": st.just(GAUSSIAN),
        "obs_normalization": st.booleans(),
    }
)
configs = mappings(
    {
        "runner": mappings({"policy_class_name": st.just("ActorCritic"), "save_interval": st.integers(0, 9)}),
        "policy": policies,
        "actor": models,
        "critic": models,
        "algorithm": mappings(
            {"class_name": st.just("PPO"), "gamma": st.floats(0, 1), "desired_kl": st.floats(0, 1)}
        ),
        "obs_groups": mappings({"policy": st.just(("a", "b")), "critic": st.just(["c"])}).filter(
            lambda groups: None not in groups.values()
        ),
        "empirical_normalization": st.booleans(),
        "anything": st.dictionaries(st.text(), st.tuples(st.integers())),
    }
)


@given(configs)
def test_modernize_is_idempotent_and_never_changes_its_argument(cfg):
    before = repr(cfg)
    modern, _ = modernize(cfg)
    assert repr(cfg) == before
    again, _ = modernize(modern)
    assert again == modern
    assert "policy" not in modern
    assert "runner" not in modern
