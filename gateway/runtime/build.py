"""Version of kvgate, and whether the data path runs as machine code or as Python."""

from pathlib import Path

from gateway.runtime import deadline_timer

VERSION = "0.1.0"
is_compiled = Path(deadline_timer.__file__ or "").suffix != ".py"
"""True in the wheel, false in a checkout; see setup.py."""
