"""A stream of ext_proc through the whole gateway: messages in, messages and bookings out."""

from typing import Any, cast

import pytest

from gateway.core.errors import Unauthorized
from gateway.core.worker import ReportedLoad, WorkerId
from gateway.discovery.request_faults import RequestFaults
from gateway.epp.messages import BodyMode
from gateway.http.messages import Header
from gateway.http.networks import Trusted
from gateway.proto.kvgate.v1 import ext_proc_pb2 as pb
from gateway.proxy.api import Api
from gateway.tenancy.admission.gate import gate_of
from gateway.tenancy.admission.queues import LOOK_S
from gateway.tenancy.admission.request_identity import HeaderNames
from gateway.tenancy.auth.api_keys import make_key
from gateway.tenancy.auth.authenticator import Authenticator
from gateway.tenancy.auth.key_format import format_key_record, parse_key_file
from tests.support.ext_proc import (
    BUFFERED,
    DUPLEX,
    POST,
    request_body,
    request_headers,
    response_body,
    response_headers,
    trailers,
)
from tests.support.worlds.endpoint_picks import (
    BODY,
    DESTINATION,
    DONE,
    EVENT,
    W1,
    W2,
    Epp,
    destination,
    refusal,
)
from tests.support.worlds.gate import FakeOutlook, zero_config


@pytest.fixture
def epp(monkeypatch: pytest.MonkeyPatch) -> Epp:
    return Epp(monkeypatch, W1, W2)


def echoed(messages: list[pb.ProcessingResponse]) -> tuple[bytes, list[bool]]:
    pieces = [each.request_body.response.body_mutation.streamed_response for each in messages]
    return b"".join(each.body for each in pieces), [each.end_of_stream for each in pieces]


def test_a_duplex_request_is_picked_once_it_is_whole_and_its_body_goes_back(epp: Epp) -> None:
    picker, stream = epp.stream()
    picker.message(request_headers())
    picker.message(request_body(BODY))
    assert not stream.sent and not epp.in_flight()
    picker.message(request_body(b"", is_end=True))
    head, *body = stream.take()
    assert destination(head) in (W1, W2) and epp.in_flight() == 1
    assert echoed(body) == (BODY, [True])


def test_requests_alternate_as_the_policy_says(epp: Epp) -> None:
    given = [destination(epp.picked()[1].take()[0]) for _ in range(4)]
    assert given == [W1, W2, W1, W2] and epp.in_flight() == 4


def test_a_buffered_request_is_picked_in_the_answer_to_its_body(epp: Epp) -> None:
    picker, stream = epp.stream()
    picker.message(request_headers(modes=(BUFFERED, BodyMode.NONE)))
    assert stream.take() == [pb.ProcessingResponse(request_headers=pb.CommonReply())]
    picker.message(request_body(BODY, is_end=True))
    pick, *_ = stream.take()
    assert destination(pick) == W1 and not pick.request_body.response.HasField("body_mutation")


def test_the_whole_answer_passes_and_frees_the_booking(epp: Epp) -> None:
    picker, stream = epp.picked()
    stream.take()
    picker.message(response_headers())
    picker.message(response_body(EVENT))
    picker.message(response_body(EVENT + DONE))
    assert epp.in_flight() == 1
    picker.message(response_body(b"", is_end=True))
    head, *body = stream.take()
    assert head.HasField("response_headers")
    pieces = [each.response_body.response.body_mutation.streamed_response for each in body]
    assert b"".join(each.body for each in pieces) == EVENT + EVENT + DONE
    assert [each.end_of_stream for each in pieces].count(True) == 1 and pieces[-1].end_of_stream
    assert epp.is_free and epp.metrics.responses[200] == 1
    assert epp.context.pools.num_reads(f"http://{W1}") >= 3  # signs of life, beside probes
    picker.half_closed()
    assert stream.finished == (0, "")


def test_first_tokens_and_usage_are_read_where_the_answer_passes(epp: Epp) -> None:
    picker, _ = epp.picked()
    picker.message(response_headers())
    picker.message(response_body(EVENT))
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}\n\n'
    picker.message(response_body(usage + DONE, is_end=True))
    worker = epp.metrics.worker(WorkerId(W1))
    assert sum(worker.ttft_s.counts) == 1 and worker.num_answered == 1


def test_an_answer_that_ends_with_trailers_is_complete(epp: Epp) -> None:
    picker, stream = epp.picked()
    picker.message(response_headers())
    stream.take()
    picker.message(response_body(EVENT + DONE))
    picker.message(trailers(is_response=True))
    *_, last = stream.take()
    assert last.HasField("response_trailers") and epp.is_free


