"""RSL-RL's extensions over Surefoot's."""

from surefoot.compat.rsl_rl.extensions.rnd import RandomNetworkDistillation, resolve_rnd_config
from surefoot.compat.rsl_rl.extensions.symmetry import Symmetry, resolve_symmetry_config

__all__ = ["RandomNetworkDistillation", "Symmetry", "resolve_rnd_config", "resolve_symmetry_config"]
