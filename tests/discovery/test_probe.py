"""Requests of a probe, and the name of each bad answer."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest
from aiohttp import web

from engines import ENGINES
from gateway.core.engine import EngineMetrics, EnginePaths, EventSource
from gateway.discovery.engine_detection import Engines
from gateway.discovery.probe import (
    MAX_BYTES,
    MAX_JOIN_TIMEOUT_S,
    MAX_OBJECTS,
    Probe,
    ProbeError,
    ProbeTimeout,
)
from tests.support.fakes import FakeEngine, only, serve, session, url_of
from tests.support.patience import stays

pytestmark = pytest.mark.process

GOOD = {
    "/health": (200, b""),
    "/v1/models": (200, b'[{"id": "m", "root": "root"}]'),
    "/metrics": (200, b'{"0": {"block_size": 16, "start_time_s": 5.0}}'),
    "/kv_event_sources": (200, b'[{"dp_rank": 0, "endpoint": "tcp://*:1"}]'),
    "/version": (200, b'"1.2"'),
}


class Endpoint:
    """Answers by path; `gate` holds answers back."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, bytes]] = dict(GOOD)
        self.seen: list[tuple[str, str | None]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        self.seen.append((request.path, request.headers.get("authorization")))
        await self.gate.wait()
        status, body = self.answers.get(request.path, (404, b"not here"))
        headers = {"location": "/health"} if status == 302 else {}
        return web.Response(status=status, body=body, headers=headers)


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    fake = Endpoint()
    server = await serve(web.get("/{path:.*}", fake.handle))
    fake.url = url_of(server)
    yield fake
    fake.gate.set()
    await server.close()


@pytest.fixture
async def probe(endpoint: Endpoint) -> AsyncIterator[Probe]:
    async with session() as open_session:
        yield Probe(endpoint.url, only(FakeEngine()), open_session, {"authorization": "Bearer k"})


async def test_facts_have_every_answer_of_the_endpoint(endpoint: Endpoint, probe: Probe) -> None:
    facts = await probe.facts()
    assert (facts.url, facts.engine, facts.version, facts.start_time_s) == (endpoint.url, "fake", "1.2", 5.0)
    assert [model.id for model in facts.models] == ["m"]
    assert facts.ranks[0].block_size == 16
    assert facts.sources == (EventSource(0, "tcp://*:1"),)
    assert {authorization for _, authorization in endpoint.seen} == {"Bearer k"}


async def test_facts_of_an_older_engine_are_fewer(endpoint: Endpoint, probe: Probe) -> None:
    for path in ("/metrics", "/kv_event_sources", "/version"):
        del endpoint.answers[path]
    facts = await probe.facts()
    assert (dict(facts.ranks), facts.sources, facts.version) == ({}, None, None)


async def test_a_path_that_the_engine_does_not_have_is_not_asked(endpoint: Endpoint) -> None:
    engine = FakeEngine()
    engine.paths = EnginePaths("/health", "/metrics", "/v1/models")
    async with session() as open_session:
        facts = await Probe(endpoint.url, only(engine), open_session, {}).facts()
    assert (facts.sources, facts.version) == (None, None)
    assert {path for path, _ in endpoint.seen} == {"/v1/models", "/metrics"}


@pytest.mark.parametrize(
    ("path", "answer", "words"),
    [
        ("/v1/models", (401, b""), "/v1/models answered 401; give the worker's key with --worker-key-file"),
        ("/v1/models", (302, b""), "/v1/models answered 302, a redirect to /health, which is not followed"),
        ("/v1/models", (200, b"<html>"), "/v1/models: fake: "),
        ("/kv_event_sources", (200, b"<html>"), ": fake: "),
        ("/version", (200, b"{"), ": fake: "),
    ],
)
async def test_a_bad_answer_is_named_by_its_path(
    endpoint: Endpoint, probe: Probe, path: str, answer: tuple[int, bytes], words: str
) -> None:
    endpoint.answers[path] = answer
    with pytest.raises(ProbeError) as caught:
        await probe.facts()
    assert str(caught.value).startswith(endpoint.url)
    assert words in str(caught.value)


async def test_an_address_that_ends_in_v1_is_rejected_with_the_shorter_one(endpoint: Endpoint) -> None:
    async with session() as open_session:
        probe = Probe(f"{endpoint.url}/v1", only(FakeEngine()), open_session, {})
        with pytest.raises(ProbeError, match="/v1/v1/models answered 404; give the .* without /v1$"):
            await probe.check_health()


async def test_health_is_200_and_nothing_else(endpoint: Endpoint, probe: Probe) -> None:
    await probe.check_health()
    for status in (204, 302, 500, 503):
        endpoint.answers["/health"] = (status, b"")
        with pytest.raises(ProbeError, match=f"/health answered {status}"):
            await probe.check_health()


@pytest.mark.parametrize(
    ("status", "body", "is_well"),
    [
        (529, b"", True),
        (429, b"", True),
        (503, b"The request queue is full.", True),
        (500, b'{"error":{"type":"overloaded_error"}}', True),
        (503, b'{"error":"loading model"}', False),
        (500, b"queue is full", False),
    ],
)
async def test_a_health_page_that_says_saturated_is_well(
    status: int, body: bytes, is_well: bool, endpoint: Endpoint, probe: Probe
) -> None:
    endpoint.answers["/health"] = (status, body)
    if is_well:
        await probe.check_health()
    else:
        with pytest.raises(ProbeError, match=f"/health answered {status}"):
            await probe.check_health()


async def test_metrics_may_hold_invalid_utf8(endpoint: Endpoint, probe: Probe) -> None:
    endpoint.answers["/metrics"] = (200, b'{"0": {"block_size": 16}}')
    assert (await probe.metrics())[0].block_size == 16
    endpoint.answers["/metrics"] = (503, b"")
    assert await probe.metrics() == {}


async def test_an_endless_answer_is_cut_off(endpoint: Endpoint, probe: Probe) -> None:
    endpoint.answers["/health"] = (200, b"x" * MAX_BYTES)
    await probe.check_health()
    endpoint.answers["/health"] = (200, b"x" * (MAX_BYTES + 1))
    with pytest.raises(ProbeError, match="/health: the answer is over 1,048,576 bytes"):
        await probe.check_health()


async def test_a_list_of_more_objects_than_are_used_is_refused_by_name(
    endpoint: Endpoint, probe: Probe
) -> None:
    endpoint.answers["/v1/models"] = (200, b'{"data":[' + b'{"id":"m"},' * MAX_OBJECTS + b'{"id":"m"}]}')
    with pytest.raises(ProbeError, match="/v1/models answered with more than 10,000 objects"):
        await probe.facts()


async def test_a_silent_endpoint_times_out(endpoint: Endpoint) -> None:
    endpoint.gate.clear()
    async with session(timeout_s=0.05) as open_session:
        with pytest.raises(ProbeError, match="/health did not answer in time"):
            await Probe(endpoint.url, only(FakeEngine()), open_session, {}).check_health()


async def test_a_timeout_says_whether_the_connection_was_accepted(endpoint: Endpoint) -> None:
    endpoint.gate.clear()
    async with session(timeout_s=0.05) as open_session:
        probe = Probe(endpoint.url, only(FakeEngine()), open_session, {})
        with pytest.raises(ProbeTimeout) as caught:
            await probe.check_health()
        assert (caught.value.is_accepted, probe.num_answers) == (True, 0)
        with socket.socket() as full:  # its queue takes no more connections
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            with contextlib.ExitStack() as stack:
                for _ in range(4):
                    one = stack.enter_context(socket.socket())
                    one.setblocking(False)
                    one.connect_ex(full.getsockname())
                url = f"http://127.0.0.1:{full.getsockname()[1]}"
                with pytest.raises(ProbeTimeout) as caught:
                    await Probe(url, only(FakeEngine()), open_session, {}).check_health()
                assert not caught.value.is_accepted


async def test_a_probe_waits_longer_before_a_late_endpoint_has_joined(endpoint: Endpoint) -> None:
    async with session(timeout_s=0.01) as open_session:
        probe = Probe(endpoint.url, only(FakeEngine()), open_session, {})
        for expected in (0.02, 0.04, 0.08):
            probe.wait_longer()
            assert probe._timeout_s == pytest.approx(expected)
        for _ in range(20):
            probe.wait_longer()
        assert probe._timeout_s == MAX_JOIN_TIMEOUT_S
        endpoint.gate.clear()
        asking = asyncio.get_running_loop().create_task(probe.check_health())
        await stays(lambda: not asking.done(), 0.1, "ten times the usual timeout")
        endpoint.gate.set()
        await asking
        probe.wait_longer(False)
        assert probe._timeout_s is None


async def test_answered_pages_are_counted_whatever_their_status(endpoint: Endpoint, probe: Probe) -> None:
    await probe.check_health()
    endpoint.answers["/health"] = (503, b"")
    with pytest.raises(ProbeError):
        await probe.check_health()
    assert probe.num_answers == 2


async def test_an_endpoint_without_a_listener_is_refused() -> None:
    async with session() as open_session:
        with pytest.raises(ProbeError, match="http://127.0.0.1:9/health: cannot connect: Connection refused"):
            await Probe("http://127.0.0.1:9", only(FakeEngine()), open_session, {}).check_health()


async def test_an_error_without_a_message_is_called_by_its_name(probe: Probe) -> None:
    class Mute:
        def call(self, *args: object, **kwargs: object) -> None:
            raise aiohttp.ClientError

    probe._session = Mute()  # type: ignore[assignment]
    with pytest.raises(ProbeError, match="/health: ClientError$"):
        await probe.check_health()


async def engine_of(endpoint: Endpoint) -> str:
    async with session() as open_session:
        return (await Probe(endpoint.url, Engines(ENGINES), open_session, {}).facts()).engine


async def test_the_engine_is_found_by_its_models(endpoint: Endpoint) -> None:
    endpoint.answers = {"/v1/models": (200, b'{"data":[{"id":"m","owned_by":"sglang"}]}')}
    assert await engine_of(endpoint) == "sglang"
    assert [path for path, _ in endpoint.seen] == ["/v1/models", "/metrics", "/server_info"]


@pytest.mark.parametrize(
    ("path", "page", "engine"),
    [
        ("/metrics", b"vllm:x 1", "vllm"),
        ("/prometheus/metrics", b"trtllm_x 1", "trtllm"),
        ("/metrics", b"llamacpp:requests_processing 1", "llamacpp"),
    ],
)
async def test_the_engine_is_found_by_its_metrics(
    endpoint: Endpoint, path: str, page: bytes, engine: str
) -> None:
    endpoint.answers = {"/v1/models": (200, b'{"data":[{"id":"m","owned_by":"us"}]}'), path: (200, page)}
    assert await engine_of(endpoint) == engine


async def test_an_engine_without_a_health_path_is_healthy_if_it_lists_its_models(endpoint: Endpoint) -> None:
    endpoint.answers = {"/v1/models": (200, b'{"data":[{"id":"m","owned_by":"library"}]}')}
    async with session() as open_session:
        probe = Probe(endpoint.url, Engines(ENGINES), open_session, {})
        assert await probe.metrics() == {}  # not asked before the engine is known
        await probe.check_health()
        endpoint.answers = {}
        with pytest.raises(ProbeError, match="/v1/models answered 404"):
            await probe.check_health()


async def test_one_info_path_supplies_all_facts(endpoint: Endpoint) -> None:
    engine = FakeEngine()
    engine.paths = EnginePaths("/health", "/metrics", "/v1/models", info="/info")
    endpoint.answers["/info"] = (
        200,
        b'{"ranks": {"0": {"block_size": 8, "num_gpu_blocks": 5}}, "role": "decode"}',
    )
    async with session() as open_session:
        facts = await Probe(endpoint.url, only(engine), open_session, {}).facts()
    assert (facts.ranks[0].block_size, facts.ranks[0].num_gpu_blocks, facts.role) == (16, 5, "decode")


@pytest.mark.parametrize("is_published", [True, False])
async def test_events_are_polled_where_none_are_published(endpoint: Endpoint, is_published: bool) -> None:
    publisher = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = publisher.sockets[0].getsockname()[1]
    if not is_published:
        publisher.close()
        await publisher.wait_closed()
    endpoint.answers = {"/v1/models": (200, b'{"data":[{"id":"m","owned_by":"tensorrt_llm"}]}')}
    async with session() as open_session:
        facts = await Probe(endpoint.url, Engines(ENGINES), open_session, {}, port).facts()
    assert facts.sources == (None if is_published else (EventSource(0, "/kv_cache_events"),))
    assert "/kv_cache_events" not in {path for path, _ in endpoint.seen}, "asking takes the events"
    publisher.close()


async def test_a_worker_on_a_unix_socket_has_no_publisher() -> None:
    async with session() as open_session:
        probe = Probe("unix:/run/x.sock", Engines(ENGINES), open_session, {})
        assert not await probe._publishes()


@pytest.mark.parametrize(
    "metrics",
    [
        b'vllm:num_requests_running{engine="%b"} 0\n' % (b"9" * 5000),
        b'vllm:cache_config_info{block_size="%b",engine="0"} 1\n' % (b"9" * 5000),
    ],
)
async def test_a_number_of_thousands_of_digits_is_no_number(endpoint: Endpoint, metrics: bytes) -> None:
    endpoint.answers = {"/v1/models": (200, b'{"data":[{"id":"m","owned_by":"vllm"}]}')}
    endpoint.answers["/metrics"] = 200, metrics
    async with session() as open_session:
        facts = await Probe(endpoint.url, Engines(ENGINES), open_session, {}).facts()
    assert facts.ranks[0].block_size is None


async def test_an_answer_that_cannot_be_parsed_is_a_probe_error(
    endpoint: Endpoint, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    await probe.facts()
    for raised in (ValueError("digits"), OverflowError("infinity"), RecursionError("nested")):
        monkeypatch.setattr(FakeEngine, "parse_metrics", raising(raised))
        with pytest.raises(ProbeError, match=str(raised)):
            await probe.metrics()


def raising(error: Exception) -> Callable[[FakeEngine, str], dict[int, EngineMetrics]]:
    def parse(engine: FakeEngine, text: str) -> dict[int, EngineMetrics]:
        raise error

    return parse


async def test_more_ranks_than_any_engine_has_are_refused(endpoint: Endpoint) -> None:
    lines = (f'vllm:num_requests_running{{engine="{rank}"}} 0\n' for rank in range(2000))
    endpoint.answers = {"/v1/models": (200, b'{"data":[{"id":"m","owned_by":"vllm"}]}')}
    endpoint.answers["/metrics"] = 200, "".join(lines).encode()
    async with session() as open_session:
        with pytest.raises(ProbeError, match="declares 2000 data-parallel ranks, at most 1024"):
            await Probe(endpoint.url, Engines(ENGINES), open_session, {}).facts()


async def test_unusable_model_names_are_ignored_and_logged_once(
    endpoint: Endpoint, probe: Probe, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint.answers["/v1/models"] = 200, b'[{"id": "m", "root": "root"}, {"id": "a\\nERROR"}, {"id": ""}]'
    for _ in range(2):
        assert [model.id for model in (await probe.facts()).models] == ["m"]
        assert [model.id for model in await probe.models()] == ["m"]
    (line,) = [line for line in caplog.messages if "ignoring" in line]
    assert line.startswith(f"worker {endpoint.url}: ignoring some of its models: 2 have a name that is empty")
