"""Motion files of other projects as `MotionClip`s; the file's ending decides how it is read.

.txt, .json     AMP_for_hardware. JSON: `FrameDuration` (s) and `Frames` of root position 3, quaternion xyzw
                4, joints J; or these, foot positions 12 (in the root's frame) and velocities 18 + J.
.csv            LAFAN1 as Unitree retargeted it. No header, 30 frames a second: root position 3, quaternion
                xyzw 4, joints J.
.npz            mjlab, BeyondMimic: `fps`, `joint_pos`, `body_pos_w`, `body_quat_w` (wxyz) with the root as
                first body, and `joint_names`. Isaac Lab: `dof_positions`, `body_positions`, `body_rotations`,
                `dof_names`.
.npy            amp-rsl-rl. A dict: `fps`, `joints_list`, `joint_positions`, `root_position`,
                `root_quaternion` (xyzw).
.pkl, .pickle   GMR and others. A dict: `fps`, `root_pos`, `root_rot` (xyzw), `dof_pos`, `joint_names`; or one
                such dict under the name of its motion.

Velocities in files, weights (`MotionWeight`) and loop modes are not read.
"""

from __future__ import annotations

import csv
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray

from surefoot.errors import ConfigError
from surefoot.extensions.amp.clip import MotionClip, resample
from surefoot.extensions.amp.safe_pickle import load_npy_object, load_pickle

QuaternionOrder = Literal["wxyz", "xyzw"]
Array = NDArray[np.float64]

LAFAN1_DT = 1.0 / 30.0
"""s between the frames of a .csv, which does not say."""
FEET_WIDTH = 12
"""Numbers of four feet."""


@dataclass(frozen=True)
class _Raw:
    """What a file says, before it is checked."""

    position: Array
    quaternion: Array
    order: QuaternionOrder
    joints: Array
    dt: float | None
    joint_names: tuple[str, ...] | None = None
    feet: Array | None = None


def load_clip(
    path: str | Path,
    joint_names: Sequence[str] | None = None,
    dt: float | None = None,
    *,
    frame_dt: float | None = None,
    quaternion_order: QuaternionOrder | None = None,
) -> MotionClip:
    """Read a motion file.

    Args:
        path: Of one of the formats above.
        joint_names: The joints wanted, in the order wanted. Where the file does not name its joints (.txt,
            .csv, some .npz and .pkl) they are the names of its columns, and must be as many. None: the
            file's.
        dt: s, the control step: the clip is resampled to it. None: the frames as they are.
        frame_dt: s between the file's frames, where it does not say or deviates from its format.
        quaternion_order: Where a file deviates from its format.

    Raises:
        ConfigError: naming the file, and where there is one the frame (from 0) and the field.
    """
    path = Path(path)
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise ConfigError(
            f"{path}: unknown ending '{path.suffix}'; motion files end in {', '.join(_READERS)}."
        )
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file.")
    raw = reader(path)
    names = raw.joint_names
    if names is None:
        if joint_names is None:
            raise ConfigError(
                f"{path}: joint_names: the file does not name its joints; pass the names of its "
                f"{raw.joints.shape[-1]} joints in its order."
            )
        names = tuple(joint_names)
    frame_dt = raw.dt if frame_dt is None else frame_dt
    if frame_dt is None:
        raise ConfigError(f"{path}: field 'fps' is missing, and frame_dt was not passed.")
    order = quaternion_order or raw.order
    if order not in ("wxyz", "xyzw"):
        raise ConfigError(f"quaternion_order is '{order}'; expected 'wxyz' or 'xyzw'.")
    clip = MotionClip(
        name=str(path),
        dt=frame_dt,
        root_position=torch.from_numpy(raw.position),
        root_orientation=torch.from_numpy(np.roll(raw.quaternion, 1 if order == "xyzw" else 0, axis=-1)),
        joint_positions=torch.from_numpy(raw.joints),
        joint_names=names,
        foot_positions=None if raw.feet is None else torch.from_numpy(raw.feet),
    )
    clip = clip if joint_names is None else clip.select_joints(joint_names)
    return clip if dt is None else resample(clip, dt)


# --- rows of numbers ---


def _read_json(path: Path) -> _Raw:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not JSON: {error}") from error
    fields = _as_fields(content, path)
    for name in ("FrameDuration", "Frames"):
        if name not in fields:
            raise ConfigError(
                f"{path}: field '{name}' is missing; the file has {', '.join(fields) or 'none'}."
            )
    frames = _rows(fields["Frames"], path, "Frames")
    width = frames.shape[1]
    has_more = width >= 2 * 7 + 2 * FEET_WIDTH  # 37 + 2 J, else 7 + J
    if width < 8 or (has_more and width % 2 == 0):
        raise ConfigError(
            f"{path}: frame 0, Frames: {width} numbers; expected 7 + J (root and J joints) or 37 + 2 J (with "
            "four feet and velocities), such as 61."
        )
    joints = (width - 37) // 2 if has_more else width - 7
    feet = frames[:, 7 + joints : 7 + joints + FEET_WIDTH] if has_more else None
    return _from_columns(frames, joints, _number(fields["FrameDuration"], path, "FrameDuration"), feet)


