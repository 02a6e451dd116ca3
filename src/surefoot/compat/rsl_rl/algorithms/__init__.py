"""RSL-RL's algorithms on Surefoot's engine."""

from surefoot.compat.rsl_rl.algorithms.distillation import Distillation
from surefoot.compat.rsl_rl.algorithms.ppo import PPO

__all__ = ["PPO", "Distillation"]
