"""Chats with what chat templates are known to insist on: a template that renders none of them is broken."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from gateway.tokenization.chat_template import HF_PARAMETERS, Template
from gateway.tokenization.jinja_env import ENVIRONMENT

_HELLO: Final = {"role": "user", "content": "Hello"}
_SYSTEM: Final = {"role": "system", "content": "Be brief."}
_PARAMETERS: Final = {"type": "object", "properties": {"a": {"type": "string", "description": "b"}}}
_FUNCTION: Final = {
    "name": "probe",
    "description": "Probes.",
    "parameters": {**_PARAMETERS, "required": ["a"]},
}
_TOOLS: Final = [{"type": "function", "function": _FUNCTION}]
_CALL: Final = {
    "id": "call10000",
    "type": "function",
    "function": {"name": "probe", "arguments": '{"a": "c"}'},
}
_CALLED: Final = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_RESULT: Final = {"role": "tool", "tool_call_id": "call10000", "name": "probe", "content": "1"}
_DOCUMENT: Final = {"title": "A", "text": "B", "contents": "B", "doc_id": "1"}
NEEDS: Final[tuple[Mapping[str, Any], ...]] = (
    {"messages": [_HELLO]},
    {"messages": [_HELLO], "tools": _TOOLS},
    {"messages": [_SYSTEM, _HELLO]},
    {"messages": [_SYSTEM, _HELLO], "tools": _TOOLS},
    {"messages": [_HELLO], "documents": [_DOCUMENT]},
    {"messages": [_HELLO], "reasoning_effort": "low"},
    {"messages": [_HELLO, _CALLED, _RESULT], "tools": _TOOLS},
    {"messages": [_SYSTEM, _HELLO, _CALLED, _RESULT], "tools": _TOOLS, "documents": [_DOCUMENT]},
)
"""Bodies of chats; the first is plain."""
FIELDS: Final = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "reasoning_effort", "strftime_now"}
)
"""Variables of a template that come from a request's own fields, or from the engine."""


def needs_of(templates: Iterable[Template], given: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Bodies of chats, a plain one first; the last have the templates' own variables as arguments too, except
    those that are `given`. A template that raises on all of them is broken, or not for chat."""
    names = {name for template in templates for name in template.variables}
    own = dict.fromkeys(
        sorted(names - FIELDS - HF_PARAMETERS - ENVIRONMENT.globals.keys() - {*given}), "probe"
    )
    yield from map(dict, NEEDS)
    for body in NEEDS if own else ():
        yield {**body, "chat_template_kwargs": own}
