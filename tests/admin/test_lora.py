"""What /admin/adapters takes; what comes of it is in test_loading.py."""

from typing import Any

import pytest

from tests.discovery.test_lora_loading import ask, loading
from tests.stories.test_model import fleet

pytestmark = pytest.mark.process

GOOD = {"adapter": "a", "path": "/x"}


async def test_it_is_off_unless_asked_for_and_says_how_to_turn_it_on() -> None:
    async with fleet() as f:
        sim = await f.join("m", runtime_lora=True)
        for method, path in (("POST", ""), ("DELETE", "/a")):
            status, told = await ask(f, method, path, json=GOOD)
            assert status == 403 and "--admin-load-adapters" in told["error"]["message"]
        assert sim.engine and sim.engine.adapters == {}
        assert await ask(f, "GET") == (200, {"adapters": []})


@pytest.mark.parametrize(
    ("how", "status", "message"),
    [
        ({"data": b"{}"}, 415, "send application/json"),
        ({"json": {"adapter": "a"}}, 400, "Object missing required field `path`"),
        ({"json": {**GOOD, "load_inplace": True}}, 400, "Object contains unknown field `load_inplace`"),
        ({"json": {**GOOD, "workers": "all"}}, 400, "Expected `array`"),
        ({"data": b"{", "headers": {"content-type": "application/json"}}, 400, "Input data was truncated"),
        ({"json": GOOD}, 404, "no worker has joined"),
    ],
)
async def test_what_it_takes(how: dict[str, Any], status: int, message: str) -> None:
    async with loading() as f:
        found, told = await ask(f, "POST", **how)
        assert (found, message in told["error"]["message"]) == (status, True), told


async def test_others_are_told_what_there_is() -> None:
    async with loading() as f:
        status, told = await ask(f, "DELETE", "/a?workers=x")
        assert (status, told["error"]["message"]) == (400, "?workers= is none of ?worker= and ?model=")
        assert (await ask(f, "POST", "/names", data=b"{}"))[0] == 415
