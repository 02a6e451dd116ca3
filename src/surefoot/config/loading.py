"""Configuration as plain data: reading YAML, laying one mapping over another, and writing it back."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from surefoot.errors import ConfigError
from surefoot.field_checks import plain

_RIVALS = {"num_mini_batches": "mini_batch_size", "mini_batch_size": "num_mini_batches"}


class _Loader(yaml.SafeLoader):
    """Safe YAML in which `1e-3` is a number, a date or `1:30` is text, and a key occurs once."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own class attribute, without its number and date forms
        first: [(tag, form) for tag, form in forms if not tag.endswith((":float", ":int", ":timestamp"))]
        for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag.endswith(":merge"):
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"the key '{key.value}' occurs twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(?:(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9_]+)(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+"
        r"|\.(?:inf|Inf|INF))$|^\.(?:nan|NaN|NAN)$"
    ),
    list("-+0123456789."),
)


# what yaml.dump writes for a tuple, and for a field that was never set (Isaac Lab)
_Loader.add_constructor("tag:yaml.org,2002:python/tuple", yaml.SafeLoader.construct_yaml_seq)
_Loader.add_constructor(
    "tag:yaml.org,2002:python/object:dataclasses._MISSING_TYPE", yaml.SafeLoader.construct_yaml_map
)


class _Dumper(yaml.SafeDumper):
    """Mappings in block style, lists on one line; text that the loader would take for a number is quoted."""

    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(list, lambda d, x: d.represent_sequence("tag:yaml.org,2002:seq", x, flow_style=True))


def load_yaml(source: Path | str) -> dict[str, Any]:
    """A YAML mapping from a file (a Path, or a string that ends in .yaml or .yml) or from text."""
    is_file = isinstance(source, Path) or ("\n" not in source and source.endswith((".yaml", ".yml")))
    name = str(source) if is_file else "YAML text"
    data = _parse(read_text(Path(source)) if is_file else str(source), name)
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(
            f"{name}: expected a mapping of keys to values, got {type(data).__name__} {data!r:.60}."
        )
    return data


def read_text(path: Path) -> str:
    """The file's text, or a ConfigError that names the file."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"config file '{path}' does not exist.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file '{path}' cannot be read: {error}.") from None


def _parse(text: str, name: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{name}{line}: {' '.join(str(error.problem or error.context).split())}.") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{name}: {' '.join(str(error).split())}.") from None


def dump_yaml(data: Mapping[str, Any]) -> str:
    """YAML that `load_yaml` reads back unchanged."""
    return yaml.dump(plain(data), Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)


def merge(base: Mapping[str, Any], *overlays: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with each overlay laid over it, key by key at every level; the arguments stay as they are.

    A value that is no mapping (a list too) replaces the one below. A schedule of another `type` replaces the
    whole schedule. `num_mini_batches` and `mini_batch_size` say the same thing, so the one in the overlay
    ends the other.
    """
    result = copy.deepcopy(dict(base))
    for overlay in overlays:
        _drop_rivals(result, overlay)
        for key, value in overlay.items():
            below = result.get(key)
            if (
                isinstance(value, Mapping)
                and isinstance(below, dict)
                and not _is_other_schedule(below, value)
            ):
                result[key] = merge(below, value)
            else:
                result[key] = copy.deepcopy(value)
    return result


def _is_other_schedule(below: Mapping[str, Any], value: Mapping[str, Any]) -> bool:
    return "type" in value and value["type"] != below.get("type")


def _drop_rivals(section: dict[str, Any], overlay: Mapping[str, Any]) -> None:
    for key, rival in _RIVALS.items():
        if overlay.get(key) is not None and rival not in overlay:
            section.pop(rival, None)


def apply_set(config: Mapping[str, Any], assignment: str) -> dict[str, Any]:
    """`config` with one `a.b.c=VALUE`; VALUE is YAML, and a number in the path is a position in a list."""
    path, equals, text = assignment.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(
            f"--set {assignment}: expected KEY=VALUE with a dotted key, as in algorithm.gamma=0.98."
        )
    value = _parse(text, f"--set {path.strip()}")
    result = copy.deepcopy(dict(config))
    section: Any = result
    for depth, key in enumerate(keys[:-1]):
        if isinstance(section, list):
            below = section[_position(section, key, path)]
        else:
            if section.get(key) is None:
                section[key] = {}
            below = section[key]
        if not isinstance(below, (dict, list)):
            name = ".".join(keys[: depth + 1])
            raise ConfigError(
                f"--set {path}: '{name}' is {below!r}, not a mapping; set {name}={{...}} as a whole."
            )
        section = below
    if isinstance(section, list):
        section[_position(section, keys[-1], path)] = value
    else:
        _drop_rivals(section, {keys[-1]: value})
        section[keys[-1]] = value
    return result


def _position(section: list[Any], key: str, path: str) -> int:
    if not key.isdigit() or int(key) >= len(section):
        raise ConfigError(
            f"--set {path}: '{key}' is no position in a list of {len(section)} (they count from 0)."
        )
    return int(key)


def to_dict(config: Any) -> dict[str, Any]:
    """The configuration in full as plain data; `build_config` of it is the same configuration."""
    return plain(config)
