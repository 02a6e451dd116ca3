"""Tasks that need memory: the velocities are hidden, so that one observation does not tell where it goes.

    python examples/hidden_velocity.py [ITERATIONS]

or, in this folder:

    surefoot train hidden_velocity:cartpole --set actor.rnn_type=gru --set critic.rnn_type=gru
"""

import sys
from typing import Any

import gymnasium
import numpy as np

import surefoot


def only(env: gymnasium.Env[Any, Any], kept: list[int]) -> gymnasium.Env[Any, Any]:
    """`env` with these entries of its observation alone."""
    space = env.observation_space
    assert isinstance(space, gymnasium.spaces.Box)
    kept_space = gymnasium.spaces.Box(space.low[kept], space.high[kept], dtype=np.float32)
    return gymnasium.wrappers.TransformObservation(env, lambda obs: obs[kept], kept_space)


def cartpole() -> gymnasium.Env[Any, Any]:
    """CartPole-v1 from position and angle."""
    return only(gymnasium.make("CartPole-v1"), [0, 2])


def told_pendulum() -> gymnasium.Env[Any, Any]:
    """The same, with the velocity in the group `privileged`, for a critic or an estimator."""
    box = gymnasium.spaces.Box
    space = gymnasium.spaces.Dict({"policy": box(-1.0, 1.0, (2,)), "privileged": box(-8.0, 8.0, (1,))})
    split = gymnasium.wrappers.TransformObservation
    return split(gymnasium.make("Pendulum-v1"), lambda x: {"policy": x[:2], "privileged": x[2:]}, space)


def pendulum() -> gymnasium.Env[Any, Any]:
    """Pendulum-v1 from the angle's cosine and sine."""
    return only(gymnasium.make("Pendulum-v1"), [0, 1])


if __name__ == "__main__":
    network = {"hidden_dims": [64, 64], "activation": "tanh", "obs_normalization": True, "rnn_type": "gru"}
    config = {
        "num_steps_per_env": 256,
        "max_iterations": 500,
        "actor": network,
        "critic": network,
        "algorithm": {"learning_rate": 3e-4, "schedule": "fixed", "mini_batch_size": 64},
    }
    env = surefoot.make("hidden_velocity:cartpole", num_envs=8, seed=1)
    runner = surefoot.OnPolicyRunner(env, config)
    runner.learn(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
    print(f"mean episode length {runner.metrics['Train/mean_episode_length']:.0f} of 500")
