"""Symmetry: mirrored rows and sequences, the mirror loss, and mirrors that are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.extension import Extension
from surefoot.algorithm.ppo import PPO
from surefoot.config import build_config, build_extensions
from surefoot.errors import ConfigError
from surefoot.extensions.auxiliary import AuxiliaryPrediction
from surefoot.extensions.symmetry import Symmetry
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import ActorConfig, CnnConfig, CriticConfig, DistributionConfig
from surefoot.testing import check_extension
from surefoot.types import Batch, EnvSpec, MirrorMap, Observations, Step

# two legs of hip and knee, the sideways velocity; the environment calls its groups as it likes
ROBOT = MirrorMap(
    {
        "proprio": (torch.tensor([2, 3, 0, 1, 4]), torch.tensor([-1.0, 1.0, -1.0, 1.0, -1.0])),
        "height_scan": (torch.tensor([2, 1, 0]), torch.ones(3)),
    },
    (torch.tensor([2, 3, 0, 1]), torch.tensor([-1.0, 1.0, -1.0, 1.0])),
)
BOTH = {"use_data_augmentation": True, "use_mirror_loss": True}
N, T = 6, 8


def box(*shape: int, bound: float = np.inf) -> spaces.Box:
    return spaces.Box(-bound, bound, shape, np.float32)


def front_back(
    observations: Observations | None, actions: Tensor | None
) -> tuple[Observations | None, Tensor | None]:
    """A second symmetry of the robot: hips and knees change places, whatever that may be."""
    order = torch.tensor([1, 0, 3, 2])

    def swap(x: Tensor) -> Tensor:
        return torch.cat([x[..., order], x[..., 4:]], -1)

    images = observations and {g: swap(x) if g == "proprio" else x for g, x in observations.items()}
    return images, None if actions is None else actions[..., order]


def build(
    *extensions: Extension,
    mirror: MirrorMap | None = ROBOT,
    groups: dict[str, spaces.Space[Any]] | None = None,
    actions: spaces.Space[Any] | None = None,
    actor: dict[str, Any] | None = None,
    critic: dict[str, Any] | None = None,
    network: Any = "separate",
    critic_reads: list[str] | None = None,
    **config: Any,
) -> PPO:
    torch.manual_seed(0)
    spec = EnvSpec(
        groups or {"proprio": box(5), "height_scan": box(3)},
        actions or box(4, bound=1.0),
        num_envs=N,
        mirror=mirror,
    )
    reads = critic_reads or ["proprio", "height_scan"][: 1 if network == "shared" else 2]
    obs_groups = {"actor": ["proprio"], "critic": reads} if "proprio" in spec.observation_spaces else None
    sizes: dict[str, Any] = {"hidden_dims": [8], "obs_normalization": True}
    actor_config = ActorConfig(**{**sizes, "last_layer_gain": 1.0, **(actor or {})})
    critic_config = CriticConfig(**sizes, **(critic or {}))
    policy = ActorCritic(spec, actor_config, critic_config, obs_groups, network=network)
    settings = {"num_learning_epochs": 2, "num_mini_batches": 2, "max_grad_norm": 10.0} | config
    return PPO(policy, spec, PPOConfig(**settings), num_steps_per_env=T, extensions=extensions)


def observe(ppo: PPO, generator: torch.Generator) -> dict[str, Tensor]:
    def rows(space: spaces.Space[Any]) -> Tensor:
        if isinstance(space, spaces.Box) and space.dtype == np.uint8:
            return torch.randint(0, 256, (N, *space.shape), generator=generator, dtype=torch.uint8)
        return torch.randn(N, *(space.shape or ()), generator=generator)

    return {g: rows(s) for g, s in ppo.spec.observation_spaces.items()}


def collect(ppo: PPO, seed: int = 0, end: float = 0.1) -> None:
    """A rollout of noise, with episodes that end, and its returns."""
    generator = torch.Generator().manual_seed(seed)
    obs = observe(ppo, generator)
    for _ in range(T):
        actions = ppo.act(obs)
        obs = observe(ppo, generator)
        dice = torch.rand(N, generator=generator)
        reward = -actions.reshape(N, -1).float().square().sum(-1)
        ppo.process_env_step(Step(obs, reward, dice < end, dice > 1 - end))
    ppo.compute_returns(obs)


def batches(ppo: PPO) -> list[Batch]:
    storage = ppo.storage
    make = storage.recurrent_mini_batch_generator if ppo.policy.is_recurrent else storage.mini_batch_generator
    return list(make(2, generator=torch.Generator().manual_seed(0)))


# ---------------------------------------------------------------------- the contract


def test_it_keeps_the_contract_of_extensions_with_the_loss_alone() -> None:
    check_extension(Symmetry, two_processes=False, use_mirror_loss=True)


def test_it_keeps_the_contract_of_extensions() -> None:
    check_extension(Symmetry, **BOTH)


# ---------------------------------------------------------------------- mirrored rows


def test_a_mirrored_row_has_the_image_and_everything_else_from_its_source() -> None:
    symmetry = Symmetry(use_data_augmentation=True)
    ppo = build(symmetry)
    collect(ppo)
    for batch in batches(ppo):
        n, grown = batch.num_sampled, symmetry.augment(batch, ppo.policy)
        assert grown.index.shape == (2 * n,)
        images = ROBOT.mirror_observations(dict(batch.observations))
        for group, image in images.items():
            torch.testing.assert_close(grown.observations[group][n:], image)
        torch.testing.assert_close(grown.actions[n:], ROBOT.mirror_actions(batch.actions))
        for name in ("old_log_prob", "old_value", "advantage", "returns", "index"):
            assert torch.equal(getattr(grown, name)[n:], getattr(batch, name)), name


def test_the_old_gaussian_of_a_mirrored_row_is_the_image_of_its_sources() -> None:
    symmetry = Symmetry(use_data_augmentation=True)
    ppo = build(symmetry, actor={"distribution": DistributionConfig(std_type="state_dependent")})
    collect(ppo)
    batch = batches(ppo)[0]
    old = symmetry.augment(batch, ppo.policy).old_distribution
    n = batch.num_sampled
    torch.testing.assert_close(old["mean"][n:], ROBOT.mirror_actions(old["mean"][:n]))
    torch.testing.assert_close(old["std"][n:], old["std"][:n][:, ROBOT.actions[0]])


def test_each_symmetry_adds_its_own_rows() -> None:
    symmetry = Symmetry(mirror=[None, front_back, [None, front_back]], use_data_augmentation=True)
    ppo = build(symmetry)
    collect(ppo)
    batch = batches(ppo)[0]
    n, grown = batch.num_sampled, symmetry.augment(batch, ppo.policy)
    left = ROBOT.mirror_actions(batch.actions)
    parts = [batch.actions, left, batch.actions[:, [1, 0, 3, 2]], left[:, [1, 0, 3, 2]]]
    torch.testing.assert_close(grown.actions, torch.cat(parts))
    assert grown.index.shape == (4 * n,)
    assert torch.equal(grown.advantage, batch.advantage.repeat(4))


def test_kl_entropy_and_clip_fraction_are_those_of_the_original_rows() -> None:
    names = ("Loss/kl", "Loss/entropy", "Loss/clip_fraction")
    plain, mirrored = (
        build(*e, num_learning_epochs=1, num_mini_batches=1)
        for e in ([], [Symmetry(use_data_augmentation=True)])
    )
    results = []
    for ppo in (plain, mirrored):
        collect(ppo)
        results.append(ppo.update())
    for name in names:  # of the first mini-batch, where the policies are the same
        torch.testing.assert_close(results[0][name], results[1][name], msg=name)
    assert results[0]["Loss/surrogate"] != results[1]["Loss/surrogate"]


def test_s01_any_group_name_trains_with_augmentation() -> None:
    ppo = build(Symmetry(**BOTH))
    assert set(ppo.storage.observations) == {"proprio", "height_scan"}
    collect(ppo)
    assert all(x.isfinite().all() for x in ppo.update().values())


# ---------------------------------------------------------------------- recurrent policies


def mirrored_rollout_log_probs(ppo: PPO) -> Tensor:
    """[T, N] of mirrored actions under the actor, step by step through the mirrored rollout."""
    rollout, policy = ppo.storage, ppo.policy
    hidden = policy.initial_hidden(N)
    log_probs = []
    for t in range(T):
        obs = {g: x[t] for g, x in rollout.observations.items()}
        begins = rollout.is_first[t].unsqueeze(-1)
        hidden = {k: torch.where(begins, 0.0, h) for k, h in hidden.items()}
        inputs = policy.inputs(ROBOT.mirror_observations(obs))
        distribution, hidden = policy.advance(inputs, hidden)
        log_probs.append(distribution.log_prob(ROBOT.mirror_actions(rollout.actions[t])))
    return torch.stack(log_probs)


@pytest.mark.parametrize("rnn_type", ["gru", "lstm"])
@pytest.mark.parametrize("config", [{}, {"sequence_length": 3}, {"sequence_length": 2, "burn_in": 3}])
def test_s01_mirrored_sequences_are_replayed_from_their_own_memory(
    rnn_type: Any, config: dict[str, int]
) -> None:
    symmetry = Symmetry(use_data_augmentation=True)
    ppo = build(symmetry, actor={"rnn_type": rnn_type, "rnn_hidden_dim": 5}, **config)
    collect(ppo)
    expected = mirrored_rollout_log_probs(ppo).flatten()
    num_rows = 0
    for batch in batches(ppo):
        grown = symmetry.augment(batch, ppo.policy)
        length, n = batch.index.shape
        assert grown.index.shape == (length, 2 * n)
        assert grown.mask is not None
        assert grown.hidden["actor"].shape[0] == 2 * n
        out = ppo.policy(grown.observations, grown.actions, grown.hidden)
        rows, image = grown.mask[:, n:], out.log_prob[:, n:]
        torch.testing.assert_close(image[rows], expected[grown.index[:, n:]][rows], atol=1e-5, rtol=1e-5)
        num_rows += int(rows.sum())
    assert num_rows == N * T  # every row, mirrored, once


def test_the_memory_in_the_mirror_goes_on_from_rollout_to_rollout() -> None:
    symmetry = Symmetry(use_data_augmentation=True)
    ppo = build(symmetry, actor={"rnn_type": "gru", "rnn_hidden_dim": 5})
    collect(ppo, end=0.0)
    hidden = symmetry.actor_0.clone()
    assert hidden.abs().sum() > 0
    ppo.storage.begin()
    collect(ppo, seed=1, end=0.0)
    torch.testing.assert_close(symmetry.kept[0]["actor"][0], hidden)


def test_a_recurrent_critic_has_its_own_memory_in_the_mirror() -> None:
    symmetry = Symmetry(use_data_augmentation=True)
    ppo = build(symmetry, critic={"rnn_type": "gru", "rnn_hidden_dim": 5}, sequence_length=4)
    collect(ppo)
    batch = symmetry.augment(batches(ppo)[0], ppo.policy)
    n = batch.num_sampled
    assert set(batch.hidden) == {"critic"}
    goes_on = batch.hidden["critic"][:n].abs().sum(-1) > 0
    assert goes_on.any()
    assert not torch.isclose(batch.hidden["critic"][n:], batch.hidden["critic"][:n])[goes_on].all()


@pytest.mark.parametrize("network", ["separate", "shared"])
@pytest.mark.parametrize("arguments", [BOTH, {"use_mirror_loss": True}])
def test_s01_recurrent_policies_learn_with_it(network: Any, arguments: dict[str, bool]) -> None:
    symmetry = Symmetry(**arguments)
    ppo = build(symmetry, network=network, actor={"rnn_type": "gru", "rnn_hidden_dim": 5})
    for seed in range(2):
        collect(ppo, seed)
        metrics = ppo.update()
    assert metrics["Symmetry/mirror_loss"] > 0
    assert all(x.isfinite().all() for x in metrics.values())


# ---------------------------------------------------------------------- the mirror loss


def losses(ppo: PPO, symmetry: Symmetry) -> tuple[Batch, Tensor, Tensor]:
    """A mini-batch as PPO sees it, PPO's own loss on it, and the mirror loss."""
    collect(ppo)
    ppo._apply_schedules()
    batch = ppo._augment(batches(ppo)[0])
    out = ppo.policy.evaluate(batch.inputs, batch.actions, hidden=batch.hidden)
    terms = symmetry.loss(batch, out, ppo.policy)
    error, loss = terms["Symmetry/error"], terms["Symmetry/mirror_loss"]
    assert not error.requires_grad, "it is added to PPO's loss too, and must not be learned from"
    torch.testing.assert_close(symmetry.mirror_loss_coeff * error, loss.detach())
    return batch, ppo._loss(batch, out)[0], loss


