"""RSL-RL's models: what they compute, keep and accept; parity with rsl-rl-lib 5.5.1 where it is installed."""

from __future__ import annotations

import copy
from types import MappingProxyType
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from surefoot.compat.rsl_rl.models import CNNModel, MLPModel, RNNModel
from surefoot.compat.rsl_rl.modules import CNN, GaussianDistribution
from surefoot.compat.rsl_rl.utils import split_and_pad_trajectories
from surefoot.errors import ConfigError

N, A = 4, 3
GROUPS = {"actor": ["policy", "extra"], "images": ["camera", "policy", "wide"], "pictures": ["camera"]}
GAUSSIAN = {"class_name": "GaussianDistribution", "init_std": 0.7}
DISTRIBUTIONS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "scalar": GAUSSIAN,
    "log": {**GAUSSIAN, "std_type": "log"},
    "by state": {"class_name": "HeteroscedasticGaussianDistribution", "std_type": "log"},
    "beta": {"class_name": "BetaDistribution", "action_range": (-2.0, 3.0)},
}
CNN_CFG = {"output_channels": [4, 6], "kernel_size": 3, "padding": "zeros", "norm": "batch", "max_pool": True}
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mlp": ("MLPModel", "actor", {}),
    "gru": ("RNNModel", "actor", {"rnn_type": "gru", "rnn_hidden_dim": 5, "rnn_num_layers": 2}),
    "lstm": ("RNNModel", "actor", {"rnn_hidden_dim": 5}),
    "cnn": ("CNNModel", "images", {"cnn_cfg": CNN_CFG}),
    "one cnn each": (
        "CNNModel",
        "images",
        {"cnn_cfg": {"camera": CNN_CFG, "wide": {"output_channels": [3], "kernel_size": 5, "stride": 2}}},
    ),
    "pictures only": ("CNNModel", "pictures", {"cnn_cfg": CNN_CFG}),
}
OURS = {"MLPModel": MLPModel, "RNNModel": RNNModel, "CNNModel": CNNModel}


def observe(n: int = N, dtype: torch.dtype = torch.float32) -> Any:
    groups = {"policy": (6,), "extra": (2,), "camera": (3, 12, 10), "wide": (1, 9, 14)}
    rows = {group: 3 + 2 * torch.randn(n, *shape, dtype=dtype) for group, shape in groups.items()}
    return TensorDict(rows, batch_size=[n])


def make(kind: str, distribution: str = "none", library: Any = None, **kwargs: Any) -> Any:
    name, obs_set, options = KINDS[kind]
    options = {"hidden_dims": [16, 8], "obs_normalization": True, **options, **kwargs}
    cls = OURS[name] if library is None else getattr(library, name)
    return cls(observe(), GROUPS, obs_set, A, distribution_cfg=DISTRIBUTIONS[distribution], **options)


@pytest.fixture
def rsl_rl():
    """The real package."""
    library = pytest.importorskip("rsl_rl.models", reason="rsl-rl-lib is not installed")
    if library.MLPModel is MLPModel:
        pytest.skip("the name rsl_rl leads to Surefoot in this process")
    return library


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


# ------------------------------------------------------------------ parity with the real package


def twins(kind: str, distribution: str, library: Any) -> tuple[Any, Any]:
    """Our model and theirs, in float64, with equal weights and statistics."""
    ours, theirs = make(kind, distribution).double(), make(kind, distribution, library).double()
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    for _ in range(2):
        obs = observe(20, torch.float64)
        for model in (ours, theirs):
            # theirs cannot normalise without vectors
            if model.obs_groups:
                model.update_normalization(obs)
    return ours, theirs


