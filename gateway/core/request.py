"""What routing needs of a request's body, and the body as it goes on to the worker.

The body is passed on as it came, unknown fields too, but for the fields by which a client could
steer an engine: to other hosts (`kv_transfer_params`, `bootstrap_*`, `disaggregated_params`), to
other tokens, or to other events (`kv_cache_report_mode`, as a field or in `vllm_xargs`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec

from gateway.core.errors import InvalidRequest


class Kind(Enum):
    """How a route is answered: CHAT and COMPLETION by prefix, PASS by load alone."""

    CHAT = "chat"
    COMPLETION = "completion"
    PASS = "pass"


ROUTES: Mapping[str, Kind] = {
    "/v1/chat/completions": Kind.CHAT,
    "/v1/completions": Kind.COMPLETION,
    "/v1/embeddings": Kind.PASS,
    "/v1/rerank": Kind.PASS,
    "/v2/rerank": Kind.PASS,
    "/rerank": Kind.PASS,
    "/v1/score": Kind.PASS,
    "/score": Kind.PASS,
    "/v1/responses": Kind.PASS,
    "/v1/messages": Kind.PASS,
    "/v1/messages/count_tokens": Kind.PASS,
    "/tokenize": Kind.PASS,
    "/detokenize": Kind.PASS,
}
"""Inference routes by path; all are POST. What is not here is not forwarded."""

_STEERING_FIELDS = frozenset({"kv_transfer_params", "disaggregated_params", "kv_cache_report_mode"})
_STEERING_PREFIX = "bootstrap_"
_XARGS = "vllm_xargs"

_decode_any = msgspec.json.Decoder().decode
_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """One request as routing sees it. `body` is what the worker gets; `fields` is it, decoded."""

    kind: Kind
    path: str
    model: str
    body: bytes
    fields: Mapping[str, Any] = field(repr=False)
    stream: bool = False
    cache_salt: str | None = None
    session: str | None = None


def parse_request(path: str, body: bytes) -> InferenceRequest:
    """Raises InvalidRequest that names the field at fault."""
    kind = ROUTES[path]
    fields = _decode(body)
    model = _typed(fields, "model", str, "a string")
    if not model:
        raise InvalidRequest("you must provide a model parameter", param="model")
    if kind is Kind.CHAT:
        _check_messages(fields)
    elif kind is Kind.COMPLETION:
        _check_prompt(fields)
    return InferenceRequest(
        kind=kind,
        path=path,
        model=model,
        body=_without_steering(fields, body),
        fields=fields,
        stream=bool(_typed(fields, "stream", bool, "a boolean")),
        cache_salt=_typed(fields, "cache_salt", str, "a string"),
        session=_typed(fields, "user", str, "a string"),
    )


def _decode(body: bytes) -> dict[str, Any]:
    try:
        fields = _decode_any(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise InvalidRequest(f"the body is not valid JSON: {exc}") from exc
    if not isinstance(fields, dict):
        raise InvalidRequest(f"the body must be a JSON object, not {_json_type(fields)}")
    return fields


def _typed(fields: Mapping[str, Any], name: str, kind: type, called: str) -> Any:
    value = fields.get(name)
    if value is not None and not isinstance(value, kind):
        raise InvalidRequest(f"'{name}' must be {called}, not {_json_type(value)}", param=name)
    return value


def _check_messages(fields: Mapping[str, Any]) -> None:
    messages = _typed(fields, "messages", list, "a list of messages")
    if messages is None:
        raise InvalidRequest("you must provide a messages parameter", param="messages")
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        if not isinstance(message, dict):
            raise InvalidRequest(f"'{where}' must be an object, not {_json_type(message)}", param=where)
        if not isinstance(message.get("role"), str):
            raise InvalidRequest(f"'{where}.role' must be a string", param=f"{where}.role")


def _check_prompt(fields: Mapping[str, Any]) -> None:
    prompt = fields.get("prompt")
    if prompt is None and "prompt_embeds" in fields:
        return
    if not _is_prompt(prompt):
        called = "a string, a list of strings, a list of token ids or a list of lists of token ids"
        raise InvalidRequest(f"'prompt' must be {called}, not {_json_type(prompt)}", param="prompt")


def _is_prompt(prompt: object) -> bool:
    if isinstance(prompt, str):
        return True
    if not isinstance(prompt, list) or not prompt:
        return False
    if isinstance(prompt[0], list):
        return all(isinstance(ids, list) and _are_ids(ids) for ids in prompt)
    return _are_ids(prompt) or all(isinstance(text, str) for text in prompt)


def _are_ids(ids: list[Any]) -> bool:
    return all(type(i) is int and 0 <= i < 1 << 32 for i in ids)


def _without_steering(fields: Mapping[str, Any], body: bytes) -> bytes:
    xargs = fields.get(_XARGS)
    in_xargs = isinstance(xargs, dict) and any(_steers(name) for name in xargs)
    if not in_xargs and not any(_steers(name) for name in fields):
        return body
    kept = {name: raw for name, raw in _decode_raw(body).items() if not _steers(name)}
    if in_xargs:
        inner = {name: raw for name, raw in _decode_raw(kept[_XARGS]).items() if not _steers(name)}
        kept[_XARGS] = msgspec.Raw(msgspec.json.encode(inner))
    return msgspec.json.encode(kept)


def _steers(name: str) -> bool:
    return name in _STEERING_FIELDS or name.startswith(_STEERING_PREFIX)


def _json_type(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
