"""The parts of AMP: losses and penalty by hand, windows, replay, demonstrations, mixing, configuration."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from surefoot.algorithm.config import PPOConfig
from surefoot.config import build_config, build_extensions
from surefoot.errors import ConfigError
from surefoot.extensions.amp.amp import AMP
from surefoot.extensions.amp.config import FORKS, AMPConfig
from surefoot.extensions.amp.dataset import MotionDataset, load_demonstrations
from surefoot.extensions.amp.discriminator import (
    Discriminator,
    bce_loss,
    gradient_penalty,
    lsgan_loss,
    threshold,
    wgan_loss,
)
from surefoot.extensions.amp.replay import ReplayBuffer
from surefoot.extensions.amp.rewards import (
    MAX_BCE_REWARD,
    additive,
    bce_reward,
    lerp,
    lsgan_reward,
    multiplicative,
    wgan_reward,
)
from surefoot.extensions.amp.windows import WindowCutter

# ---------------------------------------------------------------------- losses and penalty


def test_the_losses_by_hand() -> None:
    demo, policy = torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 1.0])
    # ½·((0² + 1²)/2 + (0² + 2²)/2)
    assert lsgan_loss(demo, policy).item() == pytest.approx(1.25)
    # -log σ(1) = 0.31326, -log σ(0) = 0.69315; -log(1-σ(-1)) = 0.31326, -log(1-σ(1)) = 1.31326
    expected = 0.5 * ((0.31326 + 0.69315) / 2 + (0.31326 + 1.31326) / 2)
    assert bce_loss(demo, policy).item() == pytest.approx(expected, abs=1e-4)
    # ½·(0 - ½)
    assert wgan_loss(demo, policy).item() == pytest.approx(-0.25)


@pytest.mark.parametrize("loss", [lsgan_loss, bce_loss, wgan_loss])
def test_the_losses_fall_when_demonstrations_score_higher(loss: Any) -> None:
    low, high = torch.tensor([-0.5]), torch.tensor([0.5])
    assert loss(high, low) < loss(low, high)
    assert loss(torch.zeros(0), torch.zeros(0)) == 0


def test_the_border_is_zero_or_for_wasserstein_scores_the_middle() -> None:
    demo, policy = torch.tensor([4.0, 6.0]), torch.tensor([1.0])
    assert threshold("lsgan", demo, policy) == threshold("bce", demo, policy) == 0
    assert threshold("wgan", demo, policy).item() == 3.0


def test_the_gradient_penalty_of_a_linear_score_by_hand() -> None:
    x = torch.randn(7, 2, requires_grad=True)
    score = x @ torch.tensor([3.0, 4.0])
    # the gradient is (3, 4) everywhere: norm² 25; (5 - 1)² = 16
    assert gradient_penalty(score, x).item() == pytest.approx(25.0)
    assert gradient_penalty(score, x, target=1.0).item() == pytest.approx(16.0)


@pytest.mark.parametrize("activation", ["relu", "elu", "tanh"])
def test_the_gradient_penalty_and_its_own_gradient_equal_finite_differences(activation: Any) -> None:
    torch.manual_seed(0)
    net = Discriminator(3, [8, 5], activation).double()
    x = torch.randn(4, 3, dtype=torch.float64)

    def penalty() -> Tensor:
        inputs = x.clone().requires_grad_()
        return gradient_penalty(net(inputs), inputs)

    step = 1e-5
    by_hand = 0.0
    for row in x:
        slopes = [(net(row + e * step) - net(row - e * step)) / (2 * step) for e in torch.eye(3).double()]
        by_hand += sum(float(s.detach()) ** 2 for s in slopes) / len(x)
    assert penalty().item() == pytest.approx(by_hand, rel=1e-6)

    weight = net.last.weight
    (slope,) = torch.autograd.grad(penalty(), weight)
    with torch.no_grad():
        weight[0, 2] += step
        above = penalty_value(penalty)
        weight[0, 2] -= 2 * step
        below = penalty_value(penalty)
        weight[0, 2] += step
    assert slope[0, 2].item() == pytest.approx((above - below) / (2 * step), rel=1e-4, abs=1e-9)


def penalty_value(penalty: Any) -> float:
    with torch.enable_grad():
        return penalty().item()


# ---------------------------------------------------------------------- rewards and mixing


def test_the_reward_maps_by_hand() -> None:
    score = torch.tensor([1.0, 0.0, -1.0, -5.0, 3.0, 2.0])
    assert lsgan_reward(score).tolist() == [1.0, 0.75, 0.0, 0.0, 0.0, 0.75]
    assert bce_reward(torch.tensor(0.0)).item() == pytest.approx(math.log(2))
    mean, variance = torch.tensor(2.0), torch.tensor(4.0)
    # nothing to tell apart: ½ in the middle, ½(1 + tanh 1) one deviation above it
    same = wgan_reward(torch.tensor([2.0, 4.0]), (mean, variance), (mean, variance))
    assert same.tolist() == pytest.approx([0.5, 0.5 * (1 + math.tanh(1))], abs=1e-5)
    # two points at ±1: z = ±1
    apart = wgan_reward(
        torch.tensor([1.0, -1.0]), (torch.tensor(1.0), 0 * mean), (torch.tensor(-1.0), 0 * mean)
    )
    assert apart.tolist() == pytest.approx([0.5 * (1 + math.tanh(1)), 0.5 * (1 - math.tanh(1))], abs=1e-5)


@given(st.floats(-1e6, 1e6))
def test_rewards_are_bounded_whatever_the_score(score: float) -> None:
    d = torch.tensor([score])
    assert 0 <= lsgan_reward(d).item() <= 1
    assert 0 <= bce_reward(d).item() <= MAX_BCE_REWARD + 1e-5
    moments = (torch.tensor(0.3), torch.tensor(1e-12))
    assert 0 <= wgan_reward(d, moments, moments).item() <= 1


NUMBERS = st.floats(-100, 100)


@given(NUMBERS, NUMBERS, st.floats(0, 1))
def test_the_mixing_laws(task: float, style: float, weight: float) -> None:
    t, s = torch.tensor(task, dtype=torch.float64), torch.tensor(style, dtype=torch.float64)
    assert lerp(t, s, 0.0) == additive(t, s, 0.0) == multiplicative(t, s, 0.0) == t
    assert lerp(t, s, 1.0) == s
    assert multiplicative(t, s, 1.0) == t * s
    assert additive(t, s, weight) - t == pytest.approx(weight * style, abs=1e-9)
    low, high = sorted([task, style])
    assert low - 1e-9 <= lerp(t, s, weight) <= high + 1e-9


# ---------------------------------------------------------------------- windows


def windows_of_a_stream(
    frames: Tensor, follows: Tensor, is_first: Tensor, num_frames: int
) -> dict[tuple[int, int], Tensor]:
    """The windows [K, D] of an unbroken stream [S, N, D] by row and environment, one at a time."""
    found = {}
    for t in range(frames.shape[0]):
        for n in range(frames.shape[1]):
            earliest = t - num_frames + 2
            if earliest >= 0 and not is_first[earliest + 1 : t + 1, n].any():
                found[t, n] = torch.stack([*frames[earliest : t + 1, n], follows[t, n]])
    return found


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    num_envs=st.integers(1, 3),
    num_frames=st.integers(2, 6),
    seed=st.integers(0, 2**31),
)
def test_windows_of_rollouts_are_those_of_the_unbroken_stream(
    lengths: list[int], num_envs: int, num_frames: int, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    frames, follows = (
        torch.randn(total, num_envs, 2, generator=g),
        torch.randn(total, num_envs, 2, generator=g),
    )
    is_first = torch.rand(total + 1, num_envs, generator=g) < 0.25
    is_first[0] = True
    expected = windows_of_a_stream(frames, follows, is_first, num_frames)

    cutter, found, start = WindowCutter(num_envs, num_frames, 2), {}, 0
    for length in lengths:
        part = slice(start, start + length)
        windows, is_whole = cutter(frames[part], follows[part], is_first[start : start + length + 1])
        assert windows.shape == (length, num_envs, num_frames, 2)
        for t, n in is_whole.nonzero().tolist():
            found[start + t, n] = windows[t, n]
        start += length
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in found)


def test_pairs_are_whole_from_the_first_row_of_an_episode() -> None:
    cutter = WindowCutter(1, 2, 1)
    frames = torch.tensor([[[0.0]], [[5.0]]])
    windows, is_whole = cutter(frames, frames + 1, torch.tensor([[True], [True], [False]]))
    assert is_whole.all()
    assert windows.flatten().tolist() == [0, 1, 5, 6]


# ---------------------------------------------------------------------- replay


def numbered(*numbers: float) -> Tensor:
    """Windows [R, 1, 1, 1] of one environment."""
    return torch.tensor(numbers, dtype=torch.float32).reshape(-1, 1, 1, 1)


def contents(replay: ReplayBuffer, env: int = 0) -> list[float]:
    return replay.windows[env, : int(replay.counts[env])].flatten().tolist()


def test_p06_the_ring_keeps_the_last_windows_whatever_comes_at_once() -> None:
    replay = ReplayBuffer(1, 100, (1, 1))
    keep = torch.ones(70, 1, dtype=torch.bool)
    replay.insert(numbered(*range(70)), keep)
    assert contents(replay) == list(range(70))
    replay.insert(numbered(*range(70, 140)), keep)
    assert contents(replay) == [*range(100, 140), *range(40, 100)]
    small = ReplayBuffer(1, 10, (1, 1))
    small.insert(numbered(*range(25)), torch.ones(25, 1, dtype=torch.bool))
    assert sorted(contents(small)) == list(range(15, 25))
    small.insert(numbered(25.0), torch.ones(1, 1, dtype=torch.bool))
    assert sorted(contents(small)) == list(range(16, 26))


def test_p06_it_is_allocated_once_says_its_memory_and_is_saved() -> None:
    replay = ReplayBuffer(3, 4, (2, 5))
    # 3 environments · (4 + 1) windows · 2 frames · 5 features · 4 bytes
    assert replay.num_bytes == 600
    address = replay.windows.data_ptr()
    replay.insert(torch.randn(9, 3, 2, 5), torch.rand(9, 3) < 0.7)
    assert replay.windows.data_ptr() == address
    other = ReplayBuffer(3, 4, (2, 5))
    other.load_state_dict(replay.state_dict())
    drawn = [r.sample(20, torch.Generator().manual_seed(0)) for r in (replay, other)]
    assert torch.equal(*drawn)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), capacity=st.integers(1, 7), rounds=st.integers(1, 5))
def test_p06_each_environment_keeps_its_own_last_windows(seed: int, capacity: int, rounds: int) -> None:
    g = torch.Generator().manual_seed(seed)
    replay, lists = ReplayBuffer(3, capacity, (1, 1)), [[], [], []]
    for i in range(rounds):
        keep = torch.rand(6, 3, generator=g) < 0.5
        windows = torch.arange(18.0).reshape(6, 3, 1, 1) + 100 * i
        replay.insert(windows, keep)
        for t, n in keep.nonzero().tolist():
            lists[n].append(windows[t, n].item())
    for n in range(3):
        assert sorted(contents(replay, n)) == lists[n][-capacity:]
    everything = {x for own in lists for x in own[-capacity:]}
    if everything:
        assert set(replay.sample(400, g).flatten().tolist()) <= everything


def test_p06_samples_are_uniform_over_the_windows_and_never_empty_slots() -> None:
    replay = ReplayBuffer(3, 8, (1, 1))
    keep = torch.tensor([[1, 0, 1], [1, 0, 0], [1, 0, 0]]).bool()
    replay.insert(torch.arange(1.0, 10.0).reshape(3, 3, 1, 1), keep)
    values, counts = replay.sample(4000, torch.Generator().manual_seed(0)).unique(return_counts=True)
    assert values.tolist() == [1, 3, 4, 7]
    assert (counts / 1000 - 1).abs().max() < 0.1


# ---------------------------------------------------------------------- demonstrations


def ramp(start: float, length: int) -> Tensor:
    """Frames that count on [F, 1]."""
    return torch.arange(start, start + length, dtype=torch.float32).unsqueeze(-1)


def test_demonstrations_are_consecutive_frames_of_one_clip() -> None:
    data = MotionDataset([ramp(0, 5), ramp(100, 9)], [1.0, 1.0], num_frames=3)
    windows = data.sample(500, torch.Generator().manual_seed(0))
    assert windows.shape == (500, 3, 1)
    assert (windows[:, 1:] - windows[:, :-1] == 1).all()
    # every start there is, and none that leaves the clip
    assert windows[:, 0].unique().tolist() == [0, 1, 2, 100, 101, 102, 103, 104, 105, 106]


def test_clips_are_drawn_by_weight_whatever_their_length() -> None:
    data = MotionDataset([ramp(0, 50), ramp(100, 2), ramp(200, 9)], [3.0, 1.0, 0.0], num_frames=2)
    first = data.sample(4000, torch.Generator().manual_seed(0))[:, 0, 0]
    assert (first < 100).float().mean().item() == pytest.approx(0.75, abs=0.03)
    assert not (first >= 200).any()


@pytest.mark.parametrize(
    ("clips", "weights", "names", "message"),
    [
        ([ramp(0, 2)], [1.0], ["trot.txt"], "motion trot.txt has 2 frames.*needs 3"),
        ([ramp(0, 5), torch.zeros(5, 2)], [1.0, 1.0], None, r"clip 1.*\(5, 2\); expected \[frames, 1\]"),
        ([ramp(0, 5), torch.full((5, 1), math.nan)], [1.0, 1.0], None, "clip 1: frame 0 is not finite"),
        ([ramp(0, 5)], [0.0], None, "nor all 0"),
        ([ramp(0, 5)], [-1.0], None, "must not be negative"),
        ([ramp(0, 5)] * 2, [1.0, math.nan], None, "must not be negative or infinite"),
        ([ramp(0, 5)] * 2, [math.inf, 1.0], None, "must not be negative or infinite"),
        ([ramp(0, 5)], [1.0, 1.0], None, "1 motion clips and 2 weights"),
        ([], [], None, "0 motion clips"),
    ],
)
def test_a_bad_clip_is_named(
    clips: Sequence[Tensor], weights: Sequence[float], names: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        MotionDataset(clips, weights, 3, names)


def test_a_window_of_one_frame_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 2"):
        MotionDataset([ramp(0, 5)], [1.0], 1)


def clips_for_a_step(step_dt: float) -> list[tuple[Tensor, float]]:
    """Two clips, as a user's function returns them."""
    return [(torch.full((4, 2), step_dt), 1.0), (torch.full((6, 2), -step_dt), 2.0)]


