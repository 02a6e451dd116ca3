"""The policies of RSL-RL 1 to 3: as their clients make, call, save, load and export them."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from surefoot.compat.rsl_rl import modules
from surefoot.compat.rsl_rl.extensions.rnd import RandomNetworkDistillation
from surefoot.compat.rsl_rl.models import CNNModel, MLPModel, RNNModel
from surefoot.config import SurefootWarning
from surefoot.errors import CheckpointError, ConfigError

N, A = 4, 3
GROUPS = {"policy": ["state"], "critic": ["state", "privileged"], "teacher": ["privileged"]}
SMALL: dict[str, Any] = {"actor_hidden_dims": [8], "critic_hidden_dims": [8]}
TEACHING: dict[str, Any] = {"student_hidden_dims": [8], "teacher_hidden_dims": [8]}
MEMORY: dict[str, Any] = {"rnn_type": "gru", "rnn_hidden_dim": 6, "rnn_num_layers": 2}


def observe(n: int = N) -> dict[str, Tensor]:
    return {"state": torch.randn(n, 5), "privileged": torch.randn(n, 2), "camera": torch.rand(n, 1, 9, 9)}


def make(name: str, **kwargs: Any) -> Any:
    torch.manual_seed(0)
    options = TEACHING if name.startswith("Student") else SMALL
    memory = MEMORY if name.endswith("Recurrent") else {}
    return getattr(modules, name)(observe(), GROUPS, A, **{**options, **memory, **kwargs})


def close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b)


# ------------------------------------------------------------------ as they were called


@pytest.mark.parametrize("name", ["ActorCritic", "ActorCriticRecurrent"])
@pytest.mark.parametrize("kind", ["scalar", "log"])
def test_a_policy_acts_and_judges(name, kind):
    policy, obs = make(name, init_noise_std=0.5, noise_std_type=kind), observe()
    assert policy.distribution is None
    actions = policy.act(obs)
    normal = policy.distribution
    close(policy.action_mean, normal.mean)
    close(policy.action_std, torch.full((N, A), 0.5))
    close(policy.entropy, normal.entropy().sum(-1))
    close(policy.get_actions_log_prob(actions), normal.log_prob(actions).sum(-1))
    assert policy.evaluate(obs).shape == (N, 1)
    policy.reset()
    close(policy.act_inference(obs), policy.action_mean)
    assert policy.is_recurrent == (name == "ActorCriticRecurrent")
    assert policy.noise_std_type == kind
    parameter = policy.std if kind == "scalar" else policy.log_std
    assert isinstance(parameter, nn.Parameter)
    with pytest.raises(NotImplementedError, match="act_inference"):
        policy()


def test_rsl_rl_1_counts_observations():
    """legged_gym: three numbers, then its configuration by name; plain tensors."""
    policy = modules.ActorCritic(48, 60, 12, actor_hidden_dims=[8], critic_hidden_dims=[8], activation="relu")
    obs, privileged = torch.randn(N, 48), torch.randn(N, 60)
    assert policy.act(obs).shape == (N, 12)
    assert policy.evaluate(privileged).shape == (N, 1)
    close(policy.act_inference(obs), policy.actor(obs))
    assert isinstance(policy.actor[1], nn.ReLU)
    named = modules.ActorCritic(num_actor_obs=48, num_critic_obs=60, num_actions=12)
    assert named.actor[0].in_features == 48
    assert named.critic[0].in_features == 60
    student = modules.StudentTeacher(num_student_obs=7, num_teacher_obs=9, num_actions=2)
    assert student.evaluate(torch.randn(N, 9)).shape == student.act(torch.randn(N, 7)).shape == (N, 2)


def test_rsl_rl_1_had_a_memory_of_hidden_states():
    policy = modules.ActorCriticRecurrent(
        5, 5, A, **SMALL, rnn_type="lstm", rnn_hidden_size=6, rnn_num_layers=1
    )
    obs = torch.randn(N, 5)
    first = policy.act_inference(obs)
    assert not torch.equal(policy.act_inference(obs), first)
    h, c = policy.memory_a.hidden_states
    assert h.shape == c.shape == (1, N, 6)
    policy.reset(torch.tensor([0, 1, 0, 0]))
    close(policy.act_inference(obs)[1], first[1])
    actor, critic = policy.get_hidden_states()
    assert critic is None
    policy.reset(hidden_states=(actor, actor))
    assert policy.get_hidden_states()[1] is actor
    policy.evaluate(obs)
    assert all(part.requires_grad for state in policy.get_hidden_states() for part in state)
    policy.detach_hidden_states()
    assert not any(part.requires_grad for state in policy.get_hidden_states() for part in state)


def test_padded_sequences_come_with_the_state_before_them():
    policy = make("ActorCriticRecurrent")
    rows = torch.randn(6, N, 5)
    masks, h = torch.ones(6, N, dtype=torch.bool), torch.randn(2, N, 6)
    policy.act(rows, masks=masks, hidden_states=h)
    mean = policy.action_mean
    assert mean.shape == (6, N, A)
    policy.act(rows, masks=masks, hidden_state=h)  # the name of RSL-RL 3.2
    close(policy.action_mean, mean)
    assert policy.evaluate(torch.randn(6, N, 7), masks=masks, hidden_states=h).shape == (6, N, 1)


def test_normalisers_stand_under_the_names_of_rsl_rl_3():
    policy, obs = (
        make("ActorCritic", actor_obs_normalization=True, critic_obs_normalization=True),
        observe(50),
    )
    policy.update_normalization(obs)
    close(policy.actor_obs_normalizer.mean, obs["state"].mean(0))
    both = torch.cat([obs["state"], obs["privileged"]], -1)
    close(policy.get_critic_obs(obs), both)
    close(policy.critic_obs_normalizer.mean, both.mean(0))
    close(policy.act_inference(obs), policy.actor(policy.actor_obs_normalizer(policy.get_actor_obs(obs))))
    assert isinstance(make("ActorCritic").actor_obs_normalizer, nn.Identity)


@pytest.mark.parametrize("name", ["ActorCritic", "ActorCriticRecurrent"])
def test_what_is_said_of_the_critic_reaches_the_critic(name):
    policy = make(name, critic_obs_normalization=True, critic_hidden_dims=[7], activation="relu")
    assert policy.critic[0].out_features == 7
    assert isinstance(policy.critic[1], nn.ReLU)
    policy.update_normalization(observe())
    assert policy.critic_obs_normalizer.count == N
    assert isinstance(policy.actor_obs_normalizer, nn.Identity)


@pytest.mark.parametrize("name", ["ActorCritic", "ActorCriticRecurrent"])
def test_the_deviation_may_depend_on_the_state(name):
    policy = make(name, state_dependent_std=True, init_noise_std=0.4)
    policy.act(observe())
    close(policy.action_std, torch.full((N, A), 0.4))
    assert not any(key.endswith("std") for key in policy.state_dict())


def test_images_go_to_the_model_that_reads_them():
    groups = {"policy": ["state", "camera"], "critic": ["state", "privileged"]}
    cnn = {"output_channels": [2], "kernel_size": 3}
    policy = modules.ActorCriticCNN(observe(), groups, A, **SMALL, actor_cnn_cfg={"camera": cnn})
    assert isinstance(policy.actor_model, CNNModel)
    assert not isinstance(policy.critic_model, CNNModel)
    assert policy.act(observe()).shape == (N, A)
    assert policy.evaluate(observe()).shape == (N, 1)
    assert "actor_cnns.camera.0.weight" in policy.state_dict()
    groups["critic"] = ["camera"]
    wide = {**cnn, "output_channels": [5]}
    policy = modules.ActorCriticCNN(observe(), groups, A, **SMALL, actor_cnn_cfg=cnn, critic_cnn_cfg=wide)
    assert policy.critic_cnns["camera"][0].out_channels == 5
    with pytest.raises(ConfigError, match="use ActorCritic"):
        modules.ActorCriticCNN(observe(), {"policy": ["state"], "critic": ["state"]}, A)


def test_the_set_of_the_actor_may_have_its_later_name():
    policy = modules.ActorCritic(observe(), {"actor": ["state"], "critic": ["state"]}, A, **SMALL)
    assert policy.actor_model.obs_groups == ["state"]


# ------------------------------------------------------------------ one set of parameters, two views


def test_the_models_hold_the_very_parameters_of_the_policy():
    for name in ("ActorCritic", "ActorCriticRecurrent"):
        policy = make(name, actor_obs_normalization=True)
        actor, critic = policy.actor_model, policy.critic_model
        assert isinstance(actor, RNNModel if policy.is_recurrent else MLPModel)
        mine = {id(p) for p in policy.parameters()}
        assert len(mine) == len(list(policy.parameters()))
        assert mine == {id(p) for model in (actor, critic) for p in model.parameters()}
        policy.double()
        assert {x.dtype for x in actor.parameters()} == {torch.float64}
        policy.eval()
        assert not actor.training
        assert not actor.obs_normalizer.training


@pytest.mark.parametrize("name", ["ActorCritic", "ActorCriticRecurrent", "StudentTeacherRecurrent"])
def test_a_copy_is_a_policy_of_its_own(name):
    policy, obs = make(name), observe()
    policy.act(obs)
    for twin in (copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
        acting = twin.student_model if name.startswith("Student") else twin.actor_model
        assert (twin.student if name.startswith("Student") else twin.actor) is acting.mlp
        with torch.no_grad():
            acting.mlp[0].weight.zero_()
        policy.reset()
        twin.reset()
        assert not torch.equal(policy.act_inference(obs), twin.act_inference(obs))


def test_keys_of_a_checkpoint_are_those_of_then():
    keys = set(make("ActorCriticRecurrent", actor_obs_normalization=True).state_dict())
    memory = {
        f"rnn.{part}_{side}_l{n}" for part in ("weight", "bias") for side in ("ih", "hh") for n in (0, 1)
    }
    layers = {f"{n}.{part}" for n in (0, 2) for part in ("weight", "bias")}
    expected = {"std"} | {f"{name}.{key}" for name in ("actor", "critic") for key in layers}
    expected |= {f"memory_{name}.{key}" for name in "ac" for key in memory}
    expected |= {f"actor_obs_normalizer.{key}" for key in ("_mean", "_var", "_std", "count")}
    assert keys == expected
    assert "log_std" in make("ActorCritic", noise_std_type="log").state_dict()


def test_a_checkpoint_of_then_is_loaded():
    source, obs = make("ActorCritic", actor_obs_normalization=True), observe()
    source.update_normalization(observe(50))
    with torch.no_grad():
        source.std.fill_(0.3)
    torch.manual_seed(1)
    policy = modules.ActorCritic(observe(), GROUPS, A, **SMALL, actor_obs_normalization=True)
    assert policy.load_state_dict(source.state_dict()) is True
    close(policy.act_inference(obs), source.act_inference(obs))
    policy.act(obs)
    close(policy.action_std, torch.full((N, A), 0.3))
    with pytest.raises(RuntimeError, match=r"actor\.0\.weight"):
        policy.load_state_dict({})


# ------------------------------------------------------------------ as they were exported


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_legged_gym_scripts_the_actor_alone():
    policy = make("ActorCritic")
    x = torch.randn(N, 5)
    scripted: Any = torch.jit.script(copy.deepcopy(policy.actor).to("cpu"))
    close(scripted(x), policy.act_inference({"state": x}))


def test_isaac_labs_exporter_puts_normaliser_memory_and_actor_together():
    policy, obs = make("ActorCriticRecurrent", actor_obs_normalization=True), observe()
    policy.update_normalization(observe(50))
    normalizer, memory, actor = map(
        copy.deepcopy, (policy.actor_obs_normalizer, policy.memory_a.rnn, policy.actor)
    )
    out, _ = memory(normalizer(obs["state"]).unsqueeze(0))
    close(actor(out.squeeze(0)), policy.act_inference(obs))


# ------------------------------------------------------------------ students and teachers


@pytest.mark.parametrize("recurrent", [False, True])
def test_a_student_acts_and_its_teacher_does_not_learn(recurrent):
    name = "StudentTeacherRecurrent" if recurrent else "StudentTeacher"
    options = {"teacher_recurrent": True} if recurrent else {}
    policy, obs = (
        make(name, **options, student_obs_normalization=True, teacher_obs_normalization=True),
        observe(),
    )
    policy.train()
    assert policy.student.training
    assert not policy.teacher.training
    assert not policy.teacher_obs_normalizer.training
    assert policy.act(obs).shape == (N, A)
    close(policy.action_std, torch.full((N, A), 0.1))
    target = policy.evaluate(obs)
    assert target.shape == (N, A)
    assert not target.requires_grad
    policy.update_normalization(obs)
    assert policy.student_obs_normalizer.count == N
    assert policy.teacher_obs_normalizer.count == 0
    close(policy.get_teacher_obs(obs), obs["privileged"])
    close(policy.get_student_obs(obs), obs["state"])
    assert [h is None for h in policy.get_hidden_states()] == [not recurrent] * 2
    policy.detach_hidden_states()
    assert hasattr(policy, "memory_t") == recurrent


@pytest.mark.parametrize("recurrent", [False, True])
def test_a_policy_that_ppo_trained_becomes_the_teacher(recurrent):
    groups = {"policy": ["privileged"], "critic": ["privileged"]}
    end, options = ("Recurrent", {"teacher_recurrent": True}) if recurrent else ("", {})
    memory = MEMORY if recurrent else {}
    expert = getattr(modules, f"ActorCritic{end}")(
        observe(), groups, A, **SMALL, **memory, actor_obs_normalization=True
    )
    expert.update_normalization(observe(50))
    policy = make(f"StudentTeacher{end}", **options, teacher_obs_normalization=True)
    student = copy.deepcopy(policy.student.state_dict())
    assert not policy.loaded_teacher
    assert policy.load_state_dict(expert.state_dict()) is False
    assert policy.loaded_teacher
    obs = observe()
    close(policy.evaluate(obs), expert.act_inference(obs).detach())
    close(policy.student.state_dict(), student)


def test_a_distillation_goes_on():
    policy, other = make("StudentTeacher"), make("StudentTeacher")
    nn.init.ones_(policy.student[0].weight)
    assert other.load_state_dict(policy.state_dict()) is True
    assert other.loaded_teacher
    assert (other.student[0].weight == 1).all()
    with pytest.raises(CheckpointError, match="neither a student nor an actor"):
        other.load_state_dict({"encoder.0.weight": torch.zeros(1)})
    with pytest.raises(RuntimeError, match=r"teacher\.0\.weight"):
        other.load_state_dict({"actor.7.weight": torch.zeros(1)})


# ------------------------------------------------------------------ faults


def test_an_argument_without_effect_is_named():
    with pytest.warns(SurefootWarning, match="'init_noise_st' has no effect. Did you mean 'init_noise_std'"):
        make("ActorCritic", init_noise_st=0.3)


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: modules.ActorCritic(48, 48), "num_actions"),
        (lambda: modules.ActorCritic(48, num_actions=3), "numbers of observations of actor and critic"),
        (lambda: modules.ActorCritic(observe(), {"critic": ["state"]}, 3), "no set 'actor'"),
        (lambda: make("ActorCritic", noise_std_type="lg"), "std_type 'lg'"),
    ],
)
def test_what_does_not_fit_is_named(build, match):
    with pytest.raises(ConfigError, match=match):
        build()


def test_older_names_are_found_where_they_were():
    assert modules.RandomNetworkDistillation is RandomNetworkDistillation
    with pytest.raises(AttributeError, match="ActorCritik"):
        _ = modules.ActorCritik  # pyright: ignore[reportAttributeAccessIssue]
    for name in modules.__all__:
        assert getattr(modules, name) is not None
