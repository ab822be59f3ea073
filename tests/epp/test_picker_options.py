"""The picker with its options: trusted headers, fallbacks, prefill workers, conformance; changed bodies."""

import asyncio
from typing import Any

import msgspec
import pytest

from gateway.config.epp import EppSection
from gateway.epp.addresses import Addresses
from gateway.epp.door import Door
from gateway.epp.messages import BodyMode
from gateway.epp.picker import StreamPicker
from gateway.http.cross_origin import CrossOriginPolicy
from gateway.http.messages import Header
from gateway.http.usage_injection import InjectedUsageScanner
from gateway.proto.kvgate.v1 import ext_proc_pb2 as pb
from gateway.proxy.api import Api
from tests.support.ext_proc import (
    BUFFERED,
    DUPLEX,
    POST,
    FakeStream,
    request_body,
    request_headers,
    response_body,
    response_headers,
)
from tests.support.worlds.disaggregated import DisaggregatedWorld
from tests.support.worlds.endpoint_picks import (
    BODY,
    DONE,
    EVENT,
    W1,
    W2,
    Epp,
    destination,
    refusal,
    resolve_as,
)


def with_options(epp: Epp, **options: Any) -> Epp:
    epp.door.options = EppSection(**options)
    return epp


def set_headers(message: pb.ProcessingResponse) -> dict[str, bytes]:
    which = message.WhichOneof("response")
    assert which is not None
    mutation = getattr(message, which).response.header_mutation
    return {each.header.key: each.header.raw_value for each in mutation.set_headers}


PAGE = (b"origin", b"https://a.example")


def with_origins(epp: Epp) -> Epp:
    policy = CrossOriginPolicy(["https://a.example"])
    epp.door.api = Api(epp.dispatch, epp.router.fleet, epp.metrics, cross_origins=policy)
    return epp


def test_pages_of_allowed_origins_read_answers_and_errors_through_envoy(epp: Epp) -> None:
    picker, stream = with_origins(epp).picked(headers=[*POST, PAGE])
    stream.take()
    picker.message(response_headers(200, [(b"content-type", b"application/json")]))
    (message,) = stream.take()
    assert set_headers(message)["access-control-allow-origin"] == PAGE[1]
    picker, stream = epp.stream()
    picker.message(request_headers([*POST, PAGE]))
    picker.message(request_body(b"{", is_end=True))
    status, headers, _ = refusal(stream.take())
    assert status == 400 and headers["access-control-allow-origin"] == PAGE[1].decode()


def test_a_preflight_through_envoy_is_answered_whole(epp: Epp) -> None:
    asked = [(b":method", b"OPTIONS"), (b":path", b"/v1/models"), (b"access-control-request-method", b"GET")]
    picker, stream = with_origins(epp).stream()
    picker.message(request_headers([*asked, PAGE], is_end=True))
    (message,) = stream.take()
    reply = message.immediate_response
    headers = {each.header.key: each.header.raw_value for each in reply.headers.set_headers}
    assert reply.status.code == 204 and headers["access-control-allow-origin"] == PAGE[1]
    assert b"POST" in headers["access-control-allow-methods"] and epp.is_free


def test_what_would_steer_a_clients_browser_does_not_pass_through_envoy(epp: Epp) -> None:
    """Headers that the gateway sets itself are set, not removed."""
    own = [(b"access-control-allow-origin", b"*"), (b"location", b"http://w/"), (b"alt-svc", b"h3")]
    picker, stream = epp.picked()
    stream.take()
    picker.message(response_headers(200, [(b"content-type", b"text/plain"), *own]))
    mutation = stream.take()[0].response_headers.response.header_mutation
    assert list(mutation.remove_headers) == ["access-control-allow-origin", "alt-svc", "location"]
    picker, stream = with_origins(epp).picked(headers=[*POST, PAGE])
    stream.take()
    picker.message(response_headers(200, own))
    (message,) = stream.take()
    assert set_headers(message)["access-control-allow-origin"] == PAGE[1]
    removed = message.response_headers.response.header_mutation.remove_headers
    assert list(removed) == ["alt-svc", "location"]


STEERED = [
    (b"x-llm-d-inference-fairness-id", b"acme"),
    (b"x-llm-d-inference-objective", b"chat"),
    (b"x-llm-d-slo-ttft-ms", b"60000"),
    (b"x-llm-d-model-name-rewrite", b"m"),
]


