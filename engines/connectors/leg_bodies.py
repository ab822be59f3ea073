"""Bodies of the prefill and decode legs, as far as all connectors make them alike.

The prefill worker computes the prompt and nothing else: one token, unstreamed, one choice, without fields
that constrain or explain the output. Fields that make the prompt (messages, tools, template) stay, or the two
would compute different prompts: tools stay even where a forced choice among them is removed.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from engines.wire import parse
from gateway.core.kv_connector import PrefillResult
from gateway.core.usage import WIDEST, RefusedUsage, UsageLimit
from gateway.core.usage_reading import judged

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
    """Top-level fields of a body that was parsed before."""
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
    """Body with one more field, which it must not have yet."""
    end = body.rindex(b"}")
    sep = b"," if body[:end].rstrip()[-1:] != b"{" else b""
    data = value if isinstance(value, bytes) else encode(value)
    return b"%b%b%b:%b}" % (body[:end], sep, encode(name), data)


class PrefillAnswer(msgspec.Struct):
    """Fields of a prefill worker's response that connectors read."""

    usage: msgspec.Raw = msgspec.Raw(b"null")
    kv_transfer_params: msgspec.Raw = msgspec.Raw(b"null")
    choices: list[Mapping[str, msgspec.Raw]] = []

    def prefill_result(self, params: bytes) -> PrefillResult:
        """Handed-over parameters for the decode worker, with the usage of this response."""
        usage = judged(self.usage, _ONE_ANSWER)
        if isinstance(usage, RefusedUsage):
            return PrefillResult(params, refused_usage=usage.why)
        if usage is None:
            return PrefillResult(params)
        return PrefillResult(params, usage.prompt_tokens or None, usage.cached_tokens)


_answer = msgspec.json.Decoder(PrefillAnswer).decode


def read_answer(body: bytes) -> PrefillAnswer:
    """Decode a prefill worker's response. Raises DecodeError."""
    return parse("the prefill worker's answer", _answer, body)
