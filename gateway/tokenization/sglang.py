"""SGLang: prompts as its own code renders them, which differs from vLLM's in what reaches the template.

Read in the released packages (PyPI) 0.5.10.post1 to 0.5.23: srt/entrypoints/openai/{protocol,serving_chat,
serving_completions}.py, srt/parser/{jinja_template_utils,template_manager}.py.
`tests/data/prompts/sglang-*.json` has the digests of the prompts that both ends of that range make.

    content parts    joined by one blank; a template with "image", "audio", "video" or "vision" in it gets a
                     list. Only text and tool references reach it: thinking is dropped
    messages         known fields only, in the order of the declaration and without null: no `reasoning`, no
                     name of a user, null content as ""
    roles            `developer` stays; unknown ones are rejected
    last message     an assistant's becomes a user's; with `continue_final_message` it is left out, and its
                     text follows the generation prompt, tokenized by itself
    calls            arguments must be a JSON object; `index` is always there
    tools            an object has `type`, `function`, `defer_loading`, and the client's order of a function's
                     fields (0.5.23); before, a fixed order with `strict` always there, and up to 0.5.10 no
                     `defer_loading`. `tool_choice` "none" leaves them out, a named one keeps that one
    template errors  the template is tried again with bare functions for tools
    reasoning        `reasoning_effort` and `reasoning` set `thinking` and `enable_thinking` for the template;
                     up to 0.5.15 only effort "none" does, and `reasoning.enabled`. An effort in
                     `chat_template_kwargs` counts as the request's; some templates' words change what
                     becomes of it (`sglang_effort.py`)
    arguments        null and "auto" in `chat_template_kwargs` reach the template
    named templates  the first one, with tools or without
    ignored          `add_generation_prompt`, `add_special_tokens`, truncation, `documents`; in completions
                     also `suffix`

Not rendered here: a template of the request's own, `input_ids` beside messages, and parameters with types of
databases, which the engine rewrites from 0.5.13 on.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from jinja2 import nodes

from gateway.core.blocks import Tokens
from gateway.core.decode_errors import UNREADABLE
from gateway.core.multimodal import MEDIA
from gateway.core.rendering import Rendering
from gateway.core.request import InferenceRequest
from gateway.core.token_runs import ContinuedTokens
from gateway.tokenization.chat_template import (
    ContentFormat,
    MediaError,
    Message,
    NotRendered,
    PromptError,
    Template,
    check_nested,
    reads,
)
from gateway.tokenization.prompt_encoder import PromptEncoder
from gateway.tokenization.sglang_effort import LOW_EFFORT, EffortUse, effort_use, hunyuan_effort
from gateway.tokenization.tokenizer import Tokenizer

Version = tuple[int, ...]
DEFERS, RETYPES, OBJECTS, THINKS = (0, 5, 11), (0, 5, 13), (0, 5, 14), (0, 5, 16)
"""First versions with deferred tools and texts of tool results; that rewrite types of parameters; that reject
arguments other than objects; with thinking parts and efforts that switch thinking."""
PHASED, ORDERS = (0, 5, 20), (0, 5, 23)
"""First versions with phases of messages; that keep the order of a function's fields."""

ROLES: Final = frozenset({"system", "assistant", "tool", "function", "developer", "latest_reminder", "root"})
PLAIN_ROLES: Final = frozenset({"user", "assistant", "system"})
TEXT_FIELDS: Final[tuple[str, ...]] = ("tool_call_id", "name", "phase", "reasoning_content")
"""Optional fields of a message, as declared: those that are text."""
MEDIA_WORDS: Final[tuple[str, ...]] = ("image", "audio", "video", "vision")
IGNORED: Final = frozenset(
    {"add_special_tokens", "truncate_prompt_tokens", "truncation_side", "suffix", "prompt_embeds"}
)
"""Fields that vLLM reads beside a prompt, and SGLang does not."""
RESERVED: Final = ("messages", "conversation", "tools", "add_generation_prompt", "tokenize", "return_dict")
"""Template arguments that the engine passes itself: given twice they are an error."""
UNKNOWN: Final = ("chat_template", "continue_final_message", "truncation", "return_assistant_tokens_mask")
"""Template arguments that would change the rendering itself."""
EFFORTS: Final = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"})
TYPES: Final = frozenset({"null", "boolean", "object", "array", "number", "string", "integer"})
CODED: Final = re.compile(r"DeepseekV4|KimiK3|Inkling|MiniMaxM3|Glm53|DeepseekV32")
"""Architectures that SGLang has encoders of its own for."""


