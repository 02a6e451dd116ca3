"""`StudentTeacherRecurrent` of RSL-RL 2.3 to 3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from surefoot.compat.rsl_rl.models.mlp_model import MLPModel, Observations
from surefoot.compat.rsl_rl.models.rnn_model import RNNModel
from surefoot.compat.rsl_rl.modules.policy_pair import (
    Groups,
    memory,
    noise,
    observations,
    warn_of_unknown,
)
from surefoot.compat.rsl_rl.modules.student_teacher import StudentTeacherPair


class StudentTeacherRecurrent(StudentTeacherPair):
    """A student with a memory, `memory_s`; arguments as for `StudentTeacher`.

    Args:
        rnn_type: `lstm` or `gru`.
        rnn_hidden_dim: Size of the memories, once called `rnn_hidden_size`.
        rnn_num_layers: Layers of the memories.
        teacher_recurrent: Whether the teacher has one too, `memory_t`.
    """

    is_recurrent = True

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
        rnn_type: str = "lstm",
        rnn_hidden_dim: int = 256,
        rnn_num_layers: int = 1,
        teacher_recurrent: bool = False,
        **unknown: Any,
    ) -> None:
        rows, groups = observations(obs, obs_groups, num_actions, unknown, self.names)
        rnn = memory(rnn_type, rnn_hidden_dim, rnn_num_layers, unknown)
        warn_of_unknown(StudentTeacherRecurrent, unknown)
        student = RNNModel(
            rows,
            groups,
            "student",
            num_actions,
            student_hidden_dims,
            activation,
            student_obs_normalization,
            noise(init_noise_std, noise_std_type),
            **rnn,
        )
        teacher_class = RNNModel if teacher_recurrent else MLPModel
        teacher = teacher_class(
            rows,
            groups,
            "teacher",
            num_actions,
            teacher_hidden_dims,
            activation,
            teacher_obs_normalization,
            **(rnn if teacher_recurrent else {}),
        )
        super().__init__(student, teacher)
        self.teacher_recurrent = teacher_recurrent
