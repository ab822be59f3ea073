"""What routing needs of a request's body, and the body as it goes on to the worker.

The body is passed on as it came, unknown fields too, but for the fields by which a client could
steer an engine: to other hosts (`kv_transfer_params`, `bootstrap_*`, `disaggregated_params`), to
other tokens, or to other events (`kv_cache_report_mode`, as a field or in `vllm_xargs`). Where tenants'
caches are kept apart, `cache_salt` is the gateway's.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

import msgspec
from xxhash import xxh3_128

from gateway.core.chat import Messages
from gateway.core.errors import InvalidRequest, ModelMissing
from gateway.core.salted import SALT, salted
from gateway.core.session import short
from gateway.core.tenants import Ticket


class Kind(Enum):
    """How a route is answered: CHAT and COMPLETION by prefix, AGENT by that of the chat that it comes to
    (`core/agents.py`), PASS by load alone."""

    CHAT = "chat"
    COMPLETION = "completion"
    AGENT = "agent"
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
    "/v1/responses": Kind.AGENT,
    "/v1/messages": Kind.AGENT,
    "/v1/messages/count_tokens": Kind.PASS,
    "/tokenize": Kind.PASS,
    "/detokenize": Kind.PASS,
    "/v1/tokenize": Kind.PASS,
    "/v1/detokenize": Kind.PASS,
    "/v1/chat/completions/batch": Kind.PASS,
    "/v1/chat/completions/render": Kind.PASS,
    "/v1/completions/render": Kind.PASS,
    "/v1/messages/render": Kind.PASS,
    "/v1/responses/render": Kind.PASS,
    "/v1/audio/transcriptions": Kind.PASS,
    "/v1/audio/translations": Kind.PASS,
    "/v2/embed": Kind.PASS,
    "/pooling": Kind.PASS,
    "/classify": Kind.PASS,
    "/v1/classify": Kind.PASS,
    "/encode": Kind.PASS,
    "/generate": Kind.PASS,
    "/generative_scoring": Kind.PASS,
    "/cohere/v2/chat": Kind.PASS,
    "/cohere/v2/chat/render": Kind.PASS,
}
"""Inference routes by path; all are POST. What else is forwarded is said with --route (`routes.py`)."""

RESPONSES = "/v1/responses"

_REPORT = "kv_cache_report_mode"
_STEERING_FIELDS = frozenset({"kv_transfer_params", "disaggregated_params", _REPORT})
_STEERING_PREFIX = "bootstrap_"
XARGS = "vllm_xargs"
_SCALARS = ("model", "stream", "cache_salt", "user", "priority", XARGS)
PREVIOUS = "previous_response_id"
STATE_FIELDS = ("store", "background", PREVIOUS, "conversation")
"""Of /v1/responses: by which something of it is kept in a worker, or was."""

_Value = list[msgspec.Raw] | dict[str, msgspec.Raw] | str | int | float | bool | None

_decode_any = msgspec.json.Decoder().decode
_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_top = msgspec.json.Decoder(dict[str, _Value]).decode

PROMPT_FIELDS = (
    "tools",
    "documents",
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "add_generation_prompt",
    "continue_final_message",
)
"""What a chat prompt's text depends on beside its messages."""


