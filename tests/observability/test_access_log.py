"""Access log lines, as JSON and as text."""

import json
import logging
from typing import Any

import pytest
from msgspec import structs

from gateway.core.decision import PrefillChoice
from gateway.core.value import replace
from gateway.observability.access_log import JsonLines, TextLines
from gateway.observability.request_end import CUT, RequestEnd, refusal
from tests.support.ended_requests import TRACE, TRACEPARENT, ended_request
from tests.support.fakes import decision


def line(end: RequestEnd) -> dict[str, Any]:
    written: list[bytes] = []
    JsonLines(written.append, clock=lambda: 1_800_000_000.25)(end)
    (entry,) = written
    assert entry.endswith(b"}\n") and entry.count(b"\n") == 1
    found: dict[str, Any] = json.loads(entry)
    return found


def test_all_fields_of_a_line() -> None:
    assert line(ended_request(TRACEPARENT)) == {
        "time": "2027-01-15T08:00:00.250000Z",
        "level": "info",
        "logger": "kvgate.requests",
        "request_id": "r1",
        "decision_id": "d1",
        "trace_id": TRACE.decode(),
        "client": None,
        "tenant": "acme",
        "route": "/v1/chat/completions",
        "model": "m",
        "adapter": "lora",
        "stream": True,
        "policy": "p",
        "worker": "a:1",
        "prefill_worker": None,
        "prompt_tokens": 100,
        "predicted_cached_tokens": 64,
        "reported_cached_tokens": 48,
        "output_tokens": 9,
        "queued_s": 0.25,
        "ttft_s": 0.5,
        "total_s": 2.0,
        "status": 200,
        "result": "ended",
        "error": None,
        "error_origin": None,
        "retries": 1,
    }


def test_a_refused_request_has_the_same_fields() -> None:
    shown = line(refusal(None, None, 400, 3.0))
    assert shown.keys() == line(ended_request()).keys()
    assert (shown["error"], shown["error_origin"], shown["worker"], shown["status"]) == (
        "malformed",
        "client",
        None,
        400,
    )


def test_the_prefill_worker_is_named() -> None:
    split = PrefillChoice("cold", decision("d1", "b:1", "b:1").candidates[0])
    request_end = ended_request()
    assert request_end.decision is not None
    request_end = structs.replace(request_end, decision=replace(request_end.decision, split=split))
    assert line(request_end)["prefill_worker"] == split.prefill.id  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "value",
    [b"", b"00-short-00f067aa0ba902b7-01", b"00-" + TRACE.upper() + b"-00f067aa0ba902b7-01", b"x" * 500],
)
def test_an_invalid_trace_is_null(value: bytes) -> None:
    assert line(ended_request((b"traceparent", value)))["trace_id"] is None


def test_names_chosen_by_clients_are_truncated_and_stay_on_their_line() -> None:
    request_end = ended_request(request_id=b'"\n' + b"x" * 500)
    assert request_end.request is not None
    request_end.request.model = "y" * 500
    written = line(request_end)
    assert len(written["request_id"]) == len(written["model"]) == 128


def test_lines_as_text(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        TextLines()(ended_request())
        TextLines()(ended_request(result="aborted", fault=CUT))
        TextLines()(refusal(None, None, 400, 3.0))
    numbers = "64 of 100 prompt tokens predicted cached (engine: 48 cached)  TTFT 500 ms, total 2000 ms"
    assert [record.getMessage() for record in caplog.records] == [
        f"m -> a:1  status 200  {numbers}  because  [d1, request r1]",
        f"m -> a:1  status 200  {numbers}  aborted, answer_cut by the worker  [d1, request r1]",
        "a request rejected: status 400  malformed by the client  after 0 ms  tenant -  [-]",
    ]


def test_the_client_is_named_behind_trusted_proxies(caplog: pytest.LogCaptureFixture) -> None:
    end = ended_request()
    assert end.http is not None
    end.http.client = "203.0.113.7"
    assert line(end)["client"] == "203.0.113.7"
    with caplog.at_level("INFO"):
        TextLines()(end)
    assert caplog.messages[0].endswith("  from 203.0.113.7")


def test_controls_in_a_request_id_are_escaped() -> None:
    written: list[bytes] = []
    JsonLines(written.append)(ended_request(request_id=b"\x9b2J\x7f"))
    assert written[0].isascii() and b"\\u009b2J\\u007f" in written[0]
    assert line(ended_request(request_id=b"\x9b2J"))["request_id"] == "\x9b2J"
