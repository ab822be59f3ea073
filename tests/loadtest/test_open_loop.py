"""Requests at a steady rate: a stall makes each one late that is due meanwhile."""

import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from loadtest.open_loop import OpenLoop, main, open_loop, p99, rounds_of
from tests.support.patience import until


class Handler(BaseHTTPRequestHandler):
    """Answers all requests; `stall` holds up those that come meanwhile. Notes the keys."""

    protocol_version = "HTTP/1.1"
    stall, status, keys, num = threading.Event(), 200, set[str | None](), 0

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        Handler.keys.add(self.headers.get("Authorization"))
        Handler.num += 1
        Handler.stall.wait(10)
        self.send_response(Handler.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    Handler.stall.set()
    Handler.status, Handler.num = 200, 0
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.process
async def test_requests_that_are_due_in_a_stall_are_late(url: str) -> None:
    with open_loop(url, "m", "k") as loop:
        await until(lambda: Handler.num > 20, "it has begun")
        Handler.stall.clear()
        before = Handler.num
        await until(lambda: Handler.num > before, "requests wait")
        stalled = threading.Timer(0.5, Handler.stall.set)
        stalled.start()
        stalled.join()
        await until(lambda: Handler.num > before + 60, "it goes on")
    late = [delay for delay in loop.delays_ms if delay > 100]
    assert len(late) > 20 and p99(loop.delays_ms) > 300
    assert Handler.keys == {"Bearer k"}


@pytest.mark.process
def test_a_failed_request_is_an_error(url: str) -> None:
    Handler.status = 500
    with pytest.raises(RuntimeError, match="a small request failed"):
        OpenLoop(url, "m").end()


def test_delays_are_printed_as_json(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    main(url, 1000, "/health")
    begun, delays = capsys.readouterr().out.splitlines()
    assert begun == "begun" and isinstance(json.loads(delays), list)


def test_a_round_within_the_goal_ends_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtest.open_loop.ROUNDS", 3)
    lates = iter([50.0, 10.0, 9.0, 30.0, 40.0, 50.0, 60.0])
    assert rounds_of(lambda: next(lates)) == [50.0, 10.0]
    assert rounds_of(lambda: next(lates)) == [9.0]
    assert rounds_of(lambda: next(lates)) == [30.0, 40.0, 50.0]
