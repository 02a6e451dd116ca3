"""The pre-flight: run an environment for a moment and say, one line each, what would spoil training."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from copy import deepcopy

import torch
from gymnasium import spaces
from torch import Tensor

from surefoot.envs.conform import conform_observations, conform_step
from surefoot.envs.mirror_check import doubtful_pairs, pairing, wrong_in_the_mirror
from surefoot.envs.spaces import check_action_space, observation_groups
from surefoot.envs.trial import EnvReport, SampledActions, TrialRun, copied, difference, record
from surefoot.envs.vec_env import VecEnv
from surefoot.errors import EnvContractError
from surefoot.networks.mirror import map_fault
from surefoot.types import MirrorMap

__all__ = ["EnvReport", "check_env", "conform_observations", "conform_step"]

_REPLAY_STEPS = 20


def check_env(env: VecEnv, num_steps: int = 200, seed: int = 1) -> EnvReport:
    """Reset, step with sampled actions, compare with the contract. The environment is left in mid-episode.

    Args:
        env: Any VecEnv.
        num_steps: Steps of the main run; longer if the time limit is near, so that an episode ends.
        seed: Of resets and actions.
    """
    report = EnvReport()
    try:
        _check_declaration(env, report)
        if report.is_ok:
            _check_seeding(env, seed, report)
            TrialRun(env, seed, report).steps(_run_length(env, num_steps))
            _check_movement_in_mirror(env, seed, report)
            _check_state(env, seed, report)
    except EnvContractError as error:
        report.problems.append(str(error))
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises is the finding
        report.problems.append(f"the environment raised {type(error).__name__}: {error}")
    return report


def _run_length(env: VecEnv, num_steps: int) -> int:
    """Reach the time limit where it is no more than ten times as far."""
    limit = env.max_episode_length
    if limit is None:
        return num_steps
    longest = int(torch.as_tensor(limit).max())
    return max(num_steps, longest + 2) if longest <= 10 * num_steps else num_steps


def _check_declaration(env: VecEnv, report: EnvReport) -> None:
    if not isinstance(env, VecEnv):
        missing = [name for name in VecEnv.__annotations__ if not hasattr(env, name)]
        missing += [f"{name}()" for name in ("reset", "step", "close") if not hasattr(env, name)]
        report.problems.append(f"{type(env).__name__} lacks {', '.join(missing)}, which a VecEnv has.")
        return
    if not isinstance(env.num_envs, int) or env.num_envs < 1:
        report.problems.append(f"num_envs is {env.num_envs!r}; expected an integer of at least 1.")
    if not isinstance(env.observation_spaces, Mapping) or not env.observation_spaces:
        report.problems.append("observation_spaces is empty; expected a dict with one space per group.")
    else:
        for name, space in env.observation_spaces.items():
            observation_groups(spaces.Dict({name: space}))
    check_action_space(env.action_space)
    if env.mirror is not None and report.is_ok:
        _check_mirror(env, env.mirror, report)


def _check_mirror(env: VecEnv, mirror: MirrorMap, report: EnvReport) -> None:
    """Mirrored twice, every vector is itself again."""
    entries = [
        (f"observation group '{g}'", env.observation_spaces.get(g), m) for g, m in mirror.observations.items()
    ]
    entries.append(("the actions", env.action_space, mirror.actions))
    for what, space, (permutation, sign) in entries:
        if space is None:
            report.problems.append(f"mirror names {what}, which the environment does not have.")
        elif fault := map_fault(permutation, sign, math.prod(space.shape or ())):
            report.problems.append(f"mirror of {what} {fault}.")
    if unmirrored := sorted(set(env.observation_spaces) - set(mirror.observations)):
        report.notes.append(f"mirror leaves out the observation groups {unmirrored}.")


def _check_movement_in_mirror(env: VecEnv, seed: int, report: EnvReport) -> None:
    """What the mirror pairs, and whether names and physics agree."""
    if env.mirror is None or not report.is_ok:
        return
    names: dict[str, Sequence[str]] = {"": getattr(env, "action_names", ())}
    names |= getattr(env, "observation_names", {})
    report.mirror = pairing(env.mirror, names)
    report.notes += [f"mirror: {doubt}." for doubt in doubtful_pairs(env.mirror, names)]
    if wrong := wrong_in_the_mirror(env, env.mirror, seed):
        entries = [f"{g}.{names[g][i]}" if g in names else f"{g}[{i}]" for g, i in wrong]
        report.problems.append(
            f"mirror: {', '.join(entries[:8])}{' and more' if len(entries) > 8 else ''} move in the mirror "
            "otherwise than the map says; a sign or a partner is wrong."
        )


def _check_seeding(env: VecEnv, seed: int, report: EnvReport) -> None:
    """The same seed gives the same start, and the same actions then the same steps."""
    runs: list[list[dict[str, Tensor]]] = []
    for _ in range(2):
        observations = conform_observations(env, env.reset(seed=seed))
        steps = [record(observations)]
        actions = SampledActions(env, seed)
        for _ in range(_REPLAY_STEPS):
            step = conform_step(env, env.step(actions.sample(observations)))
            observations = step.observations
            steps.append(record(observations, step))
        runs.append(steps)
    if where := difference(runs[0][:1], runs[1][:1]):
        report.problems.append(
            f"reset(seed={seed}) twice gave different observations ({where}): the seed is not used."
        )
    elif where := difference(*runs):
        report.notes.append(
            f"the same seed and actions gave different results ({where}): runs cannot be repeated."
        )


def _check_state(env: VecEnv, seed: int, report: EnvReport) -> None:
    """After load_state_dict the same actions give the same steps; a checkpoint can hold the state."""
    if not hasattr(env, "state_dict") or not hasattr(env, "load_state_dict"):
        report.notes.append("no state_dict(): a resumed run starts new episodes.")
        return
    observations = copied(conform_observations(env, env.reset(seed=seed)))
    actions = SampledActions(env, seed)
    for _ in range(_REPLAY_STEPS // 2):
        observations = copied(conform_step(env, env.step(actions.sample(observations))).observations)
    saved = deepcopy(env.state_dict())  # pyright: ignore[reportAttributeAccessIssue]
    buffer = io.BytesIO()
    torch.save(saved, buffer)
    buffer.seek(0)
    try:
        torch.load(buffer, weights_only=True)
    except Exception as error:  # noqa: BLE001 - torch raises several kinds
        report.problems.append(
            "state_dict() cannot go into a checkpoint; return tensors, numbers, strings, lists and dicts "
            f"only ({str(error).splitlines()[0]})."
        )
        return
    sent, runs = [], []
    for attempt in range(2):
        if attempt:
            env.load_state_dict(deepcopy(saved))  # pyright: ignore[reportAttributeAccessIssue]
        steps, seen = [], observations
        for k in range(_REPLAY_STEPS):
            if not attempt:
                sent.append(actions.sample(seen))
            step = conform_step(env, env.step(sent[k].clone()))
            seen = step.observations
            steps.append(record(seen, step))
        runs.append(steps)
    if where := difference(*runs):
        report.problems.append(
            f"load_state_dict() does not continue where state_dict() was taken: {where} differs."
        )
