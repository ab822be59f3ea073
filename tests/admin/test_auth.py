"""Admin API with configured keys."""

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from yarl import URL

from gateway.admin.auth import add_guard, keeper_before, key_handlers
from gateway.admin.endpoint_table import bound
from gateway.config import Config, config_of
from gateway.runtime.tasks import Tasks
from gateway.tenancy.auth.credentials import Credentials
from tests.support.admin_keys import LINES, PLAIN, ROOT

pytestmark = pytest.mark.process


def config(tmp_path: Path, scope: Any = "off") -> Config:
    path = tmp_path / "keys"
    path.write_text("\n".join(LINES))
    return config_of(key_file=str(path), admin_auth=scope)


async def hello(request: web.Request) -> web.Response:
    return web.Response(text="hello")


def client(
    credentials: Credentials, scope: Any = "off", loads: bool = False
) -> "TestClient[web.Request, web.Application]":
    app = web.Application()
    app.add_routes(
        [
            web.route("*", path, hello)
            for path in ("/health", "/ready", "/metrics", "/admin/x", "/admin/adapters/a")
        ]
    )
    app.add_routes(bound(key_handlers(credentials)))
    add_guard(app, credentials, config_of(admin_auth=scope, admin_load_adapters=loads))
    return TestClient(TestServer(app))


@pytest.mark.parametrize(
    ("scope", "method", "path", "key", "status"),
    [
        ("off", "GET", "/admin/adapters/a", None, 200),
        ("off", "POST", "/admin/adapters/a", None, 401),
        ("off", "DELETE", "/admin/adapters/a", PLAIN, 401),
        ("off", "DELETE", "/admin/adapters/a", ROOT, 200),
        ("off", "DELETE", "/admin/%61dapters/a", None, 401),
        ("off", "POST", "/admin/x", None, 200),
        ("changes", "GET", "/admin/adapters/a", None, 200),
        ("all", "GET", "/admin/adapters/a", None, 401),
    ],
)
async def test_loading_adapters_requires_an_admin_key_in_every_scope(
    tmp_path: Path, scope: str, method: str, path: str, key: bytes | None, status: int
) -> None:
    credentials = Credentials(config(tmp_path, scope))
    headers = {"authorization": f"Bearer {key.decode()}"} if key else {}
    async with client(credentials, scope, loads=True) as asking:
        assert (await asking.request(method, URL(path, encoded=True), headers=headers)).status == status


@pytest.mark.parametrize(
    ("scope", "method", "path", "key", "status"),
    [
        ("off", "POST", "/admin/x", None, 200),
        ("changes", "GET", "/admin/x", None, 200),
        ("changes", "HEAD", "/metrics", None, 200),
        ("changes", "POST", "/admin/x", None, 401),
        ("changes", "DELETE", "/admin/x", PLAIN, 401),  # it has expired
        ("changes", "POST", "/admin/x", ROOT, 200),
        ("all", "GET", "/health", None, 200),
        ("all", "GET", "/ready", None, 200),
        ("all", "GET", "/metrics", None, 401),
        ("all", "GET", "/admin/keys", None, 401),
        ("all", "GET", "/metrics", ROOT, 200),
    ],
)
async def test_admin_endpoints_require_an_admin_key_by_scope(
    tmp_path: Path, scope: str, method: str, path: str, key: bytes | None, status: int
) -> None:
    headers = {"Authorization": f"Bearer {key.decode()}"} if key else {}
    async with client(Credentials(config(tmp_path)), scope) as asking:
        answer = await asking.request(method, path, headers=headers)
        assert answer.status == status
        assert answer.headers.get("WWW-Authenticate") == ("Bearer" if status == 401 else None)
        if status == 401:
            assert (await answer.json())["error"]["code"] in ("missing_api_key", "expired_api_key")


async def test_a_key_without_admin_scope_is_rejected(tmp_path: Path) -> None:
    credentials = Credentials(config(tmp_path), clock=lambda: 0.0)
    async with client(credentials, "all") as asking:
        answer = await asking.get("/admin/x", headers={"x-api-key": PLAIN.decode()})
        assert (answer.status, (await answer.json())["error"]["code"]) == (403, "admin_scope_required")


async def test_keys_are_listed_without_their_digests(tmp_path: Path) -> None:
    credentials = Credentials(config(tmp_path))
    async with client(credentials) as asking:
        text = await (answer := await asking.get("/admin/keys")).text()
        listed = await answer.json()
    assert listed["keys"] == [
        {"id": "000000000000", "tenant": "ops", "models": None, "expires_at": None, "is_admin": True},
        {"id": "010101010101", "tenant": "acme", "models": ["m"], "expires_at": 86400.0, "is_admin": False},
    ]
    assert listed["groups"] == {"acme": "g"}
    assert credentials.file
    for entry in credentials.file.ring.entries.values():
        assert entry.digest.hex() not in text


async def test_without_keys_the_list_is_empty(tmp_path: Path) -> None:
    async with client(Credentials(config_of()), "all") as asking:
        assert await (await asking.get("/admin/keys")).json() == {
            "keys": [],
            "groups": {},
            "file": None,
            "files": [],
        }


async def test_keys_are_reloaded_by_a_post_of_json(tmp_path: Path) -> None:
    made = config(tmp_path)
    async with client(Credentials(made)) as asking:
        Path(made.auth.key_file).write_text(LINES[0])
        assert (await asking.post("/admin/keys/reload")).status == 415
        answer = await asking.post("/admin/keys/reload", json={})
        assert len((await answer.json())["keys"]) == 1
        Path(made.auth.key_file).write_text("{}")
        answer = await asking.post("/admin/keys/reload", json={})
        assert answer.status == 400
        assert ":1: missing required field `id`" in (await answer.json())["error"]["message"]


async def test_a_supervisor_requires_a_key_itself(tmp_path: Path) -> None:
    app, tasks = web.Application(), Tasks()
    app.add_routes([web.get("/admin/x", hello)])
    credentials = keeper_before(app, config(tmp_path, "all"), tasks)
    assert credentials.authenticator and len(tasks) == 1
    async with TestClient(TestServer(app)) as asking:
        assert (await asking.get("/admin/x")).status == 401
    await tasks.stop()


async def test_outdated_keys_read_and_reload_and_change_nothing_else(tmp_path: Path) -> None:
    made = config(tmp_path)
    path = Path(made.auth.key_file)
    credentials = Credentials(made)
    headers = {"Authorization": f"Bearer {ROOT.decode()}"}
    async with client(credentials, "all") as asking:
        path.rename(path.with_name("aside"))
        answer = await asking.post("/admin/keys/reload", json={}, headers=headers)
        assert answer.status == 400 and "cannot be read" in await answer.text()
        answer = await asking.post("/admin/x", headers=headers)
        assert (answer.status, (await answer.json())["error"]["code"]) == (503, "outdated_keys")
        assert (await asking.get("/admin/x", headers=headers)).status == 200
        assert (await asking.post("/admin/x", headers={"x-api-key": "kvg-none"})).status == 401
        (file,) = (await (await asking.get("/admin/keys", headers=headers)).json())["files"]
        assert "cannot be read" in file["error"] and file["name"] == "key_file"
        path.with_name("aside").rename(path)
        assert (await asking.post("/admin/keys/reload", json={}, headers=headers)).status == 200
        assert (await asking.post("/admin/x", headers=headers)).status == 200
