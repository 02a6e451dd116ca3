"""When an episode of go1-walk has ended in failure: pure functions RobotState -> [N] bool."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from surefoot.tasks.go1.state import RobotState


def tipped_over(state: RobotState) -> NDArray[np.bool_]:
    """The trunk leans more than 60 degrees."""
    return state.gravity_b[:, 2] > -0.5


def collapsed(state: RobotState) -> NDArray[np.bool_]:
    """The trunk is less than 15 cm above the floor."""
    return state.height < 0.15


Term = Callable[[RobotState], NDArray[np.bool_]]

TERMS: dict[str, Term] = {
    "tipped_over": tipped_over,
    "collapsed": collapsed,
}