class SglangTemplate(Template):
    """Chat template with messages as SGLang of a version hands them over."""

    def __init__(self, rendering: Rendering, source: str) -> None:
        self.rendering = rendering
        super().__init__(source)
        self.knows_developer = True  # the role stays
        self.effort_use = effort_use(source, self.tree, rendering)

    def find_format(self) -> ContentFormat:
        """Content format by SGLang's own rules, which look for loops over a message of these names only."""
        if any(word in self.source for word in MEDIA_WORDS):
            return "openai"
        loops = [loop.iter for loop in self.tree.find_all(nodes.For)]
        is_looped = any(reads(each, name, "content") for each in loops for name in ("message", "msg", "m"))
        return "openai" if is_looped else "string"

    def conversation(self, messages: object) -> list[Message]:
        if not isinstance(messages, list):
            raise PromptError("messages is not a list")
        check_nested(messages)
        return [
            _plain_message(each)
            or _message(each, f"messages[{i}]", self.content_format, self.rendering.version)
            for i, each in enumerate(messages)
        ]

    def render(self, messages: Sequence[Message], variables: Mapping[str, Any], now: datetime) -> str:
        try:
            return super().render(messages, variables, now)
        except PromptError:
            if not (tools := variables.get("tools")):
                raise
            bare = [tool.get("function", tool) for tool in tools]
            return super().render(messages, {**variables, "tools": bare}, now)


