"""MiniGrid-DoorKey-6x6: find the key, open the door, reach the goal; a reward only then.

    pip install "surefoot[minigrid]"
    surefoot train benchmarks.door_key:make_env --config benchmarks/door_key_rnd.yaml --seed 1 --run-dir RUN
    python benchmarks/door_key.py RUN...

The last line prints the success rate of finished runs: of the last 100 training episodes, and of the final
evaluation. An episode succeeds where it is terminated; without success it is cut after 360 steps.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

# importing it registers its environments
from minigrid.core.constants import (  # pyright: ignore[reportMissingImports]
    COLOR_TO_IDX,
    OBJECT_TO_IDX,
    STATE_TO_IDX,
)

SIZES = np.array([len(OBJECT_TO_IDX), len(COLOR_TO_IDX), len(STATE_TO_IDX)])
STARTS = np.concatenate([[0], SIZES.cumsum()[:-1]])
CELL = int(SIZES.sum())
VIEW = 7 * 7
NUM_DIRECTIONS = 4
OWN, FRONT = (3, 6), (3, 5)
"""The agent's cell in its view, which shows what it holds, and the cell it faces."""


class OneHotView(gymnasium.ObservationWrapper[Any, Any, Any]):
    """`policy`: the view, 7 × 7 cells of object, colour and state, and the direction, each as one-hot.

    `reach`: the two cells of the same view that actions change, for novelty. Layouts are random, so that
    whole views are always new; what is held and faced is not.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        box = gymnasium.spaces.Box
        self.observation_space = gymnasium.spaces.Dict(
            {
                "policy": box(0, 1, (VIEW * CELL + NUM_DIRECTIONS,), np.float32),
                "reach": box(0, 1, (2 * CELL,), np.float32),
            }
        )

    def observation(self, observation: Any) -> dict[str, np.ndarray]:
        """`policy` [D], `reach` [2 C] float32."""
        image = observation["image"]
        direction = np.zeros(NUM_DIRECTIONS, np.float32)
        direction[observation["direction"]] = 1
        return {
            "policy": np.concatenate([one_hot(image.reshape(-1, 3)), direction]),
            "reach": one_hot(np.stack([image[OWN], image[FRONT]])),
        }


def one_hot(cells: np.ndarray) -> np.ndarray:
    """Of cells [K, 3]: [K C] float32."""
    x = np.zeros((len(cells), CELL), np.float32)
    x[np.arange(len(cells))[:, None], STARTS + cells] = 1
    return x.flatten()


def make_env(name: str = "MiniGrid-DoorKey-6x6-v0") -> gymnasium.Env[Any, Any]:
    """One environment; the layout is new in every episode."""
    return OneHotView(gymnasium.make(name))


def main() -> None:
    for run in map(Path, sys.argv[1:]):
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        ended, succeeded = 0, 0
        for record in reversed(records):
            ended += record["Train/episodes"]
            succeeded += record["Data/terminations"]
            if ended >= 100:
                break
        final = records[-1]
        rate, steps = succeeded / max(ended, 1), final["env_steps"]
        print(f"{run}: {steps} steps, success {rate:.0%} of {ended} training episodes", end="")
        print(f", {final['Eval/fall_rate']:.0%} of evaluation" if "Eval/fall_rate" in final else "")


if __name__ == "__main__":
    main()
