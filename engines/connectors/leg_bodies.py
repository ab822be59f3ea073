"""A client's body made into those of two legs, as far as all connectors have it in common.

The prefill worker is to compute the prompt and nothing else: one token, unstreamed, one answer, without what
constrains or explains an answer. What makes the prompt (messages, tools, template) stays, or the two would
compute different prompts: tools stay too where a choice among them is forced, which goes.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from engines.wire import parse
from gateway.core.kv_connector import Handed
from gateway.core.usage import WIDEST, RefusedUsage, UsageLimit, judged

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
encode = msgspec.json.encode

_OF_ANSWERS = frozenset(
    {
        "stream_options",
        "min_tokens",
        "best_of",
        "logprobs",
        "top_logprobs",
        "response_format",
        "structured_outputs",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "regex",
        "json_schema",
        "ebnf",
    }
)
_ONE_ANSWER = UsageLimit(WIDEST.prompt, WIDEST.output)
_FREE_CHOICES = (b'"auto"', b'"none"', b"null")
_ONE, _FALSE, _NONE = msgspec.Raw(b"1"), msgspec.Raw(b"false"), msgspec.Raw(b'"none"')


def fields_of(body: bytes) -> dict[str, Any]:
    """A body that was parsed before, by its top level."""
    return dict(_decode(body))


def prefill_only(body: bytes) -> dict[str, Any]:
    fields = {name: raw for name, raw in _decode(body).items() if name not in _OF_ANSWERS}
    for name in ("max_completion_tokens", "n"):
        if name in fields:
            fields[name] = _ONE
    if bytes(fields.get("tool_choice", b"null")) not in _FREE_CHOICES:
        fields["tool_choice"] = _NONE
    return {**fields, "max_tokens": _ONE, "stream": _FALSE}


def with_field(body: bytes, name: str, value: object) -> bytes:
    """A body with a field more, which it does not have."""
    end = body.rindex(b"}")
    sep = b"," if body[:end].rstrip()[-1:] != b"{" else b""
    data = value if isinstance(value, bytes) else encode(value)
    return b"%b%b%b:%b}" % (body[:end], sep, encode(name), data)


class PrefillAnswer(msgspec.Struct):
    """What connectors read of a prefill worker's answer."""

    usage: msgspec.Raw = msgspec.Raw(b"null")
    kv_transfer_params: msgspec.Raw = msgspec.Raw(b"null")
    choices: list[Mapping[str, msgspec.Raw]] = []

    def handed(self, params: bytes) -> Handed:
        """Of this answer, with what the decode worker is to be given."""
        usage = judged(self.usage, _ONE_ANSWER)
        if isinstance(usage, RefusedUsage):
            return Handed(params, refused_usage=usage.why)
        if usage is None:
            return Handed(params)
        return Handed(params, usage.prompt_tokens or None, usage.cached_tokens)


_answer = msgspec.json.Decoder(PrefillAnswer).decode


def read_answer(body: bytes) -> PrefillAnswer:
    """Raises DecodeError."""
    return parse("the prefill worker's answer", _answer, body)
