"""How far the gait of a trained Go1 is from a trot, by its foot contacts, whatever the phase of its steps.

    python benchmarks/gait_style.py [RUN ...] [--robots 64] [--seconds 20] [--json FILE]

RUN is a run directory of go1-walk or go1-amp; without one, the reference clips alone are measured. Over all
steps in which the robot is asked to move:

    duty       share of time that a foot is on the floor, the mean of the four
    diagonal   share of time that a foot and its diagonal partner are both on the floor or both in the air
    lateral    the same for the two feet of one side
    girdle     the same for the two front and the two hind feet

    distance   mean of |duty - duty_ref|, |diagonal - diagonal_ref|, |lateral - ...|, |girdle - ...|

to the values of the trot clips: 0 is the reference, and pace, bound, pronk and standing are all far from it.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from surefoot.extensions.amp.loaders import load_clip
from surefoot.tasks import make
from surefoot.tasks.go1.amp import TROT_CLIPS, robot_states
from surefoot.tasks.go1.motion import is_moving
from surefoot.tasks.go1.observations import GROUPS, ObservationGroup
from surefoot.tasks.go1.reference import CLIPS
from surefoot.training.evaluation import load_policy
from surefoot.types import Observations

SETTLE_S = 1.0
"""s after the start of an episode that do not count: it begins standing."""
PARTNERS = {"diagonal": ((0, 3), (1, 2)), "lateral": ((0, 2), (1, 3)), "girdle": ((0, 1), (2, 3))}
"""Feet by their place in `robot.LEGS`: FR, FL, RR, RL."""


@dataclass(frozen=True)
class Gait:
    """Of the steps measured."""

    duty: float
    diagonal: float
    lateral: float
    girdle: float

    @staticmethod
    def of(contact: np.ndarray) -> Gait:
        """From contacts [S, 4], 1 on the floor."""
        together = {
            name: float(np.mean([(contact[:, a] == contact[:, b]).mean() for a, b in pairs]))
            for name, pairs in PARTNERS.items()
        }
        return Gait(duty=float(contact.mean()), **together)

    def distance(self, other: Gait) -> float:
        mine, others = asdict(self), asdict(other)
        return float(np.mean([abs(mine[name] - others[name]) for name in mine]))


def of_clips(names: list[str]) -> Gait:
    """Of reference clips together."""
    states = [robot_states(load_clip(CLIPS / f"{name}.npz")) for name in names]
    return Gait.of(np.concatenate([state.contact for state in states]))


def read(observations: Observations, group: str, name: str) -> np.ndarray:
    """[N, D] of an entry, in physical units."""
    layout = ObservationGroup(GROUPS[group])
    columns = [i for i, entry in enumerate(layout.names) if entry.startswith(f"{name}.")]
    return observations[group].numpy()[:, columns] / layout.scale[columns]


def of_run(run: str, robots: int, seconds: float, seed: int) -> tuple[Gait, dict[str, float]]:
    """The gait of a run's policy in evaluation, and its mean tracking errors."""
    policy = load_policy(run, "last")
    env = make(str(policy.task), robots, seed=seed, evaluation=True, kwargs=policy.config.env.kwargs)
    observations = env.reset(seed=seed)
    contacts: list[np.ndarray] = []
    errors: dict[str, list[float]] = {}
    age = torch.zeros(robots)
    for _ in range(round(seconds / float(env.step_dt or 1.0))):
        command = read(observations, "policy", "command")
        step = env.step(policy(observations))
        observations = step.observations
        age = torch.where(step.starts, 0.0, age + float(env.step_dt or 1.0))
        counts = is_moving(command) & (age > SETTLE_S).numpy()
        contacts.append(read(observations, "privileged", "contact")[counts])
        for name, value in step.log.items():
            if name.startswith("Eval/"):
                errors.setdefault(name.removeprefix("Eval/"), []).append(float(torch.as_tensor(value).mean()))
    env.close()
    return Gait.of(np.concatenate(contacts)), {name: float(np.mean(x)) for name, x in errors.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="*", metavar="RUN")
    parser.add_argument("--robots", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    reference = of_clips([name for name in TROT_CLIPS if name not in ("stand", "trot_course")])
    rows: dict[str, tuple[Gait, dict[str, float]]] = {"reference trot": (reference, {})}
    for gait in ("pace", "bound"):
        rows[f"reference {gait}"] = of_clips([f"{gait}_forward_0.5", f"{gait}_forward_1.0"]), {}
    for run in arguments.runs:
        rows[run] = of_run(run, arguments.robots, arguments.seconds, arguments.seed)
    results = {
        name: {**asdict(gait), "distance": gait.distance(reference), **errors}
        for name, (gait, errors) in rows.items()
    }
    width = max(map(len, results))
    for name, values in results.items():
        print(f"{name:{width}}  " + "  ".join(f"{key} {value:.3f}" for key, value in values.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