class SglangEncoder(PromptEncoder):
    """Encoder of one model's requests as SGLang renders them. Build it with `load_as`."""

    @classmethod
    def load_as(
        cls,
        rendering: Rendering,
        directory: Path,
        template: str | None = None,
        tokenizer: Tokenizer | None = None,
        *,
        is_of_file: bool = False,
    ) -> "SglangEncoder":
        """Load the model in `directory` for engines of a rendering; `tokenizer` is its own where it is loaded
        already. Raises PromptError."""
        if architecture := _coded(directory):
            raise NotRendered(f"SGLang makes the prompts of {architecture} by code, not by a template")
        compiled: Callable[[str], Template] = partial(SglangTemplate, rendering)
        encoder = cls.load(directory, template, compiled=compiled, tokenizer=tokenizer, is_of_file=is_of_file)
        assert isinstance(encoder, SglangEncoder)
        return encoder

    @property
    def rendering(self) -> Rendering:
        template = self._template(False)
        assert isinstance(template, SglangTemplate)
        return template.rendering

    def tokens(self, request: InferenceRequest, now: datetime) -> ContinuedTokens:
        chat = request.messages
        if chat is None or not chat.names or _is_open(chat.decode(len(chat.names) - 1)):
            return ContinuedTokens(self.chat(request.fields, now))
        return super().tokens(request, now)

    def chat(self, body: Mapping[str, Any], now: datetime) -> Tokens:
        tokens = self.encode(self.render(body, now), False)
        if not _continues(body):
            return tokens
        *_, last = self._template(False).conversation(body.get("messages"))
        if last["role"] == "assistant" and isinstance(last["content"], str) and last["content"]:
            return tokens + self._without_bos(self.encode(last["content"], True))
        return tokens

    def render(self, body: Mapping[str, Any], now: datetime) -> str:
        kwargs = self._template_kwargs(body)
        template = self._template(False)
        messages = template.conversation(body.get("messages"))
        if messages and messages[-1]["role"] == "assistant" and isinstance(messages[-1]["content"], str):
            *messages, last = messages
            if not _continues(body):
                messages.append({"role": "user", "content": last["content"]})
        return template.render(messages, self._variables(template, kwargs), now)

    def _without_bos(self, tokens: Tokens) -> Tokens:
        bos = self._special_tokens.get("bos_token")
        return tokens[1:] if bos and tokens[:1] == self.encode(bos, False) else tokens

    def growing(self, body: Mapping[str, Any]) -> ContinuedTokens | None:
        return super().growing(_read(body))

    def completion(self, body: Mapping[str, Any]) -> list[Tokens]:
        return super().completion(_read(body))

    def before_media(self, body: Mapping[str, Any], now: datetime) -> Tokens:
        return super().before_media(_read(body), now)

    def _fit_chat(self, body: Mapping[str, Any], tokens: Tokens) -> Tokens:
        return tokens

    def _template(self, with_tools: bool) -> Template:
        return next(iter(self._templates.values()))

    def _template_kwargs(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if body.get("input_ids") is not None:
            raise PromptError("input_ids beside messages are not read")
        given = body.get("chat_template_kwargs") or {}
        if not isinstance(given, Mapping):
            raise PromptError("chat_template_kwargs is not an object")
        for name in given:
            if name in RESERVED or (name in UNKNOWN and given[name]):
                raise PromptError(f"chat_template_kwargs: {name} is not rendered")
        effort, thinking = _reasoning(body, self.rendering.version)
        kwargs = {**thinking, **self._with_effort(given, effort)}
        kwargs["tools"] = _offered(body, self.rendering.version)
        return {**kwargs, "add_generation_prompt": True, "continue_final_message": _continues(body)}

    def _with_effort(self, given: Mapping[str, Any], effort: Any) -> dict[str, Any]:
        """Template arguments of a request with its effort, in its own or in the template's words."""
        template = self._template(False)
        assert isinstance(template, SglangTemplate)
        kwargs = dict(given)
        inner = kwargs.pop("reasoning_effort", None)
        if template.effort_use is EffortUse.HUNYUAN:
            effort = hunyuan_effort(inner if effort is None else effort)
        elif inner is not None:
            effort = inner
        if effort is not None:
            kwargs["reasoning_effort"] = effort
        if effort == "low" and template.effort_use is EffortUse.SETS_LOW:
            kwargs.setdefault(LOW_EFFORT, True)
        return kwargs


def _coded(directory: Path) -> str | None:
    """Architecture of a model that SGLang renders without its template; None for others."""
    try:
        config = json.loads((directory / "config.json").read_bytes())
        names = [name for name in config.get("architectures") or [] if isinstance(name, str)]
    except (OSError, AttributeError, TypeError, *UNREADABLE):
        return None
    return next((name for name in names if CODED.search(name)), None)


def _read(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The body without the fields that SGLang does not know."""
    if IGNORED.isdisjoint(body):
        return body
    return {name: value for name, value in body.items() if name not in IGNORED}


def _is_open(messages: Sequence[Any]) -> bool:
    """True if the last message is not followed by the model's turn as it stands."""
    last = messages[-1] if messages else None
    return not isinstance(last, Mapping) or str(last.get("role")).lower() == "assistant"


def _continues(body: Mapping[str, Any]) -> bool:
    value = body.get("continue_final_message", False)
    if value is not True and value is not False:
        raise PromptError("continue_final_message is not true or false")
    return value


def _reasoning(body: Mapping[str, Any], version: Version) -> tuple[Any, dict[str, bool]]:
    """Effort of a request, and the template arguments that it sets."""
    effort, given = body.get("reasoning_effort"), body.get("reasoning")
    is_enabled = False
    if isinstance(given, Mapping):
        asked = given.get("effort") or given.get("reasoning_effort")
        if asked is not None and (version >= THINKS or asked in ("none", "low", "medium", "high")):
            effort = asked
        enabled = given.get("enable", False) if given.get("enabled") is None else given["enabled"]
        is_text = isinstance(enabled, str)
        is_enabled = enabled.strip().lower() in ("1", "true", "yes", "y", "on") if is_text else bool(enabled)
    effort = _checked_effort(effort)
    if version >= THINKS:
        is_thinking = is_enabled if effort is None else effort != "none"
        names = ("thinking", "enable_thinking") if effort is not None or is_enabled else ()
        return effort, dict.fromkeys(names, is_thinking)
    thinking = {"thinking": True} if is_enabled else {}
    return effort, thinking | ({"thinking": False, "enable_thinking": False} if effort == "none" else {})


def _checked_effort(effort: object) -> object:
    if effort is None or effort in EFFORTS:
        return effort
    try:
        if isinstance(effort, str | int | float) and not isinstance(effort, bool):
            return float(effort)
    except ValueError:
        pass
    raise PromptError("reasoning_effort is neither a known word nor a number")


# --- messages ---


def _plain_message(message: object) -> Message | None:
    """Short path for a message of a role and a text, which stays as it is; None for others."""
    if type(message) is dict and len(message) == 2:
        role, content = message.get("role"), message.get("content")
        if type(content) is str and role in PLAIN_ROLES:
            return {"role": role, "content": content}
    return None


def _message(message: object, where: str, form: ContentFormat, version: Version) -> Message:
    if not isinstance(message, Mapping) or not isinstance(role := message.get("role"), str):
        raise PromptError(f"{where}: no role")
    if role == "user":
        if message.get("content") is None:
            raise PromptError(f"{where}: no content")
        fields: dict[str, Any] = {}
    else:
        role = role.lower()
        if role not in ROLES:
            raise PromptError(f"{where}: a role that SGLang does not know")
        fields = _optional(message, role, where, version)
    content = _content(message.get("content"), role, where, form, version)
    if form == "openai" and isinstance(message.get("content"), list):
        return {"role": role, **fields, "content": content}  # put behind the rest
    return {"role": role, "content": content, **fields}


def _optional(message: Mapping[str, Any], role: str, where: str, version: Version) -> dict[str, Any]:
    """Fields of a message beside its role and content, in the order of SGLang's declaration."""
    fields: dict[str, Any] = {}
    for name in TEXT_FIELDS:
        value = message.get(name)
        if value is not None and not (name == "phase" and version < PHASED):
            if not isinstance(value, str):
                raise PromptError(f"{where}: {name} is not text")
            fields[name] = value
    if (calls := message.get("tool_calls")) is not None:
        fields["tool_calls"] = _tool_calls(calls, role, where, version)
    if (tools := message.get("tools")) is not None:
        fields["tools"] = _tools(tools, f"{where}: tools", version)
    if version >= ORDERS and (prefix := message.get("prefix")) is not None:
        if not isinstance(prefix, bool):
            raise PromptError(f"{where}: prefix is not true or false")
        fields["prefix"] = prefix
    return fields


def _content(
    content: object, role: str, where: str, form: ContentFormat, version: Version
) -> str | list[dict[str, Any]]:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise PromptError(f"{where}: content is neither text nor a list of parts")
    parts = [part for each in content if (part := _part(each, role, where, version)) is not None]
    is_text = all([part["type"] == "text" for part in parts])
    if form == "string" or (role == "tool" and is_text and version >= DEFERS):
        return " ".join([part["text"] for part in parts if part["type"] == "text"])
    return parts


def _part(part: object, role: str, where: str, version: Version) -> dict[str, Any] | None:
    """A content part as the template gets it; None for one that it never does."""
    if not isinstance(part, Mapping):
        raise PromptError(f"{where}: a content part is not an object")
    kind = part.get("type")
    if kind == "text" and isinstance(text := part.get("text"), str):
        return {"type": "text", "text": text}
    if kind in ("thinking", "reasoning") and role == "assistant" and version >= THINKS:
        if isinstance(part.get("thinking"), str) is isinstance(part.get("text"), str):
            raise PromptError(f"{where}: a thinking part has either thinking or text")
        return None
    if kind == "tool_reference" and isinstance(name := part.get("name"), str) and version >= DEFERS:
        return {"type": "tool_reference", "name": name}
    if str(kind) in MEDIA:
        raise MediaError(f"{where}: a content part of type {kind!r} is not text")
    raise PromptError(f"{where}: a content part of a type that SGLang does not know")


def _tool_calls(calls: object, role: str, where: str, version: Version) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise PromptError(f"{where}: tool_calls is not a list")
    result = []
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or call.get("type", "function") != "function":
            raise PromptError(f"{where}: a tool call is not a function call")
        arguments = function.get("arguments")
        if isinstance(arguments, str) and role == "assistant":
            arguments = _arguments(arguments, where, version)
        elif arguments is not None and not isinstance(arguments, str | Mapping):
            raise PromptError(f"{where}: arguments are neither text nor an object")
        named = {"name": function.get("name"), "arguments": arguments}
        result.append(
            {"id": call.get("id"), "index": call.get("index"), "type": "function", "function": named}
        )
    return result


def _arguments(text: str, where: str, version: Version) -> Any:
    try:
        parsed = json.loads(text, parse_int=_integer, parse_constant=_no_constant)
    except UNREADABLE as exc:
        raise PromptError(f"{where}: arguments are not valid JSON") from exc
    if version >= OBJECTS and not isinstance(parsed, dict):
        raise PromptError(f"{where}: arguments are not an object")
    return parsed


def _integer(digits: str) -> int | float:
    """Integers beyond 64 bits are read as floats by the engine's decoder (orjson)."""
    number = int(digits)
    return number if -(1 << 63) <= number < 1 << 64 else float(digits)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


# --- tools ---


def _offered(body: Mapping[str, Any], version: Version) -> list[dict[str, Any]] | None:
    """Tools of a request that the template gets; None for none of them."""
    given, choice = body.get("tools"), body.get("tool_choice")
    tools = [] if given is None else _tools(given, "tools", version)
    if isinstance(choice, Mapping):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        tools = [tool for tool in tools if tool["function"]["name"] == name]
        if not tools:
            raise PromptError("tool_choice names none of the tools")
    elif choice not in (None, "auto", "required", "none"):
        raise PromptError("tool_choice is neither a word that SGLang knows nor a function")
    elif choice == "none":
        return None
    return tools or None


def _tools(tools: object, where: str, version: Version) -> list[dict[str, Any]]:
    """Tools after SGLang's validation."""
    if not isinstance(tools, list):
        raise PromptError(f"{where} is not a list")
    return [_tool(tool, f"{where}[{i}]", version) for i, tool in enumerate(tools)]


def _tool(tool: object, where: str, version: Version) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(tool, Mapping) or not isinstance(function, Mapping):
        raise PromptError(f"{where}: no function")
    kind = tool.get("type", "function")
    if not isinstance(function.get("name"), str) or not isinstance(kind, str):
        raise PromptError(f"{where}: not a function with a name")
    if version >= RETYPES:
        _check_types(function.get("parameters"), where)
    strict, deferred = function.get("strict"), function.get("defer_loading")
    if strict is None and version < ORDERS:
        if "strict" in function:
            raise PromptError(f"{where}: strict is null")
        strict = False
    if deferred is None:
        deferred = tool.get("defer_loading")
    dumped = {name: function.get(name) for name in ("description", "name", "parameters")}
    dumped |= {} if strict is None else {"strict": strict}
    dumped |= {} if deferred is None or version < DEFERS else {"defer_loading": deferred}
    if version >= ORDERS:
        dumped = {name: dumped[name] for name in function if name in dumped} | dumped
    result = {"type": kind, "function": dumped}
    return result if version < DEFERS else {**result, "defer_loading": tool.get("defer_loading")}


def _check_types(schema: object, where: str) -> None:
    """Raise PromptError for a schema with a type that the engine replaces by one of JSON's."""
    if isinstance(schema, Mapping):
        kinds = schema.get("type")
        for kind in kinds if isinstance(kinds, list) else [kinds]:
            if isinstance(kind, str) and kind not in TYPES:
                raise PromptError(f"{where}: type {kind[:20]!r} in parameters is not one of JSON's")
        for value in schema.values():
            _check_types(value, where)
    elif isinstance(schema, list):
        for value in schema:
            _check_types(value, where)
