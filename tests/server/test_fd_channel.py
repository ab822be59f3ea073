"""The channel over a socket pair, with real files."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.server.fd_channel import LOST, Channel
from tests.support.patience import patience

pytestmark = pytest.mark.process


class End:
    """End of the channel, and the messages that arrived there."""

    def __init__(self, sock: socket.socket) -> None:
        self.messages: list[bytes] = []
        self.files: list[list[int]] = []
        self.num_ends = 0
        self.news = asyncio.Event()
        self.channel = Channel(sock, self._on_message, self._on_end)

    def _on_message(self, message: bytes, files: list[int]) -> None:
        self.messages.append(message)
        self.files.append(files)
        self.news.set()

    def _on_end(self) -> None:
        self.num_ends += 1
        self.news.set()

    async def has(self, num: int) -> None:
        async with asyncio.timeout(patience(20)):
            while len(self.messages) < num and not self.num_ends:
                self.news.clear()
                await self.news.wait()


@pytest.fixture
async def pair() -> AsyncIterator[tuple[End, End]]:
    first, second = (End(sock) for sock in socket.socketpair())
    yield first, second
    first.channel.close()
    second.channel.close()
    for end in (first, second):
        for files in end.files:
            for file in files:
                os.close(file)


def pipe_with(text: bytes) -> int:
    reading, writing = os.pipe()
    os.write(writing, text)
    os.close(writing)
    return reading


async def test_messages_come_in_order_each_with_its_files(pair: tuple[End, End]) -> None:
    first, second = pair
    first.channel.send(b"none")
    first.channel.send(b"two", [pipe_with(b"a"), pipe_with(b"b")])
    first.channel.send(b"")
    first.channel.send(b"one", [pipe_with(b"c")])
    await second.has(4)
    assert second.messages == [b"none", b"two", b"", b"one"]
    texts = [[os.read(file, 9) for file in files] for files in second.files]
    assert texts == [[], [b"a", b"b"], [], [b"c"]]


async def test_messages_beyond_the_buffer_wait_and_arrive_whole(pair: tuple[End, End]) -> None:
    first, second = pair
    long = os.urandom(1 << 22)
    first.channel.send(long, [pipe_with(b"first")])
    assert first.channel.is_full
    for number in range(50):
        first.channel.send(b"%d" % number, [pipe_with(b"%d" % number)])
    assert repr(first.channel) == "Channel(open, waiting=51)"
    await second.has(51)
    assert second.messages == [long, *(b"%d" % number for number in range(50))]
    assert [os.read(*files, 9) for files in second.files[1:]] == second.messages[1:]  # type: ignore[call-arg]
    assert not first.channel.is_full


async def test_a_sent_file_is_closed_here(pair: tuple[End, End]) -> None:
    first, second = pair
    file = pipe_with(b"x")
    first.channel.send(b"m", [file])
    with pytest.raises(OSError):
        os.fstat(file)  # before it arrives, under a number that may be the same
    await second.has(1)


async def test_the_end_of_the_peer_is_reported_once(pair: tuple[End, End]) -> None:
    first, second = pair
    first.channel.send(b"last words")
    first.channel.close()
    await second.has(2)
    assert (second.messages, second.num_ends, first.num_ends) == ([b"last words"], 1, 0)
    assert second.channel.is_closed
    file = pipe_with(b"x")
    second.channel.send(b"dropped", [file])
    with pytest.raises(OSError):
        os.fstat(file)


async def test_messages_waiting_for_a_closed_peer_release_their_files(pair: tuple[End, End]) -> None:
    first, second = pair
    file = pipe_with(b"x")
    first.channel.send(bytes(1 << 22))
    first.channel.send(b"behind", [file])
    second.channel.close()
    await first.has(1)
    assert first.num_ends == 1
    with pytest.raises(OSError):
        os.fstat(file)


async def test_a_file_without_a_free_number_is_lost_and_the_order_stays(
    pair: tuple[End, End], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = pair
    received = socket.recv_fds

    def without_files(*given: Any) -> Any:
        data, files, flags, address = received(*given)
        for file in files:
            os.close(file)
        return data, [], flags | (socket.MSG_CTRUNC if files else 0), address

    monkeypatch.setattr(socket, "recv_fds", without_files)
    first.channel.send(b"lost", [pipe_with(b"x")])
    await second.has(1)
    monkeypatch.undo()
    first.channel.send(b"there", [pipe_with(b"y")])
    await second.has(2)
    assert second.messages == [b"lost", b"there"]
    assert second.files[0] == [LOST] and os.read(second.files[1][0], 1) == b"y"
    assert "out of open files" in caplog.text
    second.files[0] = []
