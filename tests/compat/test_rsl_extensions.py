"""RSL-RL's RND and symmetry over Surefoot's: configurations, checkpoints, clients' functions, defects."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

pytest.importorskip("tensordict")

from tensordict import TensorDict

from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.ppo import PPO
from surefoot.compat.rsl_rl.extensions import (
    RandomNetworkDistillation,
    Symmetry,
    resolve_rnd_config,
    resolve_symmetry_config,
)
from surefoot.compat.rsl_rl.extensions.rnd import DistanceRND
from surefoot.compat.rsl_rl.extensions.symmetry import ClientSymmetry, Images
from surefoot.compat.rsl_rl.runners import OnPolicyRunner
from surefoot.compat.rsl_rl.storage import RolloutStorage
from surefoot.errors import CheckpointError, ConfigError
from surefoot.extensions.symmetry import Symmetry as NativeSymmetry
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import ActorConfig, CriticConfig
from surefoot.testing import check_extension
from surefoot.types import EnvSpec, MirrorMap, Step

N, D, A = 6, 4, 2
SMALL: dict[str, Any] = {"num_outputs": 3, "predictor_hidden_dims": [8], "target_hidden_dims": [-1]}
SETS = {"actor": ["policy"], "critic": ["policy"], "rnd_state": ["policy", "extra"]}


def observations(seed: int = 0, scale: float = 1.0) -> TensorDict:
    draw = torch.Generator().manual_seed(seed)
    groups = {"policy": D, "extra": 2}
    return TensorDict(
        {g: scale * torch.randn(N, d, generator=draw) for g, d in groups.items()}, batch_size=[N]
    )


def make_rnd(**changes: Any) -> RandomNetworkDistillation:
    return RandomNetworkDistillation(
        **{"num_states": D + 2, "obs_groups": SETS, "weight": 1.0, **SMALL, **changes}
    )


def make_ppo(*extensions: Any, num_steps: int = 4, rnn_type: Any = None, **config: Any) -> PPO:
    torch.manual_seed(0)
    boxes: dict[str, Any] = {g: spaces.Box(-np.inf, np.inf, (d,)) for g, d in (("policy", D), ("extra", 2))}
    spec = EnvSpec(boxes, spaces.Box(-np.inf, np.inf, (A,)), num_envs=N)
    sizes: dict[str, Any] = {"hidden_dims": [8], "rnn_type": rnn_type, "rnn_hidden_dim": 4}
    policy = ActorCritic(
        spec,
        ActorConfig(**sizes, last_layer_gain=1.0),
        CriticConfig(**sizes),
        {"actor": ["policy"], "critic": ["policy"]},
    )
    settings = {"num_learning_epochs": 2, "num_mini_batches": 2} | config
    return PPO(policy, spec, PPOConfig(**settings), num_steps_per_env=num_steps, extensions=extensions)


def collect(
    ppo: PPO,
    following: Callable[[int], TensorDict],
    truncated: Tensor | None = None,
    final: TensorDict | None = None,
) -> None:
    """A rollout that begins at `following(0)`; environments where `truncated` [N] end with its first step."""
    obs = following(0)
    for t in range(ppo.storage.num_transitions_per_env):
        ppo.act(obs)
        obs = following(t + 1)
        no = torch.zeros(N, dtype=torch.bool)
        ends = no if truncated is None or t else truncated
        ppo.process_env_step(Step(obs, torch.zeros(N), no, ends, final))
    ppo.compute_returns(obs)


def negate(
    env: Any,  # noqa: ARG001
    obs: TensorDict | None,
    actions: Tensor | None,
) -> tuple[TensorDict | None, Tensor | None]:
    """A client's function with one symmetry."""
    images = None
    if obs is not None:
        images = torch.cat([obs, TensorDict({g: -x for g, x in obs.items()}, batch_size=obs.batch_size)])
    return images, None if actions is None else torch.cat([actions, -actions])


