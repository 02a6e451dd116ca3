"""Exported policies: the same actions as in PyTorch, whatever the policy is made of."""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from surefoot.config import SurefootWarning
from surefoot.deploy.export import as_jit, as_onnx, export_policy
from surefoot.deploy.random_observations import random_observations
from surefoot.errors import ConfigError, SurefootError
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import (
    ActorConfig,
    CnnConfig,
    CriticConfig,
    DistributionConfig,
    EstimatorConfig,
)
from surefoot.training.evaluation import InferencePolicy
from surefoot.types import EnvSpec, MirrorMap

Call = Callable[[list[Tensor]], list[Tensor]]


def box(size: int, low: float = -np.inf, high: float = np.inf) -> spaces.Box:
    return spaces.Box(low, high, (size,))


VECTOR = {"policy": box(5)}
CAMERA = {"camera": spaces.Box(0, 255, (1, 16, 16), np.uint8), **VECTOR}
MIXED_BOUNDS = spaces.Box(np.array([-2, -np.inf, -1], np.float32), np.array([3, np.inf, np.inf], np.float32))
SWAP = MirrorMap(
    {"policy": (torch.tensor([1, 0, 2, 3, 4]), torch.tensor([1.0, 1.0, -1.0, 1.0, 1.0]))},
    (torch.tensor([1, 0]), torch.tensor([-1.0, -1.0])),
)


def distribution(**settings: Any) -> dict[str, Any]:
    return {"distribution": DistributionConfig(**settings)}


