"""`python -m kvgate` is the `kvgate` command."""

import sys

from gateway.cli import main

if __name__ == "__main__":
    sys.exit(main())
