"""Bytes behind the last request of a connection."""

from gateway.server.upgrade_buffer import MAX_WAITING_BYTES, Beyond


class Connection:
    def __init__(self) -> None:
        self.events: list[str] = []

    def pause_reading(self) -> None:
        self.events.append("paused")

    def resume_reading(self) -> None:
        self.events.append("resumed")


def test_what_waited_comes_first_and_then_all_as_it_comes() -> None:
    beyond, received = Beyond(Connection(), b"ab"), []
    assert repr(beyond) == "Beyond(2 bytes wait)"
    beyond.take(b"c")
    beyond.agreed(received.append)
    beyond.take(b"d")
    assert received == [b"abc", b"d"]
    assert repr(beyond) == "Beyond(agreed)"


def test_nothing_waited() -> None:
    beyond, received = Beyond(Connection(), b""), []
    beyond.agreed(received.append)
    assert received == []


def test_too_much_is_not_read() -> None:
    connection = Connection()
    beyond = Beyond(connection, b"x" * MAX_WAITING_BYTES)
    assert connection.events == []
    beyond.take(b"x")
    assert connection.events == ["paused"]
    beyond.agreed(lambda data: None)
    assert connection.events == ["paused", "resumed"]
