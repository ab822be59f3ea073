"""Benchmark `make bench-epp`: the cost of the endpoint picker behind a real Envoy.

    loadgen ─► Envoy ─► fake workers          plain: no picker
                 └─ ext_proc ─► own           the gateway
                             ─► grpc.aio      the same gateway, its services carried by grpc.aio
                             ─► nothing       our gRPC server, and every request to one worker: no decision
    loadgen ─► kvgate ─► fake workers         the gateway as a proxy

Request and answer bodies are FULL_DUPLEX_STREAMED, without TLS. `epp.small.cpu_us` is the CPU time of
`nothing`: HTTP/2, gRPC, ext_proc's messages and the body both ways, all but the decision, which
`epp.small.picker_cpu_us` has too. `bench_decide.py` has the figures of the decision service. Machines are
shared: each figure is the better of its rounds.
"""

import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gateway.app import bundled_tokenizer
from loadtest.bench_decide import decision_figures, measure_decisions
from loadtest.contenders import Contender, fake_workers, gateway, until_answers
from loadtest.epp_config import envoy_config
from loadtest.extent import extent
from loadtest.fleet import GATEWAY
from loadtest.instruments import (
    BenchError,
    InstrumentError,
    LoadgenLoad,
    LoadgenReading,
    build,
    measure,
    stop,
)
from loadtest.ports import free_port
from loadtest.publisher import write_prompts
from loadtest.report import Figure, best_of, median_of, publish
from loadtest.workloads.bodies import STREAMED, Bodies, Texts, new, small, warm

ENVOY = os.environ.get("ENVOY", ".venv-envoy/bin/envoy")
SECONDS = extent(0.3, 2.0)
ROUNDS = extent(1, 2)
NUM_BODIES = extent(400, 20_000)
NUM_STREAMS = extent(50, 1000)
NUM_WORKERS = 2
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
Rounds = dict[str, list[float]]

PICKERS = ("own", "grpc.aio", "nothing")
LLM_D_PER_S = 133.0
"""Requests/s of llm-d's picker at long contexts (gateway-api-inference-extension#2928), on other machines."""


def loads() -> dict[str, tuple[str, LoadgenLoad]]:
    """Loads by name, each with the name of its bodies."""
    return {
        "small": ("small", LoadgenLoad(CHAT, 8, SECONDS)),
        "16k": ("16k", LoadgenLoad(CHAT, 8, SECONDS)),
        "piece": ("streamed", LoadgenLoad(CHAT, 8, SECONDS, is_stream=True)),
        "added": ("small", LoadgenLoad(CHAT, 8, SECONDS, think_ms=20)),
        "long": ("220k", LoadgenLoad(CHAT, 20, SECONDS)),
    }