@pytest.mark.parametrize("is_trusted", [True, False])
def test_control_headers_count_where_envoy_sets_them(
    monkeypatch: pytest.MonkeyPatch, is_trusted: bool
) -> None:
    epp = Epp(monkeypatch, W1, epp_trust_headers=is_trusted, queue_above_in_flight=9)
    with_options(epp, trust_headers=is_trusted)
    epp.door.objects.objectives = {"chat": 7}
    picker, stream = epp.stream()
    picker.message(request_headers([*POST, *STEERED]))
    picker.message(request_body(BODY.replace(b'"m"', b'"other"'), is_end=True))
    if not is_trusted:
        assert refusal(stream.take())[0] == 404 and epp.door.counts["untrusted_header"] == 4
        return
    head, *body = stream.take()
    (exchange,) = epp.dispatch.exchanges
    request = exchange.request
    assert (request.tenant, request.priority, request.slo_ttft_s) == ("acme", -7, 60.0)
    (piece,) = [each.request_body.response.body_mutation.streamed_response for each in body]
    assert msgspec.json.decode(piece.body)["model"] == "m"
    removed = set(head.request_headers.response.header_mutation.remove_headers)
    assert {name.decode() for name, _ in STEERED} <= removed
    picker.aborted("reset")
    assert epp.is_free


def test_fallbacks_follow_the_chosen_worker_in_the_destination(monkeypatch: pytest.MonkeyPatch) -> None:
    epp = with_options(Epp(monkeypatch, W1, W2, "10.0.0.3:8000"), fallbacks=1)
    picker, stream = epp.picked()
    chosen, fallback = destination(stream.take()[0]).split(",")
    assert chosen == W1 and fallback in (W2, "10.0.0.3:8000") and epp.in_flight() == 1
    picker.message(response_headers(served=fallback))  # Envoy's own retry
    assert epp.router.ledger.load(epp.router.fleet.get(fallback).worker.id).num_in_flight == 1  # type: ignore[arg-type,union-attr]
    picker.message(response_body(DONE, is_end=True))
    assert epp.is_free


def test_fallbacks_are_within_the_subset(monkeypatch: pytest.MonkeyPatch) -> None:
    epp = with_options(Epp(monkeypatch, W1, W2, "10.0.0.3:8000"), fallbacks=5)
    _, stream = epp.picked(subset=[W2, W1])
    assert sorted(destination(stream.take()[0]).split(",")) == [W1, W2]


def test_ranks_are_endpoints_by_their_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = ["10.0.0.1:3000", "10.0.0.1:3002", "10.0.0.1:3004"]
    epp = Epp(monkeypatch, *ranks)
    assert [destination(epp.picked()[1].take()[0]) for _ in range(3)] == ranks
    assert destination(epp.picked(subset=["10.0.0.1:3002"])[1].take()[0]) == ranks[1]
    assert destination(epp.picked(subset=["10.0.0.1"])[1].take()[0]) in ranks


def test_the_conformance_headers_are_obeyed_behind_their_option_only(epp: Epp) -> None:
    selecting = [*POST, (b"test-epp-endpoint-selection", W2.encode())]
    given = [destination(epp.picked(headers=selecting)[1].take()[0]) for _ in range(2)]
    assert given == [W1, W2]
    with_options(epp, conformance=True)
    for _ in range(2):
        picker, stream = epp.picked(headers=selecting, subset=[W1, W2])
        assert destination(stream.take()[0]) == W2
        picker.message(response_headers(served=W2))
        assert set_headers(stream.take()[0])["x-conformance-test-served-endpoint"] == W2.encode()
        picker.message(response_body(b"", is_end=True))
    assert refusal(epp.picked(headers=selecting, subset=[W1])[1].take())[0] == 503


@pytest.fixture
def epp(monkeypatch: pytest.MonkeyPatch) -> Epp:
    return Epp(monkeypatch, W1, W2)


