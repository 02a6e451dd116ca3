"""Motion files of every format, good and bad."""

import json
import os
import pickle
from collections import OrderedDict

import numpy as np
import pytest
import torch

from surefoot.errors import ConfigError
from surefoot.extensions.amp.loaders import load_clip

FRAMES, JOINTS = 6, ("a", "b", "c")
rng = np.random.default_rng(0)
POSITION = rng.normal(size=(FRAMES, 3))
ANGLE = rng.normal(size=(FRAMES, 3)) * 0.2
_w = np.sqrt(1 - np.square(ANGLE).sum(1, keepdims=True))
XYZW, WXYZ = np.hstack([ANGLE, _w]), np.hstack([_w, ANGLE])
ANGLES = rng.normal(size=(FRAMES, 3))
FEET = rng.normal(size=(FRAMES, 12))


def amp_json(**changes):
    rows = np.hstack([POSITION, XYZW, ANGLES, FEET, np.zeros((FRAMES, 6)), ANGLES * 0, FEET * 0])
    assert rows.shape[1] == 37 + 2 * 3
    return {
        "LoopMode": "Wrap",
        "FrameDuration": 0.02,
        "MotionWeight": 0.5,
        "Frames": rows.tolist(),
        **changes,
    }


def amp_rsl_rl(**changes):
    return {
        "fps": 50.0,
        "joints_list": list(JOINTS),
        "joint_positions": list(ANGLES),
        "root_position": list(POSITION),
        "root_quaternion": list(XYZW),
        **changes,
    }


def mjlab(**changes):
    others = np.ones((FRAMES, 2, 1))
    return {
        "fps": np.array([50]),
        "joint_names": np.array(JOINTS),
        "joint_pos": ANGLES,
        "joint_vel": ANGLES,
        "body_pos_w": np.concatenate([POSITION[:, None], others * np.ones(3)], 1),
        "body_quat_w": np.concatenate([WXYZ[:, None], others * [1.0, 0.0, 0.0, 0.0]], 1),
        **changes,
    }


def isaac_lab():
    m = mjlab()
    return {
        "fps": np.int64(50),
        "dof_names": m["joint_names"],
        "dof_positions": m["joint_pos"],
        "body_positions": m["body_pos_w"],
        "body_rotations": m["body_quat_w"],
    }


def gmr(**changes):
    return {"fps": 50, "root_pos": POSITION, "root_rot": XYZW, "dof_pos": ANGLES, **changes}


def write(path, content):
    """By the ending, as the project that the format comes from writes it."""
    if path.suffix in (".txt", ".json"):
        path.write_text(json.dumps(content))
    elif path.suffix == ".csv":
        path.write_text("\n".join(",".join(str(x) for x in row) for row in content) + "\n")
    elif path.suffix == ".npz":
        np.savez(path, **content)
    elif path.suffix == ".npy":
        np.save(path, content)
    else:
        path.write_bytes(pickle.dumps(content))
    return path


CSV_ROWS = np.hstack([POSITION, XYZW, ANGLES]).tolist()

GOOD = {
    "amp.txt": amp_json(),
    "short.json": amp_json(Frames=CSV_ROWS),
    "lafan.csv": CSV_ROWS,
    "mjlab.npz": mjlab(),
    "isaac.npz": isaac_lab(),
    "rsl.npy": amp_rsl_rl(),
    "gmr.pkl": gmr(joint_names=list(JOINTS)),
    "nested.pickle": {"walk_1": OrderedDict(gmr(dof_names=np.array(JOINTS)))},
}


@pytest.mark.parametrize("name", GOOD)
def test_every_format_gives_the_same_clip(name, tmp_path):
    clip = load_clip(write(tmp_path / name, GOOD[name]), JOINTS)
    assert clip.dt == pytest.approx(1 / 30 if name.endswith(".csv") else 0.02)
    assert np.allclose(clip.root_position, POSITION)
    assert np.allclose(clip.root_orientation, WXYZ)
    assert np.allclose(clip.joint_positions, ANGLES)
    assert clip.joint_names == JOINTS
    if name == "amp.txt":
        assert np.allclose(clip.foot_positions, FEET)


def test_the_61_numbers_of_amp_for_hardware_are_twelve_joints(tmp_path):
    row = [0.0, 0.0, 0.3, 0.0, 0.0, 0.0, 1.0, *range(12), *range(100, 112), *[0.0] * 30]
    path = write(tmp_path / "trot.txt", amp_json(FrameDuration=0.021, Frames=[row] * 3))
    clip = load_clip(path, [f"j{i}" for i in range(12)])
    assert clip.joint_positions[0].tolist() == list(range(12))
    assert clip.foot_positions[0].tolist() == list(range(100, 112))
    assert clip.dt == 0.021


