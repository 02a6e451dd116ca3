"""Any configuration trains with finite weights, or is refused before the first step.

The keys are found by walking the configuration's dataclasses, so a new one is covered without a change here.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import os
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints
from unittest import mock

import gymnasium
import numpy as np
import pytest
import torch
from annotated_types import Len
from gymnasium.vector import AutoresetMode
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from surefoot.config.loading import merge
from surefoot.config.plugins import EXTENSIONS
from surefoot.config.schema import TrainConfig
from surefoot.envs.vec_env import VecEnv
from surefoot.errors import ConfigError
from surefoot.field_types import base_type, members
from surefoot.networks.inputs import MASK_GROUP
from surefoot.testing import TinyEnv, constant_gymnasium
from surefoot.training.hooks import HOOKS, Hook
from surefoot.training.on_policy_runner import OnPolicyRunner
from surefoot.types import MirrorMap, Step

spaces = gymnasium.spaces
Space = gymnasium.Space[Any]
Config = dict[str, Any]

# ---------------------------------------------------------------------- environments


def box(*shape: int) -> Space:
    return spaces.Box(-np.inf, np.inf, shape)


OBSERVATIONS: dict[str, dict[str, Space]] = {
    "vector": {"policy": box(3)},
    "privileged": {"policy": box(3), "privileged": box(2)},
    "by network": {"actor": box(2), "critic": box(4)},
    "camera": {"policy": box(3), "privileged": spaces.Box(0, 255, (9, 9, 2), np.uint8)},
    "pixels": {"policy": spaces.Box(0, 255, (1, 36, 37), np.uint8), "privileged": box(2)},
    "depth": {"policy": box(2), "privileged": spaces.Box(0, 1, (10, 9, 1))},
    "matrix": {"policy": box(2, 3), "privileged": box()},
    "counted": {
        "state": spaces.Discrete(4, start=2),
        "table": spaces.MultiDiscrete([2, 3]),
        "bits": spaces.MultiBinary(2),
    },
}
ACTIONS: dict[str, Space] = {
    "bounded": spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([1.0, 5.0], np.float32)),
    "unbounded": box(2),
    "half bounded": spaces.Box(
        np.array([-1.0, 0.0, -np.inf], np.float32), np.array([1.0, np.inf, 3.0], np.float32)
    ),
    "scalar": spaces.Box(-1.0, 1.0, ()),
    "matrix": spaces.Box(-1.0, 1.0, (2, 2)),
    "discrete": spaces.Discrete(3, start=5),
    "single choice": spaces.Discrete(1),
    "multi discrete": spaces.MultiDiscrete([3, 2, 4]),
    "multi binary": spaces.MultiBinary(3),
    "binary matrix": spaces.MultiBinary([2, 2]),
}
GROUPS = sorted({name for groups in OBSERVATIONS.values() for name in groups})


class SpacesEnv(TinyEnv):
    """Random observations and rewards for any spaces; refuses actions outside of its action space."""

    def __init__(
        self,
        num_envs: int,
        episode_length: int,
        observations: str,
        actions: str,
        is_masked: bool = False,
        has_mirror: bool = False,
        finals: Literal["known", "some", "none"] = "known",
        some_invalid: bool = False,
        reward_size: float = 1.0,
        terminates: bool = True,
    ) -> None:
        super().__init__(num_envs, episode_length)
        self.action_space = ACTIONS[actions]
        self.observation_spaces = dict(OBSERVATIONS[observations])
        if is_masked and (observations == "vector" or not isinstance(self.action_space, spaces.Box)):
            self.observation_spaces[MASK_GROUP] = spaces.MultiBinary(self._num_choices())
        if has_mirror:
            last = {g: (s.shape or (1,))[-1] for g, s in self.observation_spaces.items()}
            flip = {g: (torch.arange(n).flip(0), torch.ones(n)) for g, n in last.items()}
            num_actions = math.prod(self.action_space.shape or ())
            self.mirror = MirrorMap(flip, (torch.arange(num_actions), -torch.ones(num_actions)))
        self.finals, self.some_invalid = finals, some_invalid
        self.reward_size, self.terminates, self.num_steps = reward_size, terminates, 0

    def observe(self) -> dict[str, Tensor]:
        return {name: self._draw(name, space) for name, space in self.observation_spaces.items()}

    def step(self, actions: Tensor) -> Step:
        self.num_steps += 1
        for action in actions.numpy():
            assert self.action_space.contains(action.astype(self.action_space.dtype)), action
        step = super().step(actions)
        known = torch.rand(self.num_envs, generator=self.generator) < 0.5
        return dataclasses.replace(
            step,
            final_observations=None if self.finals == "none" else step.final_observations,
            final_known=known if self.finals == "some" else None,
            valid=torch.rand(self.num_envs, generator=self.generator) < 0.7 if self.some_invalid else None,
        )

    def judge(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        reward = torch.randn(self.num_envs, generator=self.generator) * self.reward_size
        return reward, torch.rand(self.num_envs, generator=self.generator) < 0.2 * self.terminates

    def draw_goals(self) -> Tensor:
        return torch.zeros_like(self.goal)

    def _draw(self, name: str, space: Space) -> Tensor:
        shape = (self.num_envs, *(space.shape or ()))
        uniform = torch.rand(shape, generator=self.generator)
        if name == MASK_GROUP:
            allowed = (uniform < 0.5).float()
            if isinstance(self.action_space, spaces.Discrete | spaces.MultiDiscrete):
                sizes = np.ravel(getattr(self.action_space, "nvec", space.shape[0]))
                allowed[:, np.cumsum(sizes) - 1] = 1.0
            return allowed
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            counts = torch.as_tensor(getattr(space, "nvec", getattr(space, "n", None)))
            return (uniform * counts).long() + torch.as_tensor(space.start)
        if isinstance(space, spaces.MultiBinary):
            return (uniform < 0.5).float()
        if space.dtype == np.uint8:
            return (uniform * 256).to(torch.uint8)
        is_picture = len(space.shape or ()) == 3
        return uniform if is_picture else torch.randn(shape, generator=self.generator)

    def _num_choices(self) -> int:
        """Entries of an action mask."""
        space = self.action_space
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            return int(np.sum(getattr(space, "nvec", getattr(space, "n", None))))
        return math.prod(space.shape or ())


WORLDS = st.fixed_dictionaries(
    {
        "num_envs": st.integers(1, 6),
        "episode_length": st.integers(1, 6),
        "observations": st.sampled_from(sorted(OBSERVATIONS)),
        "actions": st.sampled_from(sorted(ACTIONS)),
        "is_masked": st.sampled_from([False, False, False, True]),
        "has_mirror": st.booleans(),
        "finals": st.sampled_from(["known", "some", "none"]),
        "some_invalid": st.booleans(),
        "reward_size": st.sampled_from([1.0, 0.0, 1e-6, 1e4]),
        "terminates": st.booleans(),
    }
)
PLAIN_WORLD = {"num_envs": 2, "episode_length": 3, "observations": "vector", "actions": "bounded"}
GYMNASIUM_WORLDS = st.fixed_dictionaries(
    {
        "mode": st.sampled_from([*AutoresetMode]),
        "num_envs": st.integers(1, 6),
        "episode_length": st.integers(1, 6),
    }
)

# ---------------------------------------------------------------------- values by type

WORDS = [*GROUPS, *EXTENSIONS, *HOOKS, "actor", "critic", MASK_GROUP, "clip", "", "none"]
SIZES = (1e-30, 1e-8, 1e-3, 0.1, 0.5, 1.0, 2.0, 10.0, 1e3, 1e8, 1e30)
JUNK: list[Any] = [
    None, True, -1, 0, 1, 3, 10**30, -0.5, 0.0, 1.5, 1e300, math.inf, -math.inf, math.nan, "", "adam", "1e-3",
    "no.module:Class", "json:loads", [], [0], [None], [[]], ["policy"], [1e-3, 1e-2], [1e-2, 1e-3], {},
    {"": 0}, {"type": "cosine"}, {"class_name": "RewardScaling"}, {1: 2}, {"x": {"y": [math.nan]}}, object(),
    1j, b"x",
]  # fmt: skip
PLAIN = st.sampled_from([None, True, 0, 1, 2, 0.5, "policy", "x", [1], {"x": 1}])


class Linear(nn.Linear):
    """A network of one's own, with an argument."""

    def __init__(self, num_inputs: int, width: int = 3) -> None:
        super().__init__(num_inputs, width)


