"""RSL-RL 5.5.1's configuration as Surefoot's own: same run, our keys, and a line for what is not the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, get_args

from surefoot.algorithm.config import PPOConfig
from surefoot.config.loading import to_dict
from surefoot.config.rsl_rl import known
from surefoot.config.rsl_rl.generations import modernize
from surefoot.config.schema import TrainConfig
from surefoot.errors import ConfigError
from surefoot.networks.config import Activation, ActorConfig, CriticConfig

Section = dict[str, Any]

_THEIRS = ("policy", "runner", "student", "teacher", "empirical_normalization")
"""Keys at the top level that only RSL-RL has."""
_ACTIVATIONS = {"lrelu": "leaky_relu", "swish": "silu"}
_PPO_DEFAULTS = {"entropy_coef": 0.01}
"""Of RSL-RL's PPO, where they differ from ours."""
_HIDDEN_DIMS = [256, 256, 256]
_STD_RANGE = (1e-6, 1e6)
_RUN_THE_SCRIPT = "run the script that it is for with `surefoot rsl-rl SCRIPT`"
_RESUMING = ("resume", "load_run", "load_checkpoint", "checkpoint", "resume_path")
_SILENT = (
    *_RESUMING,
    "class_name",
    "runner_class_name",
    "init_member_classes",
    "multi_gpu",
    "log_interval",
    "record_interval",
    "student",
    "teacher",
)
"""Keys that say nothing about how a run learns."""


def is_rsl_rl(values: Mapping[str, Any]) -> bool:
    """Whether a configuration file is in the form of some generation of RSL-RL, not in ours."""
    if any(key in values for key in _THEIRS):
        return True
    models = [values[name] for name in ("actor", "critic") if isinstance(values.get(name), Mapping)]
    return any(
        known.short_name(m.get("class_name")) in known.MODELS or "distribution_cfg" in m for m in models
    )


