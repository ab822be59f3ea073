"""Responses that their workers may keep: requested where they were made, under ids that say where that was.

    POST /v1/responses          the answer's id is made the client's (`apis/response_ids.py`)
      with previous_response_id goes to the worker that has it, by that worker's own id
    … /ID, /ID/cancel           the same, and no other worker gets it

The gateway itself remembers nothing: the id has all that it takes.
"""

from collections.abc import Collection
from functools import partial
from typing import Final

import msgspec

from gateway.apis.response_ids import STORED, Renaming, RenamingScanner, parse_stored, stored_path
from gateway.core.decision import Decision, Prompt
from gateway.core.errors import InvalidRequest, NoWorker, UnknownResponse
from gateway.core.fleet import RETRY_AFTER_S
from gateway.core.request import PREVIOUS, InferenceRequest
from gateway.core.route_table import RouteKind
from gateway.core.worker import WorkerId
from gateway.http.headers import has_coding, is_event_stream
from gateway.http.messages import HttpRequest, ResponseHead
from gateway.proxy.context import Context
from gateway.proxy.exchange import InferenceExchange
from gateway.upstream.connection import ResponseSink
from gateway.upstream.plan import Plan

MAX_KEPT_BYTES: Final = 1 << 20
"""An unstreamed answer is edited once it is whole; a longer one, piece by piece."""
MAX_CARRIED_BYTES: Final = 4 << 10
"""Bytes behind a piece's last comma that wait for the next one: an id and its key have no comma."""

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class StoredResponse:
    """A response at the worker that keeps it, under that worker's own id."""

    __slots__ = ("own_id", "worker")

    def __init__(self, own_id: str, worker: WorkerId) -> None:
        self.own_id = own_id
        self.worker = worker

    def __repr__(self) -> str:
        return f"StoredResponse({self.own_id!r}, {self.worker})"


def plan_of(exchange: InferenceExchange, stored: StoredResponse | None) -> Plan:
    """The plan of a request that creates a response, or is about one that is `stored`."""
    reader = partial(_reader, exchange, stored)
    if stored is None:
        return Plan(reader=reader)
    return Plan(decide=partial(_decide, exchange, stored.worker), reader=reader)


def _decide(
    exchange: InferenceExchange,
    keeper: WorkerId,
    prompt: Prompt | None,
    failed: Collection[WorkerId],
    attempt: int,
) -> Decision:
    """Decide for the worker that keeps the response. Raises NoWorker where it is not up."""
    router = exchange.context.router
    others = {member.worker.id for member in router.fleet if member.worker.id != keeper}
    try:
        return router.decide(exchange.request, prompt=prompt, exclude={*others, *failed}, attempt=attempt)
    except NoWorker as exc:
        why = "the worker that has this response does not answer; retry"
        raise NoWorker(why, retry_after_s=RETRY_AFTER_S) from exc


def _reader(exchange: InferenceExchange, stored: StoredResponse | None, decision: Decision) -> ResponseSink:
    given = exchange.context.response_ids.given
    renaming = Renaming(partial(given, worker=decision.worker.id, tenant=_tenant(exchange.http)))
    if stored is not None:
        renaming.add(stored.own_id)
    return RenamedAnswer(exchange, renaming)


