"""MiniGrid-DoorKey-6x6: find the key, open the door, reach the goal; a reward only then.

    pip install "surefoot[minigrid]"
    surefoot train benchmarks.door_key:make_env --config benchmarks/door_key_rnd.yaml --seed 1
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
VIEW = 7 * 7
NUM_DIRECTIONS = 4


class OneHotView(gymnasium.ObservationWrapper[np.ndarray, Any, Any]):
    """The agent's view, 7 × 7 cells of object, colour and state, and its direction, each as one-hot."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        starts = np.concatenate([[0], SIZES.cumsum()[:-1]])
        self.offsets = (np.arange(VIEW)[:, None] * SIZES.sum() + starts).flatten()
        self.num_view = VIEW * int(SIZES.sum())
        self.observation_space = gymnasium.spaces.Box(0, 1, (self.num_view + NUM_DIRECTIONS,), np.float32)

    def observation(self, observation: Any) -> np.ndarray:
        """[D] float32."""
        x = np.zeros(self.num_view + NUM_DIRECTIONS, np.float32)
        x[self.offsets + observation["image"].flatten()] = 1
        x[self.num_view + observation["direction"]] = 1
        return x


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
