"""The fields of a request's body that routing needs, and the body as it goes on to the worker.

The body is passed on as it came, unknown fields too, but for the fields by which a client could
steer an engine (`field_judgement.py`, `steering.py`) and for its model, where something else names that
(`model_name.py`). Where tenants' caches are kept apart, `cache_salt` is the gateway's.
"""

from collections.abc import Container, Mapping, Sequence
from typing import Any, Final

import msgspec
from mypy_extensions import mypyc_attr
from xxhash import xxh3_128

from gateway.core.chat_messages import Messages
from gateway.core.json_values import decode, encode
from gateway.core.request import STATE_FIELDS, InferenceRequest, decode_object
from gateway.core.route_table import ADDED, RouteKind, route_of
from gateway.core.token_prompt import TokenPrompt
from gateway.requests.adapter_field import FIELD, adapter_of, without_adapter
from gateway.requests.cache_salt import SALT, salted
from gateway.requests.field_judgement import XARGS
from gateway.requests.field_types import (
    MAX_ITEMS,
    MESSAGES,
    check_lists,
    check_messages,
    check_prompt,
    check_scalars,
)
from gateway.requests.model_alias import renamed
from gateway.requests.model_name import check_once, decide
from gateway.requests.steering import has_transfer, unsteered

SCALARS: Final[tuple[str, ...]] = ("model", "stream", "cache_salt", "user", "priority", XARGS)

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


@mypyc_attr(acyclic=True)
class BodyRules:
    """Rules for a body from outside of it: from its query, its caller and the configuration."""

    __slots__ = ("keeps_transfer", "model", "default", "salt", "models")

    def __init__(
        self,
        *,
        keeps_transfer: bool = False,
        model: str | None = None,
        default: str | None = None,
        salt: str | None = None,
        models: Container[str] | None = None,
    ) -> None:
        """Create rules. `keeps_transfer`: clients may split requests themselves. `model` is that of the
        query, `default` the one where nothing names a model. `salt` goes to the worker in place of the
        client's; a limited key may use `models`."""
        self.keeps_transfer = keeps_transfer
        self.model, self.default = model, default
        self.salt, self.models = salt, models

    def __repr__(self) -> str:
        return f"BodyRules(model={self.model!r}, default={self.default!r}, limited={self.is_limited})"

    @property
    def is_limited(self) -> bool:
        return self.models is not None


PLAIN: Final = BodyRules()
"""Rules of a request without a query, for a caller that may use all models."""


def parse_request(
    path: str, body: bytes, known: Container[bytes] = frozenset(), rules: BodyRules = PLAIN
) -> InferenceRequest:
    """Parse a request. Raises InvalidRequest that names the field at fault, or Forbidden; ModelMissing where
    neither the body nor the rules name one.

    `known` has the names (see Messages) of conversations with messages that passed these checks before:
    they are not decoded again. Everything else is.
    """
    kind = route_of(path).kind
    messages = _messages(body, known, rules.salt) if kind is RouteKind.CHAT else None
    if messages is not None:
        top, fields, writes_model = messages.top, None, False
        if rules.model is not None:
            decide(top, rules.model)
    else:
        is_read = kind is RouteKind.CHAT or kind is RouteKind.COMPLETION
        top = decode_object(body) if is_read else _scalars(path, body)
        writes_model = decide(top, rules.model, rules.default, is_limited=rules.is_limited)
        fields = _checked(kind, top)
    return completed(kind, path, body, top, fields, messages, rules, writes_model=writes_model)


def parse_ids(path: str, body: bytes, prompt: TokenPrompt, rules: BodyRules = PLAIN) -> InferenceRequest:
    """Parse a completion with a stand-in for its token ids. Raises as `parse_request` does."""
    top = prompt.fields(body)
    writes_model = decide(top, rules.model, rules.default, is_limited=rules.is_limited)
    kind = RouteKind.COMPLETION
    request = completed(kind, path, body, top, top, None, rules, writes_model=writes_model)
    request.decode = prompt.fields
    return request


def completed(
    kind: RouteKind,
    path: str,
    body: bytes,
    top: dict[str, Any],
    fields: dict[str, Any] | None,
    messages: Messages | None,
    rules: BodyRules,
    *,
    writes_model: bool,
) -> InferenceRequest:
    """The request of a body with checked fields; `writes_model` as `decide` returns it."""
    route, salt, models = route_of(path), rules.salt, rules.models
    adapter = adapter_of(route, top) if FIELD in top else None
    if len(body) > 2 * MAX_ITEMS:
        check_lists(top, messages.new if messages is not None else top.get(MESSAGES))
    if models is not None and body:
        check_once(body)
    sent = unsteered(top, body, keeps_transfer=rules.keeps_transfer, models=models)
    sent = renamed(sent, top["model"]) if writes_model and body else sent
    sent = without_adapter(route, sent) if FIELD in top and route is not ADDED else sent
    check_scalars(top)
    request = InferenceRequest(kind, path, sent, top, fields=fields, messages=messages)
    request.adapter = adapter
    if salt is not None:
        request.body, request.cache_salt = salted(path, sent, salt, top), salt
        if fields is not None:
            fields[SALT] = salt  # they are those of the body that goes on
    if fields is not None:
        fields.pop(FIELD, None)
    if rules.keeps_transfer and has_transfer(top):
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
        top = decode_object(body)  # says what is wrong
    return top
