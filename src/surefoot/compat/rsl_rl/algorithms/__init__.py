"""RSL-RL's algorithms on Surefoot's engine."""

from surefoot.compat.rsl_rl.algorithms.distillation import Distillation
from surefoot.compat.rsl_rl.algorithms.ppo import PPO
from surefoot.compat.rsl_rl.algorithms.ppo_amp import PPOAMP

__all__ = ["PPO", "PPOAMP", "Distillation"]
