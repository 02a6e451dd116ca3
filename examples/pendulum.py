"""PPO on Pendulum-v1 in its five steps, written out with parts: python examples/pendulum.py [ITERATIONS]"""

import copy
import sys

import torch

import surefoot
from surefoot.algorithm.losses import clipped_surrogate, mse_value_loss
from surefoot.algorithm.returns import gae, normalize_advantage
from surefoot.networks.config import ActorConfig, CriticConfig

NUM_ENVS, NUM_STEPS, EPOCHS, MINI_BATCHES, GAMMA, LAM, CLIP = 4, 256, 10, 16, 0.9, 0.95, 0.2
torch.manual_seed(1)
env = surefoot.make("Pendulum-v1", num_envs=NUM_ENVS, seed=1)
spec = surefoot.EnvSpec(env.observation_spaces, env.action_space, NUM_ENVS)
policy = surefoot.ActorCritic(spec, ActorConfig(hidden_dims=[64, 64]), CriticConfig(hidden_dims=[64, 64]))
old_policy = copy.deepcopy(policy)
optimizer = torch.optim.Adam(policy.parameters(), lr=5e-4)
obs = env.reset(seed=1)

for iteration in range(int(sys.argv[1]) if len(sys.argv) > 1 else 60):
    # 1. Collect with the old policy.
    rows = []
    with torch.no_grad():
        for _ in range(NUM_STEPS):
            distribution = old_policy.action_distribution(old_policy.inputs(obs))
            a = distribution.sample()
            step = env.step(old_policy.to_env(a))
            final_value = old_policy.value(step.final_observations or step.observations)
            ends = (step.terminated, step.truncated, final_value)
            rows.append((obs["policy"], a, distribution.log_prob(a), step.rewards / 10, *ends))
            obs = step.observations
        states, actions, log_prob, rewards, *ends = map(torch.stack, zip(*rows, strict=True))

        # 2. Advantages and returns.
        values = old_policy.value({"policy": torch.cat([states, obs["policy"][None]])})
        advantages, returns = gae(rewards, values, *ends, GAMMA, LAM)
        advantages, _ = normalize_advantage(advantages)

    data = [x.flatten(0, 1) for x in (states, actions, log_prob, advantages, returns)]
    for _ in range(EPOCHS):
        for batch in torch.randperm(NUM_ENVS * NUM_STEPS).chunk(MINI_BATCHES):
            s, a, old, advantage, target = (x[batch] for x in data)
            out = policy({"policy": s}, a)
            # 3. Policy: the clipped surrogate.  4. Value: the squared error.
            policy_loss = clipped_surrogate((out.log_prob - old).exp(), advantage, CLIP).mean()
            value_loss = mse_value_loss(out.value, target).mean()
            optimizer.zero_grad()
            (policy_loss + value_loss).backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimizer.step()

    # 5. Synchronise: the new policy collects the next rollout.
    old_policy.load_state_dict(policy.state_dict())
    kl = (old - out.log_prob).mean()
    print(f"{iteration:3d}  return {2000 * rewards.mean():7.1f}  value loss {value_loss:6.3f}", end="  ")
    print(f"policy loss {policy_loss:6.3f}  approximate KL {kl:.4f}")
