"""Distillation with RSL-RL's names: it acts and stores as RSL-RL does, and learns by Surefoot's."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from surefoot import distributed
from surefoot.algorithm import distillation
from surefoot.algorithm.distillation import LOSSES, DistillationConfig
from surefoot.compat.rsl_rl.algorithms.base import Algorithm
from surefoot.compat.rsl_rl.algorithms.engine import spec_of
from surefoot.compat.rsl_rl.algorithms.policy import RawInputs, groups_of
from surefoot.compat.rsl_rl.checkpoints import check_fits, part
from surefoot.compat.rsl_rl.models.mlp_model import MLPModel
from surefoot.compat.rsl_rl.models.rnn_model import RNNModel
from surefoot.compat.rsl_rl.modules.distribution import GaussianDistribution
from surefoot.compat.rsl_rl.modules.rnn import HiddenState
from surefoot.compat.rsl_rl.modules.student_teacher import StudentTeacherPair
from surefoot.compat.rsl_rl.storage import RolloutStorage
from surefoot.compat.rsl_rl.storage.rollout_storage import flat_state, layered_state
from surefoot.compat.rsl_rl.utils import resolve_class, resolve_obs_groups
from surefoot.config import SurefootWarning
from surefoot.errors import CheckpointError, ConfigError, EnvContractError
from surefoot.networks.encoders import at_least_float32
from surefoot.types import EnvSpec, Hidden, Observations

MODELS = ("student", "teacher")


@dataclass(frozen=True)
class _Actions:
    """What a model would do without noise [..., A]."""

    actions: Tensor

    def mode(self) -> Tensor:
        return self.actions


class ModelPolicy(nn.Module):
    """The part of a policy that distillation learns by, on top of one model with or without a distribution.

    Args:
        model: Of any class: only its own forward pass is called, and one of a memory keeps its state.
        spec: What the environment is.
    """

    def __init__(self, model: MLPModel, spec: EnvSpec) -> None:
        super().__init__()
        self.model, self.inputs = model, RawInputs({"actor": model}, spec)
        self.low_precision = False

    def set_mixed_precision(self, enabled: bool) -> None:
        self.low_precision = enabled

    def initial_hidden(self, num_envs: int) -> dict[str, Tensor]:
        if not isinstance(self.model, RNNModel):
            return {}
        rnn = self.model.rnn.rnn
        num_states = rnn.num_layers * (2 if isinstance(rnn, nn.LSTM) else 1)
        return {"actor": next(rnn.parameters()).new_zeros(num_envs, num_states * rnn.hidden_size)}

    def advance(self, inputs: Observations, hidden: Hidden) -> tuple[_Actions, Hidden]:
        """One step [N, ...]; without a memory, any rows."""
        if hidden:
            self.remember(hidden)
        with torch.autocast(self.inputs.like.device.type, torch.bfloat16, enabled=self.low_precision):
            actions = self.model(inputs)
        after = {"actor": flat_state(self.model.get_hidden_state())} if hidden else {}
        return _Actions(at_least_float32(actions)), after

    def remember(self, hidden: Hidden) -> None:
        """Put the memory into the model."""
        if isinstance(self.model, RNNModel) and hidden:
            self.model.reset(hidden_state=layered_state(hidden["actor"], self.model.rnn.rnn))

    def project(self) -> None:
        self.model.project()


class Engine(distillation.Distillation):
    """Surefoot's distillation, fed by RSL-RL's storage.

    Args:
        student, teacher: On the device of the storage.
        storage: Of the type `distillation`.
        config: Numbers and choices.

    Raises:
        ConfigError: the student has a memory of another form than RNNModel's.
    """

    student: ModelPolicy  # pyright: ignore[reportIncompatibleVariableOverride] - what `update` calls of it
    teacher: ModelPolicy  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(
        self, student: MLPModel, teacher: MLPModel, storage: RolloutStorage, config: DistillationConfig
    ) -> None:
        if student.is_recurrent and not isinstance(student, RNNModel):
            raise ConfigError(
                f"student: {type(student).__name__} has a memory and is no RNNModel, so its state cannot be "
                "learned through; subclass RNNModel."
            )
        spec = spec_of(storage, gamma=1.0, step_dt=None)
        policies: list[Any] = [ModelPolicy(model, spec) for model in (student, teacher)]
        super().__init__(policies[0], policies[1], spec, config, storage=storage.rollout)
        self.wanted = storage

    @property
    def teacher_actions(self) -> Tensor:
        return self.wanted.privileged_actions


class Distillation(Algorithm):
    """A student model learns to do what a teacher model would.

    The arguments are RSL-RL's; `student` may also be one of its older policies that hold both, followed by
    the storage or by a later `init_storage`.

    Args:
        **unused: Keys of a configuration that have no effect here; a warning names those that are set.

    Attributes:
        teacher_loaded: Whether the teacher has the parameters of a checkpoint.
        metrics: Of the last update, by Surefoot's names.

    Raises:
        ConfigError: a value cannot be used.
    """

    names = MODELS
    student: MLPModel
    teacher: MLPModel
    teacher_loaded: bool = False

    def __init__(
        self,
        student: Any,
        teacher: Any = None,
        storage: RolloutStorage | None = None,
        num_learning_epochs: int = 1,
        gradient_length: int = 15,
        learning_rate: float = 1e-3,
        max_grad_norm: float | None = None,
        loss_type: str = "mse",
        optimizer: str = "adam",
        use_mixed_precision: bool | str = False,
        device: torch.device | str = "cpu",
        multi_gpu_cfg: Mapping[str, int] | None = None,
        grad_reduce_bucket_mb: float = 25,
        **unused: Any,
    ) -> None:
        self.num_learning_epochs, self.gradient_length = num_learning_epochs, gradient_length
        self.max_grad_norm, self.loss_type = max_grad_norm, loss_type
        self._optimizer_name, self._initial_rate = optimizer, learning_rate
        # of student and teacher; where a learning loop of the client's own keeps them
        self.last_hidden_states: tuple[HiddenState, HiddenState] = (None, None)
        if named := sorted(key for key, value in unused.items() if value is not None):
            warnings.warn(
                f"algorithm: {named} have no effect with Distillation.", SurefootWarning, stacklevel=2
            )
        super().__init__(
            (student, teacher), storage, device, use_mixed_precision, multi_gpu_cfg, grad_reduce_bucket_mb
        )
        if storage is None:
            self._config()  # a value that cannot be used is named now

    def _attach(self, storage: RolloutStorage) -> None:
        self.storage = storage
        # every step's hidden states are for a learning loop of the client's own
        storage.keeps_memories = type(self).update is not Distillation.update
        self.engine = Engine(self.student, self.teacher, storage, self._config())
        self.optimizer = self.engine.optimizer

    # ------------------------------------------------------------------ collection

    def act(self, obs: Mapping[str, Tensor]) -> Tensor:
        """The student's actions [N, A], sampled if it has a distribution; the teacher's are noted."""
        transition, before = self.transition, self.student.get_hidden_state()
        # copied first: the environment may write its next observation over this one
        transition.observations = self.storage.keep_observations(obs)
        with torch.no_grad():
            transition.actions = self.student(obs, stochastic_output=True).detach()
            transition.privileged_actions = self.teacher(obs).detach()
        if before is None and self.student.is_recurrent:
            zeros = self.engine.student.initial_hidden(self.storage.num_envs)["actor"]
            before = layered_state(zeros, self.student.rnn.rnn)  # pyright: ignore
        transition.hidden_states = (before, None)
        return transition.actions

    def process_env_step(
        self,
        obs: Mapping[str, Tensor],
        rewards: Tensor,
        dones: Tensor,
        extras: Mapping[str, Any],
    ) -> None:
        """Store the step; student and teacher forget what is over."""
        self.transition.rewards, self.transition.dones = rewards, dones
        self.storage.add_transition(self.transition)
        self.transition.clear()
        self.student.reset(dones)
        self.teacher.reset(dones)

    def compute_returns(self, obs: Mapping[str, Tensor]) -> None:
        """Nothing: there are none."""

    # ------------------------------------------------------------------ learning

    def update(self) -> dict[str, float]:
        """Learn from the rollout; `behavior` is the mean loss, and others are Surefoot's.

        The teacher remembers on; the student, what its new weights remember of the rollout.

        Raises:
            EnvContractError: the rollout is not complete.
        """
        rollout, engine = self.storage.rollout, self.engine
        if rollout.step != rollout.num_transitions_per_env:
            raise EnvContractError(
                f"the rollout holds {rollout.step} of {rollout.num_transitions_per_env} steps."
            )
        engine.config = self._config()
        with torch.inference_mode(False), torch.enable_grad():
            metrics = engine.update()
        engine.student.remember(engine.hidden)
        self.student.reset(rollout.is_first[0])
        values = torch.stack([x.double() for x in metrics.values()]).tolist()
        self.metrics = dict(zip(metrics, values, strict=True))
        return {name.removeprefix("Loss/"): value for name, value in self.metrics.items()}

    @property
    def learning_rate(self) -> float:
        """Of the next update."""
        return float(self.optimizer.param_groups[0]["lr"])

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    @property
    def num_updates(self) -> int:
        """Updates so far."""
        return self.engine.iteration

    @num_updates.setter
    def num_updates(self, number: int) -> None:
        self.engine.iteration = number

    @property
    def loss_fn(self) -> Callable[..., Tensor]:
        """Of the student's actions and the teacher's."""
        return LOSSES[self.loss_type]

    def _config(self) -> DistillationConfig:
        """By the attributes, which clients may change between iterations."""
        return DistillationConfig(
            num_learning_epochs=self.num_learning_epochs,
            gradient_length=self.gradient_length,
            learning_rate=self._initial_rate,
            max_grad_norm=self.max_grad_norm or None,  # 0 switches off, too
            loss_type=self.loss_type,  # pyright: ignore[reportArgumentType]
            optimizer=self._optimizer_name,  # pyright: ignore[reportArgumentType]
            use_mixed_precision=bool(self.use_mixed_precision),
        )

    # ------------------------------------------------------------------ around

    @property
    def policy(self) -> Any:
        """RSL-RL 2.3 to 3.x: one policy that holds both models."""
        if self._legacy_policy is None:
            is_gaussian = isinstance(self.student.distribution, GaussianDistribution)
            self._legacy_policy = StudentTeacherPair(*self._pair) if is_gaussian else self.student
            self._legacy_policy.loaded_teacher = self.teacher_loaded
        return self._legacy_policy

    def get_policy(self) -> MLPModel:
        return self.student

    def train_mode(self) -> None:
        """The student learns; the teacher stays in evaluation mode."""
        self.student.train()
        self.teacher.eval()

    def eval_mode(self) -> None:
        self.student.eval()
        self.teacher.eval()

    def warm_up(self, obs: Mapping[str, Tensor]) -> None:
        """Give the student's normaliser provisional statistics, until the first update; not counted."""
        self.student.warm_up(obs)

    def broadcast_parameters(self) -> None:
        """Every process takes those of process 0."""
        distributed.broadcast_module(self.engine)

    def save(self) -> dict[str, Any]:
        """Models and optimiser by RSL-RL's keys."""
        return {
            "student_state_dict": self.student.state_dict(),
            "teacher_state_dict": self.teacher.state_dict(),
            "optimizer_state_dict": self.optimizer.state_dict(),
        }

    def load(self, loaded_dict: dict[str, Any], load_cfg: Mapping[str, bool] | None, strict: bool) -> bool:
        """Take what `save` gave, or the actor of a run of PPO as the teacher.

        Args:
            loaded_dict: A checkpoint in the keys of RSL-RL 4 and later.
            load_cfg: Which parts: student, teacher, optimizer, iteration. Default: the teacher of a run of
                PPO, else all.
            strict: Whether every parameter must be there.

        Returns:
            Whether the caller is to take the iteration, too.

        Raises:
            CheckpointError: a part is missing or does not fit; nothing has been changed then.
        """
        of_ppo = "actor_state_dict" in loaded_dict
        if load_cfg is None:
            parts = ("teacher",) if of_ppo else (*MODELS, "optimizer", "iteration")
            load_cfg = dict.fromkeys(parts, True)
        states: dict[str, Any] = {}
        for name in MODELS:
            if load_cfg.get(name):
                is_actor = name == "teacher" and of_ppo and "teacher_state_dict" not in loaded_dict
                key = "actor_state_dict" if is_actor else f"{name}_state_dict"
                states[name] = check_fits(part(loaded_dict, key), getattr(self, name), name, strict)
        if load_cfg.get("optimizer"):
            self._check_optimizer(part(loaded_dict, "optimizer_state_dict"))
        for name, state in states.items():
            getattr(self, name).load_state_dict(state, strict=strict)
        if load_cfg.get("optimizer"):
            self.optimizer.load_state_dict(loaded_dict["optimizer_state_dict"])
        if "teacher" in states:
            self.teacher_loaded = True
            if self._legacy_policy is not None:
                self._legacy_policy.loaded_teacher = True
        return bool(load_cfg.get("iteration", False))

    def _check_optimizer(self, saved: Mapping[str, Any]) -> None:
        counts = [
            [len(group["params"]) for group in groups]
            for groups in (saved["param_groups"], self.optimizer.param_groups)
        ]
        if counts[0] != counts[1]:
            raise CheckpointError(
                f"the optimiser of the checkpoint has groups of {counts[0]} parameters, this one of "
                f"{counts[1]}; load with load_cfg without 'optimizer' to start it anew."
            )

    @classmethod
    def construct_algorithm(
        cls, obs: Any, env: Any, cfg: dict[str, Any], device: torch.device | str
    ) -> Distillation:
        """From RSL-RL's configuration; only the student's observation groups are stored.

        Raises:
            ConfigError: RND or symmetry is on, which do not go together with distillation.
        """
        alg_class, alg_cfg = resolve_class(cfg["algorithm"])
        classes = {name: resolve_class(cfg[name]) for name in MODELS}
        cfg["obs_groups"] = groups = resolve_obs_groups(obs, cfg["obs_groups"], list(MODELS))
        if named := [key for key in ("rnd_cfg", "symmetry_cfg") if alg_cfg.get(key) is not None]:
            raise ConfigError(f"algorithm.{named[0]} does not go together with Distillation; remove it.")
        student, teacher = (
            kind(obs, groups, name, env.num_actions, **kwargs).to(device)
            for name, (kind, kwargs) in classes.items()
        )
        read = {group: obs[group] for group in groups_of(student)}
        num_steps = cfg["num_steps_per_env"]
        storage = RolloutStorage("distillation", env.num_envs, num_steps, read, [env.num_actions], device)
        algorithm = alg_class(
            student, teacher, storage, device=device, multi_gpu_cfg=cfg.get("multi_gpu"), **alg_cfg
        )
        algorithm.compile(cfg.get("torch_compile_mode"))
        return algorithm
