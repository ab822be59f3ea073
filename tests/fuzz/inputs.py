"""Inputs of the fuzzer: transcripts of the conformance tables and real bodies, broken by a few strokes.

Input `n` of a seed is always the same, whatever ran before it.
"""

import base64
import json
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from tests.conformance.answers import ANSWERS
from tests.conformance.cases import CASES, OK, P, head

Leaving = Literal["stays", "closes", "resets", "half-closes"]


@dataclass(frozen=True, slots=True)
class Input:
    """Bytes of one client and of its worker's answer, each in parts that begin at the cuts."""

    data: bytes
    cuts: tuple[int, ...]
    answer: bytes
    answer_cuts: tuple[int, ...]
    closes: bool
    leaving: Leaving = "stays"

    def to_json(self) -> str:
        fields = asdict(self) | {"data": _text(self.data), "answer": _text(self.answer)}
        return json.dumps(fields, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Input":
        fields = json.loads(text)
        for name in ("data", "answer"):
            fields[name] = base64.b64decode(fields[name])
        for name in ("cuts", "answer_cuts"):
            fields[name] = tuple(fields[name])
        return cls(**fields)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


CHAT = json.dumps(
    {
        "model": "m",
        "messages": [
            {"role": "system", "content": "You are terse."},
            {"role": "user", "content": [{"type": "text", "text": "caf\u00e9 \U0001f600"}]},
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "content": "4"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
    }
).encode()
BODIES = [P, CHAT, b'{"model":"m","input":["a","b"]}', b'{"model":"m","prompt":"hi","stream":true,"n":2}']
ROUTES = [
    b"/v1/completions",
    b"/v1/chat/completions",
    b"/v1/embeddings",
    b"/tokenize",
    b"/v1/models",
    b"/ready",
]

REQUESTS = [case.data for case in CASES if len(case.data) < 4000]
REPLIES = [(case.data, case.closes) for case in ANSWERS]
GOOD_REPLY = (b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n" + b'{"ok":true}', False)

PIECES = [
    b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b";", b",", b"\x0b", b"\x7f", b"\xff", b"0", b"\r\n\r\n",
    b"0\r\n\r\n", b"0\r\n", b"1\r\na\r\n", b"ffffffffffffffff\r\n", b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n", b"Content-Length: 5\r\n", b"Content-Length: 0\r\n",
    b"Host: b\r\n",
    b"Content-Length: 99999999999999999999\r\n", b"Expect: 100-continue\r\n", b"Connection: close\r\n",
    b"Connection: keep-alive\r\n", b"Connection: upgrade\r\nUpgrade: h2c\r\n", b" HTTP/1.0", b" HTTP/1.1",
    b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\n", OK,
    b"data: [DONE]\n\n", b"data: ", b"X-Request-Id: 1\r\n", b"Content-Type: text/event-stream\r\n",
]  # fmt: skip

VALUES: list[Any] = [
    None, True, -1, 0, 1 << 70, 1e308, "", "m", "\0", "\ud7ff", [], [[]], {}, [1, "a"], [None], {"a": {}},
    "x" * 999,
]  # fmt: skip


def make(seed: int, number: int) -> Input:
    rng = random.Random(f"{seed}:{number}")
    data = _request(rng)
    answer, closes = rng.choice(REPLIES) if rng.random() < 0.6 else GOOD_REPLY
    if rng.random() < 0.5:
        answer = broken(rng, answer, [reply for reply, _ in REPLIES])
    leaving = rng.choice(("closes", "resets", "half-closes")) if rng.random() < 0.15 else "stays"
    closes = closes or rng.random() < 0.1
    return Input(data, _cuts(rng, data), answer, _cuts(rng, answer), closes, leaving)


def _request(rng: random.Random) -> bytes:
    if rng.random() < 0.3:
        body = rng.choice(BODIES)
        if rng.random() < 0.7:
            body = _broken_json(rng, body)
        line = b"POST %b HTTP/1.1" % rng.choice(ROUTES)
        data = head(b"Content-Length: %d" % len(body), first=line) + body
    else:
        data = rng.choice(REQUESTS)
    if rng.random() < 0.3:
        data += rng.choice(REQUESTS)
    return data if rng.random() < 0.15 else broken(rng, data, REQUESTS)


def _cuts(rng: random.Random, data: bytes) -> tuple[int, ...]:
    if not data or rng.random() < 0.4:
        return ()
    if len(data) < 600 and rng.random() < 0.1:
        return tuple(range(len(data)))
    return tuple(sorted(rng.randrange(len(data)) for _ in range(rng.randint(1, 5))))


def _broken_json(rng: random.Random, body: bytes) -> bytes:
    """Replace a value at some place of the JSON: the framing stays right, so it is read."""
    fields = json.loads(body)
    place = fields
    while True:
        keys: Sequence[Any] = list(place) if isinstance(place, dict) else range(len(place))
        if not keys:
            break
        key = rng.choice(keys)
        if isinstance(place[key], (dict, list)) and rng.random() < 0.6:
            place = place[key]
            continue
        place[key] = rng.choice(VALUES)
        break
    return json.dumps(fields).encode()


def broken(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5))):
        data = rng.choice(STROKES)(rng, data, others)
    return data[: 64 << 10]


Stroke = Callable[[random.Random, bytes, Sequence[bytes]], bytes]


def _flip(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(data) or 1)
    return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]


