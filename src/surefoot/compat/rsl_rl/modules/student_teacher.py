"""`StudentTeacher` of RSL-RL 2.3 to 3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from surefoot.compat.rsl_rl.models.mlp_model import MLPModel, Observations
from surefoot.compat.rsl_rl.modules.policy_pair import (
    Groups,
    PolicyPair,
    noise,
    observations,
    warn_of_unknown,
)
from surefoot.compat.rsl_rl.modules.rnn import HiddenState
from surefoot.errors import CheckpointError


class StudentTeacherPair(PolicyPair):
    """A student that learns what its teacher does; the teacher stays as it is."""

    names = ("student", "teacher")

    def __init__(self, student: MLPModel, teacher: MLPModel) -> None:
        super().__init__(student, teacher)
        self.loaded_teacher = False
        teacher.eval()

    @property
    def student_model(self) -> MLPModel:
        return self._models[0]

    @property
    def teacher_model(self) -> MLPModel:
        return self._models[1]

    def get_student_obs(self, obs: Observations) -> Tensor:
        """The vectors that the student reads [..., D]."""
        return self.student_model.vectors(obs)

    def get_teacher_obs(self, obs: Observations) -> Tensor:
        """The vectors that the teacher reads [..., D]."""
        return self.teacher_model.vectors(obs)

    @torch.no_grad()
    def evaluate(
        self,
        observations: Observations,
        masks: Tensor | None = None,
        hidden_states: HiddenState = None,
        hidden_state: HiddenState = None,
    ) -> Tensor:
        """The teacher's actions [..., A], without a gradient."""
        return super().evaluate(observations, masks, hidden_states, hidden_state)

    def update_normalization(self, obs: Observations) -> None:
        """Count the student's observations."""
        self.student_model.update_normalization(obs)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.teacher_model.eval()
        return self

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> bool:
        """Load a distillation, or into the teacher the actor of a policy that PPO trained.

        Returns:
            Whether the distillation that wrote `state_dict` goes on.

        Raises:
            CheckpointError: it holds neither.
        """
        resumes = any(key.startswith("student.") for key in state_dict)
        if not resumes:
            if not any(key.startswith("actor.") for key in state_dict):
                raise CheckpointError(
                    "this state dict holds neither a student nor an actor; it begins with "
                    f"{', '.join(list(state_dict)[:3])}."
                )
            own = {
                key: x for key, x in self.state_dict().items() if not key.startswith(("teacher", "memory_t"))
            }
            state_dict = own | _as_teacher(state_dict)
        super().load_state_dict(state_dict, strict, assign)
        self.loaded_teacher = True
        return resumes


def _as_teacher(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """The actor's entries under the teacher's names."""
    names = {"actor": "teacher", "actor_obs_normalizer": "teacher_obs_normalizer", "memory_a": "memory_t"}
    split = {key: key.partition(".") for key in state_dict}
    return {
        f"{names[part]}.{rest}": state_dict[key] for key, (part, _, rest) in split.items() if part in names
    }


class StudentTeacher(StudentTeacherPair):
    """Two multi-layer perceptrons.

    Args:
        obs: Observations of some environments, or the number of the student's.
        obs_groups: Groups of the sets `policy` (or `student`) and `teacher`, or the number of the teacher's
            observations.
        num_actions: A.
        student_obs_normalization, teacher_obs_normalization: Whether observations are normalised.
        student_hidden_dims, teacher_hidden_dims, activation: Of the perceptrons.
        init_noise_std, noise_std_type: `init_std` and `std_type` of the student's distribution.
        **unknown: `num_student_obs` and `num_teacher_obs`; all else has no effect, and a warning says so.
    """

    def __init__(
        self,
        obs: Observations | int | None = None,
        obs_groups: Groups | int | None = None,
        num_actions: int = 0,
        *,
        student_obs_normalization: bool = False,
        teacher_obs_normalization: bool = False,
        student_hidden_dims: Sequence[int] = (256, 256, 256),
        teacher_hidden_dims: Sequence[int] = (256, 256, 256),
        activation: str = "elu",
        init_noise_std: float = 0.1,
        noise_std_type: str = "scalar",
        **unknown: Any,
    ) -> None:
        rows, groups = observations(obs, obs_groups, num_actions, unknown, self.names)
        warn_of_unknown(StudentTeacher, unknown)
        student = MLPModel(
            rows,
            groups,
            "student",
            num_actions,
            student_hidden_dims,
            activation,
            student_obs_normalization,
            noise(init_noise_std, noise_std_type),
        )
        teacher = MLPModel(
            rows, groups, "teacher", num_actions, teacher_hidden_dims, activation, teacher_obs_normalization
        )
        super().__init__(student, teacher)
