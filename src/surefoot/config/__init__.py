"""Configuration: dataclasses with types and ranges, strict validation, plain YAML on disk.

config = build_config(merge(preset, load_yaml(Path("my.yaml"))))
"""

from surefoot.config.advice import SurefootWarning, advice, warn_about
from surefoot.config.loading import apply_set, dump_yaml, load_yaml, merge, to_dict
from surefoot.config.plugins import build, build_extensions, own_networks, resolve_class
from surefoot.config.schema import EnvConfig, TrainConfig
from surefoot.config.validation import build_config

__all__ = [
    "EnvConfig",
    "SurefootWarning",
    "TrainConfig",
    "advice",
    "apply_set",
    "build",
    "build_config",
    "build_extensions",
    "dump_yaml",
    "load_yaml",
    "merge",
    "own_networks",
    "resolve_class",
    "to_dict",
    "warn_about",
]