@pytest.mark.parametrize("name", ["mjlab.npz", "rsl.npy", "gmr.pkl"])
def test_joints_are_mapped_by_name_where_the_file_names_them(name, tmp_path):
    clip = load_clip(write(tmp_path / name, GOOD[name]), ["c", "a"])
    assert clip.joint_names == ("c", "a")
    assert np.allclose(clip.joint_positions, ANGLES[:, [2, 0]])


def test_frames_are_resampled_to_the_control_step(tmp_path):
    clip = load_clip(write(tmp_path / "lafan.csv", CSV_ROWS), JOINTS, dt=0.02)
    assert clip.dt == 0.02
    assert clip.num_frames == 9  # 5 / 30 s = 8.33 steps
    assert np.allclose(clip.joint_positions[5], ANGLES[3])  # 0.1 s is both


def test_a_file_that_deviates_from_its_format_can_be_told_the_quaternions_order(tmp_path):
    path = write(tmp_path / "gmr.pkl", gmr(root_rot=WXYZ))
    assert np.allclose(load_clip(path, JOINTS, quaternion_order="wxyz").root_orientation, WXYZ)
    with pytest.raises(ConfigError, match="expected 'wxyz' or 'xyzw'"):
        load_clip(path, JOINTS, quaternion_order="zyxw")


def test_a_rate_that_the_file_lacks_can_be_passed(tmp_path):
    content = gmr()
    del content["fps"]
    assert load_clip(write(tmp_path / "x.pkl", content), JOINTS, frame_dt=0.01).dt == 0.01


def test_the_rate_that_is_passed_wins_over_the_formats(tmp_path):
    path = write(tmp_path / "lafan.csv", CSV_ROWS)
    assert load_clip(path, JOINTS).dt == pytest.approx(1 / 30)
    assert load_clip(path, JOINTS, frame_dt=0.02).dt == 0.02


# --- P04: bad files


def rows_with(frame, column, value):
    rows = [list(row) for row in CSV_ROWS]
    if value is None:
        del rows[frame][column:]
    else:
        rows[frame][column] = value
    return rows


def without(content, *fields):
    return {name: value for name, value in content.items() if name not in fields}


def array_with(array, index, value):
    array = np.array(array)
    array[index] = value
    return array


UPRIGHT = np.tile([1.0, 0.0, 0.0, 0.0], (FRAMES, 1))
WRONG_ORDER = np.hstack([POSITION, UPRIGHT, ANGLES]).tolist()

BAD = [
    ("order.json", amp_json(Frames=WRONG_ORDER), "frame 0, root_orientation.*upside"),
    ("nan.json", amp_json(Frames=rows_with(2, 8, float("nan"))), "frame 2, joint_positions.*not finite"),
    ("width.json", amp_json(Frames=rows_with(3, 9, None)), r"frame 3, Frames: shape \(9,\)"),
    ("text.json", amp_json(Frames=rows_with(1, 0, "far")), "frame 1, Frames: could not convert"),
    ("thin.json", amp_json(Frames=[[0.0] * 7] * 3), "frame 0, Frames: 7 numbers"),
    ("even.json", amp_json(Frames=[[0.0] * 60] * 3), "frame 0, Frames: 60 numbers"),
    ("one.json", amp_json(Frames=CSV_ROWS[:1]), "1 frame; a motion needs at least 2"),
    ("none.json", amp_json(Frames=[]), "Frames holds no frames"),
    ("field.json", without(amp_json(), "FrameDuration"), "field 'FrameDuration' is missing"),
    ("rate.json", amp_json(FrameDuration=0), "FrameDuration is 0"),
    ("list.json", [1, 2], "holds a list; expected named fields"),
    ("width.csv", rows_with(4, 9, None), r"frame 4, row: shape \(9,\)"),
    ("text.csv", rows_with(1, 0, "far"), "frame 1: could not convert"),
    ("norm.csv", rows_with(5, 6, 3.0), "frame 5, root_orientation.*length 1"),
    ("thin.csv", [[0.0] * 7] * 3, "frame 0: 7 columns"),
    ("nan.npz", mjlab(joint_pos=array_with(ANGLES, (1, 0), np.nan)), "frame 1, joint_positions.*not finite"),
    ("norm.npz", mjlab(body_quat_w=2 * WXYZ[:, None]), "frame 0, root_orientation.*length 1"),
    ("field.npz", without(mjlab(), "joint_pos"), "field 'joint_positions' .*is missing"),
    ("rate.npz", without(mjlab(), "fps"), "field 'fps' is missing"),
    ("rate2.npz", mjlab(fps=np.array([30, 60])), "fps is .*expected one number"),
    ("names.npz", mjlab(joint_names=np.array(["a", "b"])), r"joint_positions has shape \(6, 3\)"),
    ("joint.npz", mjlab(joint_names=np.array(["a", "b", "d"])), "joint_names: there is no joint 'c'"),
    ("length.npz", mjlab(joint_pos=ANGLES[:4]), r"joint_positions has shape \(4, 3\); expected \(6, 3\)"),
    ("objects.npz", mjlab(extra=np.array([{}], dtype=object)), "not an .npz file of plain arrays"),
    ("field.npy", without(amp_rsl_rl(), "root_quaternion"), "field 'root_quaternion' .*is missing"),
    ("joint.npy", amp_rsl_rl(joints_list=["a", "b", "d"]), "there is no joint 'c'"),
    ("ragged.npy", amp_rsl_rl(joint_positions=[*ANGLES[:5], ANGLES[5, :2]]), "frame 5, joint_positions"),
    ("array.npy", POSITION, "holds a ndarray"),
    ("nan.pkl", gmr(root_pos=array_with(POSITION, (0, 2), np.nan)), "frame 0, root_position.*not finite"),
    ("width.pkl", gmr(dof_pos=ANGLES[:, :2]), r"joint_positions has shape \(6, 2\); expected \(6, 3\)"),
    ("rate.pkl", gmr(fps=-1), "fps is -1"),
    ("class.pkl", gmr(when=np.datetime64("2024-01-01")), "array of type 'M8'"),
    ("unknown.bvh", b"", "unknown ending '.bvh'"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "text"), BAD, ids=[name for name, *_ in BAD])
