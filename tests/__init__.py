"""The tests, file for file as the sources; `data/` holds captures and golden answers.

Machines that run them are shared: no example fails because it took long.
"""

from pathlib import Path

from hypothesis import settings

settings.register_profile("shared", deadline=None)
settings.load_profile("shared")

ROOT = Path(__file__).parent.parent
"""The checkout."""
DATA = ROOT / "tests" / "data"