def close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_computes_what_rsl_rl_computes(kind, distribution, rsl_rl):
    ours, theirs = twins(kind, distribution, rsl_rl)
    for _ in range(3):
        obs = observe(dtype=torch.float64)
        close(ours(obs), theirs(obs))
        dones = torch.tensor([0, 1, 0, 0])
        ours.reset(dones)
        theirs.reset(dones)
    if distribution == "none":
        return
    ours.set_distribution(obs)
    theirs(obs, stochastic_output=True)
    actions = theirs.distribution.sample()
    close(ours.get_output_log_prob(actions), theirs.get_output_log_prob(actions))
    for name in ("output_mean", "output_std", "output_entropy", "output_distribution_params"):
        close(getattr(ours, name), getattr(theirs, name))
    params = ours.output_distribution_params
    others = tuple(1.2 * p + 0.1 for p in params)
    close(ours.get_kl_divergence(params, others), theirs.get_kl_divergence(params, others))


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_dict_goes_both_ways(kind, distribution, rsl_rl):
    ours, theirs = twins(kind, distribution, rsl_rl)
    fresh = make(kind, distribution, rsl_rl).double()
    fresh.load_state_dict(ours.state_dict())
    ours.eval()
    obs = observe(dtype=torch.float64)
    ours.reset()
    close(fresh.eval()(obs), ours(obs))
    for name, x in theirs.state_dict().items():
        assert x.dtype == ours.state_dict()[name].dtype
        close(ours.state_dict()[name], x)


@pytest.mark.parametrize("distribution", ["scalar", "log", "by state"])
def test_the_same_seed_draws_the_same_actions(distribution, rsl_rl):
    ours, theirs = twins("mlp", distribution, rsl_rl)
    obs = observe(dtype=torch.float64)
    torch.manual_seed(7)
    actions = ours(obs, stochastic_output=True)
    torch.manual_seed(7)
    close(actions, theirs(obs, stochastic_output=True))


@pytest.mark.parametrize("kind", ["mlp", "gru", "lstm"])
def test_padded_sequences_give_what_rsl_rl_gives(kind, rsl_rl):
    ours, theirs = twins(kind, "scalar", rsl_rl)
    steps, dones = 6, torch.zeros(6, N, 1)
    dones[2, 1] = dones[4, 1] = dones[3, 3] = 1
    rows = TensorDict(
        {g: torch.randn(steps, N, d, dtype=torch.float64) for g, d in (("policy", 6), ("extra", 2))},
        batch_size=[steps, N],
    )
    padded, masks = split_and_pad_trajectories(rows, dones)
    state = None
    if kind != "mlp":
        h = torch.randn(2 if kind == "gru" else 1, masks.shape[1], 5, dtype=torch.float64)
        state = h if kind == "gru" else (h, -h)
    out = ours(padded, masks, state)
    assert out.shape == (steps, N, A)
    close(out, theirs(padded, masks, state))


@pytest.mark.parametrize("kind", KINDS)
def test_first_weights_are_pytorchs_own(kind, rsl_rl):
    torch.manual_seed(3)
    ours = make(kind, "scalar")
    torch.manual_seed(3)
    close(list(ours.state_dict().values()), list(make(kind, "scalar", rsl_rl).state_dict().values()))


# ------------------------------------------------------------------ what a model does


def test_a_model_samples_around_what_it_returns():
    model, obs = make("mlp", "scalar"), observe()
    sample = model(obs, stochastic_output=True)
    torch.testing.assert_close(model(obs), model.output_mean)
    torch.testing.assert_close(model.output_std, torch.full((N, A), 0.7))
    assert not torch.equal(sample, model.output_mean)


def test_the_distribution_can_be_set_without_a_draw():
    model, obs = make("mlp", "scalar"), observe()
    state = torch.get_rng_state()
    model.set_distribution(obs)
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(model.output_mean, model(obs))


def test_a_deterministic_model_says_that_it_has_no_distribution():
    model = make("mlp")
    assert model.distribution is None
    with pytest.raises(ConfigError, match="deterministic"):
        _ = model.output_std


def test_groups_are_concatenated_in_the_order_of_the_set():
    obs = {"b": torch.ones(2, 4) * 2, "a": torch.ones(2, 3)}
    model = MLPModel(obs, {"actor": ("a", "b")}, "actor", 1, hidden_dims=[4])
    assert model.get_latent(obs).tolist() == [[1] * 3 + [2] * 4] * 2
    assert model.obs_groups == ["a", "b"]
    torch.testing.assert_close(model(torch.cat([obs["a"], obs["b"]], -1)), model(obs))


