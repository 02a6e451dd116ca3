"""Symmetry under RSL-RL's names, over `surefoot.extensions.symmetry`."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from surefoot.algorithm.extension import Extension
from surefoot.algorithm.rollout_storage import RolloutStorage
from surefoot.compat.rsl_rl.utils.utils import resolve_callable
from surefoot.errors import ConfigError
from surefoot.extensions import symmetry
from surefoot.extensions.mirrors import Mirror, check_mirror, probe, probe_actions
from surefoot.networks.actor_critic import ActorCritic
from surefoot.types import Batch, EnvSpec, Observations, PolicyOutput

AugmentationFunction = Callable[..., tuple[TensorDict | None, Tensor | None]]
"""`(env, obs, actions)` to both with their images appended, one symmetry after the other, along the rows:
[R, ...] to [(1 + K)·R, ...], the originals first; None where None was given."""


class Images:
    """The K symmetries that a client's function appends, taken apart.

    Args:
        function: The client's.
        env: Its first argument.
    """

    shapes: Mapping[str, Sequence[int]]
    """Of one observation of each group."""

    def __init__(self, function: AugmentationFunction, env: Any) -> None:
        self.name = getattr(function, "__qualname__", type(function).__name__)
        self.function = partial(_by_group, function) if _is_of_2x(function) else function
        self.env, self.num_mirrors = env, 0
        self._given: tuple[Any, Any] = (None, None)
        self._kept: tuple[TensorDict | None, Tensor | None] = (None, None)

    def __call__(
        self, observations: Observations | None, actions: Tensor | None
    ) -> tuple[TensorDict | None, Tensor | None]:
        """The client's function on rows [R, ...], copies that it may write into, as it may in RSL-RL."""
        obs = None
        if observations is not None:
            num_rows = next(iter(observations.values())).shape[0]
            obs = TensorDict({g: x.clone() for g, x in observations.items()}, batch_size=[num_rows])
        return self.function(env=self.env, obs=obs, actions=None if actions is None else actions.clone())

    def image(
        self, k: int, observations: Observations | None, actions: Tensor | None
    ) -> tuple[dict[str, Tensor] | None, Tensor | None]:
        """Symmetry `k` of observations [..., *group shape] and actions [..., A]: a `MirrorFunction`."""
        if self._given[0] is not observations or self._given[1] is not actions or not k:
            # all symmetries are asked for in turn, of the same tensors; the function makes them at once
            self._given, self._kept = (observations, actions), self(*self._rows(observations, actions))
        kept_observations, kept_actions = self._kept
        if k == self.num_mirrors - 1:
            self._given = self._kept = (None, None)
        images = None
        if observations is not None:
            assert kept_observations is not None
            found = [g for g in observations if g in kept_observations.keys()]  # noqa: SIM118 - a TensorDict
            images = {g: self._block(k, kept_observations[g], observations[g]) for g in found}
        return images, None if actions is None else self._block(k, kept_actions, actions)

    def _rows(
        self, observations: Observations | None, actions: Tensor | None
    ) -> tuple[Observations | None, Tensor | None]:
        """Leading dimensions joined to one: clients know no sequences."""
        if actions is not None:
            lead = actions.dim() - 1
        else:
            assert observations is not None
            lead = min(x.dim() - len(self.shapes[g]) for g, x in observations.items())
        if observations is not None:
            observations = {g: x.flatten(0, lead - 1) for g, x in observations.items()}
        return observations, None if actions is None else actions.flatten(0, lead - 1)

    def _block(self, k: int, blocks: Tensor | None, x: Tensor) -> Tensor:
        """Image `k` of `x`, in its shape."""
        assert blocks is not None
        return blocks.unflatten(0, (self.num_mirrors + 1, -1))[k + 1].reshape(x.shape)

    def try_out(self, spec: EnvSpec, groups: Sequence[str], dtype: torch.dtype) -> None:
        """Call the function with made-up rows to learn how many symmetries it has.

        Raises:
            KeyError: it reads an observation group that is not among `groups`.
            ConfigError: it does not return what such a function must.
        """
        self.shapes = {g: space.shape or () for g, space in spec.observation_spaces.items()}
        rows = {g: probe(spec.observation_spaces[g], spec.device, dtype) for g in groups}
        actions = probe_actions(spec.action_space, spec.device, dtype)
        images, none = self(rows, None)
        nothing, action_images = self(None, actions)
        if images is None or action_images is None or none is not None or nothing is not None:
            raise ConfigError(
                f"Symmetry: {self.name} must return observations where it was given some, actions where it "
                "was given some, and None else."
            )
        if missing := sorted(set(groups) - set(images.keys())):
            raise ConfigError(f"Symmetry: {self.name} leaves out the observation groups {missing}.")
        pairs = {f"observation group '{g}'": (x, images[g]) for g, x in rows.items()}
        counts = {
            what: self._num_images(what, *pair)
            for what, pair in {**pairs, "actions": (actions, action_images)}.items()
        }
        self.num_mirrors = counts["actions"]
        if set(counts.values()) != {self.num_mirrors} or not self.num_mirrors:
            raise ConfigError(
                f"Symmetry: {self.name} adds so many images: {counts}; expected one number, at least 1."
            )

    def _num_images(self, what: str, given: Tensor, found: Tensor) -> int:
        """How often `found` [(1 + K)·R, ...] holds images of `given` [R, ...]: K."""
        num_rows = given.shape[0]
        if found.shape[0] % num_rows or found.shape[1:] != given.shape[1:]:
            raise ConfigError(
                f"Symmetry: {self.name} made {tuple(found.shape)} of {what} {tuple(given.shape)}; expected a "
                f"multiple of {num_rows} rows of the same shape."
            )
        if not torch.equal(found[:num_rows], given):
            raise ConfigError(
                f"Symmetry: {self.name} does not return the given {what} as its first {num_rows} rows."
            )
        return found.shape[0] // num_rows - 1


