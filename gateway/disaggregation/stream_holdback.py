"""The beginning of a stream, held back until it is an answer or an error.

Engines begin a stream before they know whether they can fetch the blocks of the prefill worker: the head is a
200, then comes an event with the role (chats), and then the first token, or an error in its place.
"""

from enum import Enum

from gateway.http.messages import ResponseHead
from gateway.http.sse import SseScanner, event_data

MAX_BYTES = 64 << 10
"""A longer beginning is passed on, whatever it is."""
_ERRORS = (b'{"error"', b'{"object":"error"')


class Beginning(Enum):
    OPEN = "open"
    ANSWER = "answer"
    ERROR = "error"


class HeldStream:
    """A stream's head and its first bytes, which are passed on together."""

    __slots__ = ("head", "data", "_scanner")

    def __init__(self, head: ResponseHead) -> None:
        self.head = head
        self.data = b""
        self._scanner = SseScanner()

    def __repr__(self) -> str:
        return f"HeldStream({len(self.data)} bytes)"

    def feed(self, data: bytes) -> Beginning:
        self.data += data
        whole = self._scanner.feed(data)
        if any(event.startswith(_ERRORS) for event in event_data(whole)):
            return Beginning.ERROR
        is_answer = self._scanner.has_token or len(self.data) > MAX_BYTES
        return Beginning.ANSWER if is_answer else Beginning.OPEN
