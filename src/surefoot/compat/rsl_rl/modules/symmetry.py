"""Where RSL-RL 3 had symmetry."""

from surefoot.compat.rsl_rl.extensions.symmetry import resolve_symmetry_config

__all__ = ["resolve_symmetry_config"]
