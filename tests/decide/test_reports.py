"""Which event a report is about; test_decision.py applies reports to exchanges."""

import pytest

from gateway.decide.reports import event_of
from gateway.decide.states import DecisionEvent
from gateway.proto.kvgate.v1 import decide_pb2 as pb


@pytest.mark.parametrize(
    ("report", "event"),
    [
        (pb.ReportRequest(first_token=pb.FirstToken()), DecisionEvent.FIRST_TOKEN),
        (pb.ReportRequest(finished=pb.Finished()), DecisionEvent.FINISHED),
        (pb.ReportRequest(failed=pb.Failed()), DecisionEvent.FAILED),
        (pb.ReportRequest(decision_id="d"), None),
    ],
)
def test_each_report_has_its_event(report: pb.ReportRequest, event: DecisionEvent | None) -> None:
    assert event_of(report) is event
