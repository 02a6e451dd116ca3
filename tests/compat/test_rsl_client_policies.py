"""Policy classes of clients' own, in the forms that RSL-RL 1 to 3 took."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from rsl_parts import OBS_DIM, make_obs
from tensordict import TensorDict
from torch import Tensor, nn
from torch.distributions import Normal

from surefoot.compat.rsl_rl.modules import ActorCritic, ActorCriticRecurrent
from surefoot.compat.rsl_rl.runners import OnPolicyRunner
from surefoot.config.rsl_rl import from_rsl_rl, modernize
from surefoot.errors import ConfigError

NUM_ENVS, NUM_ACTIONS, PRIVILEGED = 4, 2, 3


class Env:
    num_envs, num_actions, max_episode_length = NUM_ENVS, NUM_ACTIONS, 5

    def __init__(self) -> None:
        self.cfg: dict[str, Any] = {}
        self.episode_length_buf = torch.zeros(NUM_ENVS, dtype=torch.long)

    def get_observations(self) -> TensorDict:
        return make_obs(NUM_ENVS, policy=OBS_DIM, privileged=PRIVILEGED)

    def step(self, actions: Tensor) -> tuple[Any, ...]:
        assert actions.shape == (NUM_ENVS, NUM_ACTIONS)
        return self.get_observations(), torch.rand(NUM_ENVS), torch.zeros(NUM_ENVS), {}


class OldEnv(Env):
    """As version 2 has it."""

    def get_observations(self) -> Any:
        return torch.randn(NUM_ENVS, OBS_DIM), {"observations": {"critic": torch.randn(NUM_ENVS, PRIVILEGED)}}

    def reset(self) -> Any:
        return self.get_observations()

    def step(self, actions: Tensor) -> tuple[Any, ...]:
        obs, extras = self.get_observations()
        return obs, torch.rand(NUM_ENVS), torch.zeros(NUM_ENVS), extras


class TensorPolicy(nn.Module):
    """As version 1 and 2 have it: numbers of observations; its methods take tensors."""

    is_recurrent = False

    def __init__(self, num_actor_obs: int, num_critic_obs: int, num_actions: int, width: int = 8) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(num_actor_obs, width), nn.ELU(), nn.Linear(width, num_actions))
        self.critic = nn.Sequential(nn.Linear(num_critic_obs, width), nn.ELU(), nn.Linear(width, 1))
        self.std = nn.Parameter(torch.ones(num_actions))

    def act(self, x: Tensor) -> Tensor:
        mean = self.actor(x)
        self.distribution = Normal(mean, self.std.expand_as(mean))
        return self.distribution.sample()

    def act_inference(self, x: Tensor) -> Tensor:
        return self.actor(x)

    def evaluate(self, x: Tensor) -> Tensor:
        return self.critic(x)

    def get_actions_log_prob(self, actions: Tensor) -> Tensor:
        return self.distribution.log_prob(actions).sum(-1)

    action_mean = property(lambda self: self.distribution.mean)
    action_std = property(lambda self: self.distribution.stddev)
    entropy = property(lambda self: self.distribution.entropy().sum(-1))


class GroupPolicy(TensorPolicy):
    """As version 3 has it: observations by group. Its critic reads one that no set names."""

    def __init__(self, obs: Any, obs_groups: Any, num_actions: int, **kwargs: Any) -> None:
        super().__init__(OBS_DIM, PRIVILEGED, num_actions, kwargs.pop("width", 8))
        self.kwargs, self.obs_groups, self.num_counted = kwargs, obs_groups, 0

    def act(self, x: Any) -> Tensor:
        return super().act(torch.cat([x[group] for group in self.obs_groups["policy"]], -1))

    def act_inference(self, x: Any) -> Tensor:
        return super().act_inference(x["policy"])

    def evaluate(self, x: Any) -> Tensor:
        return super().evaluate(x["privileged"])

    def update_normalization(self, x: Any) -> None:
        self.num_counted += x.batch_size.numel()


class Named(ActorCritic):
    """Adds a name to one of ours."""

    def __init__(self, obs: Any, obs_groups: Any, num_actions: int, name: str = "", **kwargs: Any) -> None:
        super().__init__(obs, obs_groups, num_actions, **kwargs)
        self.name = name


class Bounded(Named):
    def act_inference(self, observations: Any) -> Tensor:
        return super().act_inference(observations).tanh()


class NamedRecurrent(ActorCriticRecurrent):
    def __init__(self, obs: Any, obs_groups: Any, num_actions: int, **kwargs: Any) -> None:
        super().__init__(obs, obs_groups, num_actions, **kwargs)


class BoundedRecurrent(NamedRecurrent):
    def act_inference(self, observations: Any) -> Tensor:
        return super().act_inference(observations).tanh()


def config(policy_class: Any, **policy: Any) -> dict[str, Any]:
    return {
        "num_steps_per_env": 4,
        "save_interval": 100,
        "obs_groups": {"policy": ["policy"], "critic": ["policy"]},
        "policy": {"class_name": policy_class, **policy},
        "algorithm": {"class_name": "PPO", "num_learning_epochs": 2, "num_mini_batches": 2},
    }


def old_config(**top: Any) -> dict[str, Any]:
    return {**config(TensorPolicy, width=4), "obs_groups": {}, **top}


def make_runner(cfg: dict[str, Any], env: Any = None, **kwargs: Any) -> OnPolicyRunner:
    return OnPolicyRunner(Env() if env is None else env, cfg, **kwargs)


def test_it_learns_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    runner = make_runner(config(f"{__name__}:GroupPolicy", width=4), log_dir=tmp_path)
    policy = runner.alg.policy
    assert isinstance(policy, GroupPolicy)
    assert policy.actor[0].out_features == 4
    before = copy.deepcopy(policy.state_dict())
    runner.learn(2)
    after = policy.state_dict()
    assert all(not torch.equal(before[name], after[name]) for name in before)  # the critic's and the std too
    assert policy.num_counted == 2 * 4 * NUM_ENVS
    saved = torch.load(tmp_path / "model_1.pt", weights_only=True)
    assert saved["model_state_dict"].keys() == after.keys()  # as versions 1 to 3 write them
    other = make_runner(config(GroupPolicy, width=4))
    other.load(tmp_path / "model_1.pt")
    obs = runner.env.get_observations()
    assert torch.equal(other.get_inference_policy()(obs), policy.act_inference(obs))
    assert other.current_learning_iteration == 1


def test_a_checkpoint_of_version_3_is_taken(tmp_path: Path) -> None:
    source = GroupPolicy(None, {"policy": ["policy"]}, NUM_ACTIONS)
    optimizer = torch.optim.Adam(source.parameters(), 2e-3)
    nn.utils.parameters_to_vector(source.parameters()).sum().backward()
    optimizer.step()
    path = tmp_path / "model.pt"
    state = {"model_state_dict": source.state_dict(), "optimizer_state_dict": optimizer.state_dict()}
    torch.save({**state, "iter": 7, "infos": {"a": 1}}, path)
    runner = make_runner(config(GroupPolicy))
    assert runner.load(path) == {"a": 1}
    for name, value in runner.alg.policy.state_dict().items():
        assert torch.equal(value, source.state_dict()[name])
    assert runner.alg.learning_rate == 2e-3
    moments = runner.alg.optimizer.state_dict()["state"]
    for number, entry in optimizer.state_dict()["state"].items():
        assert torch.equal(moments[number]["exp_avg"], entry["exp_avg"])


@pytest.mark.parametrize("normalizes", [False, True])
def test_a_class_of_version_2_is_given_tensors(tmp_path: Path, normalizes: bool) -> None:
    runner = make_runner(old_config(empirical_normalization=normalizes), OldEnv(), log_dir=tmp_path)
    assert runner.alg.policy.critic[0].in_features == PRIVILEGED
    runner.learn(2)
    saved = torch.load(tmp_path / "model_1.pt", weights_only=True)
    assert ("critic_obs_norm_state_dict" in saved) == normalizes
    if normalizes:
        assert saved["obs_norm_state_dict"]["count"] == 2 * 4 * NUM_ENVS
    other = make_runner(old_config(empirical_normalization=normalizes), OldEnv())
    other.load(tmp_path / "model_1.pt")
    obs = torch.randn(NUM_ENVS, OBS_DIM)
    assert torch.equal(other.get_inference_policy()(obs), runner.get_inference_policy()(obs))


def test_it_learns_what_two_models_of_the_same_networks_learn() -> None:
    def learned(cfg: dict[str, Any]) -> list[Tensor]:
        cfg["algorithm"]["max_grad_norm"] = 1e9  # of versions 1 to 3 one norm of both, since then two
        torch.manual_seed(1)
        runner = make_runner(cfg)
        torch.manual_seed(2)
        with torch.no_grad():
            for p in [*runner.alg.actor.parameters(), *runner.alg.critic.parameters()]:
                p.copy_(torch.linspace(-0.3, 0.5, p.numel()).view_as(p))
            std = runner.alg.actor.distribution.std_param if "actor" in cfg else runner.alg.policy.std
            std.fill_(1.0)
        runner.learn(1)  # in the second the noise is another: such a class draws while it learns
        actor = runner.alg.actor.mlp if "actor" in cfg else runner.alg.policy.actor
        return [p.detach() for p in actor.parameters()]

    model = {"class_name": "MLPModel", "hidden_dims": [8]}
    today = config(None)
    del today["policy"]
    today["obs_groups"] = {"actor": ["policy"], "critic": ["privileged"]}
    today |= {"actor": {**model, "distribution_cfg": {"class_name": "GaussianDistribution"}}, "critic": model}
    for own, two in zip(learned(config(GroupPolicy)), learned(today), strict=True):
        torch.testing.assert_close(own, two)


def test_it_hears_which_episodes_end() -> None:
    class Hearing(GroupPolicy):
        ended: Tensor = torch.zeros(NUM_ENVS)

        def reset(self, dones: Tensor) -> None:
            self.ended = self.ended + dones

    class EndingEnv(Env):
        def step(self, actions: Tensor) -> tuple[Any, ...]:
            obs, rewards, _, extras = super().step(actions)
            return obs, rewards, torch.tensor([0, 1, 0, 0]), extras

    runner = make_runner(config(Hearing), EndingEnv())
    runner.learn(2)
    assert runner.alg.policy.ended.tolist() == [0, 2 * 4, 0, 0]


def test_its_kl_divergence_is_from_the_old_to_the_new() -> None:
    actor = make_runner(config(GroupPolicy)).alg.actor
    old, new = ((torch.tensor([[mean]]), torch.tensor([[std]])) for mean, std in ((0.0, 1.0), (1.0, 2.0)))
    # ln 2 + (1 + 1) / 8 - ½
    assert actor.get_kl_divergence(old, new).item() == pytest.approx(math.log(2) + 0.25 - 0.5)


def test_only_its_own_code_can_export_it() -> None:
    actor = make_runner(config(GroupPolicy)).alg.actor
    for export in (actor.as_jit, actor.as_onnx):
        with pytest.raises(ConfigError, match="GroupPolicy has to be exported by its own code"):
            export()


def test_what_version_3_says_of_normalisation_reaches_the_class() -> None:
    runner = make_runner(
        {**config(GroupPolicy, actor_obs_normalization=False), "empirical_normalization": True}
    )
    assert runner.alg.policy.kwargs == {"actor_obs_normalization": False, "critic_obs_normalization": True}


@pytest.mark.parametrize("policy_class", [Named, Bounded, NamedRecurrent])
def test_a_subclass_of_one_of_ours(tmp_path: Path, policy_class: type) -> None:
    options: dict[str, Any] = {"actor_hidden_dims": [8], "critic_hidden_dims": [8]}
    options |= {"rnn_hidden_dim": 4} if policy_class is NamedRecurrent else {"name": "x"}
    runner = make_runner(config(policy_class, **options), log_dir=tmp_path)
    runner.learn(1)
    policy = runner.alg.policy
    assert type(policy) is policy_class
    other = make_runner(config(policy_class, **options))
    other.load(tmp_path / "model_0.pt")
    for name, value in other.alg.policy.state_dict().items():
        assert torch.equal(value, policy.state_dict()[name])
    if policy_class is Bounded:
        with torch.no_grad():
            policy.actor[-1].bias.fill_(100.0)
        assert runner.get_inference_policy()(runner.env.get_observations()).max() <= 1


def test_a_memory_with_methods_of_its_own_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"BoundedRecurrent has a memory.*RNNModel"):
        make_runner(config(BoundedRecurrent))


def test_a_class_without_a_method_is_refused_by_its_name() -> None:
    class Half(GroupPolicy):
        def __getattribute__(self, name: str) -> Any:
            if name == "evaluate":
                raise AttributeError(name)
            return super().__getattribute__(name)

    with pytest.raises(ConfigError, match="Half has no evaluate"):
        make_runner(config(Half))


def test_a_configuration_for_tasks_of_ours_refuses_it() -> None:
    with pytest.raises(ConfigError, match=r"my\.module:Net.*surefoot rsl-rl"):
        from_rsl_rl(config("my.module:Net"))


def test_its_section_stays_as_it_is() -> None:
    cfg = {**config(GroupPolicy, width=(4,)), "empirical_normalization": True}
    modern, _ = modernize(cfg)
    assert modern["policy"] == {"class_name": GroupPolicy, "width": [4], "empirical_normalization": True}
    assert modernize(modern)[0] == modern
