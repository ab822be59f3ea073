"""`python -m engines.sim` is one simulated engine, as `kvgate sim` is."""

import sys

from engines.sim.cli import main

if __name__ == "__main__":
    sys.exit(main())