def from_rsl_rl(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A configuration of any generation of RSL-RL in our form, and one line for each thing that changed.

    The sections `actor`, `critic` and `algorithm` come in full, so that a task's preset does not change what
    the file says. The argument stays as it is.

    Raises:
        ConfigError: Something has no counterpart here without which the run would be another.
        UnknownKeyError: As for `modernize`.
    """
    modern, notes = modernize(values)
    native = to_native(modern, notes)
    return native, [note.replace("actor.distribution_cfg", "actor.distribution") for note in notes]


def to_native(modern: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """The form of RSL-RL 5.5.1 in ours; what changed is added to `notes`."""
    algorithm: Section = dict(modern.get("algorithm") or {"class_name": "PPO"})
    name = known.short_name(algorithm["class_name"])
    if name not in ("PPO", "PPOAMP"):
        raise ConfigError(
            f"algorithm.class_name {algorithm['class_name']!r} has no counterpart in a configuration file: "
            f"{_RUN_THE_SCRIPT}."
        )
    if "policy" in modern:
        raise ConfigError(
            f"policy.class_name {modern['policy']['class_name']!r} has no counterpart in a configuration "
            f"file: {_RUN_THE_SCRIPT}."
        )
    native = _top_level(modern, notes)
    groups = dict(modern.get("obs_groups") or {})
    chosen = {name: groups.pop(name) for name in ("actor", "critic") if name in groups}
    rnd_groups = groups.pop("rnd_state", None)
    if chosen:
        native["obs_groups"] = chosen
    notes.extend(f"obs_groups.{name} is not carried over: nothing here reads it" for name in groups)
    native["network"] = "separate"
    native["actor"] = _model(modern.get("actor") or {"class_name": "MLPModel"}, ActorConfig, "actor", notes)
    native["critic"] = _model(
        modern.get("critic") or {"class_name": "MLPModel"}, CriticConfig, "critic", notes
    )
    if algorithm.pop("share_cnn_encoders", None):
        native["critic"]["cnn"] = "shared"
        notes.append("algorithm.share_cnn_encoders -> critic.cnn 'shared', trained once by both losses")
    native["algorithm"] = _algorithm(algorithm, rnd_groups, notes)
    # rewards as the environment gives them, whatever a preset says
    env = {"reward_clip": None, "reward_scaling": False, "reward_scale": 1.0}
    native["env"] = {**env, **native.get("env", {})}
    native.setdefault("extensions", [])
    notes.append("actor.init and critic.init 'default': RSL-RL begins with PyTorch's own weights")
    clips = [f"{name}.obs_clip" for name in ("actor", "critic") if native[name]["obs_clip"] is None]
    notes.extend(f"{key} null: RSL-RL does not clip normalised observations" for key in clips)
    notes.append(
        "actions of a bounded space are clipped to [-1, 1] and mapped to its bounds; RSL-RL hands samples on "
        "as they are, which an unbounded space gets here too"
    )
    return native


# ------------------------------------------------------------------ top level


def _top_level(modern: Mapping[str, Any], notes: list[str]) -> Section:
    ours = [f.name for f in dataclasses.fields(TrainConfig)]
    rest = {k: v for k, v in modern.items() if k not in (*known.SECTIONS, "obs_groups")}
    native: Section = {key: rest.pop(key) for key in ours if key in rest and key != "logger"}
    for key in ("run_name", "experiment_name"):
        native[key] = native.get(key) or None
    if "num_envs" in native:
        notes.append(f"num_envs {native['num_envs']}: over all processes; in RSL-RL it is that of each")
    logger = rest.pop("logger", None)
    if logger is not None:
        native["logger"] = _logger(logger, notes)
    if rest.get("resume"):
        notes.append("resume is not carried over: use `surefoot train --resume RUN`")
    reasons = {
        "clip_actions": "the bounds of the action space count",
        "torch_compile_mode": "nothing is compiled",
        "device": "use --device",
        "wandb_project": "the project is experiment_name",
        "check_for_nan": None if rest.get("check_for_nan", True) else "that is always looked at",
    }
    for key, value in rest.items():
        why = reasons.get(key, "nothing here reads it")
        if key not in _SILENT and value is not None and why is not None:
            notes.append(f"{key} is not carried over: {why}")
    return native


def _logger(logger: Any, notes: list[str]) -> str:
    name = logger.get("class_name") if isinstance(logger, Mapping) else logger
    short = str(name).replace(":", ".").rpartition(".")[2].lower().removesuffix("logwriter")
    if short in ("tensorboard", "wandb", "none"):
        return short
    notes.append(f"logger {name!r} -> tensorboard: there is no other counterpart")
    return "tensorboard"


# ------------------------------------------------------------------ networks


def _model(model: Mapping[str, Any], cls: type, name: str, notes: list[str]) -> Section:
    kind = known.short_name(model["class_name"])
    if kind not in known.MODELS:
        raise ConfigError(
            f"{name}.class_name {model['class_name']!r} is a model class of RSL-RL: {_RUN_THE_SCRIPT}, "
            "or give a network in Surefoot's form (docs/extending.md)."
        )
    native = to_dict(cls())
    native["hidden_dims"] = list(model.get("hidden_dims", _HIDDEN_DIMS))
    if -1 in native["hidden_dims"]:
        raise ConfigError(f"{name}.hidden_dims has -1, the number of inputs: write that number.")
    native["activation"] = _activation(model.get("activation", "elu"), f"{name}.activation")
    native["obs_normalization"] = bool(model.get("obs_normalization", False))
    native["init"] = "default"
    if native["obs_normalization"]:
        native["obs_clip"] = None
    if kind == "RNNModel":
        native["rnn_type"] = model.get("rnn_type", "lstm")
        native["rnn_hidden_dim"] = model.get("rnn_hidden_dim", 256)
        native["rnn_num_layers"] = model.get("rnn_num_layers", 1)
    if kind == "CNNModel" and "cnn_cfg" in model:
        native["cnn"] = _cnn(model["cnn_cfg"], name, notes)
    if name == "actor":
        native["distribution"] |= _distribution(model.get("distribution_cfg", {}), notes)
    return native


def _activation(name: str, path: str) -> str:
    ours = _ACTIVATIONS.get(name.lower(), name.lower())
    if ours not in get_args(Activation):
        raise ConfigError(
            f"{path} = {name!r} has no counterpart; there are {', '.join(get_args(Activation))}."
        )
    return ours


def _distribution(cfg: Mapping[str, Any], notes: list[str]) -> Section:
    kind = known.short_name(cfg.get("class_name", "GaussianDistribution"))
    if kind == "BetaDistribution":
        if list(cfg.get("action_range", (-1, 1))) != [-1, 1]:
            notes.append(
                "actor.distribution_cfg.action_range is not carried over: the action space's bounds count"
            )
        return {"class_name": "Beta"}
    if kind not in known.DISTRIBUTIONS:
        raise ConfigError(
            f"actor.distribution_cfg.class_name {cfg['class_name']!r} has no counterpart: {_RUN_THE_SCRIPT}."
        )
    init_std, (low, high) = cfg.get("init_std", 1.0), cfg.get("std_range", _STD_RANGE)
    std_range = [max(low, _STD_RANGE[0]), min(high, _STD_RANGE[1])]
    std_type = cfg.get("std_type", "scalar")
    if not cfg.get("learn_std", True):
        std_range = [init_std, init_std]
        notes.append(f"actor.distribution_cfg.learn_std false -> actor.distribution.std_range {std_range}")
    if kind == "HeteroscedasticGaussianDistribution":
        if std_type == "scalar":
            notes.append(
                "actor.distribution_cfg.std_type scalar -> the logarithm of the deviation is the output"
            )
        std_type = "state_dependent"
    return {"init_std": init_std, "std_type": std_type, "std_range": std_range}


def _cnn(cfg: Mapping[str, Any], name: str, notes: list[str]) -> Section:
    """One set of convolutions for all image groups."""
    per_group = [part for part in cfg.values() if isinstance(part, Mapping)]
    if per_group and len(per_group) == len(cfg):
        if any(part != per_group[0] for part in per_group):
            raise ConfigError(f"{name}.cnn_cfg differs between image groups; here one {name}.cnn is for all.")
        cfg = per_group[0]
    channels = list(cfg["output_channels"])
    sides = {"kernel_sizes": cfg["kernel_size"], "strides": cfg.get("stride", 1)}
    native: Section = {"channels": channels}
    native |= {k: list(v) if isinstance(v, list) else [v] * len(channels) for k, v in sides.items()}
    notes.append(f"{name}.cnn_cfg -> {name}.cnn: ReLU, no padding, and a linear layer at the end")
    lost = [key for key in cfg if key not in ("output_channels", "kernel_size", "stride")]
    notes.extend(f"{name}.cnn_cfg.{key} is not carried over: there is no counterpart" for key in lost)
    return native


# ------------------------------------------------------------------ algorithm


def _algorithm(algorithm: Section, rnd_groups: list[str] | None, notes: list[str]) -> Section:
    algorithm = {**algorithm, "class_name": known.short_name(algorithm["class_name"])}
    if algorithm.pop("grad_reduce_bucket_mb", None) is not None:
        notes.append("algorithm.grad_reduce_bucket_mb is not carried over: gradients are one buffer")
    native: Section = to_dict(PPOConfig()) | _PPO_DEFAULTS | {"num_mini_batches": 4} | algorithm
    native["optimizer"] = str(native["optimizer"]).lower()
    if native["schedule"] not in ("adaptive", "fixed", "constant"):
        notes.append(
            f"algorithm.schedule {native['schedule']!r} -> fixed: in RSL-RL only 'adaptive' moves the rate"
        )
        native["schedule"] = "fixed"
    if native["schedule"] == "adaptive" and native["desired_kl"] is None:
        notes.append("algorithm.schedule adaptive -> fixed: without desired_kl nothing moves the rate")
        native["schedule"] = "fixed"
    if native["rnd_cfg"]:
        native["rnd_cfg"] = _rnd(native, rnd_groups, notes)
    if "amp_discriminator" in (native["amp_cfg"] or {}):
        raise ConfigError(
            "algorithm.amp_cfg is in the form in which the environment gives the demonstrations: "
            f"{_RUN_THE_SCRIPT}."
        )
    if native["symmetry_cfg"]:
        native["symmetry_cfg"] = _symmetry(native["symmetry_cfg"], notes)
    return native


def _rnd(algorithm: Mapping[str, Any], groups: list[str] | None, notes: list[str]) -> Section:
    cfg = {k: v for k, v in algorithm["rnd_cfg"].items() if k not in ("num_states", "obs_groups")}
    native: Section = {"weight": 0.0, "reward_normalization": False, "state_normalization": False, **cfg}
    if groups is not None:
        native["obs_groups"] = groups
        notes.append("obs_groups.rnd_state -> algorithm.rnd_cfg.obs_groups")
    if "activation" in native:
        native["activation"] = _activation(native["activation"], "algorithm.rnd_cfg.activation")
    # there the predictor learns from each of PPO's mini-batches
    native |= {key: algorithm[key] for key in ("num_learning_epochs", "num_mini_batches")}
    notes.append(
        f"algorithm.rnd_cfg.weight {native['weight']}: per step, as it stands; RSL-RL multiplies it by the "
        "environment's step_dt, so multiply it here"
    )
    notes.append("algorithm.rnd_cfg: the bonus is the mean squared error; in RSL-RL it is the error's norm")
    return native


def _symmetry(cfg: Mapping[str, Any], notes: list[str]) -> Section:
    function = cfg["data_augmentation_func"]
    notes.append(
        f"algorithm.symmetry_cfg.data_augmentation_func {function} is not carried over: the environment's "
        "mirror map counts; a function of your own goes to algorithm.symmetry_cfg.mirror, in the form "
        "(observations, actions) -> (observations, actions)"
    )
    keys = {"use_data_augmentation": False, "use_mirror_loss": False, "mirror_loss_coeff": 0.0}
    return {key: cfg.get(key, default) for key, default in keys.items()}
