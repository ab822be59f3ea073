"""Processes between loadgen and the fake workers, on loopback: nginx, and the gateway.

Each is a context manager; it stops its processes by their ids.
"""

import json
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.fleet import GATEWAY, LISTENING, rss_mb
from loadtest.instruments import InstrumentError, fake_worker, stop
from loadtest.ports import free_port

NUM_GPU_BLOCKS = 65_536
START_TIMEOUT_S = 30.0
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

#  nginx as a proxy of LLM servers: responses are passed on as they come, bodies stay in memory, client
# and worker connections stay open. One process, as the gateway.
NGINX_CONF = """
worker_processes 1;
daemon off;
pid {directory}/nginx.pid;
error_log {directory}/error.log warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    client_max_body_size 64m;
    client_body_buffer_size 256k;
    keepalive_requests 100000000;
    upstream workers {{
        {servers}
        keepalive 256;
        keepalive_requests 100000000;
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://workers;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }}
    }}
}}
"""


@dataclass(frozen=True, slots=True)
class Contender:
    """Process under test; `pid` is 0 where nothing stands in between; loadgen watches the processes that it
    started, too."""

    name: str
    port: int
    pid: int

    @property
    def pids(self) -> list[int]:
        return [self.pid] if self.pid else []


@dataclass(frozen=True, slots=True)
class GatewayContender(Contender):
    admin_url: str
    start_rss_mb: float

    def imbalance(self) -> float:
        """Surplus of requests that the busiest of its processes answered over the idlest, as a share of their
        mean."""
        answered = samples(_get(f"{self.admin_url}/metrics"), "kvgate_process_responses_total")
        return (max(answered) - min(answered)) * len(answered) / sum(answered)

    def hit_share(self) -> float:
        """Share of all prompt tokens since its start that were predicted as cached."""
        metrics = self.metrics()
        sent = metric_sum(metrics, "kvgate_worker_prompt_tokens_total")
        return metric_sum(metrics, "kvgate_worker_predicted_cached_tokens_total") / sent if sent else 0.0

    def metrics(self) -> str:
        return _get(f"{self.admin_url}/metrics")


@contextmanager
def fake_workers(
    num: int, gap_ms: int, prompts: Path, num_others: int = 0, more: Sequence[str] = ()
) -> Iterator[list[int]]:
    """Ports of workers that hold the prompts of the file and `num_others` blocks of other prompts each, and
    publish them. `more` flags are in the head of `c/worker.c`."""
    with ExitStack() as stack:
        publishers = []
        for index in range(num):
            command = [sys.executable, "-m", "loadtest.publisher", str(prompts), str(index), str(num)]
            command.append(str(num_others))
            publishers.append(stack.enter_context(_process(command)))
        ports = []
        for publisher in publishers:
            flags = ["-g", str(gap_ms), "-k", str(NUM_GPU_BLOCKS), "-e", _first_line(publisher), *more]
            ports.append(stack.enter_context(fake_worker(*flags)))
        yield ports


@contextmanager
def flood_worker() -> Iterator[int]:
    """Port of a worker that streams without end."""
    with _process([sys.executable, "-m", "loadtest.flood"]) as process:
        assert process.stdout is not None
        line = process.stdout.readline().split()
        if line[:1] != ["ready"]:
            raise InstrumentError("the flooding worker did not start")
        yield int(line[1])


@contextmanager
def nginx(worker_ports: Sequence[int], directory: Path) -> Iterator[Contender]:
    """Run nginx. Raises InstrumentError where there is none."""
    if why := missing_nginx():
        raise InstrumentError(why)
    port = free_port()
    servers = " ".join(f"server 127.0.0.1:{worker};" for worker in worker_ports)
    conf = directory / "nginx.conf"
    conf.write_text(NGINX_CONF.format(directory=directory, servers=servers, port=port))
    command = ["nginx", "-p", str(directory), "-e", str(directory / "error.log"), "-c", str(conf)]
    with _process(command) as process:
        _until(lambda: _answers(f"http://127.0.0.1:{port}/health"), process, "nginx")
        yield Contender("nginx", port, process.pid)


