"""Client of the decision service: a closed loop over one raw HTTP/2 connection, with the headers of grpcio.

`python -m loadtest.decide_client PORT PID METHOD NUM_WARM NUM` makes decisions of 256 token ids, each with a
report of its end, by `unary` calls or in a `session`, and prints the CPU-us of process PID for one of them.
"""

import socket
import sys
import time
from collections.abc import Iterator

from hpack import Encoder

from gateway.decide.services import DECIDE, REPORT, SESSION
from gateway.proto.kvgate.v1 import decide_pb2 as pb
from gateway.server.http2 import frames
from loadtest.instruments import BenchError
from loadtest.workloads.token_prompts import MODEL, NUM_OPEN, NUM_TOKENS, prompts

WINDOW = 1 << 30
TIMEOUT_S = 120.0
FINISHED = pb.Finished(usage=pb.Usage(prompt_tokens=NUM_TOKENS, output_tokens=16, cached_tokens=0))
HEADERS = [
    (":authority", "127.0.0.1"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
    ("user-agent", "grpc-python/1.76.0 grpc-c/51.0.0 (linux; chttp2)"),
    ("grpc-accept-encoding", "identity, deflate, gzip"),
]


class RawConnection:
    """Connection of a client that announces large windows, and answers SETTINGS and PING."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self._encoder = Encoder()
        self._next_id = 1
        self._data = b""
        self._out = [frames.PREFACE, frames.settings([(4, WINDOW)]), frames.window_update(0, WINDOW)]

    def open(self, path: bytes) -> int:
        """Begin a call; returns its stream."""
        stream, self._next_id = self._next_id, self._next_id + 2
        pseudo = [(":method", "POST"), (":scheme", "http"), (":path", path.decode())]
        block = self._encoder.encode([*pseudo, *HEADERS])
        self._out.append(frames.frame(frames.HEADERS, frames.END_HEADERS, stream, block))
        return stream

    def send(self, stream: int, message: bytes, *, is_end: bool) -> None:
        data = b"\0" + len(message).to_bytes(4, "big") + message
        self._out.append(frames.frame(frames.DATA, int(is_end), stream, data))

    def received(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Send what waits, and wait for frames: kind, flags, stream and payload. Raises BenchError."""
        self._socket.sendall(b"".join(self._out))
        self._out.clear()
        self._data += (more := self._socket.recv(1 << 18))
        if not more:
            raise BenchError("the decision service closed the connection")
        while len(self._data) >= frames.HEADER_BYTES:
            end = frames.HEADER_BYTES + int.from_bytes(self._data[:3], "big")
            if len(self._data) < end:
                break
            kind, flags, stream = self._data[3], self._data[4], frames.number(self._data, 5)
            payload, self._data = self._data[frames.HEADER_BYTES : end], self._data[end:]
            if kind == frames.SETTINGS and not flags & frames.ACK:
                self._out.append(frames.frame(frames.SETTINGS, frames.ACK, 0, b""))
            elif kind == frames.PING and not flags & frames.ACK:
                self._out.append(frames.ping(payload, is_ack=True))
            elif kind in (frames.RST_STREAM, frames.GOAWAY):
                raise BenchError(f"the decision service ended the call: {payload!r}")
            yield kind, flags, stream, payload

    def close(self) -> None:
        self._socket.close()


class UnaryCalls:
    """Decide and Report, each a stream."""

    def __init__(self, connection: RawConnection) -> None:
        self._connection = connection
        self._open: dict[int, tuple[type, bytearray]] = {}

    def decide(self, message: pb.DecideRequest) -> None:
        self._call(DECIDE, message, pb.DecideReply)

    def report(self, message: pb.ReportRequest) -> None:
        self._call(REPORT, message, pb.ReportReply)

    def _call(self, path: bytes, message: pb.DecideRequest | pb.ReportRequest, reply: type) -> None:
        stream = self._connection.open(path)
        self._connection.send(stream, message.SerializeToString(), is_end=True)
        self._open[stream] = reply, bytearray()

    def replies(self) -> Iterator[pb.DecideReply | pb.ReportReply]:
        for kind, flags, stream, payload in self._connection.received():
            if kind == frames.DATA:
                self._open[stream][1].extend(payload)
            if stream and kind in (frames.DATA, frames.HEADERS) and flags & frames.END_STREAM:
                reply, data = self._open.pop(stream)
                if not data:
                    raise BenchError("a call ended without its reply")
                yield reply.FromString(bytes(data[5:]))  # type: ignore[attr-defined]


class SessionCalls:
    """Decisions and reports of one stream."""

    def __init__(self, connection: RawConnection) -> None:
        self._connection = connection
        self._stream = connection.open(SESSION)
        self._data = b""

    def decide(self, message: pb.DecideRequest) -> None:
        self._send(pb.SessionRequest(tag=1, decide=message))

    def report(self, message: pb.ReportRequest) -> None:
        self._send(pb.SessionRequest(tag=2, report=message))

    def _send(self, message: pb.SessionRequest) -> None:
        self._connection.send(self._stream, message.SerializeToString(), is_end=False)

    def replies(self) -> Iterator[pb.DecideReply | pb.ReportReply]:
        for kind, _, stream, payload in self._connection.received():
            if kind != frames.DATA or stream != self._stream:
                continue
            self._data += payload
            while len(self._data) >= 5 and len(self._data) >= (end := 5 + frames.number(self._data, 1)):
                reply, self._data = pb.SessionReply.FromString(self._data[5:end]), self._data[end:]
                yield reply.decide if reply.HasField("decide") else reply.report


METHODS = {"unary": UnaryCalls, "session": SessionCalls}


def run(calls: UnaryCalls | SessionCalls, asked: Iterator[list[int]], num: int) -> None:
    """Make `num` decisions, and report the end of each. Raises BenchError where one is rejected."""
    num_left = num - min(num, NUM_OPEN)
    for _ in range(num - num_left):
        calls.decide(pb.DecideRequest(model=MODEL, token_ids=next(asked)))
    num_done = 0
    while num_done < num:
        for reply in calls.replies():
            if isinstance(reply, pb.DecideReply):
                if not reply.HasField("decided"):
                    raise BenchError(f"a decision was rejected: {reply}")
                report = pb.ReportRequest(decision_id=reply.decided.decision_id, finished=FINISHED)
                calls.report(report)
                continue
            num_done += 1
            if num_left:
                num_left -= 1
                calls.decide(pb.DecideRequest(model=MODEL, token_ids=next(asked)))


def cpu_s(pid: int) -> float:
    """CPU time of a process, of all its threads."""
    return time.clock_gettime(~pid << 3 | 2)


def main(argv: list[str]) -> int:
    port, pid, method, num_warm, num = argv
    connection, asked = RawConnection(int(port)), prompts()
    calls = METHODS[method](connection)
    run(calls, asked, int(num_warm))
    before = cpu_s(int(pid))
    run(calls, asked, int(num))
    print((cpu_s(int(pid)) - before) / int(num) * 1e6)
    connection.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
