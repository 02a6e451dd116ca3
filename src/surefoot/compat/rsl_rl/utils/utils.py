"""RSL-RL's helper functions: names in configurations, observation sets, padded trajectories, gradients."""

from __future__ import annotations

import copy
import importlib
import pkgutil
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from surefoot import distributed
from surefoot.algorithm.optimizer import OPTIMIZERS
from surefoot.algorithm.sequences import cut_sequences
from surefoot.compat.rsl_rl.utils.code_state import store_code_state as store_code_state  # its place in 2.x
from surefoot.compat.rsl_rl.utils.console import tell
from surefoot.config import SurefootWarning
from surefoot.errors import ConfigError, NonFiniteError, did_you_mean

PACKAGE = "surefoot.compat.rsl_rl"
CUDA_GRAPH_MODES = ("reduce-overhead", "max-autotune")

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "elu": nn.ELU,
    "selu": nn.SELU,
    "relu": nn.ReLU,
    "crelu": nn.CELU,
    "lrelu": nn.LeakyReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
    "gelu": nn.GELU,
    "swish": nn.SiLU,
    "mish": nn.Mish,
    "identity": nn.Identity,
}
"""RSL-RL's names. Its `crelu` has always been CELU: checkpoints were trained with that."""

TensorOrDict = TypeVar("TensorOrDict", Tensor, TensorDict)

# ------------------------------------------------------------------ names in a configuration


def resolve_nn_activation(act_name: str) -> nn.Module:
    """A new module of the activation of that name.

    Raises:
        ConfigError: there is none of that name.
    """
    return _by_name(ACTIVATIONS, act_name, "activation")()


def resolve_optimizer(optimizer_name: str) -> type[torch.optim.Optimizer]:
    """The class of the optimiser of that name.

    Raises:
        ConfigError: there is none of that name.
    """
    return _by_name(OPTIMIZERS, optimizer_name, "optimizer")


def _by_name(known: Mapping[str, Any], name: str, what: str) -> Any:
    if name.lower() in known:
        return known[name.lower()]
    raise ConfigError(
        f"there is no {what} '{name}'; there are {', '.join(known)}.{did_you_mean(name.lower(), known)}"
    )


def resolve_callable(callable_or_name: Callable[..., Any] | str) -> Callable[..., Any]:
    """What a `class_name` or `func` of a configuration names.

    Args:
        callable_or_name: The thing itself, `package.module:Name.Inner`, `package.module.Name.Inner`, or the
            bare name of something of this layer. Paths below `rsl_rl` lead into this layer, whether or not
            the door is open.

    Raises:
        TypeError: neither callable nor text.
        ImportError: no such module.
        AttributeError: no such name in the module.
        ConfigError: no such bare name.
    """
    if callable(callable_or_name):
        return callable_or_name
    if not isinstance(callable_or_name, str):
        raise TypeError(f"Expected callable or string, got {callable_or_name!r}.")
    if ":" in callable_or_name:
        module, _, names = callable_or_name.rpartition(":")
        return _attribute(importlib.import_module(_own_path(module)), names.split("."))
    if "." in callable_or_name:
        return _by_dotted_path(callable_or_name)
    return _by_bare_name(callable_or_name)


def _own_path(module: str) -> str:
    head, dot, rest = module.partition(".")
    return f"{PACKAGE}{dot}{rest}" if head == "rsl_rl" else module


def _attribute(found: Any, names: Sequence[str]) -> Any:
    for name in names:
        found = getattr(found, name)
    return found


def _by_dotted_path(path: str) -> Any:
    """The longest part that is a module, and what the rest names in it."""
    parts = path.split(".")
    for length in range(len(parts) - 1, 0, -1):
        name = _own_path(".".join(parts[:length]))
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # the module is there, what it imports is not
            continue
        return _attribute(module, parts[length:])
    raise ImportError(f"there is no module '{parts[0]}' for '{path}': it must be installed or importable.")


def _by_bare_name(name: str) -> Any:
    known: list[str] = []
    package = importlib.import_module(PACKAGE)
    for info in pkgutil.iter_modules(package.__path__, f"{PACKAGE}."):
        if not info.ispkg:
            continue
        module = importlib.import_module(info.name)
        if hasattr(module, name):
            return getattr(module, name)
        known += getattr(module, "__all__", [])
    raise ConfigError(
        f"Could not resolve '{name}'.{did_you_mean(name, known)} Give package.module:Name, or the class."
    )


