"""Explanations of what the gateway would do with a request now. Nothing is sent or booked.

A prompt that is not tokenized here is tokenized by a worker, as that of a request would be. Who may ask here
is believed what it says of tenant, priority and SLO.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.core.body_text import as_utf8, encoding_of, why_unreadable
from gateway.core.decision import Prompt
from gateway.core.decode_errors import UNREADABLE
from gateway.core.errors import InvalidRequest
from gateway.core.route_table import CHAT, COMPLETIONS, ROUTES
from gateway.http.messages import HttpRequest
from gateway.proxy.dispatch import Dispatch
from gateway.proxy.intake import request_of
from gateway.routing.decision_log import PartsOf, describe
from gateway.tenancy.auth.authenticator import Authenticator, credentials_of
from gateway.tokenization.prompt_encoder import PromptError

PATHS: Mapping[str, str] = {"messages": CHAT, "prompt": COMPLETIONS}
"""Where a body would be sent that has this field."""


class Preview:
    def __init__(
        self, dispatch: Dispatch, parts_of: PartsOf, authenticator: Authenticator | None = None
    ) -> None:
        """Explainer of decisions; with an `authenticator`, a key in the headers selects its tenant."""
        self._authenticator = authenticator
        self._dispatch = dispatch
        self._parts_of = parts_of

    async def explain(self, body: bytes, path: str | None, headers: Mapping[str, str]) -> dict[str, Any]:
        """Return a decision record without id and outcome. Raises the error that the request would get."""
        if (encoding := encoding_of(body)) is not None:  # a file from Windows, say
            body = as_utf8(body, encoding, self._dispatch.context.config.server.max_body_bytes)
        some = [(_bytes(name.lower()), _bytes(value)) for name, value in headers.items()]
        http = HttpRequest("POST", (path or _path_of(body)).encode(), some, body)
        if http.path not in ROUTES:
            raise InvalidRequest(f"unknown route '{http.path}'; known: {', '.join(ROUTES)}", param="path")
        if self._authenticator is not None and (credentials_of(some) or not self._authenticator.wants_key):
            http.caller = self._authenticator.ask(http, None)
        context = self._dispatch.context
        request, note, admission = request_of(context, http), None, None
        if gate := context.gate:
            admission = gate.preview(request, gate.identify(http, request, gate.now(), is_trusted=True))
        try:
            prompt = await context.prompts.of(request, http.header(b"authorization"))
        except PromptError as exc:
            prompt, note = Prompt(), str(exc)
        decision = context.router.preview(request, prompt)
        record = describe(decision, None, self._parts_of(decision))
        del record["id"], record["outcome"]
        return {**record, "admission": admission, "not_tokenized": note}


def _bytes(text: str) -> bytes:
    """Return a header's bytes as they came."""
    return text.encode("utf-8", "surrogateescape")


def _path_of(body: bytes) -> str:
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except UNREADABLE as exc:
        raise InvalidRequest(f"the body is not a JSON object: {why_unreadable(exc, body)}") from exc
    found = [path for field, path in PATHS.items() if field in fields]
    if not found:
        raise InvalidRequest(
            f"the body has none of {', '.join(PATHS)}, so its route is unknown; add ?path=ROUTE"
        )
    return found[0]
