"""Requests that /admin/adapters accepts and rejects; test_lora_loading.py has their effect."""

from typing import Any

import pytest

from tests.support.stories.adapter_loading import ask_adapters, loading_fleet
from tests.support.stories.joining_fleet import joining_fleet

pytestmark = pytest.mark.process

GOOD = {"adapter": "a", "path": "/x"}


async def test_adapter_loading_is_off_by_default_and_the_error_names_the_flag() -> None:
    async with joining_fleet() as f:
        sim = await f.join("m", runtime_lora=True)
        for method, path in (("POST", ""), ("DELETE", "/a")):
            status, body = await ask_adapters(f, method, path, json=GOOD)
            assert status == 403 and "--admin-load-adapters" in body["error"]["message"]
        assert sim.engine and sim.engine.adapters == {}
        assert await ask_adapters(f, "GET") == (200, {"adapters": []})


@pytest.mark.parametrize(
    ("how", "status", "message"),
    [
        ({"data": b"{}"}, 415, "send a body of type application/json"),
        ({"json": {"adapter": "a"}}, 400, "Object missing required field `path`"),
        ({"json": {**GOOD, "load_inplace": True}}, 400, "Object contains unknown field `load_inplace`"),
        ({"json": {**GOOD, "workers": "all"}}, 400, "Expected `array`"),
        ({"data": b"{", "headers": {"content-type": "application/json"}}, 400, "Input data was truncated"),
        ({"json": GOOD}, 404, "no worker has joined"),
    ],
)
async def test_a_malformed_load_is_rejected_with_the_reason(
    how: dict[str, Any], status: int, message: str
) -> None:
    async with loading_fleet() as f:
        found, body = await ask_adapters(f, "POST", **how)
        assert (found, message in body["error"]["message"]) == (status, True), body


async def test_an_unknown_query_parameter_is_rejected_with_the_known_ones() -> None:
    async with loading_fleet() as f:
        status, body = await ask_adapters(f, "DELETE", "/a?workers=x")
        assert (status, body["error"]["message"]) == (
            400,
            "unknown parameter ?workers=; known: ?worker= and ?model=",
        )
        assert (await ask_adapters(f, "POST", "/names", data=b"{}"))[0] == 415
