"""`make run`, as a new user runs it."""

import json
import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.fleet import GATEWAY
from tests.support import preloaded
from tests.support.gateway_process import clean_environment
from tests.support.patience import patience

pytestmark = pytest.mark.process

CURL = re.compile(r"curl (\S+)/v1/completions -d '(\{.*\})'")
LONG = "How do rivers find their way from the mountains to the sea, and why do they wind? " * 24


@pytest.fixture(params=["--quiet-traffic", ""])
def demo(request: pytest.FixtureRequest) -> Iterator["subprocess.Popen[str]"]:
    process = start("--port", "0", *filter(None, [request.param]))
    yield process
    process.kill()
    process.communicate()


def start(*flags: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*GATEWAY, "demo", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=clean_environment(),
    )


def read_until(process: "subprocess.Popen[str]", pattern: "re.Pattern[str]") -> tuple["re.Match[str]", str]:
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if found := pattern.search(line):
            return found, seen
    raise AssertionError(f"it ended before {pattern.pattern!r}:\n{seen}")


def sims_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    names = {int(child): Path(f"/proc/{child}/comm").read_text().strip() for child in children}
    return [child for child, name in names.items() if name != preloaded.TEMPLATE]


def post(url: str, path: str, body: dict[str, object] | str) -> tuple[dict[str, str], bytes]:
    """Post a body as `curl -d` does, without a content type of JSON."""
    data = (body if isinstance(body, str) else json.dumps(body)).encode()
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
        urllib.request.Request(url + path, data), timeout=patience(30)
    ) as answer:
        return dict(answer.headers), answer.read()


def test_a_long_prompt_goes_back_to_its_worker(demo: "subprocess.Popen[str]") -> None:
    """Also beside the demo's own traffic."""
    found, banner = read_until(demo, CURL)
    assert "3 simulated vLLM workers" in banner
    assert "KV cache of 65,536 tokens, 6,000 prompt tokens/s and 50 answer tokens/s" in banner
    assert re.search(
        r"gateway: http://127\.0\.0\.1:\d+   console, for a browser: http://127\.0\.0\.1:\d+\n", banner
    )
    body: dict[str, object] = {
        "model": "demo",
        "messages": [{"role": "user", "content": LONG}],
        "stream": True,
    }
    reported = []
    for _ in range(2):
        headers, answer = post(found.group(1), "/v1/chat/completions", body)
        reported.append((headers["x-kvgate-worker"], int(headers["x-kvgate-overlap-tokens"])))
        assert answer.endswith(b"data: [DONE]\n\n")
    assert reported[0][1] == 0
    assert reported[1][0] == reported[0][0]
    assert reported[1][1] > 0


def test_the_printed_request_is_answered_and_fits_in_a_row(demo: "subprocess.Popen[str]") -> None:
    found, banner = read_until(demo, CURL)
    assert len(banner.splitlines()[-1]) <= 80
    _, answer = post(found.group(1), "/v1/completions", found.group(2))
    assert json.loads(answer)["choices"][0]["text"]


def test_quiet_traffic_shows_a_line_per_request() -> None:
    demo = start("--port", "0", "--quiet-traffic")
    try:
        found, _ = read_until(demo, CURL)
        body: dict[str, object] = {"model": "demo", "prompt": "Why?", "stream": True}
        headers, _ = post(found.group(1), "/v1/completions", body)
        line, seen = read_until(
            demo, re.compile(r"demo -> (\S+) .* (\d+) of \d+ prompt tokens predicted cached .* TTFT \d+ ms")
        )
        assert line.group(1) == headers["x-kvgate-worker"]
        assert seen.count("demo ->") == 1
    finally:
        demo.kill()
        demo.communicate()


def test_ctrl_c_ends_with_a_summary_and_a_report() -> None:
    demo = start("--port", "0")
    try:
        read_until(demo, re.compile(r"warming up: \d+ requests; those after 10 s are compared"))
        read_until(demo, re.compile(r"\d+ requests: cached \d+% against \d+% by round robin"))
        demo.send_signal(signal.SIGINT)
        out, _ = demo.communicate(timeout=patience(30))
    finally:
        demo.kill()
    assert demo.returncode == 0
    found = re.search(
        r"^(saved|computed) .* requests within 1 s \(by round robin: \d+%\)[^\n]*\nreport: (\S+)$", out, re.M
    )
    assert found, out
    assert found[1] + " " in Path(found[2]).read_text()
    assert "\x1b" not in out


def test_ctrl_c_stops_every_process(demo: "subprocess.Popen[str]") -> None:
    read_until(demo, CURL)
    sims = sims_of(demo.pid)
    assert len(sims) in (3, 6)  # the twin's too
    demo.send_signal(signal.SIGINT)
    out, _ = demo.communicate(timeout=patience(30))
    assert demo.returncode == 0
    assert "Traceback" not in out
    assert not any(Path(f"/proc/{pid}").exists() for pid in sims)


def test_a_busy_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start("--port", str(port))
        out, _ = process.communicate(timeout=patience(30))
    assert process.returncode == 2
    assert f"127.0.0.1:{port}" in out
    assert "in use" in out
    assert "try: make run PORT=8080" in out
    assert "Traceback" not in out
