"""Figure `day.redaction_leaks`: does anything that clients send come out where it should not?

Unique words are planted in prompts, tools, keys, headers and query strings, also of requests that are broken,
rejected, or fail at workers that echo their requests. Then the log (at debug, with lines of requests), the
metrics, the traces and every page of the admin API are searched for them: as they are, in base64, in hex. A
gateway that logs prompts on purpose shows that the search finds them.
"""

import base64
import contextlib
import http.client
import json
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from loadtest.fleet import LISTENING, SIM_READY, first_match, running
from loadtest.report import Figure, publish

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ECHO = "echo"
"""Model of the worker that echoes."""
PAGES = (
    "/metrics",
    "/admin/workers",
    "/admin/index",
    "/admin/tokenizer",
    "/admin/cache-loss",
    "/admin/verify",
    "/admin/admission",
    "/admin/policies",
    "/admin/decisions",
)
CHATTY = """\
import logging
import gateway.requests.client_body as client_body
parse = client_body.parse_request
def chatty(path, body, *rest, **more):
    logging.getLogger("kvgate").info("got %s", body)
    return parse(path, body, *rest, **more)
client_body.parse_request = chatty
def choose(query, candidates, rng):
    return 0
"""
"""Policy file that makes the gateway log its requests: it is code in the gateway."""
START_S = 30.0
FROM_SOURCE = (sys.executable, "-P", "-m", "kvgate")
"""Command of the gateway from source, whichever one the other figures are of: traces are an extra, and the
policy that logs requests cannot be put into compiled code."""


@dataclass(slots=True)
class Canaries:
    """Planted words: `plant` makes one; `found` lists where they occur."""

    planted: dict[str, str] = field(default_factory=dict)

    def plant(self, where: str) -> str:
        word = "canary" + secrets.token_hex(8)
        self.planted[word] = where
        return word

    def found(self, texts: Mapping[str, bytes]) -> list[str]:
        found = []
        for word, where in self.planted.items():
            raw = word.encode()
            forms = [raw, raw.hex().encode(), *(base64.b64encode(b"xyz"[:n] + raw)[4:-4] for n in range(3))]
            found += [
                f"{where} in {place}" for place, text in texts.items() if any(form in text for form in forms)
            ]
        return found


