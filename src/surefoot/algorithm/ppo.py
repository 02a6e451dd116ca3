"""Proximal policy optimisation: the page to read first.

One iteration is T times `act` and `process_env_step`, then `compute_returns` and `update`. While the rollout
is collected only the actor runs; values and log-probabilities follow in a few large batches.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from surefoot import distributed
from surefoot.algorithm.allocate import make_storage
from surefoot.algorithm.closed_form import closed_form
from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.diagnostics import rollout_metrics, weighted_means
from surefoot.algorithm.extension import Extension
from surefoot.algorithm.losses import clip_fraction, kl_k3, masked_mean
from surefoot.algorithm.objectives import Objective, make_objective, value_loss
from surefoot.algorithm.optimizer import FlatOptimizer
from surefoot.algorithm.returns import gae, normalize_advantage
from surefoot.algorithm.rollout_storage import RolloutStorage
from surefoot.algorithm.schedules import schedule_value
from surefoot.algorithm.state import check_tensors, collect_state, restore_state
from surefoot.algorithm.values import behaviour_log_prob, refresh_memory, rollout_values
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.memory import forget
from surefoot.types import Batch, Distribution, EnvSpec, Hidden, Observations, PolicyOutput, Step


class PPO(nn.Module):
    """PPO (Schulman et al. 2017, arXiv:1707.06347) for one policy and N environments.

    Args:
        policy: Moved to `spec.device` already; its parameters become views into one buffer.
        spec: What the environment is.
        config: Everything that is a number or a choice.
        num_steps_per_env: T.
        max_iterations: Horizon of the schedules that name none.
        extensions: Ideas beside PPO, called in this order.
        objective: The policy's objective; default by `config.policy_objective`.
        seed: Of the streams of action noise, shuffling and extensions.
        storage: Where rollouts go; default: one with all that is read.

    `step`, `gradient`, `advance` and `gae` are what `compile_ppo` may replace by compiled forms.
    """

    gae = staticmethod(gae)

    def __init__(
        self,
        policy: ActorCritic,
        spec: EnvSpec,
        config: PPOConfig | None = None,
        *,
        num_steps_per_env: int = 24,
        max_iterations: int = 1000,
        extensions: Sequence[Extension] = (),
        objective: Objective | None = None,
        seed: int = 1,
        storage: RolloutStorage | None = None,
    ) -> None:
        super().__init__()
        self.config = config = config or PPOConfig()
        self.max_iterations, self.iteration = max_iterations, 0
        # how the last rollout's time limits were valued: by `final` observations, or by the `current` ones
        self.bootstrap = "current"
        total_envs = sum(distributed.gather_objects(spec.num_envs))
        self.num_batches = config.num_batches(total_envs * num_steps_per_env)
        rank = distributed.rank()
        self.action_generator = distributed.generator(seed, "actions", spec.device, rank)
        self.shuffle_generator = distributed.generator(seed, "shuffle", spec.device, rank)
        self.extension_generator = distributed.generator(seed, "extensions", spec.device, rank)
        self.spec = dataclasses.replace(spec, gamma=config.gamma, generator=self.extension_generator)

        self.policy = policy
        policy.set_mixed_precision(config.use_mixed_precision)
        self.extensions = nn.ModuleList(extensions).to(spec.device)
        self.objective = (objective or make_objective(config)).to(spec.device)
        for extension in self._each_extension():
            extension.setup(self.spec, policy)
        self.extensions.to(spec.device)
        distributed.broadcast_module(self)
        segments = dict(policy.segments())
        for i, extension in enumerate(self._each_extension()):
            segments[f"extensions.{i}"] = list(extension.policy_parameters())
        self.optimizer = FlatOptimizer(segments, config)
        # a subclass may have a loss of its own
        self.closed_form = closed_form(self) if type(self) is PPO else None
        self.storage = storage or make_storage(
            self.spec, policy, self._each_extension(), config, num_steps_per_env, self.num_batches
        )
        # what every memory holds before the next step; zeros for episodes that begin come from the storage
        self.hidden: Hidden = policy.initial_hidden(spec.num_envs)

    # ------------------------------------------------------------------ collection

    def act(self, obs: Observations) -> Tensor:
        """Sample actions for the environment [N, ...] and record them; a fresh tensor that it may change."""
        policy, step = self.policy, self.storage.step
        policy.action_head.explore(self.spec.num_envs, step, self.action_generator)
        hidden = forget(self.hidden, self.storage.is_first[step]) if self.hidden else {}
        with torch.inference_mode():
            distribution, self.hidden = self.advance(obs, hidden)
            raw = distribution.sample(self.action_generator)
        # outside: the storage and the environment need tensors that may be used and changed freely
        self.storage.add_action(obs, raw, distribution.params, hidden)
        return policy.to_env(raw)

    def advance(self, obs: Observations, hidden: Hidden) -> tuple[Distribution, Hidden]:
        return self.policy.advance(self.policy.inputs(obs, ("actor",)), hidden)

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
        self.storage.add_transition(step)

    # ------------------------------------------------------------------ returns

    @torch.no_grad()
    def compute_returns(self, last_obs: Observations) -> None:
        """Rewards after extensions, values, old log-probabilities, advantages and returns of the rollout."""
        rollout = self.storage
        rollout.end(last_obs)
        self.policy.action_head.end_exploration()
        self.bootstrap = "final" if rollout.offers_final else "current"
        for extension in self._each_extension():
            extension.prepare(rollout, self.policy)
        self.reward = rollout.rewards.clone()
        for extension in self._each_extension():
            self.reward = extension.reward(rollout, self.reward)
        # normalisers are frozen from the first act of the rollout to the end of its update
        rollout.inputs = self.policy.inputs(rollout.observations)
        rollout.actions_log_prob = behaviour_log_prob(self.policy, rollout)
        self._estimate_advantages()
        if self.policy.value_normalizer is not None:
            # values stay what they are: only the units that the loss is measured in change
            self.policy.value_normalizer.update(rollout.returns, rollout.mask, self.policy.value_head)

    def _estimate_advantages(self) -> None:
        """Values of all rows and final observations with the present weights, then advantages and returns."""
        rollout, config = self.storage, self.config
        rollout.values, bootstrap, memory = self._values()
        self.hidden = {**self.hidden, **memory}
        advantage, returns = self.gae(
            self.reward,
            rollout.values,
            rollout.terminated,
            rollout.truncated,
            bootstrap,
            config.gamma,
            config.lam,
            rollout.mask,
        )
        # what extensions add is no part of what the critic learns: an own value head learns its own
        rollout.returns = torch.where(rollout.valid, returns, 0.0)
        for extension in self._each_extension():
            advantage = extension.advantage(rollout, advantage)
        advantage = torch.where(rollout.valid, advantage, 0.0)
        self.advantage_std = advantage.new_zeros(())
        if not config.normalize_advantage_per_mini_batch:
            values = torch.where(rollout.valid, rollout.values[:-1], 0.0)
            scale = torch.maximum(rollout.returns.abs().amax(), values.abs().amax())
            advantage, self.advantage_std = normalize_advantage(advantage, rollout.mask, scale)
        rollout.advantages = advantage

    def _values(self) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        return rollout_values(self.policy, self.storage)

    # ------------------------------------------------------------------ learning

    def update(self) -> dict[str, Tensor]:
        """Learn from the rollout: epochs of mini-batches, then extensions, then normalisers. Returns metrics
        by logged name, 0-d tensors on the device, averaged over mini-batches and processes.
        """
        config, rollout = self.config, self.storage
        mini_batches = rollout.mini_batch_generator
        if self.policy.is_recurrent:
            mini_batches = rollout.recurrent_mini_batch_generator
        self._apply_schedules()
        metrics = rollout_metrics(rollout) | {"Data/advantage_std": self.advantage_std}
        history: dict[str, list[Tensor]] = defaultdict(list)
        for epoch in range(config.num_learning_epochs):
            if epoch:
                refresh_memory(self.policy, rollout)
            if epoch and config.recompute_advantages:
                with torch.no_grad():
                    self._estimate_advantages()
            for batch in mini_batches(self.num_batches, generator=self.shuffle_generator):
                for name, value in self._learn_from(batch).items():
                    history[name].append(value.detach() if value.requires_grad else value)
        self.objective.end_iteration(torch.stack(history["Loss/kl"][-self.num_batches :]).mean())
        metrics |= weighted_means(history, "rows")
        metrics["Loss/skipped_updates"] = torch.stack(history["Loss/skipped_updates"]).sum()
        metrics["Loss/learning_rate"] = self.learning_rate.clone()
        metrics["Loss/stopped_updates"] = self.optimizer.stopped.clone()
        for extension in self._each_extension():
            metrics |= extension.learn(rollout)
        self.hidden = {**self.hidden, **refresh_memory(self.policy, rollout)}
        self._update_normalizers()
        self.iteration += 1
        rollout.begin()
        return metrics

    def _learn_from(self, batch: Batch) -> dict[str, Tensor]:
        """One optimiser step on one mini-batch; returns its metrics."""
        metrics: dict[str, Tensor] = {}
        if self.config.normalize_advantage_per_mini_batch:
            scale = torch.linalg.vector_norm(batch.returns, torch.inf) if batch.index.numel() else None
            batch.advantage, std = normalize_advantage(batch.advantage, batch.mask, scale)
            metrics["Data/advantage_std"] = std
        batch = self._augment(batch)
        metrics |= self.step(batch)
        self.policy.project()
        return metrics | {"rows": torch.as_tensor(self.num_rows(batch), device=batch.returns.device)}

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """The optimiser's step; returns the terms to log."""
        kl, terms = self.gradient(batch)
        norm, kl, skipped = self.optimizer.update(kl, self.num_rows(batch))
        return terms | {"Loss/kl": kl, "Loss/grad_norm": norm, "Loss/skipped_updates": skipped}

    def num_rows(self, batch: Batch) -> Tensor | int:
        """Of the sampled rows, how many count."""
        return batch.num_sampled if batch.mask is None else batch.sampled(batch.mask).sum()

    def gradient(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss's gradient into the optimiser's buffer; the mean KL(old ‖ new) and the terms to log."""
        return (self.closed_form or self.differentiate)(batch)

    def differentiate(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """As `gradient`, by autograd: whatever the loss."""
        loss, kl, terms = self(batch)
        self.optimizer.differentiate(loss)
        return kl, terms

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The whole loss of a mini-batch, the mean KL, and the terms to log."""
        out = self.policy.evaluate(batch.inputs, batch.actions, self.action_generator, batch.hidden)
        loss, kl, terms = self._loss(batch, out)
        for extension in self._each_extension():
            for name, term in extension.loss(batch, out, self.policy).items():
                loss, terms[name] = loss + term, terms.get(name, 0.0) + term
        return loss, kl, terms

    def _augment(self, batch: Batch) -> Batch:
        """Rows added by extensions, with their inputs normalised as the sampled ones were."""
        for extension in self._each_extension():
            batch = extension.augment(batch, self.policy)
        dim = batch.index.dim() - 1
        if num_added := batch.index.shape[dim] - batch.num_sampled:
            raw = {g: x.narrow(dim, batch.num_sampled, num_added) for g, x in batch.observations.items()}
            added = self.policy.inputs(raw)
            batch.inputs = {name: torch.cat([batch.inputs[name], x], dim) for name, x in added.items()}
        return batch

    def _loss(self, batch: Batch, out: PolicyOutput) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The loss, the mean KL(old ‖ new), and terms; KL, entropy, clip fraction are of sampled rows."""
        log_ratio = out.log_prob - batch.old_log_prob
        with torch.set_grad_enabled(self.objective.uses_kl):
            if out.distribution.kl_kind == "exact":
                kl = self.policy.action_head.rebuild(batch.old_distribution).kl(out.distribution)
            else:
                kl = kl_k3(log_ratio)
        sampled = batch.sampled
        mask = None if batch.mask is None else sampled(batch.mask)
        surrogate = masked_mean(self.objective(log_ratio, batch.advantage, kl), batch.mask)
        of_loss = map(self.in_units_of_loss, (out.value, batch.old_value, batch.returns))
        value = masked_mean(value_loss(self.config, *of_loss, clip=self.objective.clip), batch.mask)
        entropy = masked_mean(sampled(out.entropy), mask)
        clipped = clip_fraction(sampled(log_ratio).detach().exp(), self.objective.clip)
        terms = {
            "Loss/surrogate": surrogate,
            "Loss/value": value,
            "Loss/entropy": entropy,
            "Loss/clip_fraction": masked_mean(clipped, mask),
        }
        loss = surrogate + self.config.value_loss_coef * value - self.entropy_coef * entropy
        return loss, masked_mean(sampled(kl).detach(), mask), terms

    def in_units_of_loss(self, value: Tensor) -> Tensor:
        """Normalised where the critic normalises values."""
        normalizer = self.policy.value_normalizer
        return value if normalizer is None else normalizer.normalize(value)

    # ------------------------------------------------------------------ between iterations

    @property
    def learning_rate(self) -> Tensor:
        """0-d, the actor's present rate."""
        return self.optimizer.rate

    def warm_up(self, observations: Iterable[Observations]) -> None:
        """Give the normalisers provisional statistics of [N, ...] observations a step; none is counted."""
        self.policy.inputs.warm_up([{g: x.clone() for g, x in o.items()} for o in observations])

    def state(self) -> dict[str, Any]:
        """Everything that the algorithm needs to go on, as tensors and plain data."""
        counters = {"iteration": self.iteration, "max_iterations": self.max_iterations}
        memory = {name: x.clone() for name, x in self.hidden.items()}
        here = {"is_first": self.storage.is_first[0].clone(), "hidden": memory}
        return {**counters, **here, **collect_state(self)}

    def load_state(self, state: dict[str, Any]) -> None:
        here = {"is_first": self.storage.is_first[0], **self.hidden}
        check_tensors(here, {"is_first": state["is_first"], **state["hidden"]})
        restore_state(self, state, counters=("iteration", "max_iterations"))
        self.storage.begin()
        self.iteration, self.max_iterations = state["iteration"], state["max_iterations"]
        self.storage.is_first[0] = state["is_first"]
        self.hidden = {name: x.to(self.spec.device).clone() for name, x in state["hidden"].items()}

    def _apply_schedules(self) -> None:
        """What a schedule owns, for the iteration that is about to be learned."""
        config, now = self.config, (self.max_iterations, self.iteration)
        self.optimizer.begin()
        self.objective.clip.fill_(schedule_value(config.clip_schedule, config.clip_param, *now))
        entropy_coef = schedule_value(config.entropy_schedule, config.entropy_coef, *now)
        self.entropy_coef = torch.full_like(self.objective.clip, entropy_coef)
        if not config.is_adaptive:
            rate = schedule_value(config.rate_schedule(), config.learning_rate, *now)
            self.optimizer.rate.fill_(rate)

    def _update_normalizers(self) -> None:
        rollout = self.storage
        rows = {g: x[:-1].flatten(0, 1) for g, x in rollout.observations.items()}
        self.policy.inputs.update(rows, None if rollout.mask is None else rollout.mask.flatten())

    def _each_extension(self) -> list[Extension]:
        return list(self.extensions)  # pyright: ignore[reportReturnType]