@pytest.mark.parametrize("answer", [BodyMode.FULL_DUPLEX_STREAMED, BodyMode.BUFFERED, BodyMode.NONE])
@pytest.mark.parametrize("request_mode", [DUPLEX, BUFFERED])
def test_usage_is_asked_for_and_taken_out_again_where_the_answer_passes(
    epp: Epp, request_mode: BodyMode, answer: BodyMode
) -> None:
    epp.use(ask_usage=lambda worker, is_needed: InjectedUsageScanner())
    picker, stream = epp.stream()
    picker.message(request_headers(modes=(request_mode, answer)))
    picker.message(request_body(BODY, is_end=True))
    messages = stream.take()
    mutations = [each.request_body.response.body_mutation for each in messages]
    sent = b"".join(each.streamed_response.body or each.body for each in mutations)
    if answer is BodyMode.NONE:
        assert b"include_usage" not in sent
        picker.aborted("reset")
        return
    assert b'"include_usage":true' in sent
    length = str(len(sent)).encode() if request_mode is BUFFERED else None
    assert set_headers(messages[-1 if request_mode is BUFFERED else 0]).get("content-length") == length
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}\n\n'
    picker.message(response_headers())
    picker.message(response_body(EVENT + usage + DONE, is_end=True))
    _, *parts = stream.take()
    mutations = [each.response_body.response.body_mutation for each in parts]
    assert b"".join(each.streamed_response.body or each.body for each in mutations) == EVENT + DONE
    assert epp.is_free


@pytest.mark.parametrize("masks", [False, True])
def test_an_answer_of_another_length_has_no_length(monkeypatch: pytest.MonkeyPatch, masks: bool) -> None:
    epp = Epp(monkeypatch, W1, mask_cached_tokens=masks)
    picker, stream = epp.picked(modes=(DUPLEX, BodyMode.STREAMED))
    stream.take()
    length: Header = (b"content-length", b"52")
    picker.message(response_headers(headers=[(b"content-type", b"application/json"), length]))
    (head,) = stream.take()
    removed = list(head.response_headers.response.header_mutation.remove_headers)
    assert ("content-length" in removed) is masks


class Pairs(DisaggregatedWorld):
    """A decode worker with llm-d's sidecar, and one that computes prompts for it, by host names."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch, "p:8000", "d:8000")
        self.door = Door(Api(self.dispatch, self.router.fleet, self.metrics), self.dispatch, 1000)
        addresses = self.door.addresses = Addresses(resolve_as({"p": "10.0.0.1", "d": "10.0.0.2"}))
        asyncio.run(addresses.look_up_missing(["http://p:8000", "http://d:8000"], 0.0))


@pytest.mark.parametrize("has_sidecar", [True, False])
def test_a_prefill_worker_is_named_to_the_sidecar(monkeypatch: pytest.MonkeyPatch, has_sidecar: bool) -> None:
    pairs = Pairs(monkeypatch)
    pairs.door.options = EppSection(prefill_header=has_sidecar)
    stream = FakeStream()
    picker = StreamPicker(pairs.door, stream)
    picker.message(request_headers([*POST, (b"x-prefiller-host-port", b"10.6.6.6:1")]))
    picker.message(request_body(BODY, is_end=True))
    head = stream.take()[0]
    given, removed = set_headers(head), head.request_headers.response.header_mutation.remove_headers
    assert destination(head) == W2
    assert given.get("x-prefiller-host-port") == (W1.encode() if has_sidecar else None)
    assert ("x-prefiller-host-port" in removed) is not has_sidecar
    assert (pairs.load("p:8000"), pairs.load("d:8000")) == (int(has_sidecar), 1)
    picker.message(response_headers())
    picker.message(response_body(EVENT))
    assert (pairs.load("p:8000"), pairs.load("d:8000")) == (0, 1)
    picker.message(response_body(DONE, is_end=True))
    assert pairs.is_clean()


@pytest.mark.parametrize("end", ["half_closed", "aborted"])
def test_a_client_that_leaves_frees_both_of_a_pair(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    pairs = Pairs(monkeypatch)
    pairs.door.options = EppSection(prefill_header=True)
    pairs.door.has_seen_answers = True
    picker = StreamPicker(pairs.door, FakeStream())
    picker.message(request_headers())
    picker.message(request_body(BODY, is_end=True))
    assert (pairs.load("p:8000"), pairs.load("d:8000")) == (1, 1)
    picker.half_closed() if end == "half_closed" else picker.aborted("reset")
    assert pairs.is_clean()
