"""What is watched of one answer on its way through: first token, pieces, usage.

Fed with heads and body bytes and the time; tells what happened, decides nothing.
"""

from enum import Enum

from gateway.core.usage import WIDEST, RefusedUsage, Usage, UsageLimit
from gateway.http.headers import is_event_stream
from gateway.http.json_usage import PlainScanner
from gateway.http.messages import ResponseHead
from gateway.http.sse import SseScanner
from gateway.http.usage_redaction import Masker


class Piece(Enum):
    """What a part of a streamed answer was."""

    FIRST_TOKEN = "first token"
    TOKEN = "token"
    OTHER = "other"


class Answer:
    """One answer. `first_token_s` is the time of the first token on the caller's clock."""

    # fmt: off
    __slots__ = (
        "status", "first_token_s", "last_token_s", "refused", "_scanner", "_plain", "_masker", "_limit",
    )
    # fmt: on

    def __init__(
        self,
        head: ResponseHead,
        unasked: SseScanner | None = None,
        *,
        masks: bool = False,
        limit: UsageLimit = WIDEST,
    ) -> None:
        """`unasked` changes the stream: what its client is not to see is taken out, or named otherwise.
        `masks`: it is not to see how much of its prompt was cached. `limit`: what its usage can be."""
        self.status = head.status
        self.refused: str | None = None  # why its usage is not believed, once that was read
        self._limit = limit
        self.first_token_s: float | None = None
        self.last_token_s = 0.0
        is_ok = head.status == 200
        is_stream = is_ok and is_event_stream(head)
        self._scanner = (unasked or SseScanner()) if is_stream else None
        self._plain = PlainScanner() if is_ok and self._scanner is None else None
        self._masker = Masker() if is_ok and masks else None

    def __repr__(self) -> str:
        kind = "stream" if self._scanner else "plain"
        return f"Answer({self.status}, {kind}, first_token_s={self.first_token_s})"

    @property
    def can_be_ended(self) -> bool:
        """Whether an error event can follow what was passed on: a stream, and not in mid-event."""
        return self._scanner is not None and self._scanner.is_whole

    @property
    def is_stream(self) -> bool:
        """A good answer that comes as events."""
        return self._scanner is not None

    @property
    def is_reframed(self) -> bool:
        """It may become longer or shorter than the worker's."""
        return self._scanner is not None or self._masker is not None

    @property
    def is_plain(self) -> bool:
        """An unstreamed good answer: its head comes with its last token, so it has no first."""
        return self.status == 200 and self._scanner is None

    @property
    def num_pieces(self) -> int:
        """In which a stream has come so far: about its tokens, at least."""
        return self._scanner.num_events_fed if self._scanner else 0

    def ttft_s(self, started: float) -> float | None:
        """Since then to its first token; None where it has none that could be seen."""
        return self.first_token_s - started if self.first_token_s is not None else None

    @property
    def lasted_s(self) -> float:
        """From its first token to its last so far."""
        return self.last_token_s - self.first_token_s if self.first_token_s is not None else 0.0

    def feed(self, data: bytes, now: float) -> tuple[bytes, Piece, float]:
        """The bytes to pass on now, what they were, and the seconds since the token before."""
        if self._scanner is None:
            if self._plain:
                self._plain.feed(data)
            return self._masked(data), Piece.OTHER, 0.0
        data = self._masked(self._scanner.feed(data))
        if not data or not self._scanner.has_token:
            return data, Piece.OTHER, 0.0
        since, self.last_token_s = now - self.last_token_s, now
        if self.first_token_s is not None:
            return data, Piece.TOKEN, since
        self.first_token_s = now
        return data, Piece.FIRST_TOKEN, 0.0

    def held(self) -> bytes:
        """Whole events that waited for what follows them."""
        return self._masked(self._scanner.held()) if self._scanner else b""

    def flush(self) -> bytes:
        """What is left of a body at its end, as of a stream without the end of its last event."""
        rest = self._scanner.flush() if self._scanner else b""
        return self._masked(rest) + self._masker.flush() if self._masker else rest

    def _masked(self, data: bytes) -> bytes:
        return self._masker.feed(data) if self._masker and data else data

    def usage(self) -> Usage | None:
        """As the engine reported it, where that is possible; only a complete answer tells."""
        found: Usage | RefusedUsage | None = None
        if self._scanner is not None:
            found = self._scanner.usage(self._limit)
        elif self._plain is not None:
            found = self._plain.usage(self._limit)
        if isinstance(found, RefusedUsage):
            self.refused = found.why
            return None
        return found
