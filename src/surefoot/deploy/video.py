"""Pictures of a policy at work: frames from any environment that renders, as a film strip (PNG) or a video
    (mp4).

The film strip needs nothing beyond numpy; the video needs the extra `surefoot[video]`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surefoot.envs.vec_env import VecEnv
from surefoot.errors import ConfigError, EnvContractError, SurefootError
from surefoot.types import Observations

Frame = NDArray[np.uint8]
"""[height, width, 3]."""

DEFAULT_FPS = 30
"""Frames per second for an environment that does not tell how long its steps last."""


def frames(
    env: VecEnv,
    policy: Callable[[Observations], Tensor],
    num_frames: int,
    fps: float | None = None,
    seed: int | None = None,
) -> Iterator[Frame]:
    """Run `policy` and render environment 0, one picture per `1/fps` seconds of the environment's time.

    Args:
        env: Must have `render() -> uint8 [height, width, 3]`. It is reset first.
        policy: Observations -> actions.
        num_frames: How many pictures.
        fps: Pictures per second; at most one per step. None: one picture per step.
        seed: Passed to `env.reset`.
    """
    render = getattr(env, "render", None)
    if render is None:
        raise EnvContractError(
            f"{type(env).__name__} has no render(); give it one that returns uint8 [height, width, 3] of "
            "environment 0."
        )
    stride = 1 if fps is None or not env.step_dt else max(1, round(1.0 / (fps * env.step_dt)))
    reset = getattr(policy, "reset", None)
    obs = env.reset(seed=seed)
    for i in range(num_frames):
        yield _checked(render(), env)
        if i + 1 < num_frames:
            for _ in range(stride):
                with torch.no_grad():
                    actions = policy(obs)
                step = env.step(actions)
                obs = step.observations
                if reset is not None:
                    reset(step.starts)


def real_time_fps(env: VecEnv, fps: float = DEFAULT_FPS) -> float:
    """The rate near `fps` at which pictures taken every whole number of steps play at the speed of life."""
    if not env.step_dt:
        return fps
    return 1.0 / (env.step_dt * max(1, round(1.0 / (fps * env.step_dt))))


def film_strip(
    pictures: Iterable[Frame], path: str | Path, columns: int = 4, scale: int = 1, gap: int = 4
) -> Path:
    """Write pictures side by side, `columns` to a row, as one PNG.

    Args:
        pictures: All of the same size.
        path: Where to; the folder is made.
        columns: Pictures per row.
        scale: Shrink each picture by this whole number (blocks of pixels are averaged).
        gap: Pixels of white between pictures.
    """
    shrunk = [_shrink(p, scale) for p in pictures]
    if not shrunk:
        raise ConfigError("A film strip needs at least one picture; got none.")
    height, width, _ = shrunk[0].shape
    columns = min(columns, len(shrunk))
    rows = -(-len(shrunk) // columns)
    sheet = np.full((rows * (height + gap) - gap, columns * (width + gap) - gap, 3), 255, np.uint8)
    for i, picture in enumerate(shrunk):
        top, left = (i // columns) * (height + gap), (i % columns) * (width + gap)
        sheet[top : top + height, left : left + width] = picture
    return write_png(sheet, path)


def write_png(image: Frame, path: str | Path) -> Path:
    """An 8-bit RGB picture as PNG (ISO/IEC 15948), every row filtered by the difference to the row above."""
    height, width, _ = image.shape
    above = np.vstack([np.zeros((1, width, 3), np.uint8), image[:-1]])
    filtered = np.empty((height, 1 + width * 3), np.uint8)
    filtered[:, 0] = 2  # filter type "up"
    filtered[:, 1:] = (image - above).reshape(height, -1)  # uint8 wraps around, as the format wants

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(filtered.tobytes(), 6))
        + chunk(b"IEND", b"")
    )
    return path


def write_mp4(pictures: Iterable[Frame], path: str | Path, fps: float = DEFAULT_FPS) -> Path:
    """Write pictures as an H.264 video, one at a time, so that a long one needs no memory.

    Raises:
        SurefootError: `imageio-ffmpeg` is not installed.
    """
    try:
        import imageio_ffmpeg  # pyright: ignore[reportMissingImports]
    except ImportError as e:
        raise SurefootError(
            "An mp4 needs the package imageio-ffmpeg, which is not installed; run `pip install "
            "'surefoot[video]'`, or give a file name ending in .png for a film strip."
        ) from e
    iterator = iter(pictures)
    first = next(iterator, None)
    if first is None:
        raise ConfigError("A video needs at least one picture; got none.")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    height, width = (n - n % 2 for n in first.shape[:2])  # H.264 wants even sides
    # the generator starts ffmpeg when it is primed and ends it when it is closed
    writer = imageio_ffmpeg.write_frames(
        str(path),
        (width, height),
        fps=fps,  # pyright: ignore[reportArgumentType]
        codec="libx264",
        quality=7,
        macro_block_size=1,
        ffmpeg_log_level="error",
    )
    writer.send(None)
    try:
        writer.send(np.ascontiguousarray(first[:height, :width]))
        for picture in iterator:
            writer.send(np.ascontiguousarray(picture[:height, :width]))
    finally:
        writer.close()
    return path


def record(
    env: VecEnv,
    policy: Callable[[Observations], Tensor],
    path: str | Path,
    seconds: float = 10.0,
    fps: float = DEFAULT_FPS,
    seed: int | None = None,
) -> Path:
    """A video (`.mp4`) or a film strip (`.png`, 16 pictures over the last second) of the policy, by the
    file's ending.

    Raises:
        ConfigError: Another ending.
    """
    path = Path(path)
    fps = real_time_fps(env, fps)
    num_frames = max(1, round(seconds * fps))
    pictures = frames(env, policy, num_frames, fps, seed)
    if path.suffix == ".mp4":
        return write_mp4(pictures, path, fps)
    if path.suffix == ".png":
        return film_strip(islice(pictures, max(0, num_frames - 16), None), path, columns=4, scale=2)
    raise ConfigError(f"Cannot write '{path.name}': the ending must be .mp4 (video) or .png (film strip).")


def _shrink(picture: Frame, scale: int) -> Frame:
    if scale == 1:
        return picture
    height, width = (n - n % scale for n in picture.shape[:2])
    blocks = picture[:height, :width].reshape(height // scale, scale, width // scale, scale, 3)
    return blocks.mean((1, 3)).round().astype(np.uint8)


def _checked(picture: Frame | Sequence[Frame], env: VecEnv) -> Frame:
    array = np.asarray(picture)
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
        raise EnvContractError(
            f"{type(env).__name__}.render() returned {array.dtype} of shape {array.shape}; expected uint8 "
            "[height, width, 3] of environment 0."
        )
    return array
