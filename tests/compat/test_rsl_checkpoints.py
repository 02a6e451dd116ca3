"""Checkpoints of RSL-RL's generations in the keys of 5.5.1, read without executing anything."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rsl_parts import make_ppo
from torch import nn

from surefoot.compat.rsl_rl.checkpoints import check_fits, load_checkpoint, migrate, part
from surefoot.config import SurefootWarning
from surefoot.errors import CheckpointError


class Normalizer(nn.Module):
    """The buffers of EmpiricalNormalization."""

    def __init__(self, size: int) -> None:
        super().__init__()
        for name in ("_mean", "_var", "_std"):
            self.register_buffer(name, torch.rand(1, size))
        self.register_buffer("count", torch.tensor(64))


class Memory(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.rnn = nn.GRU(size, 5)


def mlp(size: int, num_outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(size, 8), nn.ELU(), nn.Linear(8, num_outputs))


class OldPolicy(nn.Module):
    """The layers of a policy class from before 4.0, under their names and in their order."""

    def __init__(
        self, first: str, second: str, memories: tuple[str, ...], normalizes: bool, is_log: bool
    ) -> None:
        super().__init__()
        for name, size, num_outputs in ((first, 4, 3), (second, 6, 1 if second == "critic" else 3)):
            letter = {"actor": "a", "critic": "c", "student": "s", "teacher": "t"}[name]
            if letter in memories:
                setattr(self, f"memory_{letter}", Memory(size))
            setattr(self, name, mlp(5 if letter in memories else size, num_outputs))
            if normalizes:
                setattr(self, f"{name}_obs_normalizer", Normalizer(size))
        setattr(self, "log_std" if is_log else "std", nn.Parameter(torch.rand(3)))


def old_checkpoint(policy: nn.Module, **more: Any) -> dict[str, Any]:
    """Of a run that has made one step, so that each Adam moment tells its parameter: it is a tenth of it."""
    optimizer = torch.optim.Adam(policy.parameters(), lr=2e-3)
    for parameter in policy.parameters():
        parameter.grad = parameter.detach().clone()
    optimizer.step()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.copy_(parameter.grad)
    state = {"model_state_dict": policy.state_dict(), "optimizer_state_dict": optimizer.state_dict()}
    return {**state, "iter": 7, "infos": None, **more}


def assert_moments_are_of(checkpoint: dict[str, Any], *models: str) -> None:
    """The optimiser's state is that of the parameters of these models, in the order of 5.5.1."""
    state = checkpoint["optimizer_state_dict"]
    trained = [
        x
        for name in models
        for key, x in checkpoint[f"{name}_state_dict"].items()
        if not key.startswith("obs_normalizer")
    ]
    assert state["param_groups"][0]["params"] == list(range(len(trained)))
    assert state["param_groups"][0]["lr"] == 2e-3
    assert state["state"].keys() == set(range(len(trained)))
    for i, parameter in enumerate(trained):
        torch.testing.assert_close(state["state"][i]["exp_avg"], 0.1 * parameter)


# ------------------------------------------------------------------ generations

LAYERS = ["mlp.0.weight", "mlp.0.bias", "mlp.2.weight", "mlp.2.bias"]
MEMORY = ["rnn.rnn.weight_ih_l0", "rnn.rnn.weight_hh_l0", "rnn.rnn.bias_ih_l0", "rnn.rnn.bias_hh_l0"]
STATISTICS = ["obs_normalizer._mean", "obs_normalizer._var", "obs_normalizer._std", "obs_normalizer.count"]


