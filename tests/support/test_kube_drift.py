"""The fake Kubernetes API server gives the answers of a real one (tests/kube/test_drift.py asks that)."""

import pytest

from tests.support.kube_api import served_api
from tests.support.kube_drift import DRIFT, FAKE_ONLY, FakeWorld, shapes


@pytest.mark.parametrize("name", DRIFT)
async def test_the_fake_answers_as_the_table_says(name: str) -> None:
    run, expected = DRIFT[name]
    async with served_api() as (api, _):
        assert await shapes(FakeWorld(api), run) == expected


@pytest.mark.parametrize("name", FAKE_ONLY)
async def test_the_fake_serves_what_the_real_one_is_too_old_for(name: str) -> None:
    run, expected, _ = FAKE_ONLY[name]
    async with served_api() as (api, _client):
        assert await shapes(FakeWorld(api), run) == expected
