"""A policy as one function of tensors, which the exporters can record: raw observations in, actions out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from surefoot.deploy.random_observations import random_observations
from surefoot.envs.spaces import tensor_dtype, tensor_shape
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.inputs import MASK_GROUP
from surefoot.training.evaluation import InferencePolicy

EXAMPLE_ROWS = 3
"""N of the example inputs: neither 1 nor a usual size, so that a number fixed by mistake shows."""


@dataclass(frozen=True)
class Port:
    """An input or output of the graph: [N, *shape]."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


def deployed(policy: ActorCritic) -> InferencePolicy:
    """A copy for use on the CPU in float32."""
    inference = InferencePolicy(policy, device="cpu")
    inference.policy.set_mixed_precision(False)
    # noise of a rollout in progress has that rollout's number of environments
    inference.policy.action_head.end_exploration()
    return inference


class PolicyGraph(nn.Module):
    """The deterministic policy: normalisers, encoders, estimator, memory, mirror and the map to the
    environment's actions included; the critic left out.

    It is called with one tensor for each of `inputs`, in that order: the observation groups as the actor
    reads them, then `action_mask` [N, ...] bool where actions are masked, then the memory `hidden_in` [N, K]
    of a recurrent policy. The memory is one row of numbers per robot, zeros where an episode begins.

    Args:
        policy: Copied to the CPU and, where its bodies run in bfloat16, into float32.

    Attributes:
        groups: Observation groups in the order of the inputs, the mask of actions too.
        inputs, outputs: Their names, shapes and dtypes.
    """

    def __init__(self, policy: ActorCritic) -> None:
        super().__init__()
        self.policy = deployed(policy).policy
        self.state_size = self.policy.actor.state_size
        self.groups = self.policy.inputs.read(("actor",))
        _remove_critic(self.policy)

        spaces, to_env = self.policy.inputs.spaces, self.policy.to_env
        self.inputs = [
            Port(g, tensor_shape(spaces[g]), torch.bool if g == MASK_GROUP else tensor_dtype(spaces[g]))
            for g in self.groups
        ]
        self.outputs = [
            Port(self._free("actions"), to_env.shape, torch.int64 if to_env.is_counted else torch.float32)
        ]
        if self.state_size:
            self.inputs.append(Port(self._free("hidden_in"), (self.state_size,), torch.float32))
            self.outputs.append(Port(self._free("hidden_out"), (self.state_size,), torch.float32))

    @property
    def input_names(self) -> list[str]:
        return [port.name for port in self.inputs]

    @property
    def output_names(self) -> list[str]:
        return [port.name for port in self.outputs]

    def get_dummy_inputs(self) -> tuple[Tensor, ...]:
        """Random observations, and memories at the start of an episode."""
        generator = torch.Generator().manual_seed(0)
        observations = random_observations(self.policy, EXAMPLE_ROWS, generator)
        return (*observations.values(), *self.policy.initial_hidden(EXAMPLE_ROWS).values())

    # parts that have their own gradient could not be recorded
    @torch.no_grad()
    def forward(self, *tensors: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Actions for the environment [N, ...]; and the memory afterwards [N, K] of a recurrent policy."""
        inputs = self.policy.inputs(dict(zip(self.groups, tensors, strict=False)), ("actor",))
        distribution, hidden = self.policy.advance(inputs, {"actor": tensors[-1]} if self.state_size else {})
        actions = self.policy.to_env(distribution.mode())
        return (actions, hidden["actor"]) if self.state_size else actions

    def _free(self, name: str) -> str:
        """The name, or with underscores where a group is called so: names in a graph are unique."""
        return self._free(f"{name}_") if name in self.groups else name


def _remove_critic(policy: ActorCritic) -> None:
    """What a deployed policy does not need."""
    if "critic" in policy.inputs.normalizers:
        policy.inputs.normalizers.pop("critic")
    for name in ("critic", "value_head", "value_normalizer"):
        setattr(policy, name, None)
