"""A real Prometheus on the alerts and the board: `make test-deploy`, which unpacks Debian's. Env PROMETHEUS
and PROMTOOL name others."""

import json
import os
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from loadtest.fleet import SIM_READY, first_match, running
from loadtest.ports import free_port
from tests.deploy.scrapes import ask
from tests.support.dashboard import DEPLOY, QUERIES
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import patience, wait_until

pytestmark = pytest.mark.prometheus

PROMETHEUS, PROMTOOL = os.environ.get("PROMETHEUS", "prometheus"), os.environ.get("PROMTOOL", "promtool")
DEADLINE_S = 90.0


def test_each_alert_fires_when_it_should_and_not_before() -> None:
    for command in (("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")):
        done = subprocess.run([PROMTOOL, *command], cwd=DEPLOY, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Prometheus that scrapes a gateway with traffic."""
    directory, port = tmp_path_factory.mktemp("prometheus"), free_port()
    with ExitStack() as opened:
        sim = opened.enter_context(running("sim", "--port", "0", "--decode-tokens-per-s", "200"))
        worker = first_match(sim, SIM_READY)[0]
        more = ("--queue-above-in-flight", "1")
        gateway = opened.enter_context(GatewayProcess("--worker", worker, *more))
        write_config(directory / "prometheus.yml", gateway)
        command = [
            *(PROMETHEUS, f"--config.file={directory}/prometheus.yml"),
            *(f"--storage.tsdb.path={directory}/data", f"--web.listen-address=127.0.0.1:{port}"),
        ]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            for _ in range(20):  # before and after the first scrapes: a constant series has no rate
                with ThreadPoolExecutor() as pool:  # so one request waits for the other
                    for stream in (True, True, False):
                        pool.submit(ask, gateway, stream=stream)
                ask(gateway, stream=False, model="none")
                time.sleep(0.2)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(patience(30))


def write_config(path: Path, gateway: GatewayProcess) -> None:
    target = gateway.admin_url.removeprefix("http://")
    path.write_text(
        "global: {scrape_interval: 1s}\n"
        f"rule_files: ['{DEPLOY}/alerts.yml']\n"
        f"scrape_configs: [{{job_name: kvgate, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )


def query(prometheus: str, text: str) -> Any:
    text = text.replace("$instance", ".*").replace("$__rate_interval", "1m")
    url = f"{prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": text})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
        url, timeout=patience(10)
    ) as answer:
        return json.load(answer)["data"]["result"]


EMPTY_WHERE_ALL_IS_WELL = ("kvgate_retries_total", "kvgate_recomputed_prompt_tokens_total")


@pytest.mark.parametrize("text", QUERIES)
def test_a_query_of_the_board_answers(prometheus: str, text: str) -> None:
    def has_series() -> bool:
        try:
            found = query(prometheus, text)
        except OSError:  # it is starting
            return False
        return bool(found) or any(name in text for name in EMPTY_WHERE_ALL_IS_WELL)

    wait_until(has_series, f"series of {text}", DEADLINE_S, pause_s=0.5)
