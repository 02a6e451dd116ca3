"""Film strips and videos of a policy at work."""

import struct
import sys
import zlib

import gymnasium
import numpy as np
import pytest
import torch

from surefoot.deploy.video import film_strip, frames, real_time_fps, record, write_mp4, write_png
from surefoot.errors import ConfigError, EnvContractError, SurefootError
from surefoot.types import Step


class Lamp:
    """One environment whose picture is as bright as the number of steps it has made."""

    num_envs = 1
    device = torch.device("cpu")
    observation_spaces = {"policy": gymnasium.spaces.Box(0, 255, (1,), np.float32)}  # noqa: RUF012
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    max_episode_length = None
    mirror = None
    step_dt = 0.02

    def reset(self, seed=None, mask=None):
        self.steps = 0
        return self._observe()

    def step(self, actions):
        self.steps += 1
        no = torch.zeros(1, dtype=torch.bool)
        return Step(self._observe(), torch.zeros(1), no, no)

    def _observe(self):
        return {"policy": torch.tensor([[float(self.steps)]])}

    def render(self):
        return np.full((6, 9, 3), self.steps, np.uint8)

    def close(self):
        pass


def idle(_):
    return torch.zeros(1, 1)


def read_png(path):
    """A reader for 8-bit RGB pictures of the row filter `up`, as `write_png` makes them."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + body)
        chunks[kind] = body
        at += 12 + length
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
    assert (rows[:, 0] == 2).all()
    return np.cumsum(rows[:, 1:], 0, dtype=np.uint8).reshape(height, width, 3)


def test_a_written_png_reads_back_as_the_same_picture(tmp_path):
    picture = np.random.default_rng(0).integers(0, 256, (13, 7, 3), dtype=np.uint8)
    assert np.array_equal(read_png(write_png(picture, tmp_path / "new" / "p.png")), picture)


def test_another_reader_agrees_on_the_png(tmp_path):
    image = pytest.importorskip("PIL.Image")
    picture = np.random.default_rng(1).integers(0, 256, (13, 7, 3), dtype=np.uint8)
    with image.open(write_png(picture, tmp_path / "p.png")) as opened:
        assert np.array_equal(np.asarray(opened), picture)


def test_frames_keep_the_environments_time():
    # 25 pictures per second of an environment of 50 steps per second: every second step
    assert [int(f[0, 0, 0]) for f in frames(Lamp(), idle, 4, fps=25)] == [0, 2, 4, 6]
    assert [int(f[0, 0, 0]) for f in frames(Lamp(), idle, 3)] == [0, 1, 2]


def test_playback_rate_is_that_of_life():
    # the nearest to 30 pictures per second with a whole number of 20 ms steps between: 2 steps, 25 per second
    assert real_time_fps(Lamp(), 30) == pytest.approx(25)


def test_film_strip_lays_pictures_out_in_rows(tmp_path):
    pictures = [np.full((4, 6, 3), 10 * i, np.uint8) for i in range(3)]
    sheet = read_png(film_strip(pictures, tmp_path / "strip.png", columns=2, gap=1))
    assert sheet.shape == (4 + 1 + 4, 6 + 1 + 6, 3)
    assert (sheet[:4, :6] == 0).all()
    assert (sheet[:4, 7:] == 10).all()
    assert (sheet[5:, :6] == 20).all()
    assert (sheet[5:, 7:] == 255).all()  # nothing there


def test_film_strip_shrinks_by_averaging_blocks(tmp_path):
    picture = np.zeros((4, 4, 3), np.uint8)
    picture[:2, 0] = 100  # half of the first 2 × 2 block
    sheet = read_png(film_strip([picture], tmp_path / "strip.png", scale=2))
    assert sheet.shape == (2, 2, 3)
    assert sheet[0, 0].tolist() == [50, 50, 50]
    assert (sheet.reshape(-1, 3)[1:] == 0).all()


def test_record_writes_the_last_pictures_as_a_film_strip(tmp_path):
    sheet = read_png(record(Lamp(), idle, tmp_path / "walk.png", seconds=1.0))
    # 25 pictures; the strip keeps the last 16, four to a row; the first of them was taken after 9 · 2 steps
    assert sheet.shape == (4 * 3 + 3 * 4, 4 * 4 + 3 * 4, 3)
    assert sheet[0, 0, 0] == 18


def test_record_writes_a_playable_video(tmp_path):
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    path = record(Lamp(), idle, tmp_path / "walk.mp4", seconds=0.4)
    count, seconds = ffmpeg.count_frames_and_secs(str(path))
    assert count == 10
    assert seconds == pytest.approx(10 / 25)


def test_missing_ffmpeg_package_is_named_with_the_command_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(SurefootError, match=r"pip install 'surefoot\[video\]'"):
        write_mp4([np.zeros((4, 4, 3), np.uint8)], tmp_path / "walk.mp4")


def test_unknown_ending_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"\.mp4 \(video\) or \.png"):
        record(Lamp(), idle, tmp_path / "walk.gif")


def test_nothing_to_show_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="at least one picture"):
        film_strip([], tmp_path / "strip.png")


def test_environment_without_pictures_is_named():
    class Blind(Lamp):
        render = None

    with pytest.raises(EnvContractError, match="Blind has no render"):
        next(frames(Blind(), idle, 1))

    class Sketch(Lamp):
        def render(self):
            return np.zeros((6, 9))

    with pytest.raises(EnvContractError, match=r"float64 of shape \(6, 9\)"):
        next(frames(Sketch(), idle, 1))
