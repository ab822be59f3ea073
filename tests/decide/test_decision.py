"""A decision through the whole gateway: messages in, replies and bookings out."""

from typing import Any

import msgspec
import pytest

from gateway.core.worker import WorkerId
from gateway.decide import decision as subject
from gateway.decide.decision import DECIDE_WITHIN_S, DecideDoor, OpenDecision
from gateway.decide.requests import asked_of
from gateway.decide.states import DecisionState
from gateway.discovery.request_faults import RequestFaults
from gateway.http.cross_origin import CrossOriginPolicy
from gateway.proto.kvgate.v1 import decide_pb2 as pb
from gateway.proxy.api import Api
from gateway.tenancy.admission.gate import gate_of
from gateway.tenancy.admission.queues import LOOK_S
from tests.support.worlds.decisions import W1, W2, W3, Decisions
from tests.support.worlds.disaggregated import DisaggregatedWorld
from tests.support.worlds.exchanges import BODY
from tests.support.worlds.gate import FakeOutlook, zero_config

APPLIED, REPEATED, UNKNOWN = pb.ReportReply.APPLIED, pb.ReportReply.REPEATED, pb.ReportReply.UNKNOWN
USAGE = pb.Usage(prompt_tokens=3, output_tokens=4, cached_tokens=2)


@pytest.fixture
def decisions(monkeypatch: pytest.MonkeyPatch) -> Decisions:
    return Decisions(monkeypatch, W1, W2)


def test_a_decision_books_its_worker_until_it_is_reported(decisions: Decisions) -> None:
    made = decisions.decided()
    assert (made.target.worker, made.target.address, made.target.url) == (W1, W1, f"http://{W1}")
    assert made.decision_id and made.reason and made.num_tokens == 3 and made.expires_s == 60.0
    assert not made.HasField("body") and not made.HasField("path") and not made.remove_headers
    assert decisions.in_flight() == 1 and decisions.door.num_open == 1
    assert decisions.report(made.decision_id, first_token=pb.FirstToken()) == APPLIED
    assert decisions.in_flight() == 1
    assert decisions.report(made.decision_id, finished=pb.Finished(usage=USAGE)) == APPLIED
    assert decisions.is_free


def test_a_booked_decision_keeps_few_headers(decisions: Decisions) -> None:
    """Callers may leave many thousands unreported."""
    fields = [pb.HttpField(name="x-long", value=b"v" * 500), pb.HttpField(name="x-request-id", value=b"id")]
    made = decisions.decided(headers=fields)
    (exchange,) = decisions.dispatch.exchanges
    assert exchange.http.headers == [(b"x-request-id", b"id")]
    decisions.report(made.decision_id, finished=pb.Finished(usage=USAGE))
    assert decisions.outcome()["status"] == 200 and decisions.is_free


def test_a_body_in_another_encoding_goes_on_in_utf_8(decisions: Decisions) -> None:
    """The caller sends it, so the reply has both changes."""
    text = '{"model":"m","prompt":"h\u00e9"}'
    fields = [pb.HttpField(name="Content-Type", value=b"application/json; charset=utf-16")]
    made = decisions.decided(body=text.encode("utf-16"), headers=fields)
    assert made.body == text.encode()
    assert {each.name: each.value for each in made.set_headers}["content-type"] == b"application/json"
    decisions.report(made.decision_id, finished=pb.Finished(usage=USAGE))
    assert decisions.is_free


def test_a_refusal_has_the_headers_for_pages_of_allowed_origins(decisions: Decisions) -> None:
    policy = CrossOriginPolicy(["https://a.example"])
    decisions.door.api = Api(
        decisions.dispatch, decisions.router.fleet, decisions.metrics, cross_origins=policy
    )
    fields = [pb.HttpField(name="Origin", value=b"https://a.example")]
    refused = decisions.decide(body=b"{", headers=fields)[1][0].rejected
    headers = {each.name: each.value for each in refused.headers}
    assert refused.status == 400 and headers["access-control-allow-origin"] == b"https://a.example"


