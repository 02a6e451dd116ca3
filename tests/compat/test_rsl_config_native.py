"""Files of RSL-RL in Surefoot's own form, on the command line and from Python."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import yaml
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.cli import cli
from surefoot.config import advice, build_config, build_extensions, load_yaml
from surefoot.config.rsl_rl import from_rsl_rl, is_rsl_rl
from surefoot.errors import ConfigError
from surefoot.testing import TargetEnv
from surefoot.training.on_policy_runner import OnPolicyRunner

PPO = {
    "class_name": "PPO",
    "num_learning_epochs": 2,
    "num_mini_batches": 2,
    "clip_param": 0.15,
    "gamma": 0.98,
    "lam": 0.9,
    "value_loss_coef": 0.7,
    "entropy_coef": 0.003,
    "learning_rate": 5e-4,
    "max_grad_norm": 0.8,
    "use_clipped_value_loss": False,
    "schedule": "adaptive",
    "desired_kl": 0.02,
    "normalize_advantage_per_mini_batch": True,
}
GAUSSIAN = {"class_name": "GaussianDistribution", "init_std": 0.5, "std_type": "log"}
MODEL = {"class_name": "MLPModel", "hidden_dims": [8, 4], "activation": "elu", "obs_normalization": True}
MODERN: dict[str, Any] = {
    "num_steps_per_env": 8,
    "max_iterations": 3,
    "save_interval": 7,
    "seed": 5,
    "experiment_name": "walk",
    "run_name": "",
    "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
    "actor": {**MODEL, "distribution_cfg": GAUSSIAN},
    "critic": MODEL,
    "algorithm": PPO,
}
POLICY = {
    "class_name": "ActorCritic",
    "actor_hidden_dims": [8, 4],
    "critic_hidden_dims": [8, 4],
    "activation": "elu",
    "init_noise_std": 0.5,
    "noise_std_type": "log",
}
TOP = {k: v for k, v in MODERN.items() if k not in ("actor", "critic", "algorithm", "obs_groups")}
FLAT = {**TOP, "policy": POLICY, "algorithm": PPO, "empirical_normalization": True}
FLAT["obs_groups"] = {"policy": ["policy"], "critic": ["policy"]}
NESTED = {
    "seed": 5,
    "runner": {**{k: v for k, v in TOP.items() if k != "seed"}, "algorithm_class_name": "PPO"},
    "policy": POLICY,
    "algorithm": {k: v for k, v in PPO.items() if k != "class_name"},
    "empirical_normalization": True,
    "obs_groups": {"policy": ["policy"], "critic": ["policy"]},
}
LAYOUTS = {"nested": NESTED, "flat": FLAT, "modern": MODERN}


def surefoot(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def changed(section: str, **keys: Any) -> dict[str, Any]:
    return {**MODERN, section: {**MODERN[section], **keys}}


# ------------------------------------------------------------------ what is carried over


def test_every_number_keeps_its_meaning():
    config = build_config(from_rsl_rl(MODERN)[0])
    assert (config.num_steps_per_env, config.max_iterations, config.save_interval, config.seed) == (
        8,
        3,
        7,
        5,
    )
    assert (config.experiment_name, config.run_name) == ("walk", None)
    assert {k: getattr(config.algorithm, k) for k in PPO} == PPO
    assert (config.algorithm.grad_clip, config.algorithm.lr_bounds) == ("separate", (1e-5, 1e-2))
    for network in (config.actor, config.critic):
        assert (network.hidden_dims, network.activation, network.init) == ([8, 4], "elu", "default")
        assert (network.obs_normalization, network.obs_clip) == (True, None)
    std = config.actor.distribution
    assert (std.class_name, std.init_std, std.std_type, std.std_range) == ("auto", 0.5, "log", (1e-6, 1e6))
    assert config.network == "separate"
    assert config.obs_groups == {"actor": ["policy"], "critic": ["policy"]}
    assert not [text for text in advice(config) if "no effect" in text]


def test_what_is_left_out_has_rsl_rls_default():
    config = build_config(
        from_rsl_rl({"actor": {"class_name": "MLPModel"}, "critic": {"class_name": "MLPModel"}})[0]
    )
    assert config.actor.hidden_dims == config.critic.hidden_dims == [256, 256, 256]
    assert config.algorithm.entropy_coef == 0.01
    assert config.algorithm.num_mini_batches == 4
    assert config.actor.distribution.std_range == (1e-6, 1e6)


def test_a_presets_settings_do_not_change_what_the_file_says(tmp_path):
    """Pendulum's preset has its own learning rate, schedule, networks and reward scaling."""
    (tmp_path / "agent.yaml").write_text(yaml.safe_dump({**MODERN, "num_steps_per_env": 1024}))
    result = surefoot("config", "Pendulum-v1", "--config", str(tmp_path / "agent.yaml"))
    assert result.exit_code == 0, result.stderr
    with_file = load_yaml(result.stdout)
    alone, _ = from_rsl_rl(MODERN)
    for section in ("actor", "critic", "algorithm"):
        assert with_file[section] == alone[section]
    assert with_file["env"]["reward_scaling"] is False
    assert with_file["network"] == "separate"


