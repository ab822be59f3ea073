"""Settings and fixtures of all tests."""

import gc
import logging
import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support import preloaded, shared_tokenizers

# Hundreds of processes start; where none may write bytecode, each one compiles all that it imports,
# which doubles the CPU time of a start. The Makefile takes this away too, for what runs without pytest.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["HF_HUB_OFFLINE"] = "1"  # before the library that reads it is imported: no test asks the hub

# Examples have no deadline, and drawing may be slow: their time depends on the machine.
settings.register_profile("kvgate", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kvgate")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Freeze the thousands of collected tests, so that the garbage collector does not scan them each time."""
    gc.collect()
    gc.freeze()
    is_parent = session.config.getoption("numprocesses", None)
    if (
        sys.platform.startswith("linux")
        and not is_parent
        and any(item.get_closest_marker("process") for item in session.items)
    ):
        preloaded.install()


def pytest_sessionfinish() -> None:
    preloaded.uninstall()


@pytest.fixture(autouse=True)
def gateways_share_tokenizers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Load and prove each model once for all tests of whole gateways; others test the loads themselves."""
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("process"):
            shared_tokenizers.share(patch.setattr)
        yield


@pytest.fixture(autouse=True)
def restored_log_level() -> Iterator[None]:
    """Restore the log level of the process, which a reload of a gateway's configuration changes."""
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)
