"""Log of a running gateway: a line of JSON for each request, also while the log is not read."""

import http.client
import json
import os
import subprocess
from urllib.parse import urlsplit

import pytest

from loadtest.fleet import GATEWAY, LISTENING
from tests.support.gateway_process import clean_environment
from tests.support.patience import patience

pytestmark = pytest.mark.process

NUM_REQUESTS = 500
"""Enough requests that their log lines exceed a pipe's buffer several times."""


def read_until(file: int, done: bytes, so_far: bytes = b"") -> bytes:
    while done not in so_far:
        so_far += os.read(file, 1 << 16)
    return so_far


@pytest.mark.parametrize("form", ["auto", "json"])
def test_requests_succeed_while_the_log_is_not_read(form: str) -> None:
    reading, writing = os.pipe()
    command = [*GATEWAY, "serve", "--port", "0", "--admin-port", "0", "--log-requests", "--log-format", form]
    process = subprocess.Popen(command, stderr=writing, env=clean_environment())
    os.close(writing)
    try:
        seen = read_until(reading, b"listening on")
        seen = read_until(reading, b"\n", seen) if not seen.endswith(b"\n") else seen
        found = LISTENING.search(seen.decode())
        assert found
        client = http.client.HTTPConnection(urlsplit(found[1]).netloc, timeout=patience(30))
        for number in range(NUM_REQUESTS):  # the log is not read meanwhile
            body = json.dumps({"model": "none", "prompt": "x"}).encode()
            client.request("POST", "/v1/completions", body, {"x-request-id": f"r{number}"})
            answer = client.getresponse()
            assert (answer.status, bool(answer.read())) == (503, True)
        client.close()
        log = read_until(reading, f'"r{NUM_REQUESTS - 1}"'.encode(), seen)
        process.terminate()
        while more := os.read(reading, 1 << 16):
            log += more
        assert process.wait(patience(30)) == 0
    finally:
        process.kill()
        process.wait()
        os.close(reading)
    lines = [json.loads(line) for line in log.splitlines() if line.startswith(b"{")]
    requests = [line for line in lines if line["logger"] == "kvgate.requests"]
    assert [line["request_id"] for line in requests] == [f"r{number}" for number in range(NUM_REQUESTS)]
    assert {(line["status"], line["error"], line["error_origin"], line["model"]) for line in requests} == {
        (503, "no_worker", "gateway", "none")
    }
    assert (len(lines) == len(log.splitlines())) is (form == "json")
