"""Faults that a trial of the gateway found, each on the process as users run it."""

import json
import re
import socket
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from gateway.app import bundled_tokenizer
from loadtest.fleet import GATEWAY, SIM_READY, first_match, running
from tests.support.gateway_process import GatewayProcess, clean_environment
from tests.support.patience import patience, wait_until

pytestmark = pytest.mark.process

NOWHERE = "http://127.0.0.1:9"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


def post(url: str, body: object) -> int:
    head = {"content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), head)
    try:
        with urllib.request.urlopen(request, timeout=patience(20)) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as exc:
        return exc.code


def connect(url: str) -> socket.socket:
    address = urlsplit(url)
    return socket.create_connection((address.hostname, address.port), timeout=patience(20))


def requests_of(log: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return [line for line in lines if line["logger"] == "kvgate.requests"]


def test_refused_requests_have_their_client_and_route_in_the_log() -> None:
    with GatewayProcess("--log-requests", "--log-format", "json", "--max-body-bytes", "100") as gateway:
        assert post(gateway.url + "/v1/chat/completions", CHAT) == 503
        assert post(gateway.url + "/v1/completions", {"prompt": "x" * 500}) == 413
        with connect(gateway.url) as client:
            client.sendall(b"GET / HTTP/9\r\n\r\n")
            assert b" 400 " in client.recv(1000)
        lines = wait_until(lambda: (found := requests_of(gateway.log()))[2:] and found, "three lines")
    assert [(line["client"], line["route"], line["status"]) for line in lines] == [
        ("127.0.0.1", "/v1/chat/completions", 503),
        ("127.0.0.1", "/v1/completions", 413),
        ("127.0.0.1", None, 400),
    ]


def test_the_text_log_is_right_for_answers_without_a_first_token_and_ends_with_the_process() -> None:
    with running("sim") as sim:
        (url,) = first_match(sim, SIM_READY)
        with GatewayProcess("--worker", url, "--log-requests", "--log-format", "text") as gateway:
            assert post(gateway.url + "/v1/messages/count_tokens", CHAT) == 200
            assert post(gateway.url + "/v1/chat/completions", CHAT) == 200
            wait_until(lambda: gateway.log().count("kvgate.requests") == 2, "two lines")
            assert gateway.stop() == 0
            log = gateway.log()
    counted, answered = [line for line in log.splitlines() if "kvgate.requests" in line]
    assert "/v1/messages/count_tokens" in counted
    assert not re.search("TTFT|cached|None", counted.partition("no cached prefix")[0]), counted
    assert "TTFT not" not in answered and "not streamed, total" in answered
    assert re.search(r"0 of \d+ prompt tokens predicted cached \(engine: 0 cached\)", answered)
    assert log.splitlines()[-1].endswith(" kvgate: stopped")


def test_a_dead_worker_is_down_in_all_that_is_shown_and_in_plain_words() -> None:
    with running("sim") as sim:
        (url,) = first_match(sim, SIM_READY)
        with GatewayProcess("--worker", url, "--probe-interval-s", "0.2") as gateway:
            wait_until(lambda: gateway.streams() == ["exact"], "its events")
            sim.kill()
            sim.wait()
            wait_until(lambda: not gateway.workers()[0]["is_up"], "down")
            wait_until(lambda: gateway.workers()[0]["stream"] == "disconnected", "disconnected")
            (endpoint,) = gateway.admin("/admin/workers")["endpoints"]
            log = gateway.log()
    assert (endpoint["state"], endpoint["workers"][0]["state"]) == ("down", "down")
    assert endpoint["last_error"].endswith("/health: cannot connect: Connection refused")
    assert "ssl:" not in log and "Connect call failed" not in log


def test_a_worker_that_is_down_at_the_start_is_a_warning() -> None:
    with GatewayProcess() as gateway:
        body = {"url": NOWHERE}
        assert post(gateway.admin_url + "/admin/workers", body) == 201
        words = f"WARNING kvgate.roster: waiting for worker {NOWHERE}"
        wait_until(lambda: words in gateway.log(), "a warning")


def test_a_tokenizer_for_a_model_that_no_worker_serves_is_a_warning() -> None:
    with running("sim") as sim:
        (url,) = first_match(sim, SIM_READY)
        with GatewayProcess("--worker", url, "--tokenizer", f"wrong={bundled_tokenizer()}") as gateway:
            words = "tokenizer of wrong is not used: no worker serves this model; served: m"
            wait_until(lambda: words in gateway.log(), "a warning")


def test_a_failing_shadow_is_logged_as_a_shadow(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from gateway.core.decision import Choice\n"
        "class Mine:\n"
        "    name = 'mine'\n"
        "    reads_prefix = False\n"
        "    def choose(self, query, candidates, rng):\n"
        "        if query.model == 'real':\n"
        "            raise RuntimeError('broken')\n"
        "        return Choice(0, 'first')\n"
    )
    with running("sim", "--model", "real") as sim:
        (url,) = first_match(sim, SIM_READY)
        flags = [
            "--worker",
            url,
            "--policy-file",
            str(file),
            "--policy",
            "round_robin",
            "--policy-shadow",
            "mine",
        ]
        with GatewayProcess(*flags) as gateway:
            assert post(gateway.url + "/v1/chat/completions", CHAT | {"model": "real"}) == 200
            wait_until(lambda: "shadow policy mine failed" in gateway.log(), "the shadow's fault")
            assert "routing by least load" not in gateway.log()


@pytest.mark.parametrize("is_dry", [False, True])
def test_the_check_says_that_it_sends_completions_and_a_dry_run_sends_none(is_dry: bool) -> None:
    with running("sim") as sim:
        (url,) = first_match(sim, SIM_READY)
        command = [*GATEWAY, "check", "--worker", url, *(["--dry-run"] if is_dry else [])]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=patience(60), env=clean_environment()
        )
        assert done.returncode == 0, done.stdout + done.stderr
        with urllib.request.urlopen(url + "/sim/stats", timeout=patience(20)) as answer:
            num_sent = json.load(answer)["requests"]
    assert ("sends each worker a few completions" in done.stderr) is not is_dry
    assert (num_sent == 0) is is_dry
    assert ("not known whether it reports cached tokens" in done.stdout) is is_dry
