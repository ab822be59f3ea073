"""Large intake: a large body is parsed in a thread, so that other requests do not wait for it.

body complete ─► thread: outline, fields ─► admitted, as any request: the exchange
                    │ disconnected           │ rejected: answered
                    └► body released         └► body released
"""

import logging
from collections.abc import Callable
from typing import TypeAlias

from gateway.core.errors import FAILED, GatewayError
from gateway.core.outcome import CLIENT_GONE
from gateway.core.request import InferenceRequest
from gateway.http.messages import HttpRequest
from gateway.observability.request_end import STOPPED, RequestEnd, notify_ended
from gateway.proxy.context import Context
from gateway.proxy.intake import large_request_of
from gateway.server.responder import Exchange, Responder, request_id

log = logging.getLogger("kvgate.proxy")

HandOn: TypeAlias = Callable[[HttpRequest, Responder, InferenceRequest], Exchange]
"""Makes the exchange of a parsed request. Raises the error that rejects the request."""

Refuse: TypeAlias = Callable[[HttpRequest, Responder, GatewayError], None]
"""Answers a request that has no exchange (`api.py`)."""


class LargeIntake:
    """Placeholder of an exchange until `hand_on` makes it of the parsed request. `intakes` contains this one
    until then."""

    def __init__(
        self,
        context: Context,
        http: HttpRequest,
        responder: Responder,
        *,
        refuse: Refuse,
        hand_on: HandOn,
        intakes: "set[LargeIntake]",
    ) -> None:
        self._context, self._http, self._responder = context, http, responder
        self._refuse = refuse
        self._hand_on_parsed = hand_on
        self._intakes = intakes
        self._exchange: Exchange | None = None
        self._is_over = False
        self._began_s = context.loop.time()
        intakes.add(self)
        context.tasks.start("read a large body", self._run())

    def __repr__(self) -> str:
        return f"LargeIntake({len(self._http.body)} bytes, exchange={self._exchange})"

    def client_gone(self) -> None:
        if self._exchange is not None:
            return self._exchange.client_gone()
        if not self._is_over:
            self._context.metrics.num_client_disconnects += 1
            self._close("client_disconnected", "")
        return None

    def client_full(self) -> None:
        if self._exchange is not None:
            self._exchange.client_full()

    def client_free(self) -> None:
        if self._exchange is not None:
            self._exchange.client_free()

    def cancel(self) -> None:
        """Abort the request: the gateway stops, and the drain time is over."""
        if not self._is_over:
            self._close("aborted", STOPPED)
            self._responder.abort()

    def _close(self, result: str, fault: str) -> None:
        """Count and log the end; the body is released later, since the thread may still read it."""
        self._is_over = True
        context, now = self._context, self._context.loop.time()
        context.metrics.responses[CLIENT_GONE] += 1
        name = request_id(self._http)[1]
        end = RequestEnd(self._http, None, None, result, CLIENT_GONE, fault, name, self._began_s, now, now)
        notify_ended(context.end_observers, end)

    async def _run(self) -> None:
        http = self._http
        try:
            await self._hand_on()
        except GatewayError as exc:
            if not self._is_over:
                self._refuse(http, self._responder, exc)
        except Exception:  # noqa: BLE001  a bug must not leave the client waiting
            log.exception("%s %s raised; the client gets 500", http.method, http.path)
            if not self._is_over:
                self._refuse(http, self._responder, GatewayError(FAILED))
        finally:
            self._is_over = True
            self._intakes.discard(self)
            if self._exchange is None:
                self._context.let_go(http)

    async def _hand_on(self) -> None:
        """Parse the request and make its exchange. Raises the error that rejects the request."""
        request = await large_request_of(self._context, self._http, lambda: self._is_over)
        if not self._is_over and request is not None:
            self._exchange = self._hand_on_parsed(self._http, self._responder, request)
