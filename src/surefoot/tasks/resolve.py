"""What a TASK names: a bundled task, a Gymnasium id, or `package.module:factory`."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import gymnasium
import torch
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode, VectorEnv

from surefoot.config import load_yaml
from surefoot.envs import envpool
from surefoot.envs.gymnasium import GymnasiumVecEnv
from surefoot.envs.replicate import Backend, replicate
from surefoot.envs.vec_env import VecEnv
from surefoot.errors import ConfigError, did_you_mean

BUNDLED = {
    "go1-walk": ("surefoot.tasks.go1:make_env", "Unitree Go1 follows velocity commands on flat ground"),
    "go1-amp": (
        "surefoot.tasks.go1.amp:make_env",
        "the same with the style of reference motion instead of a gait",
    ),
}
"""Bundled tasks: `module:factory`, imported when asked for, and one line about each."""

_PRESETS = Path(__file__).parent / "presets"
_GENERAL = "_gymnasium"


def make(
    task: str,
    num_envs: int,
    *,
    seed: int = 1,
    evaluation: bool = False,
    backend: Backend | Literal["envpool"] = "auto",
    kwargs: Mapping[str, Any] | None = None,
    device: torch.device | str = "cpu",
    restart_workers: bool = False,
) -> VecEnv:
    """Make the environments of a task.

    Args:
        task: `go1-walk`, a Gymnasium id, or `package.module:factory` (the current directory counts). A
            factory that takes `num_envs` returns a VecEnv or a `gymnasium.vector.VectorEnv`; any other one
            returns a `gymnasium.Env`, which is replicated.
        num_envs: Environments stepped together.
        seed: Of the first `reset()`, and handed to a factory that takes `seed`.
        evaluation: Without noise, pushes or randomisation, where a task knows the difference.
        backend: For Gymnasium environments: `sync`, `async`, `envpool` (EnvPool's environment of that id), or
            `auto`: Gymnasium's own vectorised version where the id has one and `kwargs` is empty, else worker
            processes for slow environments; EnvPool's where Gymnasium has none of that id.
        kwargs: For the environment's constructor, the factory or `envpool.make`.
        device: Where tensors go.
        restart_workers: Of the backend `async`: start worker processes again that crash.

    Raises:
        ConfigError: the task, a keyword argument or a package it needs does not exist.
    """
    if not isinstance(num_envs, int) or isinstance(num_envs, bool) or num_envs < 1:
        raise ConfigError(f"num_envs is {num_envs!r}; expected a whole number of at least 1.")
    if backend not in ("auto", "sync", "async", "envpool"):
        raise ConfigError(f"env.backend is '{backend}'; expected auto, sync, async or envpool.")
    arguments = dict(kwargs or {})
    if backend == "envpool" or (backend == "auto" and _is_of_envpool_alone(task)):
        if task in BUNDLED or _is_factory(task):
            raise ConfigError(
                f"env.backend 'envpool' takes ids of EnvPool, and '{task}' is a factory; use auto."
            )
        return GymnasiumVecEnv(envpool.EnvPoolVectorEnv(task, num_envs, arguments), device, seed)
    options: Any = {"backend": backend, "device": device, "seed": seed, "restart_workers": restart_workers}
    if task in BUNDLED or _is_factory(task):
        factory = _import_factory(task)
        offered = {"seed": seed, "evaluation": evaluation, "device": device}
        if "num_envs" in inspect.signature(factory).parameters:
            return _from_vector_factory(task, factory, num_envs, offered, arguments)
        arguments = _with_offered(factory, offered, arguments)
        _check_keywords(task, factory, arguments)
        return replicate(lambda: factory(**arguments), num_envs, **options)
    spec = _gymnasium_spec(task)
    if backend == "auto" and _has_own_vector_env(spec, arguments):
        envs = _explained(
            task, lambda: gymnasium.make_vec(task, num_envs, vectorization_mode="vector_entry_point")
        )
        if isinstance(envs.metadata.get("autoreset_mode"), AutoresetMode):
            return GymnasiumVecEnv(envs, device, seed)
        envs.close()
    _check_keywords(task, _entry_point(task, spec), arguments)
    return _explained(
        task,
        lambda: replicate(lambda: gymnasium.make(task, **arguments), num_envs, **options),
    )


def backends(task: str, kwargs: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """The values of `env.backend` that a task can be made with, of those at hand here."""
    if task in BUNDLED or _is_factory(task):
        is_vectorised = "num_envs" in inspect.signature(_import_factory(task)).parameters
        return ("auto",) if is_vectorised else ("sync", "async")
    if _is_of_envpool_alone(task):
        return ("envpool",)
    own = ("auto",) if _has_own_vector_env(_gymnasium_spec(task), kwargs) else ()
    return (*own, "sync", "async", *(("envpool",) if envpool.has(task) else ()))


def preset(task: str) -> dict[str, Any]:
    """The configuration that goes with a task, as a plain mapping.

    `presets/TASK.yaml` where there is one; else general defaults for a Gymnasium environment; else, for a
    factory of a whole VecEnv, nothing.
    """
    path = _PRESETS / f"{task.replace('/', '_')}.yaml"
    if path.is_file():
        return load_yaml(path)
    if task in BUNDLED:
        return {}
    if _is_factory(task):
        factory = _import_factory(task)
        is_vector_env = inspect.isclass(factory) and issubclass(factory, VectorEnv)
        if "num_envs" in inspect.signature(factory).parameters and not is_vector_env:
            return {}
    elif not _is_of_envpool_alone(task):
        _gymnasium_spec(task)
    return load_yaml(_PRESETS / f"{_GENERAL}.yaml")


def list_tasks() -> dict[str, str]:
    """Names to one line each: the bundled tasks, then the Gymnasium ids with a preset of their own."""
    tasks = {name: about for name, (_, about) in BUNDLED.items()}
    for path in sorted(_PRESETS.glob("*.yaml")):
        if path.stem not in BUNDLED and not path.stem.startswith("_"):
            tasks[path.stem] = "Gymnasium task with a tuned preset"
    return tasks


# --- factories ---


def _is_factory(task: str) -> bool:
    """`module:name`; but `module:Name-v0` is Gymnasium's way to import a module before looking up an id."""
    module, colon, name = task.partition(":")
    return bool(colon) and module.replace(".", "_").isidentifier() and name.replace(".", "_").isidentifier()


def _import_factory(task: str) -> Callable[..., Any]:
    module_name, name = (BUNDLED[task][0] if task in BUNDLED else task).split(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise ConfigError(
                f"task '{task}': no module '{module_name}' in the current directory or installed."
                f"{did_you_mean(module_name, _local_modules())}"
            ) from error
        raise _missing_package(task, error) from error
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        public = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        what = "has no" if found is None else "is not callable:"
        raise ConfigError(
            f"task '{task}': module '{module_name}' {what} '{name}'.{did_you_mean(name, public)}"
        )
    return found


def _local_modules() -> list[str]:
    return [path.stem for path in Path.cwd().glob("*.py")]


def _from_vector_factory(
    task: str,
    factory: Callable[..., Any],
    num_envs: int,
    offered: Mapping[str, Any],
    arguments: dict[str, Any],
) -> VecEnv:
    arguments = {"num_envs": num_envs, **_with_offered(factory, offered, arguments)}
    _check_keywords(task, factory, arguments)
    made = factory(**arguments)
    if isinstance(made, VectorEnv):
        made = GymnasiumVecEnv(made, offered["device"], offered["seed"])
    if isinstance(made, gymnasium.Env):
        raise ConfigError(
            f"task '{task}' takes num_envs but returned a single {type(made).__name__}; return a "
            "gymnasium.vector.VectorEnv or a VecEnv, or take no num_envs and it will be replicated."
        )
    if not isinstance(made, VecEnv):
        lacking = [n for n in (*VecEnv.__annotations__, "reset", "step", "close") if not hasattr(made, n)]
        raise ConfigError(
            f"task '{task}' returned {type(made).__name__}, which lacks {', '.join(lacking)} of a VecEnv."
        )
    if made.num_envs != num_envs:
        raise ConfigError(
            f"task '{task}' was asked for {num_envs} environments and returned {made.num_envs}."
        )
    return made


def _with_offered(
    factory: Callable[..., Any], offered: Mapping[str, Any], arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Those of `offered` that the factory names, under the user's own arguments."""
    names = inspect.signature(factory).parameters
    return {**{key: value for key, value in offered.items() if key in names}, **arguments}


def _check_keywords(task: str, target: Callable[..., Any] | None, arguments: Mapping[str, Any]) -> None:
    if target is None:
        return
    parameters = inspect.signature(target).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for key in arguments:
        if key not in parameters and key not in ("max_episode_steps", "disable_env_checker", "render_mode"):
            raise ConfigError(
                f"env.kwargs.{key}: '{task}' takes no such argument; it has "
                f"{', '.join(parameters) or 'none'}.{did_you_mean(key, parameters)}"
            )
    missing = [n for n, p in parameters.items() if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    if missing := [n for n in missing if n not in arguments]:
        raise ConfigError(f"task '{task}' needs env.kwargs.{missing[0]}: its factory has no default for it.")


# --- Gymnasium ids ---


def _gymnasium_spec(task: str) -> EnvSpec:
    module, colon, name = task.partition(":")
    if colon:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise ConfigError(f"task '{task}': no module '{module}'.") from error
    spec = gymnasium.registry.get(name if colon else task)
    if spec is None:
        known = [*BUNDLED, *gymnasium.registry]
        near = did_you_mean(task, known) or _other_version(task)
        raise ConfigError(
            f"unknown task '{task}'.{near} A task is one of `surefoot tasks`, a Gymnasium id, or "
            "package.module:factory."
        )
    return spec


def _has_own_vector_env(spec: EnvSpec, arguments: Mapping[str, Any] | None) -> bool:
    return bool(spec.vector_entry_point) and not arguments and not spec.additional_wrappers


def _is_of_envpool_alone(task: str) -> bool:
    is_other = task in BUNDLED or _is_factory(task) or ":" in task
    return not is_other and task not in gymnasium.registry and envpool.has(task)


def _other_version(task: str) -> str:
    """`HalfCheetah` for `halfcheetah-v9`: the newest id of that name, whatever its case."""
    stem = re.sub(r"-v\d+$", "", task).lower()
    same = [key for key in gymnasium.registry if re.sub(r"-v\d+$", "", key).lower() == stem]
    return f" Did you mean '{same[-1]}'?" if same else ""


def _entry_point(task: str, spec: EnvSpec) -> Callable[..., Any] | None:
    if not isinstance(spec.entry_point, str):
        return spec.entry_point if inspect.isclass(spec.entry_point) else None
    return _explained(task, lambda: load_env_creator(str(spec.entry_point)))


def _explained(task: str, build: Callable[[], Any]) -> Any:
    """Run `build`; a package that is missing becomes one line with the command that installs it."""
    try:
        return build()
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(f"task '{task}': {_one_line(error)}") from error
    except ModuleNotFoundError as error:
        raise _missing_package(task, error) from error
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise ConfigError(f"task '{task}' cannot be made: {_one_line(error)}") from error


def _missing_package(task: str, error: ModuleNotFoundError) -> ConfigError:
    return ConfigError(f"task '{task}' needs the package '{error.name}': pip install {error.name}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
