"""Engines that leave out cached tokens where there are none: simulated engines behind a gateway."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engines.sim.job import HttpJob
from tests.support.stories.worker_story import worker_story

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

USAGE: Callable[..., Any] = HttpJob.usage


def _usage(job: HttpJob, with_details: bool) -> Any:
    """Return a usage as vLLM wrote it until mid 2026: null in an answer, nothing in a stream."""
    counts = USAGE(job, with_details)
    return counts if counts.cached else replace(counts, cached=None)


@pytest.mark.parametrize("stream", [True, False])
async def test_misses_are_compared_once_a_hit_was_reported(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HttpJob, "usage", _usage)
    async with worker_story(1, usage_injection="all") as s:

        async def compared(first: int) -> int:
            assert await s.ask(1, stream=stream, prompt=list(range(first, first + 100)))
            ((worker,),) = [(await s.admin("/admin/verify"))["workers"]]
            return int(worker["compared"])

        assert [await compared(first) for first in (100, 100, 300, 500)] == [0, 1, 2, 3]