@pytest.mark.parametrize(("theirs", "ours"), [("lrelu", "leaky_relu"), ("swish", "silu"), ("ReLU", "relu")])
def test_activations_have_other_names(theirs, ours):
    assert from_rsl_rl(changed("actor", activation=theirs))[0]["actor"]["activation"] == ours


def test_a_deviation_that_is_not_learned_keeps_its_value():
    native, notes = from_rsl_rl(changed("actor", distribution_cfg={**GAUSSIAN, "learn_std": False}))
    assert native["actor"]["distribution"]["std_range"] == [0.5, 0.5]
    assert any("learn_std" in note for note in notes)
    build_config(native)


def test_memory_and_a_deviation_by_state_are_carried_over():
    memory = {"class_name": "RNNModel", "rnn_type": "gru", "rnn_hidden_dim": 16}
    distribution = {"class_name": "HeteroscedasticGaussianDistribution", "init_std": 0.3}
    native, _ = from_rsl_rl(changed("actor", **memory, distribution_cfg=distribution))
    config = build_config(native)
    assert (config.actor.rnn_type, config.actor.rnn_hidden_dim, config.critic.rnn_type) == ("gru", 16, None)
    assert (config.actor.distribution.std_type, config.actor.distribution.init_std) == (
        "state_dependent",
        0.3,
    )


def test_convolutions_are_carried_over_and_shared_ones_shared():
    cnn = {"output_channels": [8, 16], "kernel_size": 3, "stride": [2, 1], "norm": "batch"}
    cfg = {**MODERN, "algorithm": {**PPO, "share_cnn_encoders": True}}
    cfg["actor"] = {**MODERN["actor"], "class_name": "CNNModel", "cnn_cfg": {"camera": cnn}}
    native, notes = from_rsl_rl(cfg)
    assert native["actor"]["cnn"] == {"channels": [8, 16], "kernel_sizes": [3, 3], "strides": [2, 1]}
    assert native["critic"]["cnn"] == "shared"
    assert "actor.cnn_cfg.norm is not carried over: there is no counterpart" in notes
    build_config(native)


@pytest.mark.parametrize(
    ("keys", "note"),
    [
        ({"schedule": "linear"}, "only 'adaptive' moves the rate"),
        ({"desired_kl": None}, "without desired_kl nothing moves the rate"),
    ],
)
def test_a_schedule_that_does_nothing_there_is_fixed_here(keys, note):
    native, notes = from_rsl_rl(changed("algorithm", **keys))
    assert native["algorithm"]["schedule"] == "fixed"
    assert any(note in text for text in notes)
    build_config(native)


def test_rnd_and_symmetry_become_surefoots_with_what_differs_said():
    rnd = {"weight": 0.5, "num_outputs": 4, "predictor_hidden_dims": [-1], "target_hidden_dims": [-1]}
    symmetry = {"use_data_augmentation": True, "data_augmentation_func": "my.module:mirror"}
    cfg = changed("algorithm", rnd_cfg=rnd, symmetry_cfg=symmetry)
    cfg["obs_groups"] = {**MODERN["obs_groups"], "rnd_state": ["policy"]}
    native, notes = from_rsl_rl(cfg)
    ours = native["algorithm"]["rnd_cfg"]
    assert ours.items() >= {**rnd, "obs_groups": ["policy"], "reward_normalization": False}.items()
    assert (ours["num_learning_epochs"], ours["num_mini_batches"]) == (2, 2)
    assert native["algorithm"]["symmetry_cfg"]["mirror_loss_coeff"] == 0.0
    assert any("step_dt" in note for note in notes)
    assert any("my.module:mirror" in note and "symmetry_cfg.mirror" in note for note in notes)
    assert len(build_extensions(build_config(native))) == 2