def quarter_turns(
    env: Any,  # noqa: ARG001
    obs: TensorDict | None,
    actions: Tensor | None,
) -> tuple[TensorDict | None, Tensor | None]:
    """A client's function with three symmetries, which writes into what it gets."""

    def turns(x: Tensor) -> Tensor:
        images = torch.cat([x.roll(k, -1) for k in range(4)])
        x.zero_()
        return images

    if obs is not None:
        obs = TensorDict({g: turns(x) for g, x in obs.items()}, batch_size=[4 * obs.batch_size[0]])
    return obs, None if actions is None else turns(actions)


# ---------------------------------------------------------------------- RND: its configuration


def rnd_weight(env: Any, **rnd_cfg: Any) -> float:
    resolved = resolve_rnd_config({"rnd_cfg": {"weight": 3.0, **rnd_cfg}}, observations(), SETS, env)
    return resolved["rnd_cfg"]["weight"]


def test_c12_rnd_weight_is_per_second_where_the_environment_says_how_long_a_step_is() -> None:
    assert rnd_weight(SimpleNamespace(unwrapped=SimpleNamespace(step_dt=0.5))) == 1.5
    assert rnd_weight(SimpleNamespace(step_dt=np.float32(0.5))) == 1.5
    assert rnd_weight(SimpleNamespace(cfg={"step_dt": 0.5})) == 1.5
    assert rnd_weight(SimpleNamespace(cfg=SimpleNamespace(step_dt=0.5))) == 1.5


def test_c12_rnd_needs_no_step_dt() -> None:
    with pytest.warns(UserWarning, match=r"rnd_cfg.weight counts per environment step"):
        assert rnd_weight(SimpleNamespace()) == 3.0


def test_the_resolved_configuration_builds_rnd_and_leaves_the_clients_alone() -> None:
    rnd_cfg = {"weight": 2.0, **SMALL}
    given = dict(rnd_cfg)
    alg_cfg = {"rnd_cfg": rnd_cfg, "num_learning_epochs": 7}
    resolved = resolve_rnd_config(alg_cfg, observations(), SETS, SimpleNamespace(step_dt=0.5))
    rnd = RandomNetworkDistillation(device="cpu", **resolved["rnd_cfg"])
    assert rnd_cfg == given
    assert (rnd.weight, rnd.num_states, rnd.extension.num_learning_epochs) == (1.0, D + 2, 7)
    assert rnd.get_rnd_state(observations()).shape == (N, D + 2)
    assert resolve_rnd_config({}, observations(), SETS, None)["rnd_cfg"] is None


def test_g07_a_missing_rnd_state_is_named() -> None:
    env = SimpleNamespace(step_dt=1.0)
    with pytest.raises(ConfigError, match=r"'rnd_state' in obs_groups, which has \['actor'\]"):
        resolve_rnd_config({"rnd_cfg": SMALL}, observations(), {"actor": ["policy"]}, env)
    with pytest.raises(
        ConfigError, match=r"'extr' of the set 'rnd_state'.*\['extra', 'policy'\].*Did you mean 'extra'"
    ):
        resolve_rnd_config({"rnd_cfg": SMALL}, observations(), {"rnd_state": ["extr"]}, env)
    with pytest.raises(ConfigError, match="'rnd_state'"):
        make_rnd(obs_groups={"actor": ["policy"]})


def test_rnd_reads_vectors_only() -> None:
    obs = TensorDict({"camera": torch.zeros(N, 3, 8, 8)}, batch_size=[N])
    with pytest.raises(ConfigError, match=r"'camera' has the shape \(6, 3, 8, 8\)"):
        resolve_rnd_config({"rnd_cfg": SMALL}, obs, {"rnd_state": ["camera"]}, SimpleNamespace(step_dt=1.0))


def test_groups_of_another_size_than_num_states_are_refused() -> None:
    with pytest.raises(ConfigError, match="have 6 numbers together, but num_states is 5"):
        make_ppo(make_rnd(num_states=5).extension)


# ---------------------------------------------------------------------- RND: its own methods


