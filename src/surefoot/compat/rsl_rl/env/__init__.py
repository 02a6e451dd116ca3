"""The interface of environments."""

from surefoot.compat.rsl_rl.env.vec_env import VecEnv

__all__ = ["VecEnv"]
