"""RSL-RL's exported models: TorchScript and ONNX give what PyTorch gives, in batches of any size."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from surefoot.compat.rsl_rl.models import CNNModel, MLPModel, RNNModel

# PyTorch's exporters warn of themselves
pytestmark = pytest.mark.filterwarnings("ignore")
N, A, H = 5, 3, 6
GAUSSIAN = {"class_name": "GaussianDistribution"}
BETA = {"class_name": "BetaDistribution", "action_range": (0.0, 2.0)}
BY_STATE = {"class_name": "HeteroscedasticGaussianDistribution"}
CNN_CFG = {"output_channels": [4], "kernel_size": 3, "norm": "batch"}


def observe(n: int = N) -> dict[str, Tensor]:
    return {
        "camera": torch.rand(n, 1, 16, 16),
        "policy": 3 + 10 * torch.randn(n, 5),
        "extra": torch.randn(n, 2),
        "depth": torch.randint(0, 256, (n, 2, 9, 8), dtype=torch.uint8),
    }


def vectors(obs: dict[str, Tensor]) -> Tensor:
    return torch.cat([obs["policy"], obs["extra"]], -1)


def make(kind: str, distribution: dict[str, Any] | None = GAUSSIAN) -> Any:
    """A model with statistics that matter, also those of batch normalisation."""
    torch.manual_seed(0)
    groups = {"actor": ["policy", "camera", "extra", "depth"][:: 1 if kind == "cnn" else 2]}
    options: dict[str, Any] = {
        "hidden_dims": [8],
        "obs_normalization": True,
        "distribution_cfg": distribution,
    }
    if kind == "mlp":
        model = MLPModel(observe(), groups, "actor", A, **options)
    elif kind == "cnn":
        model = CNNModel(observe(), groups, "actor", A, **options, cnn_cfg=CNN_CFG)
    else:
        model = RNNModel(
            observe(), groups, "actor", A, **options, rnn_type=kind, rnn_hidden_dim=H, rnn_num_layers=2
        )
    for layer in model.mlp:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight)
    for _ in range(3):
        model.update_normalization(observe(50))
        model(observe(50))
    model.reset()
    return model.eval()


def script(model: Any) -> Any:
    return torch.jit.script(model.as_jit())


def run_onnx(model: Any, *inputs: Tensor, dynamo: bool = False) -> list[Tensor]:
    """The outputs of the ONNX file for these inputs."""
    pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    exported, file = model.as_onnx(verbose=False), io.BytesIO()
    if dynamo:
        pytest.importorskip("onnxscript")
        batch = torch.export.Dim("batch")
        axes = [dict.fromkeys(exported.dynamic_axes[name], batch) for name in exported.input_names]
        options: dict[str, Any] = {"dynamic_shapes": tuple(axes)}
    else:
        options = {"dynamic_axes": exported.dynamic_axes}
    torch.onnx.export(
        exported,
        exported.get_dummy_inputs(2 if dynamo else 1),
        file,  # pyright: ignore[reportArgumentType]
        opset_version=18,
        input_names=exported.input_names,
        output_names=exported.output_names,
        dynamo=dynamo,
        verbose=False,
        **options,
    )
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    assert [x.name for x in session.get_inputs()] == exported.input_names
    assert [x.name for x in session.get_outputs()] == exported.output_names
    values = {name: x.numpy() for name, x in zip(exported.input_names, inputs, strict=True)}
    return [torch.from_numpy(y) for y in session.run(None, values)]


def close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("distribution", [None, GAUSSIAN, BETA, BY_STATE])
@pytest.mark.parametrize("n", [1, N])
def test_x01_the_normaliser_is_inside(distribution, n):
    model, obs = make("mlp", distribution), observe(n)
    want = model(obs).detach()
    close(script(model)(vectors(obs)), want)
    close(run_onnx(model, vectors(obs))[0], want)
    # a wrong export would show
    assert (model.mlp(vectors(obs)).flatten()[:A] - want.flatten()[:A]).abs().max() > 0.1


def test_x01_of_a_policy_with_known_statistics():
    obs = {"policy": torch.tensor([[1.0, 2.0, 3.0]])}
    model = MLPModel(obs, {"actor": ["policy"]}, "actor", 2, [4], obs_normalization=True)
    model.obs_normalizer._mean.copy_(torch.tensor([[1.0, 2.0, 3.0]]))
    model.obs_normalizer._std.copy_(torch.tensor([[0.5, 2.0, 10.0]]))
    raw = 10 * torch.randn(7, 3)
    close(run_onnx(model, raw)[0], model({"policy": raw}).detach())
    # at the mean, what counts is the biases alone
    close(script(model)(obs["policy"]), model.mlp(torch.zeros(1, 3)))


@pytest.mark.parametrize("n", [1, N])
def test_x03_images_and_vectors_keep_apart(n):
    model, obs = make("cnn"), observe(n)
    want = model(obs).detach()
    assert model.as_onnx().input_names == ["obs", "camera", "depth"]
    close(script(model)(vectors(obs), [obs["camera"], obs["depth"]]), want)
    close(run_onnx(model, vectors(obs), obs["camera"], obs["depth"])[0], want)
    # the order of the groups in the observations has no effect
    close(model(dict(reversed(obs.items()))).detach(), want)


def test_x03_a_policy_of_images_alone():
    obs = observe()
    model = CNNModel(obs, {"actor": ["camera"]}, "actor", A, [8], obs_normalization=True, cnn_cfg=CNN_CFG)
    want = model.eval()(obs).detach()
    nothing = torch.zeros(N, 0)
    close(script(model)(nothing, [obs["camera"]]), want)
    close(run_onnx(model, nothing, obs["camera"])[0], want)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("n", [1, N])
def test_c27_the_state_of_a_recurrent_policy_is_inside(kind, n):
    model, exported = make(kind), script(make(kind))
    states = [torch.zeros(2, n, H)] * (2 if kind == "lstm" else 1)
    for _ in range(3):
        obs = observe(n)
        want = model(obs).detach()
        close(exported(vectors(obs)), want)
        out, *states = run_onnx(model, vectors(obs), *states)
        close(out, want)
        kept = model.get_hidden_state()
        close(states, [h.detach() for h in (kept if kind == "lstm" else [kept])])
    assert not exported.hidden_state.requires_grad  # no graph grows from step to step
    exported.reset()
    model.reset()
    close(exported(vectors(obs)), model(obs))


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_c27_another_number_of_environments_starts_with_an_empty_memory(kind):
    model, exported = make(kind), script(make(kind))
    exported(vectors(observe(2)))
    obs = observe(N)
    close(exported(vectors(obs)), model(obs))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mlp", "gru", "lstm"])
def test_c27_pytorchs_newer_exporter_gives_the_same(kind):
    model, obs = make(kind), observe()
    states = [torch.randn(2, N, H) for _ in range({"mlp": 0, "gru": 1, "lstm": 2}[kind])]
    out = run_onnx(model, vectors(obs), *states, dynamo=True)
    want = model.as_onnx()(vectors(obs), *states)
    close(out, [x.detach() for x in (want if states else [want])])


@pytest.mark.parametrize("kind", ["mlp", "gru", "lstm", "cnn"])
def test_dummy_inputs_have_the_names_shapes_and_types_of_rsl_rl(kind):
    exported = make(kind).double().as_onnx(verbose=False)
    dummies = exported.get_dummy_inputs()
    assert exported.input_size == 7
    shapes = {
        "obs": (1, 7),
        "h_in": (2, 1, H),
        "c_in": (2, 1, H),
        "camera": (1, 1, 16, 16),
        "depth": (1, 2, 9, 8),
    }
    assert [tuple(x.shape) for x in dummies] == [shapes[name] for name in exported.input_names]
    assert dummies[0].dtype == torch.float64
    assert exported.is_recurrent == (kind in ("gru", "lstm"))
    if exported.is_recurrent:
        assert (exported.rnn_type, exported.hidden_size, exported.num_layers) == (kind, H, 2)
    outputs = exported(*dummies)
    assert len(exported.output_names) == (len(outputs) if exported.is_recurrent else 1)


def test_an_export_is_a_copy_in_evaluation_mode():
    model = make("cnn").train()
    for exported in (model.as_jit(), model.as_onnx()):
        assert not any(module.training for module in exported.modules())
        for p in exported.parameters():
            nn.init.zeros_(p)
    assert model.training
    assert any(p.abs().max() > 0 for p in model.mlp.parameters())


def test_an_export_has_the_keys_of_rsl_rls():
    theirs = pytest.importorskip("rsl_rl.models")
    obs = observe()
    for kind, name, options in [
        ("mlp", "MLPModel", {}),
        ("gru", "RNNModel", {"rnn_type": "gru", "rnn_hidden_dim": H, "rnn_num_layers": 2}),
        ("lstm", "RNNModel", {"rnn_type": "lstm", "rnn_hidden_dim": H, "rnn_num_layers": 2}),
        ("cnn", "CNNModel", {"cnn_cfg": CNN_CFG}),
    ]:
        model = make(kind)
        groups = {"actor": [*model.obs_groups, *getattr(model, "obs_groups_2d", [])]}
        other = getattr(theirs, name)(
            obs,
            groups,
            "actor",
            A,
            hidden_dims=[8],
            obs_normalization=True,
            distribution_cfg=GAUSSIAN,
            **options,
        )
        assert set(model.as_jit().state_dict()) == set(other.as_jit().state_dict())
        assert set(model.as_onnx(False).state_dict()) == set(other.as_onnx(False).state_dict())