class Own(nn.Module):
    """A network that keeps what it computed."""

    def __init__(self, num_inputs: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(num_inputs, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        self.code = self.first(x).sin()
        return self.code + self.second(self.code).tanh()


class Branch(Own):
    """Its first row decides what it computes: a recording knows one of the ways only."""

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) if x[0, 0] > 0 else self.second(self.first(x))


class Solve(Own):
    """Something that TorchScript has and ONNX has not."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return torch.linalg.solve(3 * torch.eye(6).expand(y.shape[0], 6, 6), y.unsqueeze(-1)).squeeze(-1)


KINDS: dict[str, dict[str, Any]] = {
    "mlp": {},
    "layer norm, gelu, bounded mean": {
        "actor": {"layer_norm": True, "activation": "gelu", "last_activation": "tanh"}
    },
    "actions without bounds": {"action": box(2)},
    "actions with some bounds": {"action": MIXED_BOUNDS},
    "one action without a dimension": {"action": spaces.Box(-2.0, 3.0, ())},
    "actions in a matrix": {"action": spaces.Box(-2.0, 3.0, (2, 3))},
    "squashed": {"actor": distribution(class_name="SquashedGaussian")},
    "state-dependent": {"actor": distribution(std_type="state_dependent")},
    "gsde": {"actor": distribution(std_type="gsde")},
    "beta": {"actor": distribution(class_name="Beta")},
    "categorical": {"action": spaces.Discrete(3, start=5)},
    "multi-categorical": {"action": spaces.MultiDiscrete([3, 4])},
    "multi-categorical in a matrix": {"action": spaces.MultiDiscrete([[3, 4], [2, 2]])},
    "bernoulli": {"action": spaces.MultiBinary(4)},
    "mask of a categorical": {
        "obs": {**VECTOR, "action_mask": spaces.Box(0, 1, (4,), np.int8)},
        "action": spaces.Discrete(4),
    },
    "mask of a multi-categorical, gru": {
        "obs": {**VECTOR, "action_mask": spaces.MultiBinary(7)},
        "action": spaces.MultiDiscrete([3, 4]),
        "actor": {"rnn_type": "gru", "rnn_hidden_dim": 6},
    },
    "counted observations": {
        "obs": {
            "kind": spaces.Discrete(3, start=1),
            **VECTOR,
            "kinds": spaces.MultiDiscrete([2, 3]),
            "bits": spaces.MultiBinary(2),
            "number": spaces.Box(-1.0, 1.0, ()),
        }
    },
    "gru": {"actor": {"rnn_type": "gru", "rnn_hidden_dim": 6, "rnn_num_layers": 2}},
    "lstm": {"actor": {"rnn_type": "lstm", "rnn_hidden_dim": 6}},
    "lstm of two layers": {"actor": {"rnn_type": "lstm", "rnn_hidden_dim": 4, "rnn_num_layers": 2}},
    "recurrent critic": {"critic": {"rnn_type": "gru", "rnn_hidden_dim": 6}},
    "camera and vector": {"obs": CAMERA},
    "camera, vector and lstm": {"obs": CAMERA, "actor": {"rnn_type": "lstm", "rnn_hidden_dim": 6}},
    "impala, channels last": {
        "obs": {"camera": spaces.Box(0, 255, (16, 20, 3), np.uint8)},
        "actor": {"cnn": "impala"},
    },
    "nature, no channels": {"obs": {"camera": spaces.Box(0, 255, (36, 40), np.uint8)}},
    "float pixels": {
        "obs": {**VECTOR, "camera": spaces.Box(0, 1, (1, 16, 16))},
        "actor": {"cnn": CnnConfig([4], [3], [2], 6)},
    },
    "flat pixels": {"obs": CAMERA, "actor": {"cnn": "flat"}},
    "estimator": {
        "obs": {**VECTOR, "privileged": box(3)},
        "groups": ["policy"],
        "actor": {"estimator": EstimatorConfig("privileged", [4])},
    },
    "shared trunk": {"network": "shared"},
    "mirror": {"action": box(2, -1, 1), "mirror": SWAP, "actor": {"mirror": True}},
    "own network": {"actor": {"class_name": "here:Own"}, "own": Own},
}


def make_policy(
    obs: dict[str, spaces.Space[Any]] | None = None,
    action: spaces.Space[Any] | None = None,
    actor: dict[str, Any] | None = None,
    critic: dict[str, Any] | None = None,
    groups: list[str] | None = None,
    network: Any = "separate",
    mirror: MirrorMap | None = None,
    own: type[nn.Module] | None = None,
    normalization: bool = True,
) -> ActorCritic:
    """A policy whose weights are large, and whose normalisers have seen observations far from 0 and 1."""
    torch.manual_seed(0)
    obs = VECTOR if obs is None else obs
    spec = EnvSpec(obs, box(2, -2, 3) if action is None else action, 4, mirror=mirror)
    groups = groups or [g for g in obs if g != "action_mask"]
    common = {"hidden_dims": [8], "obs_normalization": normalization}
    policy = ActorCritic(
        spec,
        ActorConfig(**{**common, **(actor or {})}),
        CriticConfig(**{**common, **(critic or {})}),
        {"actor": groups, "critic": groups},
        network,
        {"actor": own} if own else None,
    )
    with torch.no_grad():
        policy.action_head.linear.weight.normal_(std=2)
        for normalizer in policy.inputs.normalizers.values():
            normalizer.shift.normal_(std=3)
            normalizer.scale.uniform_(0.3, 3)
    return policy


def load_onnx(file: Path) -> Call:
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [x.name for x in session.get_inputs()]

    def call(tensors: list[Tensor]) -> list[Tensor]:
        feed = {name: x.numpy() for name, x in zip(names, tensors, strict=True)}
        return [torch.from_numpy(np.asarray(x)) for x in session.run(None, feed)]

    return call


def load_torchscript(file: Path) -> Call:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        module = torch.jit.load(file)

    def call(tensors: list[Tensor]) -> list[Tensor]:
        with torch.no_grad():
            out = module(*tensors)
        return list(out) if isinstance(out, tuple) else [out]

    return call


@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_policy_acts_as_in_pytorch_in_every_batch_size(kind, tmp_path):
    policy = make_policy(**KINDS[kind])
    export = export_policy(policy, tmp_path)
    files = {"golden.npz", "policy.json", "policy.onnx", "policy.pt"}
    assert {f.name for f in tmp_path.iterdir()} == {f.name for f in export.files} == files
    assert all(found is not None and found < 1e-4 for found in export.differences.values())

    state_size = policy.actor.state_size
    for call in (load_onnx(tmp_path / "policy.onnx"), load_torchscript(tmp_path / "policy.pt")):
        for num_rows in (1, 5):
            reference, generator = InferencePolicy(policy), torch.Generator().manual_seed(7)
            memory = [torch.zeros(num_rows, state_size)] if state_size else []
            for step in range(3):
                observations = random_observations(policy, num_rows, generator)
                if step == 2 and memory:
                    # row 0 begins a new episode
                    reference.reset(torch.arange(num_rows) == 0)
                    memory[0][0] = 0
                actions, *memory = call([*observations.values(), *memory])
                expected = reference(observations)
                assert (actions.dtype, actions.shape) == (expected.dtype, expected.shape)
                assert torch.allclose(actions.double(), expected.double(), rtol=0, atol=3e-5), kind


def test_the_files_of_a_policy_describe_it_and_hold_right_answers(tmp_path):
    policy = make_policy(
        {"b": box(2), "a": spaces.Box(0, 255, (1, 16, 16), np.uint8), "action_mask": spaces.MultiBinary(3)},
        spaces.Discrete(3),
        {"rnn_type": "lstm", "rnn_hidden_dim": 4},
    )
    export_policy(policy, tmp_path)
    text = (tmp_path / "policy.json").read_text()
    description = json.loads(text)
    assert description["observation_groups"] == ["b", "a", "action_mask"]
    assert description["inputs"] == [
        {"name": "b", "shape": ["N", 2], "dtype": "float32"},
        {"name": "a", "shape": ["N", 1, 16, 16], "dtype": "uint8"},
        {"name": "action_mask", "shape": ["N", 3], "dtype": "bool"},
        {"name": "hidden_in", "shape": ["N", 8], "dtype": "float32"},
    ]
    assert description["outputs"] == [
        {"name": "actions", "shape": ["N"], "dtype": "int64"},
        {"name": "hidden_out", "shape": ["N", 8], "dtype": "float32"},
    ]
    assert description["hidden_size"] == 8
    assert set(description["max_difference_from_pytorch"]) == {"onnx", "torchscript"}

    (entry,) = onnx.load(tmp_path / "policy.onnx").metadata_props
    inside = json.loads(entry.value)
    assert {k: description[k] for k in inside} == inside
    session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"))
    found = [*session.get_inputs(), *session.get_outputs()]
    assert [(x.name, x.shape) for x in found] == [
        (x["name"], x["shape"]) for x in description["inputs"] + description["outputs"]
    ]

    golden = np.load(tmp_path / "golden.npz")
    assert not golden["hidden_in"][0].any()
    assert np.array_equal(golden["hidden_in"][1:], golden["hidden_out"][:-1])
    inference = InferencePolicy(policy)
    for step in range(len(golden["actions"])):
        observations = {g: golden[g][step] for g in description["observation_groups"]}
        assert np.array_equal(inference(observations).numpy(), golden["actions"][step])
    allowed = np.take_along_axis(golden["action_mask"], golden["actions"][..., None], -1)
    assert allowed.all()
    assert not golden["action_mask"].all()
    assert len(np.unique(golden["actions"])) > 1


def test_golden_choices_are_no_near_ties(tmp_path):
    policy = make_policy(action=spaces.MultiBinary(4))
    with torch.no_grad():
        policy.action_head.linear.weight.mul_(1e-6)
        policy.action_head.linear.bias.zero_()
    export = export_policy(policy, tmp_path)
    golden = np.load(tmp_path / "golden.npz")
    observations = {"policy": torch.from_numpy(golden["policy"])}
    logits = policy(observations, torch.zeros(4, 5, 4)).distribution.params["logits"]
    assert logits.abs().max() < 1e-4
    assert logits.abs().min() > 1e-8
    assert export.differences == {"onnx": 0.0, "torchscript": 0.0}


def test_a_policy_stays_as_it_was_while_it_is_exported(tmp_path):
    policy = make_policy(actor={"rnn_type": "gru", "rnn_hidden_dim": 6}).train()
    observations = {"policy": torch.randn(2, 5)}
    first, second = policy.act(observations), policy.act(observations)
    policy.reset()
    assert torch.equal(policy.act(observations), first)
    state = {name: x.clone() for name, x in policy.state_dict().items()}
    export_policy(policy, tmp_path)
    assert torch.equal(policy.act(observations), second)
    assert policy.training
    assert all(torch.equal(x, state[name]) for name, x in policy.state_dict().items())
    assert all(p.requires_grad for p in policy.parameters())


def test_a_policy_in_the_middle_of_a_rollout_can_be_exported(tmp_path):
    policy = make_policy(actor=distribution(std_type="gsde"))
    policy.action_head.explore(7, 0, torch.Generator().manual_seed(0))
    policy.set_mixed_precision(True)
    export_policy(policy, tmp_path)
    assert policy.actor.mixed_precision
    golden = np.load(tmp_path / "golden.npz")
    exact = make_policy(actor=distribution(std_type="gsde"))
    assert np.array_equal(InferencePolicy(exact)(golden["policy"][0]).numpy(), golden["actions"][0])


def test_the_critic_stays_at_home(tmp_path):
    policy = make_policy({**VECTOR, "privileged": box(6)}, groups=["policy"])
    wide = make_policy(
        {**VECTOR, "privileged": box(6)}, groups=["policy"], critic={"hidden_dims": [512, 512]}
    )
    for name, each in (("narrow", policy), ("wide", wide)):
        export_policy(each, tmp_path / name)
    for file in ("policy.onnx", "policy.pt"):
        sizes = [(tmp_path / name / file).stat().st_size for name in ("narrow", "wide")]
        assert abs(sizes[0] - sizes[1]) < 2000


def test_a_group_may_have_any_name(tmp_path):
    groups = {"actions": box(2), "hidden_in": box(3), "file": box(1), "robot.base/velocity": box(1)}
    policy = make_policy(groups, actor={"rnn_type": "gru"})
    assert as_onnx(policy).input_names == [*groups, "hidden_in_"]
    assert as_onnx(policy).output_names == ["actions_", "hidden_out"]
    export_policy(policy, tmp_path)
    assert np.load(tmp_path / "golden.npz").files == [*groups, "hidden_in_", "actions_", "hidden_out"]


def test_as_jit_and_as_onnx_are_modules_for_raw_observations():
    policy = make_policy()
    x = torch.randn(3, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        modules = [as_onnx(policy), as_jit(policy)]
    for module in modules:
        assert isinstance(module, nn.Module)
        assert torch.allclose(module(x), InferencePolicy(policy)(x), atol=1e-6)


@pytest.mark.parametrize("rnn_type", [None, "lstm"])
def test_the_loops_in_the_documentation_run(rnn_type, tmp_path, monkeypatch):
    policy = make_policy(CAMERA, actor={"rnn_type": rnn_type})
    export_policy(policy, tmp_path, ["onnx"])
    monkeypatch.chdir(tmp_path)
    golden = np.load("golden.npz")
    taken: list[np.ndarray] = []

    def wait(_: float | None) -> None:
        if len(taken) == len(golden["actions"]):
            raise TimeoutError

    page = Path(__file__).parents[2] / "docs" / "deploying.md"
    loop, check = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    names = {"read": lambda group: golden[group][len(taken), 0], "write": taken.append, "wait": wait}
    with pytest.raises(TimeoutError):
        exec(loop, names)
    np.testing.assert_allclose(taken, golden["actions"][:, 0], atol=1e-4)
    exec(check, names)


# ------------------------------------------------------------------ what cannot be exported


@pytest.mark.parametrize("kind", ["onnx", "torchscript"])
def test_a_network_whose_export_acts_otherwise_is_refused_and_nothing_written(kind, tmp_path):
    policy = make_policy(actor={"class_name": "here:Branch"}, own=Branch)
    with pytest.raises(SurefootError, match=r"differs from PyTorch by .*\(actor\.class_name\)"):
        export_policy(policy, tmp_path / "out", [kind])
    assert not (tmp_path / "out").exists()


def test_an_operation_that_onnx_lacks_is_named(tmp_path):
    policy = make_policy(actor={"class_name": "here:Solve"}, own=Solve)
    with pytest.raises(ConfigError, match=r"linalg_solve.*actor\.class_name"):
        export_policy(policy, tmp_path)
    assert export_policy(policy, tmp_path, ["torchscript"]).differences["torchscript"] < 1e-5


def test_without_onnxruntime_the_file_is_written_with_a_warning(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.warns(SurefootWarning, match=r"not checked.*surefoot\[export\]"):
        export = export_policy(make_policy(), tmp_path, ["onnx"])
    assert export.differences == {"onnx": None}
    assert json.loads((tmp_path / "policy.json").read_text())["max_difference_from_pytorch"] == {"onnx": None}
    assert (tmp_path / "policy.onnx").exists()


def test_without_onnx_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigError, match=r"needs onnx: pip install 'surefoot\[export\]'"):
        export_policy(make_policy(), tmp_path)


def test_an_unknown_format_is_answered_with_the_known(tmp_path):
    with pytest.raises(ConfigError, match=r"'onx': expected onnx or torchscript\. Did you mean 'onnx'"):
        export_policy(make_policy(), tmp_path, ["onx"])


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write"):
        export_policy(make_policy(), tmp_path / "file" / "out", ["torchscript"])
