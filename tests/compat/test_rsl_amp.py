"""PPOAMP as RSL-RL's forks have it: what its keys mean, whose windows are judged, and that it learns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("tensordict")

from tensordict import TensorDict

from surefoot.compat.rsl_rl.algorithms import PPOAMP
from surefoot.compat.rsl_rl.algorithms.ppo_amp import ShownAMP, translate
from surefoot.compat.rsl_rl.runners import AMPRunner
from surefoot.config import SurefootWarning
from surefoot.errors import ConfigError
from surefoot.extensions.amp.amp import AMP

N, T, K = 8, 6, 2
SIZES = {"num_frames": K, "step_dt": 0.5, "num_envs": N, "num_steps": T}


class Env:
    """The robot is where its last action put it, the motion is at 0.7, and the task wants nothing."""

    num_actions, max_episode_length, device, step_dt = 1, 5, "cpu", 0.5

    def __init__(self, num_envs: int = N, shows_ends: bool = True, start: float = -9.0) -> None:
        self.num_envs, self.shows_ends, self.start = num_envs, shows_ends, start
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long)
        self.history = torch.zeros(num_envs, K, 1)

    def get_observations(self) -> TensorDict:
        motion = 0.7 + 0.05 * torch.randn(self.num_envs, K, 1)
        groups = {"policy": self.history[:, -1], "frames": self.history, "motion": motion}
        return TensorDict({g: x.clone() for g, x in groups.items()}, batch_size=[self.num_envs])

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        self.history = torch.cat([self.history[:, 1:], actions.unsqueeze(1)], 1)
        self.episode_length_buf += 1
        ended = self.episode_length_buf >= 5
        extras: dict[str, Any] = {"time_outs": ended}
        if self.shows_ends:
            final = self.get_observations()
            extras["terminal_obs"] = {"policy": final["policy"], "frames": final["frames"]}
        self.history = torch.where(ended[:, None, None], self.start, self.history)
        self.episode_length_buf[ended] = 0
        return self.get_observations(), torch.zeros(self.num_envs), ended.long(), extras


def config(num_steps: int = T, discriminator: dict[str, Any] | None = None, **amp_cfg: Any) -> dict[str, Any]:
    amp_cfg = {"amp_discriminator": {"hidden_dims": [8], **(discriminator or {})}, **amp_cfg}
    return {
        "num_steps_per_env": num_steps,
        "save_interval": 100,
        "obs_groups": {
            "actor": ["policy"],
            "critic": ["policy"],
            "discriminator": ["frames"],
            "discriminator_demonstration": ["motion"],
        },
        "algorithm": {"class_name": "PPOAMP", "amp_cfg": amp_cfg, "num_mini_batches": 2},
        "actor": {
            "class_name": "MLPModel",
            "hidden_dims": [8],
            "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 0.5},
        },
        "critic": {"class_name": "MLPModel", "hidden_dims": [8]},
    }


def collect(runner: AMPRunner, env: Env) -> None:
    obs = env.get_observations()
    for _ in range(T):
        actions = runner.alg.act(obs)
        obs, rewards, dones, extras = env.step(actions)
        runner.alg.process_env_step(obs, rewards, dones, extras)
    runner.alg.compute_returns(obs)


# ---------------------------------------------------------------------- what the keys mean


def test_the_keys_of_forks_mean_what_they_mean_there() -> None:
    amp_cfg = {
        "loss_type": "GAN",
        "disc_obs_buffer_size": 4 * T,
        "grad_penalty_scale": 5.0,
        "disc_learning_rate": 3e-4,
        "disc_trunk_weight_decay": 1e-3,
        "disc_linear_weight_decay": 1e-1,
        "disc_max_grad_norm": 0.5,
        "disc_update_interval": 2,
        "amp_discriminator": {
            "hidden_dims": [16, 8],
            "activation": "elu",
            "style_reward_scale": 3.0,
            "task_style_lerp": 0.3,
        },
    }
    made = translate(amp_cfg, **SIZES)
    assert (made.loss_type, made.hidden_dims, made.activation) == ("bce", [16, 8], "elu")
    assert (made.grad_penalty_scale, made.disc_learning_rate, made.disc_update_interval) == (5.0, 3e-4, 2)
    assert (made.disc_trunk_weight_decay, made.disc_linear_weight_decay, made.disc_max_grad_norm) == (
        1e-3,
        1e-1,
        0.5,
    )
    # per second there, of steps of half a second; the share of the task there, of the style here
    assert made.style_reward_scale == 1.5
    assert made.style_weight == pytest.approx(0.7)
    # of four rollouts that are kept, three are old ones, drawn as often as the newest
    assert (made.replay_size, made.replay_share, made.replay_iterations) == (3 * T * N, 0.75, 3)


@pytest.mark.parametrize(("theirs", "ours"), [("LSGAN", "lsgan"), ("WGAN", "wgan")])
def test_losses_have_their_names(theirs: str, ours: str) -> None:
    assert translate({"loss_type": theirs}, **SIZES).loss_type == ours


def test_without_a_larger_buffer_there_is_no_replay() -> None:
    assert translate({"disc_obs_buffer_size": None}, **SIZES).replay_size == 0
    assert translate({"disc_obs_buffer_size": 1}, **SIZES).replay_share == 0


@pytest.mark.parametrize(
    ("amp_cfg", "message"),
    [
        ({"grad_penalty": 1.0}, r"unknown key 'amp_cfg.grad_penalty'.*Did you mean 'grad_penalty_scale'"),
        (
            {"amp_discriminator": {"task_lerp": 1.0}},
            r"'amp_cfg.amp_discriminator.task_lerp'.*'task_style_lerp'",
        ),
        ({"loss_type": "lsgan"}, "expected one of GAN, LSGAN, WGAN"),
        ({"amp_discriminator": {"task_style_lerp": 2.0}}, "style_weight"),
    ],
)
def test_what_cannot_be_used_is_named(amp_cfg: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        translate(amp_cfg, **SIZES)


def test_surefoots_own_keys_are_taken_too() -> None:
    cfg = config()
    cfg["algorithm"]["amp_cfg"] = {
        "dataset": "test_rsl_amp:clips",
        "obs_group": "policy",
        "hidden_dims": [8],
        "replay_size": 0,
    }
    env = Env()
    runner = AMPRunner(env, cfg, None, "cpu")
    assert type(runner.alg.amp) is AMP
    collect(runner, env)
    assert "Reward/style" in runner.alg.update()


def clips(step_dt: float | None) -> list[tuple[Tensor, float]]:
    assert step_dt is None
    return [(torch.randn(20, 1), 1.0)]


# ---------------------------------------------------------------------- whose windows are judged


def test_the_style_reward_is_the_discriminators_of_the_window_before_the_reset() -> None:
    env = Env()
    runner = AMPRunner(
        env, config(discriminator={"style_reward_scale": 2.0, "task_style_lerp": 0.25}), None, "cpu"
    )
    alg = runner.alg
    obs, expected = env.get_observations(), []
    for _ in range(T):
        actions = alg.act(obs)
        before = env.history.clone()
        obs, rewards, dones, extras = env.step(actions)
        expected.append(torch.cat([before[:, 1:], actions.unsqueeze(1)], 1))
        alg.process_env_step(obs, rewards, dones, extras)
    alg.compute_returns(obs)
    windows = torch.stack(expected)
    assert torch.equal(alg.amp.windows, windows)
    with torch.no_grad():
        score = alg.amp.discriminator(alg.amp.normalizer(windows).flatten(2))
    style = (1 - 0.25 * (score.reshape(T, N) - 1).square()).clamp(min=0)
    # lerp 0.25, of a task of 0; 2 per second in steps of 0.5 s
    torch.testing.assert_close(alg.engine.reward, 0.75 * 2 * 0.5 * style)


def test_where_the_end_is_not_shown_the_row_gets_the_mean_and_teaches_nothing() -> None:
    env = Env(shows_ends=False)
    runner = AMPRunner(env, config(), None, "cpu")
    with pytest.warns(SurefootWarning, match="time limit"):
        collect(runner, env)
    amp = runner.alg.amp
    ended = torch.zeros(T, N, dtype=torch.bool)
    ended[4] = True
    assert torch.equal(amp.usable, ~ended)
    torch.testing.assert_close(amp.style[4], amp.mean_style.expand(N))


def test_motions_are_those_that_the_environment_showed() -> None:
    env = Env()
    runner = AMPRunner(env, config(disc_obs_buffer_size=2 * T), None, "cpu")
    for _ in range(3):
        collect(runner, env)
        runner.alg.update()
    demonstrations = runner.alg.amp.dataset
    assert (demonstrations.counts == 2 * T).all()
    drawn = demonstrations.sample(100)
    assert drawn.shape == (100, K, 1)
    assert ((drawn - 0.7).abs() < 0.5).all()


def test_groups_of_a_set_stand_side_by_side_and_default_to_the_sets_name() -> None:
    class Named(Env):
        def get_observations(self) -> TensorDict:
            obs = super().get_observations()
            renamed = {"policy": obs["policy"], "discriminator": obs["frames"], "half": obs["motion"]}
            return TensorDict(renamed, batch_size=[N])

    cfg = config()
    cfg["obs_groups"] = {"actor": ["policy"], "critic": ["policy"], "discriminator_demonstration": ["half"]}
    assert isinstance(AMPRunner(Named(), cfg, None, "cpu").alg.amp, ShownAMP)
    cfg["obs_groups"]["discriminator"] = ["discriminator", "half"]
    cfg["obs_groups"]["discriminator_demonstration"] = ["half", "half"]
    runner = AMPRunner(Named(), cfg, None, "cpu")
    assert runner.alg.amp.discriminator.trunk[0].in_features == 2 * K


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (
            {"discriminator": ["frames"]},
            r"needs the observation set 'discriminator_demonstration'.*'frames', 'motion'",
        ),
        (
            {"discriminator": ["policy"], "discriminator_demonstration": ["motion"]},
            r"'policy' of the set 'discriminator' has the shape \(1,\)",
        ),
        (
            {"discriminator": ["frames", "frames"], "discriminator_demonstration": ["motion"]},
            "2 frames of 2 features.*2 of 1",
        ),
    ],
)
def test_sets_that_do_not_fit_are_named(sets: dict[str, list[str]], message: str) -> None:
    cfg = config()
    cfg["obs_groups"] = {"actor": ["policy"], "critic": ["policy"], **sets}
    with pytest.raises(ConfigError, match=message):
        AMPRunner(Env(), cfg, None, "cpu")


def test_without_amp_cfg_it_is_ppo() -> None:
    cfg = config()
    cfg["algorithm"]["amp_cfg"] = None
    assert AMPRunner(Env(), cfg, None, "cpu").alg.amp is None


def test_without_the_sets_the_constructor_says_what_it_needs() -> None:
    runner = AMPRunner(Env(), config(), None, "cpu")
    with pytest.raises(ConfigError, match="amp_cfg needs obs_groups"):
        PPOAMP(runner.alg.actor, runner.alg.critic, runner.alg.storage, amp_cfg={})


# ---------------------------------------------------------------------- it learns


def test_the_policy_learns_the_motion_that_the_environment_shows() -> None:
    torch.manual_seed(0)
    env = Env(num_envs=32, start=0.0)
    amp_cfg = {"disc_learning_rate": 1e-2, "grad_penalty_scale": 0.1, "disc_obs_buffer_size": 24}
    cfg = config(12, **amp_cfg)
    cfg["algorithm"] |= {"entropy_coef": 0.0, "learning_rate": 3e-3, "schedule": "fixed"}
    runner = AMPRunner(env, cfg, None, "cpu")
    runner.learn(20)
    obs = env.get_observations()
    obs["policy"] = torch.linspace(0, 0.7, 32).unsqueeze(-1)
    assert (runner.get_inference_policy()(obs) - 0.7).abs().mean() < 0.2
