"""`surefoot eval`: how good a trained policy is."""

from __future__ import annotations

import json

import click

from surefoot.cli import debug_option
from surefoot.cli.options import checkpoint_name, device_option, run_argument


@click.command(
    short_help="Evaluate the policy of RUN.", epilog="Example: surefoot eval last --episodes 20 --json"
)
@run_argument
@click.option("--episodes", type=click.IntRange(min=1), default=100, show_default=True, metavar="N")
@click.option(
    "--checkpoint",
    type=checkpoint_name,
    default="best",
    show_default=True,
    metavar="best|last|N",
    help="N: an iteration.",
)
@click.option("--stochastic", is_flag=True, help="Sample actions rather than take the most likely ones.")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, metavar="N")
@device_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@debug_option
def command(
    run: str, episodes: int, checkpoint: str, stochastic: bool, seed: int, device: str, as_json: bool
) -> None:
    """Evaluate the policy of RUN on its task, without exploration, noise or randomisation.

    Every environment has its share of the episodes beforehand, so that short ones are not over-counted.
    """
    from surefoot.cli.options import pick_device
    from surefoot.cli.rollout import evaluation_env, load
    from surefoot.training.evaluation import evaluate

    where = pick_device(device)
    policy = load(run, checkpoint, where)
    env = evaluation_env(policy, min(episodes, policy.config.num_envs), seed, where)
    try:
        result = evaluate(policy, env, episodes, deterministic=not stochastic, seed=seed)
    finally:
        env.close()
    if as_json:
        click.echo(json.dumps(result))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in result.items():
        table.add_row(name.replace("_", " "), str(value) if isinstance(value, int) else f"{value:.4g}")
    console = Console(highlight=False)
    console.print(f"{policy.task}, iteration {policy.iteration}", markup=False)
    console.print(table)