class Quiet(Hook):
    """A hook of one's own."""


def motion(step_dt: float | None) -> list[tuple[Tensor, float]]:  # noqa: ARG001 - as AMP calls it
    """Demonstrations for AMP."""
    return [(torch.linspace(0, 1, 24).view(8, 3), 1.0)]


def by_type(hint: Any) -> st.SearchStrategy[Any]:
    """Values that the type allows, tiny where they are counted, near all bounds where they are measured."""
    if len(arms := members(hint)) > 1:
        return st.one_of(*map(by_type, arms))
    inner, *limits = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    kind, arguments = base_type(inner), get_args(inner)
    if dataclasses.is_dataclass(kind):
        return section(kind)
    match kind:
        case t if t is type(None):
            return st.none()
        case t if t is Literal:
            return st.sampled_from(arguments)
        case t if t is bool:
            return st.booleans()
        case t if t is int:
            low = int(lowest(limits, 0))
            return st.integers(low, int(min(low + 3, highest(limits, math.inf))))
        case t if t is float:
            low, high = lowest(limits, -1.0), highest(limits, 1e30)
            allowed = {x for x in (low, 0.0, *SIZES, high) if low <= x <= high}
            return st.sampled_from(sorted(allowed - {x for m in limits for x in exclusive(m)}))
        case t if t is str:
            return st.sampled_from(WORDS)
        case t if t in (list, Sequence):
            shortest = next((x.min_length for x in limits if isinstance(x, Len)), 0)
            return st.lists(by_type(arguments[0]), min_size=shortest, max_size=3)
        case t if t is tuple:
            return st.tuples(*map(by_type, arguments)).map(list)
        case t if t in (dict, Mapping):
            return st.dictionaries(
                st.sampled_from(WORDS), by_type(arguments[1]) if arguments else PLAIN, max_size=2
            )
    return PLAIN


