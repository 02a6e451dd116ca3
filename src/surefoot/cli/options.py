"""What several commands share: options, the resolved configuration, devices."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from surefoot.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from surefoot.config import TrainConfig

F = TypeVar("F", bound=Callable[..., Any])

CONFIG_OPTIONS = (
    click.option(
        "--config", "config_file", metavar="FILE", help="YAML laid over the task's preset; RSL-RL's too."
    ),
    click.option(
        "--set",
        "assignments",
        metavar="KEY=VALUE",
        multiple=True,
        help="One key over the file: algorithm.learning_rate=3e-4.",
    ),
    click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Of every random stream."),
    click.option(
        "--num-envs", type=click.IntRange(min=1), metavar="N", help="Environments, over all processes."
    ),
)


def config_options(function: F) -> F:
    """Add the options that decide a configuration."""
    for option in reversed(CONFIG_OPTIONS):
        function = option(function)
    return function


def _device(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
        raise click.BadParameter(f"'{value}' is none of auto, cpu, cuda, cuda:N.", ctx, parameter)
    return value


device_option = click.option(
    "--device",
    default="auto",
    show_default=True,
    metavar="auto|cpu|cuda[:i]",
    callback=_device,
    help="Where to compute.",
)
run_argument = click.argument("run", metavar="RUN")
task_argument = click.argument("task", metavar="TASK")


def resolve_config(
    task: str,
    config_file: str | None = None,
    assignments: Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
) -> TrainConfig:
    """Defaults < the task's preset < the file < `--set` < named options.

    A file that names every key, as a run's config.yaml does, is taken without the preset: it repeats that
    run. A file of RSL-RL is taken in our form.
    """
    from surefoot import tasks
    from surefoot.config import apply_set, build_config, merge

    preset = tasks.preset(task)
    values = _read(config_file) if config_file else {}
    if not _is_complete(values):
        values = merge(preset, values)
    for assignment in assignments:
        values = apply_set(values, assignment)
    return build_config(merge(values, {k: v for k, v in (overrides or {}).items() if v is not None}))


def _read(config_file: str) -> dict[str, Any]:
    """The file's values; one of RSL-RL is brought to our form, and what changed is said once."""
    from surefoot.cli import REPORT_VARIABLE
    from surefoot.config import load_yaml
    from surefoot.config.rsl_rl import from_rsl_rl, is_rsl_rl

    values = load_yaml(Path(config_file))
    if not is_rsl_rl(values):
        return values
    values, notes = from_rsl_rl(values)
    # the process that launched this one has said it, and of torchrun's the first does
    if REPORT_VARIABLE not in os.environ and os.environ.get("RANK", "0") == "0":
        lines = [f"{config_file} is a configuration of RSL-RL; in Surefoot's form:", *notes]
        click.echo("\n  ".join(lines), err=True)
    return values


def _is_complete(values: Mapping[str, Any]) -> bool:
    from surefoot.config.names import key_paths

    def has(path: str) -> bool:
        section: Any = values
        for key in path.split("."):
            if not isinstance(section, Mapping) or key not in section:
                return False
            section = section[key]
        return True

    return all(has(path) for path in key_paths())


def pick_device(name: str) -> torch.device:
    """The device behind `auto`, `cpu`, `cuda` or `cuda:N`; with several processes each takes its own GPU."""
    import torch

    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(
            f"--device {name}: PyTorch {torch.__version__} sees no CUDA device; use --device cpu."
        )
    index = int(name.partition(":")[2] or os.environ.get("LOCAL_RANK", "0"))
    available = torch.cuda.device_count()
    if index >= available:
        raise ConfigError(f"--device {name}: there is no CUDA device {index}; there are {available}, from 0.")
    return torch.device("cuda", index)


def count(value: str) -> int:
    """A whole number above 0: `3000`, `3e3` or `3_000`."""
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if number < 1 or not number.is_integer():
        raise click.BadParameter(f"'{value}' is no whole number above 0.")
    return int(number)


def checkpoint_name(value: str) -> str:
    """`best`, `last` or an iteration; whether it exists shows when it is loaded."""
    if value not in ("best", "last") and not value.isdigit():
        raise click.BadParameter(f"'{value}' is none of best, last and an iteration's number.")
    return value