def test_one_environment_may_come_without_its_dimension():
    for kind in ("mlp", "gru", "lstm", "one cnn each"):
        model, obs = make(kind).eval(), observe(1)
        alone = {group: x[0] for group, x in obs.items()}
        out = model(alone)
        model.reset()
        torch.testing.assert_close(out, model(obs)[0])


@pytest.mark.parametrize("kind", ["mlp", "gru", "cnn"])
def test_observations_of_other_number_types_are_taken(kind):
    model, obs = make(kind).eval(), observe()
    want = model({g: x.round() for g, x in obs.items()})
    for change in (torch.Tensor.double, torch.Tensor.int):
        model.reset()
        torch.testing.assert_close(model({g: change(x.round()) for g, x in obs.items()}), want)


def test_low_precision_ends_before_the_distribution():
    for kind in ("mlp", "gru", "cnn"):
        model = make(kind, "scalar")
        with torch.autocast("cpu", torch.bfloat16):
            model.set_distribution(observe())
            assert model.mlp(torch.zeros(1, model._get_latent_dim())).dtype == torch.bfloat16
        assert model.output_mean.dtype == torch.float32


def test_pixels_from_0_to_255_are_numbers_from_0_to_1():
    pixels = torch.randint(0, 256, (N, 1, 8, 8), dtype=torch.uint8)
    model = CNNModel({"camera": pixels}, {"actor": ["camera"]}, "actor", 2, [8], cnn_cfg={"camera": CNN_CFG})
    torch.testing.assert_close(model.eval()({"camera": pixels}), model({"camera": pixels / 255}))


def test_c03_a_models_deviation_is_never_stuck():
    model, obs = make("mlp", "scalar"), observe()
    with torch.no_grad():
        model.distribution.std_param.fill_(-1.0)
    model(obs, stochastic_output=True)
    model.get_output_log_prob(model.output_mean.detach() + 1).sum().backward()
    assert (model.distribution.std_param.grad != 0).all()
    model.project()
    assert (model.distribution.std_param > 0).all()
    make("mlp").project()  # nothing to do


def test_c04_shared_cnns_are_the_same_modules():
    one = make("cnn")
    other = make("cnn", cnns=one.cnns, cnn_cfg=None)
    assert other.cnns is one.cnns
    parameters = [*one.parameters(), *other.parameters()]
    num_cnn = len(list(one.cnns.parameters()))
    assert len({id(p) for p in parameters}) == len(parameters) - num_cnn
    other(observe()).sum().backward()
    assert all(p.grad is not None for p in one.cnns.parameters())
    # also where they come as a plain mapping
    third = make("cnn", cnns=dict(one.cnns.items()), cnn_cfg=None)
    assert all(third.cnns[name] is cnn for name, cnn in one.cnns.items())


def test_c16_the_first_actions_are_those_of_normalised_observations():
    model = make("mlp")
    obs = {group: 1e3 * x for group, x in observe(50).items()}
    model.warm_up(obs)
    assert model.get_latent(obs).abs().max() < 10
    model.update_normalization({group: x / 1e3 for group, x in obs.items()})
    assert model.obs_normalizer.count == 50
    assert model.obs_normalizer.mean.abs().max() < 10


def test_models_without_vectors_or_normaliser_have_nothing_to_count():
    for model in (make("pictures only"), make("mlp", obs_normalization=False)):
        model.warm_up(observe())
        model.update_normalization(observe())
        assert model(observe()).shape == (N, A)


def test_statistics_are_frozen_but_for_update_normalization():
    model = make("mlp", "scalar")
    before = copy.deepcopy(model.state_dict())
    model(observe(), stochastic_output=True)
    close(list(model.state_dict().values()), list(before.values()))


