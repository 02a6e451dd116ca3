"""Public bug reports on exported policies. Each test carries the number of its report."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from surefoot.deploy.export import export_policy
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import ActorConfig, CnnConfig, CriticConfig
from surefoot.training.evaluation import InferencePolicy
from surefoot.types import EnvSpec


def box(*shape: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, shape)


def run_onnx(directory: Path, feed: dict[str, Tensor]) -> Tensor:
    session = onnxruntime.InferenceSession(str(directory / "policy.onnx"))
    return torch.from_numpy(session.run(None, {name: x.numpy() for name, x in feed.items()})[0])


def run_torchscript(directory: Path, *inputs: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.load(directory / "policy.pt")(*inputs)


def largest(difference: Tensor) -> float:
    return difference.abs().max().item()


def make_policy(obs: dict[str, Any], **actor: Any) -> ActorCritic:
    torch.manual_seed(0)
    spec = EnvSpec(obs, box(2), 4)
    groups = {"actor": list(obs), "critic": list(obs)}
    actor = {"obs_normalization": True, "last_layer_gain": 1.0, **actor}
    return ActorCritic(spec, ActorConfig(**actor), CriticConfig(cnn=actor.get("cnn")), groups)


def test_x01_the_exported_policy_takes_raw_observations(tmp_path):
    policy = make_policy({"policy": box(3)}, hidden_dims=[])
    mean, std = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, 2.0, 10.0])
    policy.inputs.update({"policy": mean + std * torch.randn(10_000, 3)})
    observations = 10 * torch.randn(64, 3)
    wanted = InferencePolicy(policy)(observations)

    export_policy(policy, tmp_path)
    assert largest(run_onnx(tmp_path, {"policy": observations}) - wanted) < 1e-5
    assert largest(run_torchscript(tmp_path, observations) - wanted) < 1e-5

    # the control: what an identity in place of the normaliser would do
    normalizer: Any = policy.inputs.normalizers["actor"]
    normalizer.shift.zero_()
    normalizer.scale.fill_(1.0)
    assert largest(InferencePolicy(policy)(observations) - wanted) > 0.1


@pytest.mark.parametrize("order", [["policy", "camera"], ["camera", "policy"]])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_x03_an_image_and_a_vector_keep_their_places_and_only_the_vector_is_normalised(
    order, dtype, tmp_path
):
    high = 255 if dtype == np.uint8 else 1
    groups = {"policy": box(5), "camera": spaces.Box(0, high, (1, 16, 16), dtype)}
    cnn = CnnConfig([4], [3], [2], 6)
    policy = make_policy({name: groups[name] for name in order}, hidden_dims=[8], cnn=cnn)
    pixels = torch.randint(0, 256, (7, 1, 16, 16), dtype=torch.uint8)
    camera = pixels if dtype == np.uint8 else pixels / 255
    vector = 5 + 3 * torch.randn(7, 5)
    policy.inputs.update({"policy": vector, "camera": camera})
    wanted = InferencePolicy(policy)({"policy": vector, "camera": camera})
    assert torch.equal(InferencePolicy(policy)({"camera": camera, "policy": vector}), wanted)

    export_policy(policy, tmp_path)
    assert largest(run_onnx(tmp_path, {"policy": vector, "camera": camera}) - wanted) < 1e-4
    assert largest(run_onnx(tmp_path, {"camera": camera, "policy": vector}) - wanted) < 1e-4
    by_name = {"policy": vector, "camera": camera}
    assert largest(run_torchscript(tmp_path, *(by_name[name] for name in order)) - wanted) < 1e-4
    # each of them matters
    assert largest(run_onnx(tmp_path, {"policy": vector + 1, "camera": camera}) - wanted) > 1e-2
    assert largest(run_onnx(tmp_path, {"policy": vector, "camera": camera.flip(-1)}) - wanted) > 1e-3