@pytest.mark.parametrize("path", ["/v1/completions/", "//v1//completions"])
def test_a_path_in_another_form_is_changed_for_the_caller(decisions: Decisions, path: str) -> None:
    """A worker would answer the path as the caller has it with a redirect, or 404."""
    made = decisions.decided(path=path)
    assert made.path == "/v1/completions"
    decisions.report(made.decision_id, finished=pb.Finished(usage=USAGE))
    assert decisions.is_free


def test_headers_count_as_bodies(decisions: Decisions) -> None:
    decisions.context.bodies.max_bytes = 1000
    fields = [pb.HttpField(name="x-long", value=b"v" * 500)]
    first = decisions.decided(headers=fields)
    assert decisions.context.bodies.num_bytes == len(BODY) + len("/v1/completions") + 506
    decisions.decided(headers=fields)
    assert decisions.decide(headers=fields)[1][0].rejected.status == 503
    decisions.report(first.decision_id, first_token=pb.FirstToken())
    decisions.decided(headers=fields)


def test_token_ids_are_decided_as_a_body_is(decisions: Decisions) -> None:
    made = decisions.decided(body=b"", model="m", token_ids=[1, 2, 3])
    assert made.num_tokens == 3 and not made.HasField("body")


class EveryId(list[str]):
    def __contains__(self, decision_id: object) -> bool:
        return True


def test_a_body_of_token_ids_is_in_the_reply_where_it_differs(decisions: Decisions) -> None:
    decisions.use(to_report=EveryId())
    made = decisions.decided(body=b"", model="m", token_ids=[5, 6])
    fields = msgspec.json.decode(made.body)
    assert fields.pop("prompt") == [5, 6] and fields.pop("model") == "m" and fields
    decisions.report(made.decision_id, finished=pb.Finished(usage=USAGE))
    assert decisions.is_free


def test_all_bookings_wait_with_one_timer(decisions: Decisions) -> None:
    first = decisions.decided()
    decisions.loop.advance(10.0)
    second, third = decisions.decided(), decisions.decided()
    decisions.loop.advance(10.0)
    decisions.report(second.decision_id, first_token=pb.FirstToken())
    decisions.report(first.decision_id, failed=pb.Failed())
    decisions.loop.advance(50.1)
    assert decisions.door.counts["expired"] == 1 and decisions.in_flight() == 1
    assert decisions.report(third.decision_id, finished=pb.Finished()) == UNKNOWN
    decisions.loop.advance(10.0)
    assert decisions.door.counts["expired"] == 2 and decisions.is_free


def test_reports_feed_metrics_and_the_decision_log_as_an_answer_does(decisions: Decisions) -> None:
    made = decisions.decided()
    decisions.loop.advance(0.5)
    decisions.report(made.decision_id, first_token=pb.FirstToken())
    decisions.loop.advance(1.0)
    decisions.report(made.decision_id, finished=pb.Finished(usage=USAGE))
    worker = decisions.metrics.worker(WorkerId(W1))
    assert sum(worker.ttft_s.counts) == 1 and worker.num_answered == 1
    assert decisions.context.pools.num_reads(f"http://{W1}") == 2  # signs of life, beside probes
    assert decisions.outcome() == {
        "result": "ended",
        "status": 200,
        "ttft_s": 0.5,
        "reported_prompt_tokens": 3,
        "reported_cached_tokens": 2,
    }


def test_an_unstreamed_answer_has_usage_without_a_first_token(decisions: Decisions) -> None:
    made = decisions.decided()
    decisions.report(made.decision_id, finished=pb.Finished(usage=USAGE))
    assert decisions.outcome()["reported_cached_tokens"] == 2 and decisions.is_free


