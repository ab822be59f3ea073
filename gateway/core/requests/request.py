"""The fields of a request's body that routing needs, and the body as it goes on to the worker.

The body is passed on as it came, unknown fields too, but for the fields by which a client could
steer an engine (`field_judgement.py`, `steering.py`) and for its model, where something else names that
(`model_name.py`). Where tenants' caches are kept apart, `cache_salt` is the gateway's.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Final

import msgspec
from xxhash import xxh3_128

from gateway.core.errors import InvalidRequest
from gateway.core.requests.adapter_field import FIELD, adapter_of, without_adapter
from gateway.core.requests.body_text import why_unreadable
from gateway.core.requests.cache_salt import SALT, salted
from gateway.core.requests.chat_messages import Messages
from gateway.core.requests.field_judgement import XARGS
from gateway.core.requests.field_types import (
    MAX_ITEMS,
    MESSAGES,
    check_lists,
    check_messages,
    check_prompt,
    json_type,
    typed,
)
from gateway.core.requests.json_values import decode, encode
from gateway.core.requests.model_alias import renamed
from gateway.core.requests.model_name import check_once, decide
from gateway.core.requests.routes import ADDED, RouteKind, route_of
from gateway.core.requests.session_id import short
from gateway.core.requests.steering import has_transfer, unsteered

SCALARS: Final[tuple[str, ...]] = ("model", "stream", "cache_salt", "user", "priority", XARGS)
PREVIOUS: Final = "previous_response_id"
STATE_FIELDS: Final[tuple[str, ...]] = ("store", "background", PREVIOUS, "conversation")
"""Fields of /v1/responses by which a worker keeps something of it, or has kept."""

_Value = list[msgspec.Raw] | dict[str, msgspec.Raw] | str | int | float | bool | None

decode_any = decode
decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_value = msgspec.json.Decoder(_Value).decode
_decode_top = msgspec.json.Decoder(dict[str, _Value]).decode

PROMPT_FIELDS: Final[tuple[str, ...]] = (
    "tools",
    "tool_choice",
    "documents",
    "chat_template",
    "chat_template_kwargs",
    "reasoning",
    "reasoning_effort",
    "add_generation_prompt",
    "continue_final_message",
)
"""The fields that a chat prompt's text depends on beside its messages."""


class InferenceRequest:
    """An inference request as routing sees it. `body` goes to the worker, `fields` is it decoded."""

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
        "given_priority",
        "tenant",
        "slo_ttft_s",
        "queued_s",
        "may_repeat",
        "is_crowded",
        "is_cut",
        "is_large",
        "is_whole",
        "num_ids",
        "num_prompts",
        "top",
        "previous",
        "adapter",
        "decode",
        "_fields",
    )

    def __init__(
        self,
        kind: RouteKind,
        path: str,
        body: bytes,
        top: Mapping[str, Any],
        *,
        fields: Mapping[str, Any] | None = None,
        messages: Messages | None = None,
    ) -> None:
        """Read the fields of `top`, the body with scalars decoded. Raises InvalidRequest for wrong ones.

        `reads_cache`: engines compute the whole prompt where log probabilities of the prompt are wanted.
        `may_split`: another worker may compute the prompt; not where several answers would fetch the same
        blocks, or the answer is about the prompt itself.
        `may_repeat`: where one worker dies with it, another one may do it; not where something is kept of it.
        `priority`: lower goes first, as in vLLM; None where the body has none; `given_priority` is as it
        came. Admission control fills in the tenant, `completed` the adapter beside the model.
        `is_cut`: the engine cuts the prompt to a length. `num_prompts` is 1 for one list of token ids.
        For the next ones see `_set_defaults`.
        """
        self.kind, self.path, self.body = kind, path, body
        self.model: str = top["model"]
        self.stream = bool(typed(top, "stream", bool, "a boolean"))
        self.adapter: str | None = None
        self.cache_salt: str | None = typed(top, "cache_salt", str, "a string")
        self.session = short(typed(top, "user", str, "a string"))
        self.messages = messages
        echoes = top.get("echo") and top.get("logprobs")
        self.reads_cache = top.get("prompt_logprobs") is None and not echoes
        self.may_ask_usage = self.stream and _is_plain(kind) and _asks_for_one(top)
        self.may_split = _is_plain(kind) and self.reads_cache and _has_one_answer(top)
        self.given_priority: object = top.get("priority")
        self.priority: int | None = self.given_priority if type(self.given_priority) is int else None
        route, self.is_cut, self.num_prompts = route_of(path), _is_cut(top), _num_prompts(top.get("prompt"))
        self.may_repeat = route is not ADDED and not (route.keeps_state and _leaves_something(top))
        self.previous, self.top, self._fields = top.get(PREVIOUS), top, fields
        self._set_defaults()

    def _set_defaults(self) -> None:
        """Set what is found out later, and what `apis/large_body.py` sets otherwise. `is_large`: `top` has
        stand-ins for long fields, and `fields` take a thread. `is_whole`: no known messages spare it a
        rendering. `is_crowded`: the body is not decoded.
        `num_ids`: the prompt is a list of so many token ids. `decode` makes `fields` of the body."""
        self.is_large = self.is_crowded = self.is_whole = False
        self.num_ids = 0
        self.tenant: str | None = None
        self.slo_ttft_s: float | None = None
        self.queued_s = 0.0
        self.decode: Callable[[bytes], dict[str, Any]] = _decode

    def __repr__(self) -> str:
        return f"InferenceRequest({self.kind.name}, model={self.model!r}, {len(self.body)} bytes)"

    @property
    def has_list_prompt(self) -> bool:
        """True where the prompt of a completion is not one text."""
        return isinstance(self.top.get("prompt"), list)

    @property
    def num_new_bytes(self) -> int:
        """About how much of it is not known: what its tokens will cost."""
        if self.messages is None or not self.messages.num_known or self.is_whole:
            return len(self.body)
        return sum(memoryview(raw).nbytes for raw in self.messages.raws[self.messages.num_known :])

    @property
    def num_new_parts(self) -> int:
        """Messages that are not known, with their parts and calls: what a template goes through. Where the
        messages are not apart, the objects of the body."""
        messages = self.messages
        if messages is None:
            return self.body.count(b"{")
        num = len(messages.names) - (0 if self.is_whole else messages.num_known)
        for message in messages.new or ():
            for field in ("content", "tool_calls"):
                value = message.get(field) if type(message) is dict else None
                num += len(value) if type(value) is list else 0
        return num

    def choose(self, model: str, body: bytes) -> None:
        """Ask for this model instead, with a body that names it."""
        self.model, self.body, self._fields = model, body, None

    def let_go(self) -> None:
        """Drop the body and its text once the answer has begun: no other worker will be asked."""
        self.body, self.messages, self.top, self._fields = b"", None, {}, {}

    @property
    def fields(self) -> Mapping[str, Any]:
        if self._fields is None:
            self._fields = self.decode(self.body)
        return self._fields


