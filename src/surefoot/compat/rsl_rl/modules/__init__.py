"""Parts that models are made of; and, under the names of RSL-RL 1 to 3, the policies of then."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from surefoot.compat.rsl_rl.modules.cnn import CNN
from surefoot.compat.rsl_rl.modules.distribution import (
    BetaDistribution,
    Distribution,
    GaussianDistribution,
    HeteroscedasticGaussianDistribution,
)
from surefoot.compat.rsl_rl.modules.mlp import MLP
from surefoot.compat.rsl_rl.modules.normalization import (
    EmpiricalDiscountedVariationNormalization,
    EmpiricalNormalization,
)
from surefoot.compat.rsl_rl.modules.rnn import RNN, HiddenState

if TYPE_CHECKING:
    from surefoot.compat.rsl_rl.modules.actor_critic import ActorCritic
    from surefoot.compat.rsl_rl.modules.actor_critic_cnn import ActorCriticCNN
    from surefoot.compat.rsl_rl.modules.actor_critic_recurrent import ActorCriticRecurrent
    from surefoot.compat.rsl_rl.modules.rnd import RandomNetworkDistillation, resolve_rnd_config
    from surefoot.compat.rsl_rl.modules.student_teacher import StudentTeacher
    from surefoot.compat.rsl_rl.modules.student_teacher_recurrent import StudentTeacherRecurrent
    from surefoot.compat.rsl_rl.modules.symmetry import resolve_symmetry_config

LATER = {
    "ActorCritic": "actor_critic",
    "ActorCriticCNN": "actor_critic_cnn",
    "ActorCriticRecurrent": "actor_critic_recurrent",
    "RandomNetworkDistillation": "rnd",
    "StudentTeacher": "student_teacher",
    "StudentTeacherRecurrent": "student_teacher_recurrent",
    "resolve_rnd_config": "rnd",
    "resolve_symmetry_config": "symmetry",
}
"""Where the older names are. They are imported when asked for: they are made of models, those of modules."""


def __getattr__(name: str) -> Any:
    if name in LATER:
        return getattr(importlib.import_module(f"{__name__}.{LATER[name]}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


__all__ = [
    "CNN",
    "MLP",
    "RNN",
    "ActorCritic",
    "ActorCriticCNN",
    "ActorCriticRecurrent",
    "BetaDistribution",
    "Distribution",
    "EmpiricalDiscountedVariationNormalization",
    "EmpiricalNormalization",
    "GaussianDistribution",
    "HeteroscedasticGaussianDistribution",
    "HiddenState",
    "RandomNetworkDistillation",
    "StudentTeacher",
    "StudentTeacherRecurrent",
    "resolve_rnd_config",
    "resolve_symmetry_config",
]