def test_an_impossible_usage_counts_for_nothing(decisions: Decisions) -> None:
    made = decisions.decided()
    wrong = pb.Usage(prompt_tokens=2, cached_tokens=3)
    assert decisions.report(made.decision_id, finished=pb.Finished(usage=wrong)) == APPLIED
    assert decisions.outcome()["reported_prompt_tokens"] is None
    assert decisions.metrics.worker(WorkerId(W1)).num_refused_usages == 1 and decisions.is_free


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
@pytest.mark.parametrize("has_begun", [False, True])
def test_a_workers_error_releases_the_booking(decisions: Decisions, status: int, has_begun: bool) -> None:
    made = decisions.decided()
    if has_begun:
        decisions.report(made.decision_id, first_token=pb.FirstToken())
    assert decisions.report(made.decision_id, finished=pb.Finished(status=status)) == APPLIED
    assert decisions.is_free and decisions.metrics.responses[200 if has_begun else status] == 1


@pytest.mark.parametrize(
    ("finished", "busy_s"),
    [
        (pb.Finished(status=429), 1.0),
        (pb.Finished(status=529), 1.0),
        (pb.Finished(status=503), None),
        (pb.Finished(status=503, retry_after="2.5"), 2.5),
        (pb.Finished(status=503, retry_after="Fri, 31 Dec 9999 23:59:59 GMT"), 10.0),
        (pb.Finished(status=503, error_body=b"The request queue is full."), 1.0),
        (pb.Finished(status=500, error_body=b'{"error":{"type":"overloaded_error"}}'), 1.0),
        (pb.Finished(status=500, error_body=b"traceback"), None),
    ],
)
def test_a_reported_refusal_is_judged_as_an_answer_is(
    decisions: Decisions, finished: pb.Finished, busy_s: float | None
) -> None:
    busy: list[tuple[str, float]] = []
    charged: list[str] = []
    faults = RequestFaults(lambda worker, why, is_silent: charged.append(worker))
    decisions.use(busy=lambda *what: busy.append(what), faults=faults)
    made = decisions.decided(exclude=[W2])
    assert decisions.report(made.decision_id, finished=finished) == APPLIED
    assert busy == ([] if busy_s is None else [(W1, busy_s)])
    assert charged == ([W1] if busy_s is None else []) and decisions.is_free


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_failed_worker_is_suspected_and_a_leaving_client_is_not_its_fault(
    decisions: Decisions, has_begun: bool
) -> None:
    for cause in (pb.Failed.WORKER, pb.Failed.CLIENT):
        made = decisions.decided(exclude=[W2])
        if has_begun:
            decisions.report(made.decision_id, first_token=pb.FirstToken())
        assert decisions.report(made.decision_id, failed=pb.Failed(cause=cause, reason="reset")) == APPLIED
        assert decisions.is_free
    ((worker, reason, is_refused),) = decisions.suspected
    assert worker == W1 and "reported: reset" in reason and not is_refused


def test_repeated_late_and_unknown_reports_change_nothing(decisions: Decisions) -> None:
    made = decisions.decided()
    first = {"first_token": pb.FirstToken()}
    assert [decisions.report(made.decision_id, **first) for _ in range(2)] == [APPLIED, REPEATED]
    assert decisions.report(made.decision_id) == REPEATED  # of a later version
    assert decisions.report(made.decision_id, finished=pb.Finished()) == APPLIED
    assert decisions.report(made.decision_id, finished=pb.Finished()) == UNKNOWN
    assert decisions.report("never made", finished=pb.Finished()) == UNKNOWN
    counts = decisions.door.counts
    assert (counts["report"], counts["repeated_report"], counts["unknown_report"]) == (2, 2, 2)
    assert decisions.is_free and decisions.metrics.responses[200] == 1


def test_a_booking_without_reports_expires(decisions: Decisions) -> None:
    made = decisions.decided()
    decisions.loop.advance(59.0)
    decisions.report(made.decision_id, first_token=pb.FirstToken())  # the time begins again
    decisions.loop.advance(59.0)
    assert decisions.in_flight() == 1
    decisions.loop.advance(2.0)
    assert decisions.is_free and decisions.door.counts["expired"] == 1
    assert decisions.report(made.decision_id, finished=pb.Finished()) == UNKNOWN


