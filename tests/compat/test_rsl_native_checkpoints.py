"""Weights between Surefoot's own checkpoints and RSL-RL's."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from surefoot.cli import cli
from surefoot.compat.rsl_rl.checkpoints import from_native, load_checkpoint, to_native
from surefoot.config import SurefootWarning
from surefoot.errors import CheckpointError, ConfigError
from surefoot.testing import TargetEnv
from surefoot.training.checkpoint import load_checkpoint as load_own
from surefoot.training.checkpoint import save_checkpoint
from surefoot.training.on_policy_runner import OnPolicyRunner

N = 64
NETWORK = {"hidden_dims": [8, 4], "obs_normalization": True, "obs_clip": None}
BASE: dict[str, Any] = {
    "num_steps_per_env": 32,
    "actor": NETWORK,
    "critic": {**NETWORK, "hidden_dims": [6]},
    "algorithm": {
        "num_learning_epochs": 1,
        "num_mini_batches": 2,
        "schedule": "fixed",
        "learning_rate": 2e-3,
    },
    "logger": "none",
    "eval_episodes": 0,
}
MEMORY = {"rnn_hidden_dim": 5}
CASES: dict[str, dict[str, Any]] = {
    "mlp": {},
    "log": {"actor": {"distribution": {"std_type": "log", "init_std": 0.5}}},
    "state_dependent": {"actor": {"distribution": {"std_type": "state_dependent"}}},
    "beta": {"actor": {"distribution": {"class_name": "Beta"}}},
    "gru": {name: {"rnn_type": "gru", **MEMORY} for name in ("actor", "critic")},
    "lstm": {name: {"rnn_type": "lstm", "rnn_num_layers": 2, **MEMORY} for name in ("actor", "critic")},
    "critic_rate": {"algorithm": {"critic_learning_rate": 1e-3}},
    "not_normalised": {"actor": {"obs_normalization": False, "obs_clip": 10.0}},
}


def trained(case: str = "mlp", seed: int = 1, iterations: int = 2, **keys: Any) -> OnPolicyRunner:
    config = {**BASE, "seed": seed, **keys}
    for section, values in CASES[case].items():
        config[section] = {**BASE[section], **values}
    runner = OnPolicyRunner(TargetEnv(N, seed=3), config, quiet=True)
    if iterations:
        runner.learn(iterations)
    return runner


def exported(runner: OnPolicyRunner, path: Path) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SurefootWarning)  # the task's actions are bounded
        return from_native(load_own(save_checkpoint(path, runner.state())))


def walk(runner: OnPolicyRunner, steps: int = 3) -> dict[str, Any]:
    """Parameters of the actions' distribution, and values, along a few steps from the start of an episode."""
    generator = torch.Generator().manual_seed(0)
    policy, params, values, seen = runner.policy, [], [], []
    memory: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        for _ in range(steps):
            seen.append(3 * torch.randn(5, 3, generator=generator))
            inputs = policy.inputs({"policy": seen[-1]})
            distribution, memory = policy.advance(inputs, memory)
            body = policy.value_body(inputs, memory.get("critic"))
            if body.state is not None:
                memory = {**memory, "critic": body.state}
            values.append(policy.value_head(body.features).squeeze(-1))
            params.append([x.clone() for x in distribution.params.values()])
    return {"obs": seen, "params": params, "value": values}


# ------------------------------------------------------------------ to RSL-RL