def test_a_request_that_ends_with_trailers_is_picked_and_gets_them_back(epp: Epp) -> None:
    picker, stream = epp.stream()
    picker.message(request_headers())
    picker.message(request_body(BODY))
    picker.message(trailers())
    head, body, last = stream.take()
    assert destination(head) == W1 and echoed([body]) == (BODY, [False])
    assert last.HasField("request_trailers")


@pytest.mark.parametrize(
    ("subset", "expected"),
    [
        ([W2], W2),
        (W2, W2),
        (f"10.9.9.9:1, {W2}", W2),
        (["10.0.0.2"], W2),
        ("10.0.0.2", W2),
        (["10.0.0.2", "10.0.0.9"], W2),
    ],
)
def test_a_subset_hint_in_each_form_limits_the_pick(epp: Epp, subset: object, expected: str) -> None:
    for _ in range(3):
        _, stream = epp.picked(subset=subset)
        assert destination(stream.take()[0]) == expected


@pytest.mark.parametrize(
    "subset", ["", [], ["10.9.9.9:8000"], "unknown-host:1", ["10.0.0.2:9"], ["[::1]:8000"]]
)
def test_a_subset_without_a_worker_is_answered_with_503(epp: Epp, subset: object) -> None:
    _, stream = epp.picked(subset=subset)
    status, headers, body = refusal(stream.take())
    assert status == 503 and headers["retry-after"] and body["error"]["code"] == "no_worker"
    assert epp.is_free


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        (POST, b"no json", 400),
        (POST, b"", 400),
        (POST, b"\x1f\x8b\x08\x00", 400),
        (POST, b'{"model":"unknown","prompt":"a"}', 404),
        ([(b":method", b"POST"), (b":path", b"/v1/nothing")], b"{}", 404),
        ([(b":method", b"PUT"), (b":path", b"/v1/completions")], BODY, 405),
        (POST, b" " * 1001, 413),
    ],
)
def test_bad_requests_are_answered_as_the_proxy_answers(
    epp: Epp, headers: list[Header], body: bytes, status: int
) -> None:
    picker, stream = epp.stream()
    picker.message(request_headers(headers))
    picker.message(request_body(body))
    picker.message(request_body(b"", is_end=True))
    given, answered, content = refusal(stream.take())
    assert given == status and epp.is_free
    reasons = answered["x-kvgate-dropped-reason"], answered["x-llm-d-request-dropped-reason"]
    assert reasons == (content["error"]["code"],) * 2
    picker.half_closed()
    assert stream.finished == (0, "")


def test_own_routes_are_answered_without_a_worker(epp: Epp) -> None:
    picker, stream = epp.stream()
    picker.message(request_headers([(b":method", b"GET"), (b":path", b"/v1/models")], is_end=True))
    status, _, body = refusal(stream.take())
    assert status == 200 and [model["id"] for model in body["data"]] == ["m"] and epp.is_free


OFFER = [(b":method", b"GET"), (b":path", b"/v1/realtime?model=m"), (b"upgrade", b"websocket")]


@pytest.mark.parametrize("mode", [DUPLEX, BUFFERED])
def test_an_upgrade_is_picked_at_once_and_its_bytes_pass(epp: Epp, mode: BodyMode) -> None:
    picker, stream = epp.stream()
    picker.message(request_headers(OFFER, modes=(mode, mode)))
    (pick,) = stream.take()
    assert destination(pick) == W1 and epp.in_flight() == 1
    picker.message(response_headers(101, []))
    picker.message(request_body(b"ping"))
    picker.message(response_body(b"pong"))
    head, sent, answered = stream.take()
    assert head.HasField("response_headers") and answered.HasField("response_body")
    if mode is DUPLEX:
        assert echoed([sent]) == (b"ping", [False])
    picker.half_closed()
    assert epp.is_free


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([(b":method", b"POST"), (b":path", b"/v1/completions"), (b"upgrade", b"websocket")], 501),
        ([(b":method", b"GET"), (b":path", b"/v1/models"), (b"upgrade", b"h2c")], 501),
        ([(b":method", b"GET"), (b":path", b"/v1/realtime?model=x"), (b"upgrade", b"websocket")], 404),
    ],
)
def test_an_offer_to_leave_http_opens_no_other_route(epp: Epp, headers: list[Header], status: int) -> None:
    picker, stream = epp.stream()
    picker.message(request_headers(headers))
    assert refusal(stream.take())[0] == status and epp.is_free


