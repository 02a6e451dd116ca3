"""AMP: the policy is rewarded for motion that a discriminator takes for that of the demonstrations."""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from surefoot import distributed
from surefoot.algorithm.extension import Extension
from surefoot.algorithm.losses import masked_mean
from surefoot.algorithm.rollout_storage import RolloutStorage
from surefoot.errors import ConfigError
from surefoot.extensions.amp.config import AMPConfig
from surefoot.extensions.amp.dataset import Demonstrations, MotionDataset, load_demonstrations
from surefoot.extensions.amp.discriminator import LOSSES, Discriminator, gradient_penalty, threshold
from surefoot.extensions.amp.replay import ReplayBuffer
from surefoot.extensions.amp.rewards import COMBINATIONS, bce_reward, lsgan_reward, wgan_reward
from surefoot.extensions.amp.windows import WindowCutter
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.encoders import space_of
from surefoot.networks.normalizers import RunningNormalizer
from surefoot.types import EnvSpec, Stats

SATURATED_ACCURACY, SATURATED_ITERATIONS = 0.99, 100
"""A discriminator that is right more often, for so long, is reported."""
LARGE_REPLAY = 1_000_000_000
"""Bytes from which on the memory of the replay buffer is mentioned."""
CHUNK = 32_768
"""Windows scored at once, so that memory does not grow with the rollout."""


