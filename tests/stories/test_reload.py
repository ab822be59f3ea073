"""Reload of a running gateway's configuration: streams go on, and all changes apply, or none."""

import http.client
import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gateway.config import by_key
from loadtest.fleet import SIM_READY, first_match, running
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import patience, wait_until

pytestmark = pytest.mark.process

Fleet = tuple[GatewayProcess, Path, list[str]]
SECRET = "redis-password-in-no-log"


@contextmanager
def fleet(tmp_path: Path, *flags: str, expect_errors: bool = False) -> Iterator[Fleet]:
    """A gateway with a configuration file, and two slow workers of which the file declares the first."""
    with ExitStack() as opened:
        urls = []
        for seed in range(2):
            slow = ("--decode-tokens-per-s", "20", "--seed", str(seed))
            sim = opened.enter_context(running("sim", "--port", "0", *slow))
            urls.append(first_match(sim, SIM_READY)[0])
        file = tmp_path / "kvgate.toml"
        write(file, urls[:1])
        gateway = GatewayProcess("--config", str(file), *flags, expect_errors=expect_errors)
        opened.enter_context(gateway)
        wait_until(
            lambda: [w["is_up"] for w in gateway.workers()] == [True], "a worker is up, for each process"
        )
        yield gateway, file, urls


def write(file: Path, workers: list[str], **more: object) -> None:
    values = {"worker": workers, "log_requests": True, "max_attempts": 3} | more
    new = file.with_suffix(".new")
    lines = ((by_key()[key], value) for key, value in values.items())
    new.write_text("".join(f"{option.path} = {json.dumps(value)}\n" for option, value in lines))
    os.replace(new, file)


def post(
    gateway: GatewayProcess, path: str, content_type: str = "application/json"
) -> tuple[int, dict[str, object]]:
    client = http.client.HTTPConnection(urlsplit(gateway.admin_url).netloc, timeout=patience(60))
    try:
        client.request("POST", path, b"{}", {"content-type": content_type})
        answer = client.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        client.close()


class Stream:
    """A long streamed answer of which the client has read the first line."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self._client = http.client.HTTPConnection(urlsplit(gateway.url).netloc, timeout=patience(60))
        body = {"model": "m", "prompt": "x", "stream": True, "max_tokens": 60, "ignore_eos": True}
        headers = {"content-type": "application/json"}
        self._client.request("POST", "/v1/completions", json.dumps(body), headers)
        self._answer = self._client.getresponse()
        assert self._answer.status == 200 and self._answer.readline()


def rest_of(stream: Stream) -> bytes:
    try:
        return stream._answer.read()
    finally:
        stream._answer.close()
        stream._client.close()


@pytest.mark.parametrize("flags", [(), ("--processes", "2")], ids=["one process", "two"])
def test_reload_interrupts_no_stream(tmp_path: Path, flags: tuple[str, ...]) -> None:
    with fleet(tmp_path, *flags) as (gateway, file, urls):
        streams = [Stream(gateway) for _ in range(4)]
        write(file, urls[1:], total_timeout_s=0.2, expose_headers=True)
        with open(file, "a") as more:
            more.write('[tenants."*"]\nmax_concurrent = 1\n')
        gateway.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "kvgate_config_generation 2.0" in gateway.metrics(), "the file is reloaded")
        wait_until(lambda: [w["is_up"] for w in gateway.workers()] == [True], "the other worker is up")
        assert [e["url"] for e in gateway.admin("/admin/workers")["endpoints"]] == urls[1:]
        for stream in streams:
            assert rest_of(stream).endswith(b"data: [DONE]\n\n")
        client = http.client.HTTPConnection(urlsplit(gateway.url).netloc, timeout=patience(60))
        body = json.dumps({"model": "m", "prompt": "x", "max_tokens": 1})
        client.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        answer = client.getresponse()
        assert answer.status == 200 and answer.read()
        assert answer.headers["x-kvgate-worker"] in urls[1]
        client.close()
        log = gateway.log()
        assert "total_timeout_s: 0.0 -> 0.2" in log and "tenants: {}" in log
        assert 'kvgate_config_reloads_total{result="applied"} 1.0' in gateway.metrics()


@pytest.mark.parametrize("flags", [(), ("--processes", "2")], ids=["one process", "two"])
def test_reload_applies_all_changes_or_none_and_logs_no_secret(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    with fleet(tmp_path, *flags, expect_errors=True) as (gateway, file, urls):
        write(file, urls, max_attempts=7, policy="best")
        status, answer = post(gateway, "/admin/config/reload")
        assert status == 400 and "there is no policy 'best'" in str(answer)
        write(file, urls, max_attempts="seven")
        assert post(gateway, "/admin/config/reload")[0] == 400
        file.unlink()
        assert post(gateway, "/admin/config/reload")[0] == 400
        assert [e["url"] for e in gateway.admin("/admin/workers")["endpoints"]] == urls[:1]
        write(file, urls, max_attempts=7, port=1, redis=f"redis://u:{SECRET}@127.0.0.1:1")
        assert post(gateway, "/admin/config/reload", "text/plain")[0] == 415
        status, answer = post(gateway, "/admin/config/reload")
        assert status == 200 and answer["changed"] == ["worker", "max_attempts"]
        assert (
            answer["needs_restart"] == ["redis"] and answer["workers_added"] == urls[1:]
        )  # the port is a flag
        wait_until(lambda: len(gateway.workers()) == 2, "the other worker has joined")
        metrics = gateway.metrics()
        assert "kvgate_config_generation 2.0" in metrics and "kvgate_config_pending_options 1.0" in metrics
        assert 'kvgate_config_reloads_total{result="rejected"} 3.0' in metrics
        log = gateway.log()
        assert "changed options that need a restart keep their values: redis" in log and SECRET not in log
        assert gateway.process.poll() is None


def test_replaced_process_has_the_reloaded_configuration(tmp_path: Path) -> None:
    with fleet(tmp_path, "--processes", "2", expect_errors=True) as (gateway, file, urls):
        write(file, urls, expose_headers=True)
        assert post(gateway, "/admin/config/reload")[0] == 200
        pid = int(gateway.log().partition("process 0 (pid ")[2].partition(")")[0])
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: gateway.log().count("process 0 (pid ") >= 3, "it is replaced")
        wait_until(lambda: "kvgate_processes 2.0" in gateway.metrics(), "both serve")
        status, answer = post(gateway, "/admin/config/reload")
        assert (status, answer["changed"], answer["generation"]) == (200, [], 3)
        assert {w["id"] for w in gateway.workers()} == {url.removeprefix("http://") for url in urls}