@pytest.mark.parametrize("rows", [True, False])
def test_the_mirror_loss_is_the_squared_difference_of_means(rows: bool) -> None:
    symmetry = Symmetry(rows, use_mirror_loss=True, mirror_loss_coeff=3.0)
    ppo = build(symmetry)
    batch, _, loss = losses(ppo, symmetry)
    obs = {g: batch.sampled(x) for g, x in batch.observations.items()}
    with torch.no_grad():
        means = [
            ppo.policy.action_distribution(ppo.policy.inputs(o)).mode()
            for o in (obs, ROBOT.mirror_observations(obs))
        ]
    expected = 3.0 * torch.nn.functional.mse_loss(means[1], ROBOT.mirror_actions(means[0]))
    torch.testing.assert_close(loss.detach(), expected)


def test_only_the_policy_in_the_mirror_is_moved_by_the_loss() -> None:
    symmetry = Symmetry(use_mirror_loss=True)
    ppo = build(symmetry)
    _, _, loss = losses(ppo, symmetry)
    gradient = torch.autograd.grad(loss, ppo.policy.action_head.linear.bias)[0]
    assert gradient.abs().sum() > 0
    # with one gradient through each side, those of sideways entries would double and of others cancel
    obs = ppo.storage.observations["proprio"][:T].flatten(0, 1)[batches(ppo)[0].index]
    image = ROBOT.mirror_observations({"proprio": obs})
    mean = ppo.policy.action_distribution(ppo.policy.inputs(image, ("actor",))).mode()
    target = ppo.policy.action_distribution(ppo.policy.inputs({"proprio": obs}, ("actor",))).mode()
    by_hand = 2 * (mean - ROBOT.mirror_actions(target)).mean(0) / 4
    torch.testing.assert_close(gradient, by_hand)


