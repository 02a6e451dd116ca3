"""Images: which groups are pictures, how they are encoded, and who shares the convolutions."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from surefoot.errors import ConfigError
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import ActorConfig, CnnConfig, CriticConfig, NetworkConfig
from surefoot.networks.images import ImageEncoder, ImageShape, image_shape
from surefoot.types import EnvSpec, MirrorMap

SMALL = CnnConfig([4, 6], [3, 3], [2, 2], 10)


def pixels(*shape: int) -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(0, 255, shape, np.uint8)


def floats(*shape: int) -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(-1.0, 1.0, shape)


def picture(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def shape_of(space: Any, cnn: Any = None) -> ImageShape | None:
    return image_shape(space, "camera", NetworkConfig(cnn=cnn))


def encoder(space: Any, cnn: Any = SMALL) -> ImageEncoder:
    shape = shape_of(space, cnn)
    assert shape is not None
    torch.manual_seed(0)
    return ImageEncoder(shape, "camera", NetworkConfig(cnn=cnn))


def build(
    groups: dict[str, Any],
    cnn: Any = SMALL,
    critic_cnn: Any = SMALL,
    obs_groups: dict[str, list[str]] | None = None,
    network: Any = "separate",
) -> ActorCritic:
    torch.manual_seed(0)
    actor = ActorConfig(hidden_dims=[8], cnn=cnn, last_layer_gain=1.0)
    critic = CriticConfig(hidden_dims=[8], cnn=critic_cnn)
    actions = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
    return ActorCritic(EnvSpec(groups, actions, num_envs=4), actor, critic, obs_groups, network)


# ---------------------------------------------------------------------- what is an image


@pytest.mark.parametrize(
    ("sides", "channels", "layout"),
    [
        ((3, 12, 16), 3, "first"),
        ((12, 16, 3), 3, "last"),
        ((12, 16, 1), 1, "last"),
        ((9, 10, 12), 9, "first"),
        ((4, 12, 12), 4, "first"),
        ((12, 16), 1, "none"),
        ((8, 8), 1, "none"),
    ],
)
def test_the_layout_is_told_from_the_sides(sides: tuple[int, ...], channels: int, layout: str) -> None:
    height, width = {"first": sides[1:], "last": sides[:2], "none": sides}[layout]
    assert shape_of(pixels(*sides)) == ImageShape(channels, height, width, layout, 1 / 255)


@pytest.mark.parametrize("sides", [(8, 8, 8), (12, 3, 12), (12, 12, 12)])
def test_an_image_whose_channels_cannot_be_told_is_refused_by_name(sides: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"'camera'.*cannot be told.*cnn to flat"):
        shape_of(pixels(*sides))
    assert shape_of(pixels(*sides), "flat") is None


def test_a_stack_of_colour_frames_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"'camera'.*\(4, 12, 12, 3\).*ReshapeObservation"):
        shape_of(pixels(4, 12, 12, 3))


@pytest.mark.parametrize(
    ("space", "cnn"),
    [
        (pixels(7, 20), None),
        (pixels(4, 4, 4), None),
        (pixels(7, 7, 3), None),
        (pixels(30), "impala"),
        (floats(3, 12, 12), None),
        (floats(12, 12), "impala"),
        (pixels(3, 12, 12), "flat"),
        (gymnasium.spaces.MultiBinary((12, 12)), "impala"),
    ],
)
def test_what_is_no_picture_is_a_vector(space: Any, cnn: Any) -> None:
    assert shape_of(space, cnn) is None


@pytest.mark.parametrize("cnn", ["nature", "impala", SMALL])
def test_an_image_of_numbers_counts_once_convolutions_are_asked_for(cnn: Any) -> None:
    assert shape_of(floats(3, 12, 16), cnn) == ImageShape(3, 12, 16, "first", 1.0)


def test_a_small_picture_counts_once_convolutions_are_asked_for() -> None:
    assert shape_of(pixels(5, 6, 3), SMALL) == ImageShape(3, 5, 6, "last", 1 / 255)


def test_a_table_enters_the_network_as_a_vector() -> None:
    policy = build({"table": pixels(2, 5)}, cnn=None, critic_cnn=None)
    assert policy.actor.layers[0].in_features == 10
    assert policy.act({"table": picture(4, 2, 5)}).shape == (4, 2)


def test_flat_pixels_enter_the_network_as_a_vector() -> None:
    policy = build({"camera": pixels(3, 12, 12)}, cnn="flat", critic_cnn="flat")
    assert policy.actor.layers[0].in_features == 3 * 12 * 12
    assert policy.act({"camera": picture(4, 3, 12, 12)}).shape == (4, 2)


# ---------------------------------------------------------------------- encoders


def test_nature_needs_pixels_and_says_what_to_use() -> None:
    with pytest.raises(ConfigError, match=r"'camera' is only 35 x 50 pixels.*cnn: impala"):
        encoder(pixels(3, 35, 50), "nature")
    assert encoder(pixels(3, 36, 36), "nature").num_features == 512


def test_convolutions_of_ones_own_that_leave_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'camera' is only 9 x 9 pixels.*smaller kernel_sizes"):
        encoder(pixels(9, 9), CnnConfig([4, 4], [5, 5], [2, 2]))


def test_without_a_choice_a_picture_too_small_for_nature_gets_two_small_layers() -> None:
    small, large = encoder(pixels(30, 30), None), encoder(pixels(36, 36), None)
    assert small.num_features == CnnConfig().features
    assert [m.stride for m in small.modules() if isinstance(m, nn.Conv2d)] == [(2, 2), (2, 2)]
    assert large.num_features == 512


@pytest.mark.parametrize("cnn", ["impala", "nature", SMALL])
def test_channels_first_and_last_of_one_picture_are_encoded_alike(cnn: Any) -> None:
    first, last = encoder(pixels(3, 36, 40), cnn), encoder(pixels(36, 40, 3), cnn)
    last.load_state_dict(first.state_dict())
    x = picture(2, 3, 36, 40)
    with torch.no_grad():
        torch.testing.assert_close(first(x), last(x.permute(0, 2, 3, 1)))
        # neither sees the picture turned
        assert not torch.allclose(first(x), first(x.flip(-1)))


def test_a_grey_picture_is_one_channel() -> None:
    none, first = encoder(pixels(12, 16)), encoder(pixels(1, 12, 16))
    first.load_state_dict(none.state_dict())
    x = picture(2, 12, 16)
    assert torch.equal(none(x), first(x.unsqueeze(1)))


def test_bytes_are_scaled_to_one() -> None:
    bytewise, numbers = encoder(pixels(3, 12, 16)), encoder(floats(3, 12, 16))
    numbers.load_state_dict(bytewise.state_dict())
    x = picture(2, 3, 12, 16)
    torch.testing.assert_close(bytewise(x), numbers(x / 255))


@pytest.mark.parametrize("sides", [(3, 12, 16), (12, 16, 3), (12, 16)])
@pytest.mark.parametrize("lead", [(), (5,), (2, 5), (0, 5)])
def test_pictures_are_encoded_over_any_leading_shape(sides: tuple[int, ...], lead: tuple[int, ...]) -> None:
    part = encoder(pixels(*sides))
    x = picture(*lead, *sides)
    with torch.no_grad():
        features = part(x)
        assert features.shape == (*lead, 10)
        each = [part(single) for single in x.reshape(-1, *sides)]
    for row, expected in zip(features.reshape(-1, 10), each, strict=True):
        torch.testing.assert_close(row, expected)


def test_convolutions_of_ones_own_have_the_sizes_asked_for() -> None:
    part = encoder(pixels(3, 20, 20), CnnConfig([4, 6, 8], [5, 3, 2], [2, 1, 2], 11))
    layers = [m for m in part.modules() if isinstance(m, nn.Conv2d)]
    assert [m.out_channels for m in layers] == [4, 6, 8]
    assert [m.kernel_size for m in layers] == [(5, 5), (3, 3), (2, 2)]
    assert [m.stride for m in layers] == [(2, 2), (1, 1), (2, 2)]
    # sides: (20 - 5)/2 + 1 = 8, then 6, then 3
    assert part.linear.in_features == 8 * 3 * 3
    assert part(picture(2, 3, 20, 20)).shape == (2, 11)


@pytest.mark.parametrize("sizes", [([], [], []), ([4], [3, 3], [2, 2]), ([4, 4], [3, 3], [2])])
def test_convolutions_with_uneven_lists_are_refused(sizes: tuple[list[int], ...]) -> None:
    with pytest.raises(ConfigError, match="must have one entry for each layer"):
        CnnConfig(*sizes)


def test_a_float64_encoder_stays_float64() -> None:
    assert encoder(pixels(12, 16)).double()(picture(2, 12, 16)).dtype == torch.float64


# ---------------------------------------------------------------------- in a policy


@pytest.mark.parametrize("sides", [(3, 12, 16), (12, 16, 3), (12, 16)])
@pytest.mark.parametrize("cnn", [None, "impala", SMALL])
def test_a_policy_acts_on_pictures(sides: tuple[int, ...], cnn: Any) -> None:
    policy = build({"camera": pixels(*sides)}, cnn, cnn)
    obs, other = ({"camera": picture(4, *sides, seed=s)} for s in (0, 1))
    actions = policy.act(obs)
    assert actions.shape == (4, 2)
    assert not torch.equal(actions, policy.act(other))
    assert not torch.equal(policy.value(obs), policy.value(other))


def test_a_rollout_of_pictures_is_evaluated_as_each_of_them() -> None:
    policy = build({"camera": pixels(12, 16, 3)})
    x = picture(3, 4, 12, 16, 3)
    with torch.no_grad():
        torch.testing.assert_close(policy.value({"camera": x})[2], policy.value({"camera": x[2]}))
        out = policy({"camera": x}, torch.zeros(3, 4, 2))
    assert out.log_prob.shape == out.value.shape == (3, 4)


def test_pictures_and_vectors_are_fused() -> None:
    policy = build({"camera": pixels(12, 16, 3), "joints": floats(5)})
    assert policy.actor.layers[0].in_features == 5 + 10
    obs = {"camera": picture(4, 12, 16, 3), "joints": torch.randn(4, 5)}
    actions = policy.act(obs)
    assert not torch.equal(actions, policy.act(obs | {"camera": picture(4, 12, 16, 3, seed=1)}))
    assert not torch.equal(actions, policy.act(obs | {"joints": torch.randn(4, 5)}))


def test_several_pictures_have_an_encoder_each() -> None:
    policy = build({"left.eye": pixels(12, 16, 3), "right.eye": pixels(10, 10)})
    obs = {"left.eye": picture(4, 12, 16, 3), "right.eye": picture(4, 10, 10)}
    assert policy.actor.layers[0].in_features == 10 + 10
    actions = policy.act(obs)
    assert not torch.equal(actions, policy.act(obs | {"right.eye": picture(4, 10, 10, seed=1)}))
    assert not torch.equal(actions, policy.act(obs | {"left.eye": picture(4, 12, 16, 3, seed=1)}))


def test_pictures_are_not_normalised_but_vectors_beside_them_are() -> None:
    torch.manual_seed(0)
    groups = {"camera": pixels(12, 16), "joints": floats(5)}
    config = ActorConfig(hidden_dims=[8], cnn=SMALL, obs_normalization=True)
    policy = ActorCritic(EnvSpec(groups, floats(2), 4), config, CriticConfig(hidden_dims=[8], cnn=SMALL))
    obs = {"camera": picture(50, 12, 16), "joints": 7 + torch.randn(50, 5)}
    policy.inputs.update(obs)
    inputs = policy.inputs(obs)
    assert inputs["actor"].mean().abs().item() < 0.1
    assert torch.equal(inputs["pixels.camera"], obs["camera"])


def test_where_all_groups_are_pictures_there_is_nothing_to_normalise() -> None:
    config = ActorConfig(hidden_dims=[8], cnn=SMALL, obs_normalization=True)
    spec = EnvSpec({"camera": pixels(12, 16)}, floats(2), num_envs=4)
    policy = ActorCritic(spec, config, CriticConfig(hidden_dims=[8], cnn=SMALL, obs_normalization=True))
    assert len(policy.inputs.normalizers) == 0
    obs = {"camera": picture(4, 12, 16)}
    before = policy.act(obs)
    policy.inputs.update(obs)
    assert torch.equal(policy.act(obs), before)


# ---------------------------------------------------------------------- shared convolutions


def test_separate_networks_have_separate_convolutions() -> None:
    policy = build({"camera": pixels(12, 16)})
    actor, critic = ({id(p) for p in segment} for segment in policy.segments().values())
    assert not actor & critic
    assert policy.actor.images[0] is not policy.critic.images[0]


def test_a_critic_may_share_the_actors_convolutions() -> None:
    policy = build({"camera": pixels(12, 16), "joints": floats(5)}, critic_cnn="shared")
    assert policy.actor.images[0] is policy.critic.images[0]
    segments = policy.segments()
    assert list(segments) == ["actor"]
    ids = [id(p) for p in segments["actor"]]
    assert len(ids) == len(set(ids))
    assert set(ids) == {id(p) for p in policy.parameters()}
    # the layers above remain two
    assert policy.actor.layers[0] is not policy.critic.layers[0]


def test_shared_convolutions_learn_from_both_networks() -> None:
    policy = build({"camera": pixels(12, 16)}, critic_cnn="shared")
    weight = policy.actor.images[0].linear.weight
    out = policy({"camera": picture(4, 12, 16)}, torch.ones(4, 2))
    for part in (out.log_prob, out.value):
        (gradient,) = torch.autograd.grad(part.sum(), weight, retain_graph=True)
        assert gradient.abs().sum() > 0


def test_without_pictures_there_is_nothing_to_share() -> None:
    assert list(build({"joints": floats(5)}, critic_cnn="shared").segments()) == ["actor", "critic"]


def test_sharing_needs_the_same_pictures() -> None:
    groups = {"left": pixels(12, 16), "right": pixels(12, 16)}
    with pytest.raises(ConfigError, match=r"'shared'.*same image groups.*\['left'\].*\['left', 'right'\]"):
        build(groups, critic_cnn="shared", obs_groups={"actor": ["left"], "critic": ["left", "right"]})


def test_an_actor_has_nobody_to_share_with() -> None:
    with pytest.raises(ConfigError, match="'shared' is for the critic"):
        ActorConfig(cnn="shared")


def test_a_shared_trunk_sees_pictures() -> None:
    policy = build({"camera": pixels(12, 16)}, critic_cnn=None, network="shared")
    out = policy({"camera": picture(4, 12, 16)}, torch.zeros(4, 2))
    (gradient,) = torch.autograd.grad(out.value.sum(), policy.actor.images[0].linear.weight)
    assert gradient.abs().sum() > 0


def test_an_image_group_may_have_any_name() -> None:
    policy = build({"cam/left.rgb": pixels(12, 16)})
    assert policy.act({"cam/left.rgb": torch.zeros(4, 12, 16, dtype=torch.uint8)}).shape == (4, 2)


def test_a_mirrored_actor_with_images_is_refused() -> None:
    swap = (torch.tensor([1, 0]), torch.ones(2))
    spec = EnvSpec(
        {"policy": floats(2), "camera": pixels(12, 16)},
        floats(2),
        4,
        mirror=MirrorMap({"policy": swap}, swap),
    )
    groups = {"actor": ["policy", "camera"], "critic": ["policy"]}
    with pytest.raises(ConfigError, match=r"actor.mirror cannot mirror.*camera"):
        ActorCritic(spec, ActorConfig(mirror=True, cnn=SMALL), obs_groups=groups)
