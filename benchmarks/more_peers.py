"""PPO's update in skrl, tianshou and torchrl, as contenders of update.py: their own networks and losses,
settings like the others'.

What the timed part holds beside the epochs of mini-batches, and what differs:

skrl      `post_interaction` of the last step: also the last value, GAE and one normalisation of the
          advantages over the rollout. The value loss takes the clipped prediction alone. Where the schedule
          is adaptive, its KLAdaptiveLR looks at each epoch's mean KL.
tianshou  `update`: also the values of all observations and of their successors, GAE, and the
          log-probabilities of all actions, none of which its buffer holds (all rows at once: faster than its
          256 at a time). The rows are NumPy's until they reach a network. No schedule by KL.
torchrl   its loss and replay buffer in the loop of its PPO tutorial, which leaves loop and gradient clipping
          to its user; GAE before. The buffer holds only what the loss reads. Off is what nothing here would
          use and costs time: entropy, explained variance, functional networks. No schedule by KL.

The last two normalise advantages in each mini-batch. Importing skrl or torchrl ends the checks of arguments
in torch.distributions for the whole process, from which the other peers gain.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from peers import Contender, Noise, box
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, Normal

if TYPE_CHECKING:
    from update import Regime

ACTIVATIONS = {"tanh": nn.Tanh, "elu": nn.ELU}


def skrl(regime: Regime) -> Contender:
    _feed_forward_only(regime)
    from skrl.agents.torch.ppo import PPO
    from skrl.memories.torch import RandomMemory
    from skrl.resources.schedulers.torch import KLAdaptiveLR
    from skrl.utils.model_instantiators.torch import categorical_model, deterministic_model, gaussian_model

    spaces: dict[str, Any] = {"observation_space": box(regime.obs), "action_space": regime.action_space}
    layers = {"layers": list(regime.hidden), "activations": regime.activation}
    network: dict[str, Any] = {"network": [{"name": "net", "input": "OBSERVATIONS", **layers}]}
    if regime.is_discrete:
        policy = categorical_model(**spaces, **network, output="ACTIONS", device="cpu")
    else:
        policy = gaussian_model(**spaces, **network, output="ACTIONS", clip_log_std=False, device="cpu")
    value = deterministic_model(**spaces, **network, output="ONE", device="cpu")
    models = {"policy": policy, "value": value}
    for role, model in models.items():
        model.init_state_dict(role=role)
    settings: dict[str, Any] = {
        "rollouts": regime.num_steps,
        "learning_epochs": regime.epochs,
        "mini_batches": regime.num_mini_batches,
        "learning_rate": 1e-3,
        "value_loss_scale": 1.0,
        "grad_norm_clip": 1.0,
        "experiment": {"write_interval": 0, "checkpoint_interval": 0},
    }
    if regime.schedule == "adaptive":
        settings["learning_rate_scheduler"] = KLAdaptiveLR
        settings["learning_rate_scheduler_kwargs"] = {"kl_threshold": 0.01, "min_lr": 1e-5}
    memory = RandomMemory(memory_size=regime.num_steps, num_envs=regime.num_envs, device="cpu")
    agent = PPO(models=models, memory=memory, cfg=settings, device="cpu", **spaces)
    agent.init()
    agent.enable_training_mode(True)

    def collect(noise: Noise) -> Callable[[], object]:
        never = torch.zeros(regime.num_envs, 1, dtype=torch.bool)
        at: dict[str, Any] = {"timestep": 0, "timesteps": 0}  # read only to write and to save
        for t in range(regime.num_steps):
            if t:
                agent.post_interaction(**at)
            with torch.no_grad():
                actions, _ = agent.act(noise.obs[t], None, **at)
                agent.record_transition(
                    observations=noise.obs[t],
                    states=None,
                    actions=actions,
                    rewards=noise.rewards[t, :, None],
                    next_observations=noise.obs[t + 1],
                    next_states=None,
                    terminated=noise.ended[t, :, None],
                    truncated=never,
                    infos={},
                    **at,
                )
        return functools.partial(agent.post_interaction, **at)

    return collect


def tianshou(regime: Regime) -> Contender:
    _feed_forward_only(regime)
    from tianshou.algorithm import PPO
    from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy, ProbabilisticActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Batch, VectorReplayBuffer
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
    from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
    from tianshou.utils.torch_utils import policy_within_training_step

    def body() -> Any:
        activation = ACTIVATIONS[regime.activation]
        return Net(state_shape=regime.obs, hidden_sizes=regime.hidden, activation=activation)

    if regime.is_discrete:
        actor = DiscreteActor(preprocess_net=body(), action_shape=regime.actions, softmax_output=False)
        policy: Any = DiscreteActorPolicy(actor=actor, action_space=regime.action_space)
        critic: Any = DiscreteCritic(preprocess_net=body())
    else:
        policy = ProbabilisticActorPolicy(
            actor=ContinuousActorProbabilistic(
                preprocess_net=body(), action_shape=regime.actions, unbounded=True
            ),
            dist_fn=lambda parameters: Independent(Normal(*parameters), 1),
            action_space=regime.action_space,
            action_scaling=False,
            action_bound_method=None,
        )
        critic = ContinuousCritic(preprocess_net=body())
    num_rows = regime.num_envs * regime.num_steps
    ppo: Any = PPO(
        policy=policy,
        critic=critic,
        optim=AdamOptimizerFactory(lr=1e-3),
        value_clip=True,
        vf_coef=1.0,
        ent_coef=0.0,
        max_grad_norm=1.0,
        max_batchsize=num_rows,
    )
    buffer = VectorReplayBuffer(num_rows, regime.num_envs)

    def update() -> None:
        with policy_within_training_step(policy):
            ppo.update(buffer=buffer, batch_size=regime.mini_batch, repeat=regime.epochs)

    def collect(noise: Noise) -> Callable[[], object]:
        obs, rewards, ended = noise.obs.numpy(), noise.rewards.numpy(), noise.ended.numpy()
        buffer.reset()
        for t in range(regime.num_steps):
            with torch.no_grad():
                actions = policy(Batch(obs=obs[t], info={})).act.numpy()
            buffer.add(
                Batch(
                    obs=obs[t],
                    act=actions,
                    rew=rewards[t],
                    terminated=ended[t],
                    truncated=ended[t] & False,
                    obs_next=obs[t + 1],
                    info={},
                )
            )
        return update

    return collect


def torchrl(regime: Regime) -> Contender:
    _feed_forward_only(regime)
    from tensordict import TensorDict
    from tensordict.nn import AddStateIndependentNormalScale, TensorDictModule
    from torchrl import logger
    from torchrl.data import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement
    from torchrl.envs import ExplorationType
    from torchrl.modules import MLP, IndependentNormal, ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    logger.setLevel("WARNING")  # a storage announces itself

    def network(num_outputs: int) -> Any:
        activation = ACTIVATIONS[regime.activation]
        return MLP(regime.obs, num_outputs, num_cells=list(regime.hidden), activation_class=activation)

    mean = network(regime.actions)
    parameters: Any = ["logits"] if regime.is_discrete else ["loc", "scale"]
    body = mean if regime.is_discrete else nn.Sequential(mean, AddStateIndependentNormalScale(regime.actions))
    actor = ProbabilisticActor(
        TensorDictModule(body, in_keys=["observation"], out_keys=parameters),
        in_keys=parameters,
        distribution_class=Categorical if regime.is_discrete else IndependentNormal,
        return_log_prob=True,
        default_interaction_type=ExplorationType.RANDOM,
    )
    critic = ValueOperator(network(1), in_keys=["observation"])
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    loss_module = ClipPPOLoss(
        actor,
        critic,
        entropy_bonus=False,
        loss_critic_type="l2",
        normalize_advantage=True,
        clip_value=True,
        functional=False,
        log_explained_variance=False,
    )
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=1e-3)
    num_rows = regime.num_envs * regime.num_steps
    storage, sampler = LazyTensorStorage(num_rows), SamplerWithoutReplacement()
    buffer = ReplayBuffer(storage=storage, sampler=sampler, batch_size=regime.mini_batch)
    learned_from = ["observation", "action", "action_log_prob", "state_value", "advantage", "value_target"]

    def update() -> None:
        for _ in range(regime.epochs):
            for batch in buffer:
                losses: Any = loss_module(batch)
                loss: Tensor = losses["loss_objective"] + losses["loss_critic"]
                loss.backward()
                nn.utils.clip_grad_norm_(loss_module.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()

    def collect(noise: Noise) -> Callable[[], object]:
        obs, ended = noise.obs.transpose(0, 1), noise.ended.t()[..., None]
        said = {"observation": obs[:, 1:], "reward": noise.rewards.t()[..., None]}
        following: dict[str, Any] = {**said, "done": ended, "terminated": ended}
        shape = [regime.num_envs, regime.num_steps]
        rollout: Any = TensorDict({"observation": obs[:, :-1], "next": following}, batch_size=shape)
        with torch.no_grad():
            rollout = advantage(actor(rollout))
        buffer.extend(rollout.select(*learned_from).reshape(-1))
        return update

    return collect


def _feed_forward_only(regime: Regime) -> None:
    if regime.rnn:
        raise ImportError("only its feed-forward networks are measured here")
