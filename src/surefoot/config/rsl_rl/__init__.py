"""RSL-RL's configuration files: those of every generation as one form, and that form as Surefoot's own.

train_cfg, notes = modernize(old)
"""

from surefoot.config.rsl_rl.generations import modernize

__all__ = ["modernize"]
