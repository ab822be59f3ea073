"""Program of one simulated engine, the same as `kvgate sim`."""

import sys

from engines.sim.cli import main

if __name__ == "__main__":
    sys.exit(main())
