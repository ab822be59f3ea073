"""Gateway with the decision service, in this process."""

from typing import Any

import pytest

from gateway.decide.decision import DecideDoor, OpenDecision
from gateway.decide.requests import asked_of
from gateway.proto.kvgate.v1 import decide_pb2 as pb
from gateway.proxy.api import Api
from tests.support.worlds.exchanges import BODY, ExchangeWorld

W1, W2, W3 = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"


class Decisions(ExchangeWorld):
    """A gateway with the decision service."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str, **options: Any) -> None:
        super().__init__(monkeypatch, *names, **options)
        api = Api(self.dispatch, self.router.fleet, self.metrics)
        self.door = DecideDoor(api, self.dispatch, max_body_bytes=1000, expires_s=60.0)

    def decide(self, **fields: Any) -> tuple[OpenDecision, list[pb.DecideReply]]:
        replies: list[pb.DecideReply] = []
        given = {"body": BODY} | fields
        asked = asked_of(pb.DecideRequest(**given).SerializeToString())
        made = OpenDecision(
            self.door, asked, lambda reply: replies.append(pb.DecideReply.FromString(reply)), set()
        )
        made.ask()
        return made, replies

    def decided(self, **fields: Any) -> pb.Decided:
        _, replies = self.decide(**fields)
        assert len(replies) == 1 and replies[0].HasField("decided"), replies
        return replies[0].decided

    def report(self, decision_id: str, **event: Any) -> int:
        return self.door.report(pb.ReportRequest(decision_id=decision_id, **event))

    def outcome(self) -> dict[str, Any]:
        """The outcome of the latest decision, as `kvgate why` shows it."""
        record = self.records.explain(self.records.recent(1)[0])
        assert record is not None
        outcome: dict[str, Any] = record["outcome"]
        return outcome

    @property
    def is_free(self) -> bool:
        return self.is_clean() and not self.context.bodies.num_bytes and not self.door.num_open
