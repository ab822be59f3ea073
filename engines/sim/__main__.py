"""Entry point of `python -m engines.sim`: one simulated worker on this machine."""

import sys

from engines.sim.cli import main

sys.exit(main())