def test_an_upgrade_needs_a_key_where_requests_do(epp: Epp) -> None:
    class Asking:
        asks_peer = False

        def ask(self, http: object, peer: object) -> None:
            raise Unauthorized("no key", code="invalid_api_key")

    epp.door.api = Api(epp.dispatch, epp.router.fleet, epp.metrics, authenticator=cast(Any, Asking()))
    for headers in (OFFER, POST):
        picker, stream = epp.stream()
        picker.message(request_headers(headers, is_end=headers is POST))
        assert refusal(stream.take())[0] == 401 and epp.is_free


KEYS = {name: make_key(bytes(5) + bytes([number]), bytes(32)) for number, name in enumerate(("all", "tuned"))}


def authenticated(epp: Epp, *, salt: str | None = None) -> None:
    """Require API keys: one for all models, one for a model that the fleet does not serve."""
    names = HeaderNames(b"x-tenant", b"x-priority", b"x-slo")
    trusted = Trusted((), "--trust-headers-from")
    authenticator = Authenticator(
        clock=lambda: 0.0, names=names, trusted=trusted, salt_of=lambda tenant: salt
    )
    records = [
        format_key_record(key, bytes(16), name, [name] if name == "tuned" else [])
        for name, key in KEYS.items()
    ]
    authenticator.set_ring(parse_key_file("\n".join(records), "keys", lambda tenant, groups: salt))
    epp.door.api = Api(epp.dispatch, epp.router.fleet, epp.metrics, authenticator=authenticator)


def bearer(name: str) -> Header:
    return b"authorization", b"Bearer " + KEYS[name]


@pytest.mark.parametrize("upgrade", [None, b"foo", b"websocket", b"WebSocket", b"h2c"])
def test_an_upgrade_header_is_no_way_around_keys_and_models(epp: Epp, upgrade: bytes | None) -> None:
    authenticated(epp)
    more: list[Header] = [(b"upgrade", upgrade), (b"connection", b"upgrade")] if upgrade else []
    refused: list[tuple[list[Header], int]] = [([], 401), ([bearer("tuned")], 501 if upgrade else 403)]
    if upgrade:
        refused.append(([bearer("all")], 501))  # no such route takes an upgrade
    for shown, status in refused:
        picker, stream = epp.stream()
        picker.message(request_headers([*POST, *more, *shown]))
        if not upgrade:  # an upgrade is decided by its headers alone
            picker.message(request_body(BODY, is_end=True))
        assert refusal(stream.take())[0] == status and epp.is_free
    if not upgrade:
        picker, stream = epp.stream()
        picker.message(request_headers([*POST, bearer("all")]))
        picker.message(request_body(BODY, is_end=True))
        assert destination(stream.take()[0]) in (W1, W2)


@pytest.mark.parametrize(
    ("shown", "salt", "status"),
    [
        ([], None, 401),
        ([(b"authorization", b"Bearer x")], None, 401),
        ([bearer("tuned")], None, 501),
        ([bearer("all")], "s", 501),
    ],
)
def test_what_passes_unread_passes_only_for_keys_without_limits(
    epp: Epp, shown: list[Header], salt: str | None, status: int
) -> None:
    """A request with a body that Envoy does not show."""
    authenticated(epp, salt=salt)
    for message in (
        request_headers([*POST, *shown], modes=(BodyMode.NONE, BodyMode.NONE)),
        request_headers([*POST, *shown], modes=(BodyMode.STREAMED, BodyMode.NONE)),
    ):
        picker, stream = epp.stream()
        picker.message(message)
        assert refusal(stream.take())[0] == status and epp.is_free


def test_what_passes_unread_passes_for_a_key_without_limits(epp: Epp) -> None:
    authenticated(epp)
    picker, stream = epp.stream()
    picker.message(request_headers([*OFFER, bearer("all")]))
    assert destination(stream.take()[0]) in (W1, W2)
    picker, stream = epp.stream()
    picker.message(request_headers([*POST, bearer("all")], modes=(BodyMode.NONE, BodyMode.NONE)))
    (head,) = stream.take()
    assert head.HasField("request_headers") and not head.HasField("immediate_response")


