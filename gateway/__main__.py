"""`python -m gateway` is the `kvgate` command."""

import sys

from gateway.cli import main

sys.exit(main())
