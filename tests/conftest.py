"""For all tests."""

import gc
import logging
import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support import preloaded

# Hundreds of processes start; where none may write bytecode, each compiles for itself all that it imports,
# which doubles the CPU time of a start. The Makefile takes this away too, for what runs without pytest.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["HF_HUB_OFFLINE"] = "1"  # before anybody imports the library that reads it: no test asks the hub

# No example has a deadline, and drawing may be slow: how long it takes is the machine's affair.
settings.register_profile("kvgate", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kvgate")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Thirteen thousand tests stay until the end: the garbage collector need not look at them each time."""
    gc.collect()
    gc.freeze()
    is_parent = session.config.getoption("numprocesses", None)
    is_ours = sys.platform.startswith("linux") and "GATEWAY_PYTHON" not in os.environ
    if is_ours and not is_parent and any(item.get_closest_marker("process") for item in session.items):
        preloaded.install()


def pytest_sessionfinish() -> None:
    preloaded.uninstall()


@pytest.fixture(autouse=True)
def level_of_the_log() -> Iterator[None]:
    """A gateway that reads its configuration anew sets it for the whole process."""
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)
