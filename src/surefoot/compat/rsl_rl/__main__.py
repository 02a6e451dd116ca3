"""`python -m surefoot.compat.rsl_rl SCRIPT ARGS...` is `surefoot rsl-rl SCRIPT ARGS...`."""

import sys

from surefoot.cli import cli

cli(["rsl-rl", *sys.argv[1:]])
