"""A large body on its way to its exchange: parsed in a thread, so that nobody else waits for it.

body complete ─► thread: outline, fields ─► admitted, as any request: the exchange
                    │ client gone            │ refused: answered
                    └► let go                └► let go
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from gateway.core.errors import FAILED, GatewayError
from gateway.core.outcome import CLIENT_GONE
from gateway.http.messages import HttpRequest
from gateway.observability.request_end import STOPPED, End, tell
from gateway.proxy.intake import large_request_of
from gateway.server.responder import Exchange, Responder, request_id

if TYPE_CHECKING:
    from gateway.proxy.proxy import Proxy

log = logging.getLogger("kvgate.proxy")

Refuse: TypeAlias = Callable[[HttpRequest, Responder, GatewayError], None]
"""Answers a request that has no exchange (`api.py`)."""


class LargeIntake:
    """Stands for the exchange until there is one, and passes on what happens to the client."""

    def __init__(self, proxy: "Proxy", http: HttpRequest, responder: Responder, refuse: Refuse) -> None:
        self._proxy, self._http, self._responder = proxy, http, responder
        self._refuse = refuse
        self._exchange: Exchange | None = None
        self._is_over = False
        self._began_s = proxy.loop.time()
        proxy.intakes.add(self)
        proxy.tasks.start("read a large body", self._run())

    def __repr__(self) -> str:
        return f"LargeIntake({len(self._http.body)} bytes, exchange={self._exchange})"

    def client_gone(self) -> None:
        if self._exchange is not None:
            return self._exchange.client_gone()
        if not self._is_over:
            self._proxy.metrics.num_client_disconnects += 1
            self._close("client gone", "")
        return None

    def client_full(self) -> None:
        if self._exchange is not None:
            self._exchange.client_full()

    def client_free(self) -> None:
        if self._exchange is not None:
            self._exchange.client_free()

    def cancel(self) -> None:
        """The gateway stops and its drain time is over."""
        if not self._is_over:
            self._close("cut", STOPPED)
            self._responder.abort()

    def _close(self, how: str, fault: str) -> None:
        """Its thread may still read the body, which is let go afterwards."""
        self._is_over = True
        proxy, now = self._proxy, self._proxy.loop.time()
        proxy.metrics.responses[CLIENT_GONE] += 1
        name = request_id(self._http)[1]
        end = End(self._http, None, None, how, CLIENT_GONE, fault, name, self._began_s, now, now)
        tell(proxy.tellers, end)

    async def _run(self) -> None:
        proxy, http = self._proxy, self._http
        try:
            await self._hand_on()
        except GatewayError as exc:
            if not self._is_over:
                self._refuse(http, self._responder, exc)
        except Exception:  # noqa: BLE001  a bug must not leave the client waiting
            log.exception("%s %s failed", http.method, http.path)
            if not self._is_over:
                self._refuse(http, self._responder, GatewayError(FAILED))
        finally:
            self._is_over = True
            proxy.intakes.discard(self)
            if self._exchange is None:
                proxy.let_go(http)

    async def _hand_on(self) -> None:
        """Raises what the request is refused with."""
        request = await large_request_of(self._proxy, self._http, lambda: self._is_over)
        if not self._is_over and request is not None:
            self._exchange = self._proxy.handle_parsed(self._http, self._responder, request)