class InferenceRequest:
    """One request as routing sees it. `body` is what the worker gets; `fields` is it, decoded on demand."""

    __slots__ = (
        "kind",
        "path",
        "model",
        "body",
        "stream",
        "cache_salt",
        "session",
        "messages",
        "may_ask_usage",
        "may_split",
        "reads_cache",
        "priority",
        "tenant",
        "slo_ttft_s",
        "queued_s",
        "ticket",
        "may_repeat",
        "_fields",
    )

    def __init__(
        self,
        kind: Kind,
        path: str,
        body: bytes,
        top: Mapping[str, Any],
        *,
        fields: Mapping[str, Any] | None = None,
        messages: Messages | None = None,
    ) -> None:
        """`top` holds the body's top level with scalars decoded. Raises InvalidRequest for wrong ones.

        `reads_cache`: engines compute the whole prompt where log probabilities of the prompt are wanted.
        `may_split`: another worker may compute the prompt; not where several answers would fetch the same
        blocks, or the answer tells of the prompt itself.
        `may_repeat`: where one worker dies with it, another one may do it; not where something is kept of it.
        `priority`: lower goes first, as in vLLM; None where the body says none. Who asks is filled in by flow
        control, where there is some (`flow/gate.py`).
        """
        self.kind, self.path = kind, path
        self.model: str = top["model"]
        self.body = body
        self.stream = bool(_typed(top, "stream", bool, "a boolean"))
        self.cache_salt: str | None = _typed(top, "cache_salt", str, "a string")
        self.session = short(_typed(top, "user", str, "a string"))
        self.messages = messages
        self.reads_cache = top.get("prompt_logprobs") is None and not (
            top.get("echo") and top.get("logprobs")
        )
        is_plain = kind is Kind.CHAT or kind is Kind.COMPLETION
        self.may_ask_usage = self.stream and is_plain and _asks_for_one(top)
        self.may_split = is_plain and self.reads_cache and _has_one_answer(top)
        priority = top.get("priority")
        self.priority: int | None = priority if type(priority) is int else None
        self.tenant: str | None = None
        self.slo_ttft_s: float | None = None
        self.queued_s = 0.0
        self.ticket: Ticket | None = None
        self.may_repeat = path in ROUTES and not (path == RESPONSES and _leaves_something(top))
        self._fields = fields

    def __repr__(self) -> str:
        return f"InferenceRequest({self.kind.name}, model={self.model!r}, {len(self.body)} bytes)"

    @property
    def num_new_bytes(self) -> int:
        """About how much of it is not known: what its tokens will cost."""
        if self.messages is None or not self.messages.num_known:
            return len(self.body)
        return sum(memoryview(raw).nbytes for raw in self.messages.raws[self.messages.num_known :])

    def let_go(self) -> None:
        """It has been answered: no other worker will be asked, and its text is not kept."""
        self.body, self.messages, self._fields = b"", None, {}

    @property
    def fields(self) -> Mapping[str, Any]:
        if self._fields is None:
            self._fields = _decode(self.body)
        return self._fields


def parse_request(
    path: str,
    body: bytes,
    known: Container[bytes] = frozenset(),
    *,
    keeps_transfer: bool = False,
    model: str | None = None,
    salt: str | None = None,
) -> InferenceRequest:
    """Raises InvalidRequest that names the field at fault; ModelMissing where the body names none and no
    `model` is given. `keeps_transfer`: clients may split requests themselves, and say so to the workers.
    `salt` goes to the worker in place of the client's.

    `known` has the names (see Messages) of conversations whose messages passed these checks before:
    they are not decoded again. Everything else is.
    """
    kind = ROUTES.get(path, Kind.PASS)
    messages: Messages | None = None
    fields: dict[str, Any] | None = None
    if kind is Kind.PASS or kind is Kind.AGENT:
        top: Mapping[str, Any] = _scalars(path, body, model)
    elif kind is Kind.CHAT and (messages := _messages(body, known, salt)):
        top = messages.top
    else:
        top = fields = _decode(body)
        check_model(fields, model)
        if kind is Kind.CHAT:
            _check_messages(fields)
        else:
            _check_prompt(fields)
    sent = _without_steering(top, body, keeps_transfer)
    request = InferenceRequest(kind, path, sent, top, fields=fields, messages=messages)
    if salt is not None:
        request.body, request.cache_salt = salted(path, sent, salt, top), salt
        if fields is not None:
            fields[SALT] = salt  # they are those of the body that goes on
    if keeps_transfer and any([steers(name) and not steers_events(name) for name in top]):
        request.may_split = False  # its client splits it
    return request


def _messages(body: bytes, known: Container[bytes], salt: str | None) -> Messages | None:
    """The messages of a chat; None where the full check will have something to say."""
    try:
        top = _decode_top(body)
        raws, model = top.get("messages"), top.get("model")
        if type(raws) is not list or type(model) is not str or not model:
            return None
        setting, names = _names(model, top, raws, salt)
        num_known = max(len(raws) - 1, 0)  # the last message is never before a cut
        while num_known and names[num_known - 1] not in known:
            num_known -= 1
        new = [_decode_any(raw) for raw in raws[num_known:]]
        _decode_nested(top, with_prompt=not num_known)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    if not all(type(message) is dict and type(message.get("role")) is str for message in new):
        return None
    return Messages(raws, names, setting, num_known, top, new)


