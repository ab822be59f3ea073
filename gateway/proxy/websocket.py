"""A WebSocket from a client to a worker: routed as any request, then bytes both ways as they come.

    offer ─ decide ─ send ─► 101 ─► bytes ◄─► bytes ─► one side ends: what was read is delivered, both close
                       │  another answer: it goes to the client, as of any request
                       └─ lost before an answer: another worker

Frames are read where a key is limited to some models, and only the client's (`http/websocket_frames.py`).
Until the
worker agrees it is an `InferenceExchange`, whose `_close` is the one way out here too.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.apis.routes import default_model
from gateway.core.requests.cache_salt import refused
from gateway.core.requests.model_name import asked_in_query, check_plain, renamed_query, with_query
from gateway.core.requests.request import InferenceRequest
from gateway.core.requests.routes import Kind
from gateway.core.worker import Served
from gateway.http.caller import usable
from gateway.http.headers import upgrade_to_client, upgrade_to_worker
from gateway.http.messages import HttpRequest, ResponseHead
from gateway.http.websocket_frames import FrameRefused, ModelFrames, close_frame, without_extensions
from gateway.observability.request_end import CUT, OUT_OF_TIME
from gateway.proxy.exchange import InferenceExchange
from gateway.server.responder import Responder
from gateway.upstream.connection import UpstreamConnection

if TYPE_CHECKING:
    from gateway.proxy.proxy import Proxy

log = logging.getLogger("kvgate.proxy")

FLUSH_S = 10.0
"""For a worker to take the client's last bytes; then its connection is cut."""


def parse_tunnel(http: HttpRequest, served: Mapping[str, Served]) -> InferenceRequest:
    """A request of no body, for the model that its query names; a fleet of one model needs no name.
    Raises InvalidRequest, Forbidden, or NotSupported where tenants' caches are kept apart."""
    who = http.who
    if who is not None and who.salt is not None:
        raise refused(http.path)
    asked = asked_in_query(http.target)
    model = default_model(http.path, usable(who, served)) if asked is None else asked
    request = InferenceRequest(Kind.PASS, http.path, b"", {"model": model})
    request.may_repeat = True  # nothing of it has been said before a worker agrees
    if who is not None:
        who.check(model)
        request.tenant = who.tenant
    if who is not None and who.models is not None:
        check_plain(http.path, model, served)
        http.headers = without_extensions(http.headers)
        if asked is None:
            http.target = with_query(http.target, model)
    elif asked is None:
        http.target = renamed_query(http.target, model)  # it may have an empty one
    return request