def test_the_bonus_is_the_weighted_distance_and_wears_off() -> None:
    rnd, obs = make_rnd(weight=0.5, learning_rate=1e-2), observations()
    state = torch.cat([obs["policy"], obs["extra"]], -1)
    expected = 0.5 * (rnd.predictor(state) - rnd.target(state)).norm(dim=-1)
    first = rnd.get_intrinsic_reward(obs)
    torch.testing.assert_close(first, expected.detach())
    frozen = [p.clone() for p in rnd.target.parameters()]
    for _ in range(100):
        rnd.optimizer.zero_grad()
        rnd.compute_loss(obs).backward()
        rnd.optimizer.step()
    assert rnd.get_intrinsic_reward(obs).mean() < 0.5 * first.mean()
    assert all(torch.equal(a, b) for a, b in zip(frozen, rnd.target.parameters(), strict=True))
    assert rnd.update_counter == 2


@pytest.mark.parametrize(
    ("schedule", "weights"),
    [
        ({"mode": "constant", "final_value": 9.0}, [1.0, 1.0, 1.0, 1.0, 1.0]),
        ({"mode": "step", "final_step": 3, "final_value": 0.1, "initial_step": 1}, [1.0, 1.0, 0.1, 0.1, 0.1]),
        (
            {"mode": "linear", "initial_step": 2, "final_step": 4, "final_value": 0.0},
            [1.0, 1.0, 0.5, 0.0, 0.0],
        ),
    ],
)
def test_weight_schedules_count_environment_steps(schedule: dict[str, Any], weights: list[float]) -> None:
    rnd, found = make_rnd(weight_schedule=schedule), []
    for _ in weights:
        rnd.get_intrinsic_reward(observations())
        found.append(rnd.weight)
    assert found == weights


def test_normalisers_scale_states_and_bonus() -> None:
    rnd = make_rnd(state_normalization=True, reward_normalization=True)
    large = observations(scale=100.0)
    raw = rnd.extension.normalize(rnd.get_rnd_state(large))
    rnd.update_normalization(large)
    assert raw.std() > 50
    assert 0.5 < rnd.extension.normalize(rnd.get_rnd_state(large)).std() < 1.5
    bonus = torch.stack([rnd.get_intrinsic_reward(observations(seed)) for seed in range(50)])
    # the discounted sum of a bonus of deviation s over many steps deviates by more than s
    assert bonus.isfinite().all()
    assert bonus[10:].std() < 1.0
    count = rnd.reward_normalizer.emp_norm.normalizer.count.clone()
    rnd.eval().get_intrinsic_reward(observations())
    assert rnd.reward_normalizer.emp_norm.normalizer.count == count


def test_a_forward_pass_is_refused() -> None:
    with pytest.raises(RuntimeError, match="get_intrinsic_reward"):
        make_rnd()(observations())


# ---------------------------------------------------------------------- RND: checkpoints of RSL-RL


BOTH_NORMALIZE: dict[str, Any] = {"state_normalization": True, "reward_normalization": True}


def trained(kind: Any) -> Any:
    torch.manual_seed(0)
    rnd = kind(num_states=D + 2, obs_groups=SETS, weight=1.0, **SMALL, **BOTH_NORMALIZE)
    for seed in range(4):
        rnd.get_intrinsic_reward(observations(seed))
        rnd.update_normalization(observations(seed, 3.0))
        rnd.optimizer.zero_grad()
        rnd.compute_loss(observations(seed)).backward()
        rnd.optimizer.step()
    return rnd


@pytest.mark.parametrize("leaving", [False, True])
def test_checkpoints_pass_between_rsl_rl_and_surefoot(leaving: bool) -> None:
    theirs = pytest.importorskip("rsl_rl.extensions").RandomNetworkDistillation
    kinds = (RandomNetworkDistillation, theirs) if leaving else (theirs, RandomNetworkDistillation)
    source, other = (
        trained(kinds[0]),
        kinds[1](num_states=D + 2, obs_groups=SETS, weight=1.0, **SMALL, **BOTH_NORMALIZE),
    )
    other.load_state_dict(source.state_dict(), strict=True)
    other.optimizer.load_state_dict(copy.deepcopy(source.optimizer.state_dict()))
    new = observations(9)
    torch.testing.assert_close(source.compute_loss(new), other.compute_loss(new))
    for rnd in (source, other):
        rnd.eval()
    torch.testing.assert_close(
        source.get_intrinsic_reward(new), other.get_intrinsic_reward(new), rtol=1e-3, atol=0
    )
    for rnd in (source, other):
        rnd.optimizer.zero_grad()
        rnd.compute_loss(new).backward()
        rnd.optimizer.step()
    torch.testing.assert_close([*source.predictor.parameters()], [*other.predictor.parameters()])


