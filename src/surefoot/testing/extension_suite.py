"""The contract suite that every extension must pass, ours and a user's."""

from __future__ import annotations

import os
import socket
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from torch import Tensor, multiprocessing

from surefoot import distributed
from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.extension import Extension
from surefoot.algorithm.ppo import PPO
from surefoot.algorithm.rollout_storage import RolloutStorage
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import ActorConfig, CriticConfig
from surefoot.types import Batch, EnvSpec, MirrorMap, PolicyOutput, Step

NUM_ENVS, NUM_STEPS = 6, 8


def check_extension(kind: type[Extension], two_processes: bool = True, **arguments: Any) -> None:
    """Train a small policy with `kind(**arguments)`, and a recurrent one, and check the contract of
    `Extension`.

    The toy environment has the observation groups `policy` [5] and `privileged` [4], two actions in [-1, 1],
    and episodes that end by task and by clock.

    Args:
        kind: The extension's class, importable by name.
        two_processes: Also check that two processes with different rollouts end with the same weights.
        **arguments: Of its constructor.

    Raises:
        AssertionError: naming the rule that is broken.
    """
    for rnn_type in (None, "gru"):
        audited = _audited(kind)(**arguments)
        weights = _train(make_ppo(audited, rnn_type=rnn_type), iterations=2)
        for name, tensor in weights.items():
            assert not tensor.is_floating_point() or bool(tensor.isfinite().all()), (
                f"{name} is not finite after training"
            )
    _check_resume(kind, arguments)
    if two_processes:
        _check_two_processes(kind, arguments)


def make_ppo(*extensions: Extension, seed: int = 1, rnn_type: Literal["gru", "lstm"] | None = None) -> PPO:
    """PPO on the toy environment's spaces."""
    bound = np.inf
    swap = (torch.tensor([1, 0, 2, 3, 4]), torch.ones(5))
    spec = EnvSpec(
        observation_spaces={
            "policy": gymnasium.spaces.Box(-bound, bound, (5,)),
            "privileged": gymnasium.spaces.Box(-bound, bound, (4,)),
        },
        action_space=gymnasium.spaces.Box(-1.0, 1.0, (2,)),
        num_envs=NUM_ENVS,
        step_dt=0.02,
        mirror=MirrorMap(
            {
                "policy": swap,
                "privileged": (torch.tensor([1, 0, 3, 2]), torch.tensor([1.0, 1.0, -1.0, -1.0])),
            },
            (torch.tensor([1, 0]), torch.ones(2)),
        ),
    )
    torch.manual_seed(distributed.stream_seed(seed, "weights"))
    memory: dict[str, Any] = {"rnn_type": rnn_type, "rnn_hidden_dim": 6}
    actor = ActorConfig(hidden_dims=[8], obs_normalization=True, **memory)
    critic = CriticConfig(hidden_dims=[8], obs_normalization=True, **memory)
    policy = ActorCritic(
        spec, actor, critic, obs_groups={"actor": ["policy"], "critic": ["policy", "privileged"]}
    )
    config = PPOConfig(num_learning_epochs=2, num_mini_batches=3)
    return PPO(policy, spec, config, num_steps_per_env=NUM_STEPS, extensions=extensions, seed=seed)


def _train(ppo: PPO, iterations: int, data_seed: int = 0) -> dict[str, Tensor]:
    """Iterations on made-up transitions; returns all parameters and buffers."""
    data = torch.Generator().manual_seed(data_seed)

    def observe() -> dict[str, Tensor]:
        return {
            "policy": torch.randn(NUM_ENVS, 5, generator=data),
            "privileged": torch.randn(NUM_ENVS, 4, generator=data),
        }

    obs = observe()
    for _ in range(iterations):
        for _ in range(NUM_STEPS):
            actions = ppo.act(obs)
            final, obs = observe(), observe()
            dice = torch.rand(NUM_ENVS, generator=data)
            terminated, truncated = dice < 0.1, dice > 0.9
            reward = -(actions - final["policy"][:, :2]).square().sum(-1)
            obs = {g: torch.where((terminated | truncated)[:, None], obs[g], final[g]) for g in obs}
            ppo.process_env_step(Step(obs, reward, terminated, truncated, final))
        ppo.compute_returns(obs)
        for name, value in ppo.update().items():
            assert value.dim() == 0, f"metric {name} has shape {tuple(value.shape)}; metrics are 0-d tensors"
            assert bool(value.isfinite()), f"metric {name} is {value}"
    return {k: v.clone() for k, v in ppo.state_dict().items()}