def of_numpy(step_dt: float) -> list[tuple[Any, float]]:
    return [(np.full((4, 2), step_dt), 1.0)]


def not_clips(_: float) -> int:
    return 3


def not_numbers(_: float) -> list[tuple[None, float]]:
    return [(None, 1.0)]


@pytest.mark.parametrize("function", ["clips_for_a_step", "of_numpy"])
def test_a_function_gives_the_demonstrations_and_is_told_the_step(function: str) -> None:
    data = load_demonstrations(AMPConfig(dataset=f"{__name__}:{function}"), 0.02)
    assert data.frames.abs().unique().item() == pytest.approx(0.02)
    assert data.num_features == 2


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere", "expected package.module:"),
        ("no_such_module:f", "no module 'no_such_module'"),
        (f"{__name__}:clips_for_a_stp", "Did you mean 'clips_for_a_step'"),
        (f"{__name__}:not_clips", r"expected \[\(features"),
        (f"{__name__}:not_numbers", r"expected \[\(features"),
        (f"{__name__}:NUMBERS", "expected a function"),
    ],
)
def test_a_function_that_cannot_be_used_is_named(path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_demonstrations(AMPConfig(dataset=path), 0.02)


# ---------------------------------------------------------------------- configuration

DATASET = f"{__name__}:clips_for_a_step"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "there are no demonstrations"),
        ({"dataset": DATASET, "motion_files": ["a.txt"]}, "keep one"),
        ({"motion_files": ["a.txt"]}, "needs features"),
        ({"dataset": DATASET, "features": ["x"]}, "features belongs to motion_files"),
        (
            {"motion_files": ["a.txt"], "features": ["x"], "motion_weights": [1.0, 2.0]},
            "motion_weights has 2 numbers for 1",
        ),
        ({"dataset": DATASET, "num_frames": 1}, "num_frames = 1"),
        ({"dataset": DATASET, "loss_type": "gan"}, 'loss_type = "gan".*one of lsgan, bce, wgan'),
        ({"dataset": DATASET, "hidden_dims": []}, "hidden_dims"),
        ({"dataset": DATASET, "hidden_dims": [0]}, r"hidden_dims.0 = \[0\]"),
        ({"dataset": DATASET, "disc_learning_rate": "fast"}, 'disc_learning_rate = "fast"'),
        ({"dataset": DATASET, "replay_share": 1.0}, "replay_share = 1.0.*below 1"),
        ({"dataset": DATASET, "style_weight": 1.5}, r"style_weight 1.5 must lie in \[0, 1\]"),
        (
            {
                "dataset": DATASET,
                "weight_schedule": {"mode": "step", "final_step": 9, "final_value": 1.5},
            },
            r"weight_schedule.final_value 1.5 must lie in \[0, 1\]",
        ),
        ({"dataset": DATASET, "grad_penalty_scal": 1.0}, "Did you mean 'grad_penalty_scale'"),
        ({"dataset": DATASET, "task_style_lerp": 0.3}, "Surefoot calls it style_weight, which is 1 -"),
    ],
)
def test_a_wrong_key_is_named_with_its_full_path(keys: dict[str, Any], message: str) -> None:
    config = build_config({"algorithm": {"class_name": "PPOAMP", "amp_cfg": keys}})
    with pytest.raises(ConfigError, match=f"algorithm.amp_cfg.*{message}"):
        build_extensions(config)


