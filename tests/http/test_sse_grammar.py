"""The scanner against the grammar of event streams, as WHATWG's HTML standard has it, in every split."""

from itertools import combinations, pairwise, product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.core.usage import Usage
from gateway.http.sse import MAX_HELD_BYTES, SseScanner, event_data
from gateway.http.usage_injection import InjectedUsageScanner

BOM = b"\xef\xbb\xbf"
ENDS = (b"\n", b"\r\n", b"\r")


class Reader:
    """A reader of event streams, byte by byte, as the standard describes one."""

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.has_begun_event = False
        self._line, self._data = b"", list[bytes]()
        self._num_bytes, self._is_behind_cr = 0, False

    def feed(self, stream: bytes) -> "Reader":
        for byte in stream:
            self._num_bytes += 1
            if byte in b"\r\n":
                if not (byte == ord("\n") and self._is_behind_cr):
                    self._end_line()
                self._is_behind_cr = byte == ord("\r")
            else:
                self._is_behind_cr = False
                self._line += bytes([byte])
                if self._num_bytes == 3 and self._line == BOM:
                    self._line = b""
        return self

    @property
    def is_between_events(self) -> bool:
        return not self._line and not self.has_begun_event

    def _end_line(self) -> None:
        line, self._line = self._line, b""
        if not line:
            if self._data:
                self.events.append(b"\n".join(self._data))
            self._data, self.has_begun_event = [], False
        elif not line.startswith(b":"):
            self.has_begun_event = True
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))


def check(stream: bytes, cuts: tuple[int, ...]) -> SseScanner:
    """Feed it in these pieces: what is complete passes at once, and nothing passes by half."""
    scanner, passed = SseScanner(), b""
    for a, b in pairwise((0, *cuts, len(stream))):
        passed += scanner.feed(stream[a:b])
        given, got = Reader().feed(stream[:b]), Reader().feed(passed)
        assert stream.startswith(passed) and got.is_between_events and scanner.is_whole
        assert got.events == given.events
        assert passed == stream[:b] or not given.is_between_events, "nothing waits between events"
    assert passed + scanner.flush() == stream
    return scanner


SHORT = [
    b"data: a\n\ndata: b\n\n",
    b"data: a\r\rdata: b\r\r",
    b"data: a\r\n\r\ndata: b\r\n\r\n",
    b"data: a\n\r\ndata: b\r\r\ndata: c\n\rdata: d\r\n\n",
    b": ping\ndata: a\n\n: ping\n: ping\r:\r\n\ndata: b\n: within\ndata: c\n\n: last",
    b": ping\r\n: ping\r\n\r\ndata:a\r\n\r\n",
    BOM + b"data: a\n\n" + BOM + b"data: b\n\n",
    BOM + b": ping\n\nevent: e\rdata\rid: 7\rretry: 1\r\rdata: b\r\r",
    b"\n\r\r\n\ndata: a\n\n\n\n\r",
    b"data: a\ndata: b\n\nevent: x\n\ndata\n\n\xef\xbb",
]


@pytest.mark.parametrize("stream", SHORT, ids=range(len(SHORT)))
def test_what_is_complete_passes_at_once_in_every_split(stream: bytes) -> None:
    check(stream, tuple(range(1, len(stream))))
    for num in (0, 1, 2):
        for cuts in combinations(range(len(stream) + 1), num):
            check(stream, cuts)


PARTS = [b"data: a", b"data:", b"data", b": ping", b":", b"event: x", b"id", b"", b"x: y", *ENDS, BOM]


@given(st.lists(st.sampled_from([*PARTS, *ENDS, *ENDS]), max_size=24).map(b"".join), st.data())
@example(b"data: a\r\r", None)
def test_what_is_complete_passes_at_once_in_any_stream(stream: bytes, draw: st.DataObject | None) -> None:
    cuts = draw.draw(st.lists(st.integers(0, len(stream)), max_size=6)) if draw else []
    check(stream, tuple(sorted(cuts)))
    check(stream, tuple(range(1, len(stream))))


LINES = [
    [b": ping"],
    [b'data: {"choices":[{"delta":', b'data: {"role":"assistant","content":""}}]}'],
    [b"event: message", b'data: {"choices":[{"delta":', b'data: {"content":"x"}}]}'],
    [
        b'data:{"choices":[],',
        b'data: "usage":{"prompt_tokens":7,',
        b'data: "completion_tokens":2}}',
        b"id: 3",
    ],
    [b"data: [DONE]"],
]


@pytest.mark.parametrize("ends", list(product(ENDS, repeat=2)), ids=repr)
@pytest.mark.parametrize("begin", [b"", BOM])
def test_tokens_and_usage_are_read_in_every_split(begin: bytes, ends: tuple[bytes, bytes]) -> None:
    line_end, last_end = ends
    stream = begin + b"".join(line_end.join(lines) + line_end + last_end for lines in LINES)
    if ends == (b"\r", b"\n"):
        return None  # these two are one line's end: the test of any stream has them
    for cuts in ((), tuple(range(1, len(stream))), *combinations(range(len(stream) + 1), 1)):
        scanner = SseScanner()
        for a, b in pairwise((0, *cuts, len(stream))):
            scanner.feed(stream[a:b])
        assert scanner.has_token and scanner.usage() == Usage(7, 2)
        assert scanner.num_events == 4
    return None


def test_the_data_of_an_event_is_that_of_all_its_lines() -> None:
    assert event_data(b"data: a\rdata:b\r\ndata:  c \n\n: d\nevent: e\ndata: f\r\rdata") == [
        b"a\nb\n  c",
        b"f",
    ]
    assert event_data(BOM + b"data: a\n\n") == [b"a"]


@pytest.mark.parametrize("end", [each + each for each in ENDS])
@pytest.mark.parametrize("first", [b"", BOM, b": ping\n", b"event: e\n"])
def test_a_token_of_the_first_event_is_seen(first: bytes, end: bytes) -> None:
    for num in (1, 2, 7):
        scanner = SseScanner()
        scanner.feed(
            (first + b'data: {"choices":[{"text":"x"}]}' + end) + (b"data: [DONE]" + end) * (num - 1)
        )
        assert scanner.has_token and scanner.num_events == num


@pytest.mark.parametrize("end", ENDS)
def test_the_end_of_a_long_event_is_seen_in_any_split(end: bytes) -> None:
    scanner, long = SseScanner(), b"data: " + b"x" * MAX_HELD_BYTES
    assert scanner.feed(long + end) == long and not scanner.is_whole
    assert scanner.feed(end) == end + end and scanner.is_whole
    assert scanner.feed(b": ping" + end) == b": ping" + end
    assert scanner.feed(long) == long
    assert scanner.feed(b": no comment" + end) == b"", "it is within a line of the event"
    assert scanner.feed(end) == b": no comment" + end + end


@pytest.mark.parametrize("end", [b"\n\n", b"\r\r", b"\r\n\r\n", b"\n\r\n"])
def test_usage_that_the_client_did_not_ask_for_is_taken_out_whatever_ends_a_line(end: bytes) -> None:
    first, last = b'data: {"choices":[{"text":"a"}]}' + end, b"data: [DONE]" + end
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}' + end
    stream = first + usage + last
    for cut in range(len(stream)):
        scanner = InjectedUsageScanner()
        passed = scanner.feed(stream[:cut]) + scanner.feed(stream[cut:]) + scanner.flush()
        assert Reader().feed(passed).events == Reader().feed(first + last).events
        assert scanner.usage() == Usage(7, 2)
