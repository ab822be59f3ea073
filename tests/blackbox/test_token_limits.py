"""Limits of tokens count every answer, whatever its client accepts and however it arrives."""

import gzip
import json
from pathlib import Path

import pytest

from tests.support.blackbox.bench import Bench, running
from tests.support.blackbox.http1_bytes import DONE, SSE_HEAD, Header, chunked, completion, event, post, wire
from tests.support.blackbox.scripted_worker import Call

NUM_TOKENS, LIMIT = 2000, 100
"""Tokens of an answer take 20 minutes to refill."""
JSON = (b"Content-Type", b"application/json")
USAGE = {"prompt_tokens": 3, "completion_tokens": NUM_TOKENS}
CODINGS: dict[str, list[Header]] = {
    "none": [],
    "gzip": [(b"Accept-Encoding", b"gzip, deflate")],
    "all": [(b"ACCEPT-ENCODING", b"br;q=1.0"), (b"accept-encoding", b"zstd, *, identity;q=0")],
    "underscore": [(b"Accept_Encoding", b"gzip")],
}


async def compresses(call: Call) -> None:
    """Answer as a worker behind something that compresses."""
    is_stream = b'"stream": true' in call.body
    given = [value for name, value in call.headers if name.lower().replace(b"_", b"-") == b"accept-encoding"]
    text = json.dumps({"choices": [{"index": 0, "text": "hi " * NUM_TOKENS}], "usage": USAGE}).encode()
    events = (
        event("hi") * 3 + b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\n" + DONE
    )
    if is_stream and given:
        head = SSE_HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
        await call.send(head + chunked(gzip.compress(events)))
    elif is_stream:
        await call.send(SSE_HEAD + chunked(events))
    elif given:
        await call.send(wire(200, gzip.compress(text), JSON, (b"Content-Encoding", b"gzip")))
    else:
        await call.send(wire(200, text, JSON))


async def num_answered(bench: Bench, body: bytes, *headers: Header, num_asked: int = 5) -> int:
    return [(await bench.ask(post(body, *headers))).status for _ in range(num_asked)].count(200)


def limited(folder: Path) -> tuple[str, str]:
    file = folder / "kvgate.toml"
    file.write_text(f'[tenants."*"]\ntokens_per_min = {LIMIT}\n')
    return "--config", str(file)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("coding", CODINGS)
async def test_what_a_client_accepts_lifts_no_limit(tmp_path: Path, coding: str, stream: bool) -> None:
    async with running(*limited(tmp_path)) as bench:
        worker = await bench.worker(script=compresses)
        asks = {"include_usage": True}
        body = completion(stream=True, stream_options=asks) if stream else completion()
        assert await num_answered(bench, body, *CODINGS[coding]) == 1
        assert not [name for call in worker.calls for name, _ in call.headers if b"encoding" in name.lower()]


@pytest.mark.parametrize("num_reads", [1, 40])
async def test_a_stream_without_usage_costs_its_events(tmp_path: Path, num_reads: int) -> None:
    """A client that does not want usage gets none, and an engine may be unable to report it."""
    pieces = [event("hi") * (800 // num_reads)] * num_reads

    async def script(call: Call) -> None:
        await call.send(SSE_HEAD)
        for piece in pieces:
            await call.send(chunked(piece, end=False))
        await call.send(chunked(DONE))

    async with running(*limited(tmp_path)) as bench:
        await bench.worker(script=script)
        body = completion(stream=True, stream_options={"include_usage": False})
        assert await num_answered(bench, body) == 1


@pytest.mark.parametrize("is_coded", [False, True])
async def test_an_answer_without_readable_usage_costs_what_its_bytes_suggest(
    tmp_path: Path, is_coded: bool
) -> None:
    """A worker may compress unasked."""
    noise = "".join(chr(33 + (i * i * 31 + i // 7) % 90) for i in range(4000)).replace('"', "'")
    text = json.dumps({"choices": [{"index": 0, "text": noise}]}).encode()
    sent = gzip.compress(text) if is_coded else text
    headers = [(b"Content-Encoding", b"gzip")] if is_coded else []

    async def script(call: Call) -> None:
        await call.send(wire(200, sent, JSON, *headers))

    async with running(*limited(tmp_path)) as bench:
        await bench.worker(script=script)
        assert await num_answered(bench, completion()) == 1
