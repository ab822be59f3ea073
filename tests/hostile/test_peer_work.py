"""No peer decides how much work is done at once: each place where a peer's bytes become many things has a
bound, and the largest input that the bound lets pass takes about a slice of the event loop.

The cost is CPU time of this thread, the least of some runs, as a multiple of a yardstick that is measured
beside it: the decoding of a MiB of numbers. That is some 3 ms; the attacks that this
test was written after took 5 to 500 times as long.
"""

import ast
import contextlib
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import msgspec
import pytest

from engines import ENGINES
from gateway.apis import responses, sglang
from gateway.apis.anthropic import Dialect
from gateway.apis.response_ids import Renaming, RenamingScanner
from gateway.bookings import message as bookings
from gateway.bookings.remote_hosts import RemoteHosts
from gateway.bookings.shared_ledger import Table
from gateway.core.blocks import BlockHash
from gateway.core.decode_errors import UNREADABLE
from gateway.core.engine import AdapterCalls, ModelInfo
from gateway.core.errors import GatewayError
from gateway.core.kv_events import DecodeError
from gateway.decide.message_bounds import MAX_TOKEN_IDS, check_bounds
from gateway.decide.requests import MAX_HEADERS_BYTES, AskedDecision, http_of
from gateway.disaggregation.stream_holdback import HeldStream
from gateway.discovery import lora_wire
from gateway.discovery.engine_detection import Engines
from gateway.discovery.name_prober import verdict_of
from gateway.discovery.probe import LARGE_PAGE_BYTES, MAX_BYTES, MAX_MODELS_BYTES, MAX_OBJECTS
from gateway.epp.dynamic_metadata import MetadataKey
from gateway.epp.message_fields import FREE_BYTES, MAX_BESIDE_BYTES
from gateway.epp.messages import ProtocolError
from gateway.epp.processing_request import decode
from gateway.http.forwarded import origin
from gateway.http.messages import ResponseHead
from gateway.http.response_observer import ResponseObserver
from gateway.http.sse import SseScanner
from gateway.http.usage_injection import InjectedUsageScanner
from gateway.http.usage_redaction import UsageRedactor
from gateway.http.websocket_frames import MAX_READ_BYTES, FrameRefused, ModelFrames, check_message
from gateway.observability import traceparent
from gateway.parity.prober import _read
from gateway.proto.kvgate.v1 import decide_pb2, ext_proc_pb2, kv_events_pb2
from gateway.replication import codec
from gateway.requests.large_body import MAX_MARKS, is_large
from gateway.requests.model_name import MAX_PARAMETERS, asked_in_query
from gateway.requests.parsing import parse_request
from gateway.runtime.paced_reads import SLICE_BYTES
from gateway.server.http2.frames import Http2Error
from gateway.server.http2.grpc_framing import MessageReader
from gateway.server.http2.header_decoder import HeaderDecoder
from gateway.server.http2.huffman import huffman_decoded
from gateway.server.http2.limits import Http2Limits
from gateway.tokenization.chat_template import MAX_PARTS, check_parts
from gateway.tokenization.worker_tokens import read_tokens_in_steps
from gateway.upstream.control_client import MAX_POSTED_BYTES

ROOT = Path(__file__).parents[2]
MOST = 4.0
"""Yardsticks that one step may take: an interpreter on a busy machine, and 20 ms for others at most."""
NUM_RUNS = 3
MIB = 1 << 20
KIB = "a" * 1024

# costs -------------------------------------------------------------------------------------------

Step = Callable[[], object]
MODELS = (ModelInfo("m"),)
EXPECTED = (GatewayError, DecodeError, FrameRefused, Http2Error, ProtocolError, *UNREADABLE)


