"""Audit log: which calls get a line, and that it has who, what, from where and the result, and no secret."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gateway.admin.audit import CALLER_HEADER, MAX_LINES_PER_MINUTE, AuditLog, caller_of, is_audited
from gateway.admin.auth import add_guard
from gateway.admin.console.login import login_handlers
from gateway.config import config_of
from gateway.tenancy.auth.api_keys import make_key
from gateway.tenancy.auth.credentials import Credentials
from gateway.tenancy.auth.key_format import format_key_record

pytestmark = pytest.mark.process

ROOT, PLAIN, FOREIGN = (make_key(bytes([n] * 6), bytes([n] * 32)) for n in range(3))
FOREIGN_SECRET = "canary-4711-not-one-of-ours"


@pytest.mark.parametrize(
    ("method", "path", "status", "is_one"),
    [
        ("GET", "/admin/workers", 200, False),
        ("GET", "/admin/workers", 404, False),
        ("HEAD", "/metrics", 200, False),
        ("GET", "/admin/workers", 401, True),
        ("GET", "/metrics", 403, True),
        ("POST", "/admin/workers", 200, True),
        ("POST", "/admin/workers", 400, True),
        ("DELETE", "/admin/workers/w", 404, True),
        ("POST", "/login", 401, True),
        ("OPTIONS", "/admin/workers", 405, True),
        ("POST", "/admin/explain", 200, False),
        ("POST", "/admin/explain", 401, True),
    ],
)
def test_changes_and_refusals_are_audited(method: str, path: str, status: int, is_one: bool) -> None:
    assert is_audited(method, path, status) is is_one


def test_a_key_in_a_path_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kvgate.audit")
    key = ROOT.decode()
    for status in (200, 404):
        AuditLog().add(
            ("DELETE", f"/admin/workers/{key}", "no key", "10.0.0.1"), status, f"no worker '{key}'"
        )
    text = caplog.text
    assert text.count(key[:17]) == 3 and key not in text and key[17:] not in text


class Clock:
    now_s = 6000.0

    def __call__(self) -> float:
        return self.now_s


def test_refusals_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    audit = AuditLog(clock)
    caplog.set_level(logging.INFO, "kvgate.audit")
    for _ in range(50 * MAX_LINES_PER_MINUTE):
        audit.add(("GET", "/admin/x", "no key", "10.0.0.1"), 401, "API key missing")
    assert len(caplog.records) == MAX_LINES_PER_MINUTE + 1
    assert "too many refused calls from 10.0.0.1" in caplog.records[-1].getMessage()
    audit.add(("POST", "/admin/x", "key 'a'", "10.0.0.2"), 200, "")
    assert caplog.records[-1].getMessage() == "admin API: POST /admin/x by key 'a' from 10.0.0.2: 200"
    clock.now_s += 60
    audit.add(("GET", "/admin/x", "no key", "10.0.0.1"), 401, "API key missing")
    assert caplog.records[-1].getMessage().endswith("by no key from 10.0.0.1: 401, API key missing")


def test_a_line_is_short(caplog: pytest.LogCaptureFixture) -> None:
    AuditLog().add(("POST", "/" + "x" * 9000, "no key", "10.0.0.1"), 404, "y" * 9000)
    assert len(caplog.records[-1].getMessage()) < 700


async def show_caller(request: web.Request) -> web.Response:
    return web.Response(text=caller_of(request))


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator["TestClient[web.Request, web.Application]"]:
    path = tmp_path / "keys"
    plain = format_key_record(PLAIN, bytes(16), "acme")
    path.write_text("\n".join([format_key_record(ROOT, bytes(16), "ops", admin=True), plain]))
    config = config_of(admin_auth="api", admin_key_file=str(path))
    app = web.Application()
    app.router.add_route("*", "/admin/x", show_caller)
    app.router.add_post("/login", login_handlers()["login"])
    add_guard(app, Credentials(config), config)
    async with TestClient(TestServer(app)) as client:
        yield client


async def test_each_call_is_written_with_its_caller(
    guarded: "TestClient[web.Request, web.Application]", caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def line(method: str, path: str, **sent: object) -> str:
        caplog.clear()
        await guarded.request(method, path, **sent)  # type: ignore[arg-type]
        lines = [record.getMessage() for record in caplog.records if record.name == "kvgate.audit"]
        assert FOREIGN_SECRET not in caplog.text and ROOT.decode()[17:] not in caplog.text
        (found,) = lines or [""]
        return found

    root, ip = {"Authorization": f"Bearer {ROOT.decode()}"}, "127.0.0.1"
    done = f"admin API: POST /admin/x by key '000000000000' from {ip}: 200"
    assert await line("POST", "/admin/x?worker=a", headers=root) == done
    assert await line("GET", "/admin/x", headers=root) == ""
    assert await line("GET", "/admin/x") == (
        f"admin API: GET /admin/x by no key from {ip}: 401, "
        "API key missing; send 'Authorization: Bearer KEY' or 'x-api-key: KEY'"
    )
    wrong = {"x-api-key": FOREIGN_SECRET}
    assert await line("POST", "/admin/x", headers=wrong) == (
        f"admin API: POST /admin/x by an unknown key from {ip}: 401, unknown API key"
    )
    other = await line("DELETE", "/admin/x", headers={"x-api-key": FOREIGN.decode()})
    assert other == f"admin API: DELETE /admin/x by key '020202020202' from {ip}: 401, unknown API key"
    plain = await line("POST", "/admin/x", headers={"x-api-key": PLAIN.decode()})
    assert plain.startswith(f"admin API: POST /admin/x by key '010101010101' from {ip}: 403, ")
    assert "POST /login by an unknown key from" in await line("POST", "/login", json={"key": FOREIGN_SECRET})
    host = await line("GET", "/admin/x", headers={**root, "Host": "evil.example"})
    assert f"by no key from {ip}: 403, the Host 'evil.example' is not allowed" in host
    odd = await line("GET", "/admin/x", headers={**root, "Host": "a b"})
    assert f"by no key from {ip}: 400, " in odd
    assert (await line("POST", "/login", json={"key": ROOT.decode()})).endswith(
        "by key '000000000000' from 127.0.0.1: 200"
    )
    assert await line("POST", "/admin/x") == done, "a session counts as its key"
    assert "404" in await line("POST", "/nothing", headers=root)


async def test_a_client_does_not_name_itself(guarded: "TestClient[web.Request, web.Application]") -> None:
    headers = {"Authorization": f"Bearer {ROOT.decode()}", CALLER_HEADER: "key 'other'"}
    assert await (await guarded.get("/admin/x", headers=headers)).text() == "key '000000000000'"


async def test_without_keys_the_address_is_the_caller() -> None:
    config = config_of()
    app = web.Application()
    app.router.add_route("*", "/admin/x", show_caller)
    add_guard(app, Credentials(config), config)
    async with TestClient(TestServer(app)) as client:
        assert await (await client.post("/admin/x")).text() == "127.0.0.1"
