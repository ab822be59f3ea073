"""Login of the console: a session opens what its key opens, as long as the key does."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gateway.admin.auth import add_guard
from gateway.admin.console.assets import show_file, show_index
from gateway.admin.console.login import ACCESS, MAX_BODY_BYTES, login_handlers
from gateway.config import config_of
from gateway.tenancy.auth.api_keys import make_key
from gateway.tenancy.auth.credentials import Credentials
from gateway.tenancy.auth.key_format import format_key_record
from tests.support.admin_keys import LINES, PLAIN, ROOT

pytestmark = pytest.mark.process

ID = "000000000000"
"""Id of the key ROOT."""


async def hello(request: web.Request) -> web.Response:
    return web.Response(text="hello")


class Guarded:
    def __init__(self, path: Path, scope: str, *, has_keys: bool = True) -> None:
        path.write_text("\n".join(LINES))
        config = config_of(admin_auth=scope, **({"admin_key_file": str(path)} if has_keys else {}))
        self.path, self.credentials = path, Credentials(config)
        app = web.Application()
        handlers = login_handlers()
        app.router.add_get("/", show_index)
        app.router.add_get("/console/{file}", show_file)
        app.router.add_get("/session", handlers["session"])
        app.router.add_post("/login", handlers["login"])
        app.router.add_post("/logout", handlers["logout"])
        app.router.add_route("*", "/admin/x", hello)
        add_guard(app, self.credentials, config)
        self.app = app
        self.client = TestClient(TestServer(app))

    async def login(self, key: bytes = ROOT, **headers: str) -> tuple[int, str]:
        answer = await self.client.post("/login", json={"key": key.decode()}, headers=headers)
        return answer.status, answer.headers.get("Set-Cookie", "")

    async def session(self) -> dict[str, object]:
        answer = await self.client.get("/session")
        found: dict[str, object] = await answer.json()
        return found


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    guarded = Guarded(tmp_path / "keys", "api")
    async with guarded.client:
        yield guarded


async def test_files_and_the_login_are_open_and_all_else_is_not(guarded: Guarded) -> None:
    for path in ("/", "/console/app.js", "/session"):
        assert (await guarded.client.get(path)).status == 200
    for method, path in (
        ("GET", "/admin/x"),
        ("POST", "/admin/x"),
        ("POST", "/console/app.js"),
        ("POST", "/"),
    ):
        assert (await guarded.client.request(method, path)).status == 401
    for path in ("/console/", "/console/a/b", "/consoles/a", "/session/x"):
        assert (await guarded.client.get(path)).status == 401
    assert (await guarded.session()) == {"scope": "api", "key": None, "may_read": False, "may_change": False}


async def test_a_session_opens_what_its_key_opens(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kvgate.audit")
    status, cookie = await guarded.login()
    assert status == 200
    assert cookie.endswith("; HttpOnly; SameSite=Strict") and "Path" not in cookie and "Max-Age" not in cookie
    assert ROOT.decode() not in cookie and ROOT.decode().split("-")[2] not in repr(
        guarded.app[ACCESS].sessions
    )
    assert (await guarded.session()) == {"scope": "api", "key": ID, "may_read": True, "may_change": True}
    assert (await guarded.client.get("/admin/x")).status == 200
    assert (await guarded.client.post("/admin/x")).status == 200
    assert f"admin API: POST /admin/x by key '{ID}'" in caplog.text
    assert f"admin API: POST /login by key '{ID}' from 127.0.0.1: 200" in caplog.text


async def test_a_page_that_came_by_tls_gets_a_cookie_for_tls(guarded: Guarded) -> None:
    host = f"{guarded.client.host}:{guarded.client.port}"
    _, cookie = await guarded.login(Origin=f"https://{host}")
    assert cookie.endswith("; Secure")
    _, cookie = await guarded.login(Origin=f"http://{host}")
    assert not cookie.endswith("; Secure")


@pytest.mark.parametrize(("key", "status"), [(PLAIN, 401), (b"kvg-other", 401), (b"", 401)])
async def test_other_keys_open_nothing(guarded: Guarded, key: bytes, status: int) -> None:
    assert await guarded.login(key) == (status, "")
    assert (await guarded.client.get("/admin/x")).status == 401


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b'{"key":"x"}', "text/plain", 415),
        (b"{", "application/json", 400),
        (b'{"key":1}', "application/json", 400),
        (b'{"key":"x","more":1}', "application/json", 400),
        (b'{"key":"' + b"x" * MAX_BODY_BYTES + b'"}', "application/json", 413),
    ],
)
async def test_other_bodies_are_refused(guarded: Guarded, body: bytes, kind: str, status: int) -> None:
    answer = await guarded.client.post("/login", data=body, headers={"Content-Type": kind})
    assert answer.status == status and "Set-Cookie" not in answer.headers


async def test_another_site_logs_no_browser_in(guarded: Guarded) -> None:
    assert await guarded.login(Origin="http://evil.example") == (403, "")
    assert (await guarded.login(**{"Sec-Fetch-Site": "cross-site"}))[0] == 403


async def test_logout_ends_the_session(guarded: Guarded) -> None:
    _, cookie = await guarded.login()
    answer = await guarded.client.post("/logout")
    assert "Max-Age=0" in answer.headers["Set-Cookie"]
    token = cookie.partition(";")[0]
    assert (await guarded.client.get("/admin/x", headers={"Cookie": token})).status == 401


async def test_a_key_that_leaves_the_file_takes_its_sessions_along(guarded: Guarded) -> None:
    await guarded.login()
    assert (await guarded.client.get("/admin/x")).status == 200
    guarded.path.write_text(LINES[1])
    await guarded.credentials.reload()
    assert (await guarded.client.get("/admin/x")).status == 401
    assert (await guarded.session())["may_read"] is False


@pytest.mark.parametrize("sent", ["Basic dXNlcjpwYXNz", "Bearer of.another.service", "Bearer "])
async def test_a_session_counts_beside_the_authorization_of_a_proxy(guarded: Guarded, sent: str) -> None:
    foreign = {"Authorization": sent}
    assert (await guarded.client.get("/admin/x", headers=foreign)).status == 401
    await guarded.login()
    assert (await guarded.client.get("/admin/x", headers=foreign)).status == 200


async def test_a_key_and_a_session_of_two_tenants_are_refused(guarded: Guarded) -> None:
    other, plain = (make_key(bytes([n] * 6), bytes([n] * 32)) for n in (5, 6))
    added = [
        format_key_record(other, bytes(16), "others", admin=True),
        format_key_record(plain, bytes(16), "b"),
    ]
    guarded.path.write_text("\n".join([*LINES, *added]))
    await guarded.credentials.reload()
    await guarded.login()
    answer = await guarded.client.get("/admin/x", headers={"x-api-key": plain.decode()})
    assert answer.status == 403 and "no admin scope" in await answer.text(), "a known key is not passed over"
    answer = await guarded.client.get("/admin/x", headers={"x-api-key": other.decode()})
    assert answer.status == 403 and "different tenants" in await answer.text()


@pytest.mark.parametrize(
    ("scope", "has_keys", "may"),
    [("off", True, (True, True)), ("changes", True, (True, False)), ("off", False, (True, True))],
)
async def test_the_session_says_what_may_be_done_without_one(
    tmp_path: Path, scope: str, has_keys: bool, may: tuple[bool, bool]
) -> None:
    guarded = Guarded(tmp_path / "keys", scope, has_keys=has_keys)
    async with guarded.client:
        session = await guarded.session()
        assert (session["may_read"], session["may_change"]) == may
        if scope == "off":
            assert (await guarded.login())[0] == 400
            assert (await guarded.client.post("/logout")).status == 200
