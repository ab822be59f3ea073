"""A server's side of one HTTP/2 connection (RFC 9113), without I/O: bytes in, events and bytes out.

    state of a stream    received                        then
    idle                 HEADERS                         open, or half-closed with END_STREAM
                         PRIORITY                        idle
                         other frames                    connection error PROTOCOL_ERROR
    open                 DATA, WINDOW_UPDATE             open; half-closed with END_STREAM
                         HEADERS (trailers)              half-closed; without END_STREAM: PROTOCOL_ERROR
                         RST_STREAM                      closed
    half-closed          DATA, HEADERS                   stream error STREAM_CLOSED
                         (our trailers sent)             closed; open streams get RST_STREAM(NO_ERROR) too
    closed               DATA, HEADERS                   connection error STREAM_CLOSED;
                                                         ignored where we have reset the stream
                         RST_STREAM, WINDOW_UPDATE       ignored

Everything that a peer can repeat without use (PING, SETTINGS, empty DATA, unknown frames, resets, …) is paid
from a `Budget`; beyond it the connection ends with ENHANCE_YOUR_CALM. The peer gets window back for received
data at once, unless its output waits here: slow readers are not read from.

Draining has two phases: GOAWAY with the highest id and a PING, then, when the peer has answered and so has
read it, GOAWAY with the last stream; later streams are refused, which a client may send again.
"""

from typing import Final

from gateway.http.messages import Header
from gateway.server.http2 import frames
from gateway.server.http2.events import DataCame, Event, RequestBegan, StreamGone
from gateway.server.http2.frames import (
    ACK,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    MAX_STREAM_ID,
    PADDED,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    STREAM_CLOSED,
    Frame,
    FrameReader,
    Http2Error,
)
from gateway.server.http2.header_block import BlockIntake
from gateway.server.http2.header_decoder import HeaderDecoder
from gateway.server.http2.limits import (
    IDLE_BURST,
    IDLE_PER_S,
    RESET_BURST,
    RESETS_PER_S,
    Budget,
    Http2Limits,
)
from gateway.server.http2.peer_settings import apply_settings
from gateway.server.http2.request_head import StreamHead, trailers_fault
from gateway.server.http2.send_queue import DEFAULT_WINDOW, SendQueue
from gateway.server.http2.stream import Http2Stream

MAX_WINDOW: Final = 0x7FFFFFFF
DRAIN_PING: Final = b"kvgdrain"
SETTINGS_COST: Final = 10.0
"""A new initial window touches each stream."""