@pytest.mark.parametrize("is_log", [False, True])
@pytest.mark.parametrize("memories", [(), ("a", "c")])
@pytest.mark.parametrize("normalizes", [False, True])
def test_a_policy_before_4_becomes_two_models(normalizes, memories, is_log):
    policy = OldPolicy("actor", "critic", memories, normalizes, is_log)
    checkpoint = load_checkpoint(old_checkpoint(policy))
    std = "distribution.log_std_param" if is_log else "distribution.std_param"
    tail = LAYERS + MEMORY * bool(memories)
    assert list(checkpoint["actor_state_dict"]) == [*STATISTICS * normalizes, std, *tail]
    assert list(checkpoint["critic_state_dict"]) == [*STATISTICS * normalizes, *tail]
    own = policy.state_dict()
    assert torch.equal(checkpoint["actor_state_dict"]["mlp.0.weight"], own["actor.0.weight"])
    assert torch.equal(checkpoint["critic_state_dict"]["mlp.2.bias"], own["critic.2.bias"])
    assert checkpoint["iter"] == 7
    assert "model_state_dict" not in checkpoint
    assert_moments_are_of(checkpoint, "actor", "critic")


@pytest.mark.parametrize("second", ["critic_obs_norm_state_dict", "privileged_obs_norm_state_dict"])
def test_the_normalisers_that_2_kept_beside_the_policy_become_its_models(second):
    policy = OldPolicy("actor", "critic", (), False, False)
    ours, theirs = Normalizer(4).state_dict(), Normalizer(6).state_dict()
    checkpoint = migrate(old_checkpoint(policy, obs_norm_state_dict=ours, **{second: theirs}))
    assert list(checkpoint["actor_state_dict"])[:4] == STATISTICS
    assert torch.equal(checkpoint["actor_state_dict"]["obs_normalizer._mean"], ours["_mean"])
    assert torch.equal(checkpoint["critic_state_dict"]["obs_normalizer._std"], theirs["_std"])
    assert not any("norm_state_dict" in key for key in checkpoint)
    assert_moments_are_of(checkpoint, "actor", "critic")


@pytest.mark.parametrize("splits_policy", [True, False])
def test_normalisers_that_did_not_save_their_count_go_on_as_if_they_had_seen_much(splits_policy):
    """Until 2.3 the count was no buffer: resumed runs began to average anew."""
    statistics = Normalizer(4).state_dict()
    del statistics["count"]
    policy = OldPolicy("actor", "critic", (), False, False)
    checkpoint = migrate(old_checkpoint(policy, obs_norm_state_dict=statistics), splits_policy)
    if splits_policy:
        count = checkpoint["actor_state_dict"]["obs_normalizer.count"]
    else:
        count = checkpoint["obs_norm_state_dict"]["count"]
    assert count == 7 * 24 * 4096
    assert "count" not in statistics


@pytest.mark.parametrize("memories", [(), ("s",), ("s", "t")])
def test_student_and_teacher_become_two_models_and_only_the_students_moments_stay(memories):
    policy = OldPolicy("student", "teacher", memories, True, False)
    checkpoint = migrate(old_checkpoint(policy))
    assert list(checkpoint["student_state_dict"])[4] == "distribution.std_param"
    tail = LAYERS + MEMORY * ("t" in memories)
    assert list(checkpoint["teacher_state_dict"]) == [*STATISTICS, *tail]
    assert "actor_state_dict" not in checkpoint
    assert_moments_are_of(checkpoint, "student")


@pytest.mark.parametrize("name", ["actor", "student"])
def test_4_has_another_name_for_the_deviation(name):
    model = {"std": torch.ones(2), "mlp.0.weight": torch.ones(3, 3)}
    checkpoint = migrate({f"{name}_state_dict": model, "iter": 3, "infos": {"a": 1}})
    assert list(checkpoint[f"{name}_state_dict"]) == ["distribution.std_param", "mlp.0.weight"]
    assert checkpoint["infos"] == {"a": 1}
    assert list(model) == ["std", "mlp.0.weight"]


def test_a_checkpoint_of_today_and_what_is_not_known_stay_as_they_are():
    checkpoint = {"actor_state_dict": {"distribution.std_param": torch.ones(2)}, "critic_state_dict": {}}
    checkpoint |= {"iter": 3, "infos": None, "rnd_state_dict": {"a": 1}, "discriminator": [1, 2]}
    assert migrate(checkpoint) == checkpoint
    assert migrate({"my_policy": 1}) == {"my_policy": 1}


