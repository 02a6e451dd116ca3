"""RSL-RL's actor and critic models as the policy that Surefoot's engine trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Self

from surefoot.compat.rsl_rl.models.mlp_model import MLPModel
from surefoot.compat.rsl_rl.models.rnn_model import RNNModel
from surefoot.compat.rsl_rl.storage.rollout import LOG_PROB
from surefoot.compat.rsl_rl.storage.rollout_storage import flat_state, layered_state
from surefoot.errors import ConfigError
from surefoot.networks.action_map import ActionMap
from surefoot.networks.dense import through
from surefoot.networks.encoders import at_least_float32
from surefoot.types import EnvSpec, Hidden, Observations, PolicyOutput


class ModelDistribution:
    """What a model's distribution module holds, or held, as a value of the engine.

    Args:
        model: Knows the family. `log_prob` and `entropy` are those of its last forward pass.
        params: Of the distribution, by their place.
        mode: [..., A], where it is needed.
    """

    kl_kind: ClassVar[str] = "exact"

    def __init__(self, model: MLPModel, params: Mapping[str, Tensor], mode: Tensor | None = None) -> None:
        self._model, self.params, self._mode = model, dict(params), mode

    @classmethod
    def of(cls, model: MLPModel) -> Self:
        """The present one."""
        params = {str(i): p for i, p in enumerate(model.output_distribution_params)}
        return cls(model, params, model.output_mean)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        assert self._model.distribution is not None
        return self._model.distribution.sample()

    def mode(self) -> Tensor:
        assert self._mode is not None
        return self._mode

    def log_prob(self, action: Tensor) -> Tensor:
        if LOG_PROB in self.params:  # stored while acting
            return self.params[LOG_PROB]
        return at_least_float32(self._model.get_output_log_prob(action))

    def entropy(self, generator: torch.Generator | None = None) -> Tensor:
        return at_least_float32(self._model.output_entropy)

    def kl(self, other: Self) -> Tensor:
        return self._model.get_kl_divergence(self._values(), other._values())

    def _values(self) -> tuple[Tensor, ...]:
        return tuple(x for name, x in self.params.items() if name != LOG_PROB)


class _ActionHead(nn.Module):
    """The part of a head that the engine asks for."""

    kl_kind = "exact"

    def __init__(self, model: MLPModel) -> None:
        super().__init__()
        self._model = [model]  # in a list: it is registered elsewhere

    def rebuild(self, params: Mapping[str, Tensor]) -> ModelDistribution:
        return ModelDistribution(self._model[0], params)

    def end_exploration(self) -> None:
        """No noise lasts over several steps here."""


class _Memory:
    """A recurrent model's memory, with its state as rows [N, K]."""

    def __init__(self, model: RNNModel) -> None:
        self.rnn = model.rnn.rnn
        self.num_features = self.rnn.hidden_size
        self.is_lstm = isinstance(self.rnn, nn.LSTM)
        self.state_size = self.rnn.num_layers * self.num_features * (2 if self.is_lstm else 1)

    def along(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """[L, B, E] from a state [B, K] to outputs [L, B, H] and the state after."""
        out, after = self.rnn(x, None if state is None else layered_state(state, self.rnn))
        return out, flat_state(after)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        out, after = self.along(x.unsqueeze(0), state)
        return out.squeeze(0), after


class _Body:
    """A model below its head, as the engine walks along recurrent ones."""

    def __init__(self, model: MLPModel) -> None:
        self.model = model
        self.memory = _Memory(model) if isinstance(model, RNNModel) else None
        self.mixed_precision = False

    @property
    def state_size(self) -> int:
        return self.memory.state_size if self.memory else 0

    def low_precision(self, device: torch.device) -> torch.autocast:
        return torch.autocast(device.type, torch.bfloat16, enabled=self.mixed_precision)

    def encode(self, inputs: Observations) -> Tensor:
        """What enters the memory [..., E]."""
        return MLPModel.get_latent(self.model, inputs)

    def along(self, inputs: Observations, state: Tensor | None) -> Tensor:
        """The head's output [L, B, ...] along sequences of observations."""
        if self.memory is not None:
            features = self.memory.along(self.encode(inputs), state)[0]
        else:
            lead = next(iter(inputs.values())).shape[:2]
            features = self.model.get_latent({g: x.flatten(0, 1) for g, x in inputs.items()}).unflatten(
                0, lead
            )
        return at_least_float32(through(self.model.mlp, features))


class RawInputs(nn.Module):
    """Raw observation groups: a model concatenates and normalises by itself."""

    like: Tensor

    def __init__(self, models: Mapping[str, MLPModel], spec: EnvSpec) -> None:
        super().__init__()
        self._models, self.spaces = list(models.values()), spec.observation_spaces
        self.groups = {name: groups_of(model) for name, model in models.items()}
        self.register_buffer("like", torch.zeros((), device=spec.device), persistent=False)

    def read(self, sets: Sequence[str] = ("actor", "critic")) -> list[str]:
        return [*dict.fromkeys(group for name in sets for group in self.groups[name])]

    def names(self, network: str) -> list[str]:
        return self.groups[network]

    def forward(
        self, observations: Observations, sets: Sequence[str] = ("actor", "critic")
    ) -> dict[str, Tensor]:
        return {group: observations[group] for group in self.read(sets)}

    def update(self, observations: Observations, mask: Tensor | None = None) -> None:
        """Count the rows [R, ...]."""
        rows = observations if mask is None else {g: x[mask] for g, x in observations.items()}
        for model in self._models:
            model.update_normalization(rows)


class ModelPair(nn.Module):
    """The part of `ActorCritic` that the engine and its extensions call, on top of two models.

    Args:
        actor: Has a distribution.
        critic: Gives values [..., 1].
        spec: What the environment is.

    Raises:
        ConfigError: the actor has no distribution, or a recurrent model is of a class that changes what the
            engine passes sequences through.
    """

    value_normalizer, estimator = None, None

    def __init__(self, actor: MLPModel, critic: MLPModel, spec: EnvSpec) -> None:
        super().__init__()
        if actor.distribution is None:
            raise ConfigError(
                "actor: PPO samples actions, and this model has no distribution; set actor.distribution_cfg: "
                "{class_name: GaussianDistribution}."
            )
        models = {"actor": actor, "critic": critic}
        if actor.is_recurrent or critic.is_recurrent:
            for name, model in models.items():
                _check_sequences(name, model)
        self.models = nn.ModuleDict(models)
        self.inputs = RawInputs(models, spec)
        self.action_head, self.to_env = _ActionHead(actor), ActionMap(spec.action_space)
        self.actor, self.critic = _Body(actor), _Body(critic)

    @property
    def groups(self) -> dict[str, list[str]]:
        return self.inputs.groups

    @property
    def value_body(self) -> _Body:
        return self.critic

    @property
    def is_recurrent(self) -> bool:
        return bool(self.actor.state_size or self.critic.state_size)

    def initial_hidden(self, num_envs: int) -> dict[str, Tensor]:
        sizes = {"actor": self.actor.state_size, "critic": self.critic.state_size}
        return {name: self.inputs.like.new_zeros(num_envs, k) for name, k in sizes.items() if k}

    def set_mixed_precision(self, enabled: bool) -> None:
        self.actor.mixed_precision = self.critic.mixed_precision = enabled

    def action_distribution(self, inputs: Observations, hidden: Hidden | None = None) -> ModelDistribution:
        """At rows [M, ...] or sequences [L, B, ...]."""
        model, state = self.actor.model, (hidden or {}).get("actor")
        assert model.distribution is not None
        rows = {group: inputs[group] for group in self.groups["actor"]}
        with self.actor.low_precision(self.inputs.like.device):
            if self._are_sequences(rows):
                model.distribution.update(self.actor.along(rows, state))
            elif type(model).forward is MLPModel.forward:
                model.set_distribution(rows)
            else:  # a class of the client's own
                model(rows, stochastic_output=True)
            return ModelDistribution.of(model)

    def value_of(self, inputs: Observations, hidden: Hidden | None = None) -> Tensor:
        """V [M | L, B]."""
        rows = {group: inputs[group] for group in self.groups["critic"]}
        with self.critic.low_precision(self.inputs.like.device):
            if self._are_sequences(rows):
                value = self.critic.along(rows, (hidden or {}).get("critic"))
            else:
                value = self.critic.model(rows)
        return at_least_float32(value).squeeze(-1)

    def evaluate(
        self,
        inputs: Observations,
        actions: Tensor,
        generator: torch.Generator | None = None,
        hidden: Hidden | None = None,
    ) -> PolicyOutput:
        distribution = self.action_distribution(inputs, hidden)
        value = self.value_of(inputs, hidden)
        none = value.new_zeros(*value.shape, 0)  # no extension here builds on features
        return PolicyOutput(
            distribution=distribution,
            log_prob=distribution.log_prob(actions),
            entropy=distribution.entropy(),
            value=value,
            actor_features=none,
            critic_features=none,
        )

    def segments(self) -> dict[str, list[nn.Parameter]]:
        return {
            name: [*body.model.parameters()]
            for name, body in (("actor", self.actor), ("critic", self.critic))
        }

    def project(self) -> None:
        self.actor.model.project()

    def _are_sequences(self, rows: Observations) -> bool:
        group, x = next(iter(rows.items()))
        return x.dim() - len(self.inputs.spaces[group].shape or ()) == 2


def groups_of(model: MLPModel) -> list[str]:
    """Every observation group that a model reads."""
    return [*model.obs_groups, *getattr(model, "obs_groups_2d", [])]


def _check_sequences(name: str, model: MLPModel) -> None:
    """Refuse a class whose own methods would be passed by where sequences are learned from."""
    methods = ("forward", "get_latent") if model.is_recurrent else ("forward",)
    base = RNNModel if model.is_recurrent else MLPModel
    changed = [m for m in methods if getattr(type(model), m) is not getattr(base, m)]
    if changed:
        raise ConfigError(
            f"{name}: {type(model).__name__} has a {' and a '.join(changed)} of its own, which recurrent "
            "training does not call; put what it does into its observations, or make it feed-forward."
        )