def symmetric(ppo: PPO) -> None:
    """Make a linear actor commute with the mirror: W = (W + M_a W M_o) / 2, b = (b + M_a b) / 2."""
    linear = ppo.policy.action_head.linear
    permutation, sign = ROBOT.observations["proprio"]
    with torch.no_grad():
        image = ROBOT.mirror_actions((linear.weight[:, permutation] * sign).t()).t()
        linear.weight.copy_((linear.weight + image) / 2)
        linear.bias.copy_((linear.bias + ROBOT.mirror_actions(linear.bias)) / 2)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_a_symmetric_policy_has_no_loss_and_mirrored_rows_only_make_its_gradient_symmetric(seed: int) -> None:
    symmetry = Symmetry(**BOTH)
    linear = {"hidden_dims": [], "obs_normalization": False}
    ppo, plain = build(symmetry, actor=linear), build(actor=linear)
    for p in (ppo, plain):
        torch.manual_seed(seed)
        p.policy.action_head.linear.weight.data.normal_()
        p.policy.action_head.linear.bias.data.normal_()
        symmetric(p)
    _, loss, mirror_loss = losses(ppo, symmetry)
    assert mirror_loss < 1e-10
    collect(plain)
    plain._apply_schedules()
    batch = batches(plain)[0]
    out = plain.policy.evaluate(batch.inputs, batch.actions)
    mine = torch.autograd.grad(loss, ppo.policy.action_head.linear.bias)[0]
    theirs = torch.autograd.grad(plain._loss(batch, out)[0], plain.policy.action_head.linear.bias)[0]
    torch.testing.assert_close(mine, (theirs + ROBOT.mirror_actions(theirs)) / 2, atol=1e-5, rtol=1e-4)


