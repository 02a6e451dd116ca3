"""What a run must remember to go on as if it had never stopped."""

from __future__ import annotations

import io
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from surefoot import distributed
from surefoot.config import to_dict
from surefoot.errors import CheckpointError
from surefoot.training.checkpoint import FORMAT, find_run, numbered, to_plain
from surefoot.training.env_spec import check_spec, spec_to_data
from surefoot.training.hooks import Hook
from surefoot.training.random_state import global_random_state, restore_global_random_state

if TYPE_CHECKING:
    from surefoot.training.on_policy_runner import OnPolicyRunner


SHARED = ("tensors", "optimizers")
"""Parts of the algorithm's state that are the same in every process."""


def collect(runner: OnPolicyRunner) -> dict[str, Any]:
    """The state of all processes, for `save_checkpoint`; process 0's is at the top level."""
    algorithm = runner.alg.state()
    own = {
        "num_envs": runner.env.num_envs,
        "env": _env_state(runner.env),
        "observations": runner.observations,
        "episodes": runner.episodes.state_dict(),
        "guard": runner.guard.state_dict(),
        "masks": runner.masks.state_dict(),
        "skips": runner.skips.state_dict(),
        "rng": global_random_state(),
    }
    local = {key: part for key, part in algorithm.items() if key not in SHARED}
    # an extension may keep a number per environment in a buffer
    buffers = {name: algorithm["tensors"][name] for name in _buffers(runner)}
    parts = _gather((to_plain(own), to_plain({"local": local, "buffers": buffers})))
    return {
        "format": FORMAT,
        "task": runner.task,
        "iteration": runner.iteration - 1,
        "env_steps": runner.env_steps,
        "wall_time_s": runner.wall_time_s,
        "config": to_dict(runner.config),
        "spec": spec_to_data(runner.alg.spec),
        "device": runner.device.type,
        "compile": runner.compilation.mode,
        "algorithm": algorithm,
        "best": runner.checkpoints.state_dict(),
        "hooks": {name: hook.state_dict() for name, hook in _named(runner.hooks)},
        **parts[0][0],
        "processes": [{**own, **algorithm} for own, algorithm in parts[1:]],
    }


def _gather(part: Any) -> list[Any]:
    """`part` of every process. Unlike pickle, `torch.save` knows tensors of every dtype."""
    if distributed.world_size() == 1:
        return [part]
    buffer = io.BytesIO()
    torch.save(part, buffer)
    gathered = distributed.gather_objects(buffer.getvalue())
    return [torch.load(io.BytesIO(data), weights_only=True) for data in gathered]


def restore(runner: OnPolicyRunner, state: Mapping[str, Any], file: Path) -> None:
    """The reverse of `collect`. What does not fit is refused before anything is changed.

    Raises:
        CheckpointError: naming the file and the first difference.
    """
    own = _part_of_this_process(runner, state)
    try:
        check_spec(state["spec"], runner.alg.spec)
        runner.alg.load_state(_algorithm_state(runner, state, own))
    except (CheckpointError, RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file}: {' '.join(str(error).split())}") from error
    _warn_of_other_networks(state["config"], to_dict(runner.config))
    runner.iteration = state["iteration"] + 1
    runner.env_steps, runner.wall_time_s = state["env_steps"], state["wall_time_s"]
    runner.checkpoints.load_state_dict(state["best"])
    runner.compilation.load(state.get("compile"))
    # what else was learned may be divided otherwise
    runner.skips.load_state_dict({**state["skips"], "good": None} if own is None else own["skips"])
    for name, hook in _named(runner.hooks):
        if name in state["hooks"]:
            hook.load_state_dict(state["hooks"][name])
    runner.observations = None
    if runner.run_dir is not None and find_run(file).resolve() == runner.run_dir.resolve():
        runner.is_continued = True
    runner.episodes.load_state_dict((own or state)["episodes"])
    if own is not None:
        restore_global_random_state(own["rng"])
        _restore_env(runner, own)


