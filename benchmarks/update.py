"""Time of PPO's update against peers, plain PyTorch and the bare matrix products in it, in one process and
one thread.

    pip install stable-baselines3 skrl==2.1.1 tianshou==2.0.1 torchrl==0.14.1
    pip install --no-deps rsl-rl-lib==5.5.1
    python benchmarks/update.py [--only small ...] [--contenders NAME ...] [--json FILE]

All contenders learn from the same noise, a fresh rollout for each repetition, and alternate; only the update
is timed. A peer that is not installed is named and left out.

`products` is the limit: `mm` for each layer's output, weight gradient and input gradient (not the first
layer's) for the same rows, in preallocated memory, without bias or activation. `plain` is PyTorch as a
careful reader of CleanRL would write it. Ours and RSL-RL's adapt the learning rate to the KL in the legged
regimes and keep it fixed in the others; both normalise advantages over the rollout, the rest in each
mini-batch. more_peers.py says how skrl, tianshou and torchrl differ.

Ratios are medians over the repetitions, of the process's CPU time first: on a shared machine the wall clock,
beside it, also counts what others do.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium
import more_peers
import torch
from peers import (
    Contender,
    Noise,
    Target,
    alternate,
    box,
    build,
    learner_of_rsl_rl,
    learner_of_sb3,
    replay,
    report,
    write,
)
from plain import PlainPPO
from torch import Tensor, nn

from surefoot.algorithm.compiled import compile_ppo
from surefoot.algorithm.config import PPOConfig
from surefoot.algorithm.ppo import PPO
from surefoot.networks.actor_critic import ActorCritic
from surefoot.networks.config import ActorConfig, CriticConfig
from surefoot.types import EnvSpec, Step


@dataclass(frozen=True)
class Regime:
    num_envs: int
    num_steps: int
    epochs: int
    mini_batch: int
    obs: int
    actions: int
    """Of a Box; of a Discrete space where `is_discrete`."""
    hidden: tuple[int, ...]
    activation: str
    schedule: str
    is_discrete: bool = False
    rnn: int = 0
    """Units of memory below a linear head, instead of `hidden`."""
    rnn_type: str = "gru"

    @property
    def num_mini_batches(self) -> int:
        return -(-self.num_envs * self.num_steps // self.mini_batch)

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        return gymnasium.spaces.Discrete(self.actions) if self.is_discrete else box(self.actions)


REGIMES = {
    "small": Regime(8, 256, 10, 64, 17, 6, (64, 64), "tanh", "fixed"),
    "small-2048": Regime(8, 256, 10, 2048, 17, 6, (64, 64), "tanh", "fixed"),
    "discrete": Regime(8, 128, 10, 256, 4, 2, (64, 64), "tanh", "fixed", is_discrete=True),
    "medium": Regime(512, 24, 5, 512 * 24 // 4, 48, 12, (256, 128, 64), "elu", "adaptive"),
    "legged": Regime(1024, 24, 5, 1024 * 24 // 4, 48, 12, (512, 256, 128), "elu", "adaptive"),
    "legged-4096": Regime(4096, 24, 5, 4096 * 24 // 4, 48, 12, (512, 256, 128), "elu", "adaptive"),
    "gru": Regime(512, 24, 5, 512 * 24 // 4, 48, 12, (), "elu", "adaptive", rnn=128),
}
LONG = ("legged-4096",)
"""Measured only when named."""


def ours(regime: Regime, compile_mode: str) -> Contender:
    spec = EnvSpec({"policy": box(regime.obs)}, regime.action_space, regime.num_envs)
    shape: dict[str, Any] = {"hidden_dims": list(regime.hidden), "activation": regime.activation}
    if regime.rnn:
        shape |= {"rnn_type": regime.rnn_type, "rnn_hidden_dim": regime.rnn}
    policy = ActorCritic(spec, ActorConfig(**shape), CriticConfig(**shape))
    config = PPOConfig(
        num_learning_epochs=regime.epochs,
        num_mini_batches=regime.num_mini_batches,
        schedule=regime.schedule,  # pyright: ignore[reportArgumentType]
    )
    ppo = PPO(policy, spec, config, num_steps_per_env=regime.num_steps)
    compile_ppo(ppo, compile_mode, print)

    def collect(noise: Noise) -> Callable[[], object]:
        never = torch.zeros(regime.num_envs, dtype=torch.bool)
        for t in range(regime.num_steps):
            ppo.act({"policy": noise.obs[t]})
            ppo.process_env_step(Step({"policy": noise.obs[t + 1]}, noise.rewards[t], noise.ended[t], never))
        ppo.compute_returns({"policy": noise.obs[-1]})
        return ppo.update

    return collect


def rsl_rl(regime: Regime) -> Contender:
    if regime.is_discrete:
        raise ImportError("it has no discrete actions")
    from rsl_rl import algorithms
    from rsl_rl.models import MLPModel, RNNModel
    from rsl_rl.storage import RolloutStorage
    from tensordict import TensorDict

    def observations(rows: Tensor) -> Any:
        return TensorDict({"policy": rows}, batch_size=[regime.num_envs])

    def model(name: str, num_outputs: int, distribution: dict[str, Any] | None) -> Any:
        groups = {"actor": ["policy"], "critic": ["policy"]}
        shape: dict[str, Any] = {"hidden_dims": list(regime.hidden) or [1], "activation": regime.activation}
        if not regime.rnn:
            return MLPModel(example, groups, name, num_outputs, distribution_cfg=distribution, **shape)
        shape |= {"rnn_type": regime.rnn_type, "rnn_hidden_dim": regime.rnn}
        network: Any = RNNModel(example, groups, name, num_outputs, distribution_cfg=distribution, **shape)
        # it takes no empty hidden_dims; so its layers give way to the linear head that the others have
        network.mlp = nn.Linear(regime.rnn, num_outputs)
        return network

    example = observations(torch.zeros(regime.num_envs, regime.obs))
    actor = model("actor", regime.actions, {"class_name": "GaussianDistribution"})
    storage = RolloutStorage("rl", regime.num_envs, regime.num_steps, example, [regime.actions])
    settings: dict[str, Any] = {
        "num_learning_epochs": regime.epochs,
        "num_mini_batches": regime.num_mini_batches,
        "schedule": regime.schedule,
    }
    critic = model("critic", 1, None)
    ppo = algorithms.PPO(actor, critic, storage, entropy_coef=0.0, **settings)
    return learner_of_rsl_rl(ppo, observations)


def sb3(regime: Regime) -> Contender:
    if regime.rnn:
        raise ImportError("it has no recurrent policies; see recurrent.py for sb3-contrib")
    import stable_baselines3

    # it takes no unbounded actions; these bounds are never met
    actions = regime.action_space if regime.is_discrete else box(regime.actions, 1e3)
    env = replay(regime.num_envs, regime.obs, actions)
    activation = {"tanh": nn.Tanh, "elu": nn.ELU}[regime.activation]
    sizes = list(regime.hidden)
    model = stable_baselines3.PPO(
        "MlpPolicy",
        env,
        n_steps=regime.num_steps,
        batch_size=regime.mini_batch,
        n_epochs=regime.epochs,
        clip_range_vf=0.2,
        learning_rate=1e-3,
        vf_coef=1.0,
        max_grad_norm=1.0,
        policy_kwargs={"net_arch": {"pi": sizes, "vf": sizes}, "activation_fn": activation},
        device="cpu",
    )
    return learner_of_sb3(model, env, regime.num_steps)


def plain(regime: Regime) -> Contender:
    if regime.rnn:
        raise ImportError("feed-forward only")
    return PlainPPO(
        regime.obs, regime.actions, regime.hidden, regime.activation, regime.is_discrete
    ).contender(regime.epochs, regime.mini_batch)


def products(regime: Regime) -> Contender:
    if regime.rnn:
        raise ImportError("feed-forward only")
    widths = [[regime.obs, *regime.hidden, out] for out in (regime.actions, 1)]
    layers = [pair for w in widths for pair in pairwise(w)]
    firsts = {0, len(regime.hidden) + 1}
    m = regime.mini_batch
    x = [(torch.randn(m, i), torch.randn(i, o), torch.randn(m, o)) for i, o in layers]
    out = [(torch.empty(m, o), torch.empty(i, o), torch.empty(m, i)) for i, o in layers]

    def multiply() -> None:
        for _ in range(regime.epochs * regime.num_mini_batches):
            for k, ((a, w, g), (y, dw, dx)) in enumerate(zip(x, out, strict=True)):
                torch.mm(a, w, out=y)
                torch.mm(a.t(), g, out=dw)
                if k not in firsts:
                    torch.mm(g, w.t(), out=dx)

    return lambda _: multiply


CONTENDERS: dict[str, Callable[[Regime], Contender]] = {
    "ours": lambda regime: ours(regime, "off"),
    "ours, compiled": lambda regime: ours(regime, "default"),
    "plain": plain,
    "products": products,
    "sb3": sb3,
    "rsl_rl": rsl_rl,
    "skrl": more_peers.skrl,
    "tianshou": more_peers.tianshou,
    "torchrl": more_peers.torchrl,
}
LIMITS = [
    Target("ours", "products", "at most", 1.25),
    Target("ours, compiled", "products", "at most", 1.15),
    Target("plain", "products"),
    Target("sb3", "products"),
    Target("rsl_rl", "products"),
]
OURS = ("ours", "ours, compiled")
MORE = [Target(slow, fast) for slow in ("skrl", "tianshou", "torchrl") for fast in OURS]
PEERS = [*(Target(slow, fast) for slow in ("rsl_rl", "sb3", "plain") for fast in OURS), *MORE]
TARGETS: dict[str, list[Target]] = {
    "small": [
        Target("sb3", "ours", "at least", 2.5),
        Target("plain", "ours", "at least", 1.6),
        Target("sb3", "ours, compiled", "at least", 7),
        Target("plain", "ours, compiled", "at least", 4),
        *MORE,
    ],
    "small-2048": [Target("plain", "ours"), Target("plain", "ours, compiled", "at least", 1.8), *MORE],
    "discrete": PEERS,
    "medium": [*LIMITS, *MORE],
    "legged": [*LIMITS, *MORE],
    "legged-4096": [*LIMITS, *MORE],
    "gru": PEERS,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=REGIMES, default=[r for r in REGIMES if r not in LONG])
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for name in arguments.only:
        regime = REGIMES[name]
        torch.manual_seed(1)
        print(f"\n{name}: {regime}")
        makers = {n: (lambda make=CONTENDERS[n], r=regime: make(r)) for n in arguments.contenders}
        contenders, missing = build(makers)

        def draw(regime: Regime = regime) -> Noise:
            return Noise.draw(regime.num_steps, regime.num_envs, regime.obs)

        times = alternate(contenders, draw, arguments.repetitions)
        num_units = regime.epochs * regime.num_mini_batches
        results[name] = report(times, missing, TARGETS[name], num_units, "mini_batch")
        write(arguments.json, results)


if __name__ == "__main__":
    main()