def test_what_nothing_reads_is_said():
    more = {"device": "cuda:0", "clip_actions": 1.0, "wandb_project": "x", "torch_compile_mode": "default"}
    more |= {"resume": True, "num_envs": 64, "upload_model": True, "load_run": ".*", "logger": "neptune"}
    native, notes = from_rsl_rl({**MODERN, **more})
    text = "\n".join(notes)
    for key in ("device", "clip_actions", "wandb_project", "torch_compile_mode", "resume", "upload_model"):
        assert f"{key} is not carried over" in text
    assert "num_envs 64: over all processes" in text
    assert native["logger"] == "tensorboard"
    assert "load_run" not in text


def test_loggers_have_other_names():
    for theirs, ours in [
        ({"class_name": "WandbLogWriter", "project_name": "x"}, "wandb"),
        ("none", "none"),
        (None, "tensorboard"),
    ]:
        assert build_config(from_rsl_rl({**MODERN, "logger": theirs})[0]).logger == ours


@pytest.mark.parametrize(
    ("cfg", "words"),
    [
        (changed("actor", class_name="my.module:Model"), ["my.module:Model", "surefoot rsl-rl"]),
        (changed("actor", hidden_dims=[-1]), ["actor.hidden_dims", "-1"]),
        (changed("critic", activation="mish"), ["critic.activation", "mish", "silu"]),
        (changed("algorithm", class_name="PPOAMP", amp_cfg={"amp_discriminator": {"a": 1}}), ["amp_cfg"]),
        (changed("algorithm", class_name="my.module:PPO"), ["my.module:PPO", "surefoot rsl-rl"]),
        ({"student": MODEL, "teacher": MODEL, "algorithm": {"class_name": "Distillation"}}, ["Distillation"]),
        (changed("algorithm", clip_parm=0.2), ["algorithm.clip_parm", "algorithm.clip_param"]),
    ],
)
def test_what_would_be_another_run_is_refused(cfg, words):
    with pytest.raises(ConfigError) as info:
        from_rsl_rl(cfg)
    assert all(word in str(info.value) for word in words)


# ------------------------------------------------------------------ which form a file has


def test_surefoots_own_files_are_not_taken_for_rsl_rls():
    own = {"num_envs": 4, "actor": {"hidden_dims": [8], "class_name": "my.module:MLPModel"}, "critic": {}}
    assert not is_rsl_rl(own)
    assert not is_rsl_rl(from_rsl_rl(MODERN)[0])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_recognised(layout):
    assert is_rsl_rl(LAYOUTS[layout])


def test_g03_the_same_hyper_parameters_in_every_layout_are_the_same_run():
    before = copy.deepcopy(LAYOUTS)
    configs = [from_rsl_rl(layout)[0] for layout in LAYOUTS.values()]
    assert configs[0] == configs[1] == configs[2]
    assert before == LAYOUTS

    def weights(config: dict[str, Any]) -> dict[str, torch.Tensor]:
        runner = OnPolicyRunner(
            TargetEnv(256, seed=1), {**config, "eval_episodes": 0, "logger": "none"}, quiet=True
        )
        start = copy.deepcopy(runner.policy.state_dict())
        runner.learn(1)
        end = runner.policy.state_dict()
        assert any(not torch.equal(start[k], end[k]) for k in end)
        return end

    first, *others = [weights(config) for config in configs]
    for other in others:
        torch.testing.assert_close(first, other, rtol=0, atol=0)


numbers = {
    "num_learning_epochs": st.integers(1, 9),
    "num_mini_batches": st.integers(1, 9),
    "clip_param": st.floats(0.01, 1),
    "gamma": st.floats(0, 1),
    "lam": st.floats(0, 1),
    "value_loss_coef": st.floats(0, 9),
    "entropy_coef": st.floats(0, 1),
    "learning_rate": st.floats(1e-6, 0.1),
    "max_grad_norm": st.floats(0.1, 9),
    "use_clipped_value_loss": st.booleans(),
    "schedule": st.sampled_from(["adaptive", "fixed"]),
    "desired_kl": st.one_of(st.none(), st.floats(0.001, 0.1)),
}
parts = st.fixed_dictionaries(
    {
        "algorithm": st.fixed_dictionaries({}, optional=numbers),
        "dims": st.tuples(*[st.lists(st.integers(1, 99), min_size=1, max_size=3)] * 2),
        "activation": st.sampled_from(["elu", "relu", "lrelu", "swish", "tanh", "gelu"]),
        "normalizes": st.booleans(),
        "init_std": st.floats(0.01, 9),
        "std_type": st.sampled_from(["scalar", "log"]),
        "by_state": st.booleans(),
        "memory": st.sampled_from([{}, {"rnn_type": "gru", "rnn_hidden_dim": 7, "rnn_num_layers": 2}]),
    }
)


