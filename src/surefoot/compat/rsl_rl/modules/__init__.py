"""Parts that models are made of."""

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

__all__ = [
    "CNN",
    "MLP",
    "RNN",
    "BetaDistribution",
    "Distribution",
    "EmpiricalDiscountedVariationNormalization",
    "EmpiricalNormalization",
    "GaussianDistribution",
    "HeteroscedasticGaussianDistribution",
    "HiddenState",
]
