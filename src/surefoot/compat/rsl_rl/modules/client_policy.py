"""Policy classes of a client's own, as versions 1 to 3 took them, as the two models that PPO works with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from surefoot.compat.rsl_rl.models.mlp_model import MLPModel, Observations
from surefoot.compat.rsl_rl.modules.actor_critic import ActorCriticPair
from surefoot.compat.rsl_rl.modules.normalization import EmpiricalNormalization
from surefoot.compat.rsl_rl.modules.policy_pair import Groups
from surefoot.compat.rsl_rl.modules.rnn import HiddenState
from surefoot.errors import ConfigError


class _Half(MLPModel):
    """One of the two models over a policy.

    Args:
        policy: The client's.
        read: Observation groups that it is given; or, of a class from before version 3, those that it is
            given side by side as one tensor.
        dim: Numbers of that tensor; None: it is given the groups.
        normalizes: Whether that tensor is normalised.
    """

    def __init__(self, policy: nn.Module, read: Sequence[str], dim: int | None, normalizes: bool) -> None:
        nn.Module.__init__(self)
        self._policy = [policy]  # in a list: the actor alone registers it
        self.obs_groups, self.obs_normalization, self._takes_tensor = list(read), normalizes, dim is not None
        self.obs_normalizer = EmpiricalNormalization(dim) if normalizes and dim else nn.Identity()

    @property
    def policy(self) -> Any:
        """The client's."""
        return self._policy[0]

    def vectors(self, obs: Observations) -> Tensor:
        return obs if isinstance(obs, Tensor) else torch.cat([obs[group] for group in self.obs_groups], -1)

    def given(self, obs: Observations) -> Any:
        """What the policy's methods take."""
        if self._takes_tensor or isinstance(obs, Tensor):
            return self.get_latent(obs)
        if isinstance(obs, TensorDict):
            return obs
        return TensorDict(dict(obs.items()), batch_size=next(iter(obs.values())).shape[:1])


class ClientActor(_Half):
    """The policy as it acts; it owns all parameters, as one norm of gradients was of all before version 4."""

    def __init__(self, policy: nn.Module, read: Sequence[str], dim: int | None, normalizes: bool) -> None:
        super().__init__(policy, read, dim, normalizes)
        self.client = policy

    @property
    def distribution(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The policy knows it."""
        return self.policy

    def forward(
        self,
        obs: Observations,
        masks: Tensor | None = None,
        hidden_state: HiddenState = None,
        stochastic_output: bool = False,
    ) -> Tensor:
        act = self.policy.act if stochastic_output else self.policy.act_inference
        return act(self.given(obs))

    def reset(self, dones: Tensor | None = None, hidden_state: HiddenState = None) -> None:
        """The policy hears which episodes ended, `dones` [N]; one with a memory is refused."""
        if dones is not None and callable(reset := getattr(self.policy, "reset", None)):
            reset(dones)

    def update_normalization(self, obs: Observations) -> None:
        super().update_normalization(obs)
        if callable(update := getattr(self.policy, "update_normalization", None)):
            update(self.given(obs))

    @property
    def output_mean(self) -> Tensor:
        return self.policy.action_mean

    @property
    def output_std(self) -> Tensor:
        return self.policy.action_std

    @property
    def output_entropy(self) -> Tensor:
        return self.policy.entropy

    @property
    def output_distribution_params(self) -> tuple[Tensor, ...]:
        return self.policy.action_mean, self.policy.action_std

    def get_output_log_prob(self, outputs: Tensor) -> Tensor:
        return self.policy.get_actions_log_prob(outputs)

    def get_kl_divergence(self, old_params: tuple[Tensor, ...], new_params: tuple[Tensor, ...]) -> Tensor:
        old, new = (Normal(*params, validate_args=False) for params in (old_params, new_params))
        return kl_divergence(old, new).sum(-1)

    def as_jit(self) -> nn.Module:
        """Refused: only the client knows how."""
        raise ConfigError(f"{type(self.policy).__name__} has to be exported by its own code.")

    def as_onnx(self, verbose: bool = False) -> nn.Module:
        return self.as_jit()


class ClientCritic(_Half):
    """The policy as it evaluates; without parameters of its own."""

    def forward(
        self,
        obs: Observations,
        masks: Tensor | None = None,
        hidden_state: HiddenState = None,
        stochastic_output: bool = False,
    ) -> Tensor:
        return self.policy.evaluate(self.given(obs))


METHODS = ("act", "act_inference", "evaluate", "get_actions_log_prob")
"""That training calls of a policy."""


def make_policy(
    policy_class: Callable[..., nn.Module],
    arguments: Mapping[str, Any],
    obs: Observations,
    groups: Groups,
    num_actions: int,
    normalizes: bool | None,
) -> tuple[Any, Any]:
    """A new policy of the client's class as (actor, critic).

    A class that only adds to one of ours is trained as that one: then (policy, None).

    Args:
        policy_class: Takes (obs, obs_groups, num_actions), or as before version 3 the numbers of actor and
            critic observations and of actions; then `arguments`.
        arguments: Of the section `policy`.
        obs: Observations [N, ...].
        groups: With the sets `policy` and `critic`.
        num_actions: A.
        normalizes: `empirical_normalization`; since version 3 such a class normalises by itself, where this
            or an argument says so. None: not given.

    Raises:
        ConfigError: it has a memory, or lacks a method.
    """
    is_of_3x = bool({"obs", "obs_groups"} & set(inspect.signature(policy_class).parameters))
    read: tuple[Sequence[str], Sequence[str]] = (groups["policy"], groups["critic"])
    dims: list[int] = []
    if is_of_3x:
        if normalizes is not None:
            keys = ("actor_obs_normalization", "critic_obs_normalization")
            arguments = {**dict.fromkeys(keys, normalizes), **arguments}
        policy = policy_class(obs, groups, num_actions, **arguments)
        read = (list(obs.keys()), list(obs.keys()))  # it may look at any of them
    else:
        dims = [sum(obs[group].shape[-1] for group in names) for names in read]
        policy = policy_class(*dims, num_actions, **arguments)
    if missing := [method for method in METHODS if not hasattr(policy, method)]:
        raise ConfigError(f"policy: {type(policy).__name__} has no {', no '.join(missing)}.")
    if is_of_3x and isinstance(policy, ActorCriticPair) and not _changes(policy):
        return policy, None
    if getattr(policy, "is_recurrent", False):
        raise ConfigError(
            f"policy: {type(policy).__name__} has a memory, and methods of its own that training along "
            "sequences would pass by; use ActorCriticRecurrent, or RNNModel as actor and critic."
        )
    actor_dim, critic_dim = dims or (None, None)
    return (
        ClientActor(policy, read[0], actor_dim, bool(normalizes)),
        ClientCritic(policy, read[1], critic_dim, bool(normalizes)),
    )


def _changes(policy: nn.Module) -> bool:
    """Whether it does something of its own where one of ours would be called."""
    return any(getattr(type(policy), method) is not getattr(ActorCriticPair, method) for method in METHODS)