def parse_request(
    path: str,
    body: bytes,
    known: Container[bytes] = frozenset(),
    *,
    keeps_transfer: bool = False,
    model: str | None = None,
    default: str | None = None,
    salt: str | None = None,
    models: Container[str] | None = None,
) -> InferenceRequest:
    """Parse a request. Raises InvalidRequest that names the field at fault, or Forbidden; ModelMissing where
    neither the body nor `model` (the query's) nor `default` names one. `keeps_transfer`: clients may split
    requests themselves. `salt` goes to the worker in place of the client's; a limited key may use `models`.

    `known` has the names (see Messages) of conversations with messages that passed these checks before:
    they are not decoded again. Everything else is.
    """
    kind = route_of(path).kind
    messages = _messages(body, known, salt) if kind is RouteKind.CHAT else None
    if messages is not None:
        top, fields, writes_model = messages.top, None, False
        if model is not None:
            decide(top, model)
    else:
        top = _scalars(path, body) if kind is RouteKind.PASS or kind is RouteKind.AGENT else _decode(body)
        writes_model = decide(top, model, default, is_limited=models is not None)
        fields = _checked(kind, top)
    return completed(
        kind,
        path,
        body,
        top,
        fields,
        messages,
        keeps_transfer=keeps_transfer,
        salt=salt,
        models=models,
        writes_model=writes_model,
    )


def completed(
    kind: RouteKind,
    path: str,
    body: bytes,
    top: dict[str, Any],
    fields: dict[str, Any] | None,
    messages: Messages | None,
    *,
    keeps_transfer: bool,
    salt: str | None,
    models: Container[str] | None,
    writes_model: bool,
) -> InferenceRequest:
    """The request of a body with checked fields; `writes_model` as `decide` returns it."""
    route = route_of(path)
    adapter = adapter_of(route, top) if FIELD in top else None
    if len(body) > 2 * MAX_ITEMS:
        check_lists(top, messages.new if messages is not None else top.get(MESSAGES))
    if models is not None and body:
        check_once(body)
    sent = unsteered(top, body, keeps_transfer=keeps_transfer, models=models)
    sent = renamed(sent, top["model"]) if writes_model and body else sent
    sent = without_adapter(route, sent) if FIELD in top and route is not ADDED else sent
    request = InferenceRequest(kind, path, sent, top, fields=fields, messages=messages)
    request.adapter = adapter
    if salt is not None:
        request.body, request.cache_salt = salted(path, sent, salt, top), salt
        if fields is not None:
            fields[SALT] = salt  # they are those of the body that goes on
    if fields is not None:
        fields.pop(FIELD, None)
    if keeps_transfer and has_transfer(top):
        request.may_split = False  # its client splits it
    return request


