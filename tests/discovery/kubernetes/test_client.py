"""Requests to an API server over sockets: pages, watches, refusals, limits, half-open connections."""

import asyncio
import socket
from pathlib import Path

import pytest

from gateway.discovery.kubernetes import client as module
from gateway.discovery.kubernetes.client import (
    ApiClient,
    ApiQuery,
    ApiRequestFailed,
    WatchSilent,
    keepalive_socket,
    lines,
)
from gateway.discovery.kubernetes.cluster import ClusterAccess
from tests.support.certificates import Authority
from tests.support.kube_api import PODS, KubeApi, pod, served_api

QUERY = ApiQuery(PODS, label_selector="app=vllm")


async def test_pages_are_asked_for_with_selectors_and_a_limit() -> None:
    async with served_api() as (api, client):
        assert b'"items": []' in await client.page(QUERY, "")
        assert api.requests[0] == (PODS, {"labelSelector": "app=vllm", "limit": "200"})
        with pytest.raises(ApiRequestFailed, match="400 continue key is not valid"):
            await client.page(ApiQuery(PODS, field_selector="metadata.name=x"), "7")
        assert api.requests[1][1] == {"fieldSelector": "metadata.name=x", "limit": "200", "continue": "7"}


async def test_a_watch_yields_its_lines_until_the_server_ends_it() -> None:
    async with served_api() as (api, client):
        api.put(PODS, pod("a"))
        api.put(PODS, pod("b"))
        async with client.watch(QUERY, "1", 1.0, 20.0) as watched:
            found = [line async for line in watched]
        assert [b'"name": "a"' in found[0], b'"name": "b"' in found[1], len(found)] == [True, True, 2]
        assert api.requests[0][1]["resourceVersion"] == "1"
        assert api.requests[0][1]["allowWatchBookmarks"] == "true"


@pytest.mark.parametrize("status", [401, 403, 429, 500])
async def test_refusals_have_status_words_and_the_pause_that_is_asked_for(status: int) -> None:
    async with served_api(status=status, headers={"Retry-After": "3"}) as (_, client):
        with pytest.raises(ApiRequestFailed) as listed:
            await client.page(QUERY, "")
        with pytest.raises(ApiRequestFailed) as watched:
            async with client.watch(QUERY, "1", 1.0, 1.0):
                pass
        for caught in (listed, watched):
            failure = caught.value.failure
            assert (failure.status, failure.retry_after_s) == (status, 3.0)
            assert failure.reason == f"{status} refused with {status}"


@pytest.mark.parametrize("text", ["", "-1", "soon", "1e3"])
async def test_other_pauses_are_ignored(text: str) -> None:
    async with served_api(status=503, headers={"Retry-After": text}) as (_, client):
        with pytest.raises(ApiRequestFailed) as caught:
            await client.page(QUERY, "")
        assert caught.value.failure.retry_after_s == 0.0


async def test_a_server_that_is_away_or_never_answers() -> None:
    async with served_api() as (api, client):
        await api.stop()
        with pytest.raises(ApiRequestFailed, match="cannot connect: Connection refused"):
            await client.page(QUERY, "")
        with pytest.raises(ApiRequestFailed, match="cannot connect"):
            async with client.watch(QUERY, "1", 1.0, 1.0):
                pass
    with socket.create_server(("127.0.0.1", 0)) as listening:
        hung = ApiClient(ClusterAccess(f"http://127.0.0.1:{listening.getsockname()[1]}"), timeout_s=0.05)
        with pytest.raises(ApiRequestFailed, match="no answer in time"):
            await hung.page(QUERY, "")
        with pytest.raises(ApiRequestFailed, match="no answer in time"):
            async with hung.watch(QUERY, "1", 1.0, 1.0):
                pass
        await hung.close()


async def test_an_authority_that_is_not_trusted_and_then_is(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "a"), Authority(tmp_path / "b")
    ca = tmp_path / "ca.crt"
    ca.write_text(Path(theirs.file).read_text())
    api = await KubeApi(tls=ours.issue().context()).start()
    client = ApiClient(ClusterAccess(api.url, ca_file=ca))
    try:
        with pytest.raises(ApiRequestFailed, match="certificate is not trusted"):
            await client.page(QUERY, "")
        ca.write_text(Path(ours.file).read_text())
        assert b"items" in await client.page(QUERY, "")
    finally:
        await client.close()
        await api.stop()


async def test_a_page_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PAGE_BYTES", 100)
    async with served_api() as (api, client):
        api.put(PODS, pod("a"))
        with pytest.raises(ApiRequestFailed, match="over 100 bytes"):
            await client.page(QUERY, "")


class FakeStream:
    """Pieces of a body; after them its end, or nothing for ever."""

    def __init__(self, *pieces: bytes, is_whole: bool = True) -> None:
        self._pieces = list(filter(None, pieces))
        self._is_whole = is_whole

    async def readany(self) -> bytes:
        if not self._pieces and not self._is_whole:
            await asyncio.Event().wait()
        return self._pieces.pop(0) if self._pieces else b""


async def test_lines_are_split_however_they_come() -> None:
    text = b'{"a":1}\n\n{"b":2}\r\n{"c":3}\n'
    for at in range(len(text)):
        found = [line.strip() async for line in lines(FakeStream(text[:at], text[at:]), 20.0, 20.0)]
        assert found == [b'{"a":1}', b'{"b":2}', b'{"c":3}']


async def test_a_cut_line_a_long_line_and_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ApiRequestFailed, match="ended within a line"):
        _ = [line async for line in lines(FakeStream(b'{"a":1}\n{"b'), 20.0, 20.0)]
    with pytest.raises(WatchSilent):
        _ = [line async for line in lines(FakeStream(b'{"a":1}\n', is_whole=False), 0.01, 20.0)]
    assert [line async for line in lines(FakeStream(is_whole=False), 20.0, 0.0)] == []
    monkeypatch.setattr(module, "MAX_LINE_BYTES", 10)
    with pytest.raises(ApiRequestFailed, match="a line over 10 bytes") as caught:
        _ = [line async for line in lines(FakeStream(b"x" * 11, is_whole=False), 20.0, 20.0)]
    assert caught.value.failure.is_unreadable


def test_a_socket_notices_a_peer_that_is_gone() -> None:
    made = keepalive_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1)))
    with made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