def _is_of_2x(function: AugmentationFunction) -> bool:
    try:
        return "obs_type" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a built-in function does not tell
        return False


def _by_group(
    function: Callable[..., Any], env: Any, obs: TensorDict | None, actions: Tensor | None
) -> tuple[TensorDict | None, Tensor | None]:
    """A function of RSL-RL 2.x, which takes the tensor of one group at a time, as one of today."""
    images = None
    if obs is not None:
        found = {g: function(env=env, obs=x, actions=None, obs_type=g)[0] for g, x in obs.items()}
        images = TensorDict(found, batch_size=[next(iter(found.values())).shape[0]])
    if actions is not None:
        actions = function(env=env, obs=None, actions=actions, obs_type="policy")[1]
    return images, actions


class ClientSymmetry(symmetry.Symmetry):
    """Surefoot's Symmetry with a client's augmentation function.

    With neither use it only measures, and then once per iteration, in the first mini-batch.
    """

    images: Images

    def observation_groups(self) -> Sequence[str]:
        return self.groups

    def make_mirrors(self, spec: EnvSpec, policy: ActorCritic) -> list[Mirror]:
        dtype = policy.inputs.like.dtype
        try:
            self.images.try_out(spec, self.groups, dtype)
        except KeyError:
            # it reads groups that no network does
            self.groups = list(spec.observation_spaces)
            self.images.try_out(spec, self.groups, dtype)
        mirrors: list[Mirror] = []
        for k in range(self.images.num_mirrors):
            name = f"{self.images.name}, image {k + 1}"
            mirror = Mirror(name, partial(self.images.image, k), is_involution=False)
            try:
                check_mirror(mirror, spec, self.groups, policy.to_env, dtype)
            except ConfigError as error:
                warnings.warn(f"{error} RSL-RL trains on, and so does this run.", stacklevel=2)
            mirrors.append(mirror)
        return mirrors

    def prepare(self, rollout: RolloutStorage, policy: ActorCritic) -> None:
        super().prepare(rollout, policy)
        self.measured: dict[str, Tensor] = {}

    def loss(self, batch: Batch, out: PolicyOutput, policy: ActorCritic) -> dict[str, Tensor]:
        """What nothing is learned from is measured once per iteration: each time is a pass of the actor."""
        if self.use_data_augmentation or self.use_mirror_loss:
            return super().loss(batch, out, policy)
        self.measured = self.measured or super().loss(batch, out, policy)
        return self.measured


