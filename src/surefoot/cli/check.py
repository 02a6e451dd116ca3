"""`surefoot check`: what would spoil training, before training."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from surefoot.cli import FAILED, debug_option
from surefoot.cli.options import config_options, device_option, resolve_config, task_argument

if TYPE_CHECKING:
    import torch

    from surefoot.config import TrainConfig
    from surefoot.envs.throughput import ThroughputReport
    from surefoot.envs.vec_env import VecEnv


@click.command(
    short_help="Look for mistakes in an environment.", epilog="Example: surefoot check my_module:make_env"
)
@task_argument
@config_options
@device_option
@click.option(
    "--throughput",
    "seconds",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="For trying backends and numbers of environments; 0: none.",
)
@debug_option
def command(
    task: str,
    config_file: str | None,
    assignments: tuple[str, ...],
    seed: int | None,
    num_envs: int | None,
    device: str,
    seconds: float,
) -> None:
    """Run the environment of TASK for a moment and hold it against the contract.

    Then measure how fast steps are collected with other numbers of environments and, for Gymnasium tasks,
    other backends. Exits 1 where something would spoil training.
    """
    from surefoot import tasks
    from surefoot.cli.options import pick_device
    from surefoot.envs.check import check_env

    config = resolve_config(task, config_file, assignments, {"seed": seed, "num_envs": num_envs})
    count = num_envs or min(config.num_envs, 4)
    env = tasks.make(
        task,
        count,
        seed=config.seed,
        backend=config.env.backend,
        kwargs=config.env.kwargs,
        device=pick_device(device),
    )
    try:
        report = check_env(env, seed=config.seed)
    finally:
        env.close()
    click.echo(f"{task}: {report}")
    if not report.is_ok:
        sys.exit(FAILED)
    if seconds > 0:
        click.echo(_throughput(task, config, pick_device(device), seconds))


def _throughput(task: str, config: TrainConfig, device: torch.device, seconds: float) -> ThroughputReport:
    """Measured with the configured policy, untrained."""
    from surefoot import tasks
    from surefoot.envs.throughput import candidates, measure
    from surefoot.training.build import build_policy
    from surefoot.training.env_spec import spec_of
    from surefoot.training.evaluation import InferencePolicy
    from surefoot.training.threads import training_threads

    def make(backend: Any, num_envs: int) -> VecEnv:
        return tasks.make(
            task, num_envs, seed=config.seed, backend=backend, kwargs=config.env.kwargs, device=device
        )

    def policy(env: VecEnv) -> InferencePolicy:
        spec = spec_of(env, config.algorithm.gamma, device)
        return InferencePolicy(build_policy(spec, config), deterministic=False)

    backends = tasks.backends(task, config.env.kwargs)
    with training_threads(config):
        return measure(candidates(config.env.backend, backends, config.num_envs), make, policy, seconds)
