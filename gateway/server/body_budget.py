"""Request bodies that are held now, of all requests of a process: what there is no room for is refused.

arriving ─► queued behind others ─► at work, until its worker begins to answer ─► let go
   └─ refused, client gone, failed, too late: let go
"""

from collections.abc import Iterable
from io import BytesIO

from gateway.core.decoding import LARGE
from gateway.core.errors import BodyTooLarge, GatewayError, NoRoomForBody
from gateway.http.messages import Header, HttpRequest

RETRY_AFTER_S = 1
"""Bodies are let go when answers begin: seconds, as a rule."""


class Bodies:
    """How many bytes are held; what a request holds is in its `num_held`."""

    def __init__(self, max_bytes: int = 1 << 30) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self.num_refused = 0

    def __repr__(self) -> str:
        return f"Bodies({self.num_bytes} of {self.max_bytes} bytes, {self.num_refused} refused)"

    def let_go(self, http: HttpRequest) -> None:
        """At its end, however that came; the first call counts."""
        self.num_bytes -= http.num_held
        http.num_held = 0

    def refusal(self) -> NoRoomForBody:
        self.num_refused += 1
        return NoRoomForBody(
            f"request bodies of {self.max_bytes} bytes are held already (--max-bodies-bytes)",
            retry_after_s=RETRY_AFTER_S,
        )


class Intake:
    """The body that arrives on a connection now."""

    __slots__ = ("num_bytes", "_pieces", "_bodies", "_num_held", "_max_bytes", "_whole")

    def __init__(self, bodies: Bodies, max_bytes: int) -> None:
        self.num_bytes = 0
        self._pieces: list[bytes] = []
        self._bodies = bodies
        self._num_held = 0
        self._max_bytes = max_bytes
        self._whole: BytesIO | None = None

    def expect(self, headers: Iterable[Header]) -> None:
        """Nothing is taken for it yet. Raises NoRoomForBody for one that says that it is too long."""
        left = self._bodies.max_bytes - self._bodies.num_bytes
        if left < self._max_bytes:
            for name, value in headers:
                if name == b"content-length" and int(value) > left:
                    raise self._bodies.refusal()

    def add(self, piece: bytes) -> GatewayError | None:
        """Keep it, or why not: then nothing is kept."""
        bodies, size = self._bodies, len(piece)
        self.num_bytes += size
        if self.num_bytes > self._max_bytes:
            self.drop()
            return BodyTooLarge(f"the body is over {self._max_bytes} bytes, the gateway's --max-body-bytes")
        if bodies.num_bytes + size > bodies.max_bytes:
            self.drop()
            return bodies.refusal()
        bodies.num_bytes += size
        self._num_held += size
        if self._whole is not None:
            self._whole.write(piece)
            return None
        self._pieces.append(piece)
        if self.num_bytes >= LARGE:
            self._whole = BytesIO()
            self._whole.writelines(self._pieces)
            self._pieces = []
        return None

    def hand_to(self, http: HttpRequest) -> None:
        """It is complete: the request holds it from now on."""
        http.body = b"".join(self._pieces) if self._whole is None else self._whole.getvalue()
        self._whole = None
        http.num_held, self._num_held = self._num_held, 0
        self._pieces = []

    def drop(self) -> None:
        """What was kept of it."""
        self._bodies.num_bytes -= self._num_held
        self._num_held = 0
        self._pieces, self._whole = [], None

    def begin(self) -> None:
        """The next one."""
        self.drop()
        self.num_bytes = 0