def _insert(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + rng.choice(PIECES) + data[at:]


def _insert_line(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Insert a header, most often: at the beginning of a line."""
    starts = [found.end() for found in re.finditer(rb"\r\n", data)] or [0]
    at = rng.choice(starts)
    return data[:at] + rng.choice(PIECES) + data[at:]


def _delete(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    start = rng.randint(0, len(data))
    return data[:start] + data[start + rng.randint(1, 20) :]


def _double(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    start = rng.randint(0, len(data))
    end = start + rng.randint(1, 60)
    return data[:end] + data[start:end] * rng.choice((1, 1, 2, 50)) + data[end:]


def _double_line(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    lines = data.split(b"\r\n")
    at = rng.randrange(len(lines))
    return b"\r\n".join(lines[: at + 1] + lines[at:])


def _truncate(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    return data[: rng.randint(0, len(data))]


def _splice(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    other = rng.choice(others)
    return data[: rng.randint(0, len(data))] + other[rng.randint(0, len(other)) :]


def _number(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    numbers = list(re.finditer(rb"\d+", data))
    if not numbers:
        return data
    found = rng.choice(numbers)
    other = rng.choice(
        (b"0", b"1", b"7", b"-1", b"00", b"4294967296", b"9" * 25, b"1e1", b"0x5", b" 5", b"5 5")
    )
    return data[: found.start()] + other + data[found.end() :]


def _swap_case(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    start = rng.randint(0, len(data))
    end = start + rng.randint(1, 20)
    return data[:start] + data[start:end].swapcase() + data[end:]


STROKES: list[Stroke] = [
    _flip, _insert, _insert, _insert_line, _insert_line, _delete, _double, _double_line, _truncate, _splice,
    _number, _swap_case,
]  # fmt: skip


async def smaller(found: Input, fails: Callable[[Input], Awaitable[bool]], tries: int = 400) -> Input:
    """Find a part of it that still fails: runs of bytes are removed, from long to short, then the cuts."""
    for name in ("data", "answer"):
        step = max(len(getattr(found, name)) // 2, 1)
        while step and tries > 0:
            at = 0
            while at < len(value := getattr(found, name)) and tries > 0:
                tries -= 1
                shorter = replace(found, **{name: value[:at] + value[at + step :]})
                found, at = (shorter, at) if await fails(shorter) else (found, at + step)
            step //= 2
    for plain in ({"cuts": ()}, {"answer_cuts": ()}, {"leaving": "stays"}, {"closes": False}):
        simpler = replace(found, **plain)  # type: ignore[arg-type]
        found = simpler if await fails(simpler) else found
    return found