def test_the_loss_makes_the_policy_symmetric() -> None:
    symmetry = Symmetry(use_mirror_loss=True, mirror_loss_coeff=10.0)
    ppo = build(symmetry, learning_rate=0.01, schedule="fixed")
    errors = []
    for seed in range(15):
        collect(ppo, seed)
        errors.append(ppo.update()["Symmetry/error"])
    assert errors[-1] < 0.2 * errors[0]


def test_without_rows_or_loss_it_only_measures() -> None:
    results = []
    for extensions in ([], [Symmetry()]):
        ppo = build(*extensions)
        collect(ppo)
        metrics = ppo.update()
        results.append([p.clone() for p in ppo.policy.parameters()])
    assert metrics["Symmetry/error"] > 0
    assert "Symmetry/mirror_loss" not in metrics
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


# ---------------------------------------------------------------------- heads


def flip(
    observations: Observations | None, actions: Tensor | None
) -> tuple[Observations | None, Tensor | None]:
    """A cart-pole in the mirror."""
    images = observations and {
        g: x.flip(-1) if x.dtype == torch.bool else -x for g, x in observations.items()
    }
    return images, None if actions is None else 1 - actions


def masked(observations: Observations | None, actions: Tensor | None) -> Any:
    """Masks of allowed actions change sides too."""
    images = observations and {g: x.flip(-1) if g == "action_mask" else -x for g, x in observations.items()}
    return images, None if actions is None else 1 - actions


