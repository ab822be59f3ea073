"""Inference request as routing and policies see it, whichever route and dialect it came by.

`requests/` makes one of a body, once it is parsed, checked, and freed of what may not go on to a worker.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from gateway.core.body_text import why_unreadable
from gateway.core.chat_messages import Messages
from gateway.core.errors import InvalidRequest
from gateway.core.json_values import decode, json_type
from gateway.core.route_table import ADDED, RouteKind, route_of
from gateway.core.session_id import short

MODEL: Final = "model"
PREVIOUS: Final = "previous_response_id"
STATE_FIELDS: Final[tuple[str, ...]] = ("store", "background", PREVIOUS, "conversation")
"""Fields of /v1/responses by which a worker keeps something of it, or has kept."""


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
        """Read the fields of `top`, the body with its scalars decoded and of the right types.

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
        self.stream = bool(top.get("stream"))
        self.adapter: str | None = None
        self.cache_salt: str | None = top.get("cache_salt")
        self.session = short(top.get("user"))
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
        """Set what is found out later, and what `requests/large_body.py` sets otherwise. `is_large`: `top`
        has stand-ins for long fields, and `fields` take a thread. `is_whole`: no known messages spare it a
        rendering. `is_crowded`: the body is not decoded.
        `num_ids`: the prompt is a list of so many token ids. `decode` makes `fields` of the body."""
        self.is_large = self.is_crowded = self.is_whole = False
        self.num_ids = 0
        self.tenant: str | None = None
        self.slo_ttft_s: float | None = None
        self.queued_s = 0.0
        self.decode: Callable[[bytes], dict[str, Any]] = decode_object

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


def _leaves_something(top: Mapping[str, Any]) -> bool:
    """A response that is asked to be kept, or goes on with one. Where nothing is said engines keep none
    (vLLM: unless VLLM_ENABLE_RESPONSES_API_STORE is set)."""
    return any([top.get(name) not in (None, False) for name in STATE_FIELDS])


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


def decode_object(body: bytes) -> dict[str, Any]:
    """The fields of a body. Raises InvalidRequest with the place where it cannot be read."""
    try:
        fields = decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise InvalidRequest(f"the body is not valid JSON: {why_unreadable(exc, body)}") from exc
    if not isinstance(fields, dict):
        raise InvalidRequest(f"the body must be a JSON object, not {json_type(fields)}")
    return fields
