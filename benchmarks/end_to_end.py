"""Time from the start of a process to a result: the return, or the error, that an evaluation has to reach.

    python benchmarks/end_to_end.py [--only cartpole pendulum go1] [--seeds 1 2 3] [--minutes M] [--json FILE]

Ours is the task's preset, as `surefoot train TASK` takes it. stable-baselines3 has the settings of its zoo
(rl-baselines3-zoo, hyperparams/ppo.yml). RSL-RL learns in the same Go1 environment, with the networks,
rollouts, epochs and discount of our preset, without its mirrored networks, and with an adaptive learning
rate, as is usual there.

Each run is a process of its own, and contenders take turns. All are evaluated alike: by `surefoot.evaluate`,
in environments made for that, with the most likely actions, each time that so many environment steps are
done. What an evaluation takes, and what is imported for it, is not counted; everything else is. No files
are written.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from peers import PACKAGES, write


@dataclass(frozen=True)
class Race:
    task: str
    contenders: tuple[str, ...]
    metric: str
    """Of what `surefoot.evaluate` returns."""
    target: float
    is_better: Callable[[float, float], bool]
    every: int
    """Environment steps between evaluations."""
    episodes: int
    minutes: float
    """Not counting evaluations; who takes longer has not reached the target."""


RACES = {
    "cartpole": Race("CartPole-v1", ("ours", "sb3"), "mean_reward", 475, float.__ge__, 2048, 20, 5),
    "pendulum": Race("Pendulum-v1", ("ours", "sb3"), "mean_reward", -200, float.__ge__, 4096, 40, 5),
    "go1": Race("go1-walk", ("ours", "rsl_rl"), "linear_velocity_error", 0.25, float.__le__, 122_880, 64, 30),
}
ZOO = {
    "CartPole-v1": {
        "n_envs": 8,
        "n_timesteps": 100_000,
        "n_steps": 32,
        "batch_size": 256,
        "gae_lambda": 0.8,
        "gamma": 0.98,
        "n_epochs": 20,
        "ent_coef": 0.0,
        "learning_rate": "lin_0.001",
        "clip_range": "lin_0.2",
    },
    "Pendulum-v1": {
        "n_envs": 4,
        "n_timesteps": 100_000,
        "n_steps": 1024,
        "gae_lambda": 0.95,
        "gamma": 0.9,
        "n_epochs": 10,
        "ent_coef": 0.0,
        "learning_rate": 1e-3,
        "clip_range": 0.2,
        "use_sde": True,
        "sde_sample_freq": 4,
    },
}
"""rl-baselines3-zoo's, word for word; `lin_` is a rate that falls to 0 over `n_timesteps`."""


class Over(Exception):  # noqa: N818 - no error
    """The race is over for this contender."""


