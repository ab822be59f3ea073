"""Intake: a client's request as routing sees it, parsed, with one model name, checked against the API key."""

from collections.abc import Callable
from functools import partial
from typing import Final

from gateway.apis.open_routes import default_model
from gateway.config.admission import HeadersSection
from gateway.core.body_text import as_utf8, encoding_of
from gateway.core.caller import usable
from gateway.core.decode_errors import LARGE
from gateway.core.errors import ModelMissing, UnknownModel
from gateway.core.fleet import Fleet
from gateway.core.request import InferenceRequest
from gateway.core.route_table import TABLE, paths, route_of
from gateway.http.messages import HttpRequest
from gateway.proxy.context import Context
from gateway.requests.adapter_field import FIELD
from gateway.requests.cache_salt import refused
from gateway.requests.large_body import parse_large
from gateway.requests.large_media import scoped_large
from gateway.requests.media_uuid import scope_media
from gateway.requests.model_name import asked_in_query, check_plain, renamed_query
from gateway.requests.multipart import MARK, check_no_form, form_kind, parse_form, renamed_body
from gateway.requests.named_session import session_of
from gateway.requests.parsing import parse_request

NAMELESS: Final = paths(route for route in TABLE if not route.names_model)


def request_of(context: Context, http: HttpRequest) -> InferenceRequest:
    """Return the parsed and checked request. Raises InvalidRequest or Forbidden."""
    caller, fleet = http.caller, context.router.fleet
    asked = asked_in_query(http.target) if b"?" in http.target else None
    is_large = len(http.body) >= LARGE
    try:
        request = _parse(context, http, asked, None, is_large=is_large)
    except ModelMissing:
        default = default_model(http.path, usable(caller, fleet.served()))
        request = _parse(context, http, None, default, is_large=is_large)
    return _checked(context, http, asked, request)


async def large_request_of(
    context: Context, http: HttpRequest, is_over: Callable[[], bool]
) -> InferenceRequest | None:
    """Return a large request, parsed in a thread; None if it `is_over` by then. Raises InvalidRequest or
    Forbidden."""
    asked = asked_in_query(http.target) if b"?" in http.target else None
    read = context.prompts.long_prompts.read

    def parse(name: str | None, default: str | None) -> InferenceRequest | None:
        return None if is_over() else _parse(context, http, name, default, is_large=True)

    try:
        request = await read(partial(parse, asked, None))
    except ModelMissing:
        default = default_model(http.path, usable(http.caller, context.router.fleet.served()))
        request = await read(partial(parse, None, default))
    return None if request is None or is_over() else _checked(context, http, asked, request)


def _checked(
    context: Context, http: HttpRequest, asked: str | None, request: InferenceRequest
) -> InferenceRequest:
    caller, fleet = http.caller, context.router.fleet
    if http.path in NAMELESS:
        check_plain(http.path, request.model, fleet.served())
    is_chosen = (request.adapter is not None or not fleet.knows(request.model)) and _chose(fleet, request)
    if caller is not None:
        caller.check(request.model)
        request.tenant = caller.tenant
    if (asked is None or is_chosen) and b"?" in http.target:
        http.target = renamed_query(http.target, request.model)  # the query may name an empty one
    if session := session_of(http, *session_names(context.config.headers)):
        request.session = session
    return request


def session_names(headers: HeadersSection) -> tuple[bytes, bytes]:
    """Return the header, in lower case, and the cookie that name a session."""
    return headers.session_header.lower().encode(), headers.session_cookie.encode()


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


def _parse(
    context: Context, http: HttpRequest, asked: str | None, default: str | None, *, is_large: bool
) -> InferenceRequest:
    if (encoding := encoding_of(http.body)) is not None:
        http.body = as_utf8(http.body, encoding, context.config.server.max_body_bytes)
    keeps, path, body, caller = context.config.proxy.allow_transfer_fields, http.path, http.body, http.caller
    salt, models = (caller.salt, caller.models) if caller is not None else (None, None)
    if body[:2] == MARK:
        if salt is not None:
            raise refused(path)
        kind = form_kind(http)
        return parse_form(path, body, kind, keeps_transfer=keeps, model=asked, default=default, models=models)
    if route_of(path).takes_forms:
        check_no_form(http)
    parse = parse_large if is_large else parse_request
    request = parse(
        path,
        body,
        context.prompts.source.runs,
        keeps_transfer=keeps,
        model=asked,
        default=default,
        salt=salt,
        models=models,
    )
    if salt is not None:
        scope_media(request, salt, scoped_large if is_large else None)
    return request