class AMP(Extension):
    """Adversarial motion priors (Peng et al. 2021, arXiv:2104.02180).

    A window is the K frames of an episode that end with what followed a row. A row without one, because its
    episode is younger or the final observation is not known, gets the mean style reward of the others and
    teaches the discriminator nothing. Scores are those of the discriminator before the iteration; its inputs
    are normalised by statistics of both demonstrations and policy, refreshed once per iteration at its end.

    With legged robots: Escontrela et al. 2022, arXiv:2203.15103.

    Args:
        config: The keys of `amp_cfg`.
        demonstrations: The clips, instead of those that `config` names.
    """

    iteration: Tensor
    num_steps: Tensor
    """0-d int64: steps of each environment so far."""
    num_saturated: Tensor
    """0-d int64: iterations in a row in which the discriminator was right nearly always."""

    def __init__(
        self, config: AMPConfig | Mapping[str, Any], demonstrations: Demonstrations | None = None
    ) -> None:
        super().__init__()
        self.config = config if isinstance(config, AMPConfig) else AMPConfig.of(config)
        self.demonstrations = demonstrations
        if demonstrations is None and self.config.dataset is None and self.config.motion_files is None:
            raise ConfigError(
                "there are no demonstrations: set dataset (package.module:function) or motion_files."
            )
        self.combine, self.neutral_style = COMBINATIONS[self.config.combination]
        for name in ("iteration", "num_steps", "num_saturated"):
            self.register_buffer(name, torch.zeros((), dtype=torch.int64))

    def setup(self, spec: EnvSpec, policy: ActorCritic) -> None:
        config, self.generator = self.config, spec.generator
        if config.mask_group is not None and self._group_size(spec, config.mask_group, "mask_group") != 1:
            raise ConfigError(f"AMP: mask_group '{config.mask_group}' must be one number per environment.")
        size = self.attach(spec)
        self.normalizer = RunningNormalizer(size)
        self.normalizer.warm_up([self.dataset.frames])
        self.discriminator = Discriminator(size * config.num_frames, config.hidden_dims, config.activation)
        groups = [
            {
                "params": [*self.discriminator.trunk.parameters()],
                "weight_decay": config.disc_trunk_weight_decay,
            },
            {
                "params": [*self.discriminator.last.parameters()],
                "weight_decay": config.disc_linear_weight_decay,
            },
        ]
        self.optimizer = torch.optim.Adam(groups, config.disc_learning_rate)
        self.replay = self._replay(spec.num_envs, size)

    def attach(self, spec: EnvSpec) -> int:
        """Make what demonstrations and windows come from; part of `setup`. Gives D, features of a frame."""
        group = self.config.obs_group
        size = self._group_size(spec, group, "obs_group")
        self.dataset = self._dataset(spec)
        if self.dataset.num_features != size:
            raise ConfigError(
                f"AMP: the demonstrations have {self.dataset.num_features} features and the observation "
                f"group '{group}' has {size}; both must be computed alike."
            )
        self.cutter = WindowCutter(spec.num_envs, self.config.num_frames, size)
        return size

    def _group_size(self, spec: EnvSpec, group: str, key: str) -> int:
        """Numbers per environment of an observation group."""
        space = space_of(spec.observation_spaces, group, f"AMP: {key}")
        if space.shape is None or len(space.shape) != 1:
            raise ConfigError(f"AMP: {key} '{group}' has the space {space}; expected a vector.")
        return space.shape[0]

    def _dataset(self, spec: EnvSpec) -> MotionDataset:
        if self.demonstrations is None:
            return load_demonstrations(self.config, spec.step_dt)
        features, weights = [x for x, _ in self.demonstrations], [weight for _, weight in self.demonstrations]
        return MotionDataset(features, weights, self.config.num_frames)

    def _replay(self, num_envs: int, num_features: int) -> ReplayBuffer | None:
        """Empty; None where the configuration wants none."""
        if self.config.replay_size == 0:
            return None
        capacity = math.ceil(self.config.replay_size / num_envs)
        replay = ReplayBuffer(num_envs, capacity, (self.config.num_frames, num_features))
        if replay.num_bytes > LARGE_REPLAY and distributed.is_main():
            warnings.warn(
                f"the AMP replay buffer takes {replay.num_bytes / 1e9:.2g} GB of the device's memory, and of "
                "each checkpoint; lower replay_size if that is too much.",
                stacklevel=2,
            )
        return replay

    def observation_groups(self) -> Sequence[str]:
        return [g for g in (self.config.obs_group, self.config.mask_group) if g is not None]

    # ------------------------------------------------------------------ the reward

    def prepare(self, rollout: RolloutStorage, policy: ActorCritic) -> None:
        self.windows, is_whole = self.cut(rollout)
        self.applies = rollout.valid
        if self.config.mask_group is not None:
            self.applies = self.applies & (rollout.observations[self.config.mask_group][:-1, :, 0] > 0.5)
        self.usable = is_whole & rollout.next_known & self.applies
        style = self._style_reward(self._scores(self.windows.flatten(0, 1)).view_as(self.usable))
        self.mean_style = distributed.moments(style.flatten(), self.usable.flatten())[1].float()
        self.style = torch.where(self.usable, style, self.mean_style)

    def cut(self, rollout: RolloutStorage) -> tuple[Tensor, Tensor]:
        """Raw windows [T, N, K, D] that end with what followed each row, and [T, N] bool: which are whole."""
        followed = rollout.next_observations[self.config.obs_group].float()
        return self.cutter(self.frames(rollout), followed, rollout.is_first)

    def frames(self, rollout: RolloutStorage) -> Tensor:
        """The raw frame of each row [T, N, D]."""
        return rollout.observations[self.config.obs_group][:-1].float()

    def reward(self, rollout: RolloutStorage, reward: Tensor) -> Tensor:
        style = self.config.style_reward_scale * self.style
        self.task = reward
        step = self.num_steps + torch.arange(reward.shape[0], device=reward.device)
        weight = self.config.schedule.weight(self.config.style_weight, step).unsqueeze(-1)
        return self.combine(reward, torch.where(self.applies, style, self.neutral_style), weight)

    def _scores(self, windows: Tensor) -> Tensor:
        """Scores [R] of raw windows [R, K, D]."""
        parts = windows.split(CHUNK)
        return torch.cat([self.discriminator(self.normalizer(part).flatten(1)) for part in parts])

    def _style_reward(self, score: Tensor) -> Tensor:
        """Of the scores [T, N], before it is scaled."""
        if self.config.loss_type == "lsgan":
            return lsgan_reward(score)
        if self.config.loss_type == "bce":
            return bce_reward(score)
        demo = self._scores(self.dataset.sample(min(score.numel(), CHUNK), self.generator))
        counted = [(demo, None), (score.flatten(), self.usable.flatten())]
        (n, mean, m2), (k, policy_mean, policy_m2) = (distributed.moments(x, mask) for x, mask in counted)
        return wgan_reward(score, (mean, m2 / n.clamp(min=1)), (policy_mean, policy_m2 / k.clamp(min=1))).to(
            score.dtype
        )

    # ------------------------------------------------------------------ the discriminator

    def learn(self, rollout: RolloutStorage) -> Stats:
        stats = {
            "Reward/task": masked_mean(self.task, rollout.mask),
            "Reward/style": self.config.style_reward_scale * self.mean_style,
            "Amp/usable": masked_mean(self.usable.float(), rollout.mask),
        }
        rows = self.usable.flatten().nonzero().squeeze(-1)
        is_due = int(self.iteration) % self.config.disc_update_interval == 0
        # a mini-batch without rows teaches nothing, and momentum alone must not move the weights
        total = int(distributed.all_sum(torch.tensor(len(rows), device=rows.device))) if is_due else 0
        if total:
            stats |= self._train(rows, min(self.config.disc_num_mini_batches, total))
        if self.replay is not None:
            self._remember(self.replay)
        self._update_normalizer(rollout)
        self.iteration += 1
        self.num_steps += rollout.num_transitions_per_env
        names, values = list(stats), torch.stack([x.detach().float() for x in stats.values()])
        stats = dict(zip(names, distributed.mean(values).unbind(), strict=True))
        self._watch(stats)
        del self.windows
        return stats

    def _train(self, rows: Tensor, num_mini_batches: int) -> Stats:
        """Epochs of mini-batches of the windows at `rows` [R], with as many demonstrations."""
        history: dict[str, list[Tensor]] = defaultdict(list)
        for policy, demo in self._mini_batches(rows, num_mini_batches):
            # processes with more windows count for more
            share = torch.tensor(float(len(policy)), device=policy.device)
            share = share / distributed.mean(share.clone()).clamp(min=1)
            loss, terms = self._loss(policy, demo)
            norm = distributed.minimize(share * loss, self.optimizer, self.config.disc_max_grad_norm)
            for name, value in {**terms, "Amp/loss": loss, "Amp/grad_norm": norm}.items():
                history[name].append(value.detach())
        return {name: torch.stack(values).mean() for name, values in history.items()}

    def _mini_batches(self, rows: Tensor, num_mini_batches: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Raw windows [B, K, D] of the policy, now and earlier, and of demonstrations."""
        config, windows = self.config, self.windows.flatten(0, 1)
        has_replay = self.replay is not None and bool(self.replay.num_inserted.any())
        for _ in range(config.disc_num_epochs):
            order = torch.randperm(len(rows), generator=self.generator, device=rows.device)
            for part in rows[order].tensor_split(num_mini_batches):
                count = min(len(part), config.disc_max_batch_size)
                num_old = round(config.replay_share * count) if has_replay else 0
                policy = windows[part[: count - num_old]]
                if self.replay is not None and num_old:
                    policy = torch.cat([policy, self.replay.sample(num_old, self.generator)])
                yield policy, self.dataset.sample(max(count, 1), self.generator)[:count]

    def _loss(self, policy: Tensor, demo: Tensor) -> tuple[Tensor, Stats]:
        """The loss of one mini-batch of raw windows [B, K, D], and what to log of it."""
        config = self.config
        policy, demo = self._inputs(policy), self._inputs(demo)
        demo_score, policy_score = self.discriminator(demo), self.discriminator(policy)
        scores = torch.cat([demo_score, policy_score])
        penalty = self._gradient_penalty(demo, policy, demo_score, policy_score)
        loss = LOSSES[config.loss_type](demo_score, policy_score)
        loss = loss + config.grad_penalty_scale * penalty
        loss = loss + config.logit_penalty_scale * masked_mean(scores.square())
        border = threshold(config.loss_type, demo_score, policy_score)
        return loss, {
            "Amp/accuracy_demo": masked_mean((demo_score > border).float()),
            "Amp/accuracy_policy": masked_mean((policy_score < border).float()),
            "Amp/score_demo": masked_mean(demo_score),
            "Amp/score_policy": masked_mean(policy_score),
            "Amp/grad_penalty": penalty,
        }

    def _inputs(self, windows: Tensor) -> Tensor:
        """What the discriminator sees of raw windows: [B, K, D] to [B, K·D]; a leaf for the gradient
        penalty.
        """
        inputs = self.normalizer(windows).flatten(1)
        if self.config.input_noise:
            noise = torch.empty_like(inputs).normal_(generator=self.generator)
            inputs = inputs + self.config.input_noise * noise
        return inputs.requires_grad_()

    def _gradient_penalty(
        self, demo: Tensor, policy: Tensor, demo_score: Tensor, policy_score: Tensor
    ) -> Tensor:
        target = 1.0 if self.config.loss_type == "wgan" else 0.0
        if self.config.grad_penalty_on == "interpolated":
            weight = torch.rand(len(demo), 1, generator=self.generator, device=demo.device)
            between = torch.lerp(demo.detach(), policy.detach(), weight).requires_grad_()
            return gradient_penalty(self.discriminator(between), between, target)
        if self.config.grad_penalty_on == "demo":
            return gradient_penalty(demo_score, demo, target)
        of_policy = gradient_penalty(policy_score, policy, target)
        if self.config.grad_penalty_on == "policy":
            return of_policy
        return 0.5 * (gradient_penalty(demo_score, demo, target) + of_policy)

    def _remember(self, replay: ReplayBuffer) -> None:
        """A random part of the rollout's windows enters the replay buffer."""
        count = min(math.ceil(replay.capacity / self.config.replay_iterations), self.usable.shape[0])
        lots = torch.rand(self.usable.shape, generator=self.generator, device=self.usable.device)
        drawn = lots.masked_fill(~self.usable, -1.0).topk(count, dim=0)
        index = drawn.indices[..., None, None].expand(-1, -1, *self.windows.shape[2:])
        replay.insert(self.windows.gather(0, index), drawn.values >= 0)

    def _update_normalizer(self, rollout: RolloutStorage) -> None:
        """Count the raw frames of the rollout, and as many of the demonstrations."""
        frames = self.frames(rollout).flatten(0, 1)
        windows = self.dataset.sample(math.ceil(len(frames) / self.config.num_frames), self.generator)
        demo = windows.flatten(0, 1)
        mask = torch.cat([rollout.valid.flatten(), torch.ones_like(demo[:, 0], dtype=torch.bool)])
        self.normalizer.update(torch.cat([frames, demo]), mask)

    def _watch(self, stats: Stats) -> None:
        """Warn where the discriminator has been right nearly always for long."""
        if "Amp/accuracy_demo" not in stats:
            return
        accuracy = 0.5 * (stats["Amp/accuracy_demo"] + stats["Amp/accuracy_policy"])
        self.num_saturated.copy_(torch.where(accuracy > SATURATED_ACCURACY, self.num_saturated + 1, 0))
        if int(self.num_saturated) == SATURATED_ITERATIONS and distributed.is_main():
            warnings.warn(
                f"the AMP discriminator was right in over {SATURATED_ACCURACY:.0%} of windows for "
                f"{SATURATED_ITERATIONS} iterations; the style reward then teaches little. Raise "
                "grad_penalty_scale or input_noise, lower disc_learning_rate, raise disc_update_interval, or "
                "look whether demonstrations and observation group are computed alike.",
                stacklevel=2,
            )