def test_a_long_answer_outlives_the_timeouts_of_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    decisions = Decisions(monkeypatch, W1, idle_timeout_s=5.0, first_byte_timeout_s=5.0, total_timeout_s=5.0)
    made = decisions.decided()
    decisions.loop.advance(50.0)
    assert decisions.report(made.decision_id, finished=pb.Finished()) == APPLIED and not decisions.suspected


def test_a_report_about_a_request_that_the_gateway_cut_comes_too_late(decisions: Decisions) -> None:
    for event in ({"first_token": pb.FirstToken()}, {"finished": pb.Finished()}, {"failed": pb.Failed()}):
        made = decisions.decided()
        decisions.dispatch.cut()
        assert decisions.report(made.decision_id, **event) == REPEATED and decisions.is_free


@pytest.mark.parametrize("status", [1, 101, 600, 4_000_000_000])
def test_a_status_that_is_none_counts_as_a_bad_gateway(decisions: Decisions, status: int) -> None:
    made = decisions.decided()
    decisions.report(made.decision_id, finished=pb.Finished(status=status))
    assert decisions.is_free and list(decisions.metrics.responses) == [502]


@pytest.mark.parametrize("is_trusted", [True, False])
def test_identity_headers_count_where_callers_set_them(
    monkeypatch: pytest.MonkeyPatch, is_trusted: bool
) -> None:
    decisions = Decisions(monkeypatch, W1, queue_above_in_flight=9)
    decisions.door.trusts_headers = is_trusted
    decisions.decided(headers=[pb.HttpField(name="x-kvgate-tenant", value=b"acme")])
    (exchange,) = decisions.dispatch.exchanges
    assert (exchange.request.tenant == "acme") is is_trusted


def test_a_caller_that_leaves_releases_its_booking(decisions: Decisions) -> None:
    made, _ = decisions.decide()
    made.left()
    made.left()
    assert decisions.is_free and decisions.door.counts["client_disconnected"] == 1


def test_the_end_of_the_service_releases_what_is_booked(decisions: Decisions) -> None:
    decisions.decided()
    decisions.decided()
    decisions.door.stop()
    assert decisions.is_free


def test_excluded_workers_are_left_out_and_fallbacks_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    decisions = Decisions(monkeypatch, W1, W2, W3)
    made = decisions.decided(exclude=[W1], num_fallbacks=5)
    assert {made.target.worker, *(each.worker for each in made.fallbacks)} == {W2, W3}
    assert decisions.in_flight() == 1


def test_a_limit_on_open_decisions_holds(decisions: Decisions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MAX_OPEN", 1)
    decisions.decided()
    _, (reply,) = decisions.decide()
    assert reply.rejected.status == 503 and decisions.door.num_open == 1


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"body": b"no json"}, 400, "invalid_request"),
        ({"body": b""}, 400, "invalid_request"),
        ({"body": b'{"model":"unknown","prompt":"a"}'}, 404, "model_not_found"),
        ({"path": "/v1/nothing"}, 404, "unknown_route"),
        ({"path": "no path"}, 400, "invalid_request"),
        ({"path": "/v1/realtime", "method": "GET"}, 426, "upgrade_required"),
        ({"body": b" " * 1001}, 413, "body_too_large"),
        ({"exclude": [W1, W2]}, 503, "no_worker"),
    ],
)
def test_refusals_are_those_of_the_proxy(
    decisions: Decisions, fields: dict[str, Any], status: int, code: str
) -> None:
    made, replies = decisions.decide(**fields)
    (reply,) = replies
    assert (reply.rejected.status, reply.rejected.code) == (status, code) and reply.rejected.message
    assert code.encode() in reply.rejected.body and made.state is DecisionState.ENDED and decisions.is_free


def test_routes_of_the_gateway_are_answered(decisions: Decisions) -> None:
    _, (reply,) = decisions.decide(path="/v1/models", method="GET", body=b"")
    assert reply.rejected.status == 200 and not reply.rejected.code and b'"m"' in reply.rejected.body


