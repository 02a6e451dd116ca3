"""Helper functions and log writers under RSL-RL's names."""

from surefoot.compat.rsl_rl.utils.code_state import store_code_state
from surefoot.compat.rsl_rl.utils.log_writer import LogWriter
from surefoot.compat.rsl_rl.utils.neptune_log_writer import NeptuneLogWriter
from surefoot.compat.rsl_rl.utils.utils import (
    check_nan,
    compile_model,
    get_param,
    reduce_gradients_in_buckets,
    resolve_callable,
    resolve_class,
    resolve_nn_activation,
    resolve_obs_groups,
    resolve_optimizer,
    split_and_pad_trajectories,
    string_to_callable,
    unpad_trajectories,
)
from surefoot.compat.rsl_rl.utils.wandb_log_writer import WandbLogWriter

__all__ = [
    "LogWriter",
    "NeptuneLogWriter",
    "WandbLogWriter",
    "check_nan",
    "compile_model",
    "get_param",
    "reduce_gradients_in_buckets",
    "resolve_callable",
    "resolve_class",
    "resolve_nn_activation",
    "resolve_obs_groups",
    "resolve_optimizer",
    "split_and_pad_trajectories",
    "store_code_state",
    "string_to_callable",
    "unpad_trajectories",
]
