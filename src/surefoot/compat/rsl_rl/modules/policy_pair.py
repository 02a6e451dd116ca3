"""What the policies of RSL-RL 1 to 3 have in common: two models in one module, under the names of then."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.distributions import Normal
from typing_extensions import Self

from surefoot.compat.rsl_rl.models.cnn_model import CNNModel
from surefoot.compat.rsl_rl.models.mlp_model import MLPModel, Observations
from surefoot.compat.rsl_rl.models.rnn_model import RNNModel
from surefoot.compat.rsl_rl.modules.distribution import (
    GaussianDistribution,
    HeteroscedasticGaussianDistribution,
)
from surefoot.compat.rsl_rl.modules.rnn import HiddenState
from surefoot.config.advice import SurefootWarning
from surefoot.errors import ConfigError, did_you_mean

Groups: TypeAlias = Mapping[str, Sequence[str]]


class PolicyPair(nn.Module):
    """The model that acts and the one beside it, as one module.

    Its parts are registered under the names of RSL-RL 1 to 3, so that they are the keys of its state dict:
    `actor` (the perceptron alone), `actor_obs_normalizer`, `memory_a`, `actor_cnns`, the same of the other
    model, and `std` or `log_std`. The models themselves are `actor_model` and `critic_model`, or
    `student_model` and `teacher_model`; PPO and Distillation work with them.
    """

    names: tuple[str, str]
    """Of the models: `actor` and `critic`, or `student` and `teacher`."""
    is_recurrent: bool = False
    _models: tuple[MLPModel, MLPModel]

    def __init__(self, acting: MLPModel, beside: MLPModel) -> None:
        super().__init__()
        self._models = (acting, beside)  # in a tuple: their parts are registered instead
        for name, model in zip(self.names, self._models, strict=True):
            setattr(self, name, model.mlp)
            setattr(self, f"{name}_obs_normalizer", model.obs_normalizer)
            setattr(self, f"{name}_obs_normalization", model.obs_normalization)
            if isinstance(model, RNNModel):
                setattr(self, f"memory_{name[0]}", model.rnn)
            if isinstance(model, CNNModel):
                setattr(self, f"{name}_cnns", model.cnns)
        distribution = acting.distribution
        assert isinstance(distribution, GaussianDistribution)
        self.noise_std_type = distribution.std_type
        for name, parameter in distribution.named_parameters():
            self.register_parameter(name.removesuffix("_param"), parameter)

    def forward(self) -> None:
        raise NotImplementedError("call act(), act_inference() or evaluate().")

    def act(
        self,
        observations: Observations,
        masks: Tensor | None = None,
        hidden_states: HiddenState = None,
        hidden_state: HiddenState = None,
    ) -> Tensor:
        """A sample of the actions [..., A]. Arguments are those of `MLPModel.forward`, in the names of any
        release; instead of groups of observations, a tensor of them concatenated will do, as below.
        """
        state = hidden_states if hidden_state is None else hidden_state
        return self._models[0](observations, masks, state, stochastic_output=True)

    def act_inference(self, observations: Observations) -> Tensor:
        """The mean of the actions [..., A]."""
        return self._models[0](observations)

    def evaluate(
        self,
        observations: Observations,
        masks: Tensor | None = None,
        hidden_states: HiddenState = None,
        hidden_state: HiddenState = None,
    ) -> Tensor:
        """The output of the model beside: values [..., 1], or the teacher's actions [..., A]."""
        state = hidden_states if hidden_state is None else hidden_state
        return self._models[1](observations, masks, state)

    @property
    def distribution(self) -> Normal | None:
        """The current one; None before the first `act`."""
        family = self._models[0].distribution
        assert isinstance(family, GaussianDistribution)
        return family._distribution  # pyright: ignore[reportPrivateUsage]

    @property
    def action_mean(self) -> Tensor:
        return self._models[0].output_mean

    @property
    def action_std(self) -> Tensor:
        return self._models[0].output_std

    @property
    def entropy(self) -> Tensor:
        return self._models[0].output_entropy

    def get_actions_log_prob(self, actions: Tensor) -> Tensor:
        """[...] of actions [..., A] under the current distribution."""
        return self._models[0].get_output_log_prob(actions)

    def reset(
        self,
        dones: Tensor | None = None,
        hidden_states: tuple[HiddenState, HiddenState] | None = None,
    ) -> None:
        """Forget where `dones`, or take the states of both models."""
        for model, state in zip(self._models, hidden_states or (None, None), strict=True):
            model.reset(dones, state)

    def get_hidden_states(self) -> tuple[HiddenState, HiddenState]:
        return self._models[0].get_hidden_state(), self._models[1].get_hidden_state()

    def detach_hidden_states(self, dones: Tensor | None = None) -> None:
        for model in self._models:
            model.detach_hidden_state(dones)

    def update_normalization(self, obs: Observations) -> None:
        for model in self._models:
            model.update_normalization(obs)

    def train(self, mode: bool = True) -> Self:
        for model in self._models:
            model.train(mode)
        return super().train(mode)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load the keys of RSL-RL 1 to 3. True: the training that wrote them goes on."""
        super().load_state_dict(state_dict, strict, assign)
        return True


def noise(init_noise_std: float, noise_std_type: str, state_dependent_std: bool = False) -> dict[str, Any]:
    """`distribution_cfg` of a model."""
    family = HeteroscedasticGaussianDistribution if state_dependent_std else GaussianDistribution
    return {"class_name": family, "init_std": init_noise_std, "std_type": noise_std_type}


def memory(
    rnn_type: str, rnn_hidden_dim: int, rnn_num_layers: int, unknown: dict[str, Any]
) -> dict[str, Any]:
    """Arguments of an `RNNModel`; `rnn_hidden_size` is taken out of the other arguments."""
    return {
        "rnn_type": rnn_type,
        "rnn_hidden_dim": unknown.pop("rnn_hidden_size", rnn_hidden_dim),
        "rnn_num_layers": rnn_num_layers,
    }


def observations(
    obs: Observations | int | None,
    obs_groups: Groups | int | None,
    num_actions: int,
    unknown: dict[str, Any],
    names: tuple[str, str],
) -> tuple[Observations, dict[str, list[str]]]:
    """Observations and the groups of both models from the first arguments, whatever the release.

    Args:
        obs: Observations, or as in RSL-RL 1 and 2 the number of those of the first model.
        obs_groups: Groups by set (RSL-RL 3), or the number of observations of the second model.
        num_actions: A.
        unknown: Other arguments; those that say the same by name are taken out.
        names: Of the models.

    Raises:
        ConfigError: some of it is missing, or of another type.
    """
    if num_actions < 1:
        raise ConfigError(f"num_actions is {num_actions}; expected the number of actions.")
    counts = [
        unknown.pop(f"num_{name}_obs", given) for name, given in zip(names, (obs, obs_groups), strict=True)
    ]
    if all(isinstance(count, int) for count in counts):
        rows = {name: torch.zeros(1, count) for name, count in zip(names, counts, strict=True)}
        return rows, {name: [name] for name in names}
    if not isinstance(obs_groups, Mapping) or obs is None or isinstance(obs, int):
        raise ConfigError(
            "expected observations and obs_groups, or the numbers of observations of "
            f"{names[0]} and {names[1]}; got {type(obs).__name__} and {type(obs_groups).__name__}."
        )
    # the set that the acting model reads was called policy
    sets = {name: name if name in obs_groups else "policy" for name in names}
    return obs, {name: list(obs_groups[of]) for name, of in sets.items() if of in obs_groups}


def warn_of_unknown(owner: type, unknown: Mapping[str, Any]) -> None:
    """RSL-RL 1 to 3 took any argument; so do their policies here, but they say which have no effect."""
    known = inspect.signature(owner).parameters
    for name in unknown:
        message = f"{owner.__name__}: '{name}' has no effect.{did_you_mean(name, known)}"
        warnings.warn(message, SurefootWarning, stacklevel=3)
