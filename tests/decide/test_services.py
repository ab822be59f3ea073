"""The service's methods on streams: bytes in, bytes out, statuses, and bookings where streams end."""

import pytest

from gateway.decide.services import DECIDE, REPORT, SESSION, DecisionStream, services_of
from gateway.proto.kvgate.v1 import decide_pb2 as pb
from tests.support.ext_proc import FakeStream
from tests.support.worlds.decisions import W1, Decisions
from tests.support.worlds.exchanges import BODY

ASKED = pb.DecideRequest(body=BODY)
GARBAGE = b"\xff\xff"


@pytest.fixture
def decisions(monkeypatch: pytest.MonkeyPatch) -> Decisions:
    return Decisions(monkeypatch, W1)


def opened(decisions: Decisions, method: bytes) -> tuple[DecisionStream, FakeStream]:
    stream = FakeStream()
    return services_of(decisions.door)[method](stream), stream


def session(tag: int, **given: object) -> bytes:
    return bytes(pb.SessionRequest(tag=tag, **given).SerializeToString())  # type: ignore[arg-type]


def replies(stream: FakeStream) -> list[pb.SessionReply]:
    taken = [pb.SessionReply.FromString(each) for each in stream.sent]
    stream.sent.clear()
    return taken


def test_decide_and_report_are_calls_with_one_message_each_way(decisions: Decisions) -> None:
    call, stream = opened(decisions, DECIDE)
    call.message(ASKED.SerializeToString())
    call.half_closed()
    call.aborted("the stream has ended")
    made = pb.DecideReply.FromString(stream.sent[0]).decided
    assert stream.finished == (0, "") and made.target.worker == W1 and decisions.in_flight() == 1
    report, stream = opened(decisions, REPORT)
    report.message(pb.ReportRequest(decision_id=made.decision_id, finished=pb.Finished()).SerializeToString())
    assert pb.ReportReply.FromString(stream.sent[0]).result == pb.ReportReply.APPLIED
    assert stream.finished == (0, "") and decisions.is_free


@pytest.mark.parametrize("method", [DECIDE, REPORT, SESSION])
def test_garbage_ends_the_stream_with_a_status(decisions: Decisions, method: bytes) -> None:
    call, stream = opened(decisions, method)
    call.message(GARBAGE)
    assert stream.finished is not None and stream.finished[0] == 3 and not stream.sent
    call.message(GARBAGE)  # what comes behind it is dropped
    call.half_closed()
    call.aborted("reset")
    assert decisions.is_free and decisions.door.counts["malformed"] == 1


@pytest.mark.parametrize("method", [DECIDE, REPORT])
def test_a_call_without_a_message_is_refused(decisions: Decisions, method: bytes) -> None:
    call, stream = opened(decisions, method)
    call.half_closed()
    assert stream.finished is not None and stream.finished[0] == 3


def test_a_caller_that_leaves_while_it_waits_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    decisions = Decisions(monkeypatch, W1, queue_above_in_flight=1)
    held = decisions.decided()
    call, stream = opened(decisions, DECIDE)
    call.message(ASKED.SerializeToString())
    call.half_closed()
    assert not stream.sent and stream.finished is None and decisions.door.num_waiting == 1
    call.aborted("reset")
    decisions.report(held.decision_id, finished=pb.Finished())
    decisions.loop.advance(1.0)
    assert decisions.is_free and not stream.sent


def test_a_second_message_to_decide_is_refused_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    decisions = Decisions(monkeypatch, W1, queue_above_in_flight=1)
    held = decisions.decided()
    call, stream = opened(decisions, DECIDE)
    call.message(ASKED.SerializeToString())
    call.message(ASKED.SerializeToString())
    assert stream.finished is not None and stream.finished[0] == 3
    decisions.report(held.decision_id, finished=pb.Finished())
    assert decisions.is_free


def test_a_session_carries_decisions_and_reports(decisions: Decisions) -> None:
    call, stream = opened(decisions, SESSION)
    call.message(session(7, decide=ASKED))
    call.message(session(8, decide=ASKED))
    first, second = replies(stream)
    assert (first.tag, second.tag) == (7, 8) and decisions.in_flight() == 2
    for made in (first, second):
        done = pb.ReportRequest(decision_id=made.decide.decided.decision_id, finished=pb.Finished())
        call.message(session(9, report=done))
    assert [each.report.result for each in replies(stream)] == [pb.ReportReply.APPLIED] * 2
    assert decisions.is_free
    call.half_closed()
    assert stream.finished == (0, "")


def test_a_message_without_a_request_ends_the_session_and_releases(decisions: Decisions) -> None:
    call, stream = opened(decisions, SESSION)
    call.message(session(1, decide=ASKED))
    call.message(session(2))
    assert stream.finished is not None and stream.finished[0] == 3 and decisions.is_free


@pytest.mark.parametrize("end", ["half_closed", "aborted"])
def test_the_end_of_a_session_releases_what_it_asked_for(decisions: Decisions, end: str) -> None:
    call, stream = opened(decisions, SESSION)
    call.message(session(1, decide=ASKED))
    call.message(session(2, decide=ASKED))
    assert decisions.in_flight() == 2
    call.half_closed() if end == "half_closed" else call.aborted("reset")
    assert decisions.is_free and decisions.door.counts["client_disconnected"] == 2
    assert stream.finished == ((0, "") if end == "half_closed" else None)


def test_a_bug_ends_its_own_stream_only(
    decisions: Decisions, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(report: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(type(decisions.door), "report", lambda door, report: broken(report))
    call, stream = opened(decisions, REPORT)
    call.message(b"")
    assert stream.finished is not None and stream.finished[0] == 13 and "a bug" in caplog.text
