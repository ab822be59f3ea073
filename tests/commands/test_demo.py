"""`make run`, as a new user runs it."""

import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.fleet import GATEWAY
from tests.support.gateway_process import clean_environment

pytestmark = pytest.mark.process

CURL = re.compile(r"curl -iN (\S+)/v1/chat/completions .* -d '(\{.*\})'")


@pytest.fixture
def demo() -> Iterator["subprocess.Popen[str]"]:
    process = start("--port", "0")
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
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in children.split()]


def test_the_printed_request_hits_the_cache_the_second_time(demo: "subprocess.Popen[str]") -> None:
    found, banner = read_until(demo, CURL)
    assert "3 simulated vLLM workers" in banner
    url, body = found.groups()
    reported = []
    for _ in range(2):
        request = urllib.request.Request(
            f"{url}/v1/chat/completions", body.encode(), {"content-type": "application/json"}
        )
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
            reported.append(
                (answer.headers["x-kvgate-worker"], int(answer.headers["x-kvgate-overlap-tokens"]))
            )
            assert answer.read().endswith(b"data: [DONE]\n\n")
    assert reported[0][1] == 0
    assert reported[1][0] == reported[0][0]
    assert reported[1][1] > 0
    line, _ = read_until(
        demo, re.compile(r"demo -> (\S+) .* (\d+) of \d+ prompt tokens predicted cached .* TTFT \d+ ms")
    )
    assert line.group(1) == reported[0][0]


def test_ctrl_c_stops_every_process(demo: "subprocess.Popen[str]") -> None:
    read_until(demo, CURL)
    sims = sims_of(demo.pid)
    assert len(sims) == 3
    demo.send_signal(signal.SIGINT)
    out, _ = demo.communicate(timeout=30)
    assert demo.returncode == 0
    assert "Traceback" not in out
    assert not any(Path(f"/proc/{pid}").exists() for pid in sims)


def test_a_busy_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start("--port", str(port))
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 2
    assert f"127.0.0.1:{port}" in out
    assert "in use" in out
    assert "Traceback" not in out
