"""The methods of the decision service as handlers of gRPC streams: Decide and Report with one message each
way, Session with many."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from gateway.core.errors import FAILED, GatewayError
from gateway.decide.decision import DecideDoor, OpenDecision
from gateway.decide.message_bounds import check_bounds
from gateway.decide.requests import decoded
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

    def _ask(self, message: pb.DecideRequest, answer: Callable[[pb.DecideReply], None]) -> None:
        OpenDecision(self._door, message, answer, self._open).ask()

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
        check_bounds(message, pb.DecideRequest)
        asked: Any = decoded(pb.DecideRequest, message)
        self._ask(asked, self._answer)

    def _answer(self, reply: pb.DecideReply) -> None:
        if not self._is_over:
            self._stream.send(reply.SerializeToString())
            self._end(OK)


class ReportCall(DecisionStream):
    """Report: one report, one reply."""

    __slots__ = ()

    def _take(self, message: bytes) -> None:
        check_bounds(message, pb.ReportRequest)
        report: Any = decoded(pb.ReportRequest, message)
        self._stream.send(self._door.report(report).SerializeToString())
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
        check_bounds(message, pb.SessionRequest)
        asked: Any = decoded(pb.SessionRequest, message)
        which = asked.WhichOneof("request")
        if which == "decide":
            self._ask(asked.decide, partial(self._answer, asked.tag))
        elif which == "report":
            reply = pb.SessionReply(tag=asked.tag, report=self._door.report(asked.report))
            self._stream.send(reply.SerializeToString())
        else:
            raise GatewayError("the message has no request of a known kind")

    def _answer(self, tag: int, reply: pb.DecideReply) -> None:
        if not self._is_over:
            self._stream.send(pb.SessionReply(tag=tag, decide=reply).SerializeToString())


def services_of(door: DecideDoor) -> Mapping[bytes, Callable[[GrpcStream], DecisionStream]]:
    """The service's methods by path."""
    return {
        DECIDE: partial(DecideCall, door),
        REPORT: partial(ReportCall, door),
        SESSION: partial(SessionCall, door),
    }
