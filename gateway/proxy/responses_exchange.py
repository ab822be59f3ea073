"""Responses that their workers may keep: asked for where they were made, under ids that say where that was.

    POST /v1/responses          the answer's id is made the client's (`apis/response_ids.py`)
      with previous_response_id goes to the worker that has it, by that worker's own id
    … /ID, /ID/cancel           the same, and nobody else is asked

Nothing is remembered here.
"""

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from gateway.apis.response_ids import STORED, Renaming, RenamingScanner, parse_stored, stored_path
from gateway.core.decision import Decision, Prompt
from gateway.core.errors import InvalidRequest, NoWorker, UnknownResponse
from gateway.core.fleet import RETRY_AFTER_S
from gateway.core.requests.request import PREVIOUS, InferenceRequest
from gateway.core.requests.routes import Kind
from gateway.core.worker import WorkerId
from gateway.http.headers import is_event_stream
from gateway.http.messages import HttpRequest, ResponseHead
from gateway.proxy.exchange import InferenceExchange
from gateway.server.responder import Responder

if TYPE_CHECKING:
    from gateway.proxy.proxy import Proxy

MAX_KEPT_BYTES = 64 << 20
"""Of an unstreamed answer, which is changed when it is whole; the rest of a longer one passes as it is."""

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class ResponsesExchange(InferenceExchange):
    """One call to create a response, or about one."""

    __slots__ = ("_pin", "_own", "_renaming", "_kept", "_num_kept", "_is_plain")

    def __init__(
        self, proxy: "Proxy", http: HttpRequest, responder: Responder, request: InferenceRequest
    ) -> None:
        """Raises UnknownResponse, or InvalidRequest."""
        super().__init__(proxy, http, responder, request)
        self._pin: WorkerId | None = None
        self._own: str | None = None
        self._renaming: Renaming | None = None
        self._kept: list[bytes] = []
        self._num_kept = 0
        self._is_plain = False
        # What is compressed could not be changed.
        http.headers = [header for header in http.headers if header[0] != b"accept-encoding"]

    def pin(self, own: str, worker: WorkerId) -> None:
        """It is about what that worker keeps under this id."""
        self._own, self._pin = own, worker

    def _decide(self, prompt: Prompt | None, attempt: int) -> Decision:
        pin, router = self._pin, self._proxy.router
        if pin is not None:
            others = {member.worker.id for member in router.fleet if member.worker.id != pin}
            try:
                decision = router.decide(
                    self._request, prompt=prompt, exclude={*others, *self.tries.failed}, attempt=attempt
                )
            except NoWorker as exc:
                why = "the worker that made this response does not answer"
                raise NoWorker(why, retry_after_s=RETRY_AFTER_S) from exc
        else:
            decision = super()._decide(prompt, attempt)
        worker, tenant = decision.worker.id, _tenant(self.http)
        self._renaming = Renaming(partial(self._proxy.response_ids.given, worker=worker, tenant=tenant))
        if self._own is not None:
            self._renaming.add(self._own)
        return decision

    def upstream_head(self, head: ResponseHead) -> None:
        renaming = self._renaming
        assert renaming is not None, "it was decided"
        self._unasked = RenamingScanner(renaming)
        is_encoded = any([name == b"content-encoding" for name, _ in head.headers])
        self._is_plain = not is_encoded and not is_event_stream(head)
        if self._is_plain:
            head = ResponseHead(head.status, head.headers, None)
        super().upstream_head(head)

    def upstream_data(self, data: bytes) -> None:
        if not self._is_plain:
            return super().upstream_data(data)
        self._touch()
        self._kept.append(data)
        self._num_kept += len(data)
        if self._num_kept > MAX_KEPT_BYTES:
            self._is_plain = False
            super().upstream_data(self._whole(b""))
        return None

    def upstream_ended(self, data: bytes) -> None:
        super().upstream_ended(self._whole(data) if self._is_plain else data)

    def _whole(self, rest: bytes) -> bytes:
        renaming, answer = self._renaming, self._answer
        assert renaming is not None and answer is not None, "a body follows its head"
        data = b"".join([*self._kept, rest])
        self._kept.clear()
        if answer.status != 200:
            return renaming.renamed_words(data)
        renaming.read(data)
        return renaming.renamed(data)


def created(
    proxy: "Proxy", http: HttpRequest, responder: Responder, request: InferenceRequest
) -> InferenceExchange:
    """The exchange of a call to /v1/responses. Raises UnknownResponse or InvalidRequest."""
    exchange = ResponsesExchange(proxy, http, responder, request)
    if request.may_repeat:
        return exchange  # it goes on with nothing
    given = request.previous
    if given is not None:
        if not isinstance(given, str):
            raise InvalidRequest(f"'{PREVIOUS}' must be a string", param=PREVIOUS)
        own, worker = _find(proxy, http, given, request.model)
        fields = _decode(request.body)
        fields[PREVIOUS] = msgspec.Raw(msgspec.json.encode(own))
        request.body = msgspec.json.encode(fields)
        exchange.pin(own, worker)
    return exchange


def about(proxy: "Proxy", http: HttpRequest) -> tuple[InferenceRequest, str, WorkerId]:
    """A request about a response, as its worker knows it: `http` goes there now. Raises UnknownRoute,
    MethodNotAllowed or UnknownResponse."""
    given, behind = parse_stored(http.method, http.path)
    own, worker = _find(proxy, http, given, None)
    member = proxy.router.fleet.get(worker)
    assert member is not None, "it was found there"
    _, mark, query = http.target.partition(b"?")
    http.target = stored_path(own, behind) + mark + query
    top = {"model": member.worker.served[0].name}
    request = InferenceRequest(Kind.PASS, STORED, http.body, top, fields=top)
    request.may_repeat = http.method == "GET"
    return request, own, worker


def _tenant(http: HttpRequest) -> str:
    """Who has shown a key; what others say of themselves separates nothing."""
    return http.who.tenant if http.who is not None else ""


def _find(proxy: "Proxy", http: HttpRequest, given: str, model: str | None) -> tuple[str, WorkerId]:
    fleet = proxy.router.fleet
    try:
        own, worker = proxy.response_ids.find(given, [m.worker.id for m in fleet], _tenant(http))
    except UnknownResponse as exc:
        exc.param = PREVIOUS if model is not None else "response_id"
        raise
    member = fleet.get(worker)
    assert member is not None, "it was found there"
    if model is not None and model not in [served.name for served in member.worker.served]:
        raise UnknownResponse(f"the worker that made '{given[:80]}' does not serve '{model}'", param=PREVIOUS)
    return own, worker
