"""Random observation dropout: sensors that fail now and then should not confuse the policy.

    python examples/observation_dropout.py [ITERATIONS]

Each mini-batch gets copies of some of its rows with numbers of the observation set to zero.
"""

import sys

import torch

import surefoot


class ObservationDropout(surefoot.Extension):
    """Copies of a share of the rows; each number of their observations is zero with probability `rate`."""

    def __init__(self, group: str = "policy", share: float = 0.5, rate: float = 0.1) -> None:
        super().__init__()
        self.group, self.share, self.rate = group, share, rate

    def setup(self, spec, policy):
        self.generator = spec.generator

    def observation_groups(self):
        return (self.group,)

    def augment(self, batch, policy):
        # rows, or sequences of a recurrent policy, are in random order: the first of them are any of them
        source = torch.arange(int(self.share * batch.num_sampled), device=batch.index.device)
        dim = batch.index.dim() - 1
        obs = batch.observations[self.group].index_select(dim, source)
        kept = torch.rand(obs.shape, generator=self.generator, device=obs.device) >= self.rate
        return batch.append({self.group: obs * kept}, batch.actions.index_select(dim, source), source)


if __name__ == "__main__":
    network = {"hidden_dims": [64, 64], "activation": "tanh", "obs_normalization": True}
    config = {
        "num_steps_per_env": 256,
        "actor": network,
        "critic": network,
        "algorithm": {"mini_batch_size": 256, "learning_rate": 1e-3, "schedule": "fixed"},
        "extensions": [{"class_name": "observation_dropout:ObservationDropout", "rate": 0.1}],
    }
    runner = surefoot.OnPolicyRunner(surefoot.make("CartPole-v1", num_envs=8, seed=1), config)
    runner.learn(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
    print(f"mean episode length {runner.metrics['Train/mean_episode_length']:.0f} of 500")