def test_a_saturated_fleet_is_waited_for_as_long_as_the_caller_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    decisions = Decisions(monkeypatch, W1, queue_above_in_flight=1, queue_max_requests=1)
    first = decisions.decided()
    waiting, replies = decisions.decide(max_queue_ms=2000)
    assert not replies and waiting.state is DecisionState.WAITING
    _, (full,) = decisions.decide()
    assert full.rejected.status == 429 and full.rejected.retry_after_s >= 1
    decisions.loop.advance(2.1)
    assert replies[0].HasField("queued") and replies[0].queued.retry_after_s > 0
    assert decisions.door.counts["queued"] == 1 and decisions.door.num_open == 1
    _, later = decisions.decide()
    decisions.report(first.decision_id, finished=pb.Finished())
    decisions.loop.advance(0.1)
    assert later[0].HasField("decided") and decisions.in_flight() == 1
    decisions.report(later[0].decided.decision_id, finished=pb.Finished())
    assert decisions.is_free


def test_a_first_worker_is_waited_for_as_long_as_the_caller_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    decisions = Decisions(monkeypatch)
    gate = gate_of(zero_config(), decisions.router, outlook=FakeOutlook())
    decisions.use(gate=gate)
    _, replies = decisions.decide(max_queue_ms=2000)
    assert gate is not None and not replies
    decisions.loop.advance(2.1)
    assert replies[0].queued.retry_after_s == 2.0, "as in Retry-After"
    _, later = decisions.decide()
    decisions.loop.advance(60.0)
    assert not later, "longer than any decision outside a queue"
    decisions.add_worker(W1)
    decisions.loop.advance(LOOK_S)
    assert later[0].decided.target.worker == W1
    decisions.report(later[0].decided.decision_id, finished=pb.Finished())
    _, (unknown,) = decisions.decide(body=b'{"model":"other","prompt":[1]}')
    assert unknown.rejected.status == 404 and decisions.is_free


def test_a_caller_that_leaves_the_queue_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    decisions = Decisions(monkeypatch, W1, queue_above_in_flight=1)
    first = decisions.decided()
    waiting, replies = decisions.decide()
    waiting.left()
    decisions.report(first.decision_id, finished=pb.Finished())
    decisions.loop.advance(1.0)
    assert not replies and decisions.is_free


def test_a_decision_that_takes_too_long_is_refused(decisions: Decisions) -> None:
    class Stalled:
        def client_gone(self) -> None:
            stalled.append("gone")

    stalled: list[str] = []
    decisions.door.api.handle = lambda *_: Stalled()  # type: ignore[assignment,method-assign,return-value]
    made, replies = decisions.decide()
    decisions.loop.advance(DECIDE_WITHIN_S + 0.1)
    assert replies[0].rejected.status == 503 and stalled == ["gone"]
    assert made.state is DecisionState.ENDED


def test_a_prefill_worker_is_named_where_the_caller_asks_both(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = DisaggregatedWorld(monkeypatch, "p:1", "d:1")
    api = Api(pairs.dispatch, pairs.router.fleet, pairs.metrics)
    door = DecideDoor(api, pairs.dispatch, max_body_bytes=1000, expires_s=60.0)
    for with_prefill in (True, False):
        replies: list[bytes] = []
        asked = asked_of(pb.DecideRequest(body=BODY, with_prefill=with_prefill).SerializeToString())
        OpenDecision(door, asked, replies.append, set()).ask()
        made = pb.DecideReply.FromString(replies[0]).decided
        assert made.target.worker == "d:1" and made.prefill.worker == ("p:1" if with_prefill else "")
        assert (pairs.load("p:1"), pairs.load("d:1")) == (int(with_prefill), 1)
        door.report(pb.ReportRequest(decision_id=made.decision_id, first_token=pb.FirstToken()))
        assert (pairs.load("p:1"), pairs.load("d:1")) == (0, 1)
        door.report(pb.ReportRequest(decision_id=made.decision_id, finished=pb.Finished()))
        assert pairs.is_clean()
