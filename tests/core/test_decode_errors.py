"""Readers of foreign bytes: no reader raises an error that its callers do not expect, or is written without
knowing them.
"""

import ast
import contextlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from engines import ENGINES
from engines.connectors.leg_bodies import read_answer
from gateway.admin.explain import _path_of
from gateway.apis.response_ids import Renaming
from gateway.bookings import message
from gateway.core.engine import AdapterCalls
from gateway.core.errors import ConfigError, InvalidRequest
from gateway.core.kv_events import DecodeError
from gateway.discovery.engine_detection import Engines
from gateway.discovery.lora_wire import outcome
from gateway.http import usage_redaction
from gateway.http.messages import ResponseHead
from gateway.http.response_observer import ResponseObserver
from gateway.http.usage_injection import InjectedUsageScanner
from gateway.parity.prober import _read
from gateway.requests.parsing import parse_request
from gateway.tenancy.auth.key_format import parse_key_file
from gateway.tokenization.chat_template import arguments_of

ROOT = Path(__file__).parents[2]
DEPTH = 200_000

JSON = {
    "lists": b"[" * DEPTH + b"]" * DEPTH,
    "lists that do not end": b"[" * DEPTH,
    "objects": b'{"a":' * DEPTH + b"1" + b"}" * DEPTH,
    "in a field that is read": b'{"usage":' * DEPTH + b"1" + b"}" * DEPTH,
    "in one that is not": b'{"x":' + b"[" * DEPTH + b"]" * DEPTH + b',"usage":{"prompt_tokens":1}}',
    "in a list of models": b'{"data":[{"id":"m","x":' + b"[" * DEPTH + b"]" * DEPTH + b"}]}",
    "in tokens": b'{"tokens":' + b"[" * DEPTH + b"]" * DEPTH + b"}",
    "in a response": b'{"response":' * DEPTH + b"1" + b"}" * DEPTH,
    "a number of 5,000 digits": b'{"usage":{"prompt_tokens":'
    + b"9" * 5000
    + b'},"tokens":['
    + b"9" * 5000
    + b"]}",
    "beyond 64 bits": b'{"usage":{"prompt_tokens":' + b"9" * 400 + b'},"tokens":[' + b"9" * 400 + b"]}",
    "a number without end": b'{"usage":{"prompt_tokens":1e400},"data":1e400}',
    "not a number": b'{"usage":{"prompt_tokens":NaN},"tokens":[NaN]}',
    "no UTF-8": b'{"id":"\xff","object":"response","data":[{"id":"\xff"}]}',
    "half a surrogate": b'{"id":"\\ud800"}',
    "nothing": b"",
    "a zero": b"\0",
}
PACKED = {
    "arrays": b"\x91" * DEPTH + b"\xc0",
    "maps": b"\x81\xa1a" * DEPTH + b"\xc0",
    "arrays in events": b"\x93\xcb" + b"\0" * 8 + b"\x91" * DEPTH + b"\xc0",
    "arrays behind a tag": b"\x93\xcb" + b"\0" * 8 + b"\x91\x92\xacBlockRemoved" + b"\x91" * DEPTH + b"\xc0",
    "a list of 4 G": b"\xdd\xff\xff\xff\xff",
    "a text of 4 G": b"\xdb\xff\xff\xff\xff",
    "no UTF-8": b"\x93\xcb" + b"\0" * 8 + b"\x91\x91\xa1\xff\x00",
    "nothing": b"",
}
SSE = ResponseHead(200, [(b"content-type", b"text/event-stream")], None)
PLAIN = ResponseHead(200, [(b"content-type", b"application/json")], None)
CALLS = AdapterCalls("/load", "/unload", "--enable-lora")


def streamed(data: bytes) -> object:
    answers = [
        ResponseObserver(SSE),
        ResponseObserver(SSE, InjectedUsageScanner()),
        ResponseObserver(SSE, masks=True),
    ]
    event = b"data: " + data + b"\n\n"
    for answer in answers:
        passed = answer.feed(event, 0.0)[0] + answer.flush()
        assert passed == event, "it passes as it came"
        answer.usage()
    return None