def lowest(limits: list[Any], default: float) -> float:
    return bound(limits, ("ge", "gt"), default, max)


def highest(limits: list[Any], default: float) -> float:
    return bound(limits, ("le", "lt"), default, min)


def bound(limits: list[Any], names: tuple[str, str], default: float, choose: Callable[..., float]) -> float:
    given = [getattr(limit, name, None) for limit in limits for name in names]
    return choose((x for x in given if x is not None), default=default)


def exclusive(limit: Any) -> list[float]:
    """Bounds that are not themselves allowed."""
    return [x for x in (getattr(limit, "gt", None), getattr(limit, "lt", None)) if x is not None]


def section(cls: type) -> st.SearchStrategy[Config]:
    """A mapping for the dataclass with what it needs, and perhaps more."""
    values = fields(cls)
    needed = [f.name for f in dataclasses.fields(cls) if is_needed(f)]
    return st.fixed_dictionaries(
        {name: values[name] for name in needed},
        optional={name: x for name, x in values.items() if name not in needed},
    )


def is_needed(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def fields(cls: type) -> dict[str, st.SearchStrategy[Any]]:
    """Values for each field of a dataclass; `OWN_VALUES` where the type alone says too little."""
    hints = get_type_hints(cls, include_extras=True)
    found: dict[str, st.SearchStrategy[Any]] = {}
    for field in dataclasses.fields(cls):
        own = [x for c in cls.__mro__ if (x := OWN_VALUES.get(f"{c.__name__}.{field.name}")) is not None]
        found[field.name] = own[0] if own else by_type(hints[field.name])
        owner = {name.lower(): path for name, path in EXTENSIONS.items()}.get(field.name.removesuffix("_cfg"))
        if field.name.endswith("_cfg") and owner:
            found[field.name] |= st.just(owner).flatmap(arguments_of)
    return found


def keys(cls: type, prefix: str = "") -> Iterator[tuple[str, st.SearchStrategy[Any]]]:
    """Every dotted key of the configuration, with its values."""
    hints, values = get_type_hints(cls, include_extras=True), fields(cls)
    for name, strategy in values.items():
        if dataclasses.is_dataclass(hints[name]):
            yield from keys(hints[name], f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", strategy


def entries(*classes: tuple[str, str]) -> st.SearchStrategy[list[Config]]:
    """A list of classes, each by name and import path, with some of their constructors' arguments."""
    return st.lists(st.sampled_from(classes).flatmap(entry), max_size=2)


def entry(named: tuple[str, str]) -> st.SearchStrategy[Config]:
    name, path = named
    return arguments_of(path, unpacked=False).map(lambda arguments: {"class_name": name, **arguments})


@cache
def arguments_of(path: str, unpacked: bool = True) -> st.SearchStrategy[Config]:
    """Arguments of a constructor; `unpacked`: of a single config class that it takes, the fields."""
    module, _, attribute = path.partition(":")
    cls = getattr(importlib.import_module(module), attribute)
    hints = get_type_hints(cls.__init__, include_extras=True)
    parameters = {n: p for n, p in inspect.signature(cls).parameters.items() if n in hints}
    configs = [arm for arm in members(hints.get("config")) if dataclasses.is_dataclass(arm)]
    if configs and unpacked:
        return section(configs[0])
    arguments = {n: by_type(hints[n]) for n in parameters}
    needed = [n for n, p in parameters.items() if p.default is p.empty]
    return st.fixed_dictionaries(
        {n: arguments[n] for n in needed}, optional={n: x for n, x in arguments.items() if n not in needed}
    )


OWN_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "TrainConfig.obs_groups": st.none()
    | st.dictionaries(
        st.sampled_from(["actor", "critic"]),
        st.lists(
            st.sampled_from(["policy", "policy", "privileged", "bits", MASK_GROUP]), min_size=1, max_size=3
        ),
    ),
    "TrainConfig.extensions": entries(*EXTENSIONS.items()),
    "TrainConfig.hooks": entries(*HOOKS.items(), (f"{__name__}:Quiet", f"{__name__}:Quiet")),
    "TrainConfig.seed": st.sampled_from([0, 1, 2**31, 2**63, 10**30]),
    "TrainConfig.max_iterations": st.sampled_from([1, 2, 3, 10**30]),
    "NetworkConfig.class_name": st.sampled_from([None, f"{__name__}:Linear", f"{__name__}:Quiet"]),
    "NetworkConfig.kwargs": st.sampled_from([{}, {"width": 2}, {"depth": 2}]),
    "DistributionConfig.std_range": st.sampled_from([[1e-6, 1e6], [1e-3, 1.0], [0.5, 0.5]]),
    "DistributionConfig.init_std": st.sampled_from([0.5, 0.5, 1.0, 1e-3, 1e-6, 1e6]),
    "PPOConfig.desired_kl": st.sampled_from([0.01, 1e-30, 1e30, None]),
    "PPOConfig.lr_bounds": st.sampled_from([[1e-30, 1.0], [1e-3, 1e-3], [1e-5, 1e-2]]),
    "PPOConfig.policy_objective": st.sampled_from(["clip", "penalty"]),
    "AMPConfig.dataset": st.just(f"{__name__}:motion"),
    "AMPConfig.obs_group": st.sampled_from(["policy", "privileged"]),
    "AMPConfig.mask_group": st.sampled_from([None, None, "privileged"]),
    "EstimatorConfig.target": st.sampled_from(
        ["policy", "privileged", ["privileged", 0, 1], ["policy", 1, 9]]
    ),
} | {f"AMPConfig.{name}": st.none() for name in ("motion_files", "motion_weights", "joint_names", "features")}
"""Values of keys that name something, by class and field."""

GIVEN = ("nproc", "num_envs", "compile")
"""Keys of the processes, of the environment and of the compiler."""
KEYS = {key: values for key, values in keys(TrainConfig) if key.rpartition(".")[2] not in GIVEN}
OTHER_KEYS = ("actor", "critic", "algorithm", "env", "actor.distribution", "x", "env.x")

TINY: Config = {
    "num_steps_per_env": 3,
    "max_iterations": 2,
    "eval_episodes": 2,
    "logger": "none",
    "actor": {"hidden_dims": [4], "rnn_hidden_dim": 3},
    "critic": {"hidden_dims": [4], "rnn_hidden_dim": 3},
    "algorithm": {"num_learning_epochs": 2, "num_mini_batches": 3, "compile": "off"},
}


def some_keys(number: int) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from([*KEYS]), min_size=number, max_size=number, unique=True)


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """A tiny configuration with some keys set, and now and then one thing wrong."""
    config: Config = {}
    for key in draw(st.integers(0, 20).flatmap(some_keys)):
        put(config, key, draw(KEYS[key]))
    config = merge(TINY, config)
    has_amp = config["algorithm"].get("amp_cfg") is not None
    config["algorithm"]["class_name"] = "PPOAMP" if has_amp else "PPO"
    if draw(st.integers(0, 5)) == 5:
        put(config, draw(st.sampled_from([*KEYS, *OTHER_KEYS])), draw(st.sampled_from(JUNK)))
    return config