# ------------------------------------------------------------------ memory


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_learning_sees_the_log_probabilities_of_the_rollout(kind):
    model, steps = make(kind, "scalar"), 8
    model.update_normalization(observe(20))
    model(observe())  # the rollout begins in the middle of episodes
    start = model.get_hidden_state()
    dones = torch.rand(steps, N, 1) < 0.3
    rollout: dict[str, list[Any]] = {"obs": [], "actions": [], "log_prob": []}
    with torch.no_grad():
        for t in range(steps):
            obs = observe()
            rollout["obs"].append(obs)
            rollout["actions"].append(model(obs, stochastic_output=True))
            rollout["log_prob"].append(model.get_output_log_prob(rollout["actions"][-1]))
            model.reset(dones[t])
    padded, masks = split_and_pad_trajectories(torch.stack(rollout["obs"]), dones)
    # the state before the first step of each piece: kept, or zeros where an episode begins
    first = torch.cat([torch.ones(1, N, 1, dtype=torch.bool), dones[:-1]]).squeeze(-1).t()
    env, step = first.nonzero(as_tuple=True)
    pieces = [h[:, env] * (step == 0).view(1, -1, 1) for h in (start if kind == "lstm" else (start,))]
    model.set_distribution(padded, masks, tuple(pieces) if kind == "lstm" else pieces[0])
    log_prob = model.get_output_log_prob(torch.stack(rollout["actions"]))
    torch.testing.assert_close(log_prob, torch.stack(rollout["log_prob"]))


def test_a_model_without_memory_beside_one_with_memory_unpads_what_it_reads():
    obs, dones = torch.stack([observe() for _ in range(5)]), torch.zeros(5, N)
    dones[1, 0] = dones[3, 2] = 1
    padded, masks = split_and_pad_trajectories(obs, dones)
    for kind in ("mlp", "cnn"):
        model = make(kind, "scalar").eval()
        want = torch.stack([model(obs[t]) for t in range(5)])
        torch.testing.assert_close(model(padded, masks), want)
        for mapping in (dict, MappingProxyType):
            torch.testing.assert_close(model(mapping(dict(padded.items())), masks), want)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_sequences_without_masks_start_from_the_state_that_is_given(kind):
    model = make(kind)
    model(observe())
    start, obs = model.get_hidden_state(), torch.stack([observe() for _ in range(5)])
    out = model(obs, hidden_state=start)
    assert out.shape == (5, N, A)
    torch.testing.assert_close(out, torch.stack([model(obs[t]) for t in range(5)]))
    model.reset()
    assert model.get_hidden_state() is None
    torch.testing.assert_close(model(obs)[0], model(obs[0]))


def test_a_rollout_in_inference_mode_can_be_gone_on_with_outside_of_it():
    model = make("gru", "scalar")
    with torch.inference_mode():
        model(observe(), stochastic_output=True)
    model.reset(torch.tensor([True, False, False, True]))
    model(observe(), stochastic_output=True)


def test_a_model_can_be_copied_in_the_middle_of_a_rollout():
    for kind in ("mlp", "gru", "lstm"):
        model, obs = make(kind, "scalar"), observe()
        model(obs, stochastic_output=True)
        twin = copy.deepcopy(model)
        torch.testing.assert_close(twin(obs), model(obs))
        twin.reset()
        assert (model.get_hidden_state() is None) == (kind == "mlp")


# ------------------------------------------------------------------ what clients build on it


class Squashed(GaussianDistribution):
    def deterministic_output(self, mlp_output: torch.Tensor) -> torch.Tensor:
        return mlp_output.tanh()


class WithCommand(MLPModel):
    """Adds a number to the latent through the hooks."""

    def get_latent(self, obs: Any, masks: Any = None, hidden_state: Any = None) -> torch.Tensor:
        return torch.cat([super().get_latent(obs, masks, hidden_state), obs["extra"][..., :1]], -1)

    def _get_latent_dim(self) -> int:
        return self.obs_dim + 1


class Pooled(nn.Module):
    """An encoder of a client's own."""

    def __init__(self, cnn: CNN) -> None:
        super().__init__()
        self.cnn, self.output_channels, self.output_dim = cnn, None, 2 * cnn.output_channels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = self.cnn(x)
        return torch.cat([maps.amax((-2, -1)), maps.mean((-2, -1))], -1)


