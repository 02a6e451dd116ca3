"""PPOAMP with the names of RSL-RL's forks, over Surefoot's extension AMP.

In the forks the environment shows both: the last frames of the robot, in the observation set `discriminator`,
and as many frames of a motion, in `discriminator_demonstration`, each [N, frames, features].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from surefoot.algorithm.rollout_storage import RolloutStorage as NativeStorage
from surefoot.compat.rsl_rl.algorithms.ppo import FINAL_OBSERVATIONS, PPO
from surefoot.compat.rsl_rl.extensions.duration import step_duration
from surefoot.compat.rsl_rl.storage import RolloutStorage
from surefoot.errors import ConfigError, did_you_mean
from surefoot.extensions.amp.amp import AMP
from surefoot.extensions.amp.config import AMPConfig
from surefoot.extensions.amp.replay import ReplayBuffer
from surefoot.networks.encoders import space_of
from surefoot.types import EnvSpec

SETS = ("discriminator", "discriminator_demonstration")
LOSSES = {"GAN": "bce", "LSGAN": "lsgan", "WGAN": "wgan"}
SAME = (
    "grad_penalty_scale",
    "disc_trunk_weight_decay",
    "disc_linear_weight_decay",
    "disc_learning_rate",
    "disc_max_grad_norm",
    "disc_update_interval",
)
"""Keys that mean the same in `AMPConfig`."""
OTHERS = ("loss_type", "disc_obs_buffer_size", "amp_discriminator")
OF_DISCRIMINATOR = ("hidden_dims", "activation", "style_reward_scale", "task_style_lerp")


class Demonstrations(ReplayBuffer):
    """The newest motion windows that the environment has shown; the environment keeps the motions."""

    frames: Tensor
    """[0, D]: none is known before the first rollout."""

    def __init__(self, num_envs: int, capacity: int, window_shape: tuple[int, int]) -> None:
        super().__init__(num_envs, capacity, window_shape, persistent=False)
        self.register_buffer("frames", torch.zeros(0, window_shape[1]), persistent=False)


class ShownAMP(AMP):
    """Surefoot's AMP with windows of policy and motions that the environment shows.

    The window of a row is the one that really followed it, before any reset; where that is not known, the row
    gets the mean style reward of the others and teaches the discriminator nothing.

    Args:
        config: Numbers and choices.
        groups: Observation groups of both sets, each [frames, features]; side by side in their order.
        capacity: Steps of each environment whose motion windows are kept.
    """

    def __init__(self, config: AMPConfig, groups: Mapping[str, Sequence[str]], capacity: int) -> None:
        super().__init__(config, demonstrations=())
        self.groups, self.capacity = {name: list(groups[name]) for name in SETS}, capacity

    def observation_groups(self) -> list[str]:
        return [*dict.fromkeys(group for name in SETS for group in self.groups[name])]

    def attach(self, spec: EnvSpec) -> int:
        shapes = {name: _window_shape(spec, name, self.groups[name]) for name in SETS}
        mine, theirs = shapes.values()
        if mine != theirs:
            raise ConfigError(
                f"PPOAMP: the observation set '{SETS[0]}' has {mine[0]} frames of {mine[1]} features, "
                f"'{SETS[1]}' has {theirs[0]} of {theirs[1]}; both must be computed alike."
            )
        self.dataset = Demonstrations(spec.num_envs, self.capacity, mine)  # pyright: ignore[reportAttributeAccessIssue]
        self.is_new = True  # only then the count is looked at: that waits for the device
        return mine[1]

    def cut(self, rollout: NativeStorage) -> tuple[Tensor, Tensor]:
        shown = self._windows(SETS[1], rollout.observations)[:-1]
        self.dataset.insert(shown, rollout.valid)  # pyright: ignore[reportAttributeAccessIssue]
        if self.is_new and not self.normalizer.count:
            self.normalizer.warm_up([shown[:, :, -1].flatten(0, 1)])
        self.is_new = False
        return self._windows(SETS[0], rollout.next_observations), torch.ones_like(rollout.valid)

    def frames(self, rollout: NativeStorage) -> Tensor:
        return self._windows(SETS[0], rollout.observations)[:-1, :, -1]

    def _windows(self, name: str, observations: Mapping[str, Tensor]) -> Tensor:
        """[..., K, D]"""
        return torch.cat([observations[group] for group in self.groups[name]], -1).float()


class PPOAMP(PPO):
    """PPO with adversarial motion priors.

    Args:
        amp_cfg: `loss_type` (GAN, LSGAN or WGAN), `disc_obs_buffer_size` (steps), `grad_penalty_scale`,
            `disc_learning_rate`, `disc_trunk_weight_decay`, `disc_linear_weight_decay`,
            `disc_max_grad_norm`, `disc_update_interval`, and `amp_discriminator` with `hidden_dims`,
            `activation`, `style_reward_scale` (per second) and `task_style_lerp`; `obs_groups` and `step_dt`
            come from `construct_algorithm`. Or the keys of Surefoot's own `amp_cfg`, with `dataset` or
            `motion_files`. None: plain PPO.

    All others are those of `PPO`.

    Attributes:
        amp: The extension; None without `amp_cfg`.
    """

    def __init__(
        self,
        actor: Any,
        critic: Any = None,
        storage: RolloutStorage | None = None,
        *args: Any,
        amp_cfg: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.amp_cfg, self.amp = amp_cfg, None
        super().__init__(actor, critic, storage, *args, **kwargs)

    def _attach(self, storage: RolloutStorage) -> None:
        if self.amp_cfg is not None:
            self.amp = self._make_amp(self.amp_cfg, storage)
            # it folds the reward before the others
            self._extensions = [self.amp, *self._extensions]
        super()._attach(storage)

    def _make_amp(self, amp_cfg: Mapping[str, Any], storage: RolloutStorage) -> AMP:
        amp_cfg = _set_keys(amp_cfg)
        groups, step_dt = amp_cfg.pop("obs_groups", None), amp_cfg.pop("step_dt", 1.0)
        if has_motions(amp_cfg):
            return AMP(amp_cfg)
        if groups is None:
            raise ConfigError(f"PPOAMP: amp_cfg needs obs_groups with the observation sets {list(SETS)}.")
        num_rows = storage.num_envs * storage.num_transitions_per_env
        first = storage.rollout.observations.get(groups[SETS[0]][0])
        config = translate(
            amp_cfg,
            num_frames=2 if first is None or first.dim() < 4 else first.shape[-2],
            step_dt=step_dt,
            num_envs=storage.num_envs,
            num_steps=storage.num_transitions_per_env,
            disc_num_epochs=self.num_learning_epochs,
            disc_num_mini_batches=self.num_mini_batches,
            disc_max_batch_size=-(-num_rows // self.num_mini_batches),
        )
        return ShownAMP(config, groups, amp_cfg.get("disc_obs_buffer_size", storage.num_transitions_per_env))

    def process_env_step(
        self, obs: Mapping[str, Tensor], rewards: Tensor, dones: Tensor, extras: Mapping[str, Any]
    ) -> None:
        """As PPO's. Final observations need not show motions, which have no end."""
        key = next((k for k in FINAL_OBSERVATIONS if extras.get(k) is not None), None)
        if key is not None and isinstance(self.amp, ShownAMP):
            shown = {group: obs[group] for group in self.amp.groups[SETS[1]]}
            extras = {**extras, key: shown | dict(extras[key].items())}
        super().process_env_step(obs, rewards, dones, extras)

    @classmethod
    def construct_algorithm(cls, obs: Any, env: Any, cfg: dict[str, Any], device: torch.device | str) -> PPO:
        """As PPO's; the observation sets of the discriminator default to groups of their names.

        Raises:
            ConfigError: there is no such set.
        """
        algorithm = dict(cfg["algorithm"])
        amp_cfg = algorithm.get("amp_cfg")
        if amp_cfg is not None and not has_motions(amp_cfg):
            groups = {name: _groups_of(name, cfg["obs_groups"], obs) for name in SETS}
            cfg["obs_groups"] = {**cfg["obs_groups"], **groups}
            step_dt = step_duration(env, "amp_cfg.amp_discriminator.style_reward_scale")
            algorithm["amp_cfg"] = {**amp_cfg, "obs_groups": groups, "step_dt": step_dt}
        inner = {**cfg, "algorithm": algorithm}
        made = super().construct_algorithm(obs, env, inner, device)
        cfg["obs_groups"] = inner["obs_groups"]
        return made