class Referee:
    """Evaluates, keeps the time of that apart, and ends a run at its target or when its time is up."""

    def __init__(self, race: Race, seed: int, started: float) -> None:
        self.race, self.seed, self.started = race, seed, started
        self.aside_wall = self.aside_cpu = 0.0
        self.next, self.env = race.every, None
        self.result: dict[str, Any] = {}

    def look(self, env_steps: int, act: Callable[[Any], Any], is_last: bool = False) -> None:
        """`env_steps` are done; `act` is the policy now, from observations [N, ...] to actions."""
        if env_steps < self.next and not is_last:
            return
        self.next = (env_steps // self.race.every + 1) * self.race.every
        wall, cpu = time.time(), time.process_time()
        # what a peer imports here, ours has long paid for
        import surefoot

        if self.env is None:
            self.env = surefoot.make(self.race.task, min(self.race.episodes, 20), evaluation=True)
        found = surefoot.evaluate(act, self.env, self.race.episodes, seed=10_000 + self.seed)
        self.aside_wall += time.time() - wall
        self.aside_cpu += time.process_time() - cpu
        value = found[self.race.metric]
        elapsed = time.time() - self.started - self.aside_wall
        self.result = {
            "is_reached": self.race.is_better(value, float(self.race.target)),
            "wall_s": elapsed,
            "cpu_s": time.process_time() - self.aside_cpu,
            "env_steps": env_steps,
            "value": value,
            "fall_rate": found["fall_rate"],
        }
        print(json.dumps(self.result), file=sys.stderr, flush=True)
        if self.result["is_reached"] or elapsed > 60 * self.race.minutes or is_last:
            raise Over


def ours(task: str, seed: int, referee: Referee) -> None:
    import surefoot
    from surefoot import tasks

    class Look(surefoot.Hook):
        def after_iteration(self, runner: Any, metrics: dict[str, Any]) -> None:
            is_last = runner.iteration == runner.last_iteration
            referee.look(runner.env_steps, runner.get_inference_policy(), is_last)

    config = {**tasks.preset(task), "seed": seed, "eval_episodes": 0}
    env = surefoot.make(task, config["num_envs"], seed=seed)
    runner = surefoot.OnPolicyRunner(env, config, quiet=True)
    runner.hooks.append(Look())
    runner.learn(config["max_iterations"])


def sb3(task: str, seed: int, referee: Referee) -> None:
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    def act(observations: Any) -> torch.Tensor:
        return torch.from_numpy(model.predict(observations["policy"].numpy(), deterministic=True)[0])

    class Look(BaseCallback):
        def _on_rollout_start(self) -> None:
            referee.look(self.num_timesteps, act)

        def _on_step(self) -> bool:
            return True

    def schedule(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        first = float(value.removeprefix("lin_"))
        return lambda remaining: remaining * first

    settings = {key: schedule(value) for key, value in ZOO[task].items()}
    env = make_vec_env(task, n_envs=settings.pop("n_envs"), seed=seed)
    num_steps = settings.pop("n_timesteps")
    model = PPO("MlpPolicy", env, seed=seed, device="cpu", **settings)
    model.learn(num_steps, callback=Look())
    referee.look(model.num_timesteps, act, is_last=True)


def rsl_rl(task: str, seed: int, referee: Referee) -> None:
    import torch
    from rsl_rl import env as interface
    from rsl_rl import runners
    from tensordict import TensorDict

    import surefoot
    from surefoot import tasks

    preset = tasks.preset(task)
    torch.manual_seed(seed)

    class Env(interface.VecEnv):
        """Our environments as RSL-RL wants them."""

        def __init__(self) -> None:
            self.envs = surefoot.make(task, preset["num_envs"], seed=seed)
            self.num_envs, self.device = self.envs.num_envs, self.envs.device
            self.num_actions = self.envs.action_space.shape[0]
            self.max_episode_length = self.envs.max_episode_length
            self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.int64)
            self.cfg: dict[str, Any] = {}
            self.bounds = [
                torch.as_tensor(x) for x in (self.envs.action_space.low, self.envs.action_space.high)
            ]
            self.observations = self.envs.reset(seed=seed)

        def get_observations(self) -> TensorDict:
            return TensorDict(self.observations, batch_size=[self.num_envs])

        def step(
            self, actions: torch.Tensor
        ) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
            step = self.envs.step(actions.clamp(*self.bounds))
            self.observations = step.observations
            dones = step.terminated | step.truncated
            self.episode_length_buf = torch.where(dones, 0, self.episode_length_buf + 1)
            return self.get_observations(), step.rewards, dones, {"time_outs": step.truncated}

    def act(observations: Any) -> torch.Tensor:
        with torch.inference_mode():
            actions = policy(TensorDict(observations, batch_size=[len(observations["policy"])]))
        return actions.clamp(*env.bounds).clone()

    def network(section: dict[str, Any]) -> dict[str, Any]:
        keys = ("hidden_dims", "activation", "obs_normalization")
        return {"class_name": "MLPModel", **{key: section[key] for key in keys}}

    algorithm = preset["algorithm"]
    shared = ("num_learning_epochs", "num_mini_batches", "clip_param", "entropy_coef", "gamma", "lam")
    config = {
        "num_steps_per_env": preset["num_steps_per_env"],
        "obs_groups": preset["obs_groups"],
        "save_interval": 1_000_000,
        "actor": {
            **network(preset["actor"]),
            "distribution_cfg": {
                "class_name": "GaussianDistribution",
                "init_std": preset["actor"]["distribution"]["init_std"],
            },
        },
        "critic": network(preset["critic"]),
        "algorithm": {
            "class_name": "PPO",
            **{key: algorithm[key] for key in shared},
            "learning_rate": algorithm["learning_rate"],
            "schedule": "adaptive",
            "desired_kl": 0.01,
        },
    }
    env = Env()
    runner = runners.OnPolicyRunner(env, config, None, "cpu")
    size = preset["num_envs"] * preset["num_steps_per_env"]
    each = max(referee.race.every // size, 1)
    for done in range(each, 1_000_000, each):
        runner.learn(each)
        policy = runner.get_inference_policy()
        referee.look(done * size, act)


CONTENDERS = {"ours": ours, "sb3": sb3, "rsl_rl": rsl_rl}


def run_one(race: Race, contender: str, seed: int, started: float) -> None:
    """In a process of its own: the result as the last line of its output."""
    referee = Referee(race, seed, started)
    # RSL-RL prints its progress
    with contextlib.redirect_stdout(None), contextlib.suppress(Over):
        CONTENDERS[contender](race.task, seed, referee)
    print(json.dumps(referee.result))


def start(name: str, contender: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, "--only", name, "--one", contender, "--seeds", str(seed)]
    if arguments.minutes is not None:
        command += ["--minutes", str(arguments.minutes)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}
    done = subprocess.run(
        [*command, "--started", repr(time.time())],
        env=environment,
        text=True,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def report(race: Race, runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Print medians over the seeds, and ratios to ours of the same seed."""
    table: dict[str, Any] = {}
    for name, results in runs.items():
        reached = [run for run in results if run.get("is_reached")]
        row: dict[str, Any] = {"runs": results, "reached": len(reached)}
        text = f"{name:8} reached by {len(reached)} of {len(results)}"
        if name in PACKAGES and not all("failed" in run for run in results):
            row["version"] = version(PACKAGES[name])
        for key in ("wall_s", "cpu_s", "env_steps") if reached else ():
            row[key] = statistics.median(run[key] for run in reached)
        if reached:
            text += (
                f"  wall {row['wall_s']:7.1f} s  CPU {row['cpu_s']:7.1f} s  {row['env_steps']:9,.0f} steps"
            )
        table[name] = row
        print(text, row.get("version", ""))
        for run in results:
            if "failed" in run:
                print(f"         {run['failed']}")
    for name in runs:
        pairs = list(zip(runs[name], runs["ours"], strict=True))
        pairs = [(a, b) for a, b in pairs if a.get("is_reached") and b.get("is_reached")]
        if name == "ours" or not pairs:
            continue
        ratios = {k: statistics.median(a[k] / b[k] for a, b in pairs) for k in ("wall_s", "cpu_s")}
        table[name]["ratios"] = ratios
        text = f"wall {ratios['wall_s']:.2f}  CPU {ratios['cpu_s']:.2f}"
        print(f"{name} / ours   {text}  wanted: above 1, aimed at: 2")
    return {"task": race.task, "metric": race.metric, "target": race.target, "contenders": table}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=RACES, default=list(RACES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--minutes", type=float, help="of one run, evaluations not counted")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch; physics has its own")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--started", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    races = {name: RACES[name] for name in arguments.only}
    if arguments.minutes is not None:
        races = {name: replace(race, minutes=arguments.minutes) for name, race in races.items()}
    if arguments.one:
        run_one(races[arguments.only[0]], arguments.one, arguments.seeds[0], arguments.started)
        return
    results = {}
    for name, race in races.items():
        print(f"\n{race.task}: {race.metric} {race.target:g}", flush=True)
        runs: dict[str, list[dict[str, Any]]] = {contender: [] for contender in race.contenders}
        for seed in arguments.seeds:
            for contender in race.contenders:
                runs[contender].append(start(name, contender, seed, arguments))
                print(f"  seed {seed} {contender:8} {runs[contender][-1]}", flush=True)
        results[name] = report(race, runs)
        write(arguments.json, results)


if __name__ == "__main__":
    main()