def string_to_callable(name: str) -> Callable[..., Any]:
    """`package.module:function`, as versions 2.x name it; newer ones have `resolve_callable`."""
    return resolve_callable(name)


def resolve_class(cfg: Mapping[str, Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The class that `cfg["class_name"]` names, and a deep copy of the other entries: its arguments."""
    settings = copy.deepcopy(dict(cfg))
    if "class_name" not in settings:
        raise ConfigError(f"a class_name is missing beside {', '.join(settings) or 'nothing'}.")
    return resolve_callable(settings.pop("class_name")), settings


# ------------------------------------------------------------------ observations


def resolve_obs_groups(
    obs: Mapping[str, Any], obs_groups: Mapping[str, Sequence[str]], default_sets: Sequence[str]
) -> dict[str, list[str]]:
    """The groups of every observation set, those of `default_sets` filled in where they are not given.

    A set that is not given is the group of the same name, else `policy`, and the screen says so. Where that
    is a guess (of a teacher, of RND, or of a critic beside groups that it might read), it is a warning.

    Args:
        obs: What the environment offers, by group.
        obs_groups: The groups of each set, in the order in which they are concatenated; unchanged.
        default_sets: Sets that the algorithm reads.

    Raises:
        ConfigError: a set without groups, or a group that is not offered, and which there are.
    """
    known = list(obs.keys())  # a TensorDict iterates over its rows
    offered = ", ".join(f"'{group}'" for group in known)
    resolved: dict[str, list[str]] = {}
    notes: dict[str, str] = {}
    for name, groups in obs_groups.items():
        resolved[name] = [groups] if isinstance(groups, str) else list(groups)
        if not resolved[name]:
            raise ConfigError(f"obs_groups.{name} is empty; the environment offers {offered}.")
        for group in resolved[name]:
            if group not in known:
                raise ConfigError(
                    f"obs_groups.{name} wants the observation group '{group}', which the environment does "
                    f"not offer; it offers {offered}.{did_you_mean(group, known)}"
                )
    for name in default_sets:
        if name in resolved:
            continue
        if name not in known and "policy" not in known:
            raise ConfigError(
                f"obs_groups has no '{name}', and the environment offers neither a group of that name nor "
                f"'policy', but {offered}. Add obs_groups.{name}."
            )
        resolved[name] = [name if name in known else "policy"]
        notes[name] = "  (not in obs_groups)"
        is_guess = name in ("teacher", "rnd_state") or (name == "critic" and len(known) > 1)
        if name not in known and is_guess:
            warnings.warn(
                f"obs_groups does not say what '{name}' reads: it gets 'policy'; the environment offers "
                f"{offered}. Add obs_groups.{name}.",
                SurefootWarning,
                stacklevel=3,
            )
    lines = (f"  {name}: {', '.join(groups)}{notes.get(name, '')}" for name, groups in resolved.items())
    tell("\n".join(["Observation sets:", *lines]))
    return resolved


def check_nan(obs: Mapping[str, Tensor], rewards: Tensor, dones: Tensor) -> None:
    """Raise where anything that the environment returned is NaN or infinite. One look at the device.

    Raises:
        NonFiniteError: naming what it is.
    """
    sources = {f"observation group '{group}'": x for group, x in obs.items()}
    sources |= {"rewards": rewards, "dones": dones}
    flags = torch.stack([kind.any() for x in sources.values() for kind in (x.isnan(), x.isinf())])
    found = iter(flags.tolist())
    for name in sources:
        kinds = [kind for kind in ("NaN", "Inf") if next(found)]
        if kinds:
            raise NonFiniteError(
                f"The {name} returned by the environment contain {' and '.join(kinds)} values; look into its "
                "step() and reset()."
            )


# ------------------------------------------------------------------ trajectories


def split_and_pad_trajectories(tensor: TensorOrDict, dones: Tensor) -> tuple[TensorOrDict, Tensor]:
    """The episodes in a rollout side by side, each from its first step, padded with zeros.

    Args:
        tensor: [T, N, ...], or a TensorDict of such.
        dones: [T, N] or [T, N, 1] of any dtype, where an episode ended.

    Returns:
        [T, B, ...], environment by environment and in order of time; and the mask [T, B] of what is real.
    """
    num_steps, num_envs = dones.shape[:2]
    is_first = torch.ones(num_steps, num_envs, dtype=torch.bool, device=dones.device)
    is_first[1:] = dones.reshape(num_steps, num_envs)[:-1].bool()
    pieces = cut_sequences(is_first, torch.ones_like(is_first), num_steps)
    length, count = pieces.mask.shape
    mask = torch.zeros(num_steps, count, dtype=torch.bool, device=dones.device)
    mask[:length] = pieces.mask

    def pad(x: Tensor) -> Tensor:
        padded = x.new_zeros(num_steps, count, *x.shape[2:])
        rows = x.flatten(0, 1)[pieces.index.to(x.device)]
        real = pieces.mask.to(x.device).reshape(length, count, *[1] * (x.dim() - 2))
        padded[:length] = rows.masked_fill(~real, 0)
        return padded

    return _map(pad, tensor, (num_steps, count)), mask


def unpad_trajectories(trajectories: TensorOrDict, masks: Tensor) -> TensorOrDict:
    """The inverse: [T, B, ...] and its mask [T, B] back to [T, N, ...]."""
    num_steps = masks.shape[0]
    column, step = masks.t().nonzero(as_tuple=True)

    def unpad(x: Tensor) -> Tensor:
        return x[step, column].unflatten(0, (-1, num_steps)).transpose(0, 1)

    return _map(unpad, trajectories, (num_steps, column.numel() // num_steps))


def _map(change: Callable[[Tensor], Tensor], x: TensorOrDict, batch_size: tuple[int, int]) -> TensorOrDict:
    if isinstance(x, TensorDict):
        changed = x.apply(change, batch_size=list(batch_size))
        assert isinstance(changed, TensorDict)
        return changed
    return change(x)


# ------------------------------------------------------------------ the rest


def get_param(param: Any, idx: int) -> Any:
    """Entry `idx` of a list or tuple; anything else is the same for every index."""
    return param[idx] if isinstance(param, (tuple, list)) else param


def compile_model(model: nn.Module, mode: str | None = None) -> nn.Module:
    """The model under `torch.compile`; itself where `mode` is None.

    Raises:
        ConfigError: a mode that records CUDA graphs: a second call overwrites what the first returned.
    """
    if mode is None:
        return model
    if mode in CUDA_GRAPH_MODES:
        raise ConfigError(
            f"torch_compile_mode '{mode}' records CUDA graphs, whose results the next call overwrites. "
            "Use 'default' or 'max-autotune-no-cudagraphs', or null to compile nothing."
        )
    return torch.compile(model, mode=mode)  # pyright: ignore[reportReturnType]


def reduce_gradients_in_buckets(params: Iterable[nn.Parameter], world_size: int, bucket_mb: float) -> None:
    """Average gradients over processes, with no more than `bucket_mb` megabytes (2²⁰ bytes) copied at once.

    Args:
        params: Those without a gradient are left out; it must be the same ones in every process.
        world_size: Number of processes.
        bucket_mb: Gradients larger than this are averaged in parts.
    """
    bucket: list[Tensor] = []
    filled, limit = 0, int(bucket_mb * 2**20)
    for gradient in (p.grad for p in params if p.grad is not None):
        size = gradient.element_size()
        flat = gradient.view(-1) if gradient.is_contiguous() else gradient.contiguous().view(-1)
        for part in flat.split(max(1, limit // size)):
            if bucket and filled + part.numel() * size > limit:
                _average(bucket, world_size)
                bucket, filled = [], 0
            bucket.append(part)
            filled += part.numel() * size
        if flat.data_ptr() != gradient.data_ptr():
            _average(bucket, world_size)
            bucket, filled = [], 0
            gradient.copy_(flat.view_as(gradient))
    if bucket:
        _average(bucket, world_size)


def _average(bucket: Sequence[Tensor], world_size: int) -> None:
    total = distributed.all_sum(torch.cat(list(bucket))).div_(world_size)
    for part, averaged in zip(bucket, total.split([part.numel() for part in bucket]), strict=True):
        part.copy_(averaged)
