"""Usage of unstreamed answers, read from the bytes on their way through.

A short answer is kept and parsed. Of a long one (log probabilities, many choices) only the object behind its
last `"usage":` is kept: thousands of clients may each take minutes to read such an answer.
"""

from typing import Final

from gateway.core.usage import WIDEST, RefusedUsage, Usage, UsageLimit
from gateway.core.usage_reading import read_usage

MAX_KEPT_BYTES: Final = 16 << 10
"""Size up to which answers are parsed as a whole, however they are formatted."""
MAX_USAGE_BYTES: Final = 2048
MARKS: Final[tuple[bytes, ...]] = (b'"usage":{', b'"usage": {')
LONGEST_MARK: Final = max(map(len, MARKS))


class PlainScanner:
    """Scanner of a body fed in any splits; keeps at most MAX_KEPT_BYTES of it."""

    __slots__ = ("_parts", "_num_bytes", "_found", "_carry")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._num_bytes = 0
        self._found: bytes | None = None  # from the last mark on
        self._carry = b""  # possible beginning of a mark

    def __repr__(self) -> str:
        return f"PlainScanner({self._num_bytes} bytes, {self.num_kept_bytes} kept)"

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    @property
    def num_kept_bytes(self) -> int:
        return sum(map(len, self._parts)) + len(self._found or b"") + len(self._carry)

    def feed(self, data: bytes) -> None:
        is_long = self._num_bytes > MAX_KEPT_BYTES
        self._num_bytes += len(data)
        if is_long:
            self._scan(data)
            return
        self._parts.append(data)
        if self._num_bytes > MAX_KEPT_BYTES:
            self._scan(b"".join(self._parts))
            self._parts = []

    def usage(self, limit: UsageLimit = WIDEST) -> Usage | RefusedUsage | None:
        """Return the usage of the whole body, after its end."""
        if self._num_bytes <= MAX_KEPT_BYTES:
            return read_usage(b"".join(self._parts), limit)
        if self._found is None or not (end := _end_of_object(self._found)):
            return None
        return read_usage(b"{" + self._found[:end] + b"}", limit)

    def _scan(self, data: bytes) -> None:
        text = self._carry + data
        self._carry = text[1 - LONGEST_MARK :]
        at = max(text.rfind(mark) for mark in MARKS)
        if at >= 0:
            self._found = text[at : at + MAX_USAGE_BYTES]
        elif self._found is not None:
            self._found += data[: MAX_USAGE_BYTES - len(self._found)]


def _end_of_object(text: bytes) -> int:
    """Return the end of the first object in `text`, 0 if it is not complete. Usage has numbers in it, no
    texts."""
    depth = 0
    for at, byte in enumerate(text):
        if byte == ord("{"):
            depth += 1
        elif byte == ord("}"):
            depth -= 1
            if depth == 0:
                return at + 1
    return 0
