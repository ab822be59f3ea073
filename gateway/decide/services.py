"""The methods of the decision service as handlers of gRPC streams: Decide and Report with one message each
way, Session with many."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from gateway.core.errors import FAILED, GatewayError
from gateway.decide import replies
from gateway.decide.decision import DecideDoor, OpenDecision
from gateway.decide.requests import AskedDecision, asked_of, report_of, session_request_of
from gateway.epp.stream import GrpcStream
from gateway.proto.kvgate.v1 import decide_pb2 as pb

log = logging.getLogger("kvgate.decide")

DECIDE: Final = b"/kvgate.v1.Decisions/Decide"
REPORT: Final = b"/kvgate.v1.Decisions/Report"
SESSION: Final = b"/kvgate.v1.Decisions/Session"

OK: Final = 0
INVALID_ARGUMENT: Final = 3
INTERNAL: Final = 13
"""gRPC statuses."""


class DecisionStream:
    """A stream's state and its end; each method takes messages in its own way."""

    __slots__ = ("_door", "_stream", "_is_over", "_open")

    def __init__(self, door: DecideDoor, stream: GrpcStream) -> None:
        self._door, self._stream = door, stream
        self._is_over = False
        self._open: set[OpenDecision] = set()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self._open)} open, over={self._is_over})"

    def message(self, message: bytes) -> None:
        if self._is_over:
            return
        try:
            self._take(message)
        except GatewayError as error:
            self._door.counts["malformed"] += 1
            self._end(INVALID_ARGUMENT, error.message)
        except Exception:  # noqa: BLE001  a bug in one stream must not take the connection's others down
            log.exception("decide: stream failed")
            self._end(INTERNAL, FAILED)

    def half_closed(self) -> None:
        if not self._is_over and not self._open:
            self._end(INVALID_ARGUMENT, "the method accepts one message per call")

    def aborted(self, why: str) -> None:
        if not self._is_over:
            self._is_over = True
            self._release()

    def _take(self, message: bytes) -> None:
        raise NotImplementedError

    def _ask(self, asked: AskedDecision, answer: Callable[[bytes], None]) -> None:
        OpenDecision(self._door, asked, answer, self._open).ask()

    def _report(self, report: pb.ReportRequest, answer: Callable[[int], None]) -> None:
        """Apply a report here, or where its decision is."""
        door = self._door
        if door.relay is None or report.decision_id in door.booked:
            return answer(door.report(report))
        return door.relay.ask(report.SerializeToString(), partial(self._relayed, report, answer))

    def _relayed(self, report: pb.ReportRequest, answer: Callable[[int], None], result: int | None) -> None:
        answer(self._door.report(report) if result is None else result)

    def _end(self, status: int, text: str = "") -> None:
        self._is_over = True
        if status != OK:
            self._release()
        self._stream.finish(status, text)

    def _release(self) -> None:
        for each in list(self._open):
            each.left()


class DecideCall(DecisionStream):
    """Decide: one request, one reply; the booking outlives the call."""

    __slots__ = ()

    def _take(self, message: bytes) -> None:
        if self._open:
            raise GatewayError("the method accepts one message per call")
        self._ask(asked_of(message), self._answer)

    def _answer(self, reply: bytes) -> None:
        if not self._is_over:
            self._stream.send(reply)
            self._end(OK)


class ReportCall(DecisionStream):
    """Report: one report, one reply."""

    __slots__ = ("_is_asked",)

    def __init__(self, door: DecideDoor, stream: GrpcStream) -> None:
        super().__init__(door, stream)
        self._is_asked = False

    def half_closed(self) -> None:
        if not self._is_asked:
            super().half_closed()

    def _take(self, message: bytes) -> None:
        if self._is_asked:
            raise GatewayError("the method accepts one message per call")
        report = report_of(message)
        self._is_asked = True
        self._report(report, self._answer)

    def _answer(self, result: int) -> None:
        if not self._is_over:
            self._stream.send(replies.reported(result))
            self._end(OK)


class SessionCall(DecisionStream):
    """Session: replies in the order in which they are known, each with the tag of its request. The end of the
    stream, on either side, releases all that it asked for."""

    __slots__ = ()

    def half_closed(self) -> None:
        if not self._is_over:
            self._release()
            self._end(OK)

    def _take(self, message: bytes) -> None:
        request, asked = session_request_of(message)
        if asked is not None:
            self._ask(asked, partial(self._answer, request.tag))
        elif request.WhichOneof("request"):
            self._report(request.report, partial(self._reported, request.tag))
        else:
            raise GatewayError("the message has no request of a known kind")

    def _reported(self, tag: int, result: int) -> None:
        if not self._is_over:
            reply = replies.reported(result)
            self._stream.send(replies.in_session(tag, reply, is_report=True))

    def _answer(self, tag: int, reply: bytes) -> None:
        if not self._is_over:
            self._stream.send(replies.in_session(tag, reply, is_report=False))


def services_of(door: DecideDoor) -> Mapping[bytes, Callable[[GrpcStream], DecisionStream]]:
    """The service's methods by path."""
    return {
        DECIDE: partial(DecideCall, door),
        REPORT: partial(ReportCall, door),
        SESSION: partial(SessionCall, door),
    }
