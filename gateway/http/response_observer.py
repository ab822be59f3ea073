"""Observer of one response on its way through: first token, pieces, usage.

Fed with heads, body bytes and the time; reports what happened, decides nothing.
"""

from enum import Enum
from typing import Final

from gateway.core.usage import WIDEST, RefusedUsage, Usage, UsageLimit
from gateway.http.headers import has_coding, is_event_stream
from gateway.http.json_usage import PlainScanner
from gateway.http.messages import ResponseHead
from gateway.http.sse import SseScanner
from gateway.http.usage_redaction import UsageRedactor

BYTES_PER_TOKEN: Final = 4


class Piece(Enum):
    """Kind of a part of a streamed answer."""

    FIRST_TOKEN = "first token"
    TOKEN = "token"
    OTHER = "other"


class ResponseObserver:
    """Observer of one response. `first_token_s` is the time of the first token on the caller's clock."""

    # fmt: off
    __slots__ = (
        "status", "first_token_s", "last_token_s", "refused", "_scanner", "_plain", "_masker", "_limit",
        "_is_coded",
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
        """Create an observer. `unasked` filters injected usage from the stream. `masks` hides the number of
        cached prompt tokens. `limit` bounds plausible usage."""
        self.status = head.status
        self.refused: str | None = None  # why the usage is rejected, once it was read
        self._limit = limit
        self.first_token_s: float | None = None
        self.last_token_s = 0.0
        self._is_coded = has_coding(head)
        is_ok = head.status == 200
        is_stream = is_ok and is_event_stream(head)
        self._scanner = (unasked or SseScanner()) if is_stream else None
        self._plain = PlainScanner() if is_ok and self._scanner is None else None
        self._masker = UsageRedactor() if is_ok and masks else None

    def __repr__(self) -> str:
        kind = "stream" if self._scanner else "plain"
        return f"ResponseObserver({self.status}, {kind}, first_token_s={self.first_token_s})"

    @property
    def num_answers(self) -> int:
        """Answers to each prompt that were asked for, as far as that is known."""
        return self._limit.num_answers

    @property
    def can_be_ended(self) -> bool:
        """True if an error event can follow the bytes passed on: a stream, and not in mid-event."""
        return self._scanner is not None and self._scanner.is_whole

    @property
    def is_stream(self) -> bool:
        """True for a successful answer that comes as events."""
        return self._scanner is not None

    @property
    def is_reframed(self) -> bool:
        """True if the body may become longer or shorter than the worker's."""
        return self._scanner is not None or self._masker is not None

    @property
    def is_plain(self) -> bool:
        """True for an unstreamed successful answer: its head comes with its last token, so it has no first
        token."""
        return self.status == 200 and self._scanner is None

    @property
    def num_guessed(self) -> int:
        """Number of generated tokens so far, guessed where none is reported: the events of a stream, else a
        quarter of the bytes of a text, or each byte of a compressed one."""
        if self._scanner is not None:
            return self._scanner.num_events
        if self._plain is None:
            return 0
        return self._plain.num_bytes if self._is_coded else self._plain.num_bytes // BYTES_PER_TOKEN

    def ttft_s(self, started: float) -> float | None:
        """Return the time from `started` to the first token; None where none was seen."""
        return self.first_token_s - started if self.first_token_s is not None else None

    @property
    def lasted_s(self) -> float:
        """Time from the first token to the last so far."""
        return self.last_token_s - self.first_token_s if self.first_token_s is not None else 0.0

    def feed(self, data: bytes, now: float) -> tuple[bytes, Piece, float]:
        """Return the bytes to pass on now, their kind, and the seconds since the token before."""
        if self._scanner is None:
            if self._plain:
                self._plain.feed(data)
            return self._masked(data), Piece.OTHER, 0.0
        num_before = self._scanner.num_events
        data = self._masked(self._scanner.feed(data))
        if not data or not self._scanner.has_token or self._scanner.num_events == num_before:
            return data, Piece.OTHER, 0.0
        since, self.last_token_s = now - self.last_token_s, now
        if self.first_token_s is not None:
            return data, Piece.TOKEN, since
        self.first_token_s = now
        return data, Piece.FIRST_TOKEN, 0.0

    def held(self) -> bytes:
        """Return whole events that waited for the next one."""
        return self._masked(self._scanner.held()) if self._scanner else b""

    def flush(self) -> bytes:
        """Return the rest of a body at its end, or of an incomplete last event."""
        rest = self._scanner.flush() if self._scanner else b""
        return self._masked(rest) + self._masker.flush() if self._masker else rest

    def _masked(self, data: bytes) -> bytes:
        return self._masker.feed(data) if self._masker and data else data

    def usage(self) -> Usage | None:
        """Return the usage as reported by the engine, if plausible; only complete answers have it."""
        found: Usage | RefusedUsage | None = None
        if self._scanner is not None:
            found = self._scanner.usage(self._limit)
        elif self._plain is not None:
            found = self._plain.usage(self._limit)
        if isinstance(found, RefusedUsage):
            self.refused = found.why
            return None
        return found
