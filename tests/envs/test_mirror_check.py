"""A mirror map that is its own inverse and wrong all the same: names and physics tell."""

from __future__ import annotations

import pytest
import torch
from gymnasium import spaces

from surefoot.envs.check import check_env
from surefoot.envs.mirror_check import doubtful_pairs, pairing, wrong_in_the_mirror
from surefoot.tasks.go1 import make_env
from surefoot.tasks.go1.robot import JOINTS
from surefoot.testing.environments import TinyEnv
from surefoot.types import MirrorMap

UNCHANGED = (torch.arange(2), torch.ones(2))


class TwoLegs(TinyEnv):
    """Each action pulls its own joint, and the body leans to the side of the difference."""

    action_names = ("left", "right")
    observation_names = {"policy": ["left_joint", "right_joint", "lean"]}  # noqa: RUF012

    def __init__(self, mirror: MirrorMap) -> None:
        super().__init__(num_envs=8, episode_length=40, num_goals=3)
        self.action_space, self.mirror = spaces.Box(-1.0, 1.0, (2,)), mirror

    def judge(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        joints = 0.8 * self.goal[:, :2] + actions
        lean = 0.9 * self.goal[:, 2:] + joints[:, :1] - joints[:, 1:]
        self.goal = torch.cat([joints, lean], -1)
        return -lean.squeeze(-1).abs(), torch.zeros(self.num_envs, dtype=torch.bool)

    def draw_goals(self) -> torch.Tensor:
        return torch.randn(self.num_envs, 3, generator=self.generator)


def two_legs(permutation: list[int], sign: list[float], actions: list[int] | None = None) -> TwoLegs:
    order = torch.tensor(actions or [1, 0])
    return TwoLegs(
        MirrorMap({"policy": (torch.tensor(permutation), torch.tensor(sign))}, (order, torch.ones(2)))
    )


def test_the_right_map_has_no_problem_and_its_pairs_are_printed() -> None:
    report = check_env(two_legs([1, 0, 2], [1.0, 1.0, -1.0]))
    assert report.problems == []
    assert "mirror of the actions: left <-> right" in str(report)
    assert "mirror of policy: left_joint <-> right_joint, -lean" in str(report)
    assert not [note for note in report.notes if "mirror" in note]


@pytest.mark.parametrize(
    ("env", "entry"),
    [
        (two_legs([1, 0, 2], [1.0, 1.0, 1.0]), "policy.lean"),  # a sign is missing
        (two_legs([1, 0, 2], [-1.0, -1.0, -1.0]), "policy.left_joint"),  # a sign too many
        (two_legs([1, 0, 2], [1.0, 1.0, -1.0], [0, 1]), "policy.left_joint"),  # actions change no side
        (two_legs([0, 1, 2], [1.0, 1.0, -1.0]), "policy.left_joint"),  # joints change no side
    ],
)
def test_s02_a_wrong_map_moves_otherwise_than_it_says(env: TwoLegs, entry: str) -> None:
    (problem,) = check_env(env).problems
    assert "sign or a partner is wrong" in problem
    assert entry in problem


def test_without_names_entries_are_counted() -> None:
    mirror = MirrorMap({"policy": (torch.tensor([1, 0, 2]), torch.tensor([-1.0, -1, 1]))}, UNCHANGED)
    assert pairing(mirror, {}) == ["mirror of the actions: unchanged", "mirror of policy: 0 <-> -1"]


@pytest.mark.parametrize(
    ("names", "permutation", "doubts"),
    [
        (JOINTS, [3, 4, 5, 0, 1, 2, 9, 10, 11, 6, 7, 8], 0),
        (JOINTS, [6, 7, 8, 9, 10, 11, 0, 1, 2, 3, 4, 5], 12),  # front and rear
        (["left_hip", "right_hip", "left_knee", "right_knee"], [1, 0, 3, 2], 0),
        (["left_hip", "right_hip", "left_knee", "right_knee"], [3, 2, 1, 0], 4),
        (["hip_l", "hip_r", "tail"], [0, 1, 2], 2),
        (["roll", "pull", "Roll"], [0, 1, 2], 0),  # letters inside of words are no sides
        ([], [1, 0], 0),
    ],
)
def test_s02_names_of_sides_show_a_wrong_partner(
    names: list[str], permutation: list[int], doubts: int
) -> None:
    mirror = MirrorMap({}, (torch.tensor(permutation), torch.ones(len(permutation))))
    assert len(list(doubtful_pairs(mirror, {"": names}))) == doubts


@pytest.fixture(scope="module")
def go1():
    env = make_env(64, num_threads=1)
    yield env
    env.close()


def test_the_go1_moves_in_the_mirror_as_its_map_says(go1) -> None:
    assert wrong_in_the_mirror(go1, go1.mirror, seed=1) == []


@pytest.mark.parametrize("entry", ["gyro.x", "gravity.y", "linear_velocity.x", "joint_velocity.FR_hip"])
def test_s02_a_single_wrong_sign_of_the_go1_is_found(go1, entry: str) -> None:
    permutation, sign = go1.mirror.observations["policy"]
    k, sign = go1.observation_names["policy"].index(entry), sign.clone()
    sign[[k, int(permutation[k])]] = -sign[k]
    wrong = MirrorMap({**go1.mirror.observations, "policy": (permutation, sign)}, go1.mirror.actions)
    assert ("policy", k) in wrong_in_the_mirror(go1, wrong, seed=1)


def test_s02_front_legs_taken_for_rear_ones_are_found(go1) -> None:
    """A consistent map of another kind: the robot is not symmetric front to back."""
    swap = torch.tensor([6, 7, 8, 9, 10, 11, 0, 1, 2, 3, 4, 5])

    def change(permutation: torch.Tensor, start: int) -> None:
        permutation[start : start + 12] = permutation[start : start + 12][swap]

    observations = {g: (p.clone(), s.clone()) for g, (p, s) in go1.mirror.observations.items()}
    actions = tuple(x.clone() for x in go1.mirror.actions)
    names = go1.observation_names["policy"]
    for entry in ("joint_position", "joint_velocity", "last_action"):
        change(observations["policy"][0], names.index(f"{entry}.FR_hip"))
    change(actions[0], 0)
    assert wrong_in_the_mirror(go1, MirrorMap(observations, actions), seed=1)
