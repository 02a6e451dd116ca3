"""`python -m surefoot.compat.rsl_rl SCRIPT ARGS...` is `surefoot rsl-rl SCRIPT ARGS...`."""

import sys

from surefoot.cli import main

sys.argv.insert(1, "rsl-rl")
main()