REAL = r"""
import json, sys
import torch
from tensordict import TensorDict
from rsl_rl.runners import OnPolicyRunner


class Env:
    num_envs, num_actions, max_episode_length, device, cfg = 5, 1, 100, "cpu", {}
    episode_length_buf = torch.zeros(5, dtype=torch.long)

    def get_observations(self):
        return TensorDict({"policy": torch.randn(5, 3)}, batch_size=5)

    def step(self, actions):
        return self.get_observations(), torch.randn(5), torch.zeros(5, dtype=torch.long), {}


for case in json.load(open(sys.argv[1])):
    runner = OnPolicyRunner(Env(), case["config"], log_dir=None, device="cpu")
    runner.load(case["file"], map_location="cpu")
    expected = torch.load(case["expected"])
    actor, critic = runner.alg.actor.eval(), runner.alg.critic.eval()
    for obs, params, value in zip(*(expected[k] for k in ("obs", "params", "value"))):
        obs = TensorDict({"policy": obs}, batch_size=5)
        with torch.no_grad():
            actor(obs, stochastic_output=True)
            for got, want in zip(actor.output_distribution_params, params):
                torch.testing.assert_close(got.expand_as(want), want, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(critic(obs).squeeze(-1), value, rtol=1e-5, atol=1e-5)
    assert runner.current_learning_iteration == 1
    assert abs(runner.alg.learning_rate - 2e-3) < 1e-9
    state = runner.alg.optimizer.state
    for model in (actor, critic):
        for name, p in model.named_parameters():
            torch.testing.assert_close(state[p]["exp_avg"], p.detach(), rtol=0, atol=0)  # as was arranged
    actor.reset(), critic.reset()
    runner.alg.train_mode()
    runner.learn(1)
    print("loaded", case["name"])
"""


def real_config(case: str) -> dict[str, Any]:
    """The same networks in the words of rsl-rl-lib 5.5.1."""
    distribution = {
        "state_dependent": {"class_name": "HeteroscedasticGaussianDistribution", "std_type": "log"},
        "beta": {"class_name": "BetaDistribution"},
        "log": {"class_name": "GaussianDistribution", "std_type": "log"},
    }.get(case, {"class_name": "GaussianDistribution"})
    distribution["class_name"] = f"rsl_rl.modules.distribution:{distribution['class_name']}"
    memory = {"rnn_type": case, "rnn_hidden_dim": 5, "rnn_num_layers": 2 if case == "lstm" else 1}
    kind = {"class_name": "RNNModel", **memory} if case in ("gru", "lstm") else {"class_name": "MLPModel"}
    normalizes = {"obs_normalization": case != "not_normalised"}
    return {
        "num_steps_per_env": 4,
        "save_interval": 1,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "actor": {**kind, "hidden_dims": [8, 4], **normalizes, "distribution_cfg": distribution},
        "critic": {**kind, "hidden_dims": [6], "obs_normalization": True},
        "algorithm": {"class_name": "PPO", "num_mini_batches": 1},
    }


@pytest.mark.skipif(importlib.util.find_spec("rsl_rl") is None, reason="rsl-rl-lib is not installed")
@pytest.mark.parametrize(
    "names",
    [["mlp", "gru"], pytest.param([x for x in CASES if x not in ("mlp", "gru")], marks=pytest.mark.slow)],
)
def test_rsl_rl_lib_goes_on_from_what_surefoot_wrote(names, tmp_path):
    cases = []
    for case in names:
        runner = trained(case)
        optimizer = runner.alg.optimizer.optimizer
        for group in optimizer.param_groups:  # so that each moment tells its parameter
            (flat,) = group["params"]
            optimizer.state[flat]["exp_avg"].copy_(flat.detach())
        checkpoint = exported(runner, tmp_path / "own.pt")
        file, expected = tmp_path / f"{case}.pt", tmp_path / f"{case}_expected.pt"
        torch.save(checkpoint, file)
        torch.save(walk(runner), expected)
        files = {"file": str(file), "expected": str(expected)}
        cases.append({"name": case, **files, "config": real_config(case)})
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    (tmp_path / "real.py").write_text(REAL)
    command = [sys.executable, str(tmp_path / "real.py"), str(tmp_path / "cases.json")]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]
    assert [line.split()[1] for line in result.stdout.splitlines() if line.startswith("loaded")] == names


# ------------------------------------------------------------------ and back


@pytest.mark.parametrize("case", CASES)
def test_a_run_starts_from_rsl_rls_weights(case, tmp_path):
    runner, other = trained(case), trained(case, seed=9, iterations=0)
    expected = walk(runner)
    assert not torch.allclose(walk(other)["value"][0], expected["value"][0])
    to_native(exported(runner, tmp_path / "own.pt"), other.policy)
    torch.testing.assert_close(walk(other), expected, rtol=1e-5, atol=1e-6)
    other.learn(1)