def filled(begin: bytes, unit: bytes, end: bytes, size: int) -> bytes:
    return begin + unit * ((size - len(begin) - len(end)) // len(unit)) + end


ANSWERS = {
    "numbers": (b'{"a":[', b"1,", b"1]}"),
    "lists": (b'{"a":[', b"[],", b"[]]}"),
    "objects": (b'{"a":[', b"{},", b"{}]}"),
    "names": (b"{", b'"a":1,', b'"b":1}'),
    "list": (b"[", b"{},", b"{}]"),
    "states": (b'{"internal_states":[', b"{},", b"{}]}"),
    "cards": (b'{"data":[', b'{"id":"a"},', b'{"id":"a"}]}'),
    "sources": (b"{", b'"0":{"endpoint":"tcp://1:1"},', b'"1":{}}'),
    "tokens": (b'{"tokens":[', b"1,", b"1]}"),
    "choices": (b'{"choices":[', b"[],", b"[]]}"),
    "escapes": (b'{"a":"', b"\\u0061", b'"}'),
    "spaces": (b"{", b" ", b"}"),
}
PAGES = {
    "lines": (b"", b"\n", b""),
    "samples": (b"", b"vllm:num_requests_running 1\n", b""),
    "ranks": (b"", b'vllm:num_requests_running{engine="0"} 1\n', b""),
    "labels": (b"vllm:num_requests_running{", b'a="b",', b"} 1"),
    "facts": (b"", b'vllm:cache_config_info{block_size="16",num_gpu_blocks="1"} 1\n', b""),
    "escapes": (b'vllm:cache_config_info{a="', b"\\", b'"} 1'),
}
STREAMS = {
    "lines": b"data:\n",
    "events": b"data: {}\n\n",
    "ends of lines": b"\r",
    "comments": b":\r",
    "lines with CR": b"data:\r",
    "events with CR": b"data: {}\r\r",
    "events and comments": b"data: {}\n:\n\n",
    "broken": b"data: {\n",
    "usages": b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n',
    "usage events": b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\n',
    "responses": b'data: "response"\n',
    "ends of choices": b'data: {"choices":[{"finish_reason":"stop"}],"usage":null,\n',
    "ids": b'data: {"response":{"id":"r"}}\n',
    "open usages": b'"usage":{',
    "newlines": b"\n",
    "spaces": b" ",
}


def answers() -> Iterable[tuple[str, Step]]:
    """Answers to probes and to questions, of the largest size that is read."""
    for shape, parts in ANSWERS.items():
        fact, posted = filled(*parts, MAX_BYTES), filled(*parts, MAX_POSTED_BYTES)
        models = filled(*parts, MAX_MODELS_BYTES)
        for name, engine in ENGINES.items():
            if fact.count(b"{") <= MAX_OBJECTS:
                yield f"{name} info of {shape}", partial(engine.parse_info, fact)
                yield f"{name} version of {shape}", partial(engine.parse_version, fact)
                yield f"{name} sources of {shape}", partial(engine.parse_event_sources, fact)
            if models.count(b"{") <= MAX_OBJECTS:
                yield f"{name} models of {shape}", partial(engine.parse_models, models)
        if models.count(b"{") <= MAX_OBJECTS:
            yield f"owners in {shape}", partial(Engines(ENGINES).by_models, models)
        yield f"a model's name in {shape}", partial(verdict_of, posted, MODELS)
        yield f"a probe's tokens in {shape}", partial(_read, posted)
        calls = AdapterCalls("/load", "/unload", "--enable-lora")
        yield f"an adapter's outcome in {shape}", partial(lora_wire.outcome, 400, posted, "/load", calls)
    for shape, parts in PAGES.items():
        for name, engine in ENGINES.items():
            page = filled(*parts, LARGE_PAGE_BYTES).decode()
            yield f"{name} metrics of {shape}", partial(engine.parse_metrics, page)


def steps_of_tokens() -> Iterable[tuple[str, Step]]:
    yield "a step of tokens", partial(next, read_tokens_in_steps(filled(*ANSWERS["tokens"], 8 * MIB)))


def steps_of_bookings() -> Iterable[tuple[str, Step]]:
    """A step that notes promises, of the largest message of Redis."""
    shared = Table(memoryview(bytearray(Table.num_bytes(2))), 2, contextlib.nullcontext)
    promise = bookings.Promise("w", [BlockHash(1)] * (bookings.MAX_BYTES - 100), 5)
    message = bookings.BookingsMessage(1, 1, 1, [], [promise])
    yield "a step of bookings", partial(next, RemoteHosts(shared, 1, 2).receive_in_steps(message, 0.0))


def largest_messages() -> Iterable[tuple[str, Step]]:
    """Messages of Redis, agents and gRPC clients, of the largest size that is taken."""
    promise = bookings.Promise("w", [1] * (bookings.MAX_BYTES - 100), 5)
    yield (
        "bookings",
        partial(bookings.decode, bookings.encode(bookings.BookingsMessage(1, 1, 1, [], [promise]))),
    )
    update = kv_events_pb2.Update()
    update.sample.path.extend([1] * (codec.MAX_MESSAGE_BYTES - 100))
    yield "an agent's sample", partial(codec.decode, update.SerializeToString())
    asked = decide_pb2.DecideRequest()
    for _ in range(256):
        asked.headers.add(name="a" * 100, value=b"b" * (MAX_HEADERS_BYTES // 256 - 100))
    yield "a decision's headers", partial(http_of, AskedDecision(asked), 64 * MIB)
    ids = decide_pb2.DecideRequest(token_ids=[1] * MAX_TOKEN_IDS)
    yield "a decision's token ids", partial(http_of, AskedDecision(ids), 64 * MIB)
    yield "fields of a decision", partial(check_bounds, b"\x30\x01" * (8 * MIB), decide_pb2.DecideRequest)
    for size in (FREE_BYTES, MAX_BESIDE_BYTES, 8 * MIB):
        yield f"headers of ext_proc in {size} bytes", _headers_of(size - 20)
    for unit in (b"\x50\x01", b"\x0a\0", b"\x22\0", b"\x42\x01a"):
        yield f"fields of ext_proc of {unit!r}", partial(decode, unit * (8 * MIB))
        yield f"a group of ext_proc of {unit!r}", partial(decode, b"\x53" + unit * (8 * MIB))
    values = ext_proc_pb2.FilterMetadata()
    for number in range(MAX_BESIDE_BYTES // 20):
        values.filter_metadata["a"][f"{number}"] = number
    yield "metadata of ext_proc", partial(MetadataKey("b", "c").value_in, [values.SerializeToString()])
    reader = MessageReader(64 * MIB)
    yield "a frame of messages of gRPC", partial(reader.feed, bytes(Http2Limits().max_frame_bytes))
    yield "a header block", partial(HeaderDecoder(64 << 10).decode, b"\x82" * (16 << 10))
    yield "a Huffman string", partial(huffman_decoded, bytes(Http2Limits().max_header_bytes // 5 * 5))


def _headers_of(size: int) -> Step:
    """Reading of headers without name and value, which take two bytes each."""
    body = ext_proc_pb2.HttpBody(body=b"\x0a\0" * (size // 2))
    given = ext_proc_pb2.ProcessingRequest(request_body=body).SerializeToString()
    data = b"\x12" + given[1:]  # the field of the request's headers
    return lambda: decode(data)


def heads() -> Iterable[tuple[str, Step]]:
    """Parts of a request's head of 64 KiB."""
    yield "a query", partial(asked_in_query, b"/?" + b"%41&" * (MAX_PARAMETERS - 1))
    hops = [(b"x-forwarded-for", filled(b"", b"1,", b"", 64 << 10))]
    yield "forwarded for", partial(origin, hops, "10.0.0.1", lambda address: True, scheme="http")
    pairs = [(b"forwarded", filled(b"", b"for=1,", b"", 64 << 10))]
    yield "forwarded", partial(origin, pairs, "10.0.0.1", lambda address: True, scheme="http")
    yield "a trace", partial(traceparent.read, filled(b"", b"0-", b"", 64 << 10))


def turns() -> Iterable[tuple[str, Step]]:
    """Many items of one turn, which become one message."""
    call = {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"}
    said, thought = {"role": "assistant", "content": KIB}, {"type": "reasoning", "summary": [{"text": KIB}]}
    dialect = Dialect(engine="sglang", version=(1,))
    for shape, item in (("calls", call), ("answers", said), ("thoughts", thought)):
        body = {"input": [item] * MAX_PARTS}
        yield f"a turn of {shape} for SGLang", partial(sglang.responses_chat, body, dialect)
        yield f"a turn of {shape} for vLLM", partial(responses.chat_of, body, Dialect())
    crowd = [{"role": "user", "content": [{"content": []}] * MAX_PARTS}]
    yield "parts", partial(check_parts, crowd * MAX_PARTS)


def bodies() -> Iterable[tuple[str, Step]]:
    """A number beyond floats has all others decoded again, by a function for each."""
    many = b",1.5" * (MAX_MARKS - 16)
    body = b'{"model":"m","messages":[{"role":"user","content":"x"}],"x":[1e400%b]}' % many
    assert not is_large(body)
    yield "numbers beyond floats", partial(parse_request, "/v1/chat/completions", body)


def frames() -> Iterable[tuple[str, Step]]:
    yield "empty frames", partial(ModelFrames({"m"}).feed, b"\x81\x80\0\0\0\0" * (SLICE_BYTES // 6))
    yield "pings", partial(ModelFrames({"m"}).feed, b"\x89\x80\0\0\0\0" * (SLICE_BYTES // 6))
    for shape, parts in ANSWERS.items():
        yield (
            f"a message of {shape}",
            partial(check_message, b'{"model":"m","x":' + filled(*parts, MAX_READ_BYTES - 30) + b"}", {"m"}),
        )


STEPS = {
    name: step for made in (answers, largest_messages, heads, turns, bodies, frames) for name, step in made()
}


def cost_s(step: Step) -> float:
    begun = time.thread_time()
    with contextlib.suppress(*EXPECTED):
        step()
    return time.thread_time() - begun


def yardstick_s() -> float:
    return min(cost_s(partial(msgspec.json.decode, filled(b"[", b"1,", b"1]", MIB))) for _ in range(5))


def is_about_a_slice(measure: Callable[[], float]) -> bool:
    """Return True if the least of some runs is, so that a busy machine is no failure."""
    return any(measure() <= MOST * yardstick_s() for _ in range(NUM_RUNS))


@pytest.mark.slow
def test_the_largest_input_takes_about_a_slice() -> None:
    late = [name for name, step in STEPS.items() if not is_about_a_slice(partial(cost_s, step))]
    assert late == []
    for name, step in (*steps_of_tokens(), *steps_of_bookings()):
        assert is_about_a_slice(partial(cost_s, step)), name


SCANNERS: dict[str, Callable[[], Callable[[bytes], object]]] = {
    "an event stream": lambda: SseScanner().feed,
    "injected usage": lambda: InjectedUsageScanner().feed,
    "renamed ids": lambda: RenamingScanner(Renaming(lambda own: own)).feed,
    "a stream held back": lambda: HeldStream(ResponseHead(200, [], None)).feed,
    "hidden counts": lambda: UsageRedactor().feed,
    "an answer": lambda: partial(_fed, ResponseObserver(ResponseHead(200, [], None), masks=True)),
}


def _fed(observer: ResponseObserver, data: bytes) -> object:
    return observer.feed(data, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCANNERS)
def test_a_read_of_an_answer_takes_about_a_slice(name: str) -> None:
    """Also the one that ends an event of a MiB; the usage is read when the answer has ended."""

    def worst_s(unit: bytes) -> float:
        feed, data = SCANNERS[name](), unit * (MIB // len(unit))
        reads = [data[at : at + SLICE_BYTES] for at in range(0, len(data), SLICE_BYTES)]
        return max(cost_s(partial(feed, read)) for read in [b'"usage"', *reads, b"\n\n"])

    assert [shape for shape, unit in STREAMS.items() if not is_about_a_slice(partial(worst_s, unit))] == []


# each place is listed ----------------------------------------------------------------------------

BODY = (
    "bodies have limits on bytes, values and depth; large ones are read in a thread (requests/large_body.py)"
)
PARSED = "bodies that were read before, within those limits"
ANSWER = "answers of 1 MiB and 10,000 objects at most (discovery/probe.py)"
POSTED = "answers of 64 KiB at most (upstream/control_client.py)"
EVENTS = "messages of 8 MiB at most, those over 64 KiB decoded in slices (ingest/subscription.py)"
LEG = "a prefill worker's answer of 8 MiB at most"
READS = "reads of 8 KiB, and an event of 1 MiB with 2,048 lines"
OWN = "files and processes of the operator's own"
PLACES = {
    "engines/connectors/leg_bodies.py": PARSED,
    "engines/connectors/mooncake.py": LEG,
    "engines/connectors/sglang_bootstrap.py": PARSED,
    "engines/connectors/trtllm_context.py": LEG,
    "engines/llamacpp.py": ANSWER,
    "engines/openai.py": ANSWER,
    "engines/sglang.py": ANSWER,
    "engines/slices.py": EVENTS,
    "engines/trtllm.py": ANSWER,
    "engines/trtllm_polled.py": "answers of 16 MiB at most, decoded in slices (ingest/poll.py)",
    "engines/vllm.py": EVENTS,
    "engines/vllm_info.py": ANSWER,
    "engines/wire.py": EVENTS,
    "gateway/admin/audit.py": "the gateway's own errors",
    "gateway/admin/console/login.py": "bodies of 4 KiB",
    "gateway/admin/explain.py": "bodies with the limits of requests, from the admin network",
    "gateway/admin/lora.py": "bodies of 1 MiB, from the admin network",
    "gateway/admin/workers.py": "bodies of 1 MiB, from the admin network",
    "gateway/apis/error_format.py": "errors of workers, their first 64 KiB (proxy/stream_keepalive.py)",
    "gateway/requests/large_body.py": BODY,
    "gateway/requests/multipart.py": BODY,
    "gateway/requests/outline.py": BODY,
    "gateway/apis/response_ids.py": READS,
    "gateway/apis/open_routes.py": OWN,
    "gateway/apis/sglang.py": PARSED,
    "gateway/bookings/message.py": "messages of Redis of 512 KiB, applied in slices (bookings/sync.py)",
    "gateway/commands/explain.py": OWN,
    "gateway/commands/key.py": OWN,
    "gateway/commands/lora.py": OWN,
    "gateway/commands/revocation.py": OWN,
    "gateway/commands/status.py": OWN,
    "gateway/core/durations.py": OWN,
    "gateway/core/blocks.py": "blocks of prompts and events, within their limits",
    "gateway/requests/adapter_field.py": PARSED,
    "gateway/requests/cache_salt.py": PARSED,
    "gateway/requests/field_types.py": PARSED,
    "gateway/core/json_values.py": BODY,
    "gateway/requests/media_uuid.py": PARSED,
    "gateway/requests/model_alias.py": PARSED,
    "gateway/requests/model_name.py": "bodies that were read before; queries of 256 parameters",
    "gateway/requests/parsing.py": BODY,
    "gateway/requests/steering.py": PARSED,
    "gateway/core/usage_reading.py": READS,
    "gateway/decide/requests.py": "a body and 128 KiB beside it (decide/message_bounds.py)",
    "gateway/discovery/engine_detection.py": ANSWER,
    "gateway/discovery/kubernetes/api_objects.py": "pages of 64 MiB, lines of 4 MiB, of a trusted API server",
    "gateway/discovery/lora_wire.py": POSTED,
    "gateway/discovery/name_prober.py": POSTED,
    "gateway/epp/health.py": "messages of gRPC, of 64 KiB",
    "gateway/epp/dynamic_metadata.py": "128 KiB beside a body (epp/processing_request.py)",
    "gateway/engine_test/subject.py": "answers of 8 MiB at most, in a command's own process",
    "gateway/http/cache_report.py": PARSED,
    "gateway/http/stream_chunks.py": READS,
    "gateway/http/usage_injection.py": READS,
    "gateway/http/usage_redaction.py": READS,
    "gateway/http/websocket_frames.py": "reads of 8 KiB; messages of 256 KiB are decoded",
    "gateway/index/redis_tree/writer.py": "rows that the gateways themselves wrote to Redis",
    "gateway/observability/cache_loss/break_location.py": "prompts, within their limits",
    "gateway/observability/cache_loss/prompt_similarity.py": "prompts of 16 MiB, in portions of 1 ms",
    "gateway/processes/admin.py": OWN,
    "gateway/processes/messages.py": OWN,
    "gateway/processes/metrics_merge.py": OWN,
    "gateway/processes/supervisor.py": OWN,
    "gateway/proxy/responses.py": PARSED,
    "gateway/redis/embedded.py": OWN,
    "gateway/redis/options.py": OWN,
    "gateway/replay/formats/table.py": OWN,
    "gateway/replay/line_reader.py": OWN,
    "gateway/replication/codec.py": "messages of agents of 512 KiB, with 16,384 blocks",
    "gateway/scaling/keda.py": "messages of gRPC, of 64 KiB",
    "gateway/server/connection.py": "reads of 8 KiB, in turns of a slice",
    "gateway/server/handover.py": OWN,
    "gateway/tenancy/auth/jwt.py": "tokens of 16 KiB",
    "gateway/tenancy/auth/key_format.py": OWN,
    "gateway/tokenization/chat_template.py": PARSED,
    "gateway/tokenization/longest_token.py": OWN,
    "gateway/tokenization/mlx.py": PARSED,
    "gateway/tokenization/model_files.py": "files of models, read in a thread",
    "gateway/tokenization/nested_json.py": "counted by windows, before the text is decoded",
    "gateway/tokenization/proof_task.py": OWN,
    "gateway/tokenization/model_families.py": "files of models, read in a thread",
    "gateway/tokenization/sglang.py": PARSED,
    "gateway/tokenization/tokenizer.py": "files of models, read in a thread",
    "gateway/tokenization/tokenizer_class.py": "files of models, read in a thread",
    "gateway/tokenization/worker_tokens.py": "answers of 8 MiB, decoded in steps of 64 KiB",
    "gateway/upstream/connection.py": "reads of 8 KiB, in turns of a slice",
}
"""Modules in which a peer's bytes become many, and the bound on how many at once."""
MAKES_MANY = {
    *("Decoder", "FromString", "ParseFromString", "feed_data", "findall", "finditer", "iter_unpack"),
    *("json.loads", "msgspec.json.decode", "msgspec.msgpack.decode", "parse_qs", "parse_qsl", "splitlines"),
}
SIMULATED = ("engines/sim/", "gateway/demo/")


def test_each_place_that_decodes_what_a_peer_sent_has_a_bound() -> None:
    found = {source for source in _sources() if _makes_many(ROOT / source)}
    assert found - set(PLACES) == set(), "say in PLACES what bounds its largest step, and try it in STEPS"
    assert set(PLACES) - found == set(), "these do not decode any more"


READ_AT_ONCE = {
    "gateway/index/redis_tree/pipeline.py": "answers to commands that were sent, and no others",
    "gateway/proxy/websocket.py": "bytes of a worker that pass unread",
    "gateway/server/http2/protocol.py": "frames and messages are handed out one by one, for a slice",
}


def test_each_connection_reads_in_slices() -> None:
    """A read may be 256 KiB of units that each cost some microseconds."""
    readers = {source for source in _sources() if "def data_received(" in (ROOT / source).read_text()}
    paced = {source for source in readers if "PacedReads(" in (ROOT / source).read_text()}
    assert readers - paced == set(READ_AT_ONCE), "feed large reads through PacedReads"


def _sources() -> Iterable[str]:
    for top in ("engines", "gateway"):
        for path in (ROOT / top).rglob("*.py"):
            source = path.relative_to(ROOT).as_posix()
            if not source.startswith(SIMULATED):
                yield source


def _makes_many(path: Path) -> bool:
    calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    names = {ast.unparse(call) for call in calls if isinstance(call, ast.Name | ast.Attribute)}
    return bool(MAKES_MANY & {*names, *(name.rpartition(".")[2] for name in names)})
