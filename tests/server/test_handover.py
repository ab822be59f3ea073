"""Takeover protocol between two ends in one process; tests/blackbox/test_upgrades.py has gateways."""

import asyncio
import socket
from pathlib import Path

import pytest

from gateway.core.errors import ConfigError
from gateway.server import handover
from gateway.server.handover import Predecessor, TakeoverPoint
from gateway.server.socket_set import TAKEOVER, SocketSpec
from gateway.server.sockets import bind_tcp, bind_unix
from tests.support.patience import patience

pytestmark = pytest.mark.process

PORT = SocketSpec("port", "127.0.0.1")


def point(path: Path, workers: list[str]) -> TakeoverPoint:
    spec = SocketSpec(TAKEOVER, str(path))
    sockets = {PORT: bind_tcp("127.0.0.1", 0, "port"), spec: bind_unix(str(path), 0o600, TAKEOVER)}
    return TakeoverPoint(sockets[spec], sockets, lambda: workers)


def close(point: TakeoverPoint, *predecessors: Predecessor | None) -> None:
    for sock in [s for p in predecessors if p for s in p.sockets.values()]:
        sock.close()
    point.close()
    for sock in point._sockets.values():
        sock.close()


async def test_sockets_and_workers_are_handed_over(tmp_path: Path) -> None:
    workers = ["http://a:1"]
    old = point(tmp_path / "s", workers)
    new = await Predecessor.reach(str(tmp_path / "s"))
    assert new is not None
    assert new.workers == ["http://a:1"]
    assert [(spec.role, spec.port) for spec in new.sockets] == [("port", 0), (TAKEOVER, 0)]
    ours, theirs = ([sock.getsockname() for sock in side.values()] for side in (old._sockets, new.sockets))
    assert ours == theirs
    assert old.has_heir and not old.taken.is_set()
    workers.append("http://b:1")
    assert await new.take_over([PORT]) == ["http://a:1", "http://b:1"]
    assert old.taken.is_set()
    assert list(old.kept) == [PORT]
    close(old, new)


async def test_one_takeover_at_a_time_and_the_next_after_a_failed_one(tmp_path: Path) -> None:
    old = point(tmp_path / "s", [])
    first = await Predecessor.reach(str(tmp_path / "s"))
    assert first is not None
    with pytest.raises(ConfigError, match="is taking over; retry"):
        await Predecessor.reach(str(tmp_path / "s"))
    first.close()
    async with asyncio.timeout(patience(20)):
        while old._channel:  # noqa: ASYNC110
            await asyncio.sleep(0)
    second = await Predecessor.reach(str(tmp_path / "s"))
    assert second is not None and not old.taken.is_set()
    second.close()
    close(old, first, second)


async def test_a_silent_connection_does_not_block_a_takeover(tmp_path: Path) -> None:
    old = point(tmp_path / "s", [])
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(tmp_path / "s"))
        new = await Predecessor.reach(str(tmp_path / "s"))
        assert new is not None
        close(old, new)


async def test_a_process_that_ends_leaves_its_sockets_to_the_successor(tmp_path: Path) -> None:
    old = point(tmp_path / "s", ["http://a:1"])
    new = await Predecessor.reach(str(tmp_path / "s"))
    assert new is not None
    close(old)
    assert await new.take_over(new.sockets) == []
    traffic = next(iter(new.sockets.values()))
    traffic.listen()
    socket.create_connection(traffic.getsockname()).close()
    close(old, new)


async def test_without_a_listener_there_is_no_predecessor(tmp_path: Path) -> None:
    assert await Predecessor.reach(str(tmp_path / "nothing")) is None
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "dead"))
    assert await Predecessor.reach(str(tmp_path / "dead")) is None
    with pytest.raises(ConfigError, match="cannot connect to"):
        await Predecessor.reach(str(tmp_path / ("x" * 200)))


async def test_a_predecessor_that_does_not_answer_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "ANSWER_TIMEOUT_S", 0.01)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "s"))
        silent.listen()
        with pytest.raises(ConfigError, match="no answer from the process"):
            await Predecessor.reach(str(tmp_path / "s"))


async def test_a_predecessor_that_ends_without_an_offer_is_an_error(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        listening.setblocking(False)
        reaching = asyncio.get_running_loop().create_task(Predecessor.reach(str(tmp_path / "s")))
        accepted, _ = await asyncio.get_running_loop().sock_accept(listening)
        accepted.close()
        with pytest.raises(ConfigError, match="has just ended; retry"):
            await reaching


async def test_an_invalid_message_closes_the_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = point(tmp_path / "s", [])
    for nonsense in (b"\x05\x00\x00\x00\x00abcde", b"\x05\x00\x00\x00\x09abcde"):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
        writer.write(nonsense)
        async with asyncio.timeout(patience(20)):
            assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
    new = await Predecessor.reach(str(tmp_path / "s"))
    assert new is not None
    assert [record.levelname for record in caplog.records if "invalid message" in record.message] == [
        "WARNING"
    ]
    new.close()
    close(old, new)