def test_a_checkpoint_of_another_width_is_refused() -> None:
    saved = make_rnd(state_normalization=True).state_dict()
    with pytest.raises(RuntimeError, match=r"state_normalizer._mean has the shape \(1, 6\).*\(1, 4\)"):
        make_rnd(
            num_states=4, obs_groups={"rnd_state": ["policy"]}, state_normalization=True
        ).load_state_dict(saved)


# ---------------------------------------------------------------------- RND: in the engine


class ToyRND(DistanceRND):
    """With the toy environment's group, for the contract suite."""

    def __init__(self) -> None:
        super().__init__(**SMALL, obs_groups=["policy"], state_normalization=True)
        self.activation_name = "elu"


def test_its_rnd_keeps_the_contract_of_extensions() -> None:
    check_extension(ToyRND, two_processes=False)


def test_c28_the_bonus_is_of_what_really_followed_and_none_where_that_is_not_known() -> None:
    ended = torch.zeros(N, dtype=torch.bool)
    ended[:2] = True
    for final in (observations(7), None):
        rnd = make_rnd()
        ppo = make_ppo(rnd.extension, num_steps=1)
        collect(ppo, observations, ended, final)
        rnd.eval()
        novelty = rnd.get_intrinsic_reward(observations(1) if final is None else final)
        at_ends = torch.zeros(2) if final is None else novelty[:2]
        torch.testing.assert_close(rnd.extension.bonus[0, :2], at_ends)
        torch.testing.assert_close(ppo.reward[0, 2:], rnd.get_intrinsic_reward(observations(1))[2:])


def test_c28_the_predictor_learns_what_the_bonus_was_for() -> None:
    rnd = make_rnd(num_learning_epochs=100, learning_rate=1e-2)
    ppo = make_ppo(rnd.extension, num_steps=1)
    before = [rnd.get_intrinsic_reward(observations(seed, 3.0)).mean() for seed in (0, 1)]
    collect(ppo, lambda t: observations(t, 3.0))
    ppo.update()
    started, followed = (rnd.get_intrinsic_reward(observations(seed, 3.0)).mean() for seed in (0, 1))
    assert followed < 0.3 * before[1]
    assert started > 2 * followed


def test_the_engine_counts_steps_and_schedules_the_weight() -> None:
    rnd = make_rnd(weight_schedule={"mode": "step", "final_step": 3, "final_value": 0.0})
    ppo = make_ppo(rnd.extension, num_steps=4)
    collect(ppo, observations)
    ppo.update()
    assert (rnd.extension.bonus[:3] > 0).all()
    assert (rnd.extension.bonus[3:] == 0).all()
    assert (rnd.update_counter, rnd.weight) == (4, 0.0)


# ---------------------------------------------------------------------- symmetry: its configuration


@pytest.mark.filterwarnings("error")
def test_a_symmetry_without_a_function_is_off() -> None:
    with pytest.warns(UserWarning, match="symmetry is off"):
        resolved = resolve_symmetry_config({"symmetry_cfg": {"data_augmentation_func": None}}, None)
    assert resolved["symmetry_cfg"] is None
    assert resolve_symmetry_config({}, None)["symmetry_cfg"] is None
    with pytest.warns(UserWarning, match="symmetry is off"):
        off = Symmetry(None, None, use_data_augmentation=True)
    ppo = make_ppo(off.extension)
    collect(ppo, observations)
    assert not [name for name in ppo.update() if name.startswith("Symmetry")]


def test_the_function_may_be_a_path_and_gets_the_environment() -> None:
    env, cfg = (
        SimpleNamespace(),
        {"data_augmentation_func": "test_rsl_extensions:negate", "use_mirror_loss": True},
    )
    resolved = resolve_symmetry_config({"symmetry_cfg": cfg}, env)
    assert "env" not in cfg
    symmetry = Symmetry(**resolved["symmetry_cfg"])
    assert symmetry.env is env
    assert symmetry.data_augmentation_func(env, None, torch.ones(1, 1))[1].tolist() == [[1.0], [-1.0]]


