"""Settings and fixtures of all tests."""

import gc
import logging
import os
import random
import sys
from collections.abc import Generator, Iterator

import pytest

from gateway.runtime import paced_reads
from tests.support import dead_workers, hanging, life_line, preloaded, shared_tokenizers
from tests.support.engine_figures import EngineFigures, figures_of, report
from tests.support.leaks import LeakCollector
from tests.support.patience import lengthen_limits

# Hundreds of processes start; where none may write bytecode, each one compiles all that it imports,
# which doubles the CPU time of a start. The Makefile takes this away too, for what runs without pytest.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["HF_HUB_OFFLINE"] = "1"  # before the library that reads it is imported: no test asks the hub

# The order of sets can be repeated. Python reads the seed of its hashes when it starts: this is the seed of
# pytest-xdist's processes and of what tests start.
HAS_CHOSEN_SEED = os.environ.get("PYTHONHASHSEED", "random") == "random"
if HAS_CHOSEN_SEED:
    os.environ["PYTHONHASHSEED"] = str(random.SystemRandom().randrange(1 << 32))

# Each model is loaded and proved once for all tests, except those that test the loads (tests/tokenization).
shared_tokenizers.share()


def pytest_report_header(config: pytest.Config) -> str:
    is_own = not HAS_CHOSEN_SEED or config.getoption("numprocesses", None)
    of = "" if is_own else " of the processes that tests start, not of this one: set it before the start"
    return f"hash seed: PYTHONHASHSEED={os.environ['PYTHONHASHSEED']}{of}"


def pytest_configure(config: pytest.Config) -> None:
    dead_workers.install()
    config.pluginmanager.register(LeakCollector())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    lengthen_limits(items)


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
        life_line.install(os.getppid() if hasattr(session.config, "workerinput") else None)
        preloaded.install()


def pytest_sessionfinish() -> None:
    preloaded.uninstall()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    report(terminalreporter, config)
    if config.get_verbosity() < 0 and terminalreporter.stats.get("failed"):  # -q prints no header
        terminalreporter.write_line(pytest_report_header(config))


@pytest.fixture(scope="session")
def figures(pytestconfig: pytest.Config) -> EngineFigures:
    """Figures that the report of the tests ends with."""
    return figures_of(pytestconfig)


@pytest.fixture(autouse=True, scope="session")
def reads_are_one_turn() -> Iterator[None]:
    """Stop the clock of large reads in this process: a pause of the machine must not split them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paced_reads, "monotonic", lambda: 0.0)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool, bool]:
    """Limit the time of each test, and restore the log level of the process, which a reload of a gateway's
    configuration changes."""
    root = logging.getLogger()
    level = root.level
    try:
        with hanging.limited(item):
            return (yield)
    finally:
        if root.level != level:  # setting it clears the cache of each logger
            root.setLevel(level)
