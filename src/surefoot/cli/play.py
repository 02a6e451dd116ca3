"""`surefoot play`: watch a trained policy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from surefoot.cli import debug_option
from surefoot.cli.options import checkpoint_name, device_option, run_argument
from surefoot.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from surefoot.envs.vec_env import VecEnv
    from surefoot.training.evaluation import LoadedPolicy


@click.command(epilog="Example: surefoot play last --video walk.mp4 --seconds 20")
@run_argument
@click.option("--video", metavar="FILE.mp4", help="A video; needs surefoot[video].")
@click.option("--film-strip", metavar="FILE.png", help="Pictures in one file.  [default: RUN/play.png]")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    metavar="S",
    help="How long.",
)
@click.option("--checkpoint", type=checkpoint_name, default="best", show_default=True, metavar="best|last|N")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, metavar="N")
@device_option
@debug_option
def command(
    run: str,
    video: str | None,
    film_strip: str | None,
    seconds: float,
    checkpoint: str,
    seed: int,
    device: str,
) -> None:
    """Run the policy of RUN in one environment and film it.

    Without --video and --film-strip the film strip goes into the run directory.
    """
    from gymnasium.error import DependencyNotInstalled

    from surefoot.cli.options import pick_device
    from surefoot.cli.rollout import load
    from surefoot.deploy.video import record
    from surefoot.training.checkpoint import find_run

    for option, path, ending in (("--video", video, ".mp4"), ("--film-strip", film_strip, ".png")):
        if path is not None and not path.endswith(ending):
            raise click.BadParameter(f"'{path}' must end in {ending}.", param_hint=option)
    where = pick_device(device)
    policy = load(run, checkpoint, where)
    files = [Path(path) for path in (film_strip, video) if path] or [find_run(run) / "play.png"]
    env = _env_with_render(policy, seed, where)
    try:
        for file in files:
            policy.reset()
            click.echo(record(env, policy, file, seconds=seconds, seed=seed))
    except DependencyNotInstalled as error:
        raise ConfigError(f"'{policy.task}' cannot be drawn: {error}") from error
    finally:
        env.close()


def _env_with_render(policy: LoadedPolicy, seed: int, device: torch.device) -> VecEnv:
    """One environment; Gymnasium's render only where they were made for it."""
    from surefoot.cli.rollout import evaluation_env

    env = evaluation_env(policy, 1, seed, device)
    if hasattr(env, "render"):
        return env
    env.close()
    return evaluation_env(policy, 1, seed, device, {"render_mode": "rgb_array"})