# ---------------------------------------------------------------------- symmetry: its own methods


def make_batch() -> RolloutStorage.Batch:
    rows = {n: torch.randn(N, 1) for n in ("values", "advantages", "returns", "old_actions_log_prob")}
    return RolloutStorage.Batch(observations=observations(), actions=torch.randn(N, A), **rows)


def test_augment_batch_appends_images_and_repeats_the_rest() -> None:
    batch, source = make_batch(), make_batch()
    source.__dict__.update(batch.__dict__)
    Symmetry(None, negate).augment_batch(batch, N)
    assert batch.__dict__ == source.__dict__
    Symmetry(None, negate, use_data_augmentation=True).augment_batch(batch, N)
    for group, x in source.observations.items():
        torch.testing.assert_close(batch.observations[group], torch.cat([x, -x]))
    torch.testing.assert_close(batch.actions, torch.cat([source.actions, -source.actions]))
    for name in ("values", "advantages", "returns", "old_actions_log_prob"):
        torch.testing.assert_close(getattr(batch, name), getattr(source, name).repeat(2, 1))


@pytest.mark.parametrize("augments", [False, True])
def test_compute_loss_is_the_distance_from_the_mirrored_mean(augments: bool) -> None:
    weight = torch.randn(D, A, requires_grad=True)
    batch = make_batch()
    symmetry = Symmetry(None, negate, augments, use_mirror_loss=True)
    symmetry.augment_batch(batch, N)
    loss = symmetry.compute_loss(lambda obs: obs["policy"] @ weight + 1.0, batch, N)
    # means are x + 1 and, at the image, -x + 1; the mirrored mean is -x - 1
    torch.testing.assert_close(loss, torch.tensor(4.0))
    assert loss.requires_grad
    assert batch.observations.batch_size == (2 * N,)
    assert (
        not Symmetry(None, negate)
        .compute_loss(lambda obs: obs["policy"] @ weight, make_batch(), N)
        .requires_grad
    )


# ---------------------------------------------------------------------- symmetry: in the engine


class ToySymmetry(ClientSymmetry):
    """With a function that fits the toy environment, for the contract suite."""

    def __init__(self, function: Any, **uses: Any) -> None:
        super().__init__(**uses)
        self.images = Images(function, None)


@pytest.mark.parametrize("function", [negate, quarter_turns])
def test_its_symmetry_keeps_the_contract_of_extensions(function: Any) -> None:
    uses = {"use_data_augmentation": True, "use_mirror_loss": True}
    check_extension(ToySymmetry, two_processes=False, function=function, **uses)


def update_counting_passes(**uses: Any) -> tuple[dict[str, Tensor], int]:
    """The metrics of an update of 4 mini-batches, and how often the actor was called in it."""
    ppo = make_ppo(Symmetry(None, negate, mirror_loss_coeff=1.0, **uses).extension)
    collect(ppo, observations)
    passes: list[int] = []
    ppo.policy.actor.register_forward_hook(lambda *_: passes.append(1))
    return ppo.update(), len(passes)


def test_c20_rows_that_are_learned_from_and_the_loss_share_one_forward_pass() -> None:
    metrics, passes = update_counting_passes(use_data_augmentation=True, use_mirror_loss=True)
    assert passes == 4
    assert metrics["Symmetry/mirror_loss"] > 0


def test_c20_what_is_only_logged_is_measured_once_per_iteration() -> None:
    metrics, passes = update_counting_passes()
    assert passes == 4 + 1
    assert metrics["Symmetry/error"] > 0
    assert "Symmetry/mirror_loss" not in metrics


@pytest.mark.parametrize("rnn_type", [None, "gru", "lstm"])
def test_c20_a_clients_function_learns_as_surefoots_own_mirror_with_recurrent_policies_too(
    rnn_type: Any,
) -> None:
    uses: dict[str, Any] = {"use_data_augmentation": True, "use_mirror_loss": True, "mirror_loss_coeff": 1.0}
    mirror = MirrorMap({"policy": (torch.arange(D), -torch.ones(D))}, (torch.arange(A), -torch.ones(A)))
    learned = []
    for extension in (Symmetry(None, negate, **uses).extension, NativeSymmetry(**uses, mirror=mirror)):
        ppo = make_ppo(extension, rnn_type=rnn_type)
        for _ in range(2):
            collect(ppo, observations)
            ppo.update()
        learned.append([*ppo.policy.parameters()])
    torch.testing.assert_close(*learned, rtol=0, atol=0)


