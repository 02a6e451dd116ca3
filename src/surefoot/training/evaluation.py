"""Evaluation that favours no episode, and policies loaded without their environment."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from surefoot.config import TrainConfig, build_config
from surefoot.distributed import stream_seed
from surefoot.envs.conform import conform_observations, conform_step
from surefoot.envs.vec_env import VecEnv
from surefoot.errors import ConfigError, EnvContractError
from surefoot.networks.actor_critic import ActorCritic
from surefoot.training.build import build_policy
from surefoot.training.checkpoint import find_checkpoint, load_checkpoint
from surefoot.training.env_spec import check_fits, spec_from_data
from surefoot.training.random_state import preserved_random_state
from surefoot.types import EnvSpec, Observations, Step

Act = Callable[[Observations], Tensor]
"""Observations [N, ...] to actions for the environment [N, ...]."""
Reset = Callable[[Tensor | None], None]
"""Where the next row begins from nothing, [N] bool; None: everywhere."""

AnyModule = TypeVar("AnyModule", bound=nn.Module)

MAX_STEPS_WITHOUT_END = 100_000
"""Steps without any episode's end after which an evaluation gives up."""


def evaluate(
    policy: ActorCritic | InferencePolicy | LoadedPolicy | Act,
    env: VecEnv,
    episodes: int = 100,
    deterministic: bool = True,
    seed: int | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> dict[str, float]:
    """Run whole episodes and average them.

    Each environment gets its share of the episodes beforehand, and what it does after them is ignored:
    otherwise short episodes would be over-counted, as more of them fit in the time. Policy, normalisers
    and the global random streams are left as they were.

    Args:
        policy: An ActorCritic or a loaded policy, or any callable from observations to actions.
        env: Reset here, and left in the middle of some episode.
        episodes: How many, over all environments.
        deterministic: The most likely action rather than a sample; a plain callable decides for itself.
        seed: Of the environments and of sampled actions.
        should_stop: Asked before every step; True ends the evaluation with the episodes finished so far.

    Returns:
        `mean_reward`, `std_reward` `episodes`, `mean_episode_length`, `fall_rate` (terminated
        episodes / episodes), and the averages of the environment's `Eval/` entries, without that prefix.
    """
    if episodes < 1:
        raise ConfigError(f"episodes is {episodes}; expected at least 1.")
    tally = _Tally(env.num_envs, episodes, torch.device(env.device))
    act, reset_memory = _act_and_reset(policy, env, deterministic, seed)
    with preserved_random_state(), torch.no_grad():
        observations = conform_observations(env, env.reset(seed=seed))
        reset_memory(None)
        while not tally.is_complete and not (should_stop and should_stop()):
            step = conform_step(env, env.step(act(observations)))
            tally.add(step)
            reset_memory(step.starts)
            observations = step.observations
    return tally.result()


class _Tally:
    """The episodes allotted to each environment, and sums over the steps that belong to them."""

    def __init__(self, num_envs: int, episodes: int, device: torch.device) -> None:
        share, rest = divmod(episodes, num_envs)
        self._left = torch.full((num_envs,), share, device=device)
        self._left[:rest] += 1
        self._return = torch.zeros(num_envs, dtype=torch.float64, device=device)
        self._length = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self._returns: list[float] = []
        self._lengths: list[int] = []
        self._falls, self._idle_steps = 0, 0
        self._log_sums: dict[str, Tensor | float] = {}
        self._log_counts: dict[str, int] = {}

    @property
    def is_complete(self) -> bool:
        return not bool((self._left > 0).any())

    def add(self, step: Step) -> None:
        counted = self._left > 0
        if step.valid is not None:
            counted = counted & step.valid
            # an episode that was lost with its environment
            lost = (step.terminated | step.truncated) & ~step.valid
            self._return[lost] = 0
            self._length[lost] = 0
        self._return += torch.where(counted, step.rewards, 0.0)
        self._length += counted
        self._add_log(step.log, counted)
        ended = (step.terminated | step.truncated) & counted
        rows = ended.nonzero().squeeze(-1)
        self._idle_steps += 1
        if rows.numel():
            self._idle_steps = 0
            self._returns += self._return[rows].tolist()
            self._lengths += self._length[rows].tolist()
            self._falls += int(step.terminated[rows].sum())
            self._left[rows] -= 1
            self._return[rows] = 0
            self._length[rows] = 0
        elif self._idle_steps >= MAX_STEPS_WITHOUT_END:
            raise EnvContractError(
                f"evaluation: no episode ended within {MAX_STEPS_WITHOUT_END} steps. Give the environment a "
                "time limit."
            )

    def _add_log(self, log: Mapping[str, float | Tensor], counted: Tensor) -> None:
        for key, value in log.items():
            if not key.startswith("Eval/"):
                continue
            name, count = key.removeprefix("Eval/"), 1
            if isinstance(value, Tensor) and value.shape == counted.shape:
                count = int(counted.sum())
                value = torch.where(counted, value, 0.0).double().sum()
            elif isinstance(value, Tensor):
                value = value.double().mean()
            self._log_sums[name] = self._log_sums.get(name, 0.0) + value
            self._log_counts[name] = self._log_counts.get(name, 0) + count

    def result(self) -> dict[str, float]:
        if not self._returns:
            return {"episodes": 0}
        logged = {n: float(x) / max(self._log_counts[n], 1) for n, x in self._log_sums.items()}
        result = {
            "mean_reward": float(np.mean(self._returns)),
            "std_reward": float(np.std(self._returns)),
            "episodes": len(self._returns),
            "mean_episode_length": float(np.mean(self._lengths)),
            "fall_rate": self._falls / len(self._returns),
        }
        return result | {name: x for name, x in logged.items() if name not in result}


class InferencePolicy:
    """A policy for use: observations of the environment in, actions for it out. It never learns.

    Args:
        policy: Copied, so that nothing done here reaches it.
        deterministic: The most likely action rather than a sample.
        seed: Of the samples.
        device: Of the copy; None: where the policy is.
    """

    def __init__(
        self,
        policy: ActorCritic,
        deterministic: bool = True,
        seed: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        self.policy = detached_copy(policy).to(device).eval().requires_grad_(False)
        self.deterministic = deterministic
        self.device = next(self.policy.parameters()).device
        self._generator = torch.Generator(self.device).manual_seed(stream_seed(seed, "inference"))
        self.policy.reset()

    def __call__(self, observations: Observations | Any) -> Tensor:
        """Actions [N, ...], on the policy's device.

        Args:
            observations: Tensors or arrays [N, ...] by group; alone, where the policy reads a single group.
        """
        return self.policy.act(self._as_tensors(observations), self.deterministic, self._generator)

    def reset(self, dones: Tensor | None = None) -> None:
        """Forget the memory of the environments where `dones` [N] is set; of all without it."""
        self.policy.reset(dones)

    def _as_tensors(self, observations: Any) -> dict[str, Tensor]:
        groups = self.policy.inputs.read(("actor",))
        if not isinstance(observations, Mapping):
            if len(groups) != 1:
                raise EnvContractError(
                    f"the policy reads the observation groups {groups}; give a mapping of them."
                )
            observations = {groups[0]: observations}
        missing = [g for g in groups if g not in observations]
        if missing:
            raise EnvContractError(
                f"the policy reads the observation groups {groups}; got {sorted(observations)}, "
                f"without {missing}."
            )
        return {g: torch.as_tensor(observations[g], device=self.device) for g in observations}


def detached_copy(policy: AnyModule) -> AnyModule:
    """A deep copy. What a network of the user's keeps of its last pass is part of a graph, which cannot be
    copied: it is taken out of it.
    """
    kept = [x for module in policy.modules() for x in _tensors(vars(module)) if not x.is_leaf]
    return copy.deepcopy(policy, {id(x): x.detach().clone() for x in kept})


def _tensors(value: Any) -> Iterator[Tensor]:
    """All that there are in nested mappings and lists, and in distributions."""
    if isinstance(value, torch.distributions.Distribution):
        value = vars(value)
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(part)


@dataclass(frozen=True)
class LoadedPolicy:
    """A policy from a checkpoint, with what is known of its run. It is called as an InferencePolicy."""

    inference: InferencePolicy
    config: TrainConfig
    spec: EnvSpec
    """The environment that it was trained in."""
    task: str | None
    """As on the command line; None for an environment made by the caller."""
    iteration: int

    @property
    def policy(self) -> ActorCritic:
        return self.inference.policy

    def __call__(self, observations: Observations | Any) -> Tensor:
        return self.inference(observations)

    def reset(self, dones: Tensor | None = None) -> None:
        """Forget the memory of the environments where `dones` [N] is set; of all without it."""
        self.inference.reset(dones)


def load_policy(
    run: Path | str, checkpoint: str | int = "best", device: torch.device | str = "cpu"
) -> LoadedPolicy:
    """The policy of a run, built without its environment.

    Args:
        run: A run directory, a checkpoint file, or `last`.
        checkpoint: `best` (the newest where none was chosen yet), `last`, or an iteration.
        device: Where it runs.

    Raises:
        CheckpointError: no such run or checkpoint, or not a Surefoot checkpoint.
    """
    state = load_checkpoint(find_checkpoint(run, checkpoint))
    policy, config, spec = saved_policy(state, device)
    inference = InferencePolicy(policy, seed=config.seed)
    return LoadedPolicy(inference, config, spec, state["task"], state["iteration"])


def saved_policy(
    state: Mapping[str, Any], device: torch.device | str = "cpu"
) -> tuple[ActorCritic, TrainConfig, EnvSpec]:
    """The policy that a checkpoint holds, the configuration of its run and the environment it was for."""
    config = build_config(state["config"])
    spec = spec_from_data(state["spec"], torch.device(device))
    policy = build_policy(spec, config)
    prefix = "policy."
    tensors = state["algorithm"]["tensors"]
    policy.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
    return policy.to(device), config, spec


def _act_and_reset(policy: Any, env: VecEnv, deterministic: bool, seed: int | None) -> tuple[Act, Reset]:
    """How to get actions, and how to tell the policy which episodes ended."""
    if isinstance(policy, ActorCritic):
        policy = InferencePolicy(policy)
    reset = getattr(policy, "reset", _no_memory)
    network = getattr(policy, "policy", None)
    if not isinstance(network, ActorCritic):
        return policy, reset
    check_fits(network, env)
    device = next(network.parameters()).device
    generator = torch.Generator(device).manual_seed(stream_seed(seed or 0, "evaluation"))

    def act(observations: Observations) -> Tensor:
        here = {g: x.to(device) for g, x in observations.items()}
        return network.act(here, deterministic, generator).to(env.device)

    return act, reset


def _no_memory(dones: Tensor | None) -> None:
    """A plain callable remembers nothing."""
