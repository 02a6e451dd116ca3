"""Raw actions to what the environment takes, for every kind of bounds."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.errors import ConfigError
from surefoot.networks.action_map import ActionMap

law = settings(max_examples=80, deadline=None)


def mapped(space: gymnasium.Space[Any], raw: list[list[float]], squashed: bool = False) -> list[list[float]]:
    return ActionMap(space, "SquashedGaussian" if squashed else "Gaussian")(torch.tensor(raw)).tolist()


def box(low: list[float], high: list[float], dtype: Any = np.float32) -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)


def test_bounded_dimensions_are_clipped_and_mapped() -> None:
    space = box([-1, 0], [1, 5])
    # -1..1 is itself; 0..5: (u + 1)/2 · 5
    assert mapped(space, [[0.5, 0.5], [-3, -3], [3, 3], [0, 0]]) == [[0.5, 3.75], [-1, 0], [1, 5], [0, 2.5]]


def test_a_far_away_box_is_reached_from_its_middle() -> None:
    assert mapped(box([300], [500]), [[0.0], [1.0], [-0.5], [9.0]]) == [[400.0], [500.0], [350.0], [500.0]]


def test_half_bounded_dimensions_are_clipped() -> None:
    space = box([0, -np.inf], [np.inf, 2])
    assert mapped(space, [[-1, 5], [3, -7]]) == [[0, 2], [3, -7]]


def test_unbounded_dimensions_pass() -> None:
    assert mapped(box([-np.inf], [np.inf]), [[1e6]]) == [[1e6]]


def test_each_dimension_is_treated_by_its_own_bounds() -> None:
    space = box([-np.inf, 0, 2, -np.inf], [np.inf, np.inf, 4, 1])
    assert mapped(space, [[5, -5, 0, 5]]) == [[5, 0, 3, 1]]


def test_squashed_actions_are_tanh_of_the_raw_ones_mapped_to_the_bounds() -> None:
    result = mapped(box([-1, 0], [1, 5]), [[0.5, 0.5], [100, -100]], "SquashedGaussian")
    assert result[0] == pytest.approx([math.tanh(0.5), 2.5 * (math.tanh(0.5) + 1)])
    assert result[1] == [1.0, 0.0]


def test_a_squashed_policy_needs_bounds() -> None:
    with pytest.raises(ConfigError, match="finite bounds"):
        ActionMap(box([0], [np.inf]), "SquashedGaussian")


def test_a_discrete_action_is_the_index_plus_the_start() -> None:
    result = ActionMap(gymnasium.spaces.Discrete(3, start=-1))(torch.tensor([[0], [2]]))
    assert result.tolist() == [-1, 1]
    assert result.dtype == torch.int64


def test_actions_have_the_shape_of_the_space() -> None:
    space = gymnasium.spaces.Box(-2, 3, (2, 3))
    assert ActionMap(space)(torch.zeros(4, 6)).shape == (4, 2, 3)
    assert ActionMap(gymnasium.spaces.Discrete(3))(torch.zeros(4, 1, dtype=torch.int64)).shape == (4,)
    unbounded = gymnasium.spaces.Box(-np.inf, np.inf, (2, 3))
    assert ActionMap(unbounded)(torch.zeros(4, 6)).shape == (4, 2, 3)


@pytest.mark.parametrize("low", [-np.inf, -1.0, 0.0])
@pytest.mark.parametrize("high", [np.inf, 1.0])
def test_the_result_is_a_fresh_tensor(low: float, high: float) -> None:
    raw = torch.tensor([[0.25]])
    ActionMap(box([low], [high]))(raw).mul_(0)
    assert raw.item() == 0.25


single = st.floats(width=32, allow_nan=False, allow_infinity=False).filter(lambda x: abs(x) < 1e30)
bound = st.one_of(single, st.just(math.inf), st.sampled_from([0.0, 2.0**-100, 0.5, 1e6]))


@law
@given(
    bounds=st.lists(st.tuples(bound, bound), min_size=1, max_size=4),
    raw=single,
    squashed=st.booleans(),
    double=st.booleans(),
)
def test_the_result_is_always_in_the_space(
    bounds: list[tuple[float, float]], raw: float, squashed: bool, double: bool
) -> None:
    dtype = np.float64 if double else np.float32
    lows, highs = [], []
    for a, b in bounds:
        low = -math.inf if math.isinf(a) else min(a, b)
        high = max(a, b)
        lows.append(low)
        highs.append(high)
    if squashed and not (np.isfinite(lows).all() and np.isfinite(highs).all()):
        return
    space = box(lows, highs, dtype)
    for value in (raw, -raw, 0.0, 1.0, -1.0, 0.3):
        action = ActionMap(space, "SquashedGaussian" if squashed else "Gaussian")(
            torch.full((1, len(bounds)), value)
        )[0].numpy()
        # an adapter hands the environment the space's own type
        assert space.contains(action.astype(dtype)), (space.low, space.high, action)


@pytest.mark.parametrize("bound", [0.1, 0.7, 1 / 3, 16_777_217.0])
def test_a_float64_box_is_not_left_by_rounding_to_float32(bound: float) -> None:
    for low, high in ((-1.0, bound), (bound, 20_000_000.0)):
        space = box([low], [high], np.float64)
        for value in (-5.0, 5.0):
            action = ActionMap(space)(torch.tensor([[value]]))[0].numpy().astype(np.float64)
            assert space.contains(action), action.item()


def test_the_largest_finite_box_is_mapped_without_overflow() -> None:
    largest = float(np.finfo(np.float32).max)
    result = mapped(box([-largest], [largest]), [[-1.0], [0.0], [1.0]])
    assert result == [[-largest], [0.0], [largest]]


@law
@given(low=st.floats(-100, 100), width=st.floats(0.1, 100), u=st.floats(-1, 1))
def test_the_map_is_affine_inside(low: float, width: float, u: float) -> None:
    space = box([low], [low + width])
    (result,) = mapped(space, [[u]])
    assert result[0] == pytest.approx(low + (u + 1) / 2 * width, rel=1e-5, abs=1e-4)


def test_the_bounds_are_no_part_of_the_state() -> None:
    assert not ActionMap(box([0], [1]), False).state_dict()