def _algorithm_state(
    runner: OnPolicyRunner, state: Mapping[str, Any], own: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What `PPO.load_state` takes: what all processes share, and the part of this one."""
    fresh = runner.alg.state()
    shared = {key: state["algorithm"][key] for key in SHARED}
    if own is None:
        counters = {key: x for key, x in state["algorithm"].items() if isinstance(x, int)}
        local = {**fresh, **counters}
        buffers = _per_env_buffers(runner, fresh["tensors"], state)
    else:
        local, buffers = dict(own.get("local", state["algorithm"])), own.get("buffers", {})
    if state["device"] != runner.device.type:
        # the generators of a CPU and of an accelerator do not fit one another; the streams start anew
        local["generators"] = fresh["generators"]
    return {**local, **shared, "tensors": {**shared["tensors"], **buffers}}


def _per_env_buffers(
    runner: OnPolicyRunner, fresh: Mapping[str, torch.Tensor], state: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """What an extension keeps per environment; it starts anew where there are others."""
    here, saved, tensors = runner.env.num_envs, state["num_envs"], state["algorithm"]["tensors"]

    def is_per_env(name: str) -> bool:
        return name in tensors and (fresh[name].shape[:1], tensors[name].shape[:1]) == ((here,), (saved,))

    return {name: fresh[name] for name in _buffers(runner) if is_per_env(name)}


def _restore_env(runner: OnPolicyRunner, own: Mapping[str, Any]) -> None:
    """Put the environments where they were; those that cannot go there start new episodes."""
    if own["env"] is None or own["observations"] is None or not can_restore(runner.env):
        return
    env: Any = runner.env
    env.load_state_dict(own["env"])
    runner.guard.load_state_dict(own["guard"])
    runner.masks.load_state_dict(own["masks"])
    runner.observations = {g: x.to(runner.device) for g, x in own["observations"].items()}


def _part_of_this_process(runner: OnPolicyRunner, state: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The share of this process; None where processes or environments were divided otherwise."""
    parts = [state, *state["processes"]]
    sizes, here = [part["num_envs"] for part in parts], distributed.gather_objects(runner.env.num_envs)
    if sizes == here:
        return parts[distributed.rank()]
    warnings.warn(
        f"the checkpoint is of {' + '.join(map(str, sizes))} environments, this run has "
        f"{' + '.join(map(str, here))}; environments and random streams start anew.",
        stacklevel=4,
    )
    return None


def _warn_of_other_networks(saved: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Settings that change what the weights mean, though their shapes fit."""
    for section in ("actor", "critic"):
        for key, value in here[section].items():
            if saved[section].get(key, value) != value:
                warnings.warn(
                    f"{section}.{key} is {value} here and was {saved[section][key]} in the checkpoint; the "
                    "policy may act differently.",
                    stacklevel=4,
                )


def _buffers(runner: OnPolicyRunner) -> list[str]:
    names = dict(runner.alg.named_buffers())
    return [name for name in runner.alg.state_dict() if name in names]


def _env_state(env: Any) -> Any:
    return env.state_dict() if can_restore(env) else None


def can_restore(env: Any) -> bool:
    """Whether the environments can be put back where they were."""
    return hasattr(env, "state_dict") and hasattr(env, "load_state_dict")


def _named(hooks: Sequence[Hook]) -> Iterator[tuple[str, Hook]]:
    """Hooks by class name, numbered, so that adding one of another class leaves the others' names."""
    seen: Counter[str] = Counter()
    for hook in hooks:
        name = type(hook).__name__
        yield f"{name}.{seen[name]}", hook
        seen[name] += 1


def claim_run_dir(runner: OnPolicyRunner) -> None:
    """Make the run directory. Where that fails the run goes on without files, with a warning.

    Raises:
        CheckpointError: it holds another run.
    """
    directory = runner.run_dir
    if directory is None:
        return
    fault = None
    if distributed.is_main():
        holds_run = (directory / "metrics.jsonl").exists() or numbered(directory / "checkpoints")
        if holds_run and not runner.is_continued:
            fault = (
                f"{directory} already holds a run; go on with it (load it first, or `surefoot train --resume "
                f"{directory}`), or choose another directory."
            )
        try:
            (directory / "checkpoints").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            warnings.warn(
                f"{directory} cannot be written ({error.strerror}); training goes on without files.",
                stacklevel=3,
            )
            directory = None
    fault, runner.run_dir = distributed.gather_objects((fault, directory))[0]
    if fault:
        raise CheckpointError(fault)