def plain(data: bytes) -> object:
    answer = ResponseObserver(PLAIN)
    assert answer.feed(data, 0.0)[0] == data
    return answer.usage()


def renamed(data: bytes) -> object:
    renaming = Renaming(lambda own: "given")
    renaming.read(data)
    return renaming.renamed(b"{}")


READERS: dict[str, tuple[Callable[[bytes], object], tuple[type[Exception], ...]]] = {
    "a stream": (streamed, ()),
    "an answer": (plain, ()),
    "a response's id": (renamed, ()),
    "usage to be masked": (usage_redaction.masked, ()),
    "tokens of a worker": (_read, ()),
    "an answer about adapters": (lambda data: outcome(400, data, "/load", CALLS), ()),
    "who owns models": (Engines(ENGINES).by_models, ()),
    "arguments of a tool call": (lambda data: arguments_of(data.decode("utf-8", "replace")), ()),
    "a prefill worker's answer": (read_answer, (DecodeError,)),
    "lines of keys": (lambda data: parse_key_file(data.decode("latin-1"), "keys"), (ConfigError,)),
    "a chat": (lambda data: parse_request("/v1/chat/completions", data), (InvalidRequest,)),
    "a response": (lambda data: parse_request("/v1/responses", data), (InvalidRequest,)),
    "a request to explain": (_path_of, (InvalidRequest,)),
}


@pytest.mark.parametrize("data", JSON.values(), ids=JSON)
@pytest.mark.parametrize(("read", "raises"), READERS.values(), ids=READERS)
def test_a_reader_of_json(
    read: Callable[[bytes], object], raises: tuple[type[Exception], ...], data: bytes
) -> None:
    with contextlib.suppress(*raises):
        read(data)


@pytest.mark.parametrize("data", JSON.values(), ids=JSON)
@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_adapter_reading_json(name: str, data: bytes) -> None:
    engine = ENGINES[name]
    reads: list[Callable[[], object]] = [
        lambda: engine.parse_models(data),
        lambda: engine.parse_version(data),
        lambda: engine.parse_info(data),
        lambda: engine.parse_event_sources(data),
        lambda: engine.decode_poll(data, 16, 0.0),
    ]
    for read in reads:
        with contextlib.suppress(DecodeError):
            read()
    engine.parse_metrics(data.decode("utf-8", "replace"))


@pytest.mark.parametrize("data", PACKED.values(), ids=PACKED)
@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_adapter_reading_events(name: str, data: bytes) -> None:
    for read in (ENGINES[name].decode, ENGINES[name].decode_replay):
        with pytest.raises(DecodeError):
            read([b"", (1).to_bytes(8, "big"), data])


@pytest.mark.parametrize("data", PACKED.values(), ids=PACKED)
def test_a_reader_of_remote_bookings(data: bytes) -> None:
    assert message.decode(data) is None


def test_a_reader_of_a_jwks() -> None:
    from gateway.tenancy.auth.jwt import JwtVerifier

    jwt = JwtVerifier(
        algorithms=["RS256"],
        issuer="i",
        audience="a",
        leeway_s=0.0,
        tenant_claim="t",
        models_claim="m",
        salt_of=lambda tenant: None,
    )
    for data in JSON.values():
        with pytest.raises(ValueError, match="JWKS|public key"):
            jwt.use(b'{"keys":' + data + b"}")


# every reader is listed --------------------------------------------------------------------------

