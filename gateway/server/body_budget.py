"""Budget of request bodies held in memory, over all requests of a process; bodies over budget are rejected.

arriving ─► queued behind others ─► at work, until its worker begins to answer ─► freed
   └─ rejected, client disconnected, failed, timed out, smaller bodies need the room: freed
"""

from collections.abc import Iterable
from io import BytesIO
from typing import Final

from gateway.core.decode_errors import LARGE
from gateway.core.errors import BodyTooLarge, GatewayError, NoRoomForBody
from gateway.http.messages import Header, HttpRequest

RETRY_AFTER_S: Final = 1
"""Bodies are freed when answers begin: seconds, as a rule."""


class BodyBudget:
    """Counts the bytes held; each request has its share in `num_held`."""

    def __init__(self, max_bytes: int = 1 << 30) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self.num_refused = 0
        self.arriving: set[Intake] = set()
        """Large bodies of which some is still to come."""

    def __repr__(self) -> str:
        return f"BodyBudget({self.num_bytes} of {self.max_bytes} bytes, {self.num_refused} refused)"

    def let_go(self, http: HttpRequest) -> None:
        """Free a request's share when it ends; only the first call counts."""
        self.num_bytes -= http.num_held
        http.num_held = 0

    def grow(self, http: HttpRequest, size: int) -> None:
        """Take room for `size` more bytes of a request's body. Raises NoRoomForBody."""
        if not self.makes_room(size, http.num_held + size):
            raise self.refusal()
        self.num_bytes += size
        http.num_held += size

    def makes_room(self, size: int, num_bytes: int) -> bool:
        """Return True where `size` more bytes fit, of a body of `num_bytes`. The largest body that still
        arrives gives its room to a smaller one: else a few clients that do not finish hold all of it."""
        while self.num_bytes + size > self.max_bytes:
            largest = max(self.arriving, key=_num_held, default=None)
            if largest is None or largest.num_held <= num_bytes:
                return False
            largest.lose()
        return True

    def refusal(self) -> NoRoomForBody:
        self.num_refused += 1
        return NoRoomForBody(
            "the gateway is at its limit of request body memory; retry later",
            retry_after_s=RETRY_AFTER_S,
        )


class Intake:
    """Body that arrives on a connection now."""

    __slots__ = ("num_bytes", "num_held", "_pieces", "_bodies", "_max_bytes", "_whole", "_error")

    def __init__(self, bodies: BodyBudget, max_bytes: int) -> None:
        self.num_bytes = 0
        self._pieces: list[bytes] = []
        self._bodies = bodies
        self.num_held = 0
        self._max_bytes = max_bytes
        self._whole: BytesIO | None = None
        self._error: GatewayError | None = None

    def expect(self, headers: Iterable[Header]) -> None:
        """Check an announced body before it arrives. Raises NoRoomForBody for one that is too long now."""
        left = self._bodies.max_bytes - self._bodies.num_bytes
        if left < self._max_bytes:
            for name, value in headers:
                is_long = name == b"content-length" and int(value) > left
                if is_long and not self._bodies.makes_room(int(value), int(value)):
                    raise self._bodies.refusal()

    def add(self, piece: bytes) -> GatewayError | None:
        """Add a piece; returns an error, with nothing kept, if the body is too large, or lost its room."""
        if self._error is not None:
            return self._error
        bodies, size = self._bodies, len(piece)
        self.num_bytes += size
        if self.num_bytes > self._max_bytes:
            self.drop()
            return BodyTooLarge(f"the body is over {self._max_bytes} bytes; send a smaller one")
        if bodies.num_bytes + size > bodies.max_bytes and not bodies.makes_room(size, self.num_bytes):
            self.drop()
            return bodies.refusal()
        bodies.num_bytes += size
        self.num_held += size
        if self._whole is not None:
            self._whole.write(piece)
            return None
        self._pieces.append(piece)
        if self.num_bytes >= LARGE:
            self._whole = BytesIO()
            self._whole.writelines(self._pieces)
            self._pieces = []
            bodies.arriving.add(self)
        return None

    def hand_to(self, http: HttpRequest) -> GatewayError | None:
        """Hand the complete body and its share over to the request; returns an error if it lost its room."""
        if self._error is not None:
            return self._error
        self._bodies.arriving.discard(self)
        http.body = b"".join(self._pieces) if self._whole is None else self._whole.getvalue()
        self._whole = None
        http.num_held, self.num_held = self.num_held, 0
        self._pieces = []
        return None

    def lose(self) -> None:
        """Give the room to a smaller body: the next piece, or the end, is an error."""
        self.drop()
        self._error = self._bodies.refusal()

    def drop(self) -> None:
        """Drop the pieces and free their share."""
        self._bodies.arriving.discard(self)
        self._bodies.num_bytes -= self.num_held
        self.num_held = 0
        self._pieces, self._whole = [], None

    def begin(self) -> None:
        """Start the next body."""
        self.drop()
        self.num_bytes, self._error = 0, None


def _num_held(intake: Intake) -> int:
    return intake.num_held
