"""What the layer says on the screen."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from surefoot import distributed


def tell(text: str) -> None:
    """A line, or several, on the standard output; of process 0 only."""
    if distributed.is_main():
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def iteration_block(
    record: Mapping[str, Any],
    title: str,
    seconds_left: float,
    is_minimal: bool,
    width: int,
    pad: int,
) -> str:
    """The iteration as RSL-RL shows it: one figure a line."""
    shown: dict[str, str] = {}
    if record.get("run_name"):
        shown["Run name"] = record["run_name"]
    shown["Total steps"] = f"{record['env_steps']}"
    shown["Steps per second"] = f"{record['Perf/total_fps']:.0f}"
    shown["Collection time"] = f"{record['Perf/collection_time']:.3f}s"
    shown["Learning time"] = f"{record['Perf/learning_time']:.3f}s"
    for tag, value in record.items():
        if tag.startswith("Loss/"):
            shown[f"Mean {tag[5:].replace('_', ' ')}"] = _number(value)
    for tag, label in (
        ("Rnd/mean_extrinsic_reward", "Mean extrinsic reward"),
        ("Rnd/mean_intrinsic_reward", "Mean intrinsic reward"),
        ("Train/mean_reward", "Mean reward"),
        ("Train/mean_episode_length", "Mean episode length"),
        ("Policy/mean_std", "Mean action std"),
    ):
        if record.get(tag) is not None:
            shown[label] = f"{record[tag]:.2f}"
    if not is_minimal:
        own = ("Loss/", "Rnd/", "Train/", "Perf/", "Policy/")
        logged = {tag: x for tag, x in record.items() if "/" in tag and not tag.startswith(own)}
        shown |= {tag.replace("Episode/", "Mean episode "): _number(x) for tag, x in logged.items()}
    took = record["Perf/collection_time"] + record["Perf/learning_time"]
    last = {
        "Iteration time": f"{took:.2f}s",
        "Time elapsed": str(timedelta(seconds=int(record["wall_time_s"]))),
        "ETA": str(timedelta(seconds=int(seconds_left))),
    }
    lines = ["#" * width, title.center(width), ""]
    lines += [f"{label + ':':>{pad}} {text}" for label, text in shown.items()]
    lines += ["-" * width, *(f"{label + ':':>{pad}} {text}" for label, text in last.items())]
    return "\n".join(lines) + "\n"


def _number(value: float | int | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return str(value)
    return f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.4f}"
