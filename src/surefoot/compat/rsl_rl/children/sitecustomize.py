"""Run by Python at its start, where `open_in_children` has put this directory on its path."""

import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from pathlib import Path

if find_spec("surefoot") is not None:  # the process may be of another environment
    from surefoot.compat.rsl_rl.install import install

    install()

_here = Path(__file__).parent
_hidden = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if Path(entry) != _here])
if _hidden is not None and _hidden.loader is not None:
    _hidden.loader.exec_module(module_from_spec(_hidden))
