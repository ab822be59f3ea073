"""The tests here see the gateway from outside; all share one event loop and one gateway process."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.blackbox.harness import Bench, Gateway

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.process)
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_gateway() -> AsyncIterator[Gateway]:
    gateway = await Gateway.start("--probe-interval-s", "0.2", "--max-body-bytes", str(16 << 20))
    yield gateway
    code = await gateway.stop()
    assert code == 0, "\n".join(gateway.log)
    assert not gateway.faults(), "\n".join(gateway.faults())


@pytest_asyncio.fixture(loop_scope="session")
async def bench(shared_gateway: Gateway) -> AsyncIterator[Bench]:
    """The shared gateway with no workers; those that the test adds are dropped after it."""
    num_faults = len(shared_gateway.faults())
    bench = Bench(shared_gateway)
    yield bench
    await bench.close()
    assert not shared_gateway.faults()[num_faults:], "\n".join(shared_gateway.log[-40:])
