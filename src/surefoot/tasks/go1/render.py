"""Pictures of a Go1: an offscreen renderer with a camera that follows the robot.

OpenGL is loaded with the first picture, not before. Without a display it is reached through EGL, which needs
neither a screen nor a GPU; `MUJOCO_GL` (`egl`, `osmesa`, `glfw`) overrides the choice.
"""

# pyright: reportAttributeAccessIssue=false
# mujoco has no type stubs
from __future__ import annotations

import os
import sys
from typing import Any

import mujoco
import numpy as np

from surefoot.errors import SurefootError
from surefoot.tasks.go1.model import load_model

CAMERA_DISTANCE, CAMERA_HEIGHT = 1.35, 0.2
"""m, from the point that the camera looks at, and that point above the floor."""
CAMERA_AZIMUTH, CAMERA_ELEVATION = 115.0, -14.0
"""Degrees: from the right, a little from the front and from above."""
COMMAND_COLOR = np.array([0.15, 0.65, 0.30, 0.9], np.float32)


def _gl_context(width: int, height: int) -> Any:
    """An offscreen OpenGL context; `mujoco.GLContext` is fixed at import, this is chosen now."""
    has_screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    try:
        if sys.platform.startswith("linux") and not has_screen and not os.environ.get("MUJOCO_GL"):
            from mujoco.egl import GLContext
        else:
            GLContext = mujoco.GLContext  # noqa: N806
        return GLContext(width, height)
    except (ImportError, AttributeError, OSError, RuntimeError, mujoco.FatalError) as e:
        raise SurefootError(
            f"No OpenGL for pictures: {e}. On a machine without a screen, install EGL (Debian: libegl1 "
            "libgl1-mesa-dri) or set MUJOCO_GL=osmesa before Python starts."
        ) from e


class Go1Renderer:
    """Draws one robot; holds an OpenGL context until `close`."""

    def __init__(self, width: int = 640, height: int = 480) -> None:
        self.width, self.height = width, height
        self._model = load_model()
        self._data = mujoco.MjData(self._model)
        self._gl = _gl_context(width, height)
        self._gl.make_current()
        self._context = mujoco.MjrContext(self._model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._context)
        self._scene = mujoco.MjvScene(self._model, maxgeom=100)
        # shadows and reflections cost more than the rest of the picture on a software renderer
        self._scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
        self._scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
        self._options = mujoco.MjvOption()
        self._camera = mujoco.MjvCamera()
        self._camera.distance = CAMERA_DISTANCE
        self._camera.azimuth, self._camera.elevation = CAMERA_AZIMUTH, CAMERA_ELEVATION

    def render(self, qpos: np.ndarray, command: np.ndarray | None = None) -> np.ndarray:
        """uint8 [height, width, 3] of the robot at `qpos` [19], with `command` [3] as an arrow above it."""
        self._data.qpos[:] = qpos
        mujoco.mj_kinematics(self._model, self._data)
        mujoco.mj_comPos(self._model, self._data)
        mujoco.mj_camlight(self._model, self._data)
        self._camera.lookat[:] = qpos[0], qpos[1], CAMERA_HEIGHT  # not the trunk's own height: it bounces
        self._gl.make_current()
        mujoco.mjv_updateScene(
            self._model,
            self._data,
            self._options,
            None,
            self._camera,
            mujoco.mjtCatBit.mjCAT_ALL.value,
            self._scene,
        )
        if command is not None:
            self._draw_command(qpos, command)
        pixels = np.empty((self.height, self.width, 3), np.uint8)
        viewport = mujoco.MjrRect(0, 0, self.width, self.height)
        mujoco.mjr_render(viewport, self._scene, self._context)
        mujoco.mjr_readPixels(pixels, None, viewport, self._context)
        return np.ascontiguousarray(pixels[::-1])  # OpenGL's first row is the lowest

    def _draw_command(self, qpos: np.ndarray, command: np.ndarray) -> None:
        w, x, y, z = qpos[3:7]
        yaw = np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
        direction = np.array(
            [
                np.cos(yaw) * command[0] - np.sin(yaw) * command[1],
                np.sin(yaw) * command[0] + np.cos(yaw) * command[1],
                0.0,
            ]
        )
        if np.linalg.norm(direction) < 0.05:
            return
        start = qpos[:3] + np.array([0.0, 0.0, 0.16])
        arrow = self._scene.geoms[self._scene.ngeom]
        mujoco.mjv_initGeom(
            arrow, mujoco.mjtGeom.mjGEOM_ARROW.value, np.zeros(3), np.zeros(3), np.zeros(9), COMMAND_COLOR
        )
        mujoco.mjv_connector(arrow, mujoco.mjtGeom.mjGEOM_ARROW.value, 0.012, start, start + 0.3 * direction)
        self._scene.ngeom += 1

    def close(self) -> None:
        """Free the OpenGL context."""
        self._gl.make_current()
        self._context.free()
        self._gl.free()
