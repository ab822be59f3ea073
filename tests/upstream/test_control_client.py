"""Calls to endpoints of each kind, and the reasons of failures."""

import asyncio
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

from gateway.http.networks import Reachable
from gateway.runtime.tls import worker_tls
from gateway.upstream import control_client
from gateway.upstream.access import FleetAccess, WorkerAccess
from gateway.upstream.control_client import AddressNotAllowed, ControlSession, failure
from tests.support.certificates import Authority
from tests.support.fakes import serve, url_of

pytestmark = pytest.mark.process


async def echo(request: web.Request) -> web.Response:
    return web.Response(text=f"{request.method} {request.host} {request.path} {request.headers.get('a', '')}")


async def said(session: ControlSession, url: str, path: str = "/p") -> str:
    async with session.call("GET", url, path) as answer:
        return await answer.text()


async def test_a_call_over_tcp_has_the_base_path() -> None:
    server = await serve(web.get("/{path:.*}", echo))
    try:
        async with ControlSession(headers={"a": "b"}) as session:
            assert (
                await said(session, url_of(server) + "/base") == f"GET {server.host}:{server.port} /base/p b"
            )
    finally:
        await server.close()


async def test_a_redirect_or_invalid_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(request: web.Request) -> web.Response:
        assert request.content_type == "application/json"
        status = (await request.json())["status"]
        return web.Response(status=status, body=request.headers.get("a", "").encode())

    monkeypatch.setattr(control_client, "MAX_POSTED_BYTES", 10)
    server = await serve(web.post("/p", answer))
    url = url_of(server)
    async with ControlSession(timeout_s=5) as session:
        assert await session.post(url, "/p", {"status": 200}, {"a": "b" * 10}) == b"b" * 10
        assert await session.post(url, "/p", {"status": 200}, {"a": "b" * 11}) is None
        assert await session.post(url, "/p", {"status": 500}) is None
        await server.close()
        assert await session.post(url, "/p", {"status": 200}) is None


async def test_a_call_over_a_unix_socket(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("s")
    app = web.Application()
    app.add_routes([web.get("/{path:.*}", echo)])
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        for name in "ab":
            await web.UnixSite(runner, str(directory / name)).start()
        async with ControlSession() as session:
            for name in "aab":
                assert await said(session, f"unix:{directory / name}") == "GET localhost /p "
            with pytest.raises(aiohttp.ClientError) as caught:
                await said(session, f"unix:{directory / 'c'}")
        assert "No such file" in failure(caught.value)
    finally:
        await runner.cleanup()


async def test_tls_is_verified(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    app = web.Application()
    app.add_routes([web.get("/{path:.*}", echo)])
    server = TestServer(app, scheme="https", port=unused_port())
    await server.start_server(ssl=authority.issue().context())
    url = f"https://127.0.0.1:{server.port}"
    try:
        async with ControlSession(worker_tls(authority.file)) as session:
            assert await said(session, url) == f"GET 127.0.0.1:{server.port} /p "
        async with ControlSession(worker_tls()) as session:
            with pytest.raises(aiohttp.ClientError) as caught:
                await said(session, url)
        assert failure(caught.value).startswith("its certificate is not trusted: ")
    finally:
        await server.close()


async def test_a_call_times_out() -> None:
    async def never(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    server = await serve(web.get("/p", never))
    try:
        async with ControlSession(timeout_s=0.05) as session:
            with pytest.raises(TimeoutError):
                await said(session, url_of(server))
    finally:
        await server.close()


def test_a_failure_without_a_message_is_called_by_its_name() -> None:
    assert failure(aiohttp.ClientError()) == "ClientError"


async def test_a_worker_gets_its_own_key_in_place_of_any_other() -> None:
    async def keys(request: web.Request) -> web.Response:
        return web.Response(
            text=f"{request.headers.getall('authorization', [])} {'x-api-key' in request.headers}"
        )

    server = await serve(web.get("/p", keys))
    access = FleetAccess({url_of(server): WorkerAccess("Bearer own")})
    async with ControlSession(access=access, headers={"Authorization": "Bearer of all"}) as session:
        theirs = {"Authorization": "Bearer client", "X-Api-Key": "client"}
        async with session.call("GET", url_of(server), "/p", headers=theirs) as answer:
            assert await answer.text() == "['Bearer own'] False"
    await server.close()


async def test_a_forbidden_address_is_not_called() -> None:
    server = await serve(web.get("/p", echo))
    async with ControlSession(access=FleetAccess(reachable=Reachable(["10.0.0.0/8"]))) as session:
        with pytest.raises(AddressNotAllowed, match=r"127\.0\.0\.1 is in none of --worker-networks"):
            await said(session, url_of(server))
        with pytest.raises(aiohttp.ClientError) as caught:
            await said(session, f"http://localhost:{server.port}")
        assert "is in none of --worker-networks" in failure(caught.value)
    await server.close()
