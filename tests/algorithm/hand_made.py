"""PPO on hand-made steps: no simulator, and every number is the test's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from surefoot import distributed
from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.extension import Extension
from surefoot.algorithm.objectives import Objective
from surefoot.algorithm.ppo import PPO
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import ActorConfig, CriticConfig
from surefoot.networks.normalizers import RunningNormalizer
from surefoot.types import Batch, EnvSpec, MirrorMap, PolicyOutput, Step


def box(size: int, low: float = -np.inf, high: float = np.inf) -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(low, high, (size,))


def make_spec(
    num_envs: int = 4,
    observations: dict[str, gymnasium.Space[Any]] | int = 3,
    actions: gymnasium.Space[Any] | int = 2,
    mirror: MirrorMap | None = None,
) -> EnvSpec:
    """An integer stands for an unbounded Box of that many numbers."""
    groups = {"policy": box(observations)} if isinstance(observations, int) else observations
    action_space = box(actions) if isinstance(actions, int) else actions
    return EnvSpec(groups, action_space, num_envs, mirror=mirror)


def make_ppo(
    config: PPOConfig | None = None,
    spec: EnvSpec | None = None,
    *,
    num_steps: int = 8,
    max_iterations: int = 1000,
    actor: ActorConfig | None = None,
    critic: CriticConfig | None = None,
    obs_groups: dict[str, list[str]] | None = None,
    network: Any = "separate",
    extensions: Sequence[Extension] = (),
    objective: Objective | None = None,
    seed: int = 1,
    dtype: torch.dtype = torch.float32,
    prepare: Callable[[ActorCritic], None] | None = None,
) -> PPO:
    """A small PPO; `prepare` may change the policy before the optimiser is built."""
    spec = spec or make_spec()
    torch.manual_seed(distributed.stream_seed(seed, "weights"))
    actor = actor or ActorConfig(hidden_dims=[8])
    critic = critic or CriticConfig(hidden_dims=[8])
    policy = ActorCritic(spec, actor, critic, obs_groups, network)
    if dtype != torch.float32:
        policy.to(dtype)
    if prepare is not None:
        prepare(policy)
    return PPO(
        policy,
        spec,
        config or PPOConfig(num_mini_batches=2, num_learning_epochs=2),
        num_steps_per_env=num_steps,
        max_iterations=max_iterations,
        extensions=extensions,
        objective=objective,
        seed=seed,
    )


def make_identity_critic(
    config: PPOConfig, num_envs: int = 1, num_steps: int = 3, extensions: Sequence[Extension] = ()
) -> PPO:
    """One observation number per environment, and V(s) is that number."""

    def identity(policy: ActorCritic) -> None:
        with torch.no_grad():
            policy.value_head.weight.fill_(1.0)
            policy.value_head.bias.zero_()

    return make_ppo(
        config,
        make_spec(num_envs, 1, 1),
        num_steps=num_steps,
        critic=CriticConfig(hidden_dims=[]),
        extensions=extensions,
        prepare=identity,
    )


def see(*values: float) -> dict[str, Tensor]:
    """An observation per environment, which is its value too with `make_identity_critic`."""
    return {"policy": torch.tensor(values, dtype=torch.float32).unsqueeze(-1)}


def advantage_of(ppo: PPO) -> Tensor:
    """[T, N], before normalisation."""
    return ppo.storage.returns - ppo.storage.values[:-1]


class Task:
    """Independent random observations; reward -|action - first observations|²; episodes end at random.

    Args:
        seed: Of observations and ends.
        shift, spread: Mean and deviation of the observations.
        ends: Share of rows that terminate, and as many that are truncated.
    """

    def __init__(self, seed: int = 0, shift: float = 0.0, spread: float = 1.0, ends: float = 0.1) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.shift, self.spread, self.ends = shift, spread, ends

    def observe(self, ppo: PPO) -> dict[str, Tensor]:
        observations = {}
        for group, space in ppo.spec.observation_spaces.items():
            size = (ppo.spec.num_envs, *(space.shape or ()))
            if group == "action_mask":
                mask = torch.rand(size, generator=self.generator) < 0.5
                mask[..., 0] |= ~mask.any(-1)
                observations[group] = mask.float()
            elif space.dtype == np.uint8:
                observations[group] = torch.randint(256, size, generator=self.generator, dtype=torch.uint8)
            elif isinstance(space, gymnasium.spaces.Discrete):
                observations[group] = torch.randint(int(space.n), size, generator=self.generator) + int(
                    space.start
                )
            else:
                noise = torch.randn(size, generator=self.generator, dtype=torch.float64)
                observations[group] = (self.shift + self.spread * noise).to(ppo.storage.dtype)
        return observations

    def transition(self, ppo: PPO, actions: Tensor) -> Step:
        final, fresh = self.observe(ppo), self.observe(ppo)
        dice = torch.rand(ppo.spec.num_envs, generator=self.generator)
        terminated, truncated = dice < self.ends, dice > 1 - self.ends
        ended = terminated | truncated
        flat = actions.reshape(ppo.spec.num_envs, -1).to(ppo.storage.dtype)
        goal = next(iter(final.values())).reshape(ppo.spec.num_envs, -1)
        width = min(flat.shape[1], goal.shape[1])
        rewards = -(flat[:, :width] - goal[:, :width]).square().sum(-1)
        after = {g: torch.where(ended.view(-1, *[1] * (x.dim() - 1)), fresh[g], x) for g, x in final.items()}
        return Step(after, rewards, terminated, truncated, final)

    def collect(self, ppo: PPO) -> None:
        """One rollout, up to `compute_returns`."""
        obs = self.observe(ppo)
        for _ in range(ppo.storage.num_transitions_per_env):
            step = self.transition(ppo, ppo.act(obs))
            ppo.process_env_step(step)
            obs = step.observations
        ppo.compute_returns(obs)

    def run(self, ppo: PPO, iterations: int = 1) -> list[dict[str, Tensor]]:
        """Whole iterations; returns their metrics."""
        history = []
        for _ in range(iterations):
            self.collect(ppo)
            history.append(ppo.update())
        return history


def weights_of(ppo: PPO) -> dict[str, Tensor]:
    return {name: x.detach().clone() for name, x in ppo.state_dict().items()}


def normalizers_of(ppo: PPO) -> dict[str, RunningNormalizer]:
    """The observation normalisers by network."""
    parts = {
        name.split(".")[-1]: m for name, m in ppo.policy.named_modules() if isinstance(m, RunningNormalizer)
    }
    return {name: m for name, m in parts.items() if name in ("actor", "critic")}


def assert_same_weights(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), f"{name} differs"


class Watcher(Extension):
    """Keeps what each mini-batch looked like before its optimiser step, with the ratio and the KL."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[dict[str, Tensor]] = []

    def loss(self, batch: Batch, out: PolicyOutput, policy: ActorCritic) -> dict[str, Tensor]:
        old = policy.action_head.rebuild(batch.old_distribution)
        names = ("index", "advantage", "returns", "old_value", "old_log_prob", "actions")
        fields = {name: getattr(batch, name) for name in names} | {"value": out.value, "entropy": out.entropy}
        fields |= {"ratio": (out.log_prob - batch.old_log_prob).exp(), "kl": old.kl(out.distribution)}
        self.seen.append({name: x.detach().clone() for name, x in fields.items()})
        return {}
