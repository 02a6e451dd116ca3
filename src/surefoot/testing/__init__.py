"""For our tests and for yours: contract suites and tiny environments with known answers."""

from surefoot.testing.env_suite import check_env
from surefoot.testing.environments import (
    ConstantEnv,
    DiscreteTargetEnv,
    ReusedBufferEnv,
    TargetEnv,
    TinyEnv,
)
from surefoot.testing.extension_suite import check_extension
from surefoot.testing.gymnasium_environments import (
    GymConstant,
    GymForbidden,
    GymMasked,
    GymShapes,
    GymStart,
    GymTarget,
    constant_gymnasium,
)

__all__ = [
    "ConstantEnv",
    "DiscreteTargetEnv",
    "GymConstant",
    "GymForbidden",
    "GymMasked",
    "GymShapes",
    "GymStart",
    "GymTarget",
    "ReusedBufferEnv",
    "TargetEnv",
    "TinyEnv",
    "check_env",
    "check_extension",
    "constant_gymnasium",
]