class Echo(BaseHTTPRequestHandler):
    """Worker that echoes its request in every response and failure; `?do=` selects which."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *values: object) -> None:
        pass

    def do_GET(self) -> None:
        pages = {
            "/health": b"",
            "/v1/models": json.dumps({"object": "list", "data": [{"id": ECHO, "root": ECHO}]}).encode(),
        }
        body = pages.get(self.path)
        self._send(404 if body is None else 200, body or b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        said = json.dumps(str(self.headers) + body.decode("latin-1"))[1:-1].encode()
        path, _, query = self.path.partition("?")
        doing = query.partition("do=")[2].partition("&")[0]
        if path not in (CHAT, COMPLETIONS):
            return self._send(400, said)
        if doing == "malformed":
            return self._hang_up(b"HTTP/1.1 2" + said[:400].replace(b"\\", b"") + b"\r\n\r\n")
        if doing == "half":
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            event = b'data: {"choices":[{"index":0,"delta":{"content":"' + said + b'"}}]}\n\n'
            return self._hang_up(head + b"%x\r\n%b\r\n" % (len(event), event))
        if doing == "gone":
            return self._hang_up(b"")
        return self._send(int(doing or 200), b'{"error":{"message":"' + said + b'"}}')

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _hang_up(self, raw: bytes) -> None:
        self.wfile.write(raw)
        self.close_connection = True


class TraceCollector(BaseHTTPRequestHandler):
    """Collector of traces; strings are in their protobuf as they are."""

    taken: list[bytes] = []

    def log_message(self, format: str, *values: object) -> None:
        pass

    def do_POST(self) -> None:
        self.taken.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()


class QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass


@contextmanager
def echo_worker(handler: type[BaseHTTPRequestHandler] = Echo) -> Iterator[str]:
    server = QuietServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """Running gateway, and the file of its log."""

    url: str
    admin_url: str
    log: Path

    def ask(
        self,
        target: str,
        body: bytes | None,
        headers: Mapping[str, str] | None = None,
        *,
        is_admin: bool = False,
    ) -> tuple[int, bytes]:
        """Status and body; 0 where the connection was closed early."""
        netloc = urlsplit(self.admin_url if is_admin else self.url).netloc
        connection = http.client.HTTPConnection(netloc, timeout=30)
        try:
            connection.request("GET" if body is None else "POST", target, body, dict(headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()


@contextmanager
def gateway(directory: Path, workers: Sequence[str], *flags: str) -> Iterator[RunningGateway]:
    log = directory / f"log-{secrets.token_hex(4)}"
    command = [
        *FROM_SOURCE,
        "serve",
        "--port",
        "0",
        "--admin-port",
        "0",
        "--log-level",
        "debug",
        "--log-requests",
    ]
    given = [flag for url in workers for flag in ("--worker", url)]
    with open(log, "wb") as file:
        process = subprocess.Popen([*command, *given, *flags], stdout=file, stderr=file)
    try:
        deadline = time.monotonic() + START_S
        while not (found := LISTENING.search(log.read_text())):
            if time.monotonic() > deadline or process.poll() is not None:
                raise TimeoutError(f"the gateway did not start:\n{log.read_text()}")
            time.sleep(0.02)
        reached = RunningGateway(found[1], found[2], log)
        for model in ("m", ECHO):
            while reached.ask(f"/ready?model={model}", None)[0] != 200:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no worker for {model}:\n{log.read_text()}")
                time.sleep(0.02)
        yield reached
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def chat(canaries: Canaries, model: str, **more: object) -> bytes:
    """Chat with a planted word wherever text goes."""
    plant = canaries.plant
    tool = {"name": plant("tool name"), "description": plant("tool"), "parameters": {"type": "object"}}
    body: dict[str, object] = {
        "model": model,
        "messages": [
            {"role": "system", "content": plant("system message")},
            {"role": "user", "content": [{"type": "text", "text": plant("part")}]},
            {"role": "user", "content": plant("message"), "name": plant("speaker")},
        ],
        "tools": [{"type": "function", "function": tool}],
        "user": plant("user"),
        "cache_salt": plant("salt"),
        "metadata": {"note": plant("metadata")},
        "max_tokens": 4,
    }
    return json.dumps(body | more).encode()


def headers(canaries: Canaries) -> dict[str, str]:
    plant = canaries.plant
    return {
        "content-type": "application/json",
        "authorization": f"Bearer {plant('bearer key')}",
        "x-api-key": plant("x-api-key"),
        "cookie": f"session={plant('cookie')}",
        "x-session-id": plant("session"),
        "x-anything": plant("header"),
        "tracestate": f"vendor={plant('tracestate')}",
    }


def ask_all(reached: RunningGateway, canaries: Canaries) -> None:
    """Send all kinds of requests, good and bad; each has its own words in it."""
    plant = canaries.plant

    def ask(target: str, body: bytes) -> None:
        joint = "&" if "?" in target else "?"
        reached.ask(f"{target}{joint}key={plant('query string')}", body, headers(canaries))

    for stream in (True, False):
        ask(CHAT, chat(canaries, "m", stream=stream))
        ask(COMPLETIONS, completion(canaries, "m", stream=stream))
        for doing in ("400", "500", "503", "malformed", "half", "gone"):
            ask(f"{CHAT}?do={doing}", chat(canaries, ECHO, stream=stream))
            ask(f"{COMPLETIONS}?do={doing}", completion(canaries, ECHO, stream=stream))
    for make in broken_bodies(canaries):
        ask(CHAT, make)
    ask("/v1/embeddings", json.dumps({"model": "m", "input": plant("input")}).encode())
    ask("/v1/responses", json.dumps({"model": ECHO, "input": plant("input")}).encode())
    ask(f"/v1/{plant('path')}", b"{}")
    ask(CHAT, chat(canaries, "no-such-model"))
    reached.ask("/admin/explain", chat(canaries, "m"), headers(canaries), is_admin=True)
    raw(reached, f"POST {CHAT} HTTP/1.1\r\nx: {plant('broken head')}\r\nbad {plant('bad head')}\r\n\r\n")


def completion(canaries: Canaries, model: str, *, stream: bool) -> bytes:
    body = {"model": model, "prompt": canaries.plant("prompt"), "max_tokens": 4, "stream": stream}
    return json.dumps(body).encode()


def broken_bodies(canaries: Canaries) -> list[bytes]:
    plant = canaries.plant
    whole = chat(canaries, "m")
    image = [{"type": "image_url", "image_url": {"url": f"http://127.0.0.1:9/{plant('image')}.png"}}]
    template = "{{ raise_exception('" + plant("template error") + "') }}"
    return [
        whole[:-5],
        plant("no JSON").encode(),
        json.dumps([plant("a list")]).encode(),
        chat(canaries, "m", messages=plant("messages as text")),
        chat(canaries, "m", messages=[{"role": plant("role"), "content": 7}]),
        chat(canaries, "m", messages=[{"role": "user", "content": image}]),
        chat(canaries, "m", stream=plant("stream")),
        chat(canaries, "m", cache_salt=[plant("salt as list")]),
        chat(canaries, "m", chat_template="{% if " + plant("template")),
        chat(canaries, "m", chat_template=template),
        chat(canaries, "m", chat_template="{{ " + plant("name") + "() }}"),
        chat(canaries, "m", chat_template_kwargs={plant("argument"): plant("value")}),
        json.dumps({"model": "m", "prompt": [plant("prompt list"), 3, None]}).encode(),
    ]


def raw(reached: RunningGateway, text: str) -> None:
    import socket

    place = urlsplit(reached.url)
    with socket.create_connection((place.hostname, place.port), timeout=10) as sock:
        sock.sendall(text.encode())
        with contextlib.suppress(OSError):
            sock.recv(4096)


def admin_pages(reached: RunningGateway) -> dict[str, bytes]:
    """Every page of the admin API, each decision among them."""
    pages = {page: reached.ask(page, None, is_admin=True)[1] for page in PAGES}
    for decision in json.loads(pages["/admin/decisions"])["decisions"]:
        page = f"/admin/decisions/{decision}"
        pages[page] = reached.ask(page, None, is_admin=True)[1]
    return pages


def leaks(
    workers: Sequence[str], *flags: str, do: Callable[[RunningGateway, Canaries], None] = ask_all
) -> list[str]:
    """Places of planted words in the output of one gateway."""
    canaries = Canaries()
    with tempfile.TemporaryDirectory() as directory, gateway(Path(directory), workers, *flags) as reached:
        do(reached, canaries)
        texts = admin_pages(reached)
        log = reached.log.open("rb")
    with log:
        texts["the log"] = log.read()
    texts["traces"] = b"".join(TraceCollector.taken)
    TraceCollector.taken.clear()
    assert bool(texts["traces"]) is ("--otlp-endpoint" in flags), "traces arrive where they are asked for"
    assert b'"result":' in texts["the log"] or b" status " in texts["the log"], (
        "lines of requests are in the log"
    )
    return canaries.found(texts)


def one_prompt(reached: RunningGateway, canaries: Canaries) -> None:
    reached.ask(COMPLETIONS, completion(canaries, "m", stream=False), headers(canaries))


def measure() -> list[Figure]:
    with ExitStack() as opened, tempfile.TemporaryDirectory() as directory:
        sim = opened.enter_context(running("sim", "--port", "0"))
        workers = [first_match(sim, SIM_READY)[0], opened.enter_context(echo_worker())]
        collector = opened.enter_context(echo_worker(TraceCollector))
        found = leaks(workers, "--otlp-endpoint", f"{collector}/v1/traces")
        found += leaks(workers, "--log-format", "text", "--processes", "2")
        found += leaks(workers, "--log-format", "json", "--queue-above-in-flight", "4")
        for each in found:
            print(f"leaked: {each}")
        chatty = Path(directory) / "chatty.py"
        chatty.write_text(CHATTY)
        control = leaks(workers, "--policy-file", str(chatty), do=one_prompt)
    return [
        Figure("day.redaction_leaks", len(found), "leaks", 0, [len(found)]),
        Figure("day.redaction_control", len(control), "leaks", 1, [len(control)], is_floor=True),
    ]


if __name__ == "__main__":
    publish("day_redaction", measure())
