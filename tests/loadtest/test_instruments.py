import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engines import ENGINES, KV_CONNECTORS
from gateway.core.engine import EngineInfo
from gateway.core.kv_connector import Pair
from gateway.core.usage_reading import read_usage
from gateway.core.worker import Worker, WorkerId
from loadtest import instruments
from loadtest.instruments import InstrumentError, LoadgenLoad, LoadgenReading, build, fake_worker, measure
from loadtest.workloads.bodies import ENDING, STREAMED, STREAMED_WITH_USAGE, Texts, small, warm
from tests.support.patience import patience

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def get(port: int, path: str, body: bytes | None = None) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}{path}", body, timeout=patience(5)) as answer:
        body: bytes = answer.read()
        return body


def test_a_missing_compiler_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instruments, "BUILT", tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(InstrumentError, match="no C compiler"):
        build("worker")


@needs_cc
@pytest.mark.process
def test_several_processes_may_build_a_program_at_once(tmp_path: Path) -> None:
    code = "import pathlib, sys; from loadtest import instruments as i; i.BUILT = pathlib.Path(sys.argv[1]); "
    command = [sys.executable, "-c", code + "i.build('worker')", str(tmp_path)]
    running = [subprocess.Popen(command) for _ in range(4)]
    assert [each.wait(timeout=patience(60)) for each in running] == [0] * 4
    assert [path.name for path in tmp_path.iterdir()] == ["worker"]


def test_costs_are_per_request_and_per_chunk() -> None:
    zeros: dict[str, Any] = dict.fromkeys(LoadgenReading.__struct_fields__, 0)
    reading = LoadgenReading(
        **zeros | {"seconds": 2.0, "num_requests": 10, "num_chunks": 50, "cpu_us": 600.0}
    )
    assert reading.cpu_us_per_request == 60
    assert reading.cpu_us_per_chunk == 12
    assert reading.requests_per_s == 5


@needs_cc
@pytest.mark.process
def test_the_worker_reports_the_facts_of_an_engine() -> None:
    vllm = ENGINES["vllm"]
    sources = '{"0":{"endpoint":"tcp://127.0.0.1:1","replay_endpoint":"tcp://127.0.0.1:2"}}'
    with fake_worker("-m", "qwen", "-k", "1234", "-e", sources) as port:
        assert vllm.parse_models(get(port, "/v1/models"))[0].id == "qwen"
        (metrics,) = vllm.parse_metrics(get(port, "/metrics").decode()).values()
        assert (metrics.block_size, metrics.num_gpu_blocks) == (16, 1234)
        assert metrics.start_time_s is not None
        assert vllm.parse_event_sources(get(port, "/kv_event_sources"))[0].endpoint == "tcp://127.0.0.1:1"
        assert get(port, "/health") == b""
        assert vllm.parse_info(get(port, "/server_info")) == EngineInfo()


@needs_cc
@pytest.mark.process
@pytest.mark.parametrize("flags", [(), ("-t", "1")])
def test_the_worker_plays_both_legs_of_a_disaggregated_request(flags: Sequence[str]) -> None:
    connector, body = KV_CONNECTORS["nixl"], small(Texts("m", 1), 1, STREAMED_WITH_USAGE)[0]
    worker = Worker(WorkerId("w"), "http://w", ())
    pair = Pair(worker, worker, 1)
    with fake_worker("-u", "1", "-n", "2", "-g", "1", *flags) as port:
        prefill_result = connector.prefill_result(
            get(port, "/v1/chat/completions", connector.to_prefill(body, pair))
        )
        (event,) = [e for e in get(port, "/v1/chat/completions", body).split(b"\n\n") if b'"usage"' in e]
    usage = read_usage(event.removeprefix(b"data: "))
    assert usage is not None
    assert usage.prompt_tokens == prefill_result.num_prompt_tokens == 12


@needs_cc
@pytest.mark.process
@pytest.mark.parametrize("is_stream", [False, True])
def test_load_on_a_worker_is_answered_and_counted(tmp_path: Path, is_stream: bool) -> None:
    small(Texts("m", 1), 500, STREAMED if is_stream else ENDING).write(tmp_path / "bodies")
    load = LoadgenLoad("/v1/chat/completions", 4, seconds=0.3, warm_up_s=0.1, think_ms=2, is_stream=is_stream)
    with fake_worker("-g", "1", "-n", "5") as port:
        reading = measure(port, tmp_path / "bodies", load)
    assert reading.num_errors == 0
    assert reading.num_requests > 10
    assert (reading.num_chunks > 4 * reading.num_requests) == is_stream
    assert 0 < reading.first_byte_p50_us <= reading.latency_p50_us


@needs_cc
@pytest.mark.process
def test_bodies_reach_the_worker_whole_and_in_order(tmp_path: Path) -> None:
    texts = Texts("m", 1)
    bodies = warm(texts, [texts.conversation(3, 900)], 6)
    bodies.write(tmp_path / "bodies")
    load = LoadgenLoad("/v1/chat/completions", 2, seconds=0.1, warm_up_s=0.0, think_ms=10)
    with fake_worker("-l", str(tmp_path / "log")) as port:
        measure(port, tmp_path / "bodies", load)
    order = {bodies[i]: i for i in range(len(bodies))}
    seen = (tmp_path / "log").read_bytes().splitlines()
    numbers = [order[line] for line in seen if line.startswith(b"{")]
    for connection in (0, 1):
        of_connection = [number for number in numbers if number % 2 == connection]
        assert of_connection == [(connection + 2 * i) % 6 for i in range(len(of_connection))]
        assert len(of_connection) >= 2


@needs_cc
@pytest.mark.process
def test_a_load_ends_with_its_bodies_where_none_may_be_sent_twice(tmp_path: Path) -> None:
    bodies = small(Texts("m", 1), 200)
    bodies.write(tmp_path / "bodies")
    load = LoadgenLoad("/v1/chat/completions", 2, seconds=600, warm_up_s=600, is_once=True)
    with fake_worker("-l", str(tmp_path / "log")) as port:
        reading = measure(port, tmp_path / "bodies", load)
    seen = [line for line in (tmp_path / "log").read_bytes().splitlines() if line.startswith(b"{")]
    assert len(seen) == len(set(seen))
    assert 50 < reading.num_requests < 150, "half of them belong to the warm-up"
    assert reading.num_errors == 0


@needs_cc
@pytest.mark.process
def test_an_invalid_file_of_bodies_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "bodies").write_text("nonsense\n")
    with pytest.raises(InstrumentError, match="neither a piece"):
        measure(1, tmp_path / "bodies", LoadgenLoad("/v1/completions", 1, seconds=0.1))