@pytest.mark.parametrize(
    "actions", [spaces.Discrete(2, start=3), spaces.MultiDiscrete([2, 2]), spaces.MultiBinary(3)]
)
def test_counted_actions_compare_log_probabilities(actions: spaces.Space[Any]) -> None:
    symmetry = Symmetry(**BOTH, mirror=flip)
    ppo = build(symmetry, groups={"policy": box(4)}, actions=actions)
    batch, _, loss = losses(ppo, symmetry)
    obs, sampled = batch.sampled(batch.observations["policy"]), batch.sampled(batch.actions)
    with torch.no_grad():
        own = ppo.policy({"policy": obs}, sampled).log_prob
        image = ppo.policy({"policy": -obs}, 1 - sampled).log_prob
    torch.testing.assert_close(loss.detach(), (image - own).square().mean())
    ppo.update()


def test_masks_of_actions_are_mirrored() -> None:
    symmetry = Symmetry(**BOTH, mirror=masked)
    mask = spaces.Box(0, 1, (2,), np.int8)
    ppo = build(symmetry, groups={"policy": box(4), "action_mask": mask}, actions=spaces.Discrete(2))
    generator = torch.Generator().manual_seed(0)
    obs = {"policy": torch.randn(N, 4, generator=generator), "action_mask": torch.tensor([[0, 1]] * N)}
    for _ in range(T):
        assert (ppo.act(obs) == 1).all()
        no = torch.zeros(N, dtype=torch.bool)
        ppo.process_env_step(Step(obs, torch.zeros(N), no, no))
    ppo.compute_returns(obs)
    batch = symmetry.augment(batches(ppo)[0], ppo.policy)
    n = batch.num_sampled
    assert (batch.actions[n:] == 0).all()
    assert torch.equal(batch.observations["action_mask"][n:].long(), torch.tensor([[1, 0]] * n))
    assert all(x.isfinite().all() for x in ppo.update().values())


@pytest.mark.parametrize("name", ["Gaussian", "SquashedGaussian", "Beta"])
def test_every_continuous_head_trains(name: Any) -> None:
    ppo = build(Symmetry(**BOTH), actor={"distribution": DistributionConfig(name)})
    collect(ppo)
    metrics = ppo.update()
    assert metrics["Symmetry/mirror_loss"] > 0


