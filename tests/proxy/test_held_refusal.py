"""A refusal is read before the exchange decides, and goes on unchanged where it is the answer."""

import pytest

from gateway.http.messages import ResponseHead
from gateway.proxy.held_refusal import MAX_BYTES, HeldRefusal

HEAD = ResponseHead(503, [])


class HeldRefusalWorld:
    """The exchange (`read`, `lost`) and the reader that saw the head."""

    def __init__(self, head: ResponseHead = HEAD) -> None:
        self.events: list[object] = []
        self.held = HeldRefusal(head, self, on_read=self.read, on_lost=self.lost)

    def read(self, held: HeldRefusal) -> None:
        assert held is self.held and held.refusal is not None
        self.events.append(("read", held.refusal.is_busy, held.has_ended))

    def lost(self, reason: str) -> None:
        self.events.append(("lost", reason))

    def upstream_head(self, head: ResponseHead) -> None:
        raise AssertionError("the head came before")

    def upstream_data(self, data: bytes) -> None:
        self.events.append(data)

    def upstream_ended(self, data: bytes) -> None:
        self.events.append(("ended", data))

    def upstream_lost(self, reason: str) -> None:
        self.events.append(("reader lost", reason))


@pytest.mark.parametrize(
    "pieces", [[b"the engine is currently busy"], [b"the engine is cur", b"rently busy", b""]]
)
def test_the_whole_body_is_judged_and_handed_on_once(pieces: list[bytes]) -> None:
    world = HeldRefusalWorld()
    for piece in pieces[:-1]:
        world.held.upstream_data(piece)
        assert world.events == []
    world.held.upstream_ended(pieces[-1])
    assert world.events == [("read", True, True)]
    world.held.go_on()
    assert world.events[1:] == [("ended", b"the engine is currently busy")]


def test_a_long_body_is_judged_by_its_beginning_and_streams_on() -> None:
    world = HeldRefusalWorld()
    world.held.upstream_data(b"x" * MAX_BYTES)
    assert world.events == []
    world.held.upstream_data(b"y")
    assert world.events == [("read", False, False)]
    world.held.go_on()
    world.held.upstream_data(b"more")
    world.held.upstream_ended(b"end")
    assert world.events[1:] == [b"x" * MAX_BYTES + b"y", b"more", ("ended", b"end")]


def test_a_connection_lost_before_the_end_is_a_failed_attempt() -> None:
    world = HeldRefusalWorld()
    world.held.upstream_data(b"x")
    world.held.upstream_lost("reset")
    assert world.events == [("lost", "reset")]


def test_a_connection_lost_later_is_the_readers() -> None:
    world = HeldRefusalWorld()
    world.held.upstream_data(b"x" * (MAX_BYTES + 1))
    world.held.upstream_lost("reset")
    assert world.events[1:] == [("reader lost", "reset")]


@pytest.mark.parametrize("goes_on", [True, False])
def test_an_error_that_breaks_off_is_judged_and_cut_where_it_goes_on(goes_on: bool) -> None:
    world = HeldRefusalWorld(ResponseHead(500, []))
    if goes_on:
        world.held._on_read = lambda held: held.go_on()
    world.held.upstream_data(b"x")
    world.held.upstream_lost("reset")
    if goes_on:
        assert world.events == [b"x", ("reader lost", "reset")]
    else:
        assert world.events == [("read", False, False)]  # the request went elsewhere
