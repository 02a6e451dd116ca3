"""RSL-RL's rollout storage over Surefoot's."""

from surefoot.compat.rsl_rl.storage.rollout_storage import RolloutStorage

__all__ = ["RolloutStorage"]