def test_statistics_go_on_counting(tmp_path):
    runner, other = trained(), trained(seed=9, iterations=0)
    checkpoint = exported(runner, tmp_path / "own.pt")
    to_native(checkpoint, other.policy)
    mine, theirs = (r.policy.inputs.normalizers["actor"] for r in (other, runner))
    assert mine.count == theirs.count == 2 * 32 * N
    torch.testing.assert_close(mine.mean, theirs.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(mine.m2, theirs.m2, rtol=1e-5, atol=1e-3)
    assert checkpoint["actor_state_dict"]["obs_normalizer._mean"].shape == (1, 3)


def test_the_optimisers_state_is_as_torchs_own(tmp_path):
    saved = exported(trained("critic_rate"), tmp_path / "own.pt")["optimizer_state_dict"]["param_groups"]
    own = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))]).state_dict()["param_groups"]
    assert [group.keys() for group in saved] == [group.keys() for group in own]
    assert saved[0]["lr"] == pytest.approx(2e-3)
    assert saved[0]["params"] == list(range(11))


def test_a_surefoot_checkpoint_is_loaded_with_rsl_rls_keys(tmp_path):
    runner = trained()
    checkpoint = exported(runner, tmp_path / "model_1.pt")
    with pytest.warns(SurefootWarning, match="the environment has to do that"):
        loaded = load_checkpoint(tmp_path / "model_1.pt")
    assert loaded["iter"] == 1
    torch.testing.assert_close(loaded["actor_state_dict"], checkpoint["actor_state_dict"])


@pytest.mark.parametrize("change", ["width", "layer"])
def test_a_checkpoint_of_other_layers_is_refused_and_nothing_changes(change, tmp_path):
    checkpoint = exported(trained(), tmp_path / "own.pt")
    critic = checkpoint["critic_state_dict"]
    if change == "width":
        critic["mlp.0.weight"] = torch.zeros(6, 4)
        words = (
            r"critic: the layer 'mlp\.0\.weight' has the shape \(6, 4\) in the checkpoint and \(6, 3\) here"
        )
    else:
        del critic["mlp.2.bias"]
        words = r"critic: the checkpoint lacks the layer 'mlp\.2\.bias'"
    other = trained(seed=9, iterations=0)
    before = walk(other)
    with pytest.raises(CheckpointError, match=words) as info:
        to_native(checkpoint, other.policy)
    assert isinstance(info.value, RuntimeError)
    torch.testing.assert_close(walk(other), before, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"network": "shared", "critic": {}}, "network 'shared'"),
        ({"actor": {**NETWORK, "layer_norm": True}}, "actor.layer_norm"),
        ({"critic": {**NETWORK, "value_normalization": True}}, "critic.value_normalization"),
        ({"actor": {**NETWORK, "last_activation": "tanh"}}, "squashed actions"),
        ({"actor": {**NETWORK, "distribution": {"std_type": "gsde"}}}, "std_type 'gsde'"),
        ({"actor": {**NETWORK, "hidden_dims": []}}, "actor without hidden layers"),
    ],
)
def test_what_rsl_rl_has_not_is_named(keys, words, tmp_path):
    with pytest.raises(ConfigError, match=f"no counterpart of {words}"):
        exported(trained(iterations=0, **keys), tmp_path / "own.pt")


def test_clipped_observations_are_a_difference_that_is_said(tmp_path):
    runner = trained(actor={**NETWORK, "obs_clip": 5.0})
    with pytest.warns(SurefootWarning) as seen:
        from_native(load_own(save_checkpoint(tmp_path / "own.pt", runner.state())))
    assert any("clipped to obs_clip" in str(w.message) for w in seen)


def test_export_writes_the_file(tmp_path):
    runner = OnPolicyRunner(TargetEnv(N, seed=3), BASE, tmp_path / "run", quiet=True)
    runner.learn(1)
    with pytest.warns(SurefootWarning):
        result = CliRunner().invoke(cli, ["export", str(tmp_path / "run"), "--format", "rsl_rl"])
    assert result.exit_code == 0, result.stderr
    assert load_checkpoint(result.stdout.strip())["actor_state_dict"]["mlp.0.weight"].shape == (8, 3)