@settings(max_examples=30)
@given(parts)
def test_g03_whatever_the_numbers_every_generation_is_the_same_run(p):
    groups = ["policy"], ["policy", "privileged"]
    noise = {
        "init_noise_std": p["init_std"],
        "noise_std_type": p["std_type"],
        "state_dependent_std": p["by_state"],
    }
    policy = {"actor_hidden_dims": p["dims"][0], "critic_hidden_dims": p["dims"][1], **noise, **p["memory"]}
    policy["activation"] = p["activation"]
    old = "ActorCriticRecurrent" if p["memory"] else "ActorCritic"
    kind = {"class_name": "RNNModel" if p["memory"] else "MLPModel", **p["memory"]}
    kind |= {"activation": p["activation"], "obs_normalization": p["normalizes"]}
    actor, critic = ({**kind, "hidden_dims": dims} for dims in p["dims"])
    family = "HeteroscedasticGaussianDistribution" if p["by_state"] else "GaussianDistribution"
    distribution = {"class_name": family, "init_std": p["init_std"], "std_type": p["std_type"]}
    old_groups, new_groups = ({first: groups[0], "critic": groups[1]} for first in ("policy", "actor"))
    algorithm = {"class_name": "PPO", **p["algorithm"]}
    layouts = [
        {
            "runner": {"policy_class_name": old, "algorithm_class_name": "PPO", "obs_groups": old_groups},
            "policy": policy,
            "algorithm": p["algorithm"],
            "empirical_normalization": p["normalizes"],
        },
        {
            "policy": {"class_name": old, **policy, "actor_obs_normalization": p["normalizes"]},
            "algorithm": algorithm,
            "empirical_normalization": p["normalizes"],
            "obs_groups": old_groups,
        },
        {
            "actor": {**actor, "stochastic": True, **noise},
            "critic": {**critic, "stochastic": False, **noise},
            "algorithm": algorithm,
            "obs_groups": new_groups,
        },
        {
            "actor": {**actor, "distribution_cfg": distribution},
            "critic": critic,
            "algorithm": algorithm,
            "obs_groups": new_groups,
        },
    ]
    before = copy.deepcopy(layouts)
    configs = [build_config(from_rsl_rl(layout)[0]) for layout in layouts]
    assert before == layouts
    assert configs[0] == configs[1] == configs[2] == configs[3]
    assert all(getattr(configs[0].algorithm, k) == v for k, v in p["algorithm"].items() if k != "schedule")


# ------------------------------------------------------------------ the command


@pytest.fixture
def agent_yaml(tmp_path):
    path = tmp_path / "agent.yaml"
    tuples = {**FLAT, "policy": {**POLICY, "actor_hidden_dims": (8, 4)}}
    path.write_text(yaml.dump(tuples))  # as Isaac Lab writes it: tuples have a tag of Python's
    assert "!!python/tuple" in path.read_text()
    return path


def test_import_config_prints_our_form_with_what_changed_as_comments(agent_yaml):
    result = surefoot("import-config", str(agent_yaml))
    assert result.exit_code == 0
    config = build_config(load_yaml(result.stdout))
    assert config.actor.hidden_dims == [8, 4]
    comments = [line for line in result.stdout.splitlines() if line.startswith("#")]
    assert any("policy.init_noise_std -> actor.distribution.init_std" in line for line in comments)
    assert not any("distribution_cfg" in line for line in comments)


def test_import_config_writes_a_file_that_train_takes(agent_yaml, tmp_path):
    out = tmp_path / "config.yaml"
    result = surefoot("import-config", str(agent_yaml), "--out", str(out))
    assert result.exit_code == 0
    assert "policy.init_noise_std -> actor.distribution.init_std" in result.stdout
    task = ["Pendulum-v1", "--set", "num_steps_per_env=1024"]
    direct, imported = (surefoot("config", *task, "--config", str(file)) for file in (agent_yaml, out))
    assert direct.exit_code == imported.exit_code == 0
    assert load_yaml(direct.stdout) == load_yaml(imported.stdout)
    assert "is a configuration of RSL-RL" in direct.stderr
    assert "is a configuration of RSL-RL" not in imported.stderr


def test_import_config_says_when_there_is_nothing_to_import(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text("num_envs: 8\n")
    result = surefoot("import-config", str(path))
    assert result.exit_code == 2
    assert "not in RSL-RL's form" in result.stderr
