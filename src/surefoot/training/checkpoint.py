"""Checkpoint files: tensors and plain data, written whole or not at all, and found again by name."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import re
import shutil
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.errors import CheckpointError, NonFiniteError
from surefoot.training.migrate import FORMAT, migrate, misfit

_ARRAY = "__numpy__"
_MODEL = re.compile(r"model_(\d+)\.pt")
_DIRECTORY = 0x10
_TEMPORARY = re.compile(r"\..+\.(\d+)\.tmp")

# ------------------------------------------------------------------ writing


def save_checkpoint(path: Path | str, state: Mapping[str, Any]) -> Path:
    """Write `state` as `write_whole` does: no reader sees half a file.

    Raises:
        NonFiniteError: `state["algorithm"]` holds a NaN or an infinity; the file that was there stays.
        CheckpointError: the disk refuses, or `state` holds something else than tensors and plain data.
    """
    path = Path(path)
    data = to_plain(state)
    for name, tensor in named_tensors(data.get("algorithm"), "algorithm"):
        # the sum is the cheap look; where it overflows, the second one decides
        if not math.isfinite(tensor.sum().item()) and not bool(tensor.isfinite().all()):
            raise NonFiniteError(
                f"checkpoint {path.name} was not written: '{name}' holds a NaN or an infinity. "
                "Earlier checkpoints are untouched."
            )
    return write_whole(path, data)


def write_whole(path: Path, data: Mapping[str, Any]) -> Path:
    """Write plain data to a temporary file, flush it to the disk, then rename it.

    Raises:
        CheckpointError: the disk refuses.
    """
    with _replacing(path) as temporary, temporary.open("wb") as file:
        torch.save(data, file)
        file.flush()
        os.fsync(file.fileno())
    return path


def copy_checkpoint(source: Path, target: Path) -> Path:
    """A second, independent copy, as safe as the first: damage to one file leaves the other."""
    with _replacing(target) as temporary:
        shutil.copyfile(source, temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
    return target


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        os.replace(temporary, path)
        _flush_directory(path.parent)
    except (OSError, RuntimeError) as error:
        # PyTorch's writer hides the refusal of the disk behind a RuntimeError of its own
        fault = error if isinstance(error, OSError) or error.__context__ is None else error.__context__
        stays = " The file that was there stays." if os.path.exists(path) else ""
        raise CheckpointError(
            f"cannot write {path}: {getattr(fault, 'strerror', None) or fault}.{stays}{_offer_previous(path)}"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _flush_directory(directory: Path) -> None:
    """Make a rename survive a power cut, where the system lets a directory be opened for that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_stale(directory: Path) -> None:
    """Delete the temporary files of killed processes; those of living ones may be in use."""
    for path in directory.glob(".*.tmp"):
        match = _TEMPORARY.fullmatch(path.name)
        if match and not _is_alive(int(match[1])):
            path.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    if os.name != "posix":
        return True  # elsewhere there is no harmless signal to ask with
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def to_plain(value: Any, path: str = "") -> Any:
    """A copy of `value` that `weights_only` loading can rebuild: CPU tensors, containers, numbers, text.

    NumPy arrays come back as arrays. Anything else is refused by its path.
    """
    if isinstance(value, Tensor):
        # a clone: a view would carry its whole storage into the file
        return value.detach().to("cpu", copy=True).contiguous()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return {_ARRAY: torch.from_numpy(np.ascontiguousarray(value).copy()).reshape(value.shape)}
    if isinstance(value, np.generic):
        return value.item()
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if isinstance(value, Mapping):
        return {_plain_key(k, path): to_plain(x, f"{path}.{k}" if path else str(k)) for k, x in value.items()}
    if type(value) in (list, tuple):
        items = [to_plain(x, f"{path}[{i}]") for i, x in enumerate(value)]
        return items if type(value) is list else tuple(items)
    raise CheckpointError(
        f"'{path}' is a {type(value).__name__}; a checkpoint holds only tensors, NumPy arrays, numbers, "
        "text, lists and dicts. Return such data from state_dict()."
    )


def _plain_key(key: Any, path: str) -> str | int | bool | None:
    if key is None or type(key) in (str, int, bool):
        return key
    raise CheckpointError(f"'{path}' has the key {key!r}; a checkpoint's keys are text or whole numbers.")