def test_a_configuration_made_in_python_is_held_to_the_same_ranges() -> None:
    with pytest.raises(ConfigError, match=r"replay_share = 1\.5"):
        AMPConfig(dataset=DATASET, replay_share=1.5)


def test_names_of_forks_lead_to_keys_that_exist() -> None:
    for answer in FORKS.values():
        assert answer.split(",")[0].split(" ")[0] in AMPConfig.__dataclass_fields__


def test_ppoamp_and_amp_cfg_need_each_other() -> None:
    with pytest.raises(ConfigError, match="class_name is PPOAMP, which needs amp_cfg"):
        build_config({"algorithm": {"class_name": "PPOAMP"}})
    with pytest.raises(ConfigError, match="set class_name to PPOAMP"):
        PPOConfig(amp_cfg={"dataset": DATASET})


def test_the_extension_is_built_from_the_configuration_and_may_stand_in_the_list() -> None:
    keys = {"dataset": DATASET, "hidden_dims": [32], "style_weight": 0.25}
    (amp,) = build_extensions(build_config({"algorithm": {"class_name": "PPOAMP", "amp_cfg": keys}}))
    assert isinstance(amp, AMP)
    assert amp.config == AMPConfig(dataset=DATASET, hidden_dims=[32], style_weight=0.25)
    (listed,) = build_extensions(build_config({"extensions": [{"class_name": "AMP", "config": keys}]}))
    assert isinstance(listed, AMP)
    assert listed.config == amp.config