def test_the_penalty_compares_mirrored_rows_with_the_mirrored_old_policy() -> None:
    ppo = build(Symmetry(use_data_augmentation=True), policy_objective="penalty", schedule="fixed")
    symmetric_head = {"hidden_dims": [], "obs_normalization": False}
    linear = build(
        Symmetry(use_data_augmentation=True),
        policy_objective="penalty",
        schedule="fixed",
        kl_beta=1e4,
        actor=symmetric_head,
    )
    symmetric(linear)
    collect(linear)
    batch = linear._augment(batches(linear)[0])
    out = linear.policy.evaluate(batch.inputs, batch.actions)
    kl = linear.policy.action_head.rebuild(batch.old_distribution).kl(out.distribution)
    assert kl.abs().max() < 1e-5  # nothing has moved, in the mirror neither
    collect(ppo)
    assert ppo.update()["Loss/kl"].isfinite()


def test_images_are_mirrored_by_a_function() -> None:
    def flip_image(observations: Observations | None, actions: Tensor | None) -> Any:
        images = observations and {g: x.flip(-2) for g, x in observations.items()}
        return images, None if actions is None else -actions

    camera = {"camera": spaces.Box(0, 255, (12, 12, 1), np.uint8)}
    cnn = CnnConfig(channels=[4], kernel_sizes=[3], strides=[2])
    arguments: dict[str, Any] = {
        "groups": camera,
        "actions": box(1, bound=1.0),
        "actor": {"cnn": cnn, "obs_normalization": False},
        "critic": {"cnn": "shared"},
    }
    symmetry = Symmetry(**BOTH, mirror=flip_image)
    ppo = build(symmetry, **arguments)
    collect(ppo)
    batch = symmetry.augment(batches(ppo)[0], ppo.policy)
    n = batch.num_sampled
    assert batch.observations["camera"].dtype == torch.uint8
    assert torch.equal(batch.observations["camera"][n:], batch.observations["camera"][:n].flip(-2))
    assert ppo.update()["Symmetry/mirror_loss"].isfinite()

    pixels = MirrorMap({"camera": (torch.tensor([0]), torch.ones(1))}, (torch.tensor([0]), -torch.ones(1)))
    with pytest.raises(ConfigError, match=r"'camera'.*function"):
        build(Symmetry(**BOTH), mirror=pixels, **arguments)


# ---------------------------------------------------------------------- wrong mirrors

SWAP = torch.tensor([1, 0, 2, 3, 4])
GOOD_ACTIONS = ROBOT.actions


def replaced(**groups: tuple[Tensor, Tensor]) -> MirrorMap:
    actions = groups.pop("actions", GOOD_ACTIONS)
    return MirrorMap({**ROBOT.observations, **groups}, actions)


