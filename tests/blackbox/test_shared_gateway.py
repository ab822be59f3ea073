"""A gateway of several tests: what one of them does to it fails that one only."""

import pytest

from tests.support.blackbox.bench import lasting, visiting
from tests.support.blackbox.http1_bytes import completion, post
from tests.support.patience import until


async def test_a_killed_gateway_fails_the_test_that_killed_it_and_no_later_one() -> None:
    async with lasting("--probe-interval-s", "0.2") as gateway:
        with pytest.raises(AssertionError, match="a test of a gateway of several ended it"):
            async with visiting(gateway):
                gateway.process.kill()
                await gateway.process.wait()
        async with visiting(gateway) as bench:
            await bench.worker()
            assert (await bench.ask(post(completion()))).status == 200


async def test_a_failed_test_leaves_no_worker() -> None:
    async with lasting("--probe-interval-s", "0.2") as gateway:

        async def are_gone() -> bool:
            return (await gateway.admin("GET", "/admin/workers")).json["endpoints"] == []

        with pytest.raises(ExceptionGroup, match="faults of the test"):
            async with visiting(gateway) as bench:
                worker = await bench.worker()

                async def fail() -> None:
                    raise ExceptionGroup("faults of the test", [ValueError(worker.url)])

                bench.nothing_in_flight = fail  # type: ignore[method-assign]
        await until(are_gone, "the failed test's worker is dropped")
