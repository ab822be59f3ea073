"""Tests, which mirror the sources file for file; `data/` has captures and golden answers.

Hypothesis takes the same examples in each run, so that what `make test` says depends on the code alone, and
other ones in each random order (`make flake`). Examples have no deadline, and drawing may be slow: their time
depends on the machine.
"""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("tests.support")  # a failed assertion of a helper shows its values too
settings.register_profile(
    "kvgate",
    deadline=None,
    derandomize="ORDER" not in os.environ,
    database=None,  # a failure of one run must not be found again by the next
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("kvgate")

ROOT = Path(__file__).parent.parent
"""Root folder of the checkout."""
DATA = ROOT / "tests" / "data"
