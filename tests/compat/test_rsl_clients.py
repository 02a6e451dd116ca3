"""Clients of RSL-RL train, resume, export and act through the door, by the calls that they make."""

from __future__ import annotations

import copy
import json
import os
import pickle
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from client_stubs import (
    MAX_LENGTH,
    NUM_ACTIONS,
    NUM_ENVS,
    NUM_OBS,
    PPO,
    STEPS,
    extras_cfg,
    extras_env,
    genesis_cfg,
    genesis_env,
    isaac_lab_cfg,
    isaac_lab_env,
    legged_gym_cfg,
    legged_gym_env,
    mjlab_cfg,
    mjlab_env,
    mjlab_runner,
    playground_cfg,
    playground_env,
)
from torch import nn

pytestmark = [
    pytest.mark.usefixtures("door"),
    pytest.mark.filterwarnings("ignore:the value after a time limit:surefoot.config.advice.SurefootWarning"),
]


def records(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def parameters(module: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in module.parameters()]


def differ(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return any(not torch.equal(x, y) for x, y in zip(a, b, strict=True))


# ------------------------------------------------------------------ each client's way


def test_genesis(tmp_path):
    from rsl_rl.runners import OnPolicyRunner

    assert int(metadata.version("rsl-rl-lib").split(".")[0]) >= 5
    env, cfg = genesis_env(), genesis_cfg()
    (tmp_path / "cfgs.pkl").write_bytes(pickle.dumps([{}, {}, {}, {}, cfg]))
    runner = OnPolicyRunner(env, cfg, str(tmp_path), device=env.device)
    before = parameters(runner.alg.actor)
    runner.learn(num_learning_iterations=2, init_at_random_ep_len=True)
    assert differ(before, parameters(runner.alg.actor))
    assert env.episode_length_buf.dtype == torch.int32
    assert records(tmp_path)[-1]["Episode/rew_tracking_lin_vel"] == 0.5
    assert cfg == genesis_cfg()

    cfg = pickle.loads((tmp_path / "cfgs.pkl").read_bytes())[-1]
    runner = OnPolicyRunner(env, cfg, str(tmp_path), device=env.device)
    runner.load(os.path.join(tmp_path, "model_1.pt"))
    policy = runner.get_inference_policy(device=env.device)
    obs = env.reset()
    with torch.no_grad():
        for _ in range(3):
            obs, _rewards, _dones, _infos = env.step(policy(obs))


@pytest.mark.parametrize("with_device", [False, True])
def test_playground(tmp_path, with_device):
    from rsl_rl.runners import OnPolicyRunner

    env, cfg = playground_env(with_device), playground_cfg()
    assert not hasattr(env, "cfg")
    runner = OnPolicyRunner(env, cfg, str(tmp_path), device="cpu")
    runner.learn(num_learning_iterations=2, init_at_random_ep_len=False)
    assert env.num_resets == 2  # one to build the networks, one to begin; none within the run
    assert records(tmp_path)[-1]["Episode/reward_tracking"] == 0.25
    assert runner.alg.critic.obs_dim == 5

    runner = OnPolicyRunner(env, playground_cfg(), str(tmp_path), device="cpu")
    runner.load(str(tmp_path / "model_1.pt"))
    policy = runner.get_inference_policy(device="cpu")
    assert policy({"state": torch.zeros(NUM_OBS)}).shape == (NUM_ACTIONS,)
    # its issue #267: the normaliser is part of what is deployed
    assert not isinstance(runner.obs_normalizer, nn.Identity)
    model = runner.alg.actor
    x = torch.randn(NUM_ENVS, NUM_OBS)
    torch.testing.assert_close(policy({"state": x}), model.mlp(model.obs_normalizer(x)).detach())


def test_isaac_lab(tmp_path):
    from rsl_rl.models.cnn_model import CNNModel  # noqa: F401
    from rsl_rl.models.mlp_model import MLPModel
    from rsl_rl.modules import HiddenState  # noqa: F401
    from rsl_rl.runners import DistillationRunner, OnPolicyRunner  # noqa: F401

    version = tuple(int(part) for part in metadata.version("rsl-rl-lib").split("."))
    assert version >= (5, 0, 0)
    env, log_dir = isaac_lab_env(), str(tmp_path / "run")
    runner = OnPolicyRunner(env, isaac_lab_cfg(), log_dir=log_dir, device="cpu")
    runner.add_git_repo_to_log(__file__)
    runner.learn(num_learning_iterations=2, init_at_random_ep_len=True)
    record = records(tmp_path / "run")[-1]
    assert record["Curriculum/terrain_levels"] == 1.5
    assert "Episode_Reward/tracking" in record
    assert runner.cfg["experiment_name"] == "anymal_d_flat"

    resumed = OnPolicyRunner(env, isaac_lab_cfg(), log_dir=log_dir, device="cpu")
    resumed.load(os.path.join(log_dir, "model_1.pt"))
    resumed.learn(num_learning_iterations=1, init_at_random_ep_len=True)
    assert [record["iteration"] for record in records(tmp_path / "run")] == [0, 1, 2]

    player = OnPolicyRunner(env, isaac_lab_cfg(), log_dir=None, device="cpu")
    player.load(os.path.join(log_dir, "model_2.pt"))
    policy = player.get_inference_policy(device=env.unwrapped.device)
    pytest.importorskip("onnx")
    player.export_policy_to_jit(path=log_dir, filename="policy.pt")
    player.export_policy_to_onnx(path=log_dir, filename="policy.onnx")
    with torch.inference_mode():
        obs = env.get_observations()
        for _ in range(3):
            actions = policy(obs)
            obs, _, dones, _ = env.step(actions)
            policy.reset(dones)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            own = torch.jit.load(os.path.join(log_dir, "policy.pt"))(obs["policy"])
        torch.testing.assert_close(own, policy(obs))
    assert isinstance(player.alg.get_policy(), MLPModel)


@pytest.mark.parametrize("policy_class", ["ActorCritic", "ActorCriticRecurrent"])
@pytest.mark.parametrize("privileged", [False, True])
def test_legged_gym(tmp_path, privileged, policy_class):
    from rsl_rl.runners import OnPolicyRunner

    env, cfg = legged_gym_env(privileged), legged_gym_cfg(policy_class)
    runner = OnPolicyRunner(env, cfg, str(tmp_path), device="cpu")
    assert env.num_resets == 1
    runner.learn(num_learning_iterations=2, init_at_random_ep_len=True)
    assert "Episode/rew_tracking" in records(tmp_path)[-1]
    assert runner.alg.critic.obs_dim == (5 if privileged else NUM_OBS)
    assert cfg == legged_gym_cfg(policy_class)

    runner = OnPolicyRunner(env, cfg, None, device="cpu")
    runner.load(str(tmp_path / "model_1.pt"))
    policy = runner.get_inference_policy(device=env.device)
    obs = env.get_observations()
    for _ in range(3):
        obs, _, _, _, _ = env.step(policy(obs.detach()).detach())
    # its export_policy_as_jit
    actor_critic = runner.alg.actor_critic
    assert hasattr(actor_critic, "memory_a") == (policy_class == "ActorCriticRecurrent")
    network = copy.deepcopy(actor_critic.actor).to("cpu")
    with torch.no_grad():
        actions = actor_critic.act_inference(obs)
        if policy_class == "ActorCritic":
            torch.testing.assert_close(network(obs), actions)
    assert actions.shape == (NUM_ENVS, NUM_ACTIONS)


def test_legged_gym_forks_that_return_four_values_keep_their_privileged_observations():
    from rsl_rl.runners import OnPolicyRunner

    runner = OnPolicyRunner(legged_gym_env(privileged=True, five_values=False), legged_gym_cfg(), None)
    runner.learn(1)
    assert runner.alg.critic.obs_dim == 5


def test_clients_of_version_2(tmp_path):
    from rsl_rl.runners import OnPolicyRunner

    env = extras_env()
    runner = OnPolicyRunner(env, extras_cfg(), str(tmp_path), device="cpu")
    runner.learn(num_learning_iterations=2, init_at_random_ep_len=True)
    assert runner.alg.critic.obs_dim == 5
    assert records(tmp_path)[-1]["/pos"] == 0.5
    policy = runner.get_inference_policy()
    obs, _ = env.get_observations()
    assert torch.equal(policy(obs), policy({"policy": obs}))
    assert runner.alg.policy.act_inference(obs).shape == (NUM_ENVS, NUM_ACTIONS)
    assert runner.obs_normalizer(obs).shape == obs.shape


def test_mjlab(tmp_path):
    runner_class = mjlab_runner()
    runner = runner_class(mjlab_env(), mjlab_cfg(), str(tmp_path), "cpu")
    runner.learn(num_learning_iterations=2, init_at_random_ep_len=True)
    assert runner.exported == ["policy.onnx"] * 2
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == ["model_0.pt", "model_1.pt"]

    resumed = runner_class(mjlab_env(), mjlab_cfg(), str(tmp_path), "cpu")
    infos = resumed.load(str(tmp_path / "model_1.pt"), map_location="cpu")
    assert infos["env_state"]["common_step_counter"] == 2 * STEPS
    assert resumed.env.unwrapped.common_step_counter == 2 * STEPS
    resumed.learn(num_learning_iterations=1, init_at_random_ep_len=True)
    assert (tmp_path / "model_2.pt").exists()

    player = runner_class(mjlab_env(), mjlab_cfg(), None, "cpu")
    before = parameters(player.alg.critic)
    player.load(str(tmp_path / "model_2.pt"), load_cfg={"actor": True}, strict=True, map_location="cpu")
    assert not differ(parameters(player.alg.actor), parameters(resumed.alg.actor))
    assert not differ(before, parameters(player.alg.critic))
    assert player.current_learning_iteration == 0
    policy = player.get_inference_policy(device="cpu")
    assert policy(player.env.get_observations()).shape == (NUM_ENVS, NUM_ACTIONS)


def test_amp_runner_is_the_same_loop():
    from rsl_rl.runners import AMPRunner

    AMPRunner(genesis_env(), genesis_cfg(), None).learn(1)


# ------------------------------------------------------------------ G03


def layouts() -> dict[str, dict[str, Any]]:
    """The same run in the three layouts that are in use."""
    algorithm = {**PPO, "entropy_coef": 0.01}
    policy = {
        "class_name": "ActorCritic",
        "init_noise_std": 0.7,
        "actor_hidden_dims": [16, 8],
        "critic_hidden_dims": [12, 8],
        "activation": "elu",
    }
    without_class = {key: value for key, value in algorithm.items() if key != "class_name"}
    steps = {"num_steps_per_env": STEPS, "save_interval": 50}
    nested = {
        "algorithm": without_class,
        "policy": {key: value for key, value in policy.items() if key != "class_name"},
        "runner": {"policy_class_name": "ActorCritic", "algorithm_class_name": "PPO", **steps},
    }
    flat = {**steps, "algorithm": algorithm, "policy": policy, "empirical_normalization": False}
    model = {"class_name": "MLPModel", "activation": "elu"}
    noise = {"class_name": "GaussianDistribution", "init_std": 0.7, "std_type": "scalar"}
    newest = {
        **steps,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "algorithm": algorithm,
        "actor": {**model, "hidden_dims": [16, 8], "distribution_cfg": noise},
        "critic": {**model, "hidden_dims": [12, 8]},
    }
    return {"nested": nested, "flat": flat, "newest": newest}


def test_g03_all_layouts_of_a_configuration_train_the_same_weights():
    from rsl_rl.runners import OnPolicyRunner

    weights = {}
    for name, cfg in layouts().items():
        torch.manual_seed(3)
        runner = OnPolicyRunner(genesis_env(), cfg, None)
        runner.learn(1)
        weights[name] = parameters(runner.alg.actor) + parameters(runner.alg.critic)
    assert not differ(weights["nested"], weights["flat"])
    assert not differ(weights["flat"], weights["newest"])


@pytest.mark.parametrize("make", [legged_gym_env, extras_env, playground_env, genesis_env, isaac_lab_env])
def test_g03_environments_of_every_generation_fill_the_same_rollout(make):
    from surefoot.compat.rsl_rl.env_adapter import EnvAdapter

    adapter = EnvAdapter(make())
    first = adapter.first_observations()
    assert first.batch_size == (NUM_ENVS,)
    assert all(x.shape[0] == NUM_ENVS for x in first.values())
    for _ in range(MAX_LENGTH + 1):
        obs, rewards, dones, extras = adapter.step(torch.zeros(NUM_ENVS, NUM_ACTIONS))
        assert set(obs.keys()) == set(first.keys())
        assert rewards.shape == dones.shape == extras["time_outs"].shape == (NUM_ENVS,)
        assert rewards.is_floating_point()
