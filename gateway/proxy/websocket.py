"""A WebSocket from a client to a worker: routed like any request, then bytes both ways as they come.

    offer ─ decide ─ send ─► 101 ─► bytes ◄─► bytes ─► one side ends: what was read is delivered, both close
                       │  another answer: it goes to the client, as of any request
                       └─ lost before an answer: another worker

Frames are read where a key is limited to some models, and only the client's (`http/websocket_frames.py`).
The exchange routes the offer, and its `close` is the one way out here too.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from gateway.core.caller import usable
from gateway.core.decision import Decision
from gateway.core.request import InferenceRequest
from gateway.core.route_table import RouteKind
from gateway.core.usage import Usage
from gateway.core.worker import ServedModel
from gateway.http.headers import upgrade_to_client
from gateway.http.messages import HttpRequest, OutgoingHead, ResponseHead
from gateway.http.websocket_frames import FrameRefused, ModelFrames, close_frame, without_extensions
from gateway.observability.request_end import CUT, OUT_OF_TIME
from gateway.proxy.exchange import InferenceExchange
from gateway.requests.cache_salt import refused
from gateway.requests.model_name import asked_in_query, check_plain, default_model, renamed_query, with_query
from gateway.upstream.connection import ResponseSink, UpstreamConnection
from gateway.upstream.plan import Observer, Plan

FLUSH_S: Final = 10.0
"""A worker has so long to take the client's last bytes; then its connection is cut."""


def parse_tunnel(http: HttpRequest, served: Mapping[str, ServedModel]) -> InferenceRequest:
    """Parse an offer: the model is in the query; a fleet of one model needs no name. Raises InvalidRequest,
    Forbidden, or NotSupported where tenants' caches are kept apart."""
    caller = http.caller
    if caller is not None and caller.salt is not None:
        raise refused(http.path)
    asked = asked_in_query(http.target)
    model = default_model(http.path, usable(caller, served)) if asked is None else asked
    request = InferenceRequest(RouteKind.PASS, http.path, b"", {"model": model})
    request.may_repeat = True  # nothing is sent before a worker agrees
    if caller is not None:
        caller.check(model)
        request.tenant = caller.tenant
    if caller is not None and caller.models is not None:
        check_plain(http.path, model, served)
        http.headers = without_extensions(http.headers)
        if asked is None:
            http.target = with_query(http.target, model)
    elif asked is None:
        http.target = renamed_query(http.target, model)  # the query may name an empty one
    return request


