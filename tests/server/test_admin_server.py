"""Check of Host and Origin before an application."""

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gateway.config import config_of
from gateway.server.admin_server import add_judge, allowed_hosts

pytestmark = pytest.mark.process


async def hello(request: web.Request) -> web.Response:
    return web.Response(text="hello")


async def test_a_request_is_checked_before_all_else() -> None:
    app = web.Application()
    app.add_routes([web.get("/health", hello), web.get("/admin/x", hello)])
    add_judge(app, config_of(admin_host="gw.example"))
    async with TestClient(TestServer(app)) as client:
        for host, status in (("gw.example:1", 200), ("localhost", 200), ("evil.example", 403)):
            answer = await client.get("/admin/x", headers={"Host": host})
            assert answer.status == status
        assert "the Host 'evil.example' is not allowed" in (await answer.json())["error"]["message"]
        assert (await client.get("/nothing", headers={"Host": "evil.example"})).status == 403
        assert (await client.get("/health", headers={"Host": "evil.example"})).status == 200
        assert (await client.get("/admin/x", headers={"Sec-Fetch-Site": "cross-site"})).status == 403


def test_the_bound_name_and_any_address_are_allowed() -> None:
    assert "'gw'" in repr(allowed_hosts(config_of(admin_host="gw", admin_allowed_hosts=["a.example"])))
    assert "0.0.0.0" not in repr(allowed_hosts(config_of(admin_host="0.0.0.0")))