def _names(
    model: str, top: Mapping[str, Any], raws: Sequence[msgspec.Raw], salt: str | None
) -> tuple[bytes, Sequence[bytes]]:
    """JSON values end where they end, so that one after the other is told from any other sequence. What is
    known of one tenant's conversations makes no other's faster."""
    given = {name: top[name] for name in PROMPT_FIELDS if name in top}
    chain = xxh3_128(msgspec.json.encode((model, given)))
    setting, names = chain.digest(), []
    if salt is not None:
        chain.update(salt.encode())
    for raw in raws:
        chain.update(raw)
        names.append(chain.digest())
    return setting, names


def _decode_nested(top: Mapping[str, Any], *, with_prompt: bool) -> None:
    """Objects and lists are only split by now: what is wrong inside must not pass either."""
    for name, value in top.items():
        is_new = with_prompt or name not in PROMPT_FIELDS
        if type(value) in (dict, list) and name != "messages" and is_new:
            _decode_any(msgspec.json.encode(value))


def _leaves_something(top: Mapping[str, Any]) -> bool:
    """A response that is asked to be kept, or goes on with one. Where nothing is said engines keep none
    (vLLM: unless VLLM_ENABLE_RESPONSES_API_STORE is set)."""
    return any([top.get(name) not in (None, False) for name in STATE_FIELDS])


def _scalars(path: str, body: bytes, model: str | None) -> dict[str, Any]:
    """The fields that routing reads of a body that is not looked into, and the names of the others."""
    if not body and path not in ROUTES:
        body = b"{}"  # a route that was added with --route may have none
    try:
        if not body.isascii():
            body.decode()
        top: dict[str, Any] = _decode_raw(body)
        read = (*_SCALARS, *STATE_FIELDS) if path == RESPONSES else _SCALARS
        top |= {name: _decode_any(top[name]) for name in read if name in top}
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        top = _decode(body)  # says what is wrong
    check_model(top, model)
    return top


def check_model(fields: dict[str, Any], model: str | None) -> None:
    """The body's own, or what was said elsewhere."""
    if not _typed(fields, "model", str, "a string"):
        if model is None:
            raise ModelMissing
        fields["model"] = model


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


def _asks_for_one(top: Mapping[str, Any]) -> bool:
    """One answer to one prompt, and no word about its usage: what was added for us can be taken out again."""
    return "stream_options" not in top and top.get("n") in (None, 1) and _has_one_prompt(top)


def _has_one_prompt(top: Mapping[str, Any]) -> bool:
    prompt = top.get("prompt")
    return type(prompt) is not list or len(prompt) < 2 or type(prompt[0]) is int


def _has_one_answer(top: Mapping[str, Any]) -> bool:
    if any([top.get(name) not in (None, 1) for name in ("n", "best_of")]):
        return False
    return not top.get("use_beam_search") and not top.get("echo") and _has_one_prompt(top)


def _without_steering(fields: Mapping[str, Any], body: bytes, keeps_transfer: bool) -> bytes:
    is_steering = steers_events if keeps_transfer else steers
    xargs = fields.get(XARGS)
    in_xargs = isinstance(xargs, dict) and any(map(is_steering, xargs))
    if not in_xargs and not (_any_steers(fields) and any(map(is_steering, fields))):
        return body
    kept = {name: raw for name, raw in _decode_raw(body).items() if not is_steering(name)}
    if in_xargs:
        inner = {name: raw for name, raw in _decode_raw(kept[XARGS]).items() if not is_steering(name)}
        kept[XARGS] = msgspec.Raw(msgspec.json.encode(inner))
    return msgspec.json.encode(kept)


def _any_steers(names: Iterable[str]) -> bool:
    if not _STEERING_FIELDS.isdisjoint(names):
        return True
    return any([name[:10] == _STEERING_PREFIX for name in names])


def steers(name: str) -> bool:
    return name in _STEERING_FIELDS or name.startswith(_STEERING_PREFIX)


def steers_events(name: str) -> bool:
    return name == _REPORT


def _json_type(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