def put(config: Config, key: str, value: Any) -> None:
    *sections, name = key.split(".")
    for part in sections:
        config = config.setdefault(part, {})
    config[name] = value


# ---------------------------------------------------------------------- the law


def make_world(world: dict[str, Any]) -> VecEnv:
    return constant_gymnasium(**world) if "mode" in world else SpacesEnv(**world)


def outcome(world: dict[str, Any], config: Config, has_files: bool, has_evaluation: bool) -> str:
    """Train two iterations: `trained`, or the text of the refusal."""
    env = make_world(world)
    with (
        tempfile.TemporaryDirectory() as directory,
        warnings.catch_warnings(),
        mock.patch.dict(os.environ, WANDB_MODE="disabled"),
    ):
        warnings.simplefilter("ignore", UserWarning)  # odd settings are warned of
        try:
            runner = OnPolicyRunner(
                env,
                config,
                directory if has_files else None,
                eval_env=make_world(world) if has_evaluation else None,
                quiet=True,
            )
            runner.learn(2)
        except ConfigError as error:
            assert getattr(env, "num_steps", 0) == 0, "refused after the first step"
            return str(error)
    for name, tensor in runner.alg.state_dict().items():
        assert not tensor.is_floating_point() or bool(tensor.isfinite().all()), f"{name} is not finite"
    return "trained"