def _read_csv(path: Path) -> _Raw:
    rows: list[list[float]] = []
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.reader(file):
            if not row:
                continue
            try:
                rows.append([float(cell) for cell in row])
            except ValueError as error:
                raise ConfigError(f"{path}: frame {len(rows)}: {error}; expected numbers alone.") from error
    frames = _rows(rows, path, "row")
    if frames.shape[1] < 8:
        raise ConfigError(
            f"{path}: frame 0: {frames.shape[1]} columns; expected 7 of the root and the joints."
        )
    return _from_columns(frames, frames.shape[1] - 7, LAFAN1_DT)


def _from_columns(frames: Array, joints: int, dt: float, feet: Array | None = None) -> _Raw:
    return _Raw(frames[:, :3], frames[:, 3:7], "xyzw", frames[:, 7 : 7 + joints], dt, feet=feet)


# --- named fields ---

_POSITION = ("root_position", "root_pos", "root_trans_offset", "body_pos_w", "body_positions")
_QUATERNION: dict[str, QuaternionOrder] = {
    "root_quaternion": "xyzw",
    "root_rot": "xyzw",
    "body_quat_w": "wxyz",
    "body_rotations": "wxyz",
}
_JOINTS = ("joint_positions", "joint_pos", "dof_positions", "dof_pos", "dof")
_NAMES = ("joint_names", "joints_list", "dof_names")


def _read_npz(path: Path) -> _Raw:
    try:
        with zipfile.ZipFile(path):  # numpy would take a file that is none for something else
            pass
        with np.load(path, allow_pickle=False) as file:
            fields = {name: file[name] for name in file.files}
    except (ValueError, zipfile.BadZipFile, OSError, EOFError) as error:
        raise ConfigError(f"{path}: not an .npz file of plain arrays: {error}") from error
    return _from_fields(fields, path)


def _read_npy(path: Path) -> _Raw:
    return _from_fields(_as_fields(load_npy_object(path), path), path)


def _read_pickle(path: Path) -> _Raw:
    fields = _as_fields(load_pickle(path), path)
    inner = list(fields.values())
    if len(inner) == 1 and isinstance(inner[0], Mapping):
        fields = _as_fields(inner[0], path)
    return _from_fields(fields, path)


def _as_fields(content: Any, path: Path) -> Mapping[str, Any]:
    if not isinstance(content, Mapping):
        raise ConfigError(f"{path}: holds a {type(content).__name__}; expected named fields.")
    return cast("Mapping[str, Any]", content)


def _from_fields(fields: Mapping[str, Any], path: Path) -> _Raw:
    def find(choices: Sequence[str]) -> str:
        found = [name for name in choices if name in fields]
        if not found:
            has = ", ".join(map(str, fields)) or "none"
            raise ConfigError(
                f"{path}: field '{choices[0]}' (or {', '.join(choices[1:])}) is missing; it has {has}."
            )
        return found[0]

    def rows(name: str) -> Array:
        value = _rows(fields[name], path, name)
        return value[:, 0] if name.startswith("body_") and value.ndim == 3 else value  # the root is body 0

    quaternion = find(tuple(_QUATERNION))
    names = [name for name in _NAMES if name in fields]
    return _Raw(
        position=rows(find(_POSITION)),
        quaternion=rows(quaternion),
        order=_QUATERNION[quaternion],
        joints=rows(find(_JOINTS)),
        dt=1.0 / _number(fields["fps"], path, "fps") if "fps" in fields else None,
        joint_names=tuple(str(name) for name in np.asarray(fields[names[0]]).ravel()) if names else None,
    )


def _rows(value: Any, path: Path, field: str) -> Array:
    """One row per frame, float64; a frame of another width than the first, or not of numbers, is named."""
    if not isinstance(value, (np.ndarray, list, tuple)) or len(value) == 0:
        raise ConfigError(f"{path}: {field} holds no frames.")
    frames: list[Array] = []
    for i, row in enumerate(cast("Sequence[Any]", value)):
        try:
            frames.append(np.asarray(row, dtype=np.float64))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{path}: frame {i}, {field}: {error}") from error
        if frames[i].shape != frames[0].shape or frames[i].ndim == 0:
            raise ConfigError(
                f"{path}: frame {i}, {field}: shape {frames[i].shape}; the first frame has {frames[0].shape}."
            )
    return np.stack(frames)


def _number(value: Any, path: Path, field: str) -> float:
    try:
        number = float(np.asarray(value, dtype=np.float64).item())
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path}: {field} is {value!r}; expected one number.") from error
    if not 0 < number < float("inf"):
        raise ConfigError(f"{path}: {field} is {number}; expected more than 0.")
    return number


_READERS = {
    ".txt": _read_json,
    ".json": _read_json,
    ".csv": _read_csv,
    ".npz": _read_npz,
    ".npy": _read_npy,
    ".pkl": _read_pickle,
    ".pickle": _read_pickle,
}
