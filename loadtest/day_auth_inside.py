"""Inner process of `day_auth`: prints, as JSON, the cost of a request with and without keys.

Three gateways with no worker: each request is authenticated, read and rejected, with all that a key changes
on its way. Later stages (tokens, decision, the worker) are the same with or without one.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import msgspec

from gateway.app import Gateway, bundled_tokenizer
from gateway.config import Config, config_of
from gateway.http.messages import HttpRequest
from gateway.server.responder import Responder
from loadtest.day_auth import KEYED, PLAIN, SALTED, made_in
from loadtest.extent import extent
from loadtest.instruments import BenchError

ROUNDS = extent(1, 2)
SLICES = extent(2, 150)
SLICE_REQUESTS = 200
BODY = b'{"model":"m","messages":[{"role":"user","content":"how are you?"}],"max_tokens":64}'
NO_WORKER = b"HTTP/1.1 503 "


class Client:
    """Connection that drops the data sent to it, except the last part."""

    is_full = False
    is_draining = False
    peername = ("127.0.0.1", 1)
    last = b""

    def write(self, data: bytes) -> None:
        self.last = data

    def answered(self, keep_alive: bool) -> None: ...
    def abort(self, *, with_reset: bool = False) -> None: ...
    def leave_http(self, receive: Callable[[bytes], None]) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


def requests_of(key: str, num: int) -> list[HttpRequest]:
    """Requests as they are parsed of a client's bytes."""
    headers = [
        (b"host", b"127.0.0.1:8000"),
        (b"user-agent", b"OpenAI/Python 1.70.0"),
        (b"accept", b"application/json"),
        (b"accept-encoding", b"gzip, deflate"),
        (b"authorization", f"Bearer {key}".encode()),
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(BODY)),
    ]
    return [HttpRequest("POST", b"/v1/chat/completions", list(headers), BODY) for _ in range(num)]


def slice_us(gateway: Gateway, key: str, num: int) -> float:
    """Microseconds of one request of a slice. Raises BenchError where they did not come that far."""
    requests, client = requests_of(key, num), Client()
    responders = [Responder(client, http) for http in requests]
    began = time.thread_time()
    for http, responder in zip(requests, responders, strict=True):
        gateway.parts.api.api.handle(http, responder)
    took_s = time.thread_time() - began
    if not client.last.startswith(NO_WORKER):
        raise BenchError(f"the gateway answered {client.last!r}")
    return took_s * 1e6 / num


async def measured(
    key: str, configs: Mapping[str, Config], num_slices: int = SLICES, num_requests: int = SLICE_REQUESTS
) -> list[dict[str, float]]:
    """Medians of each round, by name."""
    gateways = {name: Gateway(config) for name, config in configs.items()}
    try:
        for gateway in gateways.values():
            await gateway.start(serve=False)
        rounds = []
        for _ in range(ROUNDS):
            slices: dict[str, list[float]] = {name: [] for name in gateways}
            for _ in range(num_slices):
                for name, gateway in gateways.items():
                    slices[name].append(slice_us(gateway, key, num_requests))
            rounds.append({name: median(found) for name, found in slices.items()})
    finally:
        for gateway in gateways.values():
            await gateway.stop(0.0)
    return rounds


def configs_of(file: str, secret: str) -> dict[str, Config]:
    tokenizer = [str(bundled_tokenizer())]
    return {
        PLAIN: config_of(tokenizer=tokenizer),
        KEYED: config_of(tokenizer=tokenizer, key_file=file),
        SALTED: config_of(tokenizer=tokenizer, key_file=file, tenant_salt_file=secret),
    }


def main() -> int:
    with TemporaryDirectory(prefix="kvgate-auth-") as directory:
        key, file, secret = made_in(Path(directory))
        found = asyncio.run(measured(key, configs_of(file, secret)))
    sys.stdout.buffer.write(msgspec.json.encode(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