def _audited(kind: type[Extension]) -> type[Extension]:
    """`kind` with every method's result checked where it is called."""

    class Audited(kind):
        def reward(self, rollout: RolloutStorage, reward: Tensor) -> Tensor:
            before = _snapshot(rollout)
            result = self._per_row(rollout, super().reward(rollout, reward), "reward")
            _assert_same(before, _snapshot(rollout), "reward")
            return result

        def advantage(self, rollout: RolloutStorage, advantage: Tensor) -> Tensor:
            before = _snapshot(rollout)
            result = self._per_row(rollout, super().advantage(rollout, advantage), "advantage")
            _assert_same(before, _snapshot(rollout), "advantage")
            return result

        def prepare(self, rollout: RolloutStorage, policy: ActorCritic) -> None:
            before = _snapshot(rollout)
            super().prepare(rollout, policy)
            _assert_same(before, _snapshot(rollout), "prepare")

        def learn(self, rollout: RolloutStorage) -> dict[str, Tensor]:
            before = _snapshot(rollout)
            stats = super().learn(rollout)
            _assert_same(before, _snapshot(rollout), "learn")
            return stats

        def augment(self, batch: Batch, policy: ActorCritic) -> Batch:
            n, before = batch.num_sampled, _sampled_rows(batch)
            grown = super().augment(batch, policy)
            assert grown.num_sampled == n, "augment must not change num_sampled"
            _assert_same(before, _sampled_rows(grown), "augment")
            return grown

        def loss(self, batch: Batch, out: PolicyOutput, policy: ActorCritic) -> dict[str, Tensor]:
            before = _snapshot(batch.rollout)
            terms = super().loss(batch, out, policy)
            _assert_same(before, _snapshot(batch.rollout), "loss")
            for name, term in terms.items():
                assert "/" in name, f"loss term '{name}' must be named by its log key, such as 'Aux/{name}'"
                assert term.dim() == 0, f"loss term {name} has shape {tuple(term.shape)}; it must be a scalar"
            return terms

        def _per_row(self, rollout: RolloutStorage, result: Tensor, what: str) -> Tensor:
            assert result.shape == rollout.rewards.shape, (
                f"{what}() returned shape {tuple(result.shape)}; expected [T, N], "
                f"{tuple(rollout.rewards.shape)}"
            )
            assert bool(result[rollout.valid].isfinite().all()), (
                f"{what}() returned a number that is not finite"
            )
            return result

    return Audited


def _sampled_rows(batch: Batch) -> dict[str, Tensor]:
    fields = {"actions": batch.actions, "advantage": batch.advantage, "index": batch.index}
    fields |= {f"observations.{g}": x for g, x in batch.observations.items()}
    return {name: batch.sampled(x).clone() for name, x in fields.items()}


def _snapshot(rollout: RolloutStorage) -> dict[str, Tensor]:
    fields = {"rewards": rollout.rewards, "actions": rollout.actions, "terminated": rollout.terminated}
    fields |= {"truncated": rollout.truncated, "valid": rollout.valid} | {
        f"observations.{g}": x for g, x in rollout.observations.items()
    }
    return {k: v.clone() for k, v in fields.items()}


def _assert_same(before: dict[str, Tensor], after: dict[str, Tensor], method: str) -> None:
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]), (
            f"{method}() changed {name}; it must leave the rollout untouched"
        )


def _check_resume(kind: type[Extension], arguments: dict[str, Any]) -> None:
    ppo, copy = make_ppo(kind(**arguments)), make_ppo(kind(**arguments), seed=2)
    _train(ppo, iterations=2)
    copy.load_state(ppo.state())
    expected, got = _train(ppo, 1, data_seed=7), _train(copy, 1, data_seed=7)
    for name, tensor in expected.items():
        assert torch.equal(tensor, got[name]), (
            f"'{name}' differs after saving and loading; keep all state in parameters, buffers, optimisers "
            "and generators that are attributes of the extension"
        )


def _check_two_processes(kind: type[Extension], arguments: dict[str, Any]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    multiprocessing.spawn(  # pyright: ignore[reportPrivateImportUsage]
        _train_as_rank, args=(kind, arguments, port), nprocs=2
    )


def _train_as_rank(rank: int, kind: type[Extension], arguments: dict[str, Any], port: int) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    distributed.init_from_env(torch.device("cpu"))
    try:
        ppo = make_ppo(kind(**arguments), seed=1 + rank)
        weights = _train(ppo, iterations=2, data_seed=rank)
        # a buffer of a number per environment differs, as the environments do
        per_env = {k for k, v in ppo.named_buffers() if v.shape[:1] == (NUM_ENVS,)}
        shared = {k: v for k, v in weights.items() if k not in per_env}
        mine = {k: v.double().sum().cpu() for k, v in shared.items()}
        first, second = distributed.gather_objects(mine)
        for name, total in first.items():
            assert torch.equal(total, second[name]), (
                f"'{name}' differs between two processes after two iterations"
            )
    finally:
        distributed.shutdown()