def test_a_websocket_keeps_its_offer_and_nothing_that_steers_an_engine(epp: Epp) -> None:
    authenticated(epp)
    offer = [(b"connection", b"Upgrade"), (b"sec-websocket-key", b"a"), (b"sec-websocket-version", b"13")]
    steering = [(b"x-data-parallel-rank", b"5"), (b"x-gateway-destination-endpoint", b"10.6.6.6:1")]
    picker, stream = epp.stream()
    picker.message(request_headers([*OFFER, *offer, *steering, bearer("all"), (b"x-mine", b"1")]))
    pick, *_ = stream.take()
    assert destination(pick) in (W1, W2)
    mutation = pick.request_headers.response.header_mutation
    assert set(mutation.remove_headers) == {"authorization", "x-data-parallel-rank"}
    assert {each.header.key for each in mutation.set_headers} <= {DESTINATION, "x-request-id"}


def test_only_the_realtime_route_is_a_websocket(epp: Epp) -> None:
    picker, stream = epp.stream()
    picker.message(request_headers([OFFER[0], (b":path", b"/v1/chat/completions"), OFFER[2]]))
    assert refusal(stream.take())[0] == 501 and epp.is_free


def test_a_clients_own_destination_and_control_headers_are_removed(epp: Epp) -> None:
    spoofed: list[Header] = [
        *POST,
        (b"x-gateway-destination-endpoint", b"10.6.6.6:1"),
        (b"x-gateway-destination-endpoint-subset", b"10.6.6.6:1"),
        (b"x-gateway-destination-endpoint-served", b"10.6.6.6:1"),
        (b"x-llm-d-slo-ttft-ms", b"5"),
        (b"x-data-parallel-rank", b"5"),
        (b"accept-encoding", b"gzip"),
    ]
    _, stream = epp.picked(headers=spoofed)
    (head, *_) = stream.take()
    assert destination(head) == W1
    removed = head.request_headers.response.header_mutation.remove_headers
    assert {
        "x-gateway-destination-endpoint-subset",
        "x-gateway-destination-endpoint-served",
        "x-llm-d-slo-ttft-ms",
        "x-data-parallel-rank",
        "accept-encoding",
    } <= set(removed)
    assert "content-type" not in removed and not [name for name in removed if name[:1] == ":"]
    assert epp.door.counts["spoofed_header"] == 3 and epp.door.counts["untrusted_header"] == 1


GARBAGE = b"\xff\xff\xff\xff"
HEAD, DATA, LAST = request_headers(), request_body(BODY), request_body(b"", is_end=True)


@pytest.mark.parametrize(
    "order",
    [
        [DATA],
        [trailers()],
        [response_headers()],
        [response_body(b"x")],
        [b""],
        [GARBAGE],
        [HEAD, HEAD],
        [HEAD, GARBAGE],
        [HEAD, b""],
        [HEAD, DATA, response_body(b"x")],
        [HEAD, DATA, LAST, HEAD],
        [HEAD, DATA, LAST, DATA],
        [HEAD, DATA, LAST, trailers()],
        [HEAD, DATA, LAST, response_body(b"x")],
        [HEAD, DATA, LAST, response_headers(), response_headers()],
        [HEAD, DATA, LAST, response_headers(), response_body(b"", is_end=True), response_body(b"x")],
    ],
)
def test_a_wrong_order_ends_the_stream_and_leaves_no_booking(epp: Epp, order: list[bytes]) -> None:
    picker, stream = epp.stream()
    for message in order:
        picker.message(message)
    assert stream.finished is not None and stream.finished[0] == 3 and stream.finished[1]
    assert epp.is_free
    picker.message(HEAD)  # what comes behind it is dropped
    picker.half_closed()
    picker.aborted("reset")


def test_a_second_end_of_stream_is_dropped(epp: Epp) -> None:
    picker, stream = epp.picked()
    stream.take()
    picker.message(request_body(BODY, is_end=True))
    assert not stream.sent and stream.finished is None and epp.in_flight() == 1


@pytest.mark.parametrize("mode", [BodyMode.STREAMED, BodyMode.NONE])
def test_modes_that_hide_the_body_pass_without_a_pick(
    epp: Epp, mode: BodyMode, caplog: pytest.LogCaptureFixture
) -> None:
    picker, stream = epp.stream()
    picker.message(request_headers(modes=(mode, BodyMode.NONE)))
    (head,) = stream.take()
    assert head.HasField("request_headers") and not head.HasField("immediate_response")
    assert f"request_body_mode {mode}" in caplog.text
    if mode is BodyMode.STREAMED:
        picker.message(request_body(BODY, is_end=True))
        (body,) = stream.take()
        assert body.HasField("request_body")
    assert epp.is_free


