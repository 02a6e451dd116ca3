"""PPO with RSL-RL's names: it acts and stores as RSL-RL does, and learns by Surefoot's engine."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from surefoot import distributed
from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.extension import Extension
from surefoot.algorithm.state import restore_state
from surefoot.compat.rsl_rl.algorithms.base import Algorithm
from surefoot.compat.rsl_rl.algorithms.engine import Engine, num_batches
from surefoot.compat.rsl_rl.algorithms.optimizer_view import OptimizerView
from surefoot.compat.rsl_rl.algorithms.policy import groups_of
from surefoot.compat.rsl_rl.checkpoints import check_fits, part
from surefoot.compat.rsl_rl.extensions import (
    RandomNetworkDistillation,
    Symmetry,
    resolve_rnd_config,
    resolve_symmetry_config,
)
from surefoot.compat.rsl_rl.models.mlp_model import MLPModel
from surefoot.compat.rsl_rl.modules.actor_critic import ActorCriticPair
from surefoot.compat.rsl_rl.modules.client_policy import ClientActor, make_policy
from surefoot.compat.rsl_rl.modules.distribution import GaussianDistribution
from surefoot.compat.rsl_rl.storage import RolloutStorage
from surefoot.compat.rsl_rl.utils import resolve_class, resolve_obs_groups
from surefoot.config import SurefootWarning
from surefoot.errors import EnvContractError
from surefoot.extensions.auxiliary import PolicyLosses
from surefoot.types import Step

FINAL_OBSERVATIONS = ("final_observations", "terminal_obs", "time_out_bootstrap_obs")
"""Where an environment may put the observations that episodes ended with [N, ...], in `extras`."""

LOSSES = {
    "Loss/value": "value",
    "Loss/surrogate": "surrogate",
    "Loss/entropy": "entropy",
    "Rnd/loss": "rnd",
    "Symmetry/error": "symmetry",
}
"""RSL-RL's names in `update()`'s result."""


class PPO(Algorithm):
    """PPO for an actor and a critic model.

    The arguments are RSL-RL's; `actor` may also be one of its older policies that hold both, followed by the
    storage or by a later `init_storage`. Beyond them:

    Args:
        enable_aux_loss: Train with the losses of models that have `aux_losses(batch, out)`.
        aux_loss_coef: Their weight.
        extensions: Surefoot's, beside those of the configuration.
        step_dt: Seconds of a step, for extensions.
        seed: Of the order of mini-batches and of extensions; actions are drawn from torch's own generator.

    Attributes:
        metrics: Of the last update, by Surefoot's names.
        intrinsic_rewards: What extensions added to the last rollout's rewards [T, N]; None before.
    """

    names = ("actor", "critic")
    actor: MLPModel
    critic: MLPModel

    def __init__(
        self,
        actor: Any,
        critic: Any = None,
        storage: RolloutStorage | None = None,
        num_learning_epochs: int = 5,
        num_mini_batches: int = 4,
        clip_param: float = 0.2,
        gamma: float = 0.99,
        lam: float = 0.95,
        value_loss_coef: float = 1.0,
        entropy_coef: float = 0.01,
        learning_rate: float = 0.001,
        max_grad_norm: float | None = 1.0,
        optimizer: str = "adam",
        use_clipped_value_loss: bool = True,
        schedule: str = "adaptive",
        desired_kl: float | None = 0.01,
        normalize_advantage_per_mini_batch: bool = False,
        use_mixed_precision: bool | str = False,
        device: torch.device | str = "cpu",
        rnd_cfg: Mapping[str, Any] | None = None,
        symmetry_cfg: Mapping[str, Any] | None = None,
        multi_gpu_cfg: Mapping[str, int] | None = None,
        grad_reduce_bucket_mb: float = 25,
        *,
        enable_aux_loss: bool = False,
        aux_loss_coef: float = 1.0,
        extensions: Sequence[Extension] = (),
        step_dt: float | None = None,
        seed: int = 1,
    ) -> None:
        self.num_learning_epochs, self.num_mini_batches = num_learning_epochs, num_mini_batches
        self.clip_param, self.gamma, self.lam = clip_param, gamma, lam
        self.value_loss_coef, self.entropy_coef = value_loss_coef, entropy_coef
        self.max_grad_norm, self.use_clipped_value_loss = max_grad_norm, use_clipped_value_loss
        self.schedule, self.desired_kl = schedule, desired_kl
        self.normalize_advantage_per_mini_batch = normalize_advantage_per_mini_batch
        self._optimizer_name, self._initial_rate, self._set_rate = optimizer, learning_rate, learning_rate
        self._step_dt, self._seed = step_dt, seed
        self.rnd = RandomNetworkDistillation(device=device, **rnd_cfg) if rnd_cfg else None
        self.symmetry = Symmetry(**symmetry_cfg) if symmetry_cfg else None
        self._extensions = [x.extension for x in (self.rnd, self.symmetry) if x is not None]
        self._extensions += [*extensions, *([PolicyLosses(aux_loss_coef)] if enable_aux_loss else [])]
        self.intrinsic_rewards: Tensor | None = None
        self._has_warned = False
        super().__init__(
            (actor, critic), storage, device, use_mixed_precision, multi_gpu_cfg, grad_reduce_bucket_mb
        )

    def _attach(self, storage: RolloutStorage) -> None:
        """Build the engine: the models' parameters become views into its buffer."""
        self.storage = storage
        config = self._config()
        storage.gamma = self.gamma
        storage.cut_sequences(num_batches(config, storage.rollout))
        # every step's hidden states are for a learning loop of the client's own
        storage.keeps_memories = type(self).update is not PPO.update
        engine = Engine(self.actor, self.critic, storage, config, self._extensions, self._step_dt, self._seed)
        engine.set_config(config)
        self.engine, self._used = engine, config
        parameters = chain(self.actor.parameters(), self.critic.parameters())
        self.optimizer = OptimizerView(engine.optimizer, parameters, self._take_rate)

    # ------------------------------------------------------------------ collection

    def act(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Sample actions [N, A], and note everything about the step that begins."""
        transition = self.transition
        # copied first: the environment may write its next observation over this one
        transition.observations = self.storage.keep_observations(obs)
        transition.hidden_states = (self.actor.get_hidden_state(), self.critic.get_hidden_state())
        with torch.no_grad(), self._precision():
            actions = self.actor(transition.observations, stochastic_output=True)
            values = self.critic(transition.observations)
            transition.actions_log_prob = self.actor.get_output_log_prob(actions).detach()
        transition.actions, transition.values = actions.detach(), values.detach()
        transition.distribution_params = tuple(p.detach() for p in self.actor.output_distribution_params)
        return transition.actions

    def process_env_step(
        self, obs: Mapping[str, Tensor], rewards: Tensor, dones: Tensor, extras: Mapping[str, Any]
    ) -> None:
        """Note what followed the actions, and store the step.

        `extras["time_outs"]` says where it was the clock that ended an episode. Its value goes on with that
        of the final observation, which `extras` may hold under one of `FINAL_OBSERVATIONS`; else with V(s_t).
        """
        transition, finals = self.transition, self._final_observations(extras, obs)
        transition.rewards, transition.dones = rewards, dones
        if extras.get("time_outs") is not None:
            step = Step.from_dones(obs, rewards, dones.reshape(-1), extras)
            transition.time_outs = step.truncated
            transition.bootstrap = transition.values
            if finals is not None:
                transition.bootstrap = self._value_without_memory(finals)
            elif not self._has_warned:
                self._warn_of_approximation()
        transition.final_observations = finals
        self.storage.add_transition(transition)
        transition.clear()
        self.actor.reset(dones)
        self.critic.reset(dones)

    def _final_observations(
        self, extras: Mapping[str, Any], obs: Mapping[str, Tensor]
    ) -> dict[str, Tensor] | None:
        """What episodes ended with, if `extras` has it; groups that nothing reads there are as in `obs`."""
        given = next((extras[key] for key in FINAL_OBSERVATIONS if extras.get(key) is not None), None)
        if given is None:
            return None
        finals, engine = dict(given.items()), self.engine
        readers = [engine.policy.groups["critic"], *(e.observation_groups() for e in self._extensions)]
        if missing := sorted(set(chain.from_iterable(readers)) - finals.keys()):
            raise EnvContractError(
                f"the environment's final observations lack the groups {missing}, which the critic or an "
                "extension reads."
            )
        return {group: finals.get(group, obs[group]) for group in engine.storage.observations}

    def _value_without_memory(self, obs: Mapping[str, Tensor]) -> Tensor:
        """V [N, 1], with the critic's memory as it is and as it stays."""
        state = self.critic.get_hidden_state()
        with torch.no_grad(), self._precision():
            values = self.critic(obs)
        self.critic.reset(hidden_state=state)
        return values

    def _warn_of_approximation(self) -> None:
        self._has_warned = True
        warnings.warn(
            "the value after a time limit is V(s_t), as in RSL-RL: the environment does not give the final "
            'observations. For the exact value put them into extras["final_observations"], a mapping of '
            "[N, ...].",
            SurefootWarning,
            stacklevel=3,
        )

    def compute_returns(self, obs: Mapping[str, Tensor]) -> None:
        """Advantages and returns of the rollout; `obs` [N, ...] followed its last step."""
        rollout = self.engine.storage
        with torch.inference_mode(False):
            self.storage.take_rewards()  # with the discount that they were stored with
            self._take_settings()
            rollout.values[-1] = self._value_without_memory(obs).reshape(-1)
            self.engine.compute_returns(obs)
            self.intrinsic_rewards = self.engine.reward - rollout.rewards if self._extensions else None

    # ------------------------------------------------------------------ learning

    def update(self) -> dict[str, float]:
        """Learn from the rollout; returns the mean losses by RSL-RL's names, and Surefoot's other ones."""
        self._take_settings()
        with torch.inference_mode(False), torch.enable_grad():
            metrics = self.engine.update()
        self._set_rate = None
        values = torch.stack([x.detach().double() for x in metrics.values()]).tolist()
        self.metrics = dict(zip(metrics, values, strict=True))
        others = {k: v for k, v in self.metrics.items() if k not in LOSSES}
        return {name: self.metrics[key] for key, name in LOSSES.items() if key in self.metrics} | {
            key.removeprefix("Loss/"): value for key, value in others.items() if key != "Loss/learning_rate"
        }

    @property
    def learning_rate(self) -> float:
        """Of the next update."""
        return float(self.engine.optimizer.rate) if self._set_rate is None else self._set_rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self._take_rate(rate)

    def _take_rate(self, rate: float) -> None:
        # kept beside the device's float32, so that a client reads what it wrote
        self._set_rate = self._initial_rate = rate
        self.engine.optimizer.rate.fill_(rate)

    def _config(self) -> PPOConfig:
        """The engine's configuration by the attributes, which clients may change between iterations."""
        is_adaptive = self.schedule == "adaptive" and self.desired_kl is not None
        return PPOConfig(
            num_learning_epochs=self.num_learning_epochs,
            num_mini_batches=self.num_mini_batches,
            clip_param=self.clip_param,
            gamma=self.gamma,
            lam=self.lam,
            value_loss_coef=self.value_loss_coef,
            entropy_coef=self.entropy_coef,
            learning_rate=self._initial_rate,
            max_grad_norm=1e12 if self.max_grad_norm is None else self.max_grad_norm,
            optimizer=self._optimizer_name,  # pyright: ignore[reportArgumentType]
            use_clipped_value_loss=self.use_clipped_value_loss,
            schedule="adaptive" if is_adaptive else "fixed",
            desired_kl=self.desired_kl,
            normalize_advantage_per_mini_batch=self.normalize_advantage_per_mini_batch,
            use_mixed_precision=bool(self.use_mixed_precision),
        )

    def _take_settings(self) -> None:
        config = self._config()
        if config != self._used:
            self.storage.gamma, self._used = self.gamma, config
            self.engine.set_config(config)

    def _precision(self) -> torch.autocast:
        return torch.autocast(self.device_type, torch.bfloat16, enabled=bool(self.use_mixed_precision))

    # ------------------------------------------------------------------ around

    @property
    def policy(self) -> Any:
        """RSL-RL 2.3 to 3.x: one policy that holds both models."""
        if isinstance(self.actor, ClientActor):
            return self.actor.policy
        if self._legacy_policy is None:
            is_gaussian = isinstance(self.actor.distribution, GaussianDistribution)
            self._legacy_policy = ActorCriticPair(self.actor, self.critic) if is_gaussian else self.actor
            self._legacy_policy.is_recurrent = self.actor.is_recurrent or self.critic.is_recurrent
        return self._legacy_policy

    @property
    def actor_critic(self) -> Any:
        """RSL-RL before 2.3: the same."""
        return self.policy

    def get_policy(self) -> MLPModel:
        return self.actor

    def train_mode(self) -> None:
        for model in self._modules():
            model.train()

    def eval_mode(self) -> None:
        for model in self._modules():
            model.eval()

    def _modules(self) -> list[nn.Module]:
        return [self.actor, self.critic, self.engine.extensions]

    def warm_up(self, obs: Mapping[str, Tensor]) -> None:
        """Give the normalisers provisional statistics, in use until the first update; they do not count."""
        for model in (self.actor, self.critic):
            model.warm_up(obs)

    def broadcast_parameters(self) -> None:
        """Every process takes those of process 0."""
        distributed.broadcast_module(self.engine)

    def save(self) -> dict[str, Any]:
        """Models and optimiser by RSL-RL's keys, and under `surefoot` what a resumed run needs beside."""
        saved = {
            **{key: module.state_dict() for key, module in self._saved_models().items()},
            "optimizer_state_dict": self.optimizer.state_dict(),
            "surefoot": self.engine.state_beside_models(),
        }
        if self.rnd is not None:
            saved["rnd_state_dict"] = self.rnd.state_dict()
            saved["rnd_optimizer_state_dict"] = self.rnd.optimizer.state_dict()
        return saved

    def load(self, loaded_dict: dict[str, Any], load_cfg: Mapping[str, bool] | None, strict: bool) -> bool:
        """Take what `save` gave, or RSL-RL 4 and later; `load_cfg` says which parts: actor, critic,
        optimizer, iteration, rnd. Default: all.

        Returns:
            Whether the caller is to take the iteration, too.

        Raises:
            CheckpointError: a part is missing or does not fit; nothing has been changed then.
        """
        parts: tuple[str, ...] = ("actor", "critic", "optimizer", "iteration", "rnd")
        wanted: Mapping[str, bool] = dict.fromkeys(parts, True) if load_cfg is None else load_cfg
        states = []
        for key, module in self._saved_models().items():
            name = key.removesuffix("_state_dict")
            if wanted.get(name, name not in parts and wanted.get("actor")):
                states.append((module, check_fits(part(loaded_dict, key), module, name, strict)))
        rnd = self.rnd if wanted.get("rnd") and "rnd_state_dict" in loaded_dict else None
        if rnd is not None:
            states.append((rnd, check_fits(loaded_dict["rnd_state_dict"], rnd, "rnd", strict)))
        if wanted.get("optimizer"):
            # first: it refuses what does not fit
            self.optimizer.load_state_dict(part(loaded_dict, "optimizer_state_dict"))
        for module, state in states:
            module.load_state_dict(state, strict=strict)
        if rnd is not None:
            rnd.optimizer.load_state_dict(loaded_dict["rnd_optimizer_state_dict"])
        if wanted.get("iteration") and "surefoot" in loaded_dict:
            self._go_on(loaded_dict["surefoot"])
        return bool(wanted.get("iteration", False))

    def _saved_models(self) -> dict[str, nn.Module]:
        """What a checkpoint holds of the networks, by its keys there."""
        actor, critic = self._pair
        if not isinstance(actor, ClientActor):
            return {"actor_state_dict": actor, "critic_state_dict": critic}
        saved: dict[str, nn.Module] = {"model_state_dict": actor.policy}
        if actor.obs_normalization:
            saved["obs_norm_state_dict"] = actor.obs_normalizer
            saved["critic_obs_norm_state_dict"] = critic.obs_normalizer
        return saved

    def _go_on(self, beside: dict[str, Any]) -> None:
        """Generators, counters and extensions as they were, but for what is of another number of
        environments.
        """
        complete, own = self.engine.state(), self.engine.state_beside_models()["tensors"]
        if own.keys() != beside["tensors"].keys():
            return

        def is_of_here(key: str) -> bool:
            rows = own[key].shape[:1]
            return rows != (self.storage.num_envs,) or rows == beside["tensors"][key].shape[:1]

        complete["tensors"] |= {key: x for key, x in beside["tensors"].items() if is_of_here(key)}
        for kind in ("optimizers", "generators"):
            complete[kind] |= beside[kind]
        restore_state(self.engine, complete)
        self.engine.iteration = beside["iteration"]

    @classmethod
    def construct_algorithm(cls, obs: Any, env: Any, cfg: dict[str, Any], device: torch.device | str) -> PPO:
        """From RSL-RL's configuration; of the observation groups it stores those that some set names."""
        alg_class, alg_cfg = resolve_class(cfg["algorithm"])
        sets = ["policy" if "policy" in cfg else "actor", "critic"]
        sets += ["rnd_state"] if alg_cfg.get("rnd_cfg") else []
        cfg["obs_groups"] = groups = resolve_obs_groups(obs, cfg["obs_groups"], sets)
        alg_cfg = resolve_symmetry_config(resolve_rnd_config(alg_cfg, obs, groups, env), env)
        shares_cnns = bool(alg_cfg.pop("share_cnn_encoders", None))
        actor, critic = cls._make_models(obs, groups, env.num_actions, cfg, device, shares_cnns)
        models = (actor, critic) if critic is not None else (actor.actor_model, actor.critic_model)
        named = dict.fromkeys(chain(*map(groups_of, models), *groups.values()))
        read = {g: obs[g] for g in named if g in obs.keys()}  # noqa: SIM118 - a TensorDict
        num_steps = cfg["num_steps_per_env"]
        storage = RolloutStorage("rl", env.num_envs, num_steps, read, [env.num_actions], device)
        algorithm = alg_class(
            actor, critic, storage, device=device, multi_gpu_cfg=cfg.get("multi_gpu"), **alg_cfg
        )
        algorithm.compile(cfg.get("torch_compile_mode"))
        return algorithm

    @staticmethod
    def _make_models(
        obs: Any,
        groups: Mapping[str, Sequence[str]],
        num_actions: int,
        cfg: Mapping[str, Any],
        device: torch.device | str,
        shares_cnns: bool,
    ) -> tuple[Any, Any]:
        """Actor and critic; of a policy class of the client's own, as before version 4, see `make_policy`."""
        if "policy" in cfg:
            policy_class, options = resolve_class(cfg["policy"])
            normalizes = options.pop("empirical_normalization", None)
            return make_policy(policy_class, options, obs, groups, num_actions, normalizes)
        actor_class, actor_cfg = resolve_class(cfg["actor"])
        critic_class, critic_cfg = resolve_class(cfg["critic"])
        actor = actor_class(obs, groups, "actor", num_actions, **actor_cfg).to(device)
        if shares_cnns:
            critic_cfg["cnns"] = actor.cnns
        return actor, critic_class(obs, groups, "critic", 1, **critic_cfg).to(device)
