"""The image runs as the chart's pod does: read-only root, no capabilities, the chart's volumes alone."""

import json
import re
import urllib.request
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path

import pytest

import kvgate
from loadtest.fleet import SIM_READY, first_match, running
from tests.image.container import USER, Container, volumes
from tests.support.patience import patience

pytestmark = pytest.mark.image

LOOPBACK = ("--host", "127.0.0.1", "--port", "0", "--admin-host", "127.0.0.1", "--admin-port", "0")
WAYS = [(), ("--processes", "2", "--redis", "embedded")]
"""Ways of `kvgate serve` that differ in what they start and write."""


@pytest.fixture(scope="module")
def worker() -> Iterator[str]:
    with running("sim", "--port", "0") as sim:
        yield first_match(sim, SIM_READY)[0]


def asked(url: str, num_tokens: int = 4, *, stream: bool = False) -> HTTPResponse:
    body = {"model": "m", "prompt": "hello", "max_tokens": num_tokens, "stream": stream}
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
    answer: HTTPResponse = urllib.request.urlopen(request, timeout=patience(30))
    return answer


def output(*arguments: str, command: list[str] | None = None) -> tuple[int, str]:
    with Container(*arguments, command=command) as container:
        return container.end()


def test_it_is_the_compiled_version() -> None:
    code, log = output("--version")
    assert (code, f"kvgate {kvgate.__version__} (compiled, CPython 3." in log) == (0, True), log


@pytest.mark.parametrize("way", WAYS, ids=["one process", "processes with a Redis"])
def test_a_request_goes_through_it_to_a_worker_outside(worker: str, way: tuple[str, ...]) -> None:
    with Container("serve", *LOOPBACK, "--worker", worker, *way) as container:
        url, admin_url = container.addresses()
        with asked(url) as answer:
            assert answer.status == 200 and json.load(answer)["choices"]
        with urllib.request.urlopen(f"{admin_url}/metrics", timeout=patience(10)) as answer:
            assert b"kvgate_" in answer.read()
        container.signal("TERM")
        code, log = container.end()
        assert code == 0 and "Traceback" not in log and '"level": "ERROR"' not in log, log


def test_a_stopped_gateway_finishes_the_running_stream(worker: str) -> None:
    with Container("serve", *LOOPBACK, "--worker", worker) as container:
        url, _ = container.addresses()
        with asked(url, 100, stream=True) as answer:
            assert answer.readline().startswith(b"data: ")
            container.signal("TERM")
            rest = answer.read()
        assert rest.count(b"data: ") >= 99 and rest.rstrip().endswith(b"data: [DONE]")
        code, log = container.end()
        assert code == 0, log


def test_the_check_of_a_worker_works_in_it(worker: str) -> None:
    code, log = output("check", "--worker", worker)
    assert code == 0 and "exact and verified" in log, log


def test_nothing_in_it_has_a_right(worker: str) -> None:
    with Container("serve", *LOOPBACK, "--worker", worker) as container:
        container.addresses()
        process = Path("/proc") / str(container.pid())
        status = dict(re.findall(r"^(\w+):\s+(.*)$", (process / "status").read_text(), re.M))
        assert {int(value) for value in f"{status['Uid']} {status['Gid']}".split()} == {USER}
        rights = [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")]
        assert (rights, status["NoNewPrivs"], status["Seccomp"]) == ([0] * 5, "1", "2")
        mounts = [line.split()[4:6] for line in (process / "mountinfo").read_text().splitlines()]
        assert "ro" in dict(mounts)["/"].split(",")
        outside = ("/proc", "/dev", "/sys")
        writable = {path for path, options in mounts if "rw" in options.split(",")}
        assert {path for path in writable if not path.startswith(outside)} == set(volumes())


WRITES = """
import os
for folder, _, names in os.walk("/"):
    if folder.startswith(("/proc", "/dev", "/sys")):
        continue
    for path in (folder, *(os.path.join(folder, name) for name in names)):
        if os.access(path, os.W_OK) and not os.path.islink(path):
            print("writable:", path)
"""


def test_its_user_can_write_to_the_volumes_only() -> None:
    code, log = output(command=["python", "-c", WRITES])
    assert code == 0 and set(re.findall("^writable: (.+)$", log, re.M)) == set(volumes()), log
