"""For all tests."""

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

os.environ["HF_HUB_OFFLINE"] = "1"  # before anybody imports the library that reads it: no test asks the hub

# No example has a deadline, and drawing may be slow: how long it takes is the machine's affair.
settings.register_profile("kvgate", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kvgate")


@pytest.fixture(autouse=True)
def level_of_the_log() -> Iterator[None]:
    """A gateway that reads its configuration anew sets it for the whole process."""
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)