class PooledCNNModel(CNNModel):
    """Makes its encoders in place of its parent, from what `_get_obs_dim` keeps."""

    def __init__(
        self, obs: Any, obs_groups: Any, obs_set: str, *args: Any, cnn_cfg: Any, **kwargs: Any
    ) -> None:
        self._get_obs_dim(obs, obs_groups, obs_set)
        shapes = zip(self.obs_groups_2d, self.obs_dims_2d, self.obs_channels_2d, strict=True)
        cnns = {g: Pooled(CNN(size, c, **cnn_cfg, flatten=False)) for g, size, c in shapes}
        self.cnn_latent_dim = sum(cnn.output_dim for cnn in cnns.values())
        MLPModel.__init__(self, obs, obs_groups, obs_set, *args, **kwargs)
        self.cnns = nn.ModuleDict(cnns)


def test_a_clients_distribution_and_hooks_are_used():
    obs = observe()
    model = WithCommand(obs, GROUPS, "actor", A, [8], distribution_cfg={"class_name": Squashed})
    assert model.mlp[0].in_features == model.obs_dim + 1
    torch.testing.assert_close(model(obs), model.mlp(model.get_latent(obs)).tanh())


def test_a_clients_encoder_is_used():
    model = PooledCNNModel(observe(), GROUPS, "images", A, [8], cnn_cfg=CNN_CFG)
    obs = observe()
    assert model.mlp[0].in_features == 6 + 2 * 2 * 6
    exported = model.eval().as_onnx()
    assert exported.input_names == ["obs", "camera", "wide"]
    assert [x.shape for x in exported.get_dummy_inputs(N)] == [
        obs[g].shape for g in ("policy", "camera", "wide")
    ]
    torch.testing.assert_close(exported(obs["policy"], obs["camera"], obs["wide"]), model(obs))


class Counter(nn.Identity):
    count = 0

    def update(self, x: torch.Tensor) -> None:
        self.count += len(x)


def test_a_clients_normaliser_is_updated():
    model = make("mlp")
    model.obs_normalizer = Counter()
    model.warm_up(observe())
    model.update_normalization(observe(9))
    assert model.obs_normalizer.count == 9


def test_the_callers_configuration_is_not_changed():
    config = {"class_name": "GaussianDistribution", "init_std": 0.5}
    make("mlp").__class__(observe(), GROUPS, "actor", A, distribution_cfg=config)
    assert config == {"class_name": "GaussianDistribution", "init_std": 0.5}


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: MLPModel(observe(), {"actor": ["polcy"]}, "actor", A), "'polcy'.*Did you mean 'policy'"),
        (lambda: MLPModel(observe(), {"actor": ["policy"]}, "critic", A), "no set 'critic'"),
        (lambda: MLPModel(observe(), {"actor": ["camera"]}, "actor", A), r"'camera'.*\(4, 3, 12, 10\)"),
        (lambda: make("cnn", cnn_cfg=None), "needs cnn_cfg"),
        (lambda: make("cnn", cnn_cfg={"camera": CNN_CFG}), "images are camera, wide"),
        (lambda: make("cnn", cnns=make("pictures only").cnns), "share CNNs only"),
        (lambda: make("cnn", cnn_cfg={**CNN_CFG, "flatten": False}), "flatten: true"),
        (lambda: CNNModel(observe(), GROUPS, "actor", A, cnn_cfg=CNN_CFG), "use an MLPModel"),
        (lambda: CNNModel({"a": torch.zeros(2, 3, 4)}, {"x": ["a"]}, "x", A), r"\(2, 3, 4\)"),
        (lambda: make("gru", rnn_type="grü"), "rnn_type 'grü'"),
        (lambda: make("mlp", activation="eluu"), "Did you mean 'elu'"),
    ],
)
def test_what_does_not_fit_is_named(build, match):
    with pytest.raises(ConfigError, match=match) as error:
        build()
    assert isinstance(error.value, ValueError)  # as RSL-RL raises
    assert not str(error.value).startswith(("'", '"'))


def test_g07_a_missing_group_is_a_key_error_too():
    with pytest.raises(KeyError, match="observes only: policy, extra, camera, wide"):
        MLPModel(observe(), {"teacher": ["teacher"]}, "teacher", A)
