"""MuJoCo models of the Go1: the fast one for training, the accurate one for checking, and randomised
variants.
"""

# pyright: reportAttributeAccessIssue=false
# mujoco has no type stubs
from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import mujoco
import numpy as np

Physics = Literal["fast", "accurate"]

_XML = Path(__file__).with_name("go1.xml")


@dataclass(frozen=True)
class Variant:
    """One robot of the randomised set."""

    friction: float
    """Of feet and floor; 0.8 without randomisation."""
    added_mass: float
    """kg, on the trunk."""
    trunk_shift: np.ndarray
    """[3] m, of the trunk's centre of mass."""


def load_model(physics: Physics = "fast") -> mujoco.MjModel:
    """The Go1 on a plane.

    `fast` is `go1.xml`: 10 ms steps, ten sweeps of projected Gauss-Seidel, and only feet meet the floor.
    `accurate` has 2 ms steps, a converged Newton solver, and every body collides with the floor and with the
    others.
    """
    if physics == "fast":
        return mujoco.MjModel.from_xml_path(str(_XML))
    spec = mujoco.MjSpec.from_file(str(_XML))
    for geom in spec.geoms:
        if geom.group == 0:  # group 1 is only seen
            geom.contype = geom.conaffinity = 1
    spec.option.timestep = 0.002
    spec.option.solver = mujoco.mjtSolver.mjSOL_NEWTON
    spec.option.iterations = 100
    return spec.compile()


def substeps(model: mujoco.MjModel, step_dt: float) -> int:
    """Physics steps per environment step of `step_dt` seconds."""
    return round(step_dt / model.opt.timestep)


def variants(count: int) -> list[Variant]:
    """A fixed, evenly spread set of robots (the same in every run), so that results differ by the seed alone.

    Friction runs from 0.5 to 1.25, trunk mass from -0.5 to +1.5 kg, the centre of mass within ±2 cm.
    """
    spread = np.linspace(0.0, 1.0, count)
    order = np.random.default_rng(0)
    mass, shift = order.permutation(spread), np.stack([order.permutation(spread) for _ in range(3)], 1)
    return [
        Variant(
            friction=float(0.5 + 0.75 * spread[i]),
            added_mass=float(2.0 * mass[i] - 0.5),
            trunk_shift=0.04 * shift[i] - 0.02,
        )
        for i in range(count)
    ]


def vary(model: mujoco.MjModel, variant: Variant) -> mujoco.MjModel:
    """A copy of the model with the changes of `variant`."""
    varied = copy.copy(model)
    trunk = varied.body("trunk").id
    varied.pair_friction[:, :2] = variant.friction
    scale = 1.0 + variant.added_mass / varied.body_mass[trunk]
    varied.body_mass[trunk] *= scale
    varied.body_inertia[trunk] *= scale
    varied.body_ipos[trunk] += variant.trunk_shift
    mujoco.mj_setConst(varied, mujoco.MjData(varied))
    return varied