def bodies(directory: Path) -> dict[str, Path]:
    texts = Texts("m", seed=1)
    made: dict[str, Bodies] = {
        "small": small(texts, NUM_BODIES),
        "streamed": small(texts, NUM_BODIES, STREAMED),
        "16k": warm(texts, known(texts, 11, 16_000), NUM_BODIES),
        "220k": warm(texts, known(texts, 41, 220_000), NUM_BODIES // 4),
        "16k streamed": new(texts, NUM_STREAMS, 16_000, STREAMED),
    }
    for name, each in made.items():
        each.write(directory / name)
    return {name: directory / name for name in made}


def known(texts: Texts, num_turns: int, num_bytes: int) -> list[list[dict[str, str]]]:
    """Conversations that come again, each time with a new last message."""
    return [texts.conversation(num_turns, num_bytes) for _ in range(8)]


def main() -> int:
    if not Path(ENVOY).exists():
        print(f"bench-epp: {ENVOY} is missing; run `make bench-epp`", file=sys.stderr)
        return 1
    try:
        for name in ("worker", "loadgen"):
            build(name)
        with tempfile.TemporaryDirectory(prefix="kvgate-bench-") as directory:
            found = run(Path(directory))
    except (InstrumentError, BenchError) as exc:
        print(f"bench-epp: {exc}", file=sys.stderr)
        return 1
    publish("bench-epp", list(figures(found)))
    return 0


# running ---------------------------------------------------------------------------------------


def run(directory: Path) -> Rounds:
    found: Rounds = defaultdict(list)
    files, prompts = bodies(directory), directory / "prompts"
    write_prompts(prompts, [])
    with fake_workers(NUM_WORKERS, 5, prompts) as ports:
        for _ in range(ROUNDS):
            with envoy(directory, ports, 0) as contender:
                run_loads("plain", contender, files, found)
            for kind in PICKERS:
                with picker(kind, ports) as (pid, port), envoy(directory, ports, port) as contender:
                    run_loads(kind, Contender(kind, contender.port, pid), files, found)
            with gateway(ports, bundled_tokenizer()) as contender:
                run_loads("proxy", contender, files, found)
    for _ in range(ROUNDS):
        measure_decisions(picker, found)
    with (
        fake_workers(NUM_WORKERS, 100, prompts) as ports,
        picker("own", ports) as (pid, port),
        envoy(directory, ports, port) as contender,
    ):
        load = LoadgenLoad(COMPLETION, NUM_STREAMS, extent(0.5, 5.0), is_stream=True)
        watched = Contender("own", contender.port, pid)
        found["own.rss_mb"].append(measured("rss", load, files["16k streamed"], watched).rss_mb)
    return found


def run_loads(kind: str, contender: Contender, files: dict[str, Path], found: Rounds) -> None:
    for name, (body, load) in loads().items():
        if name == "added":
            reading = measured(name, load, files[body], contender)
            found[f"{kind}.p50_ms"].append(reading.latency_p50_us / 1000)
            found[f"{kind}.p99_ms"].append(reading.latency_p99_us / 1000)
        elif kind != "plain":
            reading = measured(name, load, files[body], contender)
            cost = reading.cpu_us_per_chunk if load.is_stream else reading.cpu_us_per_request
            found[f"{kind}.{name}"].append(cost)
            if name == "long":
                found[f"{kind}.per_s"].append(reading.requests_per_s)


def measured(name: str, load: LoadgenLoad, file: Path, contender: Contender) -> LoadgenReading:
    """Put a load on a contender. Raises BenchError for statuses other than 200."""
    reading = measure(contender.port, file, load, contender.pids)
    if reading.num_errors or not (reading.num_chunks if load.is_stream else reading.num_requests):
        raise BenchError(
            f"{name}, {contender.name}: {reading.num_requests} answered, {reading.num_errors} failed"
        )
    print(
        f"{name:8} {contender.name:9} {reading.num_requests} requests, {reading.num_chunks} chunks, "
        f"{reading.cpu_us / max(reading.num_requests, 1):.1f} us a request, p50 {reading.latency_p50_us} us"
    )
    return reading


@contextmanager
def picker(kind: str, worker_ports: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Run a picker; yields its process id and port."""
    port, admin = free_port(), free_port()
    command = [GATEWAY[0], "-P", "-m", "loadtest.epp_servers", kind]
    if kind == "nothing":
        command += [str(port), f"127.0.0.1:{worker_ports[0]}"]
    else:
        command += ["epp", "--epp-port", str(port), "--admin-port", str(admin)]
        command += ["--tokenizer", str(bundled_tokenizer())]
        command += [flag for each in worker_ports for flag in ("--worker", f"http://127.0.0.1:{each}")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True)
    try:
        if kind != "nothing":
            until_answers(f"http://127.0.0.1:{admin}/ready", process, kind)
        yield process.pid, port
    finally:
        stop(process)


@contextmanager
def envoy(directory: Path, worker_ports: Sequence[int], epp_port: int) -> Iterator[Contender]:
    """Run Envoy with one thread; without a port of a picker it is plain."""
    port = free_port()
    path = directory / "envoy.yaml"
    path.write_text(envoy_config(port, epp_port, worker_ports))
    command = [ENVOY, "-c", str(path), "--use-dynamic-base-id", "--concurrency", "1", "-l", "error"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True)
    try:
        until_answers(f"http://127.0.0.1:{port}/v1/models", process, "Envoy")
        yield Contender("plain", port, process.pid)
    finally:
        stop(process)


# figures ---------------------------------------------------------------------------------------


def figures(found: Rounds) -> Iterator[Figure]:
    for name, goal in (("small", 60.0), ("16k", 80.0), ("piece", 8.0)):
        yield best_of(f"epp.{name}.cpu_us", "us", goal, found[f"nothing.{name}"])
        yield best_of(f"epp.{name}.picker_cpu_us", "us", None, found[f"own.{name}"])
        yield best_of(f"epp.{name}.grpc_aio_cpu_us", "us", None, found[f"grpc.aio.{name}"])
        yield best_of(f"epp.{name}.proxy_cpu_us", "us", None, found[f"proxy.{name}"])
    for percentile, goal in (("p50", 1.0), ("p99", 4.0)):
        plain = min(found[f"plain.{percentile}_ms"])
        for kind, name in (("own", "epp.added"), ("grpc.aio", "epp.grpc_aio.added")):
            added = [each - plain for each in found[f"{kind}.{percentile}_ms"]]
            yield best_of(f"{name}_{percentile}_ms", "ms", goal if kind == "own" else None, added)
    pairs = zip(found["own.per_s"], found["nothing.per_s"], strict=True)
    ratios = [own / nothing for own, nothing in pairs]
    yield median_of("epp.long_context_ratio", "", 0.9, ratios, is_floor=True)
    yield median_of("epp.long_context_per_s", "1/s", LLM_D_PER_S, found["own.per_s"], is_floor=True)
    yield best_of("epp.rss_mb", "MB", 120.0, found["own.rss_mb"])
    yield from decision_figures(found)


if __name__ == "__main__":
    sys.exit(main())