class RenamedAnswer:
    """Replaces a worker's response ids in its answer by those that the client gets."""

    __slots__ = ("_exchange", "_renaming", "_kept", "_num_kept", "_is_plain", "_is_long", "_status")

    def __init__(self, exchange: InferenceExchange, renaming: Renaming) -> None:
        self._exchange = exchange
        self._renaming = renaming
        self._kept: list[bytes] = []
        self._num_kept = 0
        self._is_plain = self._is_long = False
        self._status = 0

    def __repr__(self) -> str:
        return f"RenamedAnswer({self._status}, {self._num_kept} bytes kept)"

    def upstream_head(self, head: ResponseHead) -> None:
        self._exchange.scanner = RenamingScanner(self._renaming)
        self._status = head.status
        self._is_plain = not has_coding(head) and not is_event_stream(head)
        if self._is_plain:
            head = ResponseHead(head.status, head.headers, None)
        self._exchange.upstream_head(head)

    def upstream_data(self, data: bytes) -> None:
        if not self._is_plain:
            return self._exchange.upstream_data(data)
        self._exchange.touch()
        self._kept.append(data)
        self._num_kept += len(data)
        if self._num_kept > MAX_KEPT_BYTES:
            self._exchange.upstream_data(self._piece())
        return None

    def upstream_ended(self, data: bytes) -> None:
        self._exchange.upstream_ended(self._whole(data) if self._is_plain else data)

    def upstream_lost(self, reason: str) -> None:
        self._exchange.upstream_lost(reason)

    def _whole(self, rest: bytes) -> bytes:
        """The edited answer, or what is left of a long one."""
        data = b"".join([*self._kept, rest])
        self._kept.clear()
        if self._status == 200 and not self._is_long:
            self._renaming.read(data)
        return self._edited(data)

    def _piece(self) -> bytes:
        """The next part of a long answer, edited, to its last comma."""
        data = b"".join(self._kept)
        if not self._is_long:
            self._is_long = True
            self._renaming.read_beginning(data)
        cut = data.rfind(b",") + 1
        if len(data) - cut > MAX_CARRIED_BYTES:
            cut = len(data)
        self._kept = [data[cut:]] if cut < len(data) else []
        return self._edited(data[:cut])

    def _edited(self, data: bytes) -> bytes:
        return self._renaming.renamed(data) if self._status == 200 else self._renaming.renamed_words(data)


def continued(context: Context, http: HttpRequest, request: InferenceRequest) -> StoredResponse | None:
    """The response that a request to create one continues; its body then has the worker's own id. Raises
    UnknownResponse or InvalidRequest."""
    if request.may_repeat:
        return None  # it continues nothing
    given = request.previous
    if given is None:
        return None
    if not isinstance(given, str):
        raise InvalidRequest(f"'{PREVIOUS}' must be a string", param=PREVIOUS)
    stored = _find(context, http, given, request.model)
    fields = _decode(request.body)
    fields[PREVIOUS] = msgspec.Raw(msgspec.json.encode(stored.own_id))
    request.body = msgspec.json.encode(fields)
    return stored


def about(context: Context, http: HttpRequest) -> tuple[InferenceRequest, StoredResponse]:
    """A request about a stored response; the target of `http` becomes its worker's. Raises UnknownRoute,
    MethodNotAllowed or UnknownResponse."""
    given, behind = parse_stored(http.method, http.path)
    stored = _find(context, http, given, None)
    member = context.router.fleet.get(stored.worker)
    assert member is not None, "it was found there"
    _, mark, query = http.target.partition(b"?")
    http.target = stored_path(stored.own_id, behind) + mark + query
    top = {"model": member.worker.served[0].name}
    request = InferenceRequest(RouteKind.PASS, STORED, http.body, top, fields=top)
    request.may_repeat = http.method == "GET"
    return request, stored


def _tenant(http: HttpRequest) -> str:
    """The tenant of the request's API key; tenants that a header merely claims separate nothing."""
    return http.caller.tenant if http.caller is not None else ""


def _find(context: Context, http: HttpRequest, given: str, model: str | None) -> StoredResponse:
    fleet = context.router.fleet
    try:
        own, worker = context.response_ids.find(given, [m.worker.id for m in fleet], _tenant(http))
    except UnknownResponse as exc:
        exc.param = PREVIOUS if model is not None else "response_id"
        raise
    member = fleet.get(worker)
    assert member is not None, "it was found there"
    if model is not None and model not in [served.name for served in member.worker.served]:
        raise UnknownResponse(
            f"the worker that has '{given[:80]}' does not serve '{model}'; name the model of that response",
            param=PREVIOUS,
        )
    return StoredResponse(own, worker)
