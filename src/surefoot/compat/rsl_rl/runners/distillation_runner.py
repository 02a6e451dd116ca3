"""DistillationRunner: a student that learns from a teacher that was trained before."""

from __future__ import annotations

from surefoot.compat.rsl_rl.runners.on_policy_runner import OnPolicyRunner
from surefoot.errors import ConfigError


class DistillationRunner(OnPolicyRunner):
    """The same loop, which insists on a teacher."""

    def learn(self, num_learning_iterations: int, init_at_random_ep_len: bool = False) -> None:
        """Train, once a teacher was loaded.

        Raises:
            ConfigError: none was.
        """
        if not self.alg.teacher_loaded:
            raise ConfigError(
                "Teacher model parameters not loaded: call load() with the teacher's checkpoint."
            )
        super().learn(num_learning_iterations, init_at_random_ep_len)