@pytest.mark.parametrize("num_messages", range(5))
def test_a_client_that_leaves_at_any_stage_frees_all(epp: Epp, num_messages: int) -> None:
    epp.door.has_seen_answers = True
    for end in ("half_closed", "aborted"):
        picker, stream = epp.stream()
        for message in [HEAD, DATA, LAST, response_headers(), response_body(EVENT)][: num_messages + 1]:
            picker.message(message)
        picker.half_closed() if end == "half_closed" else picker.aborted("reset")
        assert epp.is_free
    assert epp.context.bodies.num_bytes == 0


def test_a_body_that_lost_its_room_is_refused_at_its_end(epp: Epp) -> None:
    picker, stream = epp.stream()
    for message in (HEAD, DATA):
        picker.message(message)
    picker._intake.lose()
    picker.message(LAST)
    (reply,) = stream.take()
    assert b"limit of request body memory" in reply.immediate_response.body
    assert epp.is_free and not epp.context.bodies.num_bytes


def test_the_booking_of_an_unseen_body_is_held_for_the_predicted_time(epp: Epp) -> None:
    picker, stream = epp.picked(modes=(DUPLEX, BodyMode.NONE))
    picker.message(response_headers())
    picker.half_closed()
    assert stream.finished == (0, "") and epp.in_flight() == 1 and len(epp.door.held) == 1
    for _ in range(12):
        epp.loop.advance(1.0)
    assert epp.is_free and epp.metrics.responses[200] == 1


def test_an_idle_timeout_is_for_answers_that_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    epp = Epp(monkeypatch, W1, idle_timeout_s=3.0)
    (member,) = epp.router.fleet
    member.reported = ReportedLoad(num_running=1)
    picker, _ = epp.picked(modes=(DUPLEX, BodyMode.NONE))
    picker.message(response_headers())
    picker.half_closed()
    for _ in range(9):
        epp.loop.advance(1.0)
    assert epp.in_flight() == 1 and not epp.suspected
    member.reported = ReportedLoad()
    epp.loop.advance(1.0)
    assert epp.is_free and not epp.suspected


def test_where_no_answers_are_shown_the_booking_is_held_too(epp: Epp) -> None:
    picker, _ = epp.picked(modes=(DUPLEX, BodyMode.NONE))
    picker.half_closed()
    assert epp.in_flight() == 1 and epp.door.counts["unseen_answer"] == 1
    for _ in range(12):
        epp.loop.advance(1.0)
    assert epp.is_free


def test_a_booking_moves_to_the_worker_that_served(epp: Epp) -> None:
    picker, stream = epp.picked()
    assert destination(stream.take()[0]) == W1
    picker.message(response_headers(served=W2))
    loads = {m.worker.id: epp.router.ledger.load(m.worker.id).num_in_flight for m in epp.router.fleet}
    assert loads == {W1: 0, W2: 1} and epp.door.counts["served_elsewhere"] == 1
    picker.message(response_body(DONE, is_end=True))
    assert epp.is_free
    assert len(stream.take()) == 2  # the answer's head and body; the pick is not sent again


def test_a_worker_that_serves_as_picked_keeps_its_booking(epp: Epp) -> None:
    picker, _ = epp.picked()
    picker.message(response_headers(served=W1))
    assert epp.in_flight() == 1 and not epp.door.counts["served_elsewhere"]


def test_a_refusal_of_the_worker_passes_and_marks_it_busy(epp: Epp) -> None:
    picker, stream = epp.picked()
    stream.take()
    picker.message(response_headers(503, [(b"content-type", b"text/plain")]))
    picker.message(response_body(b"no healthy upstream", is_end=True))
    _, body = stream.take()
    assert body.response_body.response.body_mutation.streamed_response.body == b"no healthy upstream"
    assert epp.is_free
    assert not epp.context.pools.num_reads(
        f"http://{W1}"
    )  # Envoy's own words are no sign of life of a worker


def test_a_redirect_of_the_worker_is_answered_with_502(epp: Epp) -> None:
    picker, stream = epp.picked()
    stream.take()
    picker.message(response_headers(307, [(b"location", b"http://10.0.0.9/v1/completions")]))
    status, headers, body = refusal(stream.take())
    assert status == 502 and "a redirect" in body["error"]["message"]
    assert "10.0.0.9" not in str(headers) + str(body) and epp.is_free


