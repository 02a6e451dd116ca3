"""The training loops."""

from surefoot.compat.rsl_rl.runners.amp_runner import AMPRunner
from surefoot.compat.rsl_rl.runners.distillation_runner import DistillationRunner
from surefoot.compat.rsl_rl.runners.on_policy_runner import OnPolicyRunner

__all__ = ["AMPRunner", "DistillationRunner", "OnPolicyRunner"]
