"""Distillation: a student policy learns to do what a teacher would do where the student goes.

One iteration is T times `act` and `process_env_step`, then `compute_returns` and `update`, as with PPO.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import gymnasium
import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn
from torch.nn import functional

from surefoot import distributed
from surefoot.algorithm.config import Rate
from surefoot.algorithm.optimizer import OPTIMIZERS
from surefoot.algorithm.rollout_storage import RolloutStorage
from surefoot.algorithm.state import check_tensors, collect_state, restore_state
from surefoot.errors import ConfigError
from surefoot.field_checks import Checked
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.memory import forget
from surefoot.types import EnvSpec, Hidden, Observations, Step


@dataclass(frozen=True)
class DistillationConfig(Checked):
    """Numbers and choices of `Distillation`; the keys follow RSL-RL's names."""

    num_learning_epochs: Annotated[int, Ge(1)] = 1
    """Passes over each rollout. Raise: more learning per sample."""
    gradient_length: Annotated[int, Ge(1)] = 15
    """Steps of all environments in one optimiser step, and of a recurrent student through which the gradient
    goes back. Raise: learns to remember for longer, in fewer and steadier steps; more memory."""
    learning_rate: Rate = 1e-3
    """The optimiser's step size. Raise: faster, noisier."""
    max_grad_norm: Annotated[float, Gt(0), Le(1e12)] | None = None
    """Gradients are scaled down to this norm; null: never. Lower: steadier, slower."""
    loss_type: Literal["mse", "huber"] = "mse"
    """Distance of the actions: squared, or from a difference of 1 on linear, so that outliers count less."""
    optimizer: Literal["adam", "adamw", "sgd", "rmsprop"] = "adam"
    """Update rule."""
    use_mixed_precision: bool = False
    """Run the student's network in bfloat16."""


LOSSES = {"mse": functional.mse_loss, "huber": functional.huber_loss}