CASES = {
    "world": WORLDS | GYMNASIUM_WORLDS,
    "config": configs(),
    "has_files": st.sampled_from([False] * 7 + [True]),
    "has_evaluation": st.sampled_from([False, False, True]),
}


def fuzz(num_examples: int, source: int | None = None) -> Counter[bool]:
    """How many configurations trained, and how many were refused.

    Args:
        num_examples: Configurations.
        source: Seed of the choices; None: the same each time.
    """
    counts: Counter[bool] = Counter()

    @settings(
        max_examples=num_examples,
        deadline=None,
        database=None,
        suppress_health_check=[*HealthCheck],
        derandomize=source is None,
    )
    @given(**CASES)
    def each(world: dict[str, Any], config: Config, has_files: bool, has_evaluation: bool) -> None:
        counts[outcome(world, config, has_files, has_evaluation) == "trained"] += 1

    (each if source is None else seed(source)(each))()
    return counts


def test_a_random_configuration_trains_or_is_refused() -> None:
    counts = fuzz(60)
    # refused ones teach little: most must train
    assert counts[True] > counts.total() / 3


@pytest.mark.slow
@pytest.mark.parametrize("source", [1, 2])
def test_2000_random_configurations_train_or_are_refused(source: int) -> None:
    assert fuzz(2000, source).total() >= 2000


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("algorithm.learning_rate", 2.0, "at most 1"),
        ("algorithm.critic_learning_rate", 1e30, "at most 1"),
        ("algorithm.lr_bounds", [1e-5, 2.0], "at most 1"),
        ("algorithm.schedule", {"type": "linear", "initial": 2.0}, "at most 1"),
        ("algorithm.schedule", {"type": "piecewise", "points": [[0, 1e-3], [1, 2.0]]}, "at most 1"),
        ("algorithm.value_loss_coef", 1e30, "at most 1e+06"),
        ("algorithm.entropy_coef", 1e30, "at most 1e+06"),
        ("algorithm.entropy_schedule", {"initial": 1e30}, "at most 1e+06"),
        ("algorithm.kl_beta", 1e30, "to 10000"),
        ("actor.last_layer_gain", 1e30, "at most 1000"),
        ("actor.distribution.std_range", [1e-30, 1.0], "at least 1e-06"),
        ("env.reward_scale", 1e30, "at most 1e+06"),
        ("extensions", [{"class_name": "RewardScaling", "scale": 1e30}], "at most 1e+06"),
        ("algorithm.rnd_cfg", {"weight": 1e30}, "at most 1e+06"),
    ],
)
def test_a_number_that_would_overflow_is_refused_by_its_key(key: str, value: Any, wanted: str) -> None:
    config: Config = {}
    put(config, key, value)
    refusal = outcome(PLAIN_WORLD, merge(TINY, config), has_files=False, has_evaluation=False)
    assert refusal.startswith(key)
    assert wanted in refusal