def _checked(kind: RouteKind, top: dict[str, Any]) -> dict[str, Any] | None:
    """All fields of a body that has a prompt for us to read; None of another one."""
    if kind is RouteKind.CHAT:
        check_messages(top)
    elif kind is RouteKind.COMPLETION:
        check_prompt(top)
    else:
        return None
    return top


def _messages(body: bytes, known: Container[bytes], salt: str | None) -> Messages | None:
    """The messages of a chat; None where the full check will have something to say."""
    try:
        top = _split(body)
        raws, model = top.get("messages"), top.get("model")
        if type(raws) is not list or type(model) is not str or not model:
            return None
        setting, names = names_of(model, top, raws, salt)
        num_known = num_known_of(names, known)
        new = [decode_any(raw) for raw in raws[num_known:]]
        _decode_nested(top, with_prompt=not num_known)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    if not all(type(message) is dict and type(message.get("role")) is str for message in new):
        return None
    return Messages(raws, names, setting, num_known, top, new)


def decode_value(raw: msgspec.Raw) -> Any:
    """Decode a value, its items not decoded. Raises one of UNREADABLE."""
    try:
        return _decode_value(raw)
    except msgspec.ValidationError:  # a number out of range
        return decode(raw)


def _split(body: bytes) -> dict[str, Any]:
    """The fields of a body, their items not decoded. Raises one of UNREADABLE."""
    try:
        return _decode_top(body)
    except msgspec.ValidationError:  # a number out of range, or no object
        return {name: decode_value(raw) for name, raw in decode_raw(body).items()}


def num_known_of(names: Sequence[bytes], known: Container[bytes]) -> int:
    """How many leading messages were in a request before."""
    num_known = max(len(names) - 1, 0)  # the last message is never before a cut
    while num_known and names[num_known - 1] not in known:
        num_known -= 1
    return num_known


def names_of(
    model: str, top: Mapping[str, Any], raws: Sequence[msgspec.Raw], salt: str | None
) -> tuple[bytes, Sequence[bytes]]:
    """A name of the settings, and one of each prefix of the messages; chained hashes of their JSON values.

    The salt is part of them, so that a known conversation of one tenant makes no other's faster."""
    given = {name: top[name] for name in PROMPT_FIELDS if name in top}
    chain = xxh3_128(encode((model, given)))
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
            decode_any(msgspec.json.encode(value))


def _leaves_something(top: Mapping[str, Any]) -> bool:
    """A response that is asked to be kept, or goes on with one. Where nothing is said engines keep none
    (vLLM: unless VLLM_ENABLE_RESPONSES_API_STORE is set)."""
    return any([top.get(name) not in (None, False) for name in STATE_FIELDS])


def _scalars(path: str, body: bytes) -> dict[str, Any]:
    """The fields that routing reads of a body that is not looked into, and the names of the others."""
    if not body and route_of(path) is ADDED:
        body = b"{}"  # a route that was added with --route may have none
    try:
        if not body.isascii():
            body.decode()
        top: dict[str, Any] = decode_raw(body)
        read = (*SCALARS, *STATE_FIELDS) if route_of(path).keeps_state else SCALARS
        top |= {name: decode_any(top[name]) for name in read if name in top}
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        top = _decode(body)  # says what is wrong
    return top


def _decode(body: bytes) -> dict[str, Any]:
    try:
        fields = decode_any(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise InvalidRequest(f"the body is not valid JSON: {why_unreadable(exc, body)}") from exc
    if not isinstance(fields, dict):
        raise InvalidRequest(f"the body must be a JSON object, not {json_type(fields)}")
    return fields


def _is_plain(kind: RouteKind) -> bool:
    return kind is RouteKind.CHAT or kind is RouteKind.COMPLETION


def _asks_for_one(top: Mapping[str, Any]) -> bool:
    """True for one answer to one prompt without `stream_options`: injected usage can be stripped again."""
    return "stream_options" not in top and top.get("n") in (None, 1) and _has_one_prompt(top)


def _is_cut(top: Mapping[str, Any]) -> bool:
    return top.get("truncate_prompt_tokens") is not None or top.get("truncation") is not None


def _num_prompts(prompt: object) -> int:
    return len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1


def _has_one_prompt(top: Mapping[str, Any]) -> bool:
    prompt = top.get("prompt")
    return type(prompt) is not list or len(prompt) < 2 or type(prompt[0]) is int


def _has_one_answer(top: Mapping[str, Any]) -> bool:
    if any([top.get(name) not in (None, 1) for name in ("n", "best_of")]):
        return False
    return not top.get("use_beam_search") and not top.get("echo") and _has_one_prompt(top)