def test_a_part_that_no_policy_had_is_named():
    with pytest.raises(CheckpointError, match="'estimator', which no policy class of RSL-RL has"):
        migrate({"model_state_dict": {"actor.0.weight": torch.ones(1), "estimator.0.weight": torch.ones(1)}})


def test_a_part_that_is_no_mapping_is_named_and_none_is_not_there(tmp_path):
    for key in ("model_state_dict", "actor_state_dict", "optimizer_state_dict", "obs_norm_state_dict"):
        with pytest.raises(CheckpointError, match=f"its {key} is a list; expected a mapping"):
            migrate({key: [1]})
        assert key not in migrate({key: None})
    torch.save({"model_state_dict": 3}, tmp_path / "model_1.pt")
    with pytest.raises(CheckpointError, match=r"model_1\.pt: its model_state_dict is a int"):
        load_checkpoint(tmp_path / "model_1.pt")


def test_moments_of_other_parameters_are_left_out_with_a_warning():
    checkpoint = old_checkpoint(OldPolicy("actor", "critic", (), False, False))
    checkpoint["optimizer_state_dict"]["param_groups"][0]["params"].pop()
    with pytest.warns(SurefootWarning, match=r"has 8 parameters and its networks 9"):
        migrated = migrate(checkpoint)
    # an optimiser takes it, and begins anew at the learning rate there was
    optimizer = torch.optim.Adam([nn.Parameter(torch.zeros(1)) for _ in range(9)])
    optimizer.load_state_dict(migrated["optimizer_state_dict"])
    assert optimizer.param_groups[0]["lr"] == 2e-3
    assert not optimizer.state


@given(st.booleans(), st.sampled_from([(), ("a",), ("a", "c"), ("c",)]), st.booleans())
def test_migrate_is_idempotent_and_never_changes_its_argument(normalizes, memories, is_log):
    given_checkpoint = old_checkpoint(OldPolicy("actor", "critic", memories, normalizes, is_log))
    before = copy.deepcopy(given_checkpoint)
    once = migrate(given_checkpoint)
    twice = migrate(once)
    for a, b in ((once, twice), (given_checkpoint, before)):
        torch.testing.assert_close(dict(a), dict(b), rtol=0, atol=0)


# ------------------------------------------------------------------ files


def modern(infos: Any = None) -> dict[str, Any]:
    return {
        "actor_state_dict": {"mlp.0.weight": torch.ones(2, 3)},
        "critic_state_dict": {},
        "iter": 1,
        "infos": infos,
    }


class Attack:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_numbers_and_arrays_of_numpy_are_read(tmp_path):
    infos = {
        "step": np.float64(0.5),
        "count": np.int32(3),
        "array": np.arange(6.0).reshape(2, 3),
        "t": (1, "a"),
    }
    torch.save(modern(infos), tmp_path / "model_1.pt")
    read = load_checkpoint(tmp_path / "model_1.pt")["infos"]
    assert (read["step"], read["count"], read["t"]) == (0.5, 3, (1, "a"))
    assert np.array_equal(read["array"], infos["array"])


def test_a_hostile_file_is_refused_and_nothing_in_it_is_executed(tmp_path):
    torch.save(modern(Attack(tmp_path / "executed")), tmp_path / "model_1.pt")
    with pytest.raises(
        CheckpointError, match=r"model_1\.pt holds more than .*mkdir.*nothing in it was executed"
    ):
        load_checkpoint(tmp_path / "model_1.pt")
    assert not (tmp_path / "executed").exists()


