"""Recurrent and masked policies in whole runs: evaluation, warm-up, resume, inference."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor

from surefoot.algorithm.extension import Extension
from surefoot.envs.gymnasium import GymnasiumVecEnv
from surefoot.errors import EnvContractError
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import ActorConfig, CriticConfig
from surefoot.testing import TargetEnv
from surefoot.testing.gymnasium_environments import GymForbidden, GymMasked, GymShapes, GymStart
from surefoot.training.env_spec import spec_of
from surefoot.training.evaluation import InferencePolicy, evaluate, load_policy
from surefoot.training.on_policy_runner import OnPolicyRunner
from surefoot.types import Batch, PolicyOutput

NETWORK = {"hidden_dims": [16], "obs_normalization": True, "rnn_type": "gru", "rnn_hidden_dim": 8}
CONFIG: dict[str, Any] = {
    "num_steps_per_env": 32,
    "actor": NETWORK,
    "critic": {**NETWORK, "rnn_type": "lstm"},
    "algorithm": {"num_learning_epochs": 2, "num_mini_batches": 2, "sequence_length": 8},
    "logger": "none",
}
SPACES = gymnasium.spaces


class Echo(gymnasium.Env[np.ndarray[Any, Any], np.ndarray[Any, Any]]):
    """The reward is the action: a return tells everything that a policy did."""

    def __init__(self, episode_length: int) -> None:
        self.episode_length, self.elapsed = episode_length, 0
        self.observation_space = SPACES.Box(-np.inf, np.inf, (1,))
        self.action_space = SPACES.Box(-np.inf, np.inf, (1,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.elapsed = 0
        return np.array([1.0], dtype=np.float32), {}

    def step(self, action: np.ndarray[Any, Any]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.elapsed += 1
        observation = np.array([1.0 + self.elapsed], dtype=np.float32)
        return observation, float(action[0]), False, self.elapsed >= self.episode_length, {}


def test_evaluation_forgets_at_the_start_of_each_episode_in_every_autoreset_mode() -> None:
    returns = []
    for mode in AutoresetMode:
        env = GymnasiumVecEnv(
            SyncVectorEnv([lambda n=n: Echo(n) for n in (3, 5)], autoreset_mode=mode)  # type: ignore[misc]
        )
        torch.manual_seed(0)
        network = ActorConfig(hidden_dims=[8], rnn_type="gru", rnn_hidden_dim=4, last_layer_gain=1.0)
        policy = ActorCritic(spec_of(env, 0.99, torch.device("cpu")), network, CriticConfig(hidden_dims=[8]))
        result = evaluate(policy, env, episodes=8, seed=1)
        returns.append((result["mean_reward"], result["std_reward"]))
        # all episodes of one environment are the same one, from an empty memory
        once = evaluate(policy, env, episodes=2, seed=1)
        assert once["mean_reward"] == pytest.approx(result["mean_reward"], abs=1e-6)
    assert returns[0][1] > 1e-3
    for other in returns[1:]:
        assert other == pytest.approx(returns[0], abs=1e-6)


def test_training_goes_on_from_its_memory_whatever_is_evaluated_in_between() -> None:
    def weights(evaluates: bool) -> dict[str, Tensor]:
        runner = OnPolicyRunner(TargetEnv(6), CONFIG, quiet=True)
        runner.learn(1)
        if evaluates:
            evaluate(runner.policy, TargetEnv(4), episodes=8)
            inference = runner.get_inference_policy()
            for _ in range(3):
                inference(TargetEnv(6).reset(seed=3))
        runner.learn(1)
        return runner.alg.state_dict()

    with_evaluation, without = weights(True), weights(False)
    for name, x in without.items():
        assert torch.equal(x, with_evaluation[name]), name


def test_a_recurrent_run_resumes_to_the_bit(tmp_path: Path) -> None:
    whole = OnPolicyRunner(TargetEnv(6), CONFIG, quiet=True)
    whole.learn(4)
    first = OnPolicyRunner(TargetEnv(6), CONFIG, quiet=True)
    first.learn(2)
    file = first.save(tmp_path / "half.pt")
    second = OnPolicyRunner(TargetEnv(6), CONFIG, quiet=True)
    second.load(file)
    assert second.alg.hidden.keys() == {"actor", "critic"}
    second.learn(2)
    for name, x in whole.alg.state_dict().items():
        assert torch.equal(x, second.alg.state_dict()[name]), name
    for name, x in whole.alg.hidden.items():
        assert torch.equal(x, second.alg.hidden[name]), name


def test_a_recurrent_run_goes_on_with_another_number_of_environments(tmp_path: Path) -> None:
    first = OnPolicyRunner(TargetEnv(6), CONFIG, quiet=True)
    first.learn(1)
    file = first.save(tmp_path / "six.pt")
    second = OnPolicyRunner(TargetEnv(4), CONFIG, quiet=True)
    with pytest.warns(UserWarning, match="6 environments"):
        second.load(file)
    second.learn(1)
    assert second.alg.hidden["actor"].shape[0] == 4


def test_a_loaded_recurrent_policy_acts_as_the_trained_one(tmp_path: Path) -> None:
    runner = OnPolicyRunner(TargetEnv(6), CONFIG, tmp_path / "run", quiet=True)
    runner.learn(2)
    loaded, trained = load_policy(tmp_path / "run", "last"), InferencePolicy(runner.policy)
    env = TargetEnv(6)
    obs = env.reset(seed=2)
    for _ in range(25):
        actions = loaded(obs)
        assert torch.equal(actions, trained(obs))
        step = env.step(actions)
        loaded.reset(step.starts)
        trained.reset(step.starts)
        obs = step.observations


def masked_runner(**changes: Any) -> OnPolicyRunner:
    env = GymnasiumVecEnv(SyncVectorEnv([GymMasked] * 4))
    return OnPolicyRunner(env, {**CONFIG, **changes}, quiet=True)


@pytest.mark.parametrize("network", [NETWORK, {"hidden_dims": [16]}])
def test_masked_training_takes_no_forbidden_action(network: dict[str, Any]) -> None:
    runner = masked_runner(actor=network)
    runner.learn(3)  # GymMasked raises at a forbidden action
    assert np.isfinite([runner.metrics["Loss/kl"], runner.metrics["Loss/entropy"]]).all()
    env = GymnasiumVecEnv(SyncVectorEnv([GymMasked] * 2))
    for deterministic in (True, False):
        assert evaluate(runner.policy, env, episodes=6, deterministic=deterministic)["mean_reward"] == 6


def test_an_inference_policy_asks_for_the_mask() -> None:
    inference = masked_runner().get_inference_policy()
    with pytest.raises(EnvContractError, match=r"'policy', 'action_mask'"):
        inference(torch.zeros(4, 2))
    with pytest.raises(EnvContractError, match=r"without \['action_mask'\]"):
        inference({"policy": torch.zeros(4, 2)})


def test_an_offset_of_discrete_actions_is_learned() -> None:
    env = GymnasiumVecEnv(SyncVectorEnv([GymStart] * 8))
    config = {
        **CONFIG,
        "actor": {"hidden_dims": [8]},
        "critic": {"hidden_dims": [8]},
        "algorithm": {"num_learning_epochs": 4, "learning_rate": 0.01, "schedule": "fixed"},
    }
    runner = OnPolicyRunner(env, config, quiet=True)
    runner.learn(30)
    assert (
        evaluate(runner.policy, GymnasiumVecEnv(SyncVectorEnv([GymStart])), episodes=5)["mean_reward"] == 10
    )
    assert runner.policy.act({"policy": torch.zeros(1, 1)}).tolist() == [7]


class PixelTypes(Extension):
    """Notes the type of the pixels that the networks get."""

    seen: ClassVar[set[torch.dtype]] = set()

    def loss(self, batch: Batch, out: PolicyOutput, policy: ActorCritic) -> dict[str, Tensor]:
        self.seen.add(batch.inputs["pixels.policy"].dtype)
        return {}


def test_pixels_reach_the_network_from_uint8_storage() -> None:
    env = GymnasiumVecEnv(SyncVectorEnv([lambda: GymShapes(12, 4)] * 4))
    network = {
        "hidden_dims": [8],
        "cnn": {"channels": [4], "kernel_sizes": [5], "strides": [2], "features": 8},
    }
    extensions = [{"class_name": f"{__name__}:PixelTypes"}]
    config = {**CONFIG, "actor": network, "critic": network, "algorithm": {}, "extensions": extensions}
    runner = OnPolicyRunner(env, config, quiet=True)
    runner.learn(2)
    assert runner.alg.storage.observations["policy"].dtype == torch.uint8
    assert PixelTypes.seen == {torch.uint8}
    assert np.isfinite(runner.metrics["Loss/value"])


def test_a_forbidden_action_is_counted_by_the_environment() -> None:
    env = GymForbidden(3)
    env.reset(seed=0)
    env.mask[:] = [1, 0, 1]
    _, reward, terminated, _, info = env.step(1)
    assert (reward, terminated, info["log"]["Actions/forbidden"]) == (-1.0, True, 1.0)


def test_quarantine_leaves_an_action_to_take() -> None:
    class Breaks(GymMasked):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            observation, *rest = super().step(action)
            if self.elapsed in (3, 4):
                observation = np.full(2, np.nan, dtype=np.float32)
            return observation, *rest  # type: ignore[return-value]

    env = GymnasiumVecEnv(SyncVectorEnv([Breaks] * 4))
    runner = OnPolicyRunner(env, {**CONFIG, "on_nonfinite": "quarantine"}, quiet=True)
    runner.learn(1)
    assert runner.metrics["Data/quarantined"] > 0