def test_the_reward_scaling_of_the_environment_comes_before_the_style() -> None:
    config = {"algorithm": {"class_name": "PPOAMP", "amp_cfg": {"dataset": DATASET}}}
    kinds = [
        type(e).__name__ for e in build_extensions(build_config(config | {"env": {"reward_scale": 0.1}}))
    ]
    assert kinds == ["RewardScaling", "AMP"]


def test_the_discriminators_first_scores_are_small() -> None:
    torch.manual_seed(0)
    scores = Discriminator(60, [256, 128], "relu")(torch.randn(500, 60))
    assert scores.abs().max() < 0.5
    assert isinstance(scores, Tensor)


# ---------------------------------------------------------------------- motion files


def write_motion(path: Path, angle: float) -> str:
    """Two seconds of a robot with two joints, ten frames a second; its second joint turns."""
    frames = [[0, 0, 0.3, 0, 0, 0, 1, angle, 0.1 * i] for i in range(21)]
    path.write_text(json.dumps({"FrameDuration": 0.1, "Frames": frames}), encoding="utf-8")
    return str(path)


def test_motion_files_become_features_at_the_environments_rate(tmp_path: Path) -> None:
    config = AMPConfig(
        motion_files=[write_motion(tmp_path / "a.txt", 0.5), write_motion(tmp_path / "b.txt", -0.5)],
        motion_weights=[0.0, 1.0],
        joint_names=["hip", "knee"],
        features=["joint_positions", "joint_velocities"],
    )
    data = load_demonstrations(config, 0.02)
    # 2 s at 50 Hz are 101 frames each
    assert data.frames.shape == (2 * 101, 4)
    windows = data.sample(200, torch.Generator().manual_seed(0))
    # of b.txt alone; 0.1 rad in 0.1 s are 0.02 in a step and 1 rad/s
    assert (windows[..., 0] == -0.5).all()
    torch.testing.assert_close(
        windows[:, 1, 1] - windows[:, 0, 1], torch.full((200,), 0.02), rtol=1e-3, atol=1e-5
    )
    torch.testing.assert_close(windows[..., 3], torch.ones(200, 2), rtol=1e-3, atol=1e-4)


def test_motion_files_need_to_know_the_step_and_are_named_when_too_short(tmp_path: Path) -> None:
    path = write_motion(tmp_path / "short.txt", 0.0)
    config = AMPConfig(
        motion_files=[path], joint_names=["hip", "knee"], features=["joint_positions"], num_frames=150
    )
    with pytest.raises(ConfigError, match="step_dt"):
        load_demonstrations(config, None)
    with pytest.raises(ConfigError, match=r"short.txt has 101 frames.*needs 150"):
        load_demonstrations(config, 0.02)