def test_half_a_file_is_named_and_the_newest_whole_one_offered(tmp_path):
    torch.save(modern(), tmp_path / "model_1.pt")
    torch.save(modern(), tmp_path / "model_2.pt")
    whole = (tmp_path / "model_2.pt").read_bytes()
    (tmp_path / "model_2.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match=r"model_2\.pt is cut off .*complete checkpoint.*model_1\.pt"):
        load_checkpoint(tmp_path / "model_2.pt")
    with pytest.raises(CheckpointError, match=r"no checkpoint .*model_3\.pt"):
        load_checkpoint(tmp_path / "model_3.pt")


def test_a_file_that_is_no_mapping_is_named(tmp_path):
    torch.save([1, 2], tmp_path / "model_1.pt")
    with pytest.raises(CheckpointError, match=r"model_1\.pt holds a list"):
        load_checkpoint(tmp_path / "model_1.pt")


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_an_exported_policy_and_a_file_of_another_kind_are_no_checkpoints(tmp_path):
    torch.jit.save(torch.jit.script(nn.Linear(2, 2)), tmp_path / "policy.pt")
    with pytest.raises(CheckpointError, match=r"policy\.pt is an exported policy \(TorchScript\)"):
        load_checkpoint(tmp_path / "policy.pt")
    (tmp_path / "pointer.pt").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(
        CheckpointError, match=r"pointer\.pt is no checkpoint of tensors; nothing in it was executed"
    ):
        load_checkpoint(tmp_path / "pointer.pt")


# ------------------------------------------------------------------ whether it fits


class Model(nn.Module):
    def __init__(self, size: int = 4, samples: bool = True, normalizes: bool = False) -> None:
        super().__init__()
        self.mlp = mlp(size, 3)
        if samples:
            self.distribution = nn.Module()
            self.distribution.std_param = nn.Parameter(torch.ones(3))
        if normalizes:
            self.obs_normalizer = Normalizer(size)


def test_another_width_names_the_layer_and_both_shapes():
    with pytest.raises(CheckpointError) as info:
        check_fits(Model(12).state_dict(), Model(10), "teacher")
    assert isinstance(info.value, RuntimeError)
    assert (
        "teacher: the layer 'mlp.0.weight' has the shape (8, 12) in the checkpoint and (8, 10) here"
        in str(info.value)
    )


def test_a_memory_on_one_side_is_named_before_the_widths_that_follow_from_it():
    state = Model(5).state_dict() | {"rnn.rnn.weight_ih_l0": torch.ones(2, 2)}
    with pytest.raises(CheckpointError, match=r"'rnn\.rnn\.weight_ih_l0'.*class_name RNNModel and rnn_type"):
        check_fits(state, Model(4), "actor")
    with pytest.raises(CheckpointError, match=r"actor: the layer 'mlp\.0\.bias' is a float, no tensor"):
        check_fits(Model().state_dict() | {"mlp.0.bias": 0.5}, Model(), "actor")


@pytest.mark.parametrize(("there", "here"), [(True, False), (False, True)])
def test_a_layer_on_one_side_only_says_which_setting_differs(there, here):
    state, module = Model(normalizes=there).state_dict(), Model(normalizes=here)
    with pytest.raises(CheckpointError, match=r"'obs_normalizer\._mean'.*differ in obs_normalization"):
        check_fits(state, module, "actor")
    if there:
        module.load_state_dict(check_fits(state, module, "actor", strict=False))


def test_a_part_that_is_not_there_is_named_with_what_is():
    with pytest.raises(CheckpointError) as info:
        part({"student_state_dict": {}, "iter": 3}, "actor_state_dict")
    assert isinstance(info.value, KeyError)
    assert str(info.value) == (
        "the checkpoint lacks 'actor_state_dict'; it has student_state_dict, iter. "
        "load_cfg says which parts are loaded."
    )


def test_ppo_says_what_a_checkpoint_of_distillation_lacks_and_stays_as_it_was():
    ppo, other = make_ppo(), make_ppo()
    saved = other.save()
    saved["student_state_dict"] = saved.pop("critic_state_dict")
    before = copy.deepcopy(ppo.actor.state_dict())
    with pytest.raises(KeyError, match="lacks 'critic_state_dict'"):
        ppo.load(saved, None, True)
    torch.testing.assert_close(ppo.actor.state_dict(), before, rtol=0, atol=0)


def test_what_fits_comes_back_as_it_is_and_a_teacher_leaves_out_the_deviation():
    state = Model().state_dict()
    assert check_fits(state, Model(), "actor") == state
    teacher = Model(samples=False)
    teacher.load_state_dict(check_fits(state, teacher, "teacher"))