@pytest.mark.parametrize(
    ("status", "headers", "body", "busy_s"),
    [
        (529, [], b"", 1.0),
        (503, [(b"retry-after", b"2.5")], b"", 2.5),
        (503, [(b"retry-after", b"Fri, 31 Dec 9999 23:59:59 GMT")], b"", 10.0),
        (500, [], b'{"error":{"type":"overloaded_error"}}', 1.0),
    ],
)
def test_a_saturated_worker_is_known_in_each_form_and_is_not_charged(
    epp: Epp, status: int, headers: list[Header], body: bytes, busy_s: float
) -> None:
    busy: list[tuple[str, float]] = []
    charged: list[str] = []
    faults = RequestFaults(lambda worker, why, is_silent: charged.append(worker))
    epp.use(busy=lambda *what: busy.append(what), faults=faults)
    picker, stream = epp.picked()
    stream.take()
    picker.message(response_headers(status, headers))
    picker.message(response_body(body, is_end=True))
    assert busy == [(W1, busy_s)] and not charged
    assert epp.is_free


def test_a_large_body_goes_back_in_pieces(epp: Epp) -> None:
    epp.door.max_body_bytes = 1 << 20
    body = b'{"model":"m","prompt":"' + b"a " * 75_000 + b'"}'
    picker, stream = epp.stream()
    picker.message(request_headers())
    picker.message(request_body(body[:65536]))
    picker.message(request_body(body[65536:], is_end=True))
    _, *pieces = stream.take()
    assert echoed(pieces) == (body, [False, False, True])
    picker.aborted("reset")
    assert epp.is_free


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32-be"])
@pytest.mark.parametrize("charset", ["", "; charset=utf-16"])
def test_a_body_in_another_encoding_goes_on_in_utf_8(epp: Epp, encoding: str, charset: str) -> None:
    picker, stream = epp.stream()
    kind = (b"content-type", b"application/json" + charset.encode())
    picker.message(request_headers([*[each for each in POST if each[0] != b"content-type"], kind]))
    picker.message(request_body(BODY.decode().encode(encoding), is_end=True))
    head, *pieces = stream.take()
    assert echoed(pieces)[0] == BODY
    mutation = head.request_headers.response.header_mutation
    kinds = [each.header.raw_value for each in mutation.set_headers if each.header.key == "content-type"]
    assert kinds == ([b"application/json"] if charset else [])
    picker.aborted("reset")
    assert epp.is_free


def test_an_empty_fleet_is_answered_with_404_or_503(monkeypatch: pytest.MonkeyPatch) -> None:
    epp = Epp(monkeypatch)
    _, stream = epp.picked()
    assert refusal(stream.take())[0] in (404, 503) and epp.is_free


def test_a_first_worker_is_waited_for_until_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    epp = Epp(monkeypatch)
    epp.use(gate=gate_of(zero_config(zero_wait_s=60.0), epp.router, outlook=FakeOutlook()))
    _, late = epp.picked()
    epp.loop.advance(30.0)
    picker, stream = epp.picked()
    assert not late.take() and not stream.take(), "longer than any decision outside a queue"
    epp.loop.advance(30.1)
    status, headers, _ = refusal(late.take())
    assert (status, headers["retry-after"]) == (503, "60")
    epp.add_worker(W1)
    epp.loop.advance(LOOK_S)
    assert destination(stream.take()[0]) == W1
    picker.aborted("reset")
    assert epp.is_free


def test_saturation_is_answered_with_429_and_retry_after(monkeypatch: pytest.MonkeyPatch) -> None:
    epp = Epp(monkeypatch, W1, queue_above_in_flight=1, queue_max_requests=1)
    epp.picked()
    epp.picked()  # waits in the queue
    _, stream = epp.picked()
    status, headers, _ = refusal(stream.take())
    assert status == 429 and int(headers["retry-after"]) >= 1 and epp.in_flight() == 1


@pytest.mark.parametrize(
    "header", [(b"content-encoding", b"gzip"), (b"content-type", b"application/json; charset=utf-7")]
)
def test_a_body_that_is_to_be_read_in_another_way_gets_415(epp: Epp, header: Header) -> None:
    _, stream = epp.picked(headers=[*POST, header])
    assert refusal(stream.take())[0] == 415 and epp.is_free


def test_a_content_coding_of_identity_goes_no_further(epp: Epp) -> None:
    _, stream = epp.picked(headers=[*POST, (b"content-encoding", b"identity")])
    head = stream.take()[0].request_headers.response
    assert "content-encoding" in head.header_mutation.remove_headers
