"""Bodies of the APIs that coding agents speak, translated to a chat. Pure.

A renderer's dialect is what its engine finds out about its template at start: see `Dialect`.
"""

from collections.abc import Callable, Container, Mapping
from datetime import datetime
from typing import Any

import jinja2
import msgspec

from gateway.apis import anthropic, responses, sglang
from gateway.apis.anthropic import Dialect
from gateway.core.errors import InvalidRequest
from gateway.core.json_values import encode
from gateway.core.rendering import Rendering
from gateway.core.request import InferenceRequest
from gateway.core.route_table import CHAT, RouteKind, route_of
from gateway.requests.parsing import BodyRules, parse_request
from gateway.tokenization.base import Renderer
from gateway.tokenization.chat_template import PromptError, check_parts
from gateway.tokenization.jinja_env import ENVIRONMENT

Translate = Callable[[Mapping[str, Any], Dialect], dict[str, Any]]
"""A body's fields to those of a chat. Raises PromptError."""

TRANSLATORS: Mapping[str, Mapping[str, Translate]] = {
    "anthropic": {"vllm": anthropic.chat_of, "sglang": sglang.messages_chat},
    "responses": {"vllm": responses.chat_of, "sglang": sglang.responses_chat},
}
"""Translators by the name in the table of routes (`Route.to_chat`), and by the engine of the dialect."""

UNKNOWN = Dialect()
EFFORTS = ("low", "medium", "high", "xhigh", "max")
ITEMS = ("messages", "input", "system", "tools")
"""Fields with lists of which each item is translated."""
MAX_COPIED_BYTES = 8 << 20
"""A longer body is not made a body again; what is known of its conversation is of no use then."""
_SYSTEM, _USER = {"role": "system", "content": "t"}, {"role": "user", "content": "t"}
_PROBE = [{"role": "user", "content": "Hi"}]


def as_chat(
    request: InferenceRequest, dialect: Dialect = UNKNOWN, known: Container[bytes] = frozenset()
) -> InferenceRequest:
    """The chat with the same prompt; `known` as for `parse_request`. Raises PromptError."""
    if request.is_crowded:
        raise PromptError("its body has too many values to inspect")
    try:
        fields = request.fields
        for name in ITEMS:
            if isinstance(items := fields.get(name), list):
                check_parts(items)
        translate = TRANSLATORS[route_of(request.path).to_chat][dialect.engine]
        chat = {"model": request.model, **translate(fields, dialect)}
        if len(request.body) > MAX_COPIED_BYTES:
            made = InferenceRequest(RouteKind.CHAT, CHAT, b"", {"model": request.model}, fields=chat)
        else:
            made = parse_request(CHAT, encode(chat), known, BodyRules(salt=request.cache_salt))
    except (AttributeError, KeyError, TypeError, InvalidRequest) as exc:
        raise PromptError("a field has the wrong type", type(exc).__name__) from exc
    made.cache_salt, made.session = request.cache_salt, request.session
    made.is_whole = True  # its caller went by the length of the body
    return made


def dialect_of(renderer: Renderer, now: datetime) -> Dialect:
    rendering = renderer.rendering
    if rendering.engine == "sglang":
        return _sglang_dialect(rendering, renderer.sources[0] if renderer.sources else "")
    merges = any(map(_wants_system_first, renderer.sources)) if renderer.sources else None
    return Dialect(merges, _disabled_effort(renderer, now), renderer.renders_chats_as_engine)


def unknown_dialect(rendering: Rendering) -> Dialect:
    """Dialect of a rendering before a template that is not known here."""
    return Dialect(
        engine=rendering.engine, version=rendering.version, reasoning_parser=rendering.reasoning_parser
    )


def _sglang_dialect(rendering: Rendering, template: str) -> Dialect:
    """Dialect of SGLang, which makes responses of gpt-oss by code and their chats by the template."""
    return Dialect(
        merges_system=not _keeps_late_system(template),
        has_chats="<|channel|>" not in template,
        engine=rendering.engine,
        version=rendering.version,
        reasoning_parser=rendering.reasoning_parser,
    )


def _keeps_late_system(template: str) -> bool:
    """True if a template prints a late system message; it is tested as SGLang tests it."""
    late = {"role": "system", "content": "__sglang_inline_system_sentinel__"}
    try:
        text = ENVIRONMENT.without_generation(template).render(
            messages=[_SYSTEM, _USER, late, _USER], add_generation_prompt=False
        )
    except Exception:  # noqa: BLE001  a template is a program from elsewhere
        return False
    return late["content"] in text


def _wants_system_first(template: str) -> bool:
    """True if a template takes system messages at the start only; it is tested as vLLM tests it."""
    if not template:
        return True
    try:
        messages = [_SYSTEM, _USER, _SYSTEM, _USER]
        ENVIRONMENT.without_generation(template).render(messages=messages, add_generation_prompt=False)
    except jinja2.TemplateError:
        return True
    except Exception as exc:  # noqa: BLE001  a template is a program from elsewhere; the engine does not start
        raise PromptError("the chat template fails on system messages", type(exc).__name__) from exc
    return False


def _disabled_effort(renderer: Renderer, now: datetime) -> str:
    """Return the effort that turns reasoning off: "low" where the template refuses "none" or ignores it."""
    off = _prompt(renderer, "none", now)
    if off is None or any(_prompt(renderer, effort, now) == off for effort in EFFORTS):
        return "low"
    return "none"


def _prompt(renderer: Renderer, effort: str, now: datetime) -> object:
    body = {"model": "m", "messages": _PROBE, "reasoning_effort": effort}
    try:
        return renderer.tokens(parse_request(CHAT, msgspec.json.encode(body)), now).tokens
    except PromptError:
        return None
