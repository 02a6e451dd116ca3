"""`python -m surefoot` is `surefoot`."""

import sys

from surefoot.cli import main

if __name__ == "__main__":
    sys.argv[0] = "surefoot"
    main()