OURS = {
    "gateway/requests/adapter_field.py:without_adapter": "bodies that were parsed before",
    "gateway/requests/model_alias.py": "bodies that were parsed before",
    "gateway/http/cache_report.py": "bodies that were parsed before",
    "gateway/requests/cache_salt.py": "bodies that were parsed before",
    "gateway/requests/large_body.py:_decoded": "decode_large catches it",
    "gateway/proxy/responses.py": "bodies that were parsed before",
    "engines/connectors/leg_bodies.py": "bodies that were parsed before",
    "engines/connectors/sglang_bootstrap.py": "bodies that were parsed before",
    "engines/connectors/trtllm_context.py": "made here, of an answer that was parsed before",
    "gateway/core/json_values.py:decode": "its callers catch it",
    "gateway/requests/parsing.py:_decode_nested": "its caller catches it",
    "gateway/requests/parsing.py:_split": "its caller catches it",
    "gateway/requests/parsing.py:decode_value": "its callers catch it",
    "gateway/discovery/kubernetes/api_objects.py:event": "the watch that reads the line catches it",
    "gateway/requests/steering.py:unsteered": "bodies that were parsed before",
    "gateway/requests/steering.py:behind": "bodies that were parsed before",
    "gateway/requests/steering.py:_checked_parameters": "bodies that were parsed before",
    "gateway/requests/media_uuid.py": "scope_media catches it",
    "gateway/requests/model_name.py:check_once": "bodies that were parsed before",
    "engines/vllm.py:_event": "its caller catches it",
    "engines/wire.py:_event": "its caller catches it",
    "engines/slices.py:raw_events": "its callers catch it",
    "engines/slices.py:portions": "its callers catch it, as portions are taken",
    "gateway/tokenization/tokenizer.py:_added_tokens": "its caller catches it",
    "gateway/tokenization/proof_task.py": "made by this process, and by one that it starts",
    "gateway/tokenization/tokenizer_class.py:rebuilt": "its caller catches it",
    "gateway/tokenization/worker_tokens.py:read_tokens": "its callers catch it",
    "gateway/tokenization/worker_tokens.py:read_tokens_in_steps": "its caller catches it, step by step",
    "gateway/processes/admin.py": "answers of the gateway's own processes",
    "gateway/processes/supervisor.py": "answers of the gateway's own processes",
    "gateway/processes/child.py": "messages between the gateway's own processes",
    "gateway/server/handover.py": "messages between gateways of one user, who owns the socket",
}
"""Files and functions that decode without a mention of UNREADABLE, and the reason."""
OWN_DECODER = "gateway.core.json_values"


def test_every_decoding_function_handles_unreadable_bytes() -> None:
    forgotten = [place for place in _decoding() if not _is_excused(place)]
    assert forgotten == [], "catch gateway.core.decode_errors.UNREADABLE there"


def test_excuses_are_of_functions_that_exist() -> None:
    assert [name for name in OURS if not any(place.startswith(name) for place in _decoding())] == []


def _is_excused(place: str) -> bool:
    return any(place == name or place.startswith(name + ":") for name in OURS)


@cache
def _decoding() -> list[str]:
    paths = [path for top in ("gateway", "engines") for path in sorted((ROOT / top).rglob("*.py"))]
    return [place for path in paths if "sim" not in path.parts for place in _unguarded(path)]


def _unguarded(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    decoders = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign) and ("Decoder(" in ast.unparse(node.value) or _is_ours(node.value))
        for target in node.targets
        if isinstance(target, ast.Name)
    } | {"decode_to_process", "decode_to_supervisor"}
    if any(isinstance(node, ast.ImportFrom) and node.module == OWN_DECODER for node in tree.body):
        decoders.add("decode")
    source = path.relative_to(ROOT).as_posix()
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and any(
            _decodes(call, decoders) for call in _bare(function)
        ):
            yield f"{source}:{function.name}"


def _is_ours(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id == "decode"


def _decodes(node: ast.AST, decoders: set[str]) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
        return False
    called = ast.unparse(node.func)
    return called in decoders or called in (
        "msgspec.json.decode",
        "msgspec.msgpack.decode",
        "json.loads",
        "json.load",
        "json.decode",
    )


def _bare(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a function except those in the body of a `try` that handles nesting."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Try) and any(
            handler.type is not None and _catches(ast.unparse(handler.type)) for handler in child.handlers
        ):
            rest: list[Any] = [*child.handlers, *child.orelse, *child.finalbody]
            for other in rest:
                yield other
                yield from _bare(other)
        else:
            yield child
            yield from _bare(child)


def _catches(caught: str) -> bool:
    return any(name in caught for name in ("UNREADABLE", "RecursionError"))
