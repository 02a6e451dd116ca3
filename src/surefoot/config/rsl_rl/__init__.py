"""RSL-RL's configuration files: those of every generation as one form, and that form as Surefoot's own.

train_cfg, notes = modernize(old)      # 5.5.1's form
config, notes = from_rsl_rl(old)       # ours
"""

from surefoot.config.rsl_rl.generations import modernize
from surefoot.config.rsl_rl.native import from_rsl_rl, is_rsl_rl

__all__ = ["from_rsl_rl", "is_rsl_rl", "modernize"]
