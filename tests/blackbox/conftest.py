"""Tests of the gateway from outside; all share one event loop and one gateway process."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.blackbox.bench import Bench, lasting, visiting
from tests.support.blackbox.real_gateway import Gateway

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.process)
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_gateway() -> AsyncIterator[Gateway]:
    async with lasting(
        "--probe-interval-s", "0.2", "KVGATE_RETRY_SHARE=1", "--max-body-bytes", str(16 << 20)
    ) as gateway:
        yield gateway


@pytest_asyncio.fixture(loop_scope="session")
async def bench(shared_gateway: Gateway) -> AsyncIterator[Bench]:
    async with visiting(shared_gateway) as bench:
        yield bench