class TunnelExchange(InferenceExchange):
    """One WebSocket, from the offer to its end."""

    __slots__ = ("_worker", "_frames")

    def __init__(
        self, proxy: "Proxy", http: HttpRequest, responder: Responder, request: InferenceRequest
    ) -> None:
        super().__init__(proxy, http, responder, request)
        self._worker: WorkerEnd | None = None  # once it has agreed
        self._frames: ModelFrames | None = None

    def _route_kind(self) -> str:
        return "websocket"

    def _send(self, connection: UpstreamConnection) -> None:
        decision = self._decision
        assert decision is not None
        self._upstream = connection
        self.tries.was_sent = True
        self._touch()
        self._arm()
        pool = self._proxy.pool(decision.worker.url)
        head = upgrade_to_worker(
            self.http,
            decision.worker,
            netloc=pool.netloc,
            prefix=pool.path_prefix,
            request_id=self._request_id,
            target=self._proxy.target_at(self.http, self._request.model, decision.worker),
            key=pool.key,
        )
        connection.send(head, b"", self)
        if self._responder.client_is_full:
            connection.pause()

    def upstream_switched(self, head: ResponseHead, data: bytes) -> None:
        """The worker agrees: from here on there are only bytes."""
        assert self._upstream is not None
        self._touch()
        upstream, self._upstream = self._upstream, None
        self._worker = WorkerEnd(self, upstream)
        self._status = head.status
        self._frames = self._limited_frames()
        self._proxy.metrics.num_tunnels_open += 1
        if self._responder.client_is_full:
            self._worker.hold(True)
        exposed = self._decision if self._options.expose_headers else None
        self._responder.switch(upgrade_to_client(head, self._request_id, exposed), self._from_client)
        if data:
            self.from_worker(data)

    def _limited_frames(self) -> ModelFrames | None:
        """Where the key is limited, messages may name the checked model only, by either of its names."""
        who, decision = self.http.who, self._decision
        if who is None or who.models is None:
            return None
        assert decision is not None
        model = self._request.model
        return ModelFrames({model, self._proxy.router.fleet.name_at(decision.worker, model)})

    # bytes -------------------------------------------------------------------------------------

    def _from_client(self, data: bytes) -> None:
        if self._worker and not self._is_closed:
            self._touch()
            self._proxy.metrics.tunnel_bytes["client"] += len(data)
            if self._frames is not None:
                try:
                    data = self._frames.feed(data)
                except FrameRefused as exc:
                    return self._refuse(exc)
            self._worker.write(data)
        return None

    def _refuse(self, refused: FrameRefused) -> None:
        self._proxy.log.info("WebSocket closed (%s); request %s", refused.reason, self._log_id)
        self._close("ended")
        self._responder.data(close_frame(refused.code, refused.reason))
        self._responder.end()

    def from_worker(self, data: bytes) -> None:
        if not self._is_closed:
            self._touch()
            self._proxy.metrics.tunnel_bytes["worker"] += len(data)
            self._responder.data(data)

    def worker_full(self, is_full: bool) -> None:
        if not self._is_closed:
            self._responder.hold_client(is_full)

    def client_full(self) -> None:
        if self._worker:
            self._worker.hold(True)
        else:
            super().client_full()

    def client_free(self) -> None:
        if self._worker:
            self._worker.hold(False)
        else:
            super().client_free()

    # ends --------------------------------------------------------------------------------------

    def client_gone(self) -> None:
        if self._worker:
            self._close("ended")  # to leave is how a WebSocket ends
        else:
            super().client_gone()

    def worker_gone(self, exc: Exception | None) -> None:
        if self._is_closed:
            return
        if exc:
            self._cut_off(f"the worker died: {exc}", is_workers_fault=True)
        else:
            self._close("ended")
            self._responder.end()

    def _cut_off(self, reason: str, *, is_workers_fault: bool) -> None:
        decision = self._decision
        assert decision is not None and self._worker_metrics is not None
        text = "worker %s: WebSocket cut (%s); request %s"
        self._proxy.log.warning(text, decision.worker.id, reason, self._log_id)
        if is_workers_fault:
            self._worker_metrics.num_failed += 1
            self._proxy.suspect(decision.worker.id, reason, False)
        self._close("cut", CUT if is_workers_fault else OUT_OF_TIME)
        self._responder.end()

    def _on_timer(self) -> None:
        """Of an open one only silence is measured: it has no answer that could take too long."""
        if not self._worker:
            return super()._on_timer()
        self._timer = None
        idle_s = self._options.deadlines.idle_s
        left = self._last_activity + idle_s - self._loop.time()
        if self._is_closed or not idle_s:
            return None
        if left > 0:
            self._timer = self._loop.call_later(max(left, 0.001), self._on_timer)
            return None
        return self._cut_off(f"nothing moved for {idle_s:g} s", is_workers_fault=False)

    def _close(self, how: str, fault: str = "") -> None:
        if self._worker and not self._is_closed:
            self._proxy.metrics.num_tunnels_open -= 1
            self._worker.close()
        super()._close(how, fault)


class WorkerEnd(asyncio.Protocol):
    """The worker's connection, once it has left HTTP. What it holds is let go when it is lost: nobody
    looks for cycles (runtime/gc_policy.py)."""

    def __init__(self, tunnel: TunnelExchange, upstream: UpstreamConnection) -> None:
        self._tunnel: TunnelExchange | None = tunnel
        self._transport: asyncio.Transport | None = upstream.hand_over(self)
        self._cutter: asyncio.TimerHandle | None = None

    def write(self, data: bytes) -> None:
        if self._transport:
            self._transport.write(data)

    def hold(self, is_held: bool) -> None:
        """Read no more of what the worker sends, or go on."""
        if self._transport and is_held:
            self._transport.pause_reading()
        elif self._transport:
            self._transport.resume_reading()

    def close(self) -> None:
        """Once it has taken what was written, but soon."""
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
