"""A client's request in the form that a worker gets: its head, and the model by the worker's own name."""

from gateway.core.fleet import Fleet
from gateway.core.request import InferenceRequest
from gateway.core.route_table import route_of
from gateway.core.worker import Worker
from gateway.http.headers import head_to_worker, upgrade_to_worker
from gateway.http.messages import HttpRequest, OutgoingHead
from gateway.requests.model_name import renamed_query
from gateway.requests.multipart import renamed_body
from gateway.upstream.pools import Pools


class Outgoing:
    """Heads and bodies for the workers of one fleet."""

    def __init__(self, fleet: Fleet, pools: Pools) -> None:
        self._fleet = fleet
        self._pools = pools

    def __repr__(self) -> str:
        return f"Outgoing({self._fleet!r})"

    def head(
        self, http: HttpRequest, model: str, worker: Worker, size: int, request_id: bytes
    ) -> OutgoingHead:
        """The head before a body of `size` bytes."""
        pool = self._pools.of(worker.url)
        return head_to_worker(
            http,
            worker,
            target=self._target(http, model, worker),
            netloc=pool.netloc,
            prefix=pool.path_prefix,
            num_bytes=size,
            request_id=request_id,
            key=pool.key,
        )

    def upgrade_head(self, http: HttpRequest, model: str, worker: Worker, request_id: bytes) -> OutgoingHead:
        """The head of an offer to leave HTTP, which has no body."""
        pool = self._pools.of(worker.url)
        return upgrade_to_worker(
            http,
            worker,
            netloc=pool.netloc,
            prefix=pool.path_prefix,
            request_id=request_id,
            target=self._target(http, model, worker),
            key=pool.key,
        )

    def body(self, request: InferenceRequest, worker: Worker) -> bytes:
        """The client's body, with the model by the name that the worker serves it under, and the rank where
        the route has it there."""
        fleet, body = self._fleet, request.body
        if body and fleet.is_translated(request.model):
            body = renamed_body(body, fleet.name_at(worker, request.model))
        if worker.dp_size > 1 and body and (field := route_of(request.path).rank_field):
            return _with_number(body, field, worker.dp_rank)  # a client's own was taken out
        return body

    def _target(self, http: HttpRequest, model: str, worker: Worker) -> bytes:
        """The request target, with that name where its query has the model too."""
        fleet = self._fleet
        if not fleet.is_translated(model) or not http.has_query:
            return http.target
        return renamed_query(http.target, fleet.name_at(worker, model))


def _with_number(body: bytes, name: str, value: int) -> bytes:
    """A JSON object with one more field, which it must not have yet."""
    end = body.rindex(b"}")
    comma = b"" if body[:end].rstrip().endswith(b"{") else b","
    return b'%b%b"%b":%d}' % (body[:end], comma, name.encode(), value)