class Symmetry:
    """RSL-RL's symmetry: the owner of the native extension that the engine runs.

    Its own methods serve learning loops of clients.

    Args:
        env: First argument of the function.
        data_augmentation_func: An `AugmentationFunction`, or its import path; None switches symmetry off,
            with a warning.
        use_data_augmentation: Learn from the images too.
        use_mirror_loss: Draw the policy's mean at the images towards the image of its mean.
        mirror_loss_coeff: Weight of that loss.

    Attributes:
        extension: For `surefoot.PPO`; it does nothing where symmetry is off.
    """

    extension: Extension

    def __init__(
        self,
        env: Any,
        data_augmentation_func: str | AugmentationFunction | None,
        use_data_augmentation: bool = False,
        use_mirror_loss: bool = False,
        mirror_loss_coeff: float = 0.0,
    ) -> None:
        if data_augmentation_func is None:
            _warn_that_off()
            self.extension = Extension()
            use_data_augmentation = use_mirror_loss = False
        else:
            function = resolve_callable(data_augmentation_func)
            extension = ClientSymmetry(use_data_augmentation, use_mirror_loss, mirror_loss_coeff)
            extension.images = self._images = Images(function, env)
            self.extension, self.data_augmentation_func = extension, function
        self.env = env
        self.use_data_augmentation, self.use_mirror_loss = use_data_augmentation, use_mirror_loss
        self.mirror_loss_coeff = mirror_loss_coeff

    def augment_batch(self, batch: Any, original_batch_size: int) -> None:
        """Append images to a flat batch of RSL-RL's, in place; all else is repeated."""
        if not self.use_data_augmentation:
            return
        batch.observations, actions = self._images(batch.observations, batch.actions)
        assert actions is not None
        batch.actions, times = actions, len(actions) // original_batch_size
        for name in ("old_actions_log_prob", "values", "advantages", "returns"):
            setattr(batch, name, getattr(batch, name).repeat(times, 1))

    def compute_loss(self, actor: Callable[[Any], Tensor], batch: Any, original_batch_size: int) -> Tensor:
        """0-d mirror loss, without its weight; the images are appended here unless they were before."""
        if not self.use_data_augmentation:
            batch.observations, _ = self._images(batch.observations, None)
        means = actor(batch.observations)
        _, targets = self._images(None, means[:original_batch_size].detach())
        assert targets is not None
        loss = nn.functional.mse_loss(means[original_batch_size:], targets[original_batch_size:])
        return loss if self.use_mirror_loss else loss.detach()


def resolve_symmetry_config(alg_cfg: dict[str, Any], env: Any) -> dict[str, Any]:
    """Give `alg_cfg["symmetry_cfg"]` the environment; None where symmetry is off.

    Args:
        alg_cfg: The keys of `algorithm`; changed in place, its own `symmetry_cfg` stays as it is.
        env: For the augmentation function.
    """
    symmetry_cfg = alg_cfg.get("symmetry_cfg")
    if symmetry_cfg is not None and symmetry_cfg.get("data_augmentation_func") is None:
        _warn_that_off()
        symmetry_cfg = None
    alg_cfg["symmetry_cfg"] = None if symmetry_cfg is None else {**symmetry_cfg, "env": env}
    return alg_cfg


def _warn_that_off() -> None:
    warnings.warn("symmetry_cfg names no data_augmentation_func: symmetry is off.", stacklevel=3)