def from_plain(value: Any) -> Any:
    """The inverse of `to_plain`."""
    if isinstance(value, dict):
        if value.keys() == {_ARRAY}:
            return value[_ARRAY].numpy()
        return {k: from_plain(x) for k, x in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(from_plain(x) for x in value)
    return value


def named_tensors(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor in nested containers, with its dotted path."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from named_tensors(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from named_tensors(item, f"{path}[{i}]")


# ------------------------------------------------------------------ reading


def read_file(path: Path, safe_globals: Sequence[Any] = (), map_location: Any = "cpu") -> Any:
    """What a file of `torch.save` holds, executing nothing from it.

    Args:
        path: Of the file.
        safe_globals: What it may name besides PyTorch's own, as for `torch.serialization.safe_globals`.
        map_location: As for `torch.load`.

    Raises:
        CheckpointError: no such file; damaged (the newest complete file beside it is offered); it holds more
            than tensors and plain data.
    """
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint {path}.")
    if fault := _fault(path):
        raise CheckpointError(f"{path} is {fault}.{_offer_previous(path)}")
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals([*safe_globals]):
            warnings.simplefilter("ignore")  # about the format of files that are refused below
            return torch.load(path, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        asked = re.search(r"GLOBAL (\S+)", str(error))
        what = (
            f"holds more than tensors and plain data ({asked[1]})" if asked else "is no checkpoint of tensors"
        )
        raise CheckpointError(f"{path} {what}; nothing in it was executed.") from None
    except Exception as error:  # noqa: BLE001 - damage can make the readers raise anything
        if "TorchScript" in str(error):
            text = f"{path} is an exported policy (TorchScript), not a checkpoint."
            raise CheckpointError(text) from None
        raise CheckpointError(f"{path} is damaged ({_first_line(error)}).{_offer_previous(path)}") from None


def load_checkpoint(path: Path | str) -> dict[str, Any]:
    """Read a checkpoint onto the CPU, executing nothing from it; older formats are brought to this one.

    Raises:
        CheckpointError: as for `read_file`; not ours; not complete.
    """
    path = Path(path)
    return complete(read_file(path), str(path))


def complete(data: Any, path: str) -> dict[str, Any]:
    """The content of a checkpoint file, brought to the present format; `path` is for errors."""
    if not isinstance(data, dict) or "format" not in data or "algorithm" not in data:
        names = [_short(key) for key in list(data)[:5]] if isinstance(data, dict) else []
        keys = f" (its keys: {', '.join(names)})" if names else ""
        raise CheckpointError(
            f"{path} is not a Surefoot checkpoint{keys}; RUN is a run directory or one of its files."
        )
    version = data["format"]
    if type(version) is not int or version < 1:
        raise CheckpointError(
            f"{path} is not a Surefoot checkpoint: its format is {_short(repr(version))}; expected a number "
            f"from 1 to {FORMAT}."
        )
    if version > FORMAT:
        raise CheckpointError(
            f"{path} has format {version}; this version of Surefoot reads up to {FORMAT}. Upgrade it."
        )
    try:
        state = migrate(from_plain(data))
        fault = misfit(state)
    except KeyError as error:
        state, fault = {}, f"it lacks {error}"
    except (AttributeError, RuntimeError, TypeError) as error:
        state, fault = {}, f"it is not laid out as format {version} ({_first_line(error)})"
    if fault:
        raise CheckpointError(f"{path} is not a complete checkpoint: {fault}.")
    return state


def _short(value: Any) -> str:
    return " ".join(str(value).split())[:40]


def _first_line(error: Exception) -> str:
    """Of the message, with the type where the message alone says little."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _fault(path: Path) -> str | None:
    """What is wrong with a file that begins or ends like a checkpoint: cut off, or a checksum differs."""
    try:
        with path.open("rb") as file:
            start = file.read(2)
        is_zip = zipfile.is_zipfile(path)
        if not start or (start == b"PK" and not is_zip):
            return f"cut off ({path.stat().st_size} bytes)"
        if not is_zip:
            return None
        with zipfile.ZipFile(path) as archive:
            # PyTorch itself looks at no checksum, and reads nothing where an entry is marked as a directory
            is_whole = archive.testzip() is None
            if not is_whole or any(entry.external_attr & _DIRECTORY for entry in archive.infolist()):
                return "damaged (its checksum differs)"
            return None
    except PermissionError as error:
        return f"not readable ({error.strerror})"
    except Exception as error:  # noqa: BLE001 - damage can make the readers raise anything
        return f"damaged ({_first_line(error)})"


def _offer_previous(path: Path) -> str:
    others = (p for p in _by_recency(path.parent) if p != path)
    other = next((p for p in others if not _fault(p) and zipfile.is_zipfile(p)), None)
    return f" The newest complete checkpoint beside it is {other}." if other else " No other is beside it."


# ------------------------------------------------------------------ finding


def iteration_of(path: Path) -> int:
    """N of `model_N.pt`; -1 for any other name."""
    match = _MODEL.fullmatch(path.name)
    return int(match[1]) if match else -1


def numbered(directory: Path) -> list[Path]:
    """The `model_<iteration>.pt` files of a directory, by iteration."""
    return sorted((p for p in directory.glob("model_*.pt") if iteration_of(p) >= 0), key=iteration_of)


def prune(directory: Path, keep: int, spare: Path | None = None) -> None:
    """Delete all but the newest `keep` numbered checkpoints, and never `spare`."""
    for path in numbered(directory)[:-keep]:
        if path != spare:
            path.unlink(missing_ok=True)


def _by_recency(directory: Path) -> list[Path]:
    """Usable as a continuation, best first: `last.pt`, then numbered ones from the newest, then `best.pt`."""
    named = [directory / "last.pt", *reversed(numbered(directory)), directory / "best.pt"]
    return [p for p in named if p.is_file()]


def _checkpoint_dir(run: Path) -> Path:
    return run / "checkpoints" if (run / "checkpoints").is_dir() else run


def find_run(run: Path | str = "last", root: Path | str = "runs") -> Path:
    """The directory of a run.

    Args:
        run: A run directory, a checkpoint file in one, or `last`: the newest run under `root`
            that has a checkpoint.
        root: Where `last` looks.

    Raises:
        CheckpointError: nothing there, or nothing with a checkpoint.
    """
    root = Path(root)
    if str(run) == "last" and not Path(run).exists():
        found = [d.parent for d in root.rglob("checkpoints") if _by_recency(d)]
        if not found:
            raise CheckpointError(
                f"no run with a checkpoint under {root}/; train one, or name a run directory."
            )
        return max(found, key=lambda d: (_by_recency(d / "checkpoints")[0].stat().st_mtime_ns, d.name))
    run = Path(run)
    if run.is_file():
        return run.parent.parent if run.parent.name == "checkpoints" else run.parent
    if not run.is_dir():
        raise CheckpointError(f"there is no run {run}; give a run directory, a checkpoint file, or 'last'.")
    if not _by_recency(_checkpoint_dir(run)):
        names = ", ".join(sorted(p.name for p in run.iterdir())[:8]) or "nothing"
        raise CheckpointError(f"the run {run} has no checkpoint yet; it holds {names}.")
    return run


def find_checkpoint(
    run: Path | str = "last", checkpoint: str | int = "last", root: Path | str = "runs"
) -> Path:
    """The checkpoint file of a run.

    Args:
        run: As in `find_run`; a file is taken as it is.
        checkpoint: `last` (the newest), `best` (the newest where none was chosen yet), or an iteration.
        root: Where a run `last` is looked for.
    """
    if Path(run).is_file():
        return Path(run)
    directory = _checkpoint_dir(find_run(run, root))
    files = _by_recency(directory)
    if checkpoint == "last":
        return files[0]
    if checkpoint == "best":
        return directory / "best.pt" if (directory / "best.pt").is_file() else files[0]
    if str(checkpoint).isdigit():
        path = directory / f"model_{int(checkpoint)}.pt"
        if path.is_file():
            return path
        have = ", ".join(str(iteration_of(p)) for p in numbered(directory)) or "none"
        raise CheckpointError(
            f"{directory} has no checkpoint of iteration {checkpoint}; it has iterations {have}."
        )
    raise CheckpointError(f"checkpoint '{checkpoint}': expected 'best', 'last' or an iteration number.")