class Tunnel(Observer):
    """A WebSocket tunnel, from the upgrade request to its end: events of client and worker go to the exchange
    until the worker agrees, and are handled here from then on."""

    # fmt: off
    __slots__ = (
        "_exchange", "_responder", "_metrics", "_worker", "_frames", "_is_closed", "_last_activity", "_timer",
        "_loop",
    )
    # fmt: on

    def __init__(self, exchange: InferenceExchange) -> None:
        self._exchange = exchange
        self._responder = exchange.responder
        self._metrics = exchange.context.metrics
        self._is_closed = False
        self._worker: WorkerEnd | None = None  # once it has agreed
        self._frames: ModelFrames | None = None
        self._loop = exchange.context.loop
        self._last_activity = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"Tunnel({self._exchange!r}, open={self._worker is not None})"

    def plan(self) -> Plan:
        return Plan(upgrade=self._head, reader=self._reader, observer=self)

    def _head(self, decision: Decision) -> OutgoingHead:
        exchange = self._exchange
        outgoing, model = exchange.context.outgoing, exchange.request.model
        return outgoing.upgrade_head(exchange.http, model, decision.worker, exchange.worker_id)

    def _reader(self, decision: Decision) -> ResponseSink:
        return self

    # the worker's answer -----------------------------------------------------------------------

    def upstream_head(self, head: ResponseHead) -> None:
        self._exchange.upstream_head(head)

    def upstream_data(self, data: bytes) -> None:
        self._exchange.upstream_data(data)

    def upstream_ended(self, data: bytes) -> None:
        self._exchange.upstream_ended(data)

    def upstream_lost(self, reason: str) -> None:
        self._exchange.upstream_lost(reason)

    def upstream_switched(self, head: ResponseHead, data: bytes) -> None:
        """The worker agrees: only bytes follow."""
        exchange = self._exchange
        context, responder = exchange.context, self._responder
        self._touch()
        self._worker = WorkerEnd(self, exchange.switched(head.status))
        self._frames = self._limited_frames()
        self._metrics.num_tunnels_open += 1
        self._arm(context.config.proxy.idle_timeout_s)
        if responder.client_is_full:
            self._worker.hold(True)
        exposed = exchange.decision if context.config.headers.expose_headers else None
        responder.switch(upgrade_to_client(head, exchange.request_id, exposed), self._from_client)
        if data:
            self.from_worker(data)

    def _limited_frames(self) -> ModelFrames | None:
        """The filter of a limited key's messages: they may name the checked model only, by either name."""
        exchange = self._exchange
        caller, decision = exchange.http.caller, exchange.decision
        if caller is None or caller.models is None:
            return None
        assert decision is not None
        model = exchange.request.model
        return ModelFrames({model, exchange.context.router.fleet.name_at(decision.worker, model)})

    # bytes -------------------------------------------------------------------------------------

    def _from_client(self, data: bytes) -> None:
        if self._worker and not self._is_closed:
            self._touch()
            self._metrics.tunnel_bytes["client"] += len(data)
            if self._frames is not None:
                try:
                    data = self._frames.feed(data)
                except FrameRefused as exc:
                    return self._refuse(exc)
            self._worker.write(data)
        return None

    def _refuse(self, refused: FrameRefused) -> None:
        exchange = self._exchange
        exchange.context.log.info("request %s: WebSocket closed (%s)", exchange.log_id, refused.reason)
        exchange.close("ended")
        self._responder.data(close_frame(refused.code, refused.reason))
        self._responder.end()

    def from_worker(self, data: bytes) -> None:
        if not self._is_closed:
            self._touch()
            if self._exchange.decision is not None:
                self._exchange.context.pools.heard(self._exchange.decision.worker.url)
            self._metrics.tunnel_bytes["worker"] += len(data)
            self._responder.data(data)

    def worker_full(self, is_full: bool) -> None:
        if not self._is_closed:
            self._responder.hold_client(is_full)

    def client_full(self) -> None:
        if self._worker:
            self._worker.hold(True)
        else:
            self._exchange.client_full()

    def client_free(self) -> None:
        if self._worker:
            self._worker.hold(False)
        else:
            self._exchange.client_free()

    # ends --------------------------------------------------------------------------------------

    def client_gone(self) -> None:
        if self._worker:
            self._exchange.close("ended")  # a WebSocket ends when its client leaves
        else:
            self._exchange.client_gone()

    def worker_gone(self, exc: Exception | None) -> None:
        if self._is_closed:
            return
        if exc:
            reason = f"the worker died: {exc}"
            self._exchange.blame_worker(reason)
            self._cut(reason, CUT)
        else:
            self._exchange.close("ended")
            self._responder.end()

    def _cut(self, reason: str, fault: str) -> None:
        exchange = self._exchange
        worker = exchange.decision.worker.id if exchange.decision else None
        text = "worker %s: WebSocket aborted (%s); request %s"
        exchange.context.log.warning(text, worker, reason, exchange.log_id)
        exchange.close("aborted", fault)
        self._responder.end()

    def closed(self, decision: Decision | None, usage: Usage | None) -> None:
        self._is_closed = True
        if self._timer:
            self._timer.cancel()
        if self._worker:
            self._metrics.num_tunnels_open -= 1
            self._worker.close()

    # time --------------------------------------------------------------------------------------

    def _touch(self) -> None:
        self._last_activity = self._loop.time()

    def _arm(self, left_s: float) -> None:
        if left_s:
            self._timer = self._loop.call_later(max(left_s, 0.001), self._on_timer)

    def _on_timer(self) -> None:
        """An open tunnel has an idle timeout only: there is no answer that could take too long."""
        idle_s = self._exchange.context.config.proxy.idle_timeout_s
        left = self._last_activity + idle_s - self._loop.time()
        if left > 0:
            self._arm(left)
        elif not self._is_closed:
            self._cut(f"idle for {idle_s:g} s", OUT_OF_TIME)


class WorkerEnd(asyncio.Protocol):
    """The worker's connection, once it has left HTTP. It forgets the tunnel when it is lost, so that no cycle
    is left (`runtime/gc_policy.py`)."""

    def __init__(self, tunnel: Tunnel, upstream: UpstreamConnection) -> None:
        self._tunnel: Tunnel | None = tunnel
        self._transport: asyncio.Transport | None = upstream.hand_over(self)
        self._cutter: asyncio.TimerHandle | None = None

    def write(self, data: bytes) -> None:
        if self._transport:
            self._transport.write(data)

    def hold(self, is_held: bool) -> None:
        """Pause or resume reading what the worker sends."""
        if self._transport and is_held:
            self._transport.pause_reading()
        elif self._transport:
            self._transport.resume_reading()

    def close(self) -> None:
        """Close once the worker has taken what was written, or after `FLUSH_S`."""
        if self._transport:
            self._transport.close()
            self._cutter = asyncio.get_running_loop().call_later(FLUSH_S, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._tunnel:
            self._tunnel.from_worker(data)

    def pause_writing(self) -> None:
        if self._tunnel:
            self._tunnel.worker_full(True)

    def resume_writing(self) -> None:
        if self._tunnel:
            self._tunnel.worker_full(False)

    def connection_lost(self, exc: Exception | None) -> None:
        tunnel, self._tunnel, self._transport = self._tunnel, None, None
        if self._cutter:
            self._cutter.cancel()
        if tunnel:
            tunnel.worker_gone(exc)
