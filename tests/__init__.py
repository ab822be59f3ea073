"""Tests, which mirror the sources file for file; `data/` has captures and golden answers.

Machines that run the tests are shared, so no example of hypothesis fails because it took long.
"""

from pathlib import Path

from hypothesis import settings

settings.register_profile("shared", deadline=None)
settings.load_profile("shared")

ROOT = Path(__file__).parent.parent
"""Root folder of the checkout."""
DATA = ROOT / "tests" / "data"