def test_a_function_with_several_symmetries_that_writes_into_its_arguments_gives_all_images() -> None:
    symmetry = Symmetry(None, quarter_turns, use_data_augmentation=True)
    ppo = make_ppo(symmetry.extension)
    collect(ppo, observations)
    batch = next(ppo.storage.mini_batch_generator(2, generator=torch.Generator().manual_seed(0)))
    n, grown = batch.num_sampled, symmetry.extension.augment(batch, ppo.policy)
    for name, x, images in (
        ("policy", batch.observations["policy"], grown.observations["policy"]),
        ("actions", batch.actions, grown.actions),
    ):
        assert images.shape[0] == 4 * n
        torch.testing.assert_close(images, torch.cat([x.roll(k, -1) for k in range(4)]), msg=name)


def test_a_function_may_read_groups_that_no_network_does() -> None:
    def needs_extra(env: Any, obs: Any, actions: Any) -> Any:
        if obs is not None:
            obs["extra"].neg_().neg_()
        return negate(env, obs, actions)

    ppo = make_ppo(Symmetry(None, needs_extra, use_mirror_loss=True, mirror_loss_coeff=1.0).extension)
    collect(ppo, observations)
    assert ppo.update()["Symmetry/mirror_loss"] > 0


def test_a_function_of_2x_gets_one_group_at_a_time() -> None:
    asked: list[str] = []

    def of_2x(obs_type: str, obs: Any = None, actions: Any = None, **_: Any) -> Any:
        asked.append(obs_type)
        images = [None if x is None else torch.cat([x, -x]) for x in (obs, actions)]
        return images[0], images[1]

    symmetry = Symmetry(None, of_2x, use_data_augmentation=True)
    batch = make_batch()
    symmetry.augment_batch(batch, N)
    torch.testing.assert_close(batch.observations["extra"][N:], -observations()["extra"])
    assert asked == ["policy", "extra", "policy"]


