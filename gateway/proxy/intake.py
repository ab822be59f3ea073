"""Intake: a client's request as routing sees it, read with the configuration and the fleet of this moment."""

from collections.abc import Callable
from functools import partial

from gateway.config.admission import HeadersSection
from gateway.core.decode_errors import LARGE
from gateway.core.errors import ModelMissing
from gateway.core.request import InferenceRequest
from gateway.http.messages import HttpRequest
from gateway.proxy.context import Context
from gateway.requests.client_body import judge, parse_body, sole_model
from gateway.requests.model_name import asked_in_query
from gateway.requests.model_rewrite import rewrite


def request_of(context: Context, http: HttpRequest) -> InferenceRequest:
    """Return the parsed and checked request. Raises InvalidRequest or Forbidden."""
    asked = asked_in_query(http.target) if http.has_query else None
    is_large = len(http.body) >= LARGE
    try:
        request = _parsed(context, http, asked, None, is_large=is_large)
    except ModelMissing:
        default = sole_model(http, context.router.fleet)
        request = _parsed(context, http, None, default, is_large=is_large)
    return _judged(context, http, asked, request)


async def large_request_of(
    context: Context, http: HttpRequest, is_over: Callable[[], bool]
) -> InferenceRequest | None:
    """Return a large request, parsed in a thread; None if it `is_over` by then. Raises InvalidRequest or
    Forbidden."""
    asked = asked_in_query(http.target) if http.has_query else None
    read = context.prompts.long_prompts.read

    def parse(name: str | None, default: str | None) -> InferenceRequest | None:
        return None if is_over() else _parsed(context, http, name, default, is_large=True)

    try:
        request = await read(partial(parse, asked, None))
    except ModelMissing:
        request = await read(partial(parse, None, sole_model(http, context.router.fleet)))
    return None if request is None or is_over() else _judged(context, http, asked, request)


def session_names(headers: HeadersSection) -> tuple[bytes, bytes]:
    """Return the header, in lower case, and the cookie that name a session."""
    return headers.session_header.lower().encode(), headers.session_cookie.encode()


def _parsed(
    context: Context, http: HttpRequest, asked: str | None, default: str | None, *, is_large: bool
) -> InferenceRequest:
    config, known = context.config, context.prompts.source.runs
    return parse_body(
        http,
        known,
        asked,
        default,
        max_bytes=config.server.max_body_bytes,
        keeps_transfer=config.proxy.allow_transfer_fields,
        is_large=is_large,
    )


def _judged(
    context: Context, http: HttpRequest, asked: str | None, request: InferenceRequest
) -> InferenceRequest:
    fleet = context.router.fleet
    request = judge(http, fleet, asked, request, session_names(context.config.headers))
    if context.objects.rewrites is not None:
        rewrite(http, request, context.objects.rewrites, fleet.served())
    return request
