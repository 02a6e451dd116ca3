"""Where RSL-RL 2 and 3 had random network distillation."""

from surefoot.compat.rsl_rl.extensions.rnd import RandomNetworkDistillation, resolve_rnd_config

__all__ = ["RandomNetworkDistillation", "resolve_rnd_config"]
