"""Single requests that are cheap to send: how late others' requests are beside them, and their memory.

    hostile.nested_late_ms    JSON inside JSON: a tool call's arguments, 8 MB of numbers or 15 of objects
    hostile.nested_peak_mb    peak of the process for 15 MB of empty objects in arguments, again and again
    hostile.salted_late_ms    53 MB that nearly are a media `uuid`, of a tenant with a salt
    hostile.frames_late_ms    a WebSocket's empty text frames, 8 MB of them, by a key limited to some models

Late is the p99 of others' delays (`open_loop.py`) over the p99 of the quiet time before, in the same run. The
attack is repeated for as long as they are measured. `python -m loadtest.hostile_nested` prints all figures.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from gateway.app import bundled_tokenizer
from loadtest.agreeing_worker import MODEL
from loadtest.fleet import GATEWAY, SIM_READY, RunningFleet, first_match, gateway_before, running
from loadtest.hostile_body import CHAT, FLAGS, OTHER, WORKER, is_smoke, memory_mb, reset_peak
from loadtest.open_loop import MAX_LATE_MS, late_ms, rounds_of
from loadtest.report import Figure, best_of, publish

REPEATS = 5
SIZES = {"numbers": 8 << 20, "objects": 15_000_000, "salted": 53_000_000, "frames": 8 << 20}
SMOKE_SHARE = 16
FRAME = b"\x81\x80\0\0\0\0"
"""A whole text message without text, masked."""
ANSWER_S = 60.0
GIVEN_BACK_S, LEFT_MB = 3.0, 30.0

Attack = Callable[[], None]
"""Sends one request, or so many frames, and waits for what the gateway makes of it."""


def calling(unit: str, size: int, model: str = "sim") -> bytes:
    """A chat with a tool call, the arguments of which are a JSON text of a list."""
    arguments = '{"a":[' + ",".join([unit] * (size // (len(unit) + 1))) + "]}"
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    user, assistant = {"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": [call]}
    return json.dumps({"model": model, "max_tokens": 1, "messages": [user, assistant, user]}).encode()


def nearly_named(size: int, model: str = "sim") -> bytes:
    """A chat with a text in which a quote begins what nearly is the key `uuid`, again and again."""
    text = rb"\"uu\"ui"
    before = b'{"model":"%b","max_tokens":1,"messages":[{"role":"user","content":"' % model.encode()
    return before + text * (size // len(text)) + b'"}]}'


def post(url: str, body: bytes, key: str = "", *, path: str = CHAT, kind: str = "application/json") -> int:
    """Status of the response; one that comes before the body is sent counts too."""
    place = urlsplit(url)
    head = f"POST {path} HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    head += f"Content-Type: {kind}\r\n"
    head += f"Authorization: Bearer {key}\r\n\r\n" if key else "\r\n"
    with socket.create_connection((place.hostname, place.port), timeout=ANSWER_S) as link:
        with suppress(ConnectionError):
            link.sendall(head.encode() + body)
        return int(link.makefile("rb").readline().split()[1])


@contextmanager
def before_workers(*flags: str, more: tuple[str, ...] = ()) -> Iterator[RunningFleet]:
    """Gateway with a worker that is attacked, and one for other clients."""
    sim = ("sim", "--port", "0", *WORKER)
    with ExitStack() as stack:
        sims = [stack.enter_context(running(*sim, "--model", model)) for model in ("sim", OTHER)]
        urls = [*(first_match(each, SIM_READY)[0] for each in sims), *more]
        all_flags = (*FLAGS, "--tokenizer", str(bundled_tokenizer()), "--no-tokenizer-probe", *flags)
        yield stack.enter_context(gateway_before(urls, all_flags))


def wait_until_up(url: str, key: str = "") -> None:
    """Wait until workers answer."""
    end = time.monotonic() + 30
    for model in ("sim", OTHER):
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1})
        while post(url, body.encode(), key) != 200:
            if time.monotonic() > end:
                raise RuntimeError("the gateway does not answer")
            time.sleep(0.1)


def _size(name: str) -> int:
    return SIZES[name] // (SMOKE_SHARE if is_smoke() else 1)


def _figure(name: str, lates: list[float]) -> Figure:
    return best_of(name, "ms", None if is_smoke() else MAX_LATE_MS, lates)


def measure_nested() -> list[Figure]:
    bodies = [calling("1", _size("numbers")), calling("{}", _size("objects"))]
    with before_workers() as fleet:
        wait_until_up(fleet.gateway_url)
        url = fleet.gateway_url

        def of_both() -> float:
            return max(late_ms(url, OTHER, partial(_rejected, url, body)) for body in bodies)

        lates = rounds_of(of_both)
        return [_figure("hostile.nested_late_ms", lates), _peak(fleet, bodies[1])]


def _rejected(url: str, body: bytes, key: str = "") -> None:
    """Send a body that the worker rejects, if the gateway does not."""
    if (status := post(url, body, key)) != 400:
        raise RuntimeError(f"a hostile body got {status}")


def _peak(fleet: RunningFleet, body: bytes) -> Figure:
    """Peak of several requests; it is given back. The goal is the memory before, and 4 bodies and 50 MB."""
    pid, peaks = fleet.gateway_pid, list[float]()
    start_mb = memory_mb(pid, "VmRSS")
    for _ in range(1 if is_smoke() else REPEATS):
        reset_peak(pid)
        _rejected(fleet.gateway_url, body)
        peaks.append(round(memory_mb(pid, "VmHWM"), 1))
    end = time.monotonic() + GIVEN_BACK_S
    while (left_mb := memory_mb(pid, "VmRSS")) > start_mb + LEFT_MB:
        if time.monotonic() > end:
            raise RuntimeError(f"{left_mb - start_mb:.0f} MB of nested bodies are not given back")
        time.sleep(0.05)
    goal = None if is_smoke() else round(start_mb + 4 * len(body) / (1 << 20) + 50, 1)
    return Figure("hostile.nested_peak_mb", max(peaks), "MB", goal, peaks)


def made_key(*arguments: str) -> tuple[str, str]:
    """Key and its line, as users make them."""
    done = subprocess.run([*GATEWAY, "key", "new", *arguments], capture_output=True, text=True, check=True)
    return done.stderr.split()[-1], done.stdout


def measure_salted() -> list[Figure]:
    key, line = made_key("--tenant", "t")
    body = nearly_named(_size("salted"))
    with tempfile.TemporaryDirectory() as folder:
        keys, salt = Path(folder, "keys"), Path(folder, "salt")
        keys.write_text(line)
        salt.write_text(os.urandom(32).hex())
        with before_workers("--key-file", str(keys), "--tenant-salt-file", str(salt)) as fleet:
            url = fleet.gateway_url
            wait_until_up(url, key)
            lates = rounds_of(lambda: late_ms(url, OTHER, partial(_rejected, url, body, key), key))
    return [_figure("hostile.salted_late_ms", lates)]


def measure_frames() -> list[Figure]:
    """The frames of a key that is limited to models are read."""
    key, line = made_key("--tenant", "t", "--models", f"sim,{OTHER},{MODEL}")
    worker = [sys.executable, "-m", "loadtest.agreeing_worker"]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(worker, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as agreeing,
    ):
        assert agreeing.stdin is not None and agreeing.stdout is not None
        url = agreeing.stdout.readline().strip()
        keys = Path(folder, "keys")
        keys.write_text(line)
        with before_workers("--key-file", str(keys), more=(url,)) as fleet:
            wait_until_up(fleet.gateway_url, key)
            lates = rounds_of(lambda: late_ms(fleet.gateway_url, OTHER, partial(_framed, fleet, key), key))
        agreeing.stdin.close()
    return [_figure("hostile.frames_late_ms", lates)]


def _framed(fleet: RunningFleet, key: str) -> None:
    """Send the frames, and a ping behind them; the gateway has read them all once the worker has closed."""
    place, frames = urlsplit(fleet.gateway_url), FRAME * (_size("frames") // len(FRAME))
    head = f"GET /v1/realtime?model={MODEL} HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {key}\r\n"
    offer = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    with socket.create_connection((place.hostname, place.port), timeout=ANSWER_S) as link:
        link.sendall((head + offer + "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n").encode())
        if b" 101 " not in link.recv(4096):
            raise RuntimeError("the gateway agreed to no WebSocket")
        reading = threading.Thread(target=link.recv, args=[1])
        reading.start()
        link.sendall(frames)
        link.shutdown(socket.SHUT_WR)
        reading.join()


def measure() -> list[Figure]:
    return [*measure_nested(), *measure_salted(), *measure_frames()]


if __name__ == "__main__":
    publish("hostile_nested", measure())