class Http2Connection:
    """State of one connection: `feed` gets received bytes, `advance` takes their next frame, which may bring
    an `event`, and `take` returns bytes to write."""

    # fmt: off
    __slots__ = (
        "limits", "streams", "fault", "event", "outgoing", "last_stream_id", "num_pings_answered", "_reader",
        "_decoder", "_gone", "_idle", "_resets", "_num_seen_frames", "_preface", "_has_settings", "_blocks",
        "_receive_window", "_num_unreported", "_now", "_final_id", "_is_draining",
    )
    # fmt: on

    def __init__(self, limits: Http2Limits, head: bytes) -> None:
        """Start before the preface; `head` is the header block before the data of each answer."""
        self.limits = limits
        self.streams: dict[int, Http2Stream] = {}
        self.fault: Http2Error | None = None
        self.event: Event | None = None
        self.outgoing = SendQueue(head, self._sent, self._has_room)
        self.last_stream_id = 0
        self.num_pings_answered = 0
        self._reader = FrameReader(limits.max_frame_bytes)
        self._decoder = HeaderDecoder(limits.max_header_bytes)
        self._gone: dict[int, bool] = {}  # streams closed of late; True: we have reset it
        self._idle = Budget(IDLE_BURST, IDLE_PER_S)
        self._resets = Budget(RESET_BURST, RESETS_PER_S)
        self._num_seen_frames = 0
        self._preface = b""
        self._has_settings = False
        self._blocks = BlockIntake(limits.max_header_bytes, limits.max_continuations)
        self._receive_window = limits.connection_window
        self._num_unreported = 0
        self._now = 0.0
        self._final_id = MAX_STREAM_ID
        self._is_draining = False
        self._begin()

    def __repr__(self) -> str:
        state = f"failed: {self.fault}" if self.fault else "draining" if self._is_draining else "open"
        return f"Http2Connection({state}, {len(self.streams)} streams, {self.outgoing})"

    def _begin(self) -> None:
        limits = self.limits
        announced = [(3, limits.max_streams), (4, limits.stream_window), (5, limits.max_frame_bytes)]
        self.outgoing.control(frames.settings([*announced, (6, limits.max_header_bytes)]))
        self.outgoing.control(frames.window_update(0, limits.connection_window - DEFAULT_WINDOW))

    # sending -----------------------------------------------------------------------------------

    def send(self, stream: Http2Stream, head: bytes, body: bytes) -> None:
        self.outgoing.send(stream, head, body)

    def end(self, stream: Http2Stream, trailers: bytes) -> None:
        """End a stream behind what it has sent."""
        self.outgoing.end(stream, trailers)

    def reset(self, stream: Http2Stream, code: int) -> None:
        if self.streams.get(stream.id) is stream:
            self._forget(stream, True)
            self.outgoing.control(frames.rst_stream(stream.id, code))

    def take(self) -> bytes:
        """Return bytes to be written now; empty once nothing can be sent."""
        return self.outgoing.take()

    def ping(self, data: bytes) -> None:
        """Ask the peer for a sign of life; `num_pings_answered` grows with its answer."""
        self.outgoing.control(frames.ping(data))

    def drain(self) -> None:
        """Announce that no new streams will be served; open ones end first."""
        if not self._is_draining and self.fault is None:
            self._is_draining = True
            self.outgoing.control(frames.goaway(MAX_STREAM_ID, frames.NO_ERROR))
            self.outgoing.control(frames.ping(DRAIN_PING))

    def finish_drain(self) -> None:
        """Refuse new streams from here on; called by the peer's answer, or when that takes too long."""
        if self._is_draining and self._final_id == MAX_STREAM_ID:
            self._final_id = self.last_stream_id
            self.outgoing.control(frames.goaway(self._final_id, frames.NO_ERROR))

    def close(self) -> None:
        """Let go of what refers to the connection: nothing is sent any more."""
        self.event = None
        self.outgoing.close()
        self.streams.clear()

    @property
    def is_over(self) -> bool:
        """True if the connection may be closed once its output is written."""
        is_drained = self._is_draining and self._final_id != MAX_STREAM_ID and not self.streams
        return self.fault is not None or is_drained

    def _sent(self, stream: Http2Stream) -> None:
        """Everything of a stream is sent."""
        is_remote_closed = stream.is_remote_closed
        stream.owner = None  # which refers to the stream
        self._forget(stream, not is_remote_closed)
        self._resets.earn(1.0)
        if not is_remote_closed:
            self.outgoing.control(frames.rst_stream(stream.id, frames.NO_ERROR))

    def _has_room(self, stream: Http2Stream) -> None:
        """A stream has sent some of its output: it may be read from again."""
        self._give_window(stream)
        self._give_connection_window()

    def _forget(self, stream: Http2Stream, is_reset: bool) -> None:
        stream.is_closed = True
        self.outgoing.drop(stream)
        self.streams.pop(stream.id, None)
        self._bury(stream.id, is_reset)

    def _bury(self, stream_id: int, is_reset: bool) -> None:
        gone = self._gone
        gone[stream_id] = is_reset
        if len(gone) > 2 * self.limits.max_streams:
            del gone[next(iter(gone))]

    # receiving ---------------------------------------------------------------------------------

    def feed(self, data: bytes, now: float) -> None:
        """Take received bytes."""
        if self.fault is not None:
            return
        self._now = now
        if len(self._preface) < len(frames.PREFACE):
            data = self._read_preface(data)
        self._reader.feed(data)

    def advance(self) -> bool:
        """Take the next frame, which may bring an `event`; False where none is whole, or behind an error."""
        self.event = None
        try:
            frame = self._reader.next()
            if frame is not None:
                self.event = self._take_frame(frame)
        except Http2Error as fault:
            return self._fail(fault)
        return frame is not None

    @property
    def has_bytes(self) -> bool:
        """Received bytes are left, of a frame that may be whole."""
        return self._reader.num_held > 0

    def _fail(self, fault: Http2Error) -> bool:
        """End the connection for an error of the peer; nothing more is read of it."""
        self.fault = fault
        self._reader.drop()
        self.outgoing.control(frames.goaway(self.last_stream_id, fault.code, fault.message))
        return False

    @property
    def first_bytes(self) -> bytes:
        """The peer's first bytes, up to a preface's length."""
        return self._preface

    def _read_preface(self, data: bytes) -> bytes:
        """Return what follows the preface; nothing where it is not one."""
        num_missing = len(frames.PREFACE) - len(self._preface)
        self._preface += data[:num_missing]
        if not frames.PREFACE.startswith(self._preface):
            self._fail(Http2Error(PROTOCOL_ERROR, "the first bytes are not an HTTP/2 preface"))
            return b""
        return data[num_missing:]

    def _take_frame(self, frame: Frame) -> Event | None:
        kind = frame.kind
        if not self._has_settings and (kind != frames.SETTINGS or frame.flags & ACK):
            raise Http2Error(PROTOCOL_ERROR, "the first frame is not SETTINGS")
        first = self._blocks.first
        if first is not None:
            if kind != frames.CONTINUATION or frame.stream_id != first.stream_id:
                raise Http2Error(PROTOCOL_ERROR, "a frame within a header block")
            return self._take_continuation(first, frame)
        if kind == frames.DATA:
            return self._take_data(frame)
        if kind == frames.HEADERS:
            return self._take_headers(frame)
        if kind == frames.RST_STREAM:
            return self._take_rst_stream(frame)
        if kind == frames.WINDOW_UPDATE:
            return self._take_window_update(frame)
        if kind == frames.PRIORITY:
            return self._take_priority(frame)
        if kind == frames.CONTINUATION or kind == frames.PUSH_PROMISE:
            raise Http2Error(PROTOCOL_ERROR, "CONTINUATION without HEADERS, or PUSH_PROMISE of a client")
        self._take_connection_frame(frame)
        return None

    def _take_connection_frame(self, frame: Frame) -> None:
        kind, size = frame.kind, len(frame.payload)
        if kind == frames.SETTINGS:
            self._take_settings(frame)
            return
        self._spend(1.0)
        if kind == frames.PING:
            self._check(frame.stream_id == 0, PROTOCOL_ERROR, "PING of a stream")
            self._check(size == 8, FRAME_SIZE_ERROR, "PING without 8 bytes")
            if not frame.flags & ACK:
                self._answer(frames.ping(frame.payload, is_ack=True))
                return
            self.num_pings_answered += 1
            if frame.payload == DRAIN_PING:
                self.finish_drain()
        elif kind == frames.GOAWAY:
            self._check(frame.stream_id == 0, PROTOCOL_ERROR, "GOAWAY of a stream")
            self._check(size >= 8, FRAME_SIZE_ERROR, "GOAWAY without 8 bytes")

    def _take_settings(self, frame: Frame) -> None:
        self._check(frame.stream_id == 0, PROTOCOL_ERROR, "SETTINGS of a stream")
        if frame.flags & ACK:
            self._check(not frame.payload, FRAME_SIZE_ERROR, "an acknowledgement with settings")
            self._spend(1.0)
            return
        self._spend(SETTINGS_COST)
        apply_settings(frame.payload, self.outgoing, self.streams)
        self._has_settings = True
        self._answer(frames.frame(frames.SETTINGS, ACK, 0, b""))

    def _answer(self, frame: bytes) -> None:
        """Send an answer that a peer can cause without end."""
        self.outgoing.control(frame)
        if self.outgoing.num_control > self.limits.max_control_bytes:
            raise Http2Error(ENHANCE_YOUR_CALM, "the client does not read answers to control frames")

    def _spend(self, amount: float) -> None:
        """Pay for a frame without use; frames that we sent pay for the peer's windows."""
        num_frames = self.outgoing.num_frames
        if num_frames != self._num_seen_frames:
            self._idle.earn(2.0 * (num_frames - self._num_seen_frames))
            self._num_seen_frames = num_frames
        if not self._idle.spend(amount, self._now):
            raise Http2Error(ENHANCE_YOUR_CALM, "too many frames without effect")

    def _check(self, is_good: bool, code: int, message: str) -> None:
        if not is_good:
            raise Http2Error(code, message)

    # streams -----------------------------------------------------------------------------------

    def _stream_fault(self, stream: Http2Stream, code: int, why: str) -> Event:
        """Reset a stream for a broken rule."""
        self._pay_reset()
        self.reset(stream, code)
        return StreamGone(stream, why)

    def _pay_reset(self) -> None:
        if not self._resets.spend(1.0, self._now):
            raise Http2Error(ENHANCE_YOUR_CALM, "too many streams are reset")

    def _check_known(self, frame: Frame) -> None:
        """A frame for no open stream: raises Http2Error for idle streams, else it is ignored."""
        stream_id = frame.stream_id
        if stream_id == 0 or stream_id > self.last_stream_id or stream_id % 2 == 0:
            raise Http2Error(PROTOCOL_ERROR, f"frame {frame.kind} for stream {stream_id}, which is idle")
        self._spend(1.0)

    def _check_reset(self, stream_id: int, code: int) -> None:
        """A frame that opens nothing, for a closed stream: raises Http2Error unless we have reset it."""
        is_reset = self._gone.get(stream_id)
        if is_reset is None:
            raise Http2Error(code, f"stream {stream_id} is closed")
        if not is_reset:
            raise Http2Error(STREAM_CLOSED, f"stream {stream_id} is closed")

    def _take_data(self, frame: Frame) -> Event | None:
        size = len(frame.payload)
        self._receive_window -= size
        self._num_unreported += size
        if self._receive_window < 0:
            raise Http2Error(FLOW_CONTROL_ERROR, "more data than the connection's window")
        event: Event | None = None
        stream = self.streams.get(frame.stream_id)
        if stream is None:
            self._check_known(frame)
            self._check_reset(frame.stream_id, STREAM_CLOSED)
        else:
            event = self._take_stream_data(stream, frame, size)
        self._give_connection_window()
        return event

    def _take_stream_data(self, stream: Http2Stream, frame: Frame, size: int) -> Event | None:
        if stream.is_remote_closed:
            return self._stream_fault(stream, STREAM_CLOSED, "data after the end of the stream")
        stream.receive_window -= size
        if stream.receive_window < 0:
            return self._stream_fault(stream, FLOW_CONTROL_ERROR, "more data than its window")
        data = frame.payload
        if frame.flags & PADDED:
            data = frames.without_padding(frame)
        is_end = frame.flags & END_STREAM != 0
        is_useful = len(data) > 0 or is_end
        if is_useful:
            self._idle.earn(1.0)
        else:
            self._spend(1.0)
        if stream.num_expected >= 0:
            stream.num_expected -= len(data)
            if stream.num_expected < 0 or (is_end and stream.num_expected):
                return self._stream_fault(stream, PROTOCOL_ERROR, "not its content-length")
        stream.num_unreported += size
        if is_end:
            stream.is_remote_closed = True
        else:
            self._give_window(stream)
        return DataCame(stream, data, is_end) if is_useful else None

    def _give_window(self, stream: Http2Stream) -> None:
        """Give a stream its window again once half of it is used, unless its output waits here."""
        stream.is_withheld = False
        if stream.num_unreported * 2 < self.limits.stream_window or stream.is_remote_closed:
            return
        if stream.num_outgoing > self.limits.slow_stream_bytes:
            stream.is_withheld = True
            return
        self.outgoing.control(frames.window_update(stream.id, stream.num_unreported))
        stream.receive_window += stream.num_unreported
        stream.num_unreported = 0

    def _give_connection_window(self) -> None:
        """Give the connection its window again, unless too much output waits here."""
        outgoing = self.outgoing
        outgoing.is_withheld = False
        if self._num_unreported * 2 < self.limits.connection_window:
            return
        if outgoing.num_waiting > self.limits.slow_connection_bytes:
            outgoing.is_withheld = True
            return
        outgoing.control(frames.window_update(0, self._num_unreported))
        self._receive_window += self._num_unreported
        self._num_unreported = 0

    def _take_rst_stream(self, frame: Frame) -> Event | None:
        self._check(len(frame.payload) == 4, FRAME_SIZE_ERROR, "RST_STREAM without 4 bytes")
        stream = self.streams.get(frame.stream_id)
        if stream is None:
            self._check_known(frame)
            return None
        if stream.has_head:
            self._spend(1.0)  # Envoy ends answered streams of ext_proc so
        else:
            self._pay_reset()
        self._forget(stream, False)
        return StreamGone(stream, f"reset by the client ({frames.number(frame.payload, 0)})")

    def _take_window_update(self, frame: Frame) -> Event | None:
        self._check(len(frame.payload) == 4, FRAME_SIZE_ERROR, "WINDOW_UPDATE without 4 bytes")
        self._spend(1.0)
        increment = frames.number(frame.payload, 0) & MAX_WINDOW
        if frame.stream_id == 0:
            self._check(increment > 0, PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
            self.outgoing.window += increment
            self._check(self.outgoing.window <= MAX_WINDOW, FLOW_CONTROL_ERROR, "a window over 2^31-1")
            return None
        stream = self.streams.get(frame.stream_id)
        if stream is None:
            self._check_known(frame)
            return None
        stream.send_window += increment
        if increment == 0:
            return self._stream_fault(stream, PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
        if stream.send_window > MAX_WINDOW:
            return self._stream_fault(stream, FLOW_CONTROL_ERROR, "a window over 2^31-1")
        if stream.num_outgoing:
            self.outgoing.wake(stream)
        return None

    def _take_priority(self, frame: Frame) -> Event | None:
        """Priorities are ignored, and checked."""
        self._check(frame.stream_id != 0, PROTOCOL_ERROR, "PRIORITY of no stream")
        self._spend(1.0)
        stream = self.streams.get(frame.stream_id)
        code, why = FRAME_SIZE_ERROR, "PRIORITY without 5 bytes"
        if len(frame.payload) == 5:
            if frames.number(frame.payload, 0) & MAX_STREAM_ID != frame.stream_id:
                return None
            code, why = PROTOCOL_ERROR, "a stream that depends on itself"
        if stream is None:
            raise Http2Error(code, why)
        return self._stream_fault(stream, code, why)

    # headers -----------------------------------------------------------------------------------

    def _take_headers(self, frame: Frame) -> Event | None:
        if frame.stream_id % 2 == 0:
            raise Http2Error(PROTOCOL_ERROR, f"HEADERS of stream {frame.stream_id}")
        block = self._blocks.begin(frame)
        return None if block is None else self._take_block(frame, block)

    def _take_continuation(self, first: Frame, frame: Frame) -> Event | None:
        block = self._blocks.add(frame)
        return None if block is None else self._take_block(first, block)

    def _take_block(self, frame: Frame, block: bytes) -> Event | None:
        decoded = self._decoder.decode(block)  # in any case: it changes the table
        stream_id, is_end = frame.stream_id, frame.flags & END_STREAM != 0
        if stream_id > self.last_stream_id:
            return self._open(stream_id, decoded.request, is_end)
        stream = self.streams.get(stream_id)
        if stream is not None:
            return self._take_trailers(stream, decoded.headers, is_end)
        self._check_reset(stream_id, PROTOCOL_ERROR)
        return None

    def _take_trailers(self, stream: Http2Stream, headers: list[Header], is_end: bool) -> Event:
        if stream.is_remote_closed:
            return self._stream_fault(stream, STREAM_CLOSED, "headers after the end of the stream")
        fault = trailers_fault(headers) if is_end else "a second HEADERS without END_STREAM"
        if fault or stream.num_expected > 0:
            return self._stream_fault(stream, PROTOCOL_ERROR, fault or "not its content-length")
        stream.is_remote_closed = True
        return DataCame(stream, b"", True)

    def _open(self, stream_id: int, head: StreamHead, is_end: bool) -> Event | None:
        self.last_stream_id = stream_id
        if len(self.streams) >= self.limits.max_streams or stream_id > self._final_id:
            self._refuse(stream_id, REFUSED_STREAM)
            return None
        if head.fault or (is_end and head.num_expected > 0):
            self._refuse(stream_id, PROTOCOL_ERROR)
            return None
        self._idle.earn(2.0)
        stream = Http2Stream(stream_id, self.outgoing.initial_window, self.limits.stream_window)
        stream.num_expected = head.num_expected
        stream.is_remote_closed = is_end
        self.streams[stream_id] = stream
        return RequestBegan(stream, head, is_end)

    def _refuse(self, stream_id: int, code: int) -> None:
        """Refuse a stream before anybody has seen it."""
        self._pay_reset()
        self._bury(stream_id, True)
        self._answer(frames.rst_stream(stream_id, code))