def missing_nginx() -> str | None:
    """Reason why there is no nginx to measure, or None."""
    return None if shutil.which("nginx") else "nginx is not installed (Debian: apt-get install nginx)"


@contextmanager
def gateway(
    worker_ports: Sequence[int], tokenizer: Path, *flags: str, prefill_ports: Sequence[int] = ()
) -> Iterator[GatewayContender]:
    """Run a gateway until every worker is up and its events are known. With prefill workers the others
    decode."""
    command = [*GATEWAY, "serve", "--port", "0", "--admin-port", "0"]
    command += ["--tokenizer", str(tokenizer), *flags]
    others = "--decode" if prefill_ports else "--worker"
    for role, ports in ((others, worker_ports), ("--prefill", prefill_ports)):
        for port in ports:
            command += [role, f"http://127.0.0.1:{port}"]
    num_workers = len(worker_ports) + len(prefill_ports)
    with _process(command) as process:
        url, admin_url = _first_match(process)
        _until(lambda: _all_exact(admin_url, num_workers), process, "gateway")
        port = int(url.rpartition(":")[2])
        yield GatewayContender("kvgate", port, process.pid, admin_url, rss_mb(process.pid))


def metric_sum(exposition: str, name: str) -> float:
    """Sum of a metric's samples, over all labels."""
    return sum(samples(exposition, name))


def samples(exposition: str, name: str) -> list[float]:
    """Values of a metric, over all labels."""
    lines = (line.rpartition(" ") for line in exposition.splitlines())
    return [float(value) for series, _, value in lines if series.partition("{")[0] == name]


# processes -------------------------------------------------------------------------------------


@contextmanager
def _process(command: Sequence[str]) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield process
    finally:
        stop(process)


def _first_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line.startswith("{"):
        raise InstrumentError(f"the publisher did not start: {line}{process.stdout.read()}")
    return line


def _first_match(process: "subprocess.Popen[str]") -> tuple[str, str]:
    """Addresses of the gateway; then its log is read on and dropped, so that it never blocks."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if found := LISTENING.search(line):
            threading.Thread(target=_drain, args=[process], daemon=True).start()
            return found[1], found[2]
    raise InstrumentError("the gateway ended before it was ready:\n" + "".join(seen))


def _drain(process: "subprocess.Popen[str]") -> None:
    """Read the log and print warnings: a run in which the gateway warns is not one to trust."""
    assert process.stdout is not None
    for line in process.stdout:
        if " INFO " not in line:
            print("gateway:", line.rstrip(), file=sys.stderr)


def _until(is_true: Any, process: "subprocess.Popen[str]", name: str) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not is_true():
        if (code := process.poll()) is not None:
            raise InstrumentError(f"{name} ended with {code} before it was ready")
        if time.monotonic() > deadline:
            raise InstrumentError(f"{name} was not ready after {START_TIMEOUT_S:.0f} s")
        time.sleep(0.02)


def until_answers(url: str, process: "subprocess.Popen[str]", name: str) -> None:
    """Wait until a URL answers. Raises InstrumentError where it never does."""
    _until(lambda: _answers(url), process, name)


def _all_exact(admin_url: str, num_workers: int) -> bool:
    try:
        endpoints = json.loads(_get(f"{admin_url}/admin/workers"))["endpoints"]
    except urllib.error.URLError:
        return False
    workers = [worker for endpoint in endpoints for worker in endpoint["workers"]]
    return len(workers) == num_workers and all(w["is_up"] and w["stream"] in ("exact", None) for w in workers)


def _answers(url: str) -> bool:
    try:
        _get(url)
    except OSError:
        return False
    return True


def _get(url: str) -> str:
    with _direct.open(url, timeout=10) as answer:
        text: str = answer.read().decode()
        return text
