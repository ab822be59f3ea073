"""Bytes behind the last HTTP request of a connection."""

from gateway.server.upgrade_buffer import MAX_WAITING_BYTES, Beyond


class Connection:
    def __init__(self) -> None:
        self.events: list[str] = []

    def pause_reading(self) -> None:
        self.events.append("paused")

    def resume_reading(self) -> None:
        self.events.append("resumed")


def test_buffered_bytes_come_first_and_later_ones_as_they_arrive() -> None:
    beyond, received = Beyond(Connection(), b"ab"), []
    assert repr(beyond) == "Beyond(2 bytes wait)"
    beyond.take(b"c")
    beyond.agreed(received.append)
    beyond.take(b"d")
    assert received == [b"abc", b"d"]
    assert repr(beyond) == "Beyond(agreed)"


def test_an_empty_buffer_passes_nothing() -> None:
    beyond, received = Beyond(Connection(), b""), []
    beyond.agreed(received.append)
    assert received == []


def test_a_full_buffer_pauses_reading() -> None:
    connection = Connection()
    beyond = Beyond(connection, b"x" * MAX_WAITING_BYTES)
    assert connection.events == []
    beyond.take(b"x")
    assert connection.events == ["paused"]
    beyond.agreed(lambda data: None)
    assert connection.events == ["paused", "resumed"]
