"""A policy's networks where they are layers alone: forward and back without autograd."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.body import Body
from surefoot.networks.dense import Dense, Layer, activation_of, is_watched, layers_of
from surefoot.networks.encoders import Tanh
from surefoot.networks.inputs import Inputs


class PlainNetworks:
    """Actor and critic with the last layers of their heads.

    Args:
        policy: Whose networks.
        actor, critic: Their layers.
        gradient_of: Where the gradient of each parameter goes.
    """

    def __init__(
        self,
        policy: ActorCritic,
        actor: Sequence[Layer],
        critic: Sequence[Layer],
        gradient_of: Mapping[Tensor, Tensor],
    ) -> None:
        self.policy, self.mirror = policy, policy.mirror
        self.actor, self.mirrored_actor, self.critic = Dense(actor), Dense(actor), Dense(critic)
        self.by_actor, self.by_critic = (
            [(gradient_of[x.linear.weight], gradient_of[x.linear.bias]) for x in layers]
            for layers in (actor, critic)
        )
        self.modules = [
            m for child in policy.children() if child is not policy.inputs for m in child.modules()
        ]
        self.parameters = [*gradient_of]
        bodies = [body for body in (policy.actor, policy.critic) if body is not None]
        self.made_of = [(body.layers, [*body.layers.children()]) for body in bodies]

    def are_free(self) -> bool:
        """Whether nothing forbids it at present: low precision, hooks, frozen parameters, other layers."""
        if self.policy.actor.mixed_precision or is_watched(self.modules, self.parameters):
            return False
        return all([*module.children()] == kept for module, kept in self.made_of)

    def forward(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """What the last layers put out: actor [M, F], critic [M]; the next call overwrites both."""
        out = self.actor.forward(inputs["actor"])
        if self.mirror is not None:
            mirrored = self.mirrored_actor.forward(inputs["actor_mirror"])
            out = 0.5 * (out + self.mirror.mirror_actions(mirrored))
        value = self.critic.forward(inputs[self.policy.inputs.critic_name])
        return out, value.squeeze(-1)

    def backward(self, inputs: Inputs, by_out: Tensor, by_value: Tensor) -> None:
        """The gradients, from those by the results of `inputs`; overwrites these."""
        if self.mirror is None:
            self.actor.backward(inputs["actor"], by_out, self.by_actor)
        else:
            # a mirror is its own inverse and its own transpose
            by_mirrored = self.mirror.mirror_actions(by_out.mul_(0.5))
            self.actor.backward(inputs["actor"], by_out, self.by_actor)
            self.mirrored_actor.backward(inputs["actor_mirror"], by_mirrored, self.by_actor, add=True)
        of_critic = inputs[self.policy.inputs.critic_name]
        self.critic.backward(of_critic, by_value.unsqueeze(-1), self.by_critic)


def plain_networks(policy: ActorCritic, gradient_of: Mapping[Tensor, Tensor]) -> PlainNetworks | None:
    """None where the networks are more than layers, or `gradient_of` more than their parameters and those of
    the head.
    """
    head = policy.action_head
    actor, critic = (_layers_of(body) for body in (policy.actor, policy.critic))
    if actor is None or critic is None:
        return None
    bound = activation_of(Tanh()) if getattr(head, "bound_mean", False) else None
    networks = [*actor, Layer(head.linear, bound)], [*critic, Layer(policy.value_head, None)]
    own = {p for layers in networks for layer in layers for p in layer.linear.parameters()}
    if {*own, *head.parameters()} != {*gradient_of}:
        return None
    return PlainNetworks(policy, *networks, gradient_of)


def _layers_of(body: Body | None) -> list[Layer] | None:
    if body is None or body.memory is not None or body.estimator is not None or body.image_groups:
        return None
    return layers_of(body.layers)
