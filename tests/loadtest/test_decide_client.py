"""The benchmark's client of the decision service, at our gRPC server with a service that counts."""

import asyncio
from collections.abc import Iterator

import pytest

from gateway.decide.services import DECIDE, REPORT, SESSION
from gateway.epp.stream import GrpcStream, Services, unary
from gateway.proto.kvgate.v1 import decide_pb2 as pb
from gateway.server.http2.server import GrpcServer
from loadtest.decide_client import METHODS, RawConnection, run
from loadtest.instruments import BenchError


class CountedDecisions:
    """Service that decides prompts of one token, and rejects all others."""

    def __init__(self) -> None:
        self.open: set[str] = set()
        self.num_reported = 0

    def services(self) -> Services:
        return {
            DECIDE: unary(lambda data: (0, self._decide(pb.DecideRequest.FromString(data)))),
            REPORT: unary(lambda data: (0, self._report(pb.ReportRequest.FromString(data)))),
            SESSION: lambda stream: CountedSession(self, stream),
        }

    def _decide(self, asked: pb.DecideRequest) -> bytes:
        return bytes(self.decided(asked).SerializeToString())

    def _report(self, report: pb.ReportRequest) -> bytes:
        return bytes(self.reported(report).SerializeToString())

    def decided(self, asked: pb.DecideRequest) -> pb.DecideReply:
        if len(asked.token_ids) != 1:
            return pb.DecideReply(rejected=pb.Rejected(status=400))
        name = str(asked.token_ids[0])
        self.open.add(name)
        return pb.DecideReply(decided=pb.Decided(decision_id=name))

    def reported(self, report: pb.ReportRequest) -> pb.ReportReply:
        self.open.remove(report.decision_id)
        self.num_reported += 1
        return pb.ReportReply()


class CountedSession:
    def __init__(self, decisions: CountedDecisions, stream: GrpcStream) -> None:
        self._decisions, self._stream = decisions, stream

    def message(self, message: bytes) -> None:
        asked = pb.SessionRequest.FromString(message)
        if asked.HasField("decide"):
            reply = pb.SessionReply(decide=self._decisions.decided(asked.decide))
        else:
            reply = pb.SessionReply(report=self._decisions.reported(asked.report))
        self._stream.send(reply.SerializeToString())

    def half_closed(self) -> None: ...
    def aborted(self, why: str) -> None: ...


def asked() -> Iterator[list[int]]:
    return iter([[number] for number in range(1, 21)])


@pytest.mark.parametrize("method", METHODS)
async def test_each_decision_is_reported(method: str) -> None:
    decisions = CountedDecisions()
    server = GrpcServer(decisions.services())
    connection = await asyncio.to_thread(RawConnection, server.start("127.0.0.1", 0, "epp_port"))
    try:
        calls = METHODS[method](connection)
        await asyncio.to_thread(run, calls, asked(), 20)
        assert decisions.num_reported == 20 and not decisions.open
        with pytest.raises(BenchError, match="rejected"):
            await asyncio.to_thread(run, calls, iter([[1, 2]]), 1)
    finally:
        connection.close()
        await server.stop(0)