@pytest.mark.parametrize(
    ("mirror", "message"),
    [
        (None, "no mirror map"),
        (MirrorMap({"proprio": ROBOT.observations["proprio"]}, GOOD_ACTIONS), "lacks.*'height_scan'"),
        (
            replaced(proprio=(torch.tensor([1, 2, 0, 3, 4]), torch.ones(5))),
            r"'proprio'.*inverse.*\[0, 1, 2\]",
        ),
        (
            replaced(proprio=(SWAP, torch.tensor([-1.0, 1, 1, 1, 1]))),
            r"'proprio'.*own inverse at entries \[0, 1\]",
        ),
        (
            replaced(height_scan=(torch.tensor([1, 0]), torch.ones(2))),
            "'height_scan' has 2 entries; expected 3",
        ),
        (replaced(proprio=(torch.tensor([0, 1, 2, 3, 7]), torch.ones(5))), r"outside.*\[4\]"),
        (replaced(actions=(torch.tensor([0, 1, 2]), torch.ones(3))), "actions has 3 entries; expected 4"),
        (replaced(actions=(torch.tensor([1, 2, 0, 3]), torch.ones(4))), r"actions.*inverse.*\[0, 1, 2\]"),
        (replaced(actions=(torch.arange(4), torch.tensor([2.0, 1, 1, 1]))), r"actions.*inverse.*\[0\]"),
    ],
)
def test_s02_a_map_that_is_no_mirror_is_refused_by_group_and_entries(
    mirror: MirrorMap | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build(Symmetry(**BOTH), mirror=mirror)


def wrong(change: Callable[[dict[str, Tensor] | None, Tensor | None], Any]) -> Callable[..., Any]:
    """The right function with its result changed."""

    def function(observations: Observations | None, actions: Tensor | None) -> Any:
        images = observations and ROBOT.mirror_observations(observations)
        return change(images, None if actions is None else ROBOT.mirror_actions(actions))

    return function


def per_group(change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    return wrong(lambda o, a: (o and {g: change(x) for g, x in o.items()}, a))


def doubles_batch(observations: Observations | None, actions: Tensor | None) -> Any:
    """As RSL-RL wants it: originals first, then images."""
    images = observations and {
        g: torch.cat([x, ROBOT.mirror_observations({g: x})[g]]) for g, x in observations.items()
    }
    return images, None if actions is None else torch.cat([actions, ROBOT.mirror_actions(actions)])


def in_place(observations: Observations | None, actions: Tensor | None) -> Any:
    for x in (observations or {}).values():
        x.neg_()
    return observations, None if actions is None else -actions


def last_row(observations: Observations | None, actions: Tensor | None) -> Any:
    images = observations and {g: x - 2 * x.mean(0) for g, x in observations.items()}
    return images, None if actions is None else -actions


@pytest.mark.parametrize(
    ("function", "message"),
    [
        # the originals instead of images
        (lambda o, a: (o, a), "changes neither"),
        (per_group(lambda x: x[..., torch.arange(x.shape[-1]).roll(1)]), r"twice.*'proprio'.*\[0, 1, 2"),
        (wrong(lambda o, a: (o, None if a is None else 2 * a)), r"twice.*actions entries \[0, 1, 2, 3\]"),
        (doubles_batch, r"'proprio' \(64, 5\).*\(128, 5\).*mirrored\s+rows only"),
        (per_group(lambda x: x.double()), "float64.*same shape"),
        (per_group(lambda x: x[..., :2]), r"\(64, 2\)"),
        # actions passed on as observations
        (wrong(lambda _, a: (a, a)), "given observations only and returned None"),
        (wrong(lambda o, a: (o or a, a)), "given actions only and returned observations"),
        (wrong(lambda o, _: (o, o)), "given observations only and returned actions"),
        (wrong(lambda o, _: o), "expected the tuple"),
        (wrong(lambda o, a: (o and {"proprio": o["proprio"]}, a)), r"leaves out.*\['height_scan'\]"),
        (in_place, "in place"),
        (last_row, "same rows"),
        (lambda o, a: ({g: x @ a for g, x in o.items()}, a), "raised TypeError.*None.*called with"),
    ],
)
def test_s02_a_function_that_does_not_mirror_is_refused(function: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(Symmetry(**BOTH, mirror=function))


def test_s02_a_right_function_and_a_right_map_are_accepted() -> None:
    build(Symmetry(**BOTH, mirror=wrong(lambda o, a: (o, a))))
    build(Symmetry(**BOTH))


def test_s02_bounds_of_actions_that_are_not_symmetric_show_a_wrong_sign_or_partner() -> None:
    bounds = spaces.Box(np.array([-1, 0, -1, 0], np.float32), np.array([1, 2, 1, 2], np.float32))
    build(Symmetry(**BOTH), actions=bounds)
    # knees move from 0 to 2: their sign cannot change, and a hip is no partner of a knee
    sign = MirrorMap(ROBOT.observations, (GOOD_ACTIONS[0], torch.tensor([-1.0, -1, -1, -1])))
    partner = MirrorMap(ROBOT.observations, (torch.tensor([1, 0, 3, 2]), torch.ones(4)))
    with pytest.raises(ConfigError, match=r"bounds of the action space.*\[1, 3\]"):
        build(Symmetry(**BOTH), actions=bounds, mirror=sign)
    with pytest.raises(ConfigError, match=r"bounds of the action space.*\[0, 1, 2, 3\]"):
        build(Symmetry(**BOTH), actions=bounds, mirror=partner)


def test_s02_bounds_of_observations_that_are_not_symmetric_show_a_wrong_sign() -> None:
    low, high = np.array([-1, 0, -1, 0, -1], np.float32), np.ones(5, np.float32)
    groups: Any = {"proprio": spaces.Box(low, high), "height_scan": box(3)}
    build(Symmetry(**BOTH), groups=groups)
    sign = replaced(proprio=(ROBOT.observations["proprio"][0], -torch.ones(5)))
    with pytest.raises(ConfigError, match=r"leaves the bounds.*'proprio' entries \[1, 3\]"):
        build(Symmetry(**BOTH), groups=groups, mirror=sign)


def test_a_counted_action_that_does_not_exist_is_found() -> None:
    def three(observations: Observations | None, actions: Tensor | None) -> Any:
        return observations and {
            g: -x for g, x in observations.items()
        }, None if actions is None else 3 - actions

    with pytest.raises(ConfigError, match=r"leaves the bounds.*actions"):
        build(Symmetry(**BOTH, mirror=three), groups={"policy": box(4)}, actions=spaces.Discrete(3))


def quarter_turn(observations: Observations | None, actions: Tensor | None) -> Any:
    def turn(x: Tensor) -> Tensor:
        return torch.cat([x[..., :4].roll(1, -1), x[..., 4:]], -1)

    return observations and {g: turn(x) for g, x in observations.items()}, None if actions is None else turn(
        actions
    )


def test_what_is_not_its_own_inverse_must_say_so() -> None:
    with pytest.raises(ConfigError, match="twice"):
        build(Symmetry(**BOTH, mirror=quarter_turn))
    turns = [{"mirror": quarter_turn, "involution": False}, [quarter_turn, quarter_turn]]
    ppo = build(Symmetry(**BOTH, mirror=turns))
    collect(ppo)
    assert ppo.update()["Symmetry/mirror_loss"].isfinite()


# ---------------------------------------------------------------------- the configuration


def test_a_configuration_switches_it_on_with_the_names_of_rsl_rl() -> None:
    path = f"{__name__}:quarter_turn"
    cfg = {**BOTH, "mirror_loss_coeff": 0.5, "mirror": [None, {"mirror": path, "involution": False}]}
    (symmetry,) = build_extensions(build_config({"algorithm": {"symmetry_cfg": cfg}}))
    assert isinstance(symmetry, Symmetry)
    assert symmetry.mirror_loss_coeff == 0.5
    build(symmetry)
    assert [m.is_involution for m in symmetry.mirrors] == [True, False]
    assert build_extensions(build_config({"algorithm": {"symmetry_cfg": None}})) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mirror_loss_coeff": -1.0}, "mirror_loss_coeff -1.0 must not be negative"),
        ({"mirror": []}, "empty list"),
        ({"mirror": "no_such_module:f"}, "no module 'no_such_module'"),
        ({"mirror": f"{__name__}:quarter_tun"}, "no 'quarter_tun'.*quarter_turn"),
        ({"mirror": "quarter_turn"}, "expected package.module:name"),
        ({"mirror": f"{__name__}:N"}, "is of type int; expected a function"),
        ({"mirror": [{"function": quarter_turn}]}, "expected mirror and involution"),
    ],
)
def test_what_cannot_be_built_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(Symmetry(**arguments))


def test_a_group_that_another_extension_reads_unmirrored_is_named() -> None:
    def without_scan(observations: Observations | None, actions: Tensor | None) -> Any:
        images = observations and ROBOT.mirror_observations({"proprio": observations["proprio"]})
        return images, None if actions is None else ROBOT.mirror_actions(actions)

    torch.manual_seed(0)
    ppo = build(
        Symmetry(**BOTH, mirror=without_scan), AuxiliaryPrediction("height_scan"), critic_reads=["proprio"]
    )
    with pytest.warns(UserWarning, match=r"leaves out.*\['height_scan'\]"):
        collect(ppo)
    ppo.update()
    ppo.storage.begin()
    collect(ppo)  # said once


def test_groups_that_only_other_extensions_read_are_mirrored_too() -> None:
    symmetry = Symmetry(use_data_augmentation=True)
    ppo = build(symmetry, AuxiliaryPrediction("height_scan"), critic_reads=["proprio"])
    collect(ppo)
    batch = symmetry.augment(batches(ppo)[0], ppo.policy)
    scan = batch.observations["height_scan"]
    torch.testing.assert_close(scan[batch.num_sampled :], batch.sampled(scan).flip(-1))
