"""Environments and configurations as RSL-RL's clients have them, each with the habits of its kind.

One toy behind all: a point that is to be pushed to the origin; it is lost where it drifts too far.
"""

from __future__ import annotations

from dataclasses import MISSING, asdict, dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

NUM_ENVS, NUM_ACTIONS, NUM_OBS, NUM_PRIVILEGED = 6, 2, 4, 5
MAX_LENGTH = 7


class Points:
    """Position [N, 2] and velocity [N, 2] under actions [N, 2]; the noise has a generator of its own."""

    def __init__(self, num_envs: int = NUM_ENVS, seed: int = 0) -> None:
        self.num_envs = num_envs
        self.generator = torch.Generator().manual_seed(seed)
        self.state = torch.zeros(num_envs, 4)
        self.length = torch.zeros(num_envs, dtype=torch.int64)
        self.restart(torch.ones(num_envs, dtype=torch.bool))

    def restart(self, rows: Tensor) -> None:
        fresh = torch.rand(self.num_envs, 4, generator=self.generator) * 2 - 1
        self.state = torch.where(rows.unsqueeze(1), fresh, self.state)
        self.length = torch.where(rows, 0, self.length)

    def push(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Observations before any restart, rewards, terminated, truncated. What has ended restarts."""
        velocity = 0.8 * self.state[:, 2:] + 0.1 * actions.clamp(-1, 1)
        self.state = torch.cat([self.state[:, :2] + velocity, velocity], 1)
        self.length = self.length + 1
        final, reward = self.state.clone(), -self.state[:, :2].square().sum(1)
        terminated = self.state[:, :2].abs().amax(1) > 1.5
        truncated = (self.length >= MAX_LENGTH) & ~terminated
        self.restart(terminated | truncated)
        return final, reward, terminated, truncated

    @property
    def privileged(self) -> Tensor:
        """[N, 5]"""
        return torch.cat([self.state, self.length.unsqueeze(1) / MAX_LENGTH], 1)


PPO = {
    "class_name": "PPO",
    "value_loss_coef": 1.0,
    "use_clipped_value_loss": True,
    "clip_param": 0.2,
    "entropy_coef": 0.01,
    "num_learning_epochs": 2,
    "num_mini_batches": 2,
    "learning_rate": 1e-3,
    "schedule": "adaptive",
    "gamma": 0.99,
    "lam": 0.95,
    "desired_kl": 0.01,
    "max_grad_norm": 1.0,
}
STEPS = 8

# ------------------------------------------------------------------ legged_gym, unitree_rl_gym (1.0.2)


def legged_gym_env(privileged: bool = False, five_values: bool = True) -> Any:
    from rsl_rl.env import VecEnv  # noqa: F401 - the client imports it, and does not subclass it

    class LeggedRobot:
        num_obs = NUM_OBS
        num_actions = NUM_ACTIONS
        num_privileged_obs = NUM_PRIVILEGED if privileged else None
        max_episode_length = MAX_LENGTH

        def __init__(self) -> None:
            self.points = Points()
            self.num_envs, self.device = NUM_ENVS, "cpu"
            self.obs_buf = torch.zeros(NUM_ENVS, NUM_OBS)  # nothing before the runner has called reset()
            self.rew_buf = torch.zeros(NUM_ENVS)
            self.extras: dict[str, Any] = {}
            self.num_resets = 0

        @property
        def episode_length_buf(self) -> Tensor:
            return self.points.length

        @episode_length_buf.setter
        def episode_length_buf(self, lengths: Tensor) -> None:
            self.points.length = lengths

        def reset(self) -> tuple[Tensor, Tensor | None]:
            self.num_resets += 1
            self.points.restart(torch.ones(NUM_ENVS, dtype=torch.bool))
            self.obs_buf[:] = self.points.state
            return self.obs_buf, self.get_privileged_observations()

        def get_observations(self) -> Tensor:
            return self.obs_buf

        def get_privileged_observations(self) -> Tensor | None:
            return self.points.privileged if privileged else None

        def step(self, actions: Tensor) -> tuple[Any, ...]:
            _, reward, terminated, truncated = self.points.push(actions)
            self.obs_buf[:], self.rew_buf[:] = self.points.state, reward
            self.extras["time_outs"] = truncated
            self.extras["episode"] = {"rew_tracking": reward.mean()}
            dones = (terminated | truncated).to(torch.int64)
            values = self.obs_buf, self.get_privileged_observations(), self.rew_buf, dones, self.extras
            return values if five_values else (self.obs_buf, *values[2:])

    return LeggedRobot()


def legged_gym_cfg(policy_class: str = "ActorCritic") -> dict[str, Any]:
    policy: dict[str, Any] = {
        "init_noise_std": 1.0,
        "actor_hidden_dims": [16, 8],
        "critic_hidden_dims": [16, 8],
        "activation": "elu",
    }
    if policy_class == "ActorCriticRecurrent":
        policy |= {"rnn_type": "lstm", "rnn_hidden_size": 8, "rnn_num_layers": 1}
    return {
        "seed": 1,
        "runner_class_name": "OnPolicyRunner",
        "policy": policy,
        "algorithm": {key: value for key, value in PPO.items() if key != "class_name"},
        "runner": {
            "policy_class_name": policy_class,
            "algorithm_class_name": "PPO",
            "num_steps_per_env": STEPS,
            "max_iterations": 2,
            "save_interval": 50,
            "experiment_name": "rough",
            "run_name": "",
            "resume": False,
            "load_run": -1,
            "checkpoint": -1,
            "resume_path": None,
        },
    }


# ------------------------------------------------------------------ 2.x: (obs, extras)


def extras_env() -> Any:
    class Env:
        num_envs, num_actions, max_episode_length, device = NUM_ENVS, NUM_ACTIONS, MAX_LENGTH, "cpu"

        def __init__(self) -> None:
            self.points = Points()
            self.episode_length_buf = torch.zeros(NUM_ENVS, dtype=torch.int64)

        def _extras(self) -> dict[str, Any]:
            return {"observations": {"critic": self.points.privileged}}

        def reset(self) -> tuple[Tensor, dict[str, Any]]:
            self.points.restart(torch.ones(NUM_ENVS, dtype=torch.bool))
            return self.get_observations()

        def get_observations(self) -> tuple[Tensor, dict[str, Any]]:
            return self.points.state, self._extras()

        def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
            _, reward, terminated, truncated = self.points.push(actions)
            extras = {**self._extras(), "time_outs": truncated.unsqueeze(1), "log": {"/pos": 0.5}}
            return self.points.state, reward.unsqueeze(1), (terminated | truncated).unsqueeze(1), extras

    return Env()


def extras_cfg() -> dict[str, Any]:
    return {
        "num_steps_per_env": STEPS,
        "save_interval": 50,
        "empirical_normalization": True,
        "policy": {
            "class_name": "ActorCritic",
            "init_noise_std": 1.0,
            "noise_std_type": "log",
            "actor_hidden_dims": [16, 8],
            "critic_hidden_dims": [16, 8],
            "activation": "elu",
        },
        "algorithm": dict(PPO),
    }


# ------------------------------------------------------------------ MuJoCo Playground (3.x)


def playground_env(with_device: bool = False) -> Any:
    from rsl_rl.env import VecEnv

    class RSLRLBraxWrapper(VecEnv):
        def __init__(self) -> None:
            self.points = Points()
            self.num_envs, self.num_actions = NUM_ENVS, NUM_ACTIONS
            self.max_episode_length = MAX_LENGTH
            self.num_resets = 0
            if with_device:
                self.device = "cpu"

        def _observations(self) -> TensorDict:
            groups = {"state": self.points.state, "privileged_state": self.points.privileged}
            return TensorDict(groups, batch_size=[NUM_ENVS])

        def reset(self) -> TensorDict:
            self.num_resets += 1
            self.points.restart(torch.ones(NUM_ENVS, dtype=torch.bool))
            return self._observations()

        def get_observations(self) -> TensorDict:
            return self.reset()

        def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
            _, reward, terminated, truncated = self.points.push(torch.clip(actions, -1.0, 1.0))
            extras: dict[str, Any] = {
                "time_outs": truncated.float(),
                "observations": {"critic": None},
                "log": {"reward_tracking": 0.25},
            }
            return self._observations(), reward, (terminated | truncated).float(), extras

    return RSLRLBraxWrapper()


def playground_cfg() -> dict[str, Any]:
    return {
        "seed": 1,
        "runner_class_name": "OnPolicyRunner",
        "policy": {
            "class_name": "ActorCritic",
            "init_noise_std": 1.0,
            "actor_hidden_dims": [16, 8],
            "critic_hidden_dims": [16, 8],
            "activation": "elu",
        },
        "algorithm": {**PPO, "schedule": "fixed", "learning_rate": 3e-4, "entropy_coef": 0.001},
        "num_steps_per_env": STEPS,
        "max_iterations": 2,
        "empirical_normalization": True,
        "save_interval": 50,
        "experiment_name": "test",
        "run_name": "",
        "resume": False,
        "load_run": "-1",
        "checkpoint": -1,
        "resume_path": None,
        "obs_groups": {"policy": ["state"], "critic": ["privileged_state"]},
    }


# ------------------------------------------------------------------ Genesis (5.x)


def genesis_env() -> Any:
    class Go2Env:
        """No VecEnv; everything it returns is a buffer that the next step overwrites."""

        def __init__(self) -> None:
            self.points = Points()
            self.num_envs, self.num_actions, self.cfg = NUM_ENVS, NUM_ACTIONS, {"num_actions": NUM_ACTIONS}
            self.device = torch.device("cpu")
            self.max_episode_length = MAX_LENGTH
            self.obs_buf = torch.zeros(NUM_ENVS, NUM_OBS)
            self.rew_buf = torch.zeros(NUM_ENVS)
            self.reset_buf = torch.ones(NUM_ENVS, dtype=torch.bool)
            self.episode_length_buf = torch.zeros(NUM_ENVS, dtype=torch.int32)
            self.extras: dict[str, Any] = {}
            self.reset()

        def get_observations(self) -> TensorDict:
            return TensorDict({"policy": self.obs_buf}, batch_size=[NUM_ENVS])

        def reset(self) -> TensorDict:
            self.points.restart(torch.ones(NUM_ENVS, dtype=torch.bool))
            self.obs_buf[:] = self.points.state
            return self.get_observations()

        def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
            self.points.length = self.episode_length_buf.long()
            _, reward, terminated, truncated = self.points.push(actions)
            self.episode_length_buf[:] = self.points.length
            self.obs_buf[:], self.rew_buf[:] = self.points.state, reward
            self.reset_buf[:] = terminated | truncated
            self.extras["time_outs"] = truncated.float()
            self.extras["episode"] = {"rew_tracking_lin_vel": 0.5}
            return self.get_observations(), self.rew_buf, self.reset_buf, self.extras

    return Go2Env()


def genesis_cfg() -> dict[str, Any]:
    return {
        "algorithm": dict(PPO),
        "actor": {
            "class_name": "MLPModel",
            "hidden_dims": [16, 8],
            "activation": "elu",
            "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 1.0, "std_type": "scalar"},
        },
        "critic": {"class_name": "MLPModel", "hidden_dims": [16, 8], "activation": "elu"},
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "num_steps_per_env": STEPS,
        "save_interval": 100,
        "run_name": "go2-walking",
        "logger": "tensorboard",
    }


# ------------------------------------------------------------------ Isaac Lab (5.x)


class ManagerBasedRLEnv:
    """What the wrapper of Isaac Lab wraps: its observations are computed anew, with noise, when asked for."""

    def __init__(self) -> None:
        self.points = Points()
        self.num_envs, self.device, self.step_dt = NUM_ENVS, "cpu", 0.02
        self.max_episode_length = MAX_LENGTH
        self.cfg = SimpleNamespace(is_finite_horizon=False, to_dict=lambda: {"is_finite_horizon": False})
        self.render_mode = None
        self.noise = torch.Generator().manual_seed(1)

    @property
    def unwrapped(self) -> ManagerBasedRLEnv:
        return self

    def compute(self) -> dict[str, Tensor]:
        noise = 0.01 * torch.randn(NUM_ENVS, NUM_OBS, generator=self.noise)
        return {"policy": self.points.state + noise, "critic": self.points.privileged}

    def reset(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        self.points.restart(torch.ones(NUM_ENVS, dtype=torch.bool))
        return self.compute(), {}

    def step(self, actions: Tensor) -> tuple[Any, ...]:
        _, reward, terminated, truncated = self.points.push(actions)
        log = {"Episode_Reward/tracking": reward.mean(), "Curriculum/terrain_levels": 1.5}
        return self.compute(), reward, terminated, truncated, {"log": log}


def isaac_lab_env() -> Any:
    from rsl_rl.env import VecEnv

    class RslRlVecEnvWrapper(VecEnv):
        def __init__(self, env: ManagerBasedRLEnv, clip_actions: float | None = None) -> None:
            self.env, self.clip_actions = env, clip_actions
            self.num_envs, self.device = env.num_envs, env.device
            self.max_episode_length, self.num_actions = env.max_episode_length, NUM_ACTIONS
            env.reset()

        @property
        def cfg(self) -> object:
            return self.unwrapped.cfg

        @property
        def unwrapped(self) -> ManagerBasedRLEnv:
            return self.env.unwrapped

        @property
        def episode_length_buf(self) -> Tensor:
            return self.unwrapped.points.length

        @episode_length_buf.setter
        def episode_length_buf(self, value: Tensor) -> None:
            self.unwrapped.points.length = value

        def reset(self) -> tuple[TensorDict, dict[str, Any]]:
            observations, extras = self.env.reset()
            return TensorDict(observations, batch_size=[self.num_envs]), extras

        def get_observations(self) -> TensorDict:
            return TensorDict(self.unwrapped.compute(), batch_size=[self.num_envs])

        def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
            if self.clip_actions is not None:
                actions = torch.clamp(actions, -self.clip_actions, self.clip_actions)
            observations, reward, terminated, truncated, extras = self.env.step(actions)
            if not self.unwrapped.cfg.is_finite_horizon:
                extras["time_outs"] = truncated
            dones = (terminated | truncated).to(dtype=torch.long)
            return TensorDict(observations, batch_size=[self.num_envs]), reward, dones, extras

    return RslRlVecEnvWrapper(ManagerBasedRLEnv(), clip_actions=100.0)


def isaac_lab_cfg() -> dict[str, Any]:
    """As `RslRlOnPolicyRunnerCfg.to_dict()` gives it: what was deprecated is there, as MISSING."""
    return {
        "seed": 42,
        "device": "cpu",
        "num_steps_per_env": STEPS,
        "max_iterations": 2,
        "empirical_normalization": MISSING,
        "obs_groups": {"actor": ["policy"], "critic": ["critic"]},
        "clip_actions": None,
        "check_for_nan": True,
        "save_interval": 50,
        "experiment_name": "anymal_d_flat",
        "run_name": "",
        "logger": "tensorboard",
        "neptune_project": "isaaclab",
        "wandb_project": "isaaclab",
        "resume": False,
        "load_run": ".*",
        "load_checkpoint": "model_.*.pt",
        "class_name": "OnPolicyRunner",
        "policy": MISSING,
        "actor": {
            "class_name": "MLPModel",
            "hidden_dims": [16, 8],
            "activation": "elu",
            "obs_normalization": True,
            "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 1.0, "std_type": "scalar"},
            "stochastic": MISSING,
            "init_noise_std": MISSING,
            "noise_std_type": MISSING,
            "state_dependent_std": MISSING,
        },
        "critic": {
            "class_name": "MLPModel",
            "hidden_dims": [16, 8],
            "activation": "elu",
            "obs_normalization": True,
            "distribution_cfg": None,
        },
        "algorithm": {
            **PPO,
            "optimizer": "adam",
            "normalize_advantage_per_mini_batch": False,
            "share_cnn_encoders": False,
            "rnd_cfg": None,
            "symmetry_cfg": None,
        },
    }


# ------------------------------------------------------------------ mjlab (5.4)


@dataclass
class RslRlModelCfg:
    class_name: str = "MLPModel"
    hidden_dims: tuple[int, ...] = (16, 8)
    activation: str = "elu"
    obs_normalization: bool = True
    cnn_cfg: dict[str, Any] | None = None
    rnn_type: str | None = None
    distribution_cfg: dict[str, Any] | None = None


@dataclass
class RslRlOnPolicyRunnerCfg:
    seed: int = 42
    num_steps_per_env: int = STEPS
    max_iterations: int = 2
    obs_groups: dict[str, tuple[str, ...]] = field(
        default_factory=lambda: {"actor": ("actor",), "critic": ("critic",)}
    )
    save_interval: int = 1
    experiment_name: str = "exp1"
    run_name: str = ""
    logger: str = "tensorboard"
    wandb_project: str = "mjlab"
    upload_model: bool = True
    resume: bool = False
    actor: RslRlModelCfg = field(
        default_factory=lambda: RslRlModelCfg(
            distribution_cfg={"class_name": "GaussianDistribution", "init_std": 1.0, "std_type": "scalar"}
        )
    )
    critic: RslRlModelCfg = field(default_factory=RslRlModelCfg)
    algorithm: dict[str, Any] = field(default_factory=lambda: {**PPO, "share_cnn_encoders": False})


def mjlab_cfg() -> dict[str, Any]:
    return asdict(RslRlOnPolicyRunnerCfg())


def mjlab_env() -> Any:
    from rsl_rl.env import VecEnv

    class RslRlVecEnvWrapper(VecEnv):
        def __init__(self) -> None:
            self.unwrapped = SimpleNamespace(common_step_counter=0, points=Points(), step_dt=0.02)
            self.num_envs, self.num_actions, self.device = NUM_ENVS, NUM_ACTIONS, "cpu"
            self.max_episode_length = MAX_LENGTH
            self.cfg = SimpleNamespace(decimation=4)

        @property
        def episode_length_buf(self) -> Tensor:
            return self.unwrapped.points.length

        @episode_length_buf.setter
        def episode_length_buf(self, value: Tensor) -> None:
            self.unwrapped.points.length = value

        def get_observations(self) -> TensorDict:
            points = self.unwrapped.points
            return TensorDict({"actor": points.state, "critic": points.privileged}, batch_size=[NUM_ENVS])

        def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
            _, reward, terminated, truncated = self.unwrapped.points.push(actions)
            self.unwrapped.common_step_counter += 1
            extras: dict[str, Any] = {
                "time_outs": truncated,
                "log": {"Episode_Reward/upright": reward.mean()},
            }
            return self.get_observations(), reward, (terminated | truncated).long(), extras

    return RslRlVecEnvWrapper()


def mjlab_runner() -> Any:
    """A runner as mjlab's: it overrides saving, loading and exporting, and reads what they are made of."""
    from rsl_rl.env.vec_env import VecEnv
    from rsl_rl.runners import OnPolicyRunner

    class MjlabOnPolicyRunner(OnPolicyRunner):
        env: VecEnv

        def __init__(
            self, env: VecEnv, train_cfg: dict[str, Any], log_dir: Any = None, device: str = "cpu"
        ) -> None:
            for key in ("actor", "critic"):
                for option in ("cnn_cfg", "rnn_type"):
                    if train_cfg[key].get(option, "") is None:
                        train_cfg[key].pop(option)
            super().__init__(env, train_cfg, log_dir, device)
            self.exported: list[str] = []

        def export_policy_to_onnx(
            self, path: Any, filename: str = "policy.onnx", verbose: bool = False
        ) -> None:
            model = self.alg.get_policy().as_onnx(verbose=verbose)
            model.to("cpu")
            model.eval()
            assert model.input_size == NUM_OBS
            assert [x.shape for x in model.get_dummy_inputs()] == [(1, NUM_OBS)]
            assert (model.input_names, model.output_names) == (["obs"], ["actions"])
            self.exported.append(filename)

        def save(self, path: str, infos: dict[str, Any] | None = None) -> None:
            state = {"env_state": {"common_step_counter": self.env.unwrapped.common_step_counter}}
            saved = self.alg.save()
            saved["iter"] = self.current_learning_iteration
            saved["infos"] = {**(infos or {}), **state}
            torch.save(saved, path)
            if self.cfg["upload_model"]:
                self.logger.save_model(path, self.current_learning_iteration)
            assert self.logger.logger_type not in ("wandb", "WandbLogWriter")
            self.export_policy_to_onnx(path)

        def load(self, path: str, load_cfg: Any = None, strict: bool = True, map_location: Any = None) -> Any:
            loaded = torch.load(path, map_location=map_location, weights_only=False)
            if self.alg.load(loaded, load_cfg, strict):
                self.current_learning_iteration = loaded["iter"]
            infos = loaded["infos"]
            self.env.unwrapped.common_step_counter = infos["env_state"]["common_step_counter"]
            return infos

    return MjlabOnPolicyRunner
