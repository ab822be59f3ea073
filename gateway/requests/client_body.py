"""Client's body as a request: its encoding, form and fields, its model and adapter, and its session."""

from collections.abc import Container
from typing import Final

from gateway.core.body_text import as_utf8, encoding_of
from gateway.core.caller import usable
from gateway.core.errors import UnknownModel
from gateway.core.fleet import Fleet
from gateway.core.request import InferenceRequest
from gateway.core.route_table import TABLE, paths, route_of
from gateway.http.messages import HttpRequest
from gateway.requests.adapter_field import FIELD
from gateway.requests.cache_salt import refused
from gateway.requests.large_body import parse_large
from gateway.requests.large_media import scoped_large
from gateway.requests.media_uuid import scope_media
from gateway.requests.model_name import check_plain, default_model, renamed_query
from gateway.requests.multipart import MARK, check_no_form, form_kind, parse_form, renamed_body
from gateway.requests.named_session import session_of
from gateway.requests.parsing import BodyRules, parse_ids, parse_request

NAMELESS: Final = paths(route for route in TABLE if not route.names_model)


def parse_body(
    http: HttpRequest,
    known: Container[bytes],
    asked: str | None,
    default: str | None,
    *,
    max_bytes: int,
    keeps_transfer: bool,
    is_large: bool,
) -> InferenceRequest:
    """Parse the body of a request, at most `max_bytes` in UTF-8, which it then is in. `asked` is the model of
    its query. Raises InvalidRequest, Forbidden, NotSupported, BodyTooLarge, or ModelMissing where nothing
    names one and `default` is None."""
    if (encoding := encoding_of(http.body)) is not None:
        http.body = as_utf8(http.body, encoding, max_bytes)
    path, body, caller = http.path, http.body, http.caller
    salt, models = (caller.salt, caller.models) if caller is not None else (None, None)
    rules = BodyRules(keeps_transfer=keeps_transfer, model=asked, default=default, salt=salt, models=models)
    if body[:2] == MARK:
        if salt is not None:
            raise refused(path)
        return parse_form(path, body, form_kind(http), rules)
    if route_of(path).takes_forms:
        check_no_form(http)
    if http.prompt is not None:
        request = parse_ids(path, body, http.prompt, rules)
    else:
        parse = parse_large if is_large else parse_request
        request = parse(path, body, known, rules)
    if salt is not None:
        scope_media(request, salt, scoped_large if is_large else None)
    return request


def sole_model(http: HttpRequest, fleet: Fleet) -> str:
    """The model of a request that names none. Raises ModelMissing."""
    return default_model(http.path, usable(http.caller, fleet.served()))


def judge(
    http: HttpRequest,
    fleet: Fleet,
    asked: str | None,
    request: InferenceRequest,
    session_names: tuple[bytes, bytes],
) -> InferenceRequest:
    """The request with its adapter as its model, its tenant and its session, which a header or a cookie of
    `session_names` gives. Raises InvalidRequest, UnknownModel or Forbidden."""
    caller = http.caller
    if http.path in NAMELESS:
        check_plain(http.path, request.model, fleet.served())
    is_chosen = (request.adapter is not None or not fleet.knows(request.model)) and _chose(fleet, request)
    if caller is not None:
        caller.check(request.model)
        request.tenant = caller.tenant
    if (asked is None or is_chosen) and http.has_query:
        http.target = renamed_query(http.target, request.model)  # the query may name an empty one
    if session := session_of(http, *session_names):
        request.session = session
    return request


def _chose(fleet: Fleet, request: InferenceRequest) -> bool:
    """Put an adapter that is named beside the model, or behind it ("base:adapter"), in the model's place.
    False if there is none. Raises UnknownModel."""
    model, adapter = request.model, request.adapter
    name = fleet.adapter_of(model, adapter)
    if name is None and adapter is not None:
        raise UnknownModel(f"the adapter '{adapter}' of '{model}' does not exist", param=FIELD)
    if name is not None:
        request.choose(name, renamed_body(request.body, name) if request.body else b"")
    return name is not None