def test_a_function_that_is_no_symmetry_by_surefoots_rules_is_reported_and_used() -> None:
    def leaves_all_alone(obs: Any, actions: Any, **_: Any) -> Any:
        return None if obs is None else torch.cat([obs, obs]), None if actions is None else actions.repeat(
            2, 1
        )

    with pytest.warns(UserWarning, match=r"leaves_all_alone, image 1 changes neither .* RSL-RL trains on"):
        ppo = make_ppo(Symmetry(None, leaves_all_alone, use_data_augmentation=True).extension)
    collect(ppo, observations)
    ppo.update()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda obs, actions, **_: (obs, actions), "adds so many images"),
        (lambda **_: (None, None), "must return observations where it was given some"),
        (
            lambda obs, actions, **_: (obs, actions if actions is None else -actions),
            "the given actions as its first",
        ),
        (
            lambda obs, actions, **_: (obs, actions if actions is None else actions[:3]),
            r"made \(3, 2\) of actions",
        ),
    ],
)
def test_a_function_that_returns_something_else_is_refused(function: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_ppo(Symmetry(None, function, use_data_augmentation=True).extension)


# ---------------------------------------------------------------------- both, in RSL-RL's runner


class Env:
    """Noise, in episodes of 5 steps of 0.02 s, whose last observation is known."""

    num_envs, num_actions, max_episode_length, device, step_dt = N, A, 5, "cpu", 0.02

    def __init__(self) -> None:
        self.episode_length_buf, self.count = torch.zeros(N, dtype=torch.long), 0

    def get_observations(self) -> TensorDict:
        return observations(self.count)

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        self.count += 1
        self.episode_length_buf += 1
        ended = self.episode_length_buf >= 5
        self.episode_length_buf[ended] = 0
        extras = {"time_outs": ended, "final_observations": observations(1000 + self.count)}
        return self.get_observations(), -actions.square().sum(-1), ended.long(), extras


GRU = {"class_name": "RNNModel", "rnn_type": "gru", "rnn_hidden_dim": 4}


def config(memory: dict[str, Any], **rnd: Any) -> dict[str, Any]:
    """Of a runner with both."""
    network: dict[str, Any] = {"class_name": "MLPModel", "hidden_dims": [8], **memory}
    rnd_cfg = {"weight": 50.0, "state_normalization": True, "reward_normalization": True, **SMALL, **rnd}
    mirror = {"data_augmentation_func": "test_rsl_extensions:negate", "use_data_augmentation": True}
    return {
        "num_steps_per_env": 6,
        "save_interval": 10,
        "obs_groups": SETS,
        "algorithm": {
            "class_name": "PPO",
            "num_mini_batches": 2,
            "num_learning_epochs": 2,
            "rnd_cfg": rnd_cfg,
            "symmetry_cfg": {**mirror, "use_mirror_loss": True, "mirror_loss_coeff": 0.5},
        },
        "actor": {**network, "distribution_cfg": {"class_name": "GaussianDistribution"}},
        "critic": network,
    }


@pytest.mark.parametrize("memory", [{}, GRU])
def test_both_train_and_go_on_in_the_runner(tmp_path: Path, memory: dict[str, Any]) -> None:
    cfg = config(memory)
    runner = OnPolicyRunner(Env(), cfg, None, "cpu")
    runner.learn(3)
    alg = runner.alg
    assert alg.rnd.weight == pytest.approx(50.0 * 0.02)
    assert alg.rnd.update_counter == 3 * 6
    assert alg.rnd.extension.num_learning_epochs == 2
    assert alg.rnd.state_normalizer.normalizer.count == 3 * 6 * N
    assert alg.metrics["Rnd/loss"] > 0
    assert (alg.rnd.extension.bonus > 0).all()
    assert alg.metrics["Symmetry/mirror_loss"] > 0
    runner.save(tmp_path / "model.pt")
    resumed = OnPolicyRunner(Env(), cfg, None, "cpu")
    resumed.load(tmp_path / "model.pt")
    assert resumed.alg.rnd.update_counter == 3 * 6
    for name, x in alg.rnd.state_dict().items():
        assert torch.equal(x, resumed.alg.rnd.state_dict()[name]), name
    resumed.learn(1)


@pytest.mark.parametrize("memory", [{}, GRU])
def test_a_checkpoint_goes_on_with_fewer_environments(tmp_path: Path, memory: dict[str, Any]) -> None:
    class Few(Env):
        num_envs = 2

        def __init__(self) -> None:
            super().__init__()
            self.episode_length_buf = torch.zeros(2, dtype=torch.long)

        def get_observations(self) -> TensorDict:
            return super().get_observations()[:2]

        def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
            obs, rewards, dones, extras = super().step(actions)
            return obs, rewards, dones, {**extras, "final_observations": extras["final_observations"][:2]}

    runner = OnPolicyRunner(Env(), config(memory), None, "cpu")
    runner.learn(2)
    runner.save(tmp_path / "model.pt")
    played = OnPolicyRunner(Few(), config(memory), None, "cpu")
    played.load(tmp_path / "model.pt")
    assert played.alg.rnd.update_counter == 2 * 6
    for name, x in runner.alg.rnd.state_dict().items():
        assert torch.equal(x, played.alg.rnd.state_dict()[name]), name
    played.learn(1)
    assert played.alg.metrics["Data/samples_used"] == 2 * 6


def test_rnd_of_another_width_is_refused_before_anything_is_loaded() -> None:
    source, runner = (
        OnPolicyRunner(Env(), config({}, num_outputs=n), None, "cpu") for n in (SMALL["num_outputs"] + 1, 3)
    )
    before = copy.deepcopy(runner.alg.actor.state_dict())
    with pytest.raises(CheckpointError, match=r"rnd: the layer 'predictor.*' has the shape \(4"):
        runner.alg.load(source.alg.save(), None, strict=True)
    for name, x in runner.alg.actor.state_dict().items():
        assert torch.equal(x, before[name]), name