def test_p04_each_fault_of_a_file_is_named_with_file_frame_and_field(name, content, text, tmp_path):
    path = write(tmp_path / name, content)
    with pytest.raises(ConfigError, match=text) as caught:
        load_clip(path, JOINTS)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_p04_a_file_without_joint_names_wants_them(tmp_path):
    with pytest.raises(ConfigError, match=r"lafan\.csv: joint_names: .*names of its 3 joints"):
        load_clip(write(tmp_path / "lafan.csv", CSV_ROWS))


@pytest.mark.parametrize("ending", [".json", ".npz", ".npy", ".pkl"])
@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01\x00", b"\x80\x04garbage", b"{\xff"])
def test_p04_a_damaged_file_is_named(ending, content, tmp_path):
    path = tmp_path / f"damaged{ending}"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"damaged{ending}: "):
        load_clip(path, JOINTS)


@pytest.mark.parametrize("cut", range(20, 400, 45))
def test_p04_a_pickle_cut_off_anywhere_is_named(cut, tmp_path):
    path = tmp_path / "cut.pkl"
    path.write_bytes(pickle.dumps(gmr())[:cut])
    with pytest.raises(ConfigError, match=r"cut\.pkl: "):
        load_clip(path, JOINTS)


def test_a_file_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.npz: there is no such file"):
        load_clip(tmp_path / "nowhere.npz", JOINTS)


# --- pickles that would run code


class Runs:
    """Unpickled as usual, makes a folder."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "hostile",
    [
        lambda folder: Runs(os.mkdir, folder),
        lambda folder: Runs(eval, f"__import__('os').mkdir({folder!r})"),
        lambda _: Runs(getattr, Runs(__import__, "os"), "mkdir"),
        lambda folder: Runs(np.load, folder),
        lambda _: torch.zeros(1),
    ],
)
def test_a_hostile_pickle_runs_nothing(hostile, protocol, tmp_path):
    folder = tmp_path / "made"
    content = pickle.dumps(gmr(extra=hostile(str(folder))), protocol=protocol)
    path = tmp_path / "hostile.pkl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"hostile\.pkl: the pickle asks for \w+\.\w+"):
        load_clip(path, JOINTS)
    array = tmp_path / "hostile.npy"
    np.save(array, np.array({"extra": hostile(str(folder))}, dtype=object))
    with pytest.raises(ConfigError, match=r"hostile\.npy: the pickle asks for"):
        load_clip(array, JOINTS)
    assert not folder.exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_come_back_whatever_the_protocol(protocol, tmp_path):
    path = tmp_path / "x.pkl"
    fields = gmr(
        fps=np.float32(50),
        dof_pos=np.asfortranarray(ANGLES),
        root_pos=POSITION.astype(">f4"),
        joint_names=np.array(JOINTS, dtype=object),
    )
    path.write_bytes(pickle.dumps(fields, protocol=protocol))
    clip = load_clip(path)
    assert np.allclose(clip.joint_positions, ANGLES)
    assert np.allclose(clip.root_position, POSITION, atol=1e-6)
    assert clip.joint_names == JOINTS