class Distillation(nn.Module):
    """Teacher to student, on the student's own rollouts (DAgger, Ross et al. 2011, arXiv:1011.0686).

    The student acts by sampling from its distribution; its mode is drawn towards the teacher's, step by step.
    The loss of an optimiser step is the sum, over the steps of all environments in it, of the mean over
    environments and actions. Memories of student and teacher go on over the updates, the student's as its
    newest weights remember the rollout.

    Args:
        student: Learns. Its critic, if it has one of its own, is not used.
        teacher: Is only asked, with its normalisers as they are; it may read other observation groups.
        spec: What the environment is; the action space must be a Box.
        config: Everything that is a number or a choice.
        num_steps_per_env: T.
        seed: Of the stream of action noise.
        storage: Where the rollout is kept; None: one of the student's observation groups.

    Raises:
        ConfigError: the actions have no mean.
    """

    def __init__(
        self,
        student: ActorCritic,
        teacher: ActorCritic,
        spec: EnvSpec,
        config: DistillationConfig | None = None,
        *,
        num_steps_per_env: int = 24,
        seed: int = 1,
        storage: RolloutStorage | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(spec.action_space, gymnasium.spaces.Box):
            raise ConfigError(f"Distillation needs actions that are numbers; got {spec.action_space}.")
        self.config = config = config or DistillationConfig()
        self.spec, self.student, self.teacher, self.iteration = spec, student, teacher, 0
        student.set_mixed_precision(config.use_mixed_precision)
        self.action_generator = distributed.generator(seed, "actions", spec.device, distributed.rank())
        distributed.broadcast_module(self)
        self.optimizer = OPTIMIZERS[config.optimizer](student.parameters(), lr=config.learning_rate)  # pyright: ignore[reportCallIssue]
        groups = {g: spec.observation_spaces[g] for g in student.inputs.read()} if storage is None else {}
        self.storage = storage or RolloutStorage(
            spec.num_envs, num_steps_per_env, groups, device=spec.device, dtype=student.inputs.like.dtype
        )
        # what the memories hold before the next step; zeros for episodes that begin come from the storage
        self.hidden: Hidden = student.initial_hidden(spec.num_envs)
        self.teacher_hidden: Hidden = teacher.initial_hidden(spec.num_envs)

    # ------------------------------------------------------------------ collection

    def act(self, obs: Observations) -> Tensor:
        """Sample the student's actions for the environment [N, ...], and record the teacher's."""
        student, teacher, step = self.student, self.teacher, self.storage.step
        student.action_head.explore(self.spec.num_envs, step, self.action_generator)
        is_first = self.storage.is_first[step]
        hidden = forget(self.hidden, is_first)
        with torch.inference_mode():
            mine, self.hidden = student.advance(student.inputs(obs, ("actor",)), hidden)
            raw = mine.sample(self.action_generator)
            theirs, self.teacher_hidden = teacher.advance(
                teacher.inputs(obs, ("actor",)), forget(self.teacher_hidden, is_first)
            )
            wanted = theirs.mode()
        # outside: the storage and the environment need tensors that may be used and changed freely
        self.storage.add_action(obs, wanted, {}, hidden)
        return student.to_env(raw)

    def process_env_step(
        self,
        step: Step | Observations,
        rewards: Tensor | None = None,
        dones: Tensor | None = None,
        extras: dict[str, Any] | None = None,
    ) -> None:
        """Record what followed the actions: a `Step`, or RSL-RL's `(obs, rewards, dones, extras)`."""
        if not isinstance(step, Step):
            assert rewards is not None and dones is not None  # noqa: PT018 - not a test
            step = Step.from_dones(step, rewards, dones, extras or {})
        self.storage.add_transition(dataclasses.replace(step, final_observations=None))

    def compute_returns(self, last_obs: Observations) -> None:
        """The rollout is complete; there are no returns to compute."""
        self.storage.end(last_obs)
        self.student.action_head.end_exploration()

    # ------------------------------------------------------------------ learning

    def update(self) -> dict[str, Tensor]:
        """Learn from the rollout, then refresh the student's normalisers.

        Returns:
            Metrics by logged name, 0-d tensors on the device, over all processes.
        """
        rollout, length = self.storage, self.config.gradient_length
        num_steps = rollout.num_transitions_per_env
        rollout.inputs = self.student.inputs({g: x[:-1] for g, x in rollout.observations.items()}, ("actor",))
        # what was remembered before the rollout; nothing yet before the first
        before = {name: x[0].clone() for name, x in rollout.hidden.items() if name in self.hidden}
        before = before or self.student.initial_hidden(rollout.num_envs)
        history: list[Tensor] = []
        for _ in range(self.config.num_learning_epochs):
            self.hidden = before
            parts = [slice(t, min(t + length, num_steps)) for t in range(0, num_steps, length)]
            history += [self._learn_from(steps) for steps in parts]
        error, count, norm, skipped = torch.stack(history).unbind(1)
        total, is_made = count.sum(), (skipped == 0) & (count > 0)
        self._update_normalizers()
        self.iteration += 1
        rollout.begin()
        return {
            "Loss/behavior": error.sum() / total.clamp(min=1),
            "Loss/grad_norm": torch.where(is_made, norm, 0.0).sum() / is_made.sum().clamp(min=1),
            "Loss/skipped_updates": skipped.sum(),
        }

    def _learn_from(self, steps: slice) -> Tensor:
        """One optimiser step on some steps of the rollout; [4]: the summed error and the count of its rows
        (over all processes), the gradient norm, and 1 if it is not finite: then the step was not made.
        """
        rollout = self.storage
        actions, self.hidden = self._student_actions(steps)
        distance = LOSSES[self.config.loss_type](actions, self.teacher_actions[steps], reduction="none")
        valid = rollout.valid[steps]
        error = torch.where(valid, distance.mean(-1), 0.0).sum()
        total = distributed.all_sum(torch.stack([error.detach(), valid.sum().to(error.dtype)]))
        # the mean over environments, summed over steps; a process with more rows counts for more
        loss = error * distributed.world_size() * valid.shape[0] / total[1].clamp(min=1)
        # without rows there is nothing to learn; momentum alone must not move the weights
        norm = distributed.minimize(loss, self.optimizer, self.config.max_grad_norm, is_due=total[1] > 0)
        self.student.project()
        self.hidden = {name: x.detach() for name, x in self.hidden.items()}
        return torch.stack([*total, norm, ~norm.isfinite()])

    def _student_actions(self, steps: slice) -> tuple[Tensor, Hidden]:
        """The student's mode [L, N, A] with its present weights, and its memory after the last step."""
        rollout, inputs = self.storage, {name: x[steps] for name, x in self.storage.inputs.items()}
        first = rollout.is_first[:-1][steps]
        if not self.hidden:
            rows = {name: x.flatten(0, 1) for name, x in inputs.items()}
            return self.student.advance(rows, {})[0].mode().unflatten(0, first.shape), {}
        hidden, modes = self.hidden, []
        for t in range(first.shape[0]):
            now = {name: x[t] for name, x in inputs.items()}
            distribution, hidden = self.student.advance(now, forget(hidden, first[t]))
            modes.append(distribution.mode())
        return torch.stack(modes), hidden

    @property
    def teacher_actions(self) -> Tensor:
        """[T, N, A], raw as the student's: what it is to do."""
        return self.storage.actions

    def _update_normalizers(self) -> None:
        rollout = self.storage
        rows = {g: x[:-1].flatten(0, 1) for g, x in rollout.observations.items()}
        self.student.inputs.update(rows, None if rollout.mask is None else rollout.mask.flatten())

    # ------------------------------------------------------------------ between iterations

    def state(self) -> dict[str, Any]:
        """Everything that the algorithm needs to go on, as tensors and plain data."""
        return {"iteration": self.iteration, **self._here(), **collect_state(self)}

    def load_state(self, state: dict[str, Any]) -> None:
        for part, own in self._here().items():
            check_tensors(own, state[part])
        restore_state(self, state, counters=("iteration",))
        self.storage.begin()
        self.iteration = state["iteration"]
        self.storage.is_first[0] = state["episodes"]["is_first"]
        device = self.spec.device
        self.hidden = {name: x.to(device).clone() for name, x in state["hidden"].items()}
        self.teacher_hidden = {name: x.to(device).clone() for name, x in state["teacher_hidden"].items()}

    def _here(self) -> dict[str, dict[str, Tensor]]:
        """Where the environments stand: what is remembered of their episodes, and which begin."""
        parts = {
            "hidden": self.hidden,
            "teacher_hidden": self.teacher_hidden,
            "episodes": {"is_first": self.storage.is_first[0]},
        }
        return {part: {name: x.clone() for name, x in tensors.items()} for part, tensors in parts.items()}
