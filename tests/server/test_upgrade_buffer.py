"""Bytes behind the last HTTP request of a connection."""

from gateway.server.upgrade_buffer import MAX_WAITING_BYTES, UpgradeBuffer


class Connection:
    def __init__(self) -> None:
        self.events: list[str] = []

    def pause_reading(self) -> None:
        self.events.append("paused")

    def resume_reading(self) -> None:
        self.events.append("resumed")


def test_buffered_bytes_come_first_and_later_ones_as_they_arrive() -> None:
    upgrade_buffer, received = UpgradeBuffer(Connection(), b"ab"), []
    assert repr(upgrade_buffer) == "UpgradeBuffer(2 bytes wait)"
    upgrade_buffer.take(b"c")
    upgrade_buffer.agreed(received.append)
    upgrade_buffer.take(b"d")
    assert received == [b"abc", b"d"]
    assert repr(upgrade_buffer) == "UpgradeBuffer(agreed)"


def test_an_empty_buffer_passes_nothing() -> None:
    upgrade_buffer, received = UpgradeBuffer(Connection(), b""), []
    upgrade_buffer.agreed(received.append)
    assert received == []


def test_a_full_buffer_pauses_reading() -> None:
    connection = Connection()
    upgrade_buffer = UpgradeBuffer(connection, b"x" * MAX_WAITING_BYTES)
    assert connection.events == []
    upgrade_buffer.take(b"x")
    assert connection.events == ["paused"]
    upgrade_buffer.agreed(lambda data: None)
    assert connection.events == ["paused", "resumed"]
