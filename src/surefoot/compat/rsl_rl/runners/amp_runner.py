"""AMPRunner: the name under which forks train with adversarial motion priors."""

from __future__ import annotations

from surefoot.compat.rsl_rl.runners.on_policy_runner import OnPolicyRunner


class AMPRunner(OnPolicyRunner):
    """The same loop: what PPOAMP adds, it adds by itself."""
