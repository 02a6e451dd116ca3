"""The keys of RSL-RL 5.5.1's configuration, and answers to one that it does not have.

Its classes take their configuration as keyword arguments; these are their names.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from surefoot.errors import UnknownKeyError

PPO: tuple[str, ...] = (
    "class_name",
    "num_learning_epochs",
    "num_mini_batches",
    "clip_param",
    "gamma",
    "lam",
    "value_loss_coef",
    "entropy_coef",
    "learning_rate",
    "max_grad_norm",
    "optimizer",
    "use_clipped_value_loss",
    "schedule",
    "desired_kl",
    "normalize_advantage_per_mini_batch",
    "use_mixed_precision",
    "rnd_cfg",
    "symmetry_cfg",
    "share_cnn_encoders",
    "grad_reduce_bucket_mb",
    # of forks, and ours
    "enable_aux_loss",
    "aux_loss_coef",
)
DISTILLATION: tuple[str, ...] = (
    "class_name",
    "num_learning_epochs",
    "gradient_length",
    "learning_rate",
    "max_grad_norm",
    "loss_type",
    "optimizer",
    "use_mixed_precision",
    "grad_reduce_bucket_mb",
)
ALGORITHMS = {"PPO": PPO, "PPOAMP": (*PPO, "amp_cfg"), "Distillation": DISTILLATION}

MLP: tuple[str, ...] = ("class_name", "hidden_dims", "activation", "obs_normalization", "distribution_cfg")
RNN = ("rnn_type", "rnn_hidden_dim", "rnn_num_layers")
CNN = ("cnn_cfg", "cnns")
MODELS = {"MLPModel": MLP, "RNNModel": (*MLP, *RNN), "CNNModel": (*MLP, *CNN)}

DISTRIBUTIONS = {
    "GaussianDistribution": ("class_name", "init_std", "std_range", "std_type", "learn_std"),
    "HeteroscedasticGaussianDistribution": ("class_name", "init_std", "std_range", "std_type"),
    "BetaDistribution": ("class_name", "action_range"),
}

SECTIONS = ("algorithm", "actor", "critic", "student", "teacher")
SETTINGS = (
    "num_steps_per_env",
    "save_interval",
    "obs_groups",
    "check_for_nan",
    "torch_compile_mode",
    "empirical_normalization",
)
"""What a runner itself reads besides the sections."""
TOP_LEVEL = (
    *SETTINGS,
    *SECTIONS,
    "policy",
    "runner",
    "run_name",
    "logger",
    "multi_gpu",
    # read by clients
    "seed",
    "device",
    "max_iterations",
    "experiment_name",
    "clip_actions",
    "class_name",
    "runner_class_name",
    "init_member_classes",
    "resume",
    "resume_path",
    "load_run",
    "load_checkpoint",
    "checkpoint",
    "log_interval",
    "record_interval",
    "wandb_project",
    "neptune_project",
    "upload_model",
    "num_envs",
)

NEAR = 0.85
"""Similarity, in [0, 1], above which an unknown key at the top level is taken for a slip of one of
`SETTINGS`: clients keep keys of their own there.
"""


def short_name(class_name: Any) -> str | None:
    """`PPO` for `"PPO"`, `"rsl_rl.algorithms:PPO"`, `"rsl_rl.algorithms.ppo.PPO"` or RSL-RL's class itself;
    None for a class from elsewhere.
    """
    if isinstance(class_name, str):
        module, _, name = class_name.replace(":", ".").rpartition(".")
    else:
        module, name = getattr(class_name, "__module__", ""), getattr(class_name, "__name__", "")
    is_ours = module in ("", "rsl_rl", "surefoot") or module.startswith(("rsl_rl.", "surefoot."))
    return name if is_ours else None


def check_keys(section: Mapping[str, Any], path: str, known: Iterable[str], of: str) -> None:
    """Refuse a key that the class `of` does not take.

    Raises:
        UnknownKeyError: Naming it, and the nearest one.
    """
    known = list(known)
    for key in section:
        if key not in known:
            raise UnknownKeyError(
                f"unknown key '{path}.{key}'.{nearest(key, known, path)} {of} takes: {_list(known)}."
            )


def check_top_level(config: Mapping[str, Any]) -> None:
    """Refuse a key of a section at the top level, and a slip of the pen; clients keep other keys there.

    Raises:
        UnknownKeyError: Naming it, and where it belongs.
    """
    homes = dict.fromkeys((*PPO, *DISTILLATION), "algorithm") | dict.fromkeys(MLP, "actor")
    for key in config:
        if key in TOP_LEVEL or not isinstance(key, str):
            continue
        home = homes.get(key)
        if home is not None and home in config and key not in config[home]:
            raise UnknownKeyError(f"unknown key '{key}' at the top level: it belongs at '{home}.{key}'.")
        slip = difflib.get_close_matches(key, [k for k in SETTINGS if k not in config], n=1, cutoff=NEAR)
        if slip:
            raise UnknownKeyError(f"unknown key '{key}' at the top level. Did you mean '{slip[0]}'?")


def nearest(key: str, known: Iterable[str], path: str) -> str:
    """` Did you mean 'algorithm.clip_param'?`, or nothing."""
    near = difflib.get_close_matches(key, list(known), n=1)
    return f" Did you mean '{path}.{near[0]}'?" if near else ""


def _list(names: Iterable[str]) -> str:
    return ", ".join(name for name in names if name != "class_name")