def has_motions(amp_cfg: Mapping[str, Any]) -> bool:
    """Whether it is Surefoot's own, which says where the motions are."""
    return not {"dataset", "motion_files"}.isdisjoint(amp_cfg)


def translate(
    amp_cfg: Mapping[str, Any], num_frames: int, step_dt: float, num_envs: int, num_steps: int, **fixed: Any
) -> AMPConfig:
    """The forks' `amp_cfg` in Surefoot's terms.

    Args:
        amp_cfg: Without `obs_groups` and `step_dt`; None is as good as not set.
        num_frames: K of a window.
        step_dt: Seconds per environment step, for the style reward.
        num_envs: N.
        num_steps: T.
        **fixed: Fields of `AMPConfig`.

    Raises:
        ConfigError: naming a key that is unknown, or whose value cannot be used.
    """
    amp_cfg = _set_keys(amp_cfg)
    _check_keys(amp_cfg, (*SAME, *OTHERS), "amp_cfg")
    discriminator = _set_keys(amp_cfg.get("amp_discriminator", {}))
    _check_keys(discriminator, OF_DISCRIMINATOR, "amp_cfg.amp_discriminator")
    loss_type = amp_cfg.get("loss_type", "LSGAN")
    if loss_type not in LOSSES:
        raise ConfigError(f"amp_cfg.loss_type = {loss_type!r}: expected one of {', '.join(LOSSES)}.")
    kept = amp_cfg.get("disc_obs_buffer_size", num_steps)
    keys = {key: amp_cfg[key] for key in SAME if key in amp_cfg}
    keys |= {key: discriminator[key] for key in ("hidden_dims", "activation") if key in discriminator}
    return AMPConfig.of(
        {
            **keys,
            **fixed,
            "obs_group": SETS[0],
            "num_frames": num_frames,
            "loss_type": LOSSES[loss_type],
            # all kept steps are drawn alike, and the newest rollout is one of them
            "replay_size": num_envs * max(0, kept - num_steps),
            "replay_share": max(0.0, 1 - num_steps / kept),
            "replay_iterations": max(1, -(-kept // num_steps) - 1),
            "style_reward_scale": discriminator.get("style_reward_scale", 1.0) * step_dt,
            "style_weight": 1 - discriminator.get("task_style_lerp", 0.0),
        }
    )


def _set_keys(given: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if value is not None}


def _check_keys(given: Mapping[str, Any], known: Sequence[str], path: str) -> None:
    for key in given:
        if key not in known:
            near = did_you_mean(key, known)
            raise ConfigError(f"unknown key '{path}.{key}'; known: {', '.join(known)}.{near}")


def _groups_of(name: str, obs_groups: Mapping[str, Sequence[str]], obs: Any) -> list[str]:
    """The groups of a set: as named, or the one of its name."""
    given = list(obs.keys())
    groups = list(obs_groups.get(name, [name] if name in given else []))
    if not groups:
        raise ConfigError(
            f"PPOAMP needs the observation set '{name}' in obs_groups, of groups [frames, features]; the "
            f"environment gives {sorted(given)}."
        )
    return groups


def _window_shape(spec: EnvSpec, name: str, groups: Sequence[str]) -> tuple[int, int]:
    """(K, D) of an observation set."""
    shapes: list[tuple[int, ...]] = [
        space_of(spec.observation_spaces, group, f"PPOAMP: {name}").shape or () for group in groups
    ]
    for group, shape in zip(groups, shapes, strict=True):
        if len(shape) != 2 or shape[0] != shapes[0][0] or shape[0] < 2:
            raise ConfigError(
                f"PPOAMP: the observation group '{group}' of the set '{name}' has the shape {tuple(shape)}; "
                "expected [frames, features], at least 2 frames, as many in all groups of the set."
            )
    return shapes[0][0], sum(shape[1] for shape in shapes)
