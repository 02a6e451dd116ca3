"""Symmetry: learn from mirror images too (Mittal et al. 2024, arXiv:2403.04359)."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import torch
from torch import Tensor

from surefoot.algorithm.config import Weight
from surefoot.algorithm.extension import Extension
from surefoot.algorithm.losses import masked_mean
from surefoot.algorithm.rollout_storage import RolloutStorage
from surefoot.algorithm.values import memory_along
from surefoot.errors import ConfigError
from surefoot.extensions.mirrors import Mirror, check_mirror, make_mirrors
from surefoot.networks.actor_critic import ActorCritic
from surefoot.types import Batch, EnvSpec, Observations, PolicyOutput


class Symmetry(Extension):
    """Mirrored copies of every mini-batch, a loss that draws the policy towards its mirror image, or both.

    A mirrored row keeps the old log-probability, value, advantage and return of its source: in a symmetric
    task what was good is good in the mirror. A recurrent policy needs its own memory of the mirrored
    episodes: the weights that collected a rollout are run over its mirror image, and mirrored sequences start
    from the states of that run.

    The mirror loss is the mean squared difference between the policy's mode (a Gaussian's mean) at mirrored
    observations and the mirrored mode, whose gradient is stopped. Counted actions have no mean: there it is
    the squared difference between the log-probabilities of the mirrored and of the sampled action.

    PPO-Penalty compares mirrored rows with the mirrored old policy where that is Gaussian; in other families
    the old policy of their source stands in, so prefer PPO-Clip there.

    Logs `Symmetry/error`, that difference without weight, and `Symmetry/mirror_loss`.

    Args:
        use_data_augmentation: Add mirrored rows. Doubles the rows of each mini-batch for one symmetry.
        use_mirror_loss: Add the loss.
        mirror_loss_coeff: Weight of the loss. Raise: more symmetric, slower where symmetry and reward
            disagree.
        mirror: One symmetry, or a list of which each adds its own rows. A symmetry is null (the environment's
            `mirror`), `package.module:name` of a function or a `MirrorMap`, these themselves, a list of
            symmetries (their product), or `{mirror: ..., involution: false}` for one which, like a quarter
            turn, is not its own inverse. The form of a function is that of
            `surefoot.extensions.mirrors.MirrorFunction`.
    """

    def __init__(
        self,
        use_data_augmentation: bool = False,
        use_mirror_loss: bool = False,
        mirror_loss_coeff: Weight = 1.0,
        mirror: Any = None,
    ) -> None:
        super().__init__()
        if mirror_loss_coeff < 0:
            raise ConfigError(f"Symmetry: mirror_loss_coeff {mirror_loss_coeff} must not be negative.")
        self.use_data_augmentation, self.use_mirror_loss = use_data_augmentation, use_mirror_loss
        self.mirror_loss_coeff, self.wanted = mirror_loss_coeff, mirror

    def setup(self, spec: EnvSpec, policy: ActorCritic) -> None:
        # without mirrored rows only the actor sees the mirror
        self.sets = ("actor", "critic") if self.use_data_augmentation else ("actor",)
        self.groups = policy.inputs.read(self.sets)
        self.mirrors = self.make_mirrors(spec, policy)
        self.has_mean = isinstance(spec.action_space, gymnasium.spaces.Box)
        # what each memory holds before the next rollout, had it lived in the mirror
        self.memories = {n: x for n, x in policy.initial_hidden(spec.num_envs).items() if n in self.sets}
        for name, state in self.memories.items():
            for k in range(len(self.mirrors)):
                self.register_buffer(f"{name}_{k}", state.clone())
        self.kept: list[dict[str, Tensor]] = []
        self.is_new = True

    def make_mirrors(self, spec: EnvSpec, policy: ActorCritic) -> list[Mirror]:
        """The symmetries, tried on made-up rows of `self.groups`; part of `setup`."""
        mirrors = make_mirrors(self.wanted, spec, self.groups)
        for mirror in mirrors:
            check_mirror(mirror, spec, self.groups, policy.to_env, policy.inputs.like.dtype)
        return mirrors

    def prepare(self, rollout: RolloutStorage, policy: ActorCritic) -> None:
        if self.is_new and self.use_data_augmentation:
            self._name_unmirrored(rollout.observations)
        self.is_new = False
        if not self.memories:
            return
        self.starts = torch.tensor(rollout.starts, device=rollout.device)
        self.kept.clear()
        for k, mirror in enumerate(self.mirrors):
            images, _ = mirror.function({g: rollout.observations[g] for g in self.groups}, None)
            assert images is not None
            first = {name: self.get_buffer(f"{name}_{k}") for name in self.memories}
            kept, after = memory_along(policy, rollout, policy.inputs(images, self.sets), first)
            self.kept.append(kept)
            for name, state in after.items():
                self.get_buffer(f"{name}_{k}").copy_(state)

    def augment(self, batch: Batch, policy: ActorCritic) -> Batch:
        if not self.use_data_augmentation:
            return batch
        dim, num_mirrors = batch.index.dim() - 1, len(self.mirrors)
        self.added = (dim, batch.index.shape[dim], batch.num_sampled * num_mirrors)
        observations, actions = self._images(batch, batch.observations)
        source = torch.arange(batch.num_sampled, device=batch.index.device).repeat(num_mirrors)
        batch = batch.append(observations, actions, source, self._starting_states(batch))
        self._mirror_old_gaussian(batch)
        return batch

    def loss(self, batch: Batch, out: PolicyOutput, policy: ActorCritic) -> dict[str, Tensor]:
        with torch.set_grad_enabled(self.use_mirror_loss):
            error = self._error(batch, out, policy)
        terms = {"Symmetry/error": error.detach()}  # without a gradient it is only logged
        return terms | (
            {"Symmetry/mirror_loss": self.mirror_loss_coeff * error} if self.use_mirror_loss else {}
        )

    # ------------------------------------------------------------------ parts

    def _error(self, batch: Batch, out: PolicyOutput, policy: ActorCritic) -> Tensor:
        """0-d: how far the policy in the mirror is from the mirrored policy, over the sampled rows."""
        if self.use_data_augmentation:
            mode, log_prob = (self._added(x) for x in (out.distribution.mode(), out.log_prob))
        else:
            observations, actions = self._images(batch, {g: batch.observations[g] for g in self.groups})
            inputs = policy.inputs(observations, self.sets)
            distribution = policy.action_distribution(inputs, self._starting_states(batch))
            mode, log_prob = distribution.mode(), distribution.log_prob(actions)
        if self.has_mean:
            target = self._mirrored(batch.sampled(out.distribution.mode()).detach())
            error = (mode - target).square().mean(-1)
        else:
            error = (log_prob - self._repeated(batch.sampled(out.log_prob).detach())).square()
        mask = None if batch.mask is None else self._repeated(batch.sampled(batch.mask))
        return masked_mean(error, mask)

    def _images(self, batch: Batch, observations: Observations) -> tuple[dict[str, Tensor], Tensor]:
        """The mirrored sampled rows, one symmetry after the other, of the groups that all of them mirror."""
        dim, sampled = batch.index.dim() - 1, {g: batch.sampled(x) for g, x in observations.items()}
        images = [mirror.function(sampled, None)[0] or {} for mirror in self.mirrors]
        groups = [g for g in sampled if all(g in image for image in images)]
        joined = {g: torch.cat([image[g] for image in images], dim) for g in groups}
        return joined, self._mirrored(batch.sampled(batch.actions))

    def _mirrored(self, actions: Tensor) -> Tensor:
        """The images of actions [M, A | L, B, A], one symmetry after the other."""
        images = [mirror.function(None, actions)[1] for mirror in self.mirrors]
        return torch.cat([image for image in images if image is not None], actions.dim() - 2)

    def _repeated(self, x: Tensor) -> Tensor:
        """[M | L, B] once for each symmetry."""
        return torch.cat([x] * len(self.mirrors), x.dim() - 1)

    def _added(self, x: Tensor) -> Tensor:
        """Of `x` [M, ... | L, B, ...], the mirrored rows."""
        return x.narrow(*self.added)

    def _mirror_old_gaussian(self, batch: Batch) -> None:
        """A penalty on the KL compares added rows too; other families have no image by this rule."""
        old = batch.old_distribution
        if "mean" in old:
            mean, std = batch.sampled(old["mean"]), batch.sampled(old["std"])
            image = self._mirrored(mean)
            self._added(old["mean"]).copy_(image)
            self._added(old["std"]).copy_((self._mirrored(mean + std) - image).abs())

    def _starting_states(self, batch: Batch) -> dict[str, Tensor]:
        """Of the mirrored memories before the first step of each sequence, one symmetry after the other."""
        if not self.memories:
            return {}
        rollout, first = batch.rollout, batch.sampled(batch.index)[0]
        step, env = first // rollout.num_envs, first % rollout.num_envs
        # a sequence starts from a kept state, or where an episode begins
        slot = torch.searchsorted(self.starts, step).clamp(max=len(rollout.starts) - 1)
        begins = rollout.is_first[step, env].unsqueeze(-1)
        return {
            name: torch.cat([kept[name][slot, env].masked_fill(begins, 0.0) for kept in self.kept])
            for name in self.memories
        }

    def _name_unmirrored(self, observations: Observations) -> None:
        """Warn of groups that are stored for another extension and that a mirror leaves out."""
        row = {g: x[0] for g, x in observations.items()}
        for mirror in self.mirrors:
            if left_out := sorted(set(row) - set(mirror.function(row, None)[0] or {})):
                warnings.warn(
                    f"Symmetry: {mirror.name} leaves out the observation groups {left_out}, which another "
                    "extension reads: in mirrored rows it finds them unmirrored.",
                    stacklevel=2,
                )
