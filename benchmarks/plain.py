"""PPO's update in plain PyTorch, as a single-file implementation has it: a reference of update.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from peers import Contender, Noise
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Normal

from surefoot.algorithm.returns import gae


class PlainPPO(nn.Module):
    """Two networks, torch.distributions, torch.optim.Adam; advantages normalised in each mini-batch."""

    def __init__(
        self, num_obs: int, num_actions: int, hidden: Sequence[int], activation: str, is_discrete: bool
    ) -> None:
        super().__init__()

        def network(num_outputs: int) -> nn.Sequential:
            layers: list[nn.Module] = []
            for size, following in pairwise([num_obs, *hidden]):
                layers += [nn.Linear(size, following), {"tanh": nn.Tanh, "elu": nn.ELU}[activation]()]
            return nn.Sequential(*layers, nn.Linear(hidden[-1], num_outputs))

        self.actor, self.critic = network(num_actions), network(1)
        self.log_std = nn.Parameter(torch.zeros(1, num_actions))
        self.is_discrete = is_discrete
        self.optimizer = torch.optim.Adam(self.parameters(), lr=1e-3, eps=1e-5)

    def distribution(self, obs: Tensor) -> Distribution:
        output = self.actor(obs)
        return Categorical(logits=output) if self.is_discrete else Normal(output, self.log_std.exp())

    def log_prob_and_entropy(self, obs: Tensor, actions: Tensor | None = None) -> tuple[Tensor, ...]:
        distribution = self.distribution(obs)
        actions = distribution.sample() if actions is None else actions
        log_prob, entropy = distribution.log_prob(actions), distribution.entropy()
        if not self.is_discrete:
            log_prob, entropy = log_prob.sum(1), entropy.sum(1)
        return actions, log_prob, entropy

    def contender(self, epochs: int, mini_batch: int) -> Contender:
        def collect(noise: Noise) -> Callable[[], object]:
            with torch.no_grad():
                obs = noise.obs[:-1].flatten(0, 1)
                actions, log_prob, _ = self.log_prob_and_entropy(obs)
                value, never = self.critic(noise.obs).squeeze(-1), torch.zeros_like(noise.ended)
                advantage, returns = gae(noise.rewards, value, noise.ended, never, value[:-1], 0.99, 0.95)
            rows = [actions, log_prob, value[:-1].flatten(), advantage.flatten(), returns.flatten()]
            return lambda: self.update(obs, *rows, epochs, mini_batch)

        return collect

    def update(
        self,
        obs: Tensor,
        actions: Tensor,
        old_log_prob: Tensor,
        old_value: Tensor,
        advantages: Tensor,
        returns: Tensor,
        epochs: int,
        mini_batch: int,
    ) -> tuple[float, float]:
        clip, fractions = 0.2, []
        kl = torch.zeros(())
        for _ in range(epochs):
            order = torch.randperm(len(obs))
            for start in range(0, len(obs), mini_batch):
                rows = order[start : start + mini_batch]
                _, log_prob, entropy = self.log_prob_and_entropy(obs[rows], actions[rows])
                value = self.critic(obs[rows]).view(-1)
                log_ratio = log_prob - old_log_prob[rows]
                ratio = log_ratio.exp()
                with torch.no_grad():
                    kl = ((ratio - 1) - log_ratio).mean()
                    fractions.append(((ratio - 1).abs() > clip).float().mean().item())
                advantage = advantages[rows]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                surrogate = torch.max(
                    -advantage * ratio, -advantage * torch.clamp(ratio, 1 - clip, 1 + clip)
                ).mean()
                unclipped = (value - returns[rows]) ** 2
                clipped = old_value[rows] + torch.clamp(value - old_value[rows], -clip, clip)
                value_loss = torch.max(unclipped, (clipped - returns[rows]) ** 2).mean()
                loss = surrogate - 0.0 * entropy.mean() + value_loss
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.parameters(), 1.0)
                self.optimizer.step()
        return kl.item(), sum(fractions) / len(fractions)
